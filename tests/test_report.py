"""`hf-softlabel report` as a user runs it: from run directories to a page, Markdown, CSV, LaTeX and figures."""

from __future__ import annotations

import csv
import json
import re
import shutil

import numpy as np
import pytest
from run_directories import CLASSES, held_out, write_run

from hf_softlabel.cli import main
from hf_softlabel.examples import read_examples
from hf_softlabel.experiments.report import _scale, build_report, setting_examples
from hf_softlabel.experiments.runs import find_runs
from hf_softlabel.experiments.setting import settings_of
from hf_softlabel.metrics import entropy
from hf_softlabel.metrics.arrays import human, model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A grid of CIFAR-10H with a cell that was not run and one that was cut off, and two seeds of a text set."""
    root = tmp_path_factory.mktemp("runs")
    names = []
    for seed in range(3):
        for delivery in ("soft", "sls", "majority"):
            names.append(f"{delivery}-seed{seed}")
            write_run(root / "grid" / names[-1], delivery, seed)
        for delivery in ("soft", "sls"):
            write_run(root / "sparse" / f"{delivery}-seed{seed}", delivery, seed, votes_per_example=5)
    write_run(root / "grid" / "mixup-seed0", "mixup", 0, done=False)
    cells = [{"name": name, "output_dir": name} for name in [*names, "mixup-seed0", "mixup-seed1"]]
    (root / "grid" / "grid.json").write_text(json.dumps({"name": "main", "cells": cells}))
    for seed in range(2):
        for delivery in ("soft", "majority"):
            write_run(root / f"text-{delivery}-{seed}", delivery, seed, dataset="chaosnli", subset="mnli", texts=True)
    return root


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "report"
    assert main(["report", str(folder), "--output_dir", str(out), "--title", "Votes & <deliveries>"]) == 0
    return out


def test_every_form_is_written(written, folder):
    names = {str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()}
    assert {"report.html", "report.md", "runs.csv", "report.json", "tables/soft_vs_hard.csv"} <= names
    for stem in ("cifar10h-resnet18-main", "cifar10h-resnet18-sweep", "chaosnli-mnli-resnet18-main"):
        assert {f"tables/{stem}.{kind}" for kind in ("csv", "tex", "md")} <= names
    pictures = {name.rsplit(".", 1)[0] for name in names if name.startswith("figures/")}
    assert len(pictures) > 5 and all({f"{p}.png", f"{p}.svg"} <= names for p in pictures)
    assert not any(name.endswith(".part") for name in names) and not written.with_name("report.part").exists()
    assert (written / "report.html").stat().st_size < 15 * 2**20
    # Markdown links to every figure, and to nothing that is not there.
    links = re.findall(r"\]\((figures/[^)]+)\)", (written / "report.md").read_text())
    assert {link.rsplit(".", 1)[0] for link in links} == pictures and set(links) <= names


def test_the_numbers_are_those_of_the_runs_and_the_same_in_every_form(written, folder):
    scores = [json.loads((folder / f"grid/sls-seed{s}/metrics.json").read_text())["soft_nll"] for s in range(3)]
    lines = list(csv.DictReader((written / "tables/cifar10h-resnet18-main.csv").open()))
    line = next(x for x in lines if (x["row"], x["column"]) == ("SLS", "soft NLL"))
    assert float(line["mean"]) == pytest.approx(np.mean(scores)) and line["seeds"] == "0 1 2"
    assert float(line["sd"]) == pytest.approx(np.std(scores, ddof=1)) and line["paper_mean"] == "0.5052"
    shown = f"{np.mean(scores):.4f} ± {np.std(scores, ddof=1):.4f}"
    page = (written / "report.html").read_text()
    assert shown in page and shown in (written / "report.md").read_text()
    assert shown.replace("±", r"$\pm$") in (written / "tables/cifar10h-resnet18-main.tex").read_text()
    for x in lines:
        if x["mean"]:
            digits = re.escape(f"{float(x['mean']):.4f}")
            assert re.search(digits, page), x
    runs = list(csv.DictReader((written / "runs.csv").open()))
    assert len(runs) == 9 + 6 + 4
    first = next(x for x in runs if x["run"] == "grid/sls-seed1")
    assert float(first["soft_nll"]) == scores[1] and first["grid"] == "main"


def test_it_says_how_the_runs_were_made(written):
    sentences = [
        "Grid main: 9 runs; seeds 0, 1, 2; 0.03 hours of training, 0.2 minutes the median; hf_softlabel 0.1.0.",
        "10 runs of no grid; seeds 0, 1, 2; 0.03 hours of training, 0.2 minutes the median; hf_softlabel 0.1.0.",
    ]
    for sentence in sentences:
        assert f"- {sentence}\n" in (written / "report.md").read_text()
        assert sentence in (written / "report.html").read_text()
    about = json.loads((written / "report.json").read_text())
    assert about["seeds"] == [0, 1, 2] and about["versions"] == {"hf_softlabel": ["0.1.0"]}


def test_what_was_not_run_is_listed_and_the_title_is_escaped(written):
    markdown = (written / "report.md").read_text()
    assert "- `grid/mixup-seed0`: cut off" in markdown and "- `grid/mixup-seed1`: not started" in markdown
    page = (written / "report.html").read_text()
    assert "mixup-seed1" in page and "Votes &amp; &lt;deliveries&gt;" in page and "<deliveries>" not in page


def test_examples_have_the_votes_and_the_mean_predictions_of_the_seeds_that_held_them_out(folder):
    settings, _ = settings_of(find_runs(folder).runs, [])
    setting = next(s for s in settings if s.dataset == "cifar10h")
    examples = {example.example_id: example for example in setting_examples(setting)}
    ids, votes = held_out(1)
    run = setting.get("sls")[1].predictions()
    kept = read_examples(setting.get("sls")[1].path)
    only = [i for i in ids if i in kept and i not in held_out(0)[0] and i not in held_out(2)[0]]
    example = examples[only[0]]
    row = list(ids).index(only[0])
    assert example.human == pytest.approx(human(votes)[row]) and example.votes == 50
    assert example.predictions["sls"] == pytest.approx(model(run.values, True)[row]) and example.seeds["sls"] == 1
    assert example.entropy == pytest.approx(entropy(votes)[row] / np.log(len(CLASSES)))
    assert example.image == kept[only[0]] and example.text is None
    assert set(example.predictions) == {"soft", "sls", "majority"}
    entropies = [example.entropy for example in setting_examples(setting)]
    assert entropies == sorted(entropies, reverse=True)


def test_a_report_replaces_an_earlier_one_and_nothing_else(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    assert main(["report", str(folder), "--output_dir", str(out)]) == 2
    assert "not of a report" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["thesis.tex"]
    (out / "thesis.tex").rename(tmp_path / "thesis.tex")
    (tmp_path / "mine.part").mkdir()
    assert main(["report", str(folder), "--output_dir", str(out)]) == 0
    (out / "notes.txt").write_text("mine")
    old = {path.name for path in (out / "tables").iterdir()}
    (tmp_path / "link").symlink_to(out)
    assert main(["report", str(folder / "grid"), "--output_dir", str(tmp_path / "link")]) == 0
    new = {path.name for path in (out / "tables").iterdir()}
    assert new < old and "cifar10h-resnet18-sweep.csv" in old - new
    assert (out / "notes.txt").read_text() == "mine" and (tmp_path / "link").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "mine.part", "link", "thesis.tex"}
    monkeypatch.chdir(out)
    assert main(["report", str(folder / "grid"), "--output_dir", "."]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "There is no folder none"),
        (["empty"], "no finished run below empty"),
        (["cut"], "1 were not finished"),
        (["runs", "--wandb", "no-project"], "entity/project"),
        (["runs", "--output_dir", "file"], "is a file"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    write_run(tmp_path / "cut" / "a", done=False)
    write_run(tmp_path / "runs" / "a")
    before = sorted(tmp_path.rglob("*"))
    assert main(["report", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("share", "scored"), [(None, "40 held-out examples each"), (0.5, "40 of them with other people's votes")]
)
def test_it_says_what_was_scored(tmp_path, share, scored):
    write_run(tmp_path / "a", "sls", 0, eval_annotators=share)
    [setting], _ = settings_of(find_runs(tmp_path).runs, [])
    assert f" training examples, scored on {scored}." in _scale(setting)


def test_one_run_is_enough_and_the_report_below_it_is_not_read_as_one(tmp_path):
    write_run(tmp_path / "a", "sls", 0)
    for _ in range(2):
        assert main(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report" / "report.html").exists()
    assert len(build_report(tmp_path).runs) == 1


@pytest.mark.parametrize("whole_seed", [0, 1, None])
def test_runs_of_which_only_the_numbers_were_kept_are_in_all_tables(written, folder, tmp_path, whole_seed):
    shutil.copytree(folder, tmp_path / "runs")
    numbers = 0
    for path in (tmp_path / "runs").rglob("DONE"):
        if json.loads((path.parent / "metrics.json").read_text())["seed"] != whole_seed:
            numbers += 1
            shutil.rmtree(path.parent / "model")
            for table in path.parent.glob("*.parquet"):
                table.unlink()
    assert main(["report", str(tmp_path / "runs"), "--output_dir", str(tmp_path / "out")]) == 0
    for table in (written / "tables").iterdir():
        if "-sparse." in table.name:  # the sparse-target diagnostic is of single examples
            continue
        assert (tmp_path / "out" / "tables" / table.name).read_bytes() == table.read_bytes(), table.name
    assert (tmp_path / "out" / "runs.csv").read_bytes() == (written / "runs.csv").read_bytes()
    of_predictions = {"reliability", "examples-range", "examples-ambiguous", "annotator-entropy", "sparse-target-js"}
    drawn = {path.stem for path in (tmp_path / "out" / "figures").iterdir()}
    found = {key for key in of_predictions if any(name.endswith(key) for name in drawn)}
    assert found == (set() if whole_seed is None else of_predictions)
    assert numbers > 9 and any("training-dynamics" in name for name in drawn)
    assert f"Of {numbers} of 19 runs only the numbers were kept" in (tmp_path / "out" / "report.md").read_text()


def test_a_wandb_report_without_a_login_is_refused_before_the_work(folder, tmp_path, monkeypatch, capsys):
    import wandb

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    wandb.teardown()
    assert main(["report", str(folder), "--output_dir", str(tmp_path / "out"), "--wandb", "me/votes"]) == 2
    assert "no login" in capsys.readouterr().err and not (tmp_path / "out").exists()
    wandb.teardown()
