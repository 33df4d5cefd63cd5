"""Recipes and the command line: strict, the command line wins, and every shipped recipe parses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import yaml
from transformers import Trainer

from hf_softlabel.cli import main
from hf_softlabel.config import (
    CONFIGS,
    DataConfig,
    ModelConfig,
    RecipeError,
    SoftLabelConfig,
    describe_keys,
    parse_recipe,
    read_recipe,
    recipe_keys,
    resolved,
)
from hf_softlabel.data.errors import VotesError

RECIPES = Path(__file__).parents[1] / "recipes"
# Grids, which have axes, are read in test_grid.py.
SHIPPED = sorted(
    path
    for path in RECIPES.rglob("*.yaml")
    if "accelerate_configs" not in path.parts and "\naxes:" not in path.read_text()
)
PAPER = sorted((RECIPES / "cifar10h").glob("*.yaml"))


def name_of(path: Path) -> str:
    return str(path.relative_to(RECIPES))


@pytest.fixture
def parse(tmp_path):
    """Parse a recipe's text with command-line arguments to (model, data, training)."""

    def parse(text: str | bytes, *arguments: str):
        path = tmp_path / "recipe.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return parse_recipe(path, arguments)

    return parse


# The shipped recipes.


@pytest.mark.parametrize("path", SHIPPED, ids=name_of)
def test_every_shipped_recipe_parses_to_what_it_says(path):
    values = yaml.safe_load(path.read_text())
    configs = dict(zip(("model", "data", "training"), parse_recipe(path), strict=True))
    model, data, training = configs.values()
    assert data.dataset == values["dataset"] and training.delivery == values["delivery"]
    assert path.stem in (training.delivery, "text")
    assert model.model == values["model"]
    # It can be built, and selects the best checkpoint on the lowest soft NLL.
    assert training.make_delivery().name == values["delivery"]
    assert training.metric_for_best_model == "soft_nll" and training.greater_is_better is False
    for key, value in values.items():
        config = next(c for c in configs.values() if key in {f.name for f in dataclasses.fields(c)})
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert getattr(config, key) == value, key


def test_there_are_recipes_to_parse():
    assert len(SHIPPED) >= 30
    assert {path.stem for path in PAPER} >= {"soft", "sls", "multipass", "majority", "shuffled_sls", "mixup"}


@pytest.mark.parametrize("path", PAPER, ids=name_of)
def test_paper_recipes_hold_the_papers_values(path):
    model, data, training = parse_recipe(path)
    assert (data.dataset, data.eval_fraction, data.train_size) == ("cifar10h", 0.2, None)
    assert (model.model, model.width) == ("resnet18", 1.0)
    assert training.learning_rate == 0.1
    assert training.weight_decay == 5e-4
    assert training.lr_scheduler_type == "cosine" and training.warmup_steps == 0
    assert training.num_train_epochs == 200
    assert training.per_device_train_batch_size == 128 and training.gradient_accumulation_steps == 1
    assert training.augment
    optimizer, options = Trainer.get_optimizer_cls_and_kwargs(training)
    assert optimizer is torch.optim.SGD
    assert options == {"lr": 0.1, "momentum": 0.9}


# Values.


def test_the_recipe_gives_defaults_and_the_command_line_wins(parse):
    text = "seed: 3\nlearning_rate: 0.5\ndelivery: sls\nwidth: 0.5\ntext_columns: [a, b]\naugment: false\n"
    model, data, training = parse(text)
    assert (training.seed, training.learning_rate, training.delivery) == (3, 0.5, "sls")
    assert (model.width, data.text_columns, training.augment) == (0.5, ["a", "b"], False)
    model, data, training = parse(
        text, "--seed", "4", "--delivery=soft", "--width=2", "--text_columns", "c", "--augment", "true"
    )
    assert (training.seed, training.learning_rate, training.delivery) == (4, 0.5, "soft")
    assert (model.width, data.text_columns, training.augment) == (2.0, ["c"], True)
    # What neither gives has the dataclass's default.
    assert training.weight_decay == SoftLabelConfig.weight_decay


def test_without_a_recipe_the_command_line_is_enough():
    model, data, training = parse_recipe(None, ["--model", "resnet34", "--dataset", "table", "--seed", "9"])
    assert (model.model, data.dataset, training.output_dir) == ("resnet34", "table", "runs/run-seed9")
    assert isinstance(model, ModelConfig) and isinstance(data, DataConfig) and isinstance(training, SoftLabelConfig)


