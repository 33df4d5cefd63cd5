"""`hf-softlabel demo`: the main job on generated votes. Four deliveries, two data sets, one table and one figure."""

from __future__ import annotations

import json
import logging
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch
from datasets.utils.logging import disable_progress_bar
from tqdm.auto import tqdm
from transformers import TrainerCallback
from transformers.utils import logging as transformers_logging

from .config import DataConfig, ModelConfig, SoftLabelConfig
from .data.errors import VotesError
from .data.synthetic import load_synthetic
from .data.votes import class_names
from .metrics import accuracy, entropy, human_ceiling, kl_to_annotators, soft_nll
from .predictions import Predictions, read_predictions
from .run import run_recipe

DELIVERIES = ("soft", "sls", "multipass", "majority")
EPOCHS = 12
MODELS = {
    "vision": (
        ModelConfig(model="resnet18", width=0.125),
        {"optim": "sgd", "optim_args": "momentum=0.9", "learning_rate": 0.05, "weight_decay": 5e-4},
    ),
    "text": (ModelConfig(model="synthetic-bert"), {"learning_rate": 2e-3, "weight_decay": 0.01}),
}


@dataclass
class Row:
    """A line of the table: scores of one delivery, or of a reference, over the seeds."""

    name: str
    scores: dict[str, list[float | None]]


class _Tick(TrainerCallback):
    """Reports each finished epoch to the process that shows the progress bar."""

    def __init__(self, ticks: Any):
        self.ticks = ticks

    def on_epoch_end(self, args, state, control, **kwargs):
        self.ticks.put(1)


def run_demo(output_dir: str | Path, seeds: int = 2) -> None:
    """Train on both synthetic sets, print the table, and write `table.json`, the figure and the run directories."""
    if seeds < 1:
        raise VotesError(f"--seeds must be at least 1, not {seeds}.")
    out = Path(output_dir)
    _train_all(out, [(s, d, seed) for s in MODELS for d in DELIVERIES for seed in range(seeds)], EPOCHS)
    tables = {subset: _table(out, subset, seeds) for subset in MODELS}
    for subset, rows in tables.items():
        print(f"\n{_title(subset, seeds)}\n{_format(rows)}")
    print(
        "\nSoft NLL is the cross-entropy of held-out votes: the entropy floor is reached only by predicting each\n"
        "example's own votes. Half of the annotators predict the other half. KL is to the true distribution that the\n"
        "votes were drawn from."
    )
    results = {subset: {row.name: row.scores for row in rows} for subset, rows in tables.items()}
    (out / "table.json").write_text(json.dumps(results, indent=1))
    figure = out / "ambiguous.png"
    _figure(out).savefig(figure, dpi=150)
    print(f"\nFigure: {figure}\nRuns:   {out}/<data>-<delivery>-seed<n>, each with its config, scores and model")


def _train_all(out: Path, cells: list[tuple[str, str, int]], epochs: int) -> None:
    """Train every (subset, delivery, seed), two at a time, each on one thread.

    On networks as small as these a second thread gains little, and on a busy machine it loses a lot.
    """
    context = get_context("spawn")
    ticks = context.Queue()
    with (
        ProcessPoolExecutor(2, context, initializer=_start_worker, initargs=(ticks,)) as pool,
        tqdm(total=len(cells) * epochs, unit="epoch", desc="training") as bar,
    ):
        runs = [pool.submit(_train, out, *cell, epochs) for cell in cells]
        while any(not run.done() for run in runs):
            with suppress(Empty):
                bar.update(ticks.get(timeout=0.2))
            done = sum(run.done() for run in runs)
            bar.set_postfix_str(f"{done} of {len(cells)} runs")
        for run in runs:
            run.result()
        bar.update(bar.total - bar.n)


def _start_worker(ticks: Any) -> None:
    """One thread, and silence: there is one progress bar for the whole job, in the parent."""
    global _ticks
    _ticks = ticks
    torch.set_num_threads(1)
    disable_progress_bar()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("hf_softlabel").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="torch")


def _run_dir(out: Path, subset: str, delivery: str, seed: int) -> Path:
    return out / f"{subset}-{delivery}-seed{seed}"


