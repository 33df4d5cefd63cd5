"""A model card from a run directory: whose votes, delivered how, which scores, how to use it, and its limits."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from huggingface_hub import EvalResult, ModelCardData

from ..conformal import VOTE_COVERAGE_NAME, VoteCoverage
from ..metrics.summary import NAMES, TITLES
from ..scaling import SCALING_NAME, Scaling
from ..score import Score, Scored, score_predictions
from .data_facts import KNOWN, OUR_MODELS, DataFacts, data_facts
from .usage import PIPELINES, usage

RELIABILITY_NAME = "reliability.png"
DELIVERED = {
    "soft": "the whole vote distribution of an example is the target of the cross-entropy",
    "sls": "one label per example is drawn from its votes, anew each epoch",
    "multipass": "one vote of each example per epoch, in a shuffled cycle through all of them",
    "deterministic_control": "multipass in another order of the same votes",
    "shuffled_sls": "one label per example is drawn from the votes of another example, anew each epoch",
    "majority": "only the most frequent label of each example; ties are broken at random",
    "label_smoothing": "only the most frequent label of each example, smoothed",
    "mixup": "examples and their targets are mixed in pairs",
    "posterior_sls": "one label per example is drawn from the Dirichlet posterior of its votes, anew each epoch",
}
SETTINGS = {
    "sls": ("resample_every",),
    "shuffled_sls": ("resample_every",),
    "label_smoothing": ("label_smoothing_epsilon",),
    "mixup": ("mixup_alpha", "mixup_targets"),
    "posterior_sls": ("resample_every", "prior_strength"),
}
# In the order of the table; the run's train mean is not there when it was trained on a stream.
REFERENCES = {"floor": "own votes", "human": "human half", "train_mean": "train mean", "uniform": "uniform"}

Task = Literal["text", "pair", "choice", "image"]


@dataclass(frozen=True)
class ModelFacts:
    """What a card is written from.

    Args:
        config: of the run, fully resolved.
        metrics: of the run.
        scored: its held-out predictions, with references and intervals; None if nothing was held out.
        names: the classes, in the order of the logits.
        scaling, sets: if there was a calibration split.
        code: the model's code comes with it.
        adapter: PEFT's kind of it, such as LORA, if only an adapter is pushed.
    """

    repo_id: str
    config: dict[str, Any]
    metrics: dict[str, Any]
    scored: Scored | None
    names: list[str]
    task: Task
    data: DataFacts
    scaling: Scaling | None
    sets: VoteCoverage | None
    code: bool
    adapter: str | None = None


def model_card(run: Path, repo_id: str) -> str:
    """YAML metadata and Markdown for a finished run as `repo_id` (`owner/name`): the same run, the same card."""
    return write_card(run_facts(run, repo_id))


def run_facts(run: Path, repo_id: str) -> ModelFacts:
    """Read what the card says from a finished run."""
    run, model = Path(run), Path(run) / "model"
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    described = json.loads((model / "config.json").read_text(encoding="utf-8"))
    names = [name for _, name in sorted((int(key), name) for key, name in described["id2label"].items())]
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    return ModelFacts(
        repo_id=repo_id,
        config=config,
        metrics=metrics,
        scored=score_predictions([run], ordinal=bool(config.get("ordinal"))),
        names=names,
        task=task_of(described["architectures"][0], metrics.get("text_columns")),
        data=data_facts(config["dataset"], config["subset"], metrics.get("dataset_hub_id")),
        scaling=Scaling.load(model) if (model / SCALING_NAME).exists() else None,
        sets=VoteCoverage.load(model) if (model / VOTE_COVERAGE_NAME).exists() else None,
        code="auto_map" in described,
    )


def task_of(architecture: str, text_columns: list[str] | None) -> Task:
    """What the model takes, from its class and the columns of texts that it was trained on."""
    if architecture.endswith("ForMultipleChoice"):
        return "choice"
    if architecture.endswith("ForImageClassification"):
        return "image"
    return "pair" if len(text_columns or ()) == 2 else "text"


def write_card(facts: ModelFacts) -> str:
    """The whole card."""
    parts = [
        f"# {facts.repo_id.split('/')[-1]}",
        _introduction(facts),
        f"## Use\n\n{usage(facts, _base(facts))}",
        f"## Votes\n\n{_votes(facts)}",
        f"## Scores\n\n{_scores(facts)}",
        f"## Limits\n\n{_limits(facts)}",
        f"## Licence and citation\n\n{_licence(facts)}",
    ]
    return f"---\n{metadata(facts).to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"


def metadata(facts: ModelFacts) -> ModelCardData:
    """What the Hub reads: task, tags, data, and each score as a result of the `model-index`."""
    config, scores = facts.config, facts.scored.scores[0] if facts.scored else {}
    results = [
        EvalResult(
            task_type=PIPELINES[facts.task],
            dataset_type=_data_type(facts),
            dataset_name=facts.data.title,
            dataset_config=config.get("subset"),
            dataset_split="held out",
            metric_type=name,
            metric_name=TITLES[name],
            metric_value=round(score.value, 6),
        )
        for name, score in scores.items()
        if math.isfinite(score.value)
    ]
    code = ["custom_code"] if facts.code else []
    return ModelCardData(
        library_name="peft" if facts.adapter else "transformers",
        pipeline_tag=PIPELINES[facts.task],
        base_model=_base(facts),
        base_model_relation="adapter" if facts.adapter else None,
        datasets=list(facts.data.hub_ids) or None,
        tags=["hf_softlabel", "annotator-votes", "soft-labels", config["delivery"], *code],
        model_name=facts.repo_id.split("/")[-1],
        eval_results=results or None,
    )


def _data_type(facts: ModelFacts) -> str:
    """The set that the votes are of: on CIFAR-10 itself nobody would look for scores of CIFAR-10H."""
    if facts.config["dataset"] in KNOWN:
        return facts.config["dataset"]
    return facts.data.hub_ids[0] if facts.data.hub_ids else "table"


def _base(facts: ModelFacts) -> str | None:
    """The Hub id that the weights are from. A folder has none that others could use."""
    return None if facts.config.get("from_scratch") else facts.metrics.get("model_hub_id")


def _introduction(facts: ModelFacts) -> str:
    config, base = facts.config, _base(facts)
    if facts.adapter:
        origin = f"an adapter ({facts.adapter}) of [{base}](https://huggingface.co/{base})"
    elif base:
        origin = f"fine-tuned from [{base}](https://huggingface.co/{base})"
    elif config["model"] in OUR_MODELS or config.get("from_scratch"):
        origin = f"{Path(config['model']).name}, trained from random weights"
    else:
        origin = "fine-tuned from a checkpoint that is not on the Hub"
    named = _data_type(facts) != "table"
    # Of a table of the user's own we do not know whose votes it holds.
    whose = "simulated " if facts.data.simulated else "people's " * named
    return (
        f"This model predicts how {whose}votes are spread over {len(facts.names)} classes "
        f"({', '.join(facts.names)}), not only which class has the most. It is {origin}, with hf_softlabel "
        f"{facts.metrics['versions']['hf_softlabel']}, on {'the votes of ' * named}{_data_name(facts)}."
    )


def _data_name(facts: ModelFacts) -> str:
    subset = facts.config.get("subset")
    return f"{facts.data.title} ({subset})" if subset else facts.data.title


def _votes(facts: ModelFacts) -> str:
    config, metrics = facts.config, facts.metrics
    trained = "a stream" if metrics["train_examples"] is None else f"{metrics['train_examples']:,} examples"
    if config.get("votes_per_example"):
        each = "1 vote" if config["votes_per_example"] == 1 else f"{config['votes_per_example']} votes"
        trained += f", with {each} each, drawn from all"
    delivery = config["delivery"]
    settings = "".join(f", `{key}: {config[key]}`" for key in SETTINGS.get(delivery, ()))
    delivered = DELIVERED[delivery]
    if config.get("resample_every", 1) > 1:
        delivered = delivered.replace("anew each epoch", f"anew every {config['resample_every']} epochs")
    epochs = f"{metrics['epochs']:g} epoch{'s' * (metrics['epochs'] != 1)}"
    processes = "1 process" if metrics["world_size"] == 1 else f"{metrics['world_size']} processes"
    rows = {
        "Data": _data_name(facts),
        "Who voted": facts.data.voters,
        "Trained on": trained,
        "Delivery": f"**{delivery}**{settings}: {delivered}",
        "Held out": "nothing" if facts.scored is None else _held_out(facts.scored, _other_people(facts)),
        "Training": f"{epochs}, seed {metrics['seed']}, {processes}",
        "Label stream": f"`{metrics['ledger_digest']}` (two runs with one digest saw the same labels)",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _other_people(facts: ModelFacts) -> bool:
    """The training examples themselves are scored, against votes that were held out with those who gave them."""
    return facts.config.get("eval_annotators") is not None


def _held_out(scored: Scored, other_people: bool) -> str:
    votes = scored.examples.votes.sum(-1)
    text = (
        f"the votes of other people on the same {len(votes):,} examples"
        if other_people
        else f"{len(votes):,} examples"
    )
    # Distributions do not say how many people voted.
    if not (votes > 1.5).any():
        return text
    if votes.min() == votes.max():
        return f"{text}, with {votes.max():g} votes each"
    return f"{text}, with {votes.min():g} to {votes.max():g} votes each (mean {votes.mean():.1f})"


def _scores(facts: ModelFacts) -> str:
    scored = facts.scored
    if scored is None:
        return "It was not evaluated."
    shown = {key: name for key, name in REFERENCES.items() if key in scored.references}
    lines = [
        f"| score | this model | 95% interval | {' | '.join(shown.values())} |",
        f"|---|---|---|{'---|' * len(shown)}",
    ]
    for name, score in scored.scores[0].items():
        arrow = {True: " ↓", False: " ↑", None: ""}[NAMES[name]]
        cells = [_cell(scored.references[key].get(name)) for key in shown]
        lines.append(f"| {TITLES[name]}{arrow} | {_cell(score.value)} | {_interval(score)} | {' | '.join(cells)} |")
    naive = "*Train mean*: the mean of the training votes for every example. " if "train_mean" in shown else ""
    hard = "the gold label" if scored.hard_label == "gold" else "the votes' majority, for not all have a gold label"
    notes = [
        "\n".join(lines),
        "Less is better where the arrow points down. *Own votes*: the votes themselves as predictions, whose soft NLL "
        "is the entropy floor. *Human half*: one half of each example's votes as predictions of the other half. "
        f"{naive}Intervals are from {scored.resamples:,} bootstrap resamples of the held-out examples. The hard label "
        f"is {hard}.",
    ]
    undefined = [f"{TITLES[name]}: {one.undefined}" for name, one in scored.scores[0].items() if one.undefined]
    if undefined:
        notes.append(f"Undefined here (-): {'; '.join(undefined)}.")
    if facts.scaling is not None:
        after = facts.metrics["scaled"]
        notes.append(
            f"After calibration by `{SCALING_NAME}`: soft NLL {_cell(after['soft_nll'])}, ECE against annotators "
            f"{_cell(after['ece_equal_mass_soft'])}."
        )
    if facts.sets is not None:
        found = facts.metrics["vote_coverage"]
        low, high = found["covered_interval"]
        notes.append(
            f"`{VOTE_COVERAGE_NAME}` makes sets of classes that were to hold {facts.sets.coverage:.0%} of the votes. "
            f"They hold {found['covered']:.1%} (95% interval {low:.1%} to {high:.1%}), in {found['set_size']:.2f} "
            "classes on average."
        )
    notes.append(f"![Reliability diagram: the annotators' share of the predicted class]({RELIABILITY_NAME})")
    return "\n\n".join(notes)


def _cell(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"


def _interval(score: Score) -> str:
    if score.interval is None or any(map(math.isnan, score.interval)):
        return "-"
    return f"{score.interval[0]:.4f} to {score.interval[1]:.4f}"


def _limits(facts: ModelFacts) -> str:
    config = facts.config
    limits = [
        "The votes are drawn from known distributions, and the data is generated: the model is a demonstration."
        if facts.data.simulated
        else "The votes are those of the people named above, on inputs like those of this data set. Other people may "
        "disagree about other things, and on other inputs the probabilities mean little.",
    ]
    scored_on = (
        "examples that were trained on, with other people's votes," if _other_people(facts) else "held-out examples"
    )
    if facts.scored is not None:
        limits.append(
            f"The scores are of one run (seed {facts.metrics['seed']}) on {scored_on} of the same source. The "
            "intervals say how sure they are given this run; another seed gives another model."
        )
    if config.get("load_best_model_at_end"):
        limits.append(
            f"The checkpoint was chosen by {config['metric_for_best_model']} on the same held-out examples, so on new "
            "ones the scores may be a little worse."
        )
    majority = config["delivery"] == "mixup" and config.get("mixup_targets") == "majority"
    if majority or config["delivery"] in ("majority", "label_smoothing"):
        limits.append("It has seen the majority only: what its probabilities say about disagreement is not learnt.")
    if config["delivery"] == "shuffled_sls":
        limits.append("It is a control, trained on the votes of other examples: it is of no use for predictions.")
    if facts.scaling is None:
        limits.append("Its probabilities were not calibrated after the training.")
    return "\n".join(f"- {limit}" for limit in limits)


def _licence(facts: ModelFacts) -> str:
    text = f"{facts.data.licence} The model's own licence is for its authors to choose, in keeping with the data's."
    return f"{text}\n\n```bibtex\n{facts.data.citation}\n```" if facts.data.citation else text
