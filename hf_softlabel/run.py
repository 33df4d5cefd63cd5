"""One recipe, one run directory: load the votes, train, score, and write what a report needs.

The directory holds `config.yaml` (fully resolved), `history.jsonl` (a line per evaluation), `predictions.parquet`,
`examples.parquet` (inputs of a few held-out examples, for reports), `metrics.json`, `model/`, and `DONE`, which is
written last; with `votes_per_example`, also `train_predictions.parquet` with the sparse and the full votes. Without
`DONE`, a directory is resumed or redone.
"""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from datasets import IterableDataset as StreamingDataset
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from .build import build_trainer
from .calibrate import fit_calibration, measure_calibration
from .callbacks.console import TIMES
from .callbacks.progress import progress_callbacks
from .callbacks.recipe import add_diagnostics, write_diagnostics
from .callbacks.tracking import Tracking, check_trackers
from .checkpoint import last_whole_checkpoint, write_text_atomically
from .config import DataConfig, ModelConfig, SoftLabelConfig, resolved
from .data.errors import VotesError
from .data.votes import votes_chunks
from .examples import example_inputs, write_examples
from .hub.data_facts import origin
from .hub.push import push_run
from .metrics import entropy, references
from .metrics.arrays import human
from .metrics.summary import TITLES
from .preparation import votes_and_ids
from .splits import fingerprint, load_splits
from .trainer import VotesTrainer

logger = logging.getLogger(__name__)
PACKAGES = ("hf_softlabel", "torch", "transformers", "datasets", "accelerate", "timm", "numpy", "scipy")
# A run that differs in these only is the same run.
NOT_THE_RUN = (
    "output_dir",
    "resume_from_checkpoint",
    "allow_changed_resume",
    "sources",
    "report_to",
    "run_name",
    "project",
    "disable_tqdm",
    "use_cpu",
    "channels_last",
)
# In the summary of a run; all scores are in metrics.json, and `hf-softlabel score` shows them.
SHOWN = ("soft_nll", "kl", "accuracy", "ece_equal_mass_soft", "entropy_correlation")
VERIFIED = ("cifar10h", "chaosnli", "popquorn", "synthetic")
NOT_THE_RUN_PREFIXES = (
    *("dataloader_", "logging_", "log_", "hub_", "push_", "save_", "trackio_"),
    *("diagnostics", "hessian_", "ood_"),
)


class _History(TrainerCallback):
    """Appends a line to history.jsonl at each evaluation; a resumed run drops the lines that it will write again."""

    def __init__(self, path: Path):
        self.path = path
        self.trainer: VotesTrainer | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
            # A line without an end was cut off while it was written.
            whole = [line for line in lines if line.endswith("}\n")]
            kept = [line for line in whole if json.loads(line)["step"] <= state.global_step]
            write_text_atomically(self.path, "".join(kept))

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        if state.is_world_process_zero and args.process_index == 0:
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            line = {"step": state.global_step, "epoch": state.epoch, **_plain(metrics, "eval_")}
            # Of the steps since the training loss was last logged: an epoch's in our recipes.
            line["train_loss"] = losses[-1] if losses else None
            if self.trainer.undefined:
                line["undefined"] = self.trainer.undefined
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _plain(metrics: dict[str, float], prefix: str) -> dict[str, float | None]:
    """Metrics without their prefix; NaN becomes null, which JSON has."""
    return {
        key.removeprefix(prefix): None if isinstance(value, float) and not np.isfinite(value) else value
        for key, value in metrics.items()
    }


