"""A W&B Report of run directories, by the real client, on a W&B server on loopback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import wandb
import wandb_workspaces.reports.v2 as wr
from loopback.wandb_server import ENTITY, KEY, WandbServer, serve

from hf_softlabel import VotesError
from hf_softlabel.cli import main
from hf_softlabel.experiments.runs import Run, find_runs
from hf_softlabel.experiments.wandb_report import COMPARED, history_row, publish_report, tracked_id
from hf_softlabel.figures.style import LOOKS
from hf_softlabel.metrics.summary import NAMES

RECIPE = str(Path(__file__).parents[1] / "recipes" / "synthetic" / "soft.yaml")
PLACE = f"{ENTITY}/votes"
SUMMARY = "# Finding\n\n**soft** has the lower soft NLL."


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two deliveries with two seeds, one of them a cell of a grid, and one run of another setting."""
    folder = tmp_path_factory.mktemp("runs")
    for name, options in {
        "soft0": [],
        "soft1": ["--seed", "1"],
        "sls0": ["--delivery", "sls", "--votes_per_example", "3"],
        "sls1": ["--delivery", "sls", "--votes_per_example", "3", "--seed", "1"],
        "more": ["--train_size", "60"],
    }.items():
        short = ["--num_train_epochs", "2", "--train_size", "40", "--disable_tqdm", "true"]
        assert main(["train", RECIPE, *short, "--output_dir", str(folder / name), *options]) == 0
    return folder