def test_exponents_without_a_point_are_numbers(parse):
    # PyYAML reads 1e-3 as a string.
    rate = parse("learning_rate: 1e-3\n")[2].learning_rate
    assert rate == 0.001 and isinstance(rate, float)


def test_null_sets_none_and_the_command_line_still_wins(parse):
    # The default is soft_nll.
    assert parse("metric_for_best_model: null\nsave_total_limit: null\n")[2].metric_for_best_model is None
    assert parse("metric_for_best_model: null", "--metric_for_best_model", "kl")[2].metric_for_best_model == "kl"


def test_null_is_refused_where_a_value_is_needed(parse):
    for key in ("seed", "eval_fraction", "width", "resample_every"):
        with pytest.raises(RecipeError, match=f"{key} needs a value, not null"):
            parse(f"{key}: null\n")


def test_lists_and_mappings(parse):
    _, data, training = parse('class_names: ["no", "yes", maybe]\nlr_scheduler_kwargs: {num_cycles: 2}\ndebug: []\n')
    assert data.class_names == ["no", "yes", "maybe"]
    assert training.lr_scheduler_kwargs == {"num_cycles": 2}
    assert training.debug == []
    assert parse("text_columns: []\n")[1].text_columns == []
    assert parse("text_columns: only\n")[1].text_columns == ["only"]


def test_bare_yes_and_no_in_a_list_are_refused(parse):
    # YAML 1.1 reads them as booleans: the classes would be called True and False.
    with pytest.raises(RecipeError, match=r"class_names as \[False, True\]. Put them in quotes"):
        parse("class_names: [no, yes]\n")


def test_an_empty_recipe_has_all_defaults(parse):
    for text in ("", "# only a comment\n", "---\n"):
        model, data, training = parse(text)
        assert model == ModelConfig() and data == DataConfig()
        assert training.delivery is None and training.make_delivery().name == "soft"


# What is refused.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 0.1", "unknown key 'learning_rat'. Did you mean 'learning_rate'?"),
        ("Delivery: sls", "unknown key 'Delivery'. Did you mean 'delivery'?"),
        ("votes_per_exampel: 5", "unknown key 'votes_per_exampel'. Did you mean 'votes_per_example'?"),
        ("5: 6", "unknown key 5."),
        ("seed: 1\ndelivery: sls\nseed: 2", "The key 'seed' occurs twice"),
        ("lr_scheduler_kwargs:\n  a: 1\n  a: 2", "The key 'a' occurs twice (line 2)"),
        ("- seed\n- delivery", "must hold `key: value` lines, not a list"),
        ("just words", "must hold `key: value` lines, not a str"),
        ("[]", "must hold `key: value` lines, not a list"),
        ("false", "must hold `key: value` lines, not a bool"),
        ("seed: [1", "is not valid YAML"),
        ("num_train_epochs: many", "--num_train_epochs/--num-train-epochs: invalid float value: 'many'"),
        ("seed: 1.5", "--seed: invalid int value: '1.5'"),
        ("augment: perhaps", "--augment: Truthy value expected: got perhaps"),
        ("delivery: slz", "--delivery: invalid choice: 'slz' (choose from 'soft', 'sls'"),
        ("mixup_targets: hard", "--mixup_targets/--mixup-targets: invalid choice: 'hard'"),
        ("subsample: bootstrap", "--subsample: invalid choice: 'bootstrap'"),
        ("lr_scheduler_type: cosinus", "invalid choice: 'cosinus'"),
        ("label_smoothing_factor: 0.1", "Set delivery: label_smoothing and label_smoothing_epsilon"),
        ("mixup_alpha: 0", "mixup_alpha must be positive, not 0.0"),
        ("batch_eval_metrics: true", "batch_eval_metrics is not supported"),
        (
            "load_best_model_at_end: true\neval_strategy: epoch\nsave_strategy: steps",
            "save and eval strategy to match",
        ),
        (b"seed: \xff\xfe", "not a text file in UTF-8"),
    ],
)
def test_wrong_recipes_are_refused(parse, text, message):
    with pytest.raises(VotesError) as error:
        parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learnin_rate", "3"], "Unknown argument '--learnin_rate'. Did you mean 'learning_rate'?"),
        (["--learnin_rate=3"], "Did you mean 'learning_rate'?"),
        (["--seed", "x"], "--seed: invalid int value: 'x'"),
        (["--delivery", "slz"], "--delivery: invalid choice: 'slz'"),
        (["--seed"], "--seed: expected one argument"),
        (["--label_smoothing_factor", "0.1"], "Set delivery: label_smoothing"),
        (["stray"], "Unknown argument 'stray'"),
        (["--seed", "3", "stray"], "Unknown argument 'stray'"),
    ],
)
def test_wrong_command_lines_are_refused(parse, arguments, message):
    # The recipe ends in a list, which must not swallow a stray word.
    with pytest.raises(VotesError) as error:
        parse("text_columns: [a, b]\n", *arguments)
    assert message in str(error.value)


