"""Run directories as `hf-softlabel train` writes them, with numbers of a test's own choice."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from hf_softlabel.config import parse_recipe, resolved
from hf_softlabel.data.votes import subsampled_votes
from hf_softlabel.examples import choose_examples
from hf_softlabel.metrics import score_votes

RECIPE = Path(__file__).parent.parent / "recipes" / "cifar10h" / "small" / "soft.yaml"
CLASSES = ("cat", "dog", "frog")


@cache
def _base() -> str:
    return json.dumps(resolved(*parse_recipe(RECIPE, ["--output_dir=unused"])))


def held_out(seed: int, examples: int = 40, classes: int = len(CLASSES)) -> tuple[np.ndarray, np.ndarray]:
    """Ids (N,) and votes (N, C) of a seed's eval split."""
    rng = np.random.default_rng(1000 + seed)
    p = rng.dirichlet(np.full(classes, 0.6), examples)
    votes = np.array([rng.multinomial(50, row) for row in p])
    return rng.choice(10_000, examples, replace=False), votes


def write_run(
    path: Path,
    delivery: str = "soft",
    seed: int = 0,
    scores: dict[str, float | None] | None = None,
    diagnostics: dict[str, Any] | None = None,
    history: list[float] | None = None,
    logits: np.ndarray | None = None,
    done: bool = True,
    texts: bool = False,
    fingerprint: str | None = None,
    examples: int = 40,
    classes: tuple[str, ...] = CLASSES,
    references: dict[str, dict[str, float | None]] | None = None,
    **config: Any,
) -> Path:
    """A finished run of CIFAR-10H's small recipe, on three classes unless others are given.

    Args:
        scores: replace those of the predictions.
        history: the eval soft NLL of each epoch.
        logits: (N, C), of the examples of `held_out(seed)`.
        examples: N, held out; as many are trained on.
        references: scores of other predictors, by their name.
        config: further keys, such as votes_per_example.
    """
    path.mkdir(parents=True)
    values = {**json.loads(_base()), "delivery": delivery, "seed": seed, "output_dir": str(path), **config}
    (path / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    if not done:
        return path
    ids, votes = held_out(seed, examples, len(classes))
    if logits is None:
        rng = np.random.default_rng([seed, sum(map(ord, delivery)), config.get("votes_per_example") or 0])
        logits = np.log(votes / votes.sum(1, keepdims=True) + 0.05) + 0.3 * rng.normal(size=votes.shape)
    losses = history or [1.0, 0.6, 0.5]
    found = score_votes(logits, votes, votes.argmax(1), from_logits=True) | (scores or {})
    metrics = {
        **{key: None if value is None or not np.isfinite(value) else value for key, value in found.items()},
        "delivery": delivery,
        "seed": seed,
        "world_size": 1,
        "ledger_digest": f"{seed:016x}",
        "train_seconds": 10.0,
        "train_examples": 4000,
        "eval_examples": len(ids),
        "best_step": 10 * (int(np.argmin(losses)) + 1),
        "votes_fingerprint": f"train-{fingerprint or seed}",
        "hard_label": "gold",
        "references": references or {},
        "versions": {"hf_softlabel": "0.1.0"},
    }
    (path / "metrics.json").write_text(json.dumps(metrics))
    columns = {"example_id": ids, "logits": list(logits.astype(np.float32)), "votes": list(votes)}
    pq.write_table(pa.table({**columns, "label": votes.argmax(1)}), path / "predictions.parquet")
    shown = ids[choose_examples(votes)]
    inputs = {"text": [f"text {i}" for i in shown]} if texts else {"image": [_png(i) for i in shown]}
    pq.write_table(pa.table({"example_id": shown, **inputs}), path / "examples.parquet")
    if config.get("votes_per_example"):
        sparse = subsampled_votes(votes, ids, config["votes_per_example"], seed)
        table = {**columns, "votes": list(sparse), "label": votes.argmax(1), "full_votes": list(votes)}
        pq.write_table(pa.table(table), path / "train_predictions.parquet")
    (path / "history.jsonl").write_text(
        "".join(
            json.dumps({"step": 10 * (i + 1), "epoch": float(i + 1), **metrics_line(found), "soft_nll": loss}) + "\n"
            for i, loss in enumerate(losses)
        )
    )
    if diagnostics is not None:
        (path / "diagnostics.json").write_text(json.dumps(diagnostics))
    (path / "model").mkdir()
    (path / "model" / "config.json").write_text(json.dumps({"id2label": dict(enumerate(classes))}))
    (path / "DONE").write_text("")
    return path


def metrics_line(scores: dict[str, float]) -> dict[str, float | None]:
    return {key: value if value is not None and np.isfinite(value) else None for key, value in scores.items()}


def _png(seed: int) -> bytes:
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (8, 8, 3), np.uint8)).save(out, "PNG")
    return out.getvalue()