@pytest.fixture(scope="module")
def login(tmp_path_factory):
    """A server, and a user in this process who is logged in to it."""
    with serve(tmp_path_factory.mktemp("server")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("WANDB_BASE_URL", server.url)
        patch.setenv("WANDB_API_KEY", KEY)
        for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_RUN_ID"):
            patch.delenv(name, raising=False)
        wandb.teardown()
        yield server
        wandb.teardown()


@pytest.fixture(scope="module")
def runs(folder) -> dict[str, Run]:
    return {run.path.name: run for run in find_runs(folder).runs}


@pytest.fixture(scope="module")
def published(login, runs) -> str:
    """The report's address."""
    return publish_report(list(runs.values()), PLACE, "Votes", SUMMARY)


def evaluations(server: WandbServer, run: Run) -> list[dict]:
    return [row for row in server.runs[tracked_id(run)].history if "eval/soft_nll" in row]


def test_every_run_is_sent_with_its_history_and_results(login, published, runs):
    assert not login.refused and set(login.runs) == {tracked_id(run) for run in runs.values()}
    for run in runs.values():
        sent = login.runs[tracked_id(run)]
        assert sent.project == "votes" and sent.state == "finished"
        rows = evaluations(login, run)
        assert [row["train/global_step"] for row in rows] == [line["step"] for line in run.history()]
        for row, line in zip(rows, run.history(), strict=True):
            assert row["train/epoch"] == line["epoch"]
            assert all(row[f"eval/{name}"] == line[name] for name in NAMES if line.get(name) is not None)
        assert sent.attributes["displayName"] == run.path.name and sent.attributes["jobType"] == run.delivery
        assert sent.values()["method"] == ("soft" if run.delivery == "soft" else "sls, K = 3")
        assert sent.summary["predictions"]["nrows"] == 100
        files = login.files(sent.name)
        assert (
            sent.summary["figures/reliability"]["path"] in files and sent.summary["figures/entropy"]["path"] in files
        )
        # The machine that sends is not the one that trained.
        assert "wandb-metadata.json" not in files


def test_the_public_api_reads_the_numbers_of_metrics_json(published, runs):
    by_id = {tracked_id(run): run for run in runs.values()}
    found = list(wandb.Api().runs(PLACE))
    assert {run.id for run in found} == set(by_id)
    for tracked in found:
        metrics = by_id[tracked.id].metrics
        assert all(
            tracked.summary[f"final/{name}"] == metrics[name] for name in NAMES if metrics.get(name) is not None
        )
        assert tracked.config["delivery"] == metrics["delivery"]
        losses = [row["eval/soft_nll"] for row in tracked.scan_history(keys=["eval/soft_nll"])]
        assert losses == [line["soft_nll"] for line in by_id[tracked.id].history()]


def test_the_report_has_a_section_for_each_setting(published, runs):
    report = wr.Report.from_url(published)
    assert report.title == "Votes" and report.blocks[0].text == SUMMARY
    sections = [block.text for block in report.blocks if isinstance(block, wr.H2)]
    assert len(sections) == 2 and "40 training examples" in sections[0] and "60 training examples" in sections[1]
    grids = [block for block in report.blocks if isinstance(block, wr.PanelGrid)]
    assert len(grids) == 4
    main_runs = {tracked_id(run) for name, run in runs.items() if name != "more"}
    for grid, wanted in zip(grids, [main_runs, main_runs, *[{tracked_id(runs["more"])}] * 2], strict=True):
        (runset,) = grid.runsets
        assert (runset.entity, runset.project) == (ENTITY, "votes")
        assert all(
            (identity in runset.filters) == (identity in wanted)
            for run in runs.values()
            for identity in [tracked_id(run)]
        )


def test_the_report_compares_methods_by_curves_with_bands_and_by_bars(login, published):
    grids = [block for block in wr.Report.from_url(published).blocks if isinstance(block, wr.PanelGrid)]
    compared, details = grids[:2]
    assert compared.runsets[0].groupby == ["config.method.value"] and not details.runsets[0].groupby
    curves = [panel for panel in compared.panels if isinstance(panel, wr.LinePlot)]
    bars = [panel for panel in compared.panels if isinstance(panel, wr.BarPlot)]
    assert [panel.y for panel in curves] == [[wr.Metric(f"eval/{name}")] for name in COMPARED]
    assert [panel.metrics for panel in bars] == [[wr.Metric(f"final/{name}")] for name in COMPARED]
    assert all(panel.x == wr.Metric("train/epoch") for panel in curves)
    for panel in (*curves, *bars):
        grouping = (panel.groupby, panel.groupby_aggfunc, panel.groupby_rangefunc)
        assert grouping == (wr.Config("method"), "mean", "stddev") and panel.aggregate
    assert [type(panel) for panel in details.panels] == [wr.WeavePanelSummaryTable, wr.MediaBrowser, wr.RunComparer]
    assert details.panels[0].table_name == "predictions"
    assert set(details.panels[1].media_keys) == {"figures/reliability", "figures/entropy"}
    ((group, colour),) = [item for item in compared.custom_run_colors.items() if not isinstance(item[0], str)]
    assert group.keys[0].value == "soft" and colour == LOOKS["soft"].colour
    # No two panels of a grid lie upon each other.
    for grid in json.loads(next(iter(login.views.values()))["spec"])["blocks"]:
        panels = grid.get("metadata", {}).get("panelBankSectionConfig", {}).get("panels", [])
        cells = [
            (x, y)
            for place in (panel["layout"] for panel in panels)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(cells) == len(set(cells)) and all(x < 24 for x, _ in cells)


def test_a_second_report_sends_no_run_again(login, published, runs, capsys):
    before, views = len(login.operations), len(login.views)
    assert publish_report(list(runs.values()), PLACE) != published
    later = login.operations[before:]
    assert "upsertView" in later and len(login.views) == views + 1
    assert not {"UpsertBucket", "CreateArtifact", "CreateRunFiles"} & set(later)
    assert "sending runs" not in capsys.readouterr().err


def test_a_run_that_was_cut_off_while_it_was_sent_gets_the_rest(login, published, runs, capsys):
    run = runs["soft0"]
    sent = login.runs[tracked_id(run)]
    del sent.history[1:]
    sent.summary = {key: sent.history[0][key] for key in ("_step", "train/global_step", "eval/soft_nll")}
    publish_report(list(runs.values()), PLACE)
    assert [row["train/global_step"] for row in evaluations(login, run)] == [line["step"] for line in run.history()]
    assert sent.summary["final/soft_nll"] == run.metrics["soft_nll"]
    assert "sending runs: 100%" in capsys.readouterr().err


def test_a_run_is_known_by_its_tracked_id_or_by_what_it_is(runs, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(runs["soft0"].path, moved)
    (copy,) = find_runs(moved).runs
    assert tracked_id(copy) == tracked_id(runs["soft0"]) != tracked_id(runs["soft1"])
    (moved / "tracking.json").write_text('{"run_id": "abc"}')
    assert tracked_id(copy) == "abc"


def test_a_line_of_the_history_by_its_tracked_names():
    line = {"step": 2, "epoch": 1.0, "kl": 0.5, "entropy_correlation": None, "undefined": {"entropy_correlation": "x"}}
    assert history_row(line) == {"train/global_step": 2, "train/epoch": 1.0, "eval/kl": 0.5}


@pytest.mark.parametrize("place", ["votes", "a/b/c", "/votes", "team/", "team/my votes", ""])
def test_a_malformed_place_is_refused(runs, place):
    with pytest.raises(VotesError, match="entity/project"):
        publish_report(list(runs.values()), place)


def test_no_runs_no_login_a_refused_key_and_an_unknown_entity_are_errors(login, runs, monkeypatch):
    some = list(runs.values())
    with pytest.raises(VotesError, match="no finished runs"):
        publish_report([], PLACE)
    with pytest.raises(VotesError, match="no entity 'nobody'"):
        publish_report(some, "nobody/votes")
    for variable, value, message in (
        ("WANDB_API_KEY", None, "There is no login for .*`wandb login`"),
        ("WANDB_API_KEY", "f" * 40, "cannot be used .*user is not logged in.*`wandb login --relogin`"),
        ("WANDB_MODE", "offline", "unset WANDB_MODE"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value) if value else patch.delenv(variable)
            wandb.teardown()
            before = len(login.views)
            with pytest.raises(VotesError, match=message):
                publish_report(some, PLACE)
            assert len(login.views) == before
    wandb.teardown()


def test_the_command_makes_the_page_and_the_report_with_its_findings(login, published, folder, tmp_path, capsys):
    before = set(login.runs)
    out = str(tmp_path / "report")
    assert main(["report", str(folder), "--output_dir", out, "--title", "By command", "--wandb", PLACE]) == 0
    said = capsys.readouterr().out
    address = said.rpartition("W&B Report: ")[2].strip()
    report = wr.Report.from_url(address)
    assert report.title == "By command" and set(login.runs) == before
    findings = json.loads((tmp_path / "report" / "report.json").read_text())["findings"]
    assert findings and all(f"- {finding}" in report.blocks[0].text for finding in findings)
