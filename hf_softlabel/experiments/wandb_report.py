"""A W&B Report that compares deliveries: `hf-softlabel report RUNS_DIR --wandb entity/project`.

Runs that the project does not have yet, or only in part, are sent first, from their directories alone. A run is known
by the id that it was tracked under, or, if it was not, by a hash of its configuration and metrics, so that it is sent
once however often a report is made. Each call makes a new report: an old one may have been edited by hand.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import wandb
import wandb_workspaces.reports.v2 as wr
from tqdm.auto import tqdm
from wandb_workspaces import expr

from ..callbacks.tracking import IDENTITY_FILE, RunResults, logged_in_to_wandb, method_name, run_arguments
from ..data.errors import VotesError
from ..figures.style import LOOKS
from ..metrics.summary import TITLES
from .runs import Run, by_setting

if TYPE_CHECKING:
    from wandb.apis.public import Api

TITLE = "Deliveries of annotator votes compared"
COMPARED = ("soft_nll", "kl", "entropy_correlation", "ece_equal_mass_soft")
# Of a line of history.jsonl: what is no score.
NOT_SCORES = ("step", "epoch", "undefined")
FIGURES = ("figures/reliability", "figures/entropy")
# A panel grid is so wide.
COLUMNS = 24
BANDS = (
    "Curves are means over the runs of a method, with one standard deviation to either side. Bars are the final "
    "scores, on the best checkpoint, likewise. A method is a delivery with its own settings."
)


def publish_report(
    runs: Sequence[Run], entity_project: str, title: str = TITLE, summary: str = "", progress: bool = True
) -> str:
    """Make a report of runs in a W&B project, which gets the runs that it does not have; returns its address.

    Args:
        summary: the finding in Markdown, which comes first.
        progress: show a bar while runs are sent.
    """
    entity, project = check_project(entity_project)
    if not runs:
        raise VotesError("There are no finished runs to report.")
    api = _api()
    ids = {run.path: tracked_id(run) for run in runs}
    try:
        known = _summaries(api, entity, project, list(ids.values()))
        missing = [run for run in runs if not _is_whole(known.get(ids[run.path]), run)]
        for run in tqdm(missing, desc="sending runs", unit="run", disable=not progress or not missing):
            _send(run, ids[run.path], entity, project, known.get(ids[run.path]) or {})
        report = _report(runs, ids, entity, project, title, summary)
        return report.save().url
    except wandb.Error as error:
        raise VotesError(f"W&B did not take the report for {entity_project}: {error}") from None


def check_login(entity_project: str) -> None:
    """Refuse a name that is none, and a server that cannot be used."""
    check_project(entity_project)
    _api()


def check_project(entity_project: str) -> tuple[str, str]:
    """Entity and project of `entity/project`."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", entity_project):
        raise VotesError(f"--wandb must be entity/project, for instance my-team/votes, not {entity_project!r}.")
    entity, _, project = entity_project.partition("/")
    return entity, project


def _api() -> Api:
    address = wandb.setup().settings.base_url
    if wandb.setup().settings.mode != "online":
        raise VotesError("A W&B report needs the server: unset WANDB_MODE, or say `wandb online`.")
    if not logged_in_to_wandb():
        raise VotesError(f"There is no login for {address}: run `wandb login`, or set WANDB_API_KEY.")
    try:
        return wandb.Api()
    except wandb.Error as error:
        # A server that cannot be reached and a key that is refused are one error to the client.
        raise VotesError(
            f"{address} cannot be used ({error}): is it reachable? Else `wandb login --relogin`."
        ) from None


def tracked_id(run: Run) -> str:
    """The id that the run was tracked under, else one of its configuration and metrics."""
    path = run.path / IDENTITY_FILE
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))["run_id"]
    # Not of where it lies, which may be another place tomorrow.
    content = {"config": run.config, "metrics": run.metrics}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _summaries(api: Api, entity: str, project: str, ids: list[str]) -> dict[str, dict[str, Any]]:
    """The summaries of those runs that the project has, by id."""
    try:
        projects = {found.name for found in api.projects(entity)}
    except ValueError:
        raise VotesError(f"W&B has no entity {entity!r} that you can see: name yourself or your team.") from None
    if project not in projects:
        return {}
    found = api.runs(f"{entity}/{project}", filters={"name": {"$in": ids}}, per_page=100, lazy=False)
    return {run.id: dict(run.summary_metrics) for run in found if run.id in ids}


