"""What W&B and trackio get of a recipe's run: `report_to: wandb`, `report_to: trackio`.

`Trainer` sends the curves. Here a run is opened before, so that it has the whole configuration, its place (group: the
grid, job type: the delivery) and an id that a resumed run finds again; and after the last evaluation it gets the
results: everything of metrics.json and diagnostics.json under `final/` and `diagnostics/`, a table of the most
ambiguous examples, and figures. Only the first process tracks. A tracker that fails never stops a training.
"""

from __future__ import annotations

import io
import json
import logging
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from transformers import TrainerCallback
from transformers.integrations import TrackioCallback, WandbCallback, is_trackio_available
from transformers.integrations.integration_utils import rewrite_logs

from ..checkpoint import write_text_atomically
from ..data.errors import VotesError

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from ..predictions import Predictions
    from ..trainer import VotesTrainer

logger = logging.getLogger(__name__)
# `hf-softlabel grid` sets it for every cell.
GRID_VARIABLE = "HF_SOFTLABEL_GRID"
IDENTITY_FILE = "tracking.json"
# Rows of the table of predictions.
EXAMPLES = 200
# W&B waits without an end for a server that is gone. What was not sent can be synced later.
FINISH_SECONDS = 300
# W&B's limit.
LONGEST_TAG = 64
# Of metrics.json: not measured, or not a number or a word.
NOT_RESULTS = ("versions", "undefined", "train_mean")


def run_id(folder: Path) -> str:
    """The id by which trackers know a run, made up at the first call and kept in its directory."""
    path = folder / IDENTITY_FILE
    if not path.exists():
        write_text_atomically(path, json.dumps({"run_id": secrets.token_hex(4)}))
    return json.loads(path.read_text(encoding="utf-8"))["run_id"]


def method_name(config: Mapping[str, Any]) -> str:
    """What curves are grouped by: the delivery, and what else a table compares but the seed: `sls, K = 3`."""
    # The module imports `run`, which imports this one.
    from ..experiments.runs import Run

    run = Run(Path(), dict(config), {})
    votes = [f"K = {run.votes_per_example}"] if run.votes_per_example else []
    held = [f"held {run.resample_every} epochs"] if run.resample_every > 1 else []
    return ", ".join([run.method, *votes, *held])


def run_arguments(config: Mapping[str, Any], name: str, group: str | None, grid: str | None) -> dict[str, Any]:
    """Arguments of `wandb.init`: where a run stands among others, and all that it was made of."""
    dataset = "/".join(str(config[key]) for key in ("dataset", "subset") if config.get(key))
    return {
        "name": config.get("run_name") or name,
        "group": grid or group or name,
        "job_type": config["delivery"],
        "tags": [tag[:LONGEST_TAG] for tag in (dataset, config["delivery"])],
        "config": {**config, "method": method_name(config), "grid": grid},
    }


