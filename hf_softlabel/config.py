"""What a run is made of: three flat dataclasses, a strict YAML recipe, and a command line that wins over it."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments

from .callbacks.console import TIMES
from .collators import VOTE_COLUMNS
from .data.errors import VotesError
from .delivery import Delivery, DeliveryName
from .metrics.summary import LOWER_IS_BETTER, NAMES

DIAGNOSTICS = ("uncertainty", "hessian", "ood")


@dataclass
class SoftLabelConfig(TrainingArguments):
    """[`TrainingArguments`] and how votes become targets.

    Changed defaults: `metric_for_best_model` is `soft_nll` (lower is better), `label_names` are the vote columns,
    `logging_nan_inf_filter` is off, because a loss that is not a number stops the run instead of being hidden,
    `per_device_eval_batch_size` is four times the training batch, because evaluation keeps no activations, and
    `hub_private_repo` is on: what is pushed is seen by nobody else unless that is asked for.

    Args:
        delivery: what the loss sees of the votes; see [`hf_softlabel.delivery`]. The named trainers set it.
        delivery_seed: seed of the label stream; by default `seed`.
        resample_every: SLS holds a sampled label for this many epochs.
        label_smoothing_epsilon: the mass that `label_smoothing` spreads over all classes.
        prior_strength: how many votes the uniform prior of `posterior_sls` is worth.
        mixup_alpha: mixup's shares are drawn from Beta(alpha, alpha).
        mixup_targets: what mixup mixes, the majority label or the whole vote distribution.
        ordinal: the classes are steps of a scale, in their order: evaluations have the Wasserstein distance too.
        augment: random crop and horizontal flip of training images; evaluation only normalises.
        diagnostics: what to measure of the trained model; see [`hf_softlabel.callbacks.diagnostics`].
        diagnostics_every: measure it at the end of each so many epochs too.
        diagnostics_slice: share of the examples that are the high-disagreement slice.
        hessian_rtol: the relative error of lambda_max and trace to reach.
        hessian_examples: the Hessian of the first so many eval examples.
        ood_sets: `NAME=SOURCE[:SUBSET][#SPLIT]` for each OOD set.
        ood_examples: so many examples of each OOD set.
        allow_changed_resume: resume although the world size, the batch size or the delivery has changed.
    """

    delivery: DeliveryName | None = field(default=None, metadata={"help": "How votes are delivered to the loss."})
    delivery_seed: int | None = field(default=None, metadata={"help": "Seed of the label stream; default: seed."})
    resample_every: int = field(default=1, metadata={"help": "Hold an SLS label for this many epochs."})
    label_smoothing_epsilon: float = field(default=0.1, metadata={"help": "Mass spread by label_smoothing."})
    prior_strength: float = field(default=1.0, metadata={"help": "Votes that posterior_sls's prior is worth."})
    mixup_alpha: float = field(default=0.2, metadata={"help": "Mixup shares are drawn from Beta(alpha, alpha)."})
    mixup_targets: Literal["majority", "soft"] = field(default="majority", metadata={"help": "What mixup mixes."})
    ordinal: bool = field(default=False, metadata={"help": "Classes are steps of a scale: score by Wasserstein too."})
    augment: bool = field(default=True, metadata={"help": "Random crop and flip of training images."})
    allow_changed_resume: bool = field(
        default=False, metadata={"help": "Resume although world size, batch size or delivery differ."}
    )

    diagnostics: list[str] | None = field(
        default=None, metadata={"help": "Of uncertainty, hessian, ood: measured at the end, on the best checkpoint."}
    )
    diagnostics_every: int = field(default=0, metadata={"help": "Measure them each so many epochs too."})
    diagnostics_slice: float = field(
        default=0.1, metadata={"help": "Share of examples, by entropy of the votes, in the high-disagreement slice."}
    )
    hessian_rtol: float = field(default=0.05, metadata={"help": "Relative error of lambda_max and trace to reach."})
    hessian_examples: int | None = field(default=None, metadata={"help": "Only the first so many eval examples."})
    ood_sets: list[str] | None = field(default=None, metadata={"help": "NAME=SOURCE[:SUBSET][#SPLIT], each."})
    ood_examples: int | None = field(default=None, metadata={"help": "So many examples of each OOD set."})

    metric_for_best_model: str | None = field(default="soft_nll", metadata={"help": "Selects the best checkpoint."})
    per_device_eval_batch_size: int | None = field(
        default=None, metadata={"help": "For evaluation; default: four times the training batch."}
    )
    hub_private_repo: bool | None = field(default=True, metadata={"help": "Make a new repository of the Hub private."})
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Hide losses that are not finite."})

    def __post_init__(self):
        if self.label_smoothing_factor:
            raise VotesError("Set delivery: label_smoothing and label_smoothing_epsilon, not label_smoothing_factor.")
        if self.batch_eval_metrics:
            raise VotesError("batch_eval_metrics is not supported: the scores need all predictions at once.")
        if self.prediction_loss_only:
            raise VotesError("prediction_loss_only is not supported: the scores are of the predictions.")
        if self.mixup_alpha <= 0:
            raise VotesError(f"mixup_alpha must be positive, not {self.mixup_alpha}.")
        for name in self.diagnostics or ():
            if name not in DIAGNOSTICS:
                raise VotesError(f"diagnostics are {', '.join(DIAGNOSTICS)}; {name!r} is none of them.")
        if self.label_names not in (None, list(VOTE_COLUMNS)):
            raise VotesError(f"label_names are {', '.join(VOTE_COLUMNS)} here: leave them out.")
        self.label_names = list(VOTE_COLUMNS)
        if self.per_device_eval_batch_size is None:
            self.per_device_eval_batch_size = 4 * self.per_device_train_batch_size
        # `TrainingArguments` takes a larger value for better unless a metric's name ends in "loss", which would keep
        # the worst soft NLL as the best checkpoint. With several eval sets their names come first.
        if self.greater_is_better is None:
            lower = tuple(f"_{name}" for name in LOWER_IS_BETTER)
            if f"_{self.metric_for_best_model}".endswith(lower):
                self.greater_is_better = False
        if not torch.accelerator.is_available():
            # torch warns about it at every data loader otherwise.
            self.dataloader_pin_memory = False
        super().__post_init__()

    def __getstate__(self) -> dict[str, Any]:
        """For training_args.bin, a pickle that `Trainer` saves with every model: without the token."""
        return {**self.__dict__, "hub_token": None}

    def make_delivery(self) -> Delivery:
        """The delivery as a pure function with its settings."""
        return Delivery(
            name=self.delivery or "soft",
            seed=self.seed if self.delivery_seed is None else self.delivery_seed,
            resample_every=self.resample_every,
            label_smoothing_epsilon=self.label_smoothing_epsilon,
            prior_strength=self.prior_strength,
            mixup_targets=self.mixup_targets,
        )


def check_metric_name(args: SoftLabelConfig, eval_sets: list[str]) -> None:
    """Refuse a metric_for_best_model that no evaluation will have, before the first one is reached."""
    if args.metric_for_best_model is None:
        return
    known = [name for name in (*NAMES, *TIMES) if args.ordinal or name != "wasserstein"]
    # Several eval sets put their names before it.
    known = [f"{key}_{name}" for key in eval_sets for name in known] or known
    wanted = args.metric_for_best_model.removeprefix("eval_")
    if wanted in known:
        return
    if eval_sets and not args.load_best_model_at_end and args.save_strategy != "best" and wanted in NAMES:
        # It selects nothing, and is there by default.
        args.metric_for_best_model = None
        return
    near = difflib.get_close_matches(wanted, known, n=1, cutoff=0)[0]
    raise VotesError(
        f"metric_for_best_model is {wanted!r}, which evaluations do not have. Did you mean {near!r}? "
        f"They have: {', '.join(known)}."
    )


@dataclass
class DataConfig:
    """Which votes, and what is held out.

    `split_seed` and `subsample_seed` are `seed` unless set: as in the paper, one seed decides the split, the
    subsample, the initial weights and the label stream. The eval split always keeps the full votes.
    """

    dataset: str = field(default="synthetic", metadata={"help": "cifar10h, chaosnli, popquorn, synthetic, table."})
    subset: str | None = field(default=None, metadata={"help": "For instance mnli for chaosnli."})
    sources: str | None = field(default=None, metadata={"help": "Folder with the authors' files, or the table."})
    revision: str | None = field(default=None, metadata={"help": "Revision of a Hub data set."})
    streaming: bool = field(default=False, metadata={"help": "Read examples as they are needed."})
    shuffle_buffer: int = field(default=1000, metadata={"help": "A stream is shuffled within so many examples."})
    eval_split: str | None = field(default=None, metadata={"help": "Use this split instead of holding out."})
    eval_fraction: float = field(default=0.2, metadata={"help": "Share held out, stratified on the hard label."})
    eval_annotators: float | None = field(
        default=None,
        metadata={"help": "Share of annotators whose votes on the same items are the eval split instead."},
    )
    split_seed: int | None = field(default=None, metadata={"help": "Default: seed."})
    calibration_fraction: float = field(
        default=0.0, metadata={"help": "Share of the training split kept to fit scaling and vote-coverage sets on."}
    )
    train_size: int | None = field(
        default=None,
        metadata={"help": "Train on this many examples, stratified; with eval_annotators these are scored, too."},
    )
    votes_per_example: int | None = field(default=None, metadata={"help": "K votes for each training example."})
    subsample: Literal["multinomial", "without_replacement"] = field(
        default="multinomial", metadata={"help": "How the K votes are drawn."}
    )
    subsample_seed: int | None = field(default=None, metadata={"help": "Default: seed."})
    text_columns: list[str] | None = field(default=None, metadata={"help": "One or two text columns."})
    max_length: int | None = field(default=None, metadata={"help": "Truncate texts to this many tokens."})
    label_columns: list[str] | None = field(default=None, metadata={"help": "Wide table: one column per class."})
    item_column: str | None = field(default=None, metadata={"help": "Long table: what was labelled."})
    label_column: str | None = field(default=None, metadata={"help": "Long table: the label given."})
    annotator_column: str | None = field(default=None, metadata={"help": "Long table: who gave it."})
    class_names: list[str] | None = field(default=None, metadata={"help": "Table: classes in their order."})


@dataclass
class ModelConfig:
    """Which model. `resnet18` and `resnet34` are ours, with the CIFAR stem, built on timm and trained from scratch."""

    model: str = field(default="resnet18", metadata={"help": "resnet18, resnet34, or a Hub id or path."})
    width: float = field(default=1.0, metadata={"help": "Channel multiplier of our ResNets (1 = 64 channels)."})
    image_size: int | None = field(default=None, metadata={"help": "Resize images; default: as they are."})
    channels_last: bool = field(
        default=False, metadata={"help": "Lay out convolutions as (N, H, W, C): faster on CPUs and with bf16 on GPUs."}
    )
    model_revision: str | None = field(default=None, metadata={"help": "Revision of a Hub model."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Run code that comes with a Hub model."})
    scaling: Literal["temperature", "vector"] = field(
        default="temperature", metadata={"help": "Fitted on the calibration split, saved with the model."}
    )
    vote_coverage: float = field(
        default=0.9, metadata={"help": "Share of annotators' votes that sets of classes cover; on the same split."}
    )
    from_scratch: bool = field(default=False, metadata={"help": "Use the configuration, not the weights."})


CONFIGS = (ModelConfig, DataConfig, SoftLabelConfig)


class RecipeError(VotesError):
    """A recipe or a command line that cannot be understood."""


class _RecipeParser(HfArgumentParser):
    def error(self, message: str):
        # argparse would print a usage of two hundred options first.
        raise RecipeError(message)


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML lets a later key silently replace an earlier one of the same name."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise RecipeError(f"The key {key!r} occurs twice (line {node.start_mark.line + 1}).")
        return super().construct_mapping(node, deep)


def recipe_keys() -> list[str]:
    """All keys that a recipe may have."""
    return [f.name for config in CONFIGS for f in dataclasses.fields(config) if f.init]


def nearest_key(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.0)
    return f"Did you mean {close[0]!r}?" if close else ""


def read_recipe(path: str | Path) -> dict[str, Any]:
    """A recipe's keys and values, checked for unknown and double keys."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"The recipe {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise RecipeError(f"The recipe {path} cannot be read: it is not a text file in UTF-8.") from None
    try:
        values = yaml.load(text, UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not valid YAML: {error}") from None
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise RecipeError(f"{path} must hold `key: value` lines, not a {type(values).__name__}.")
    known = recipe_keys()
    for key in values:
        if key not in known:
            raise RecipeError(f"{path}: unknown key {key!r}. {nearest_key(str(key), known)}")
    optional = {
        key for config in CONFIGS for key, hint in get_type_hints(config).items() if type(None) in get_args(hint)
    }
    for key, value in values.items():
        if value is None and key not in optional:
            raise RecipeError(f"{path}: {key} needs a value, not null.")
        if isinstance(value, list) and any(item is None or isinstance(item, bool) for item in value):
            raise RecipeError(
                f"{path}: YAML reads words like yes, no and null in {key} as {value}. Put them in quotes."
            )
    return values


def as_words(key: str, value: Any) -> list[str]:
    """A recipe's value as it would stand on the command line, so that both go through one set of checks."""
    if isinstance(value, dict):
        return [f"--{key}", json.dumps(value)]
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)]
    return [f"--{key}={value}"]