@pytest.mark.parametrize("short", ["--learning", "--deliver", "--num_train_epoch"])
def test_abbreviated_options_are_refused(parse, short):
    with pytest.raises(RecipeError, match=f"Unknown argument '{short}'"):
        parse("seed: 1", short, "1")


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"nothing.yaml cannot be read: No such file"):
        read_recipe(tmp_path / "nothing.yaml")
    with pytest.raises(RecipeError, match="cannot be read: Is a directory"):
        read_recipe(tmp_path)


def test_recipe_errors_name_the_file(parse, tmp_path):
    for text in ("sead: 1", "seed: x", "seed: 1\nseed: 2", "[", "- 1"):
        with pytest.raises(RecipeError, match=str(tmp_path / "recipe.yaml")):
            parse(text)


# SoftLabelConfig.


@pytest.mark.parametrize(
    ("metric", "greater"),
    [
        ("soft_nll", False),
        ("eval_soft_nll", False),
        ("kl", False),
        ("soft_brier", False),
        ("loss", False),
        ("accuracy", True),
        ("eval_accuracy", True),
        ("accuracy_majority", True),
        ("entropy_correlation", True),
    ],
)
def test_greater_is_better_follows_the_metric(tmp_path, metric, greater):
    config = SoftLabelConfig(str(tmp_path), metric_for_best_model=metric)
    assert config.greater_is_better is greater
    # Said outright, it is kept.
    kept = SoftLabelConfig(str(tmp_path), metric_for_best_model=metric, greater_is_better=not greater)
    assert kept.greater_is_better is not greater


def test_soft_nll_selects_the_best_checkpoint_by_default(tmp_path):
    config = SoftLabelConfig(str(tmp_path))
    assert (config.metric_for_best_model, config.greater_is_better) == ("soft_nll", False)
    assert config.label_names == ["votes", "example_id", "gold_label"]
    assert config.logging_nan_inf_filter is False


def test_make_delivery_passes_every_setting_on(tmp_path):
    config = SoftLabelConfig(
        str(tmp_path),
        seed=4,
        delivery="mixup",
        resample_every=3,
        label_smoothing_epsilon=0.3,
        prior_strength=2.5,
        mixup_targets="soft",
    )
    delivery = config.make_delivery()
    assert dataclasses.asdict(delivery) == {
        "name": "mixup",
        "seed": 4,
        "resample_every": 3,
        "label_smoothing_epsilon": 0.3,
        "prior_strength": 2.5,
        "mixup_targets": "soft",
    }
    # Zero is a seed like any other.
    assert SoftLabelConfig(str(tmp_path), seed=4, delivery_seed=0).make_delivery().seed == 0


def test_output_dir_is_named_after_the_recipe_and_the_seed(tmp_path):
    folder = tmp_path / "cifar10h"
    folder.mkdir()
    (folder / "sls.yaml").write_text("seed: 7\n")
    assert parse_recipe(folder / "sls.yaml")[2].output_dir == "runs/cifar10h-sls-seed7"
    assert parse_recipe(folder / "sls.yaml", ["--seed", "8"])[2].output_dir == "runs/cifar10h-sls-seed8"
    assert parse_recipe(folder / "sls.yaml", ["--output_dir", "x"])[2].output_dir == "x"


# What is written down.


def test_resolved_has_every_key_and_no_token(parse):
    config = resolved(*parse("hub_token: hf_secret\ndelivery: sls\nlearning_rate: 1e-3\n"))
    assert set(config) == set(recipe_keys())
    assert "hf_secret" not in str(config)
    assert (config["delivery"], config["learning_rate"], config["dataset"]) == ("sls", 0.001, "synthetic")