def changed_keys(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The keys in which two resolved configurations are different runs."""
    # The sources of a named data set are verified to be the same wherever they lie; a table is what it is.
    matters = ("dataloader_drop_last",) if now["dataset"] in VERIFIED else ("dataloader_drop_last", "sources")
    return [
        key
        for key, value in now.items()
        if before.get(key) != value
        and (key in matters or (key not in NOT_THE_RUN and not key.startswith(NOT_THE_RUN_PREFIXES)))
    ]


def _open_run(out: Path, config: dict[str, Any], training: SoftLabelConfig, overwrite: bool) -> dict | None:
    """See whether a run may use the directory; returns the metrics if it is finished already."""
    if out.exists() and not out.is_dir():
        raise VotesError(f"{out} is a file: choose another --output_dir.")
    before = run_config(out)
    if before is None:
        if overwrite and out.exists() and any(out.iterdir()):
            raise VotesError(f"{out} is not a run directory: it has no config.yaml of ours. It is not overwritten.")
        return None
    if overwrite:
        return None
    changed, finished = changed_keys(before, config), (out / "DONE").exists()
    if changed and (finished or not training.allow_changed_resume):
        raise VotesError(
            f"{out} holds a run with another configuration (different: {', '.join(changed)}). "
            "Choose another --output_dir, or --overwrite it"
            + ("." if finished else ", or go on with --allow_changed_resume.")
        )
    return json.loads((out / "metrics.json").read_text()) if finished else None


def run_config(out: Path) -> dict[str, Any] | None:
    """The configuration of the run in a directory, None when there is none of ours."""
    try:
        config = yaml.safe_load((out / "config.yaml").read_text(encoding="utf-8"))
    except (FileNotFoundError, yaml.YAMLError, UnicodeDecodeError):
        return None
    return config if isinstance(config, dict) and {"delivery", "dataset", "model"} <= config.keys() else None


def _clear(out: Path) -> None:
    """Remove what a run wrote, and nothing else."""
    for pattern in (
        "DONE",
        "metrics.json",
        "diagnostics.json",
        "predictions.parquet",
        "train_predictions.parquet",
        "examples.parquet",
        "history.jsonl",
        "tracking.json",
        "*.part",
        "config.yaml",
    ):
        for path in out.glob(pattern):
            path.unlink()
    for path in [*out.glob("checkpoint-*"), out / "model"]:
        shutil.rmtree(path, ignore_errors=True)


def run_recipe(
    model_config: ModelConfig,
    data_config: DataConfig,
    training: SoftLabelConfig,
    overwrite: bool = False,
    quiet: bool = False,
    callbacks: list[TrainerCallback] | None = None,
    recipe: str | None = None,
) -> dict[str, Any]:
    """Train and evaluate what the three configurations say, and write the run directory `training.output_dir`.

    Args:
        overwrite: start anew where a run directory exists already.
        quiet: print no scores and no progress.
        callbacks: further callbacks for the trainer.
        recipe: the recipe's name, by which trackers group runs that no grid has.

    Returns:
        The contents of metrics.json.
    """
    check_trackers(training)
    out = Path(training.output_dir)
    config = resolved(model_config, data_config, training)
    with training.main_process_first(local=False, desc="opening the run"):
        finished = _open_run(out, config, training, overwrite)
    if finished is None or data_config.dataset not in VERIFIED:
        with training.main_process_first(local=False, desc="loading the votes"):
            splits = load_splits(data_config, training.seed)
    if finished is not None:
        if data_config.dataset not in VERIFIED and fingerprint(splits) != finished["votes_fingerprint"]:
            raise VotesError(f"{out} holds a finished run on other votes than {data_config.sources} has now.")
        logger.warning("%s is finished already; --overwrite starts it anew.", out)
        if training.push_to_hub:
            name = training.hub_model_id or "owner/name"
            logger.warning("Nothing was pushed now: hf-softlabel push %s --repo %s sees that it is there.", out, name)
        return finished
    shown = example_inputs(splits.eval, data_config.text_columns)
    history = _History(out / "history.jsonl")
    callbacks = [history, *progress_callbacks(), *(callbacks or [])]
    trainer, splits = build_trainer(model_config, data_config, training, splits, callbacks)
    history.trainer = trainer
    # The authors' files of OOD sets lie beside those of the data set itself.
    diagnostics = add_diagnostics(trainer, data_config.sources if data_config.dataset in VERIFIED else None)
    if quiet:
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
    if training.process_index == 0:
        out.mkdir(parents=True, exist_ok=True)
        if overwrite:
            # Only now, when everything that can be wrong with the input has been found.
            _clear(out)
        write_text_atomically(out / "config.yaml", yaml.safe_dump(config, sort_keys=False))
    trainer.accelerator.wait_for_everyone()
    checkpoint = training.resume_from_checkpoint or last_whole_checkpoint(out)
    if checkpoint is not None:
        logger.warning("Resuming from %s.", checkpoint)
    with Tracking(trainer, config, out, recipe) as tracking:
        trained = trainer.train(resume_from_checkpoint=checkpoint)
        tracking.end_curves()
        digest = trainer.ledger.digest()
        prediction = trainer.predict(trainer.eval_dataset, metric_key_prefix="eval")
        # Not a push of its own: the last one has the card, which needs the whole run.
        trainer.save_model(str(out / "model"), _internal_call=True)
        metrics = {
            **{key: value for key, value in _plain(prediction.metrics, "eval_").items() if key not in TIMES},
            "delivery": trainer.delivery.name,
            "delivery_seed": trainer.delivery.seed,
            "seed": training.seed,
            "world_size": training.world_size,
            "ledger_digest": digest,
            "epochs": trainer.state.epoch,
            "steps": trainer.state.global_step,
            "best_step": trainer.state.best_global_step,
            # Of the whole run: a resumed one has only been timed in part.
            "train_seconds": None if checkpoint else trained.metrics["train_runtime"],
            "train_examples": None if trainer.streams else len(trainer.train_dataset),
            "eval_examples": len(prediction.predictions),
            "votes_fingerprint": fingerprint(splits),
            "hard_label": trainer.hard_label,
            **origin(config, trainer.text_columns),
            "undefined": trainer.undefined,
            **_references(prediction, splits.train, training.ordinal),
            "versions": {name: version(name) for name in PACKAGES},
        }
        sparse = None
        if data_config.votes_per_example is not None:
            sparse = trainer.predict(splits.train, metric_key_prefix="train")
        if splits.calibration is not None:
            metrics |= _calibrate(trainer, splits.calibration, prediction, model_config, out / "model")
        if training.process_index == 0:
            if diagnostics:
                write_diagnostics(out, {callback.name: callback.results for callback in diagnostics})
            _write_predictions(out / "predictions.parquet", prediction)
            if shown is not None:
                write_examples(out, shown)
            if sparse is not None:
                # How far the sparse target was from all votes decides, in the paper, how much a delivery gains.
                full = load_splits(replace(data_config, votes_per_example=None), training.seed).train
                votes, ids = votes_and_ids(full)
                by_id = dict(zip(ids.tolist(), votes, strict=True))
                all_votes = [by_id[example] for example in sparse.label_ids[1].tolist()]
                _write_predictions(out / "train_predictions.parquet", sparse, {"full_votes": all_votes})
            write_text_atomically(out / "metrics.json", json.dumps(metrics, indent=1, allow_nan=False))
            tracking.log_results()
            write_text_atomically(out / "DONE", "")
    if training.push_to_hub and training.process_index == 0:
        private, repository = training.hub_private_repo is not False, trainer.hub_model_id
        # What the repository holds is this run's: the trainer has seen to that before.
        own = {"overwrite": True, "keep_others": True, "message": "End of training"}
        address = push_run(out, repository, private, training.hub_token, **own)
        logger.warning("Pushed to %s.", address)
    trainer.accelerator.wait_for_everyone()
    return metrics


def _references(prediction: Any, train: Any, ordinal: bool) -> dict[str, Any]:
    """What the scores are to be compared with, and the mean distribution of the training votes."""
    votes, _, gold_label = prediction.label_ids
    train_mean = train_entropy = None
    if not isinstance(train, StreamingDataset):
        sums = [(human(part).sum(0), float(entropy(part).sum())) for _, part in votes_chunks(train)]
        train_mean, train_entropy = (sum(parts) / len(train) for parts in zip(*sums, strict=True))
    table = references(votes, train_mean, gold_label, ordinal)
    return {
        "references": {name: _plain(scores, "") for name, scores in table.items()},
        "train_mean": None if train_mean is None else train_mean.tolist(),
        # The least loss that a delivery of these votes can have.
        "train_entropy": train_entropy,
    }


def _calibrate(
    trainer: VotesTrainer, calibration: Any, prediction: Any, config: ModelConfig, folder: Path
) -> dict[str, Any]:
    """Fit the scaling and the sets on the calibration split, save them with the model, and measure them on eval."""
    found = trainer.predict(calibration, metric_key_prefix="calibration")
    scaling, sets = fit_calibration(found.predictions, found.label_ids[0], True, config.scaling, config.vote_coverage)
    if trainer.args.process_index == 0:
        scaling.save(folder)
        sets.save(folder)
    votes, _, gold_label = prediction.label_ids
    measured = measure_calibration(prediction.predictions, votes, gold_label, scaling, sets, trainer.args.ordinal)
    return {**measured, "scaled": _plain(measured["scaled"], ""), "calibration_examples": len(found.predictions)}


def _write_predictions(path: Path, prediction: Any, more: dict[str, Any] | None = None) -> None:
    votes, example_id, gold_label = prediction.label_ids
    columns = {
        "example_id": example_id,
        "logits": list(np.asarray(prediction.predictions, np.float32)),
        "votes": list(votes),
        "label": gold_label,
        **(more or {}),
    }
    part = path.with_name(path.name + ".part")
    pq.write_table(pa.table(columns), part)
    part.replace(path)


def summary(metrics: dict[str, Any], output_dir: str) -> str:
    """A finished run in a few lines, its scores beside what they are to be compared with."""
    references = {
        name: metrics["references"][key]
        for key, name in (("floor", "own votes"), ("human", "human half"), ("uniform", "uniform"))
        if key in metrics["references"]
    }
    rows = [
        f"{metrics['delivery']}, seed {metrics['seed']}: {metrics['steps']} steps, world size {metrics['world_size']}",
        f"  {'':22}{'score':>8}" + "".join(f"{name:>12}" for name in references),
    ]
    for name in SHOWN:
        cells = "".join(f"{_cell(scores.get(name)):>12}" for scores in references.values())
        rows.append(f"  {TITLES[name]:22}{_cell(metrics[name]):>8}{cells}".rstrip())
    if "scaled" in metrics:
        sets = metrics["vote_coverage"]
        rows.append(f"  {'soft NLL, scaled':22}{_cell(metrics['scaled']['soft_nll']):>8}")
        rows.append(f"  {'votes covered by sets':22}{sets['covered']:8.4f}   in {sets['set_size']:.2f} classes")
    return "\n".join([*rows, f"  label stream {metrics['ledger_digest']}", f"written to {output_dir}"])


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