def parse_recipe(
    path: str | Path | None = None, arguments: Sequence[str] = ()
) -> tuple[ModelConfig, DataConfig, SoftLabelConfig]:
    """Read a recipe and command-line arguments into the three configurations.

    The recipe's keys are defaults and the command line wins. `output_dir` is by default
    `runs/<folders>-<recipe>-seed<seed>`, or `runs/<recipe>-seed<seed>` for a recipe in the working folder.
    """
    parser = _RecipeParser(CONFIGS, allow_abbrev=False, add_help=False)
    values = read_recipe(path) if path is not None else {}
    # `key: null` and `key: []` have no form on the command line.
    parser.set_defaults(**{key: value for key, value in values.items() if value is None or value == []})
    words = [word for key, value in values.items() if value not in (None, []) for word in as_words(key, value)]
    if arguments and not arguments[0].startswith("-"):
        # It would become one more item of a list that ends the recipe.
        raise RecipeError(f"Unknown argument {arguments[0]!r}: options are written --KEY VALUE.")
    try:
        namespace, unknown = parser.parse_known_args([*words, *arguments])
    except RecipeError as error:
        raise RecipeError(f"{path or 'command line'}: {error}") from None
    if unknown:
        name = unknown[0].lstrip("-").split("=")[0]
        raise RecipeError(f"Unknown argument {unknown[0]!r}. {nearest_key(name, recipe_keys())}")
    if namespace.output_dir is None:
        namespace.output_dir = f"runs/{recipe_name(path)}-seed{namespace.seed}"
    try:
        return tuple(
            config(**{f.name: getattr(namespace, f.name) for f in dataclasses.fields(config) if f.init})
            for config in CONFIGS
        )
    except VotesError:
        raise
    except (ValueError, TypeError, ImportError) as error:
        # TrainingArguments checks combinations of its own fields, in its own words.
        raise RecipeError(f"{path or 'command line'}: {error}") from None