def _train(out: Path, subset: str, delivery: str, seed: int, epochs: int) -> None:
    model, options = MODELS[subset]
    training = SoftLabelConfig(
        output_dir=str(_run_dir(out, subset, delivery, seed)),
        delivery=delivery,
        seed=seed,
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=200,
        lr_scheduler_type="cosine",
        max_grad_norm=0,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    data = DataConfig(dataset="synthetic", subset=subset)
    run_recipe(model, data, training, overwrite=True, quiet=True, callbacks=[_Tick(_ticks)])


def _predictions(out: Path, subset: str, delivery: str, seed: int) -> Predictions:
    return read_predictions(_run_dir(out, subset, delivery, seed))


def _table(out: Path, subset: str, seeds: int) -> list[Row]:
    truth = np.asarray(load_synthetic(subset)["truth"][:])
    keys = ("soft_nll", "accuracy", "entropy_correlation")
    compared = ("the true distribution", "half of the annotators", "entropy floor", "uniform")
    rows = {name: Row(name, {}) for name in (*DELIVERIES, *compared)}

    def add(name: str, **scores: float | None) -> None:
        for key, value in scores.items():
            rows[name].scores.setdefault(key, []).append(value)

    for seed in range(seeds):
        for delivery in DELIVERIES:
            run = _predictions(out, subset, delivery, seed)
            metrics = json.loads((_run_dir(out, subset, delivery, seed) / "metrics.json").read_text())
            kl = kl_to_annotators(run.values, truth[run.ids], from_logits=True)
            add(delivery, kl_to_truth=kl, **{key: metrics[key] for key in keys})
        # The references are of the same held-out examples, which every delivery of one seed shares.
        true, votes, label = truth[run.ids], run.votes, run.label
        even = np.full_like(true, 1 / true.shape[1])
        add("the true distribution", soft_nll=soft_nll(true, votes), kl_to_truth=0.0, accuracy=accuracy(true, label))
        half, _ = human_ceiling(votes, label)
        add("half of the annotators", **{key: half[key] for key in keys})
        add("entropy floor", soft_nll=float(entropy(votes).mean()))
        add("uniform", soft_nll=soft_nll(even, votes), kl_to_truth=kl_to_annotators(even, true))
    return list(rows.values())


def _title(subset: str, seeds: int) -> str:
    what = {"vision": "textures, a narrow ResNet-18", "text": "sentences, a tiny BERT"}[subset]
    return f"synthetic {subset} ({what}); mean of {seeds} seed(s)"


def _format(rows: list[Row]) -> str:
    columns = {
        "soft_nll": "soft NLL",
        "kl_to_truth": "KL to the truth",
        "accuracy": "accuracy",
        "entropy_correlation": "entropy corr.",
    }
    lines = [f"{'':24}" + "".join(f"{title:>17}" for title in columns.values())]
    for row in rows:
        cells = [row.scores.get(key) for key in columns]
        shown = ["" if cell is None or None in cell else f"{np.mean(cell):.4f}" for cell in cells]
        lines.append(f"{row.name:24}" + "".join(f"{cell:>17}" for cell in shown))
    return "\n".join(lines)


def _figure(out: Path, examples: int = 4) -> Any:
    """Human and model distributions on the most ambiguous held-out examples of each set (first seed)."""
    from .figures.bars import draw_bars
    from .figures.style import legend_below, new_figure, styled
    from .metrics.arrays import human, model

    with styled():
        figure, axes = new_figure(4 * examples, 7.7, 4, examples, height_ratios=[0.8, 1, 0.45, 1])
        for subset, (above, below) in zip(MODELS, (axes[:2], axes[2:]), strict=True):
            data = load_synthetic(subset)
            runs = {delivery: _predictions(out, subset, delivery, 0) for delivery in DELIVERIES}
            bars = {"annotators": human(runs["soft"].votes)}
            bars |= {delivery: model(run.values, from_logits=True) for delivery, run in runs.items()}
            # By the truth: the examples with the largest entropy of votes are also those whose votes fell unluckily.
            truth = np.asarray(data["truth"][:])[runs["soft"].ids]
            for column, row in enumerate(np.argsort(-entropy(truth), kind="stable")[:examples]):
                example = data[int(runs["soft"].ids[row])]
                above[column].axis("off")
                if subset == "vision":
                    above[column].imshow(example["image"])
                else:
                    words = example["text"].split()
                    half = len(words) // 2
                    text = f"{' '.join(words[:half])}\n{' '.join(words[half:])}"
                    above[column].text(0.5, 0.2, text, ha="center", va="center")
                draw_bars(below[column], {name: rows[row] for name, rows in bars.items()}, class_names(data))
            below[0].set_ylabel("probability")
        figure.suptitle("The held-out examples that are hardest to agree on, by the truth: votes, and four models")
        legend_below(figure, axes[1, 0].containers)
    return figure