def final_results(metrics: Mapping[str, Any], diagnostics: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and words of a run by their path: `final/soft_nll`, `final/references/human/kl`, `diagnostics/...`."""
    kept = {key: value for key, value in metrics.items() if key not in NOT_RESULTS}
    return {**dict(_leaves("final", kept)), **dict(_leaves("diagnostics", diagnostics))}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}/{key}", item)
    elif isinstance(value, (int, float, str)):
        yield path, value


def prediction_columns(
    predictions: Predictions, inputs: Mapping[int, str | bytes] | None = None, limit: int = EXAMPLES
) -> dict[str, list]:
    """Examples with what people and the model say of them, column by column, those first on which people disagree.

    Args:
        inputs: texts, or images as files, by example id: these examples are the rows.
        limit: without inputs, so many examples at most.
    """
    from ..metrics import entropy, kl_to_annotators, soft_nll
    from ..metrics.arrays import human, model

    # Rounded and stable, so that all runs on these examples show them in one order.
    order = np.argsort(-entropy(human(predictions.votes)).round(12), kind="stable")
    kept = order[np.isin(predictions.ids[order], list(inputs))] if inputs else order[:limit]
    chosen = predictions.take(kept)
    names = chosen.names or [str(i) for i in range(chosen.values.shape[1])]
    p, q = human(chosen.votes), model(chosen.values, chosen.from_logits)
    scored = (chosen.values, chosen.votes, chosen.from_logits)
    columns: dict[str, Any] = {"example_id": chosen.ids}
    if inputs:
        columns["input"] = [_shown(inputs[example]) for example in chosen.ids.tolist()]
    columns |= {"annotators": [names[i] for i in p.argmax(-1)], "model": [names[i] for i in q.argmax(-1)]}
    if chosen.label is not None and (chosen.label >= 0).all():
        columns["gold"] = [names[i] for i in chosen.label]
    columns |= {
        "annotator_entropy": entropy(p),
        "model_entropy": entropy(q),
        "soft_nll": soft_nll(*scored, per_example=True),
        "kl": kl_to_annotators(*scored, per_example=True),
        **{f"annotators/{name}": p[:, i] for i, name in enumerate(names)},
        **{f"model/{name}": q[:, i] for i, name in enumerate(names)},
    }
    return {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in columns.items()}


def _shown(value: str | bytes) -> str | Image.Image:
    return value if isinstance(value, str) else Image.open(io.BytesIO(value))


def figures(folder: Path) -> dict[str, Image.Image]:
    """Pictures of a finished run: reliability and entropies."""
    from ..figures import entropy_scatter, reliability_diagram

    drawn = {"reliability": reliability_diagram(folder), "entropy": entropy_scatter(folder)}
    return {f"figures/{name}": _picture(figure) for name, figure in drawn.items()}


def _picture(figure: Any) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return Image.open(buffer)


class RunResults:
    """All that a finished run's directory has for a tracker."""

    def __init__(self, folder: Path):
        from ..examples import read_examples
        from ..predictions import read_predictions

        predictions = read_predictions(folder)
        diagnostics = folder / "diagnostics.json"
        measured = json.loads(diagnostics.read_text(encoding="utf-8")) if diagnostics.exists() else {}
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        self.predictions = prediction_columns(predictions, read_examples(folder))
        shown = f"{len(self.predictions['example_id'])} of {len(predictions)} examples, the most ambiguous first"
        self.results = {**final_results(metrics, measured), "final/predictions_shown": shown}
        self.figures = figures(folder)

    def log_to_wandb(self, run: Any) -> None:
        import wandb

        run.summary.update(self.results)
        columns = {name: _cells(wandb.Image, column) for name, column in self.predictions.items()}
        table = wandb.Table(columns=list(columns), data=[list(row) for row in zip(*columns.values(), strict=True)])
        run.log({"predictions": table, **{name: wandb.Image(image) for name, image in self.figures.items()}})

    def log_to_trackio(self, run: Any) -> None:
        import pandas as pd
        import trackio

        columns = {name: _cells(trackio.Image, column) for name, column in self.predictions.items()}
        table = trackio.Table(dataframe=pd.DataFrame(columns))
        pictures = {name: trackio.Image(image) for name, image in self.figures.items()}
        run.log({**self.results, "predictions": table, **pictures})


def _cells(image: Any, column: list) -> list:
    """The column with its images as the tracker's own."""
    return [image(cell) if isinstance(cell, Image.Image) else cell for cell in column]


class _ResumedCurves(TrainerCallback):
    """Sends again what W&B may not have got of a run that was killed: its client dies with what it had not sent."""

    def __init__(self, run: Any):
        self.run = run

    def on_train_begin(self, args, state, control, **kwargs):
        known = self.run.summary.get("train/global_step", -1)
        for entry in state.log_history:
            # A step has several entries, of which the last may be missing.
            if entry["step"] >= known:
                logs = rewrite_logs({key: value for key, value in entry.items() if key != "step"})
                self.run.log({**logs, "train/global_step": entry["step"]})


class WandbTracker:
    """A run of W&B, online where there is a login and a server, else offline."""

    def __init__(self, arguments: dict[str, Any], project: str, folder: Path):
        self.arguments, self.project, self.folder = arguments, project, folder
        self.run: Any = None
        # Somebody who has opened a run of their own also closes it.
        self.own = True

    def open(self, trainer: VotesTrainer) -> None:
        import wandb

        if wandb.run is not None:
            self.run, self.own = wandb.run, False
            self.run.config.update(self.arguments["config"], allow_val_change=True)
            return
        # A sweep's agent says the id itself.
        identity = os.environ.get("WANDB_RUN_ID") or run_id(self.folder)
        settings = {} if "WANDB_FINISH_TIMEOUT" in os.environ else {"finish_timeout": FINISH_SECONDS}
        if any("_token" in word for word in sys.argv):
            # The command line is among the metadata that W&B keeps of a run.
            settings["x_disable_meta"] = True
        arguments = {
            **self.arguments,
            "group": os.environ.get("WANDB_RUN_GROUP") or self.arguments["group"],
            "project": os.environ.get("WANDB_PROJECT") or self.project,
            "id": identity,
            "resume": "allow",
            "settings": wandb.Settings(**settings),
        }
        if not logged_in_to_wandb():
            logger.warning("There is no W&B login (`wandb login`, or WANDB_API_KEY): the run is logged offline.")
            arguments["mode"] = "offline"
        try:
            self.run = wandb.init(**arguments)
        except wandb.Error as error:
            logger.warning("W&B cannot be reached, and the run is logged offline: %s", error)
            # Its service still holds the id.
            wandb.teardown(exit_code=1)
            self.run = wandb.init(**{**arguments, "mode": "offline"})
        # After W&B's own callback, which says what the curves are drawn over.
        trainer.add_callback(_ResumedCurves(self.run))

    def end_curves(self, trainer: VotesTrainer) -> None:
        # It would log the final predictions as one more point of the curves.
        trainer.remove_callback(WandbCallback)

    def log_results(self, results: RunResults) -> None:
        results.log_to_wandb(self.run)

    def close(self, failed: bool) -> None:
        if not self.own:
            return
        self.run.finish(exit_code=int(failed))
        if self.run.settings.mode == "offline":
            # Alone: W&B cannot read what a killed process has left, and a resumed run has sent its curves again.
            logger.warning("To send the offline run to W&B: wandb sync %s", self.run.settings.sync_dir)


def logged_in_to_wandb() -> bool:
    """Whether W&B has credentials, or has been told to need none; never asks for them."""
    import wandb

    if wandb.setup().settings.mode != "online":
        return True
    try:
        return wandb.login(prompt=False, verify=False)
    except wandb.errors.AuthenticationError as error:
        reason = str(error).rstrip(".")
        raise VotesError(f"The W&B login cannot be used ({reason}): set WANDB_API_KEY, or `wandb login`.") from None


class _GroupedTrackio(TrackioCallback):
    """[`TrackioCallback`] that says the group and the whole configuration, and stays open for the results."""

    def __init__(self, arguments: dict[str, Any]):
        super().__init__()
        self.arguments = arguments

    def setup(self, args, state, model, **kwargs):
        if state.is_world_process_zero:
            self._trackio.init(
                project=args.project,
                name=self.arguments["name"],
                group=self.arguments["group"],
                config=self.arguments["config"],
                space_id=args.trackio_space_id,
                bucket_id=args.trackio_bucket_id,
                private=args.hub_private_repo,
                resume="allow",
            )
            self._space_id = self._trackio.context_vars.current_space_id.get()
        self._initialized = True

    def on_predict(self, args, state, control, metrics, **kwargs):
        """The final predictions are no point of the curves."""

    def on_train_end(self, args, state, control, **kwargs):
        """The results are still to come."""


class TrackioTracker:
    """A run of trackio, on this machine unless a Space is named."""

    def __init__(self, arguments: dict[str, Any], named: bool, folder: Path):
        # trackio knows a run by its name only, and another directory's run may have this one.
        name = arguments["name"] if named else f"{arguments['name']}-{run_id(folder)}"
        self.callback = _GroupedTrackio({**arguments, "name": name})

    def open(self, trainer: VotesTrainer) -> None:
        trainer.remove_callback(TrackioCallback)
        trainer.add_callback(self.callback)
        self.trainer = trainer
        if trainer.args.trackio_static_space_id is None:
            # By default a push of the model would make a Space, too.
            trainer.args.trackio_static_space_id = False

    def end_curves(self, trainer: VotesTrainer) -> None:
        """The callback leaves the final predictions out by itself."""

    def log_results(self, results: RunResults) -> None:
        import trackio

        results.log_to_trackio(trackio.context_vars.current_run.get())

    def close(self, failed: bool) -> None:
        trainer = self.trainer
        # The parent's, which finishes the run, and freezes a Space.
        TrackioCallback.on_train_end(self.callback, trainer.args, trainer.state, trainer.control, model=trainer.model)


def check_trackers(args: TrainingArguments) -> None:
    """Refuse a tracker that is not installed, and a login that has no form, before anything is loaded."""
    if "trackio" in args.report_to and not is_trackio_available():
        raise VotesError("report_to: trackio needs trackio, which is not installed: pip install trackio")
    if "wandb" in args.report_to and args.process_index == 0:
        logged_in_to_wandb()


class Tracking:
    """The trackers of a recipe's run, as a context: closed at its end, and marked as failed by an exception.

    Args:
        config: the resolved configuration.
        recipe: the recipe's name, by which runs without a grid are grouped.
    """

    def __init__(self, trainer: VotesTrainer, config: Mapping[str, Any], folder: Path, recipe: str | None = None):
        self.trainer, self.folder = trainer, folder
        self.trackers: list[WandbTracker | TrackioTracker] = []
        args = trainer.args
        if args.process_index != 0:
            return
        arguments = run_arguments(config, folder.resolve().name, recipe, os.environ.get(GRID_VARIABLE))
        if "wandb" in args.report_to:
            self.trackers.append(WandbTracker(arguments, args.project, folder))
        if "trackio" in args.report_to:
            self.trackers.append(TrackioTracker(arguments, config.get("run_name") is not None, folder))

    def __enter__(self) -> Tracking:
        for tracker in self.trackers:
            tracker.open(self.trainer)
        return self

    def end_curves(self) -> None:
        """After the training: what is predicted from now on is no point of a curve."""
        for tracker in self.trackers:
            tracker.end_curves(self.trainer)

    def log_results(self) -> None:
        """Send what the run's directory has now."""
        if not self.trackers:
            return
        try:
            results = RunResults(self.folder)
            for tracker in self.trackers:
                tracker.log_results(results)
        except Exception:
            # The run is whole on disk, and `hf-softlabel report --wandb` can still send it.
            logger.exception("The results could not be sent to %s.", ", ".join(self.trainer.args.report_to))

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        for tracker in self.trackers:
            try:
                tracker.close(failed=kind is not None)
            except Exception:
                logger.exception("A tracker could not be closed.")