@pytest.mark.parametrize("path", [RECIPES / "cifar10h" / "sls.yaml", RECIPES / "chaosnli" / "soft.yaml"], ids=name_of)
def test_resolved_configuration_is_a_recipe_for_the_same_run(tmp_path, path):
    config = resolved(*parse_recipe(path, ["--seed", "5", "--text_columns", "a", "b"]))
    assert yaml.safe_load(yaml.safe_dump(config)) == config
    again = tmp_path / "config.yaml"
    again.write_text(yaml.safe_dump(config))
    assert resolved(*parse_recipe(again)) == config


def test_keys_are_unique_over_the_three_configurations():
    keys = recipe_keys()
    assert len(keys) == len(set(keys)) > 100
    described = describe_keys()
    for config in CONFIGS:
        assert f"{config.__name__}:" in described
    assert all(f"\n  {key} (default: " in described for key in keys)


# The command.


def test_help_explains_the_command(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--help"])
    assert exit.value.code == 0
    out = capsys.readouterr().out
    assert "train" in out and "hf-softlabel train recipes/" in out


def test_no_command_and_unknown_words_are_wrong_usage(capsys):
    for words in ([], ["trian"], ["demo", "--bogus"], ["--bogus", "train", "recipe.yaml"]):
        with pytest.raises(SystemExit) as exit:
            main(words)
        assert exit.value.code == 2
        assert capsys.readouterr().out == ""


def test_train_without_a_recipe_prints_its_help_and_fails(capsys):
    assert main(["train"]) == 2
    assert capsys.readouterr().out.startswith("usage: hf-softlabel train RECIPE.yaml")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["recipe.yaml", "--help"]])
def test_train_help_shows_examples(capsys, words):
    assert main(["train", *words]) == 0
    out = capsys.readouterr().out
    examples = [line.split() for line in out.split("examples:")[1].splitlines() if "hf-softlabel train" in line]
    assert len(examples) >= 2
    # The recipes of the examples are there.
    assert all((RECIPES.parent / words[words.index("train") + 1]).is_file() for words in examples)


def test_a_missing_recipe_is_one_line_and_exit_code_2(capsys):
    assert main(["train", "missing.yaml"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "hf-softlabel: error: The recipe missing.yaml cannot be read: No such file or directory.\n"
    assert captured.out == ""


def test_errors_are_printed_by_the_first_process_only(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert main(["train", "missing.yaml"]) == 2
    assert capsys.readouterr().err == ""


def test_an_option_in_the_place_of_the_recipe_is_explained(capsys):
    assert main(["train", "--seed", "3"]) == 2
    assert "The recipe comes first: hf-softlabel train RECIPE.yaml --seed 3" in capsys.readouterr().err


def test_wrong_options_of_train_end_with_exit_code_2(capsys):
    recipe = str(RECIPES / "synthetic" / "sls.yaml")
    assert main(["train", recipe, "--sede", "3"]) == 2
    assert "Did you mean 'seed'?" in capsys.readouterr().err


def test_keys_are_listed(capsys):
    assert main(["train", "--keys"]) == 0
    out = capsys.readouterr().out
    assert "  delivery (default: None) How votes are delivered to the loss.\n" in out
    assert "  learning_rate (default: 5e-05)" in out


@pytest.mark.parametrize(
    ("metric", "greater"), [("eval_a_soft_nll", False), ("eval_b_kl", False), ("eval_a_f1", True)]
)
def test_metrics_of_one_of_several_eval_sets_keep_their_sense(tmp_path, metric, greater):
    assert SoftLabelConfig(str(tmp_path), metric_for_best_model=metric).greater_is_better is greater


@pytest.mark.parametrize("options", [{"label_names": ["votes"]}, {"prediction_loss_only": True}])
def test_settings_that_would_break_the_scores_are_refused(tmp_path, options):
    with pytest.raises(VotesError, match=next(iter(options))):
        SoftLabelConfig(str(tmp_path), **options)


def test_evaluation_has_four_times_the_training_batch_unless_it_is_set(tmp_path, parse):
    options = {"per_device_train_batch_size": 6, "use_cpu": True}
    assert SoftLabelConfig(str(tmp_path), **options).eval_batch_size == 24
    assert SoftLabelConfig(str(tmp_path), per_device_eval_batch_size=5, **options).eval_batch_size == 5
    assert parse("per_device_train_batch_size: 6")[2].per_device_eval_batch_size == 24