def _is_whole(summary: dict[str, Any] | None, run: Run) -> bool:
    """Whether a run was sent to its end: the label stream's digest comes with the results."""
    return summary is not None and summary.get("final/ledger_digest") == run.metrics["ledger_digest"]


def _send(run: Run, identity: str, entity: str, project: str, known: dict[str, Any]) -> None:
    """Send a run's history and results; of one that was cut off while it was sent, the rest."""
    arguments = run_arguments(run.config, run.path.resolve().name, run.path.resolve().parent.name, run.grid)
    # The numbers are not of this process or machine.
    quiet = {"silent": True, "console": "off", "disable_git": True}
    bare = {"x_disable_stats": True, "x_disable_meta": True, "x_save_requirements": False}
    results = RunResults(run.path)
    with tempfile.TemporaryDirectory() as folder:
        place = {"entity": entity, "project": project, "id": identity, "resume": "allow", "dir": folder}
        with wandb.init(
            **arguments, **place, reinit="create_new", settings=wandb.Settings(**quiet, **bare)
        ) as tracked:
            tracked.define_metric("train/global_step")
            tracked.define_metric("*", step_metric="train/global_step", step_sync=True)
            for line in run.history():
                if line["step"] > known.get("train/global_step", -1):
                    tracked.log(history_row(line))
            results.log_to_wandb(tracked)


def history_row(line: dict[str, Any]) -> dict[str, float]:
    """A line of history.jsonl by the names that `Trainer` tracks."""
    scores = {f"eval/{key}": value for key, value in line.items() if key not in NOT_SCORES and value is not None}
    return {"train/global_step": line["step"], "train/epoch": line["epoch"], **scores}


def _report(
    runs: Sequence[Run], ids: dict[Any, str], entity: str, project: str, title: str, summary: str
) -> wr.Report:
    blocks: list[Any] = [wr.MarkdownBlock(text=summary)] if summary else []
    blocks.append(wr.P(text=BANDS))
    for name, group in by_setting(runs).items():
        methods = sorted({method_name(run.config) for run in group})
        of_these = {
            "entity": entity,
            "project": project,
            "filters": expr.And(expr.Metric("ID").isin([ids[run.path] for run in group])),
        }
        grouped = wr.Runset(**of_these, name="by method", groupby=["config.method"])
        single = wr.Runset(**of_these, name="single runs")
        blocks += [
            wr.H2(text=name),
            wr.P(text=f"{len(group)} run(s) of {len(methods)} method(s): {', '.join(methods)}."),
            wr.PanelGrid(runsets=[grouped], panels=_comparison(), custom_run_colors=_colours(methods)),
            wr.H3(text="Single runs"),
            wr.PanelGrid(runsets=[single], panels=_details()),
        ]
    return wr.Report(entity=entity, project=project, title=title, width="fluid", blocks=blocks)


def _comparison() -> list[Any]:
    """Curves with bands, and below them bars of the final scores."""
    width = COLUMNS // len(COMPARED)
    style = {"groupby": wr.Config("method"), "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    curves = [
        wr.LinePlot(
            title=TITLES[name],
            x="train/epoch",
            title_x="epoch",
            y=[f"eval/{name}"],
            layout=wr.Layout(x=i * width, y=0, w=width, h=8),
            **style,
        )
        for i, name in enumerate(COMPARED)
    ]
    bars = [
        wr.BarPlot(
            title=f"{TITLES[name]}, final",
            metrics=[f"final/{name}"],
            layout=wr.Layout(x=i * width, y=8, w=width, h=7),
            **style,
        )
        for i, name in enumerate(COMPARED)
    ]
    return [*curves, *bars]


def _details() -> list[Any]:
    return [
        wr.WeavePanelSummaryTable(table_name="predictions", layout=wr.Layout(x=0, y=0, w=COLUMNS, h=14)),
        wr.MediaBrowser(media_keys=list(FIGURES), num_columns=4, layout=wr.Layout(x=0, y=14, w=COLUMNS, h=12)),
        wr.RunComparer(diff_only="split", layout=wr.Layout(x=0, y=26, w=COLUMNS, h=14)),
    ]


def _colours(methods: Sequence[str]) -> dict[wr.RunsetGroup, str]:
    """Each delivery's colour in all our pictures."""
    known = {name: LOOKS[name].colour for name in methods if name in LOOKS}
    return {
        wr.RunsetGroup(runset_name="by method", keys=(wr.RunsetGroupKey(wr.Config("method"), name),)): colour
        for name, colour in known.items()
    }