def recipe_name(path: str | Path | None) -> str:
    """`recipes/cifar10h/small/soft.yaml` -> `cifar10h-small-soft`, `my/own.yaml` -> `my-own`, `own.yaml` -> `own`."""
    if path is None:
        return "run"
    path = Path(path).resolve()
    if path.parent == Path.cwd():
        return path.stem
    folders = path.parent.parts
    # All folders below `recipes`: `small` alone would be the name of several.
    below = folders[folders.index("recipes") + 1 :] if "recipes" in folders else ()
    return "-".join([*(below or folders[-1:]), path.stem])


def resolved(model: ModelConfig, data: DataConfig, training: SoftLabelConfig) -> dict[str, Any]:
    """Everything that a run was made of, as plain values for `config.yaml`; tokens are masked."""
    every = {**dataclasses.asdict(model), **dataclasses.asdict(data), **training.to_dict()}
    return json.loads(json.dumps({key: every[key] for key in recipe_keys() if key in every}, default=str))


def describe_keys() -> str:
    """Every key of a recipe, ours first, with its default and meaning."""
    lines = []
    for config in CONFIGS:
        lines.append(f"{config.__name__}:")
        for f in dataclasses.fields(config):
            if f.init:
                default = f.default if f.default is not dataclasses.MISSING else "..."
                meaning = str(f.metadata.get("help", "")).split("\n")[0]
                lines.append(f"  {f.name} (default: {default}) {meaning}")
    return "\n".join(lines)
