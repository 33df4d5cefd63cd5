"""The doctor: each trap in a real Trainer that steps into it, and beside it the same without the trap."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset, concatenate_datasets
from trainers import config, text_trainer
from transformers import DataCollatorWithPadding, Trainer, TrainerCallback, TrainingArguments

import hf_softlabel
from hf_softlabel import SoftLabelConfig, VotesTrainer, load_model, tokenize_votes
from hf_softlabel.cli import main
from hf_softlabel.data.synthetic import TONES
from hf_softlabel.doctor import examine_recipe, examine_splits, examine_trainer
from hf_softlabel.doctor_checks import asked_processes, check_class_order, check_rows

ROOT = Path(__file__).parents[1]
SYNTHETIC = sorted(path.name for path in (ROOT / "recipes/synthetic").glob("*.yaml") if path.name != "grid.yaml")


def wrong(found) -> list[str]:
    return [finding.name for finding in found if finding.severity == "wrong"]


def notes(found) -> list[str]:
    return [finding.name for finding in found if finding.severity == "note"]


def distributions(dataset: Dataset) -> list[list[float]]:
    votes = np.asarray(dataset["votes"][:], np.float64)
    return (votes / votes.sum(1, keepdims=True)).tolist()


@pytest.fixture(scope="module")
def tokens(texts):
    """Tokenised texts with `votes` (counts), `example_id` and the gold `label`, and a column of distributions."""
    _, tokenizer = load_model("synthetic-bert", TONES, task="text")
    splits = {name: tokenize_votes(split, tokenizer) for name, split in texts.items()}
    return {name: split.add_column("p", distributions(split)) for name, split in splits.items()}


def stock(tmp_path, train, held_out=None, cls=Trainer, names=TONES, model=None, **options) -> Trainer:
    """A stock Trainer with a stock BERT; `trainer` are the Trainer's own arguments."""
    made, tokenizer = load_model("synthetic-bert", names, task="text")
    further = {key: options.pop(key) for key in ("compute_loss_func", "callbacks") if key in options}
    args = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        per_device_train_batch_size=8,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        logging_strategy="no",
        **options,
    )
    return cls(
        model=made if model is None else model,
        args=args,
        train_dataset=train,
        eval_dataset=held_out,
        data_collator=DataCollatorWithPadding(tokenizer),
        **further,
    )


def hard(dataset: Dataset) -> Dataset:
    """Hard labels only: what most Trainers are given."""
    return dataset.remove_columns(["votes", "example_id", "p"])


def soft(dataset: Dataset) -> Dataset:
    """Distributions as `labels`: what users try first."""
    return dataset.remove_columns(["votes", "example_id", "label"]).rename_column("p", "labels")


class SoftTrainer(Trainer):
    """A user's own trainer, done right: counts under `votes`, divided by their sum."""

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        votes = inputs.pop("votes").float()
        inputs = {key: value for key, value in inputs.items() if key in ("input_ids", "attention_mask")}
        outputs = model(**inputs)
        loss = self.loss(outputs.logits, votes)
        return (loss, outputs) if return_outputs else loss

    def loss(self, logits, votes):
        return F.cross_entropy(logits, votes / votes.sum(1, keepdim=True))


class CountsTrainer(SoftTrainer):
    def loss(self, logits, votes):
        return F.cross_entropy(logits, votes)


class DivergenceTrainer(SoftTrainer):
    def loss(self, logits, votes):
        return F.kl_div(logits.log_softmax(1), votes / votes.sum(1, keepdim=True), reduction="batchmean")


class MajorityOfVotesTrainer(SoftTrainer):
    def loss(self, logits, votes):
        return F.cross_entropy(logits, votes.argmax(1))


class SquaresTrainer(SoftTrainer):
    def loss(self, logits, votes):
        return F.mse_loss(logits.softmax(1), votes / votes.sum(1, keepdim=True))


def test_a_healthy_stock_trainer_with_hard_labels_gives_no_finding(tmp_path, tokens):
    trainer = stock(tmp_path, hard(tokens["train"]), hard(tokens["eval"]))
    assert examine_trainer(trainer) == []


def test_our_own_trainer_gives_no_fault(tmp_path, texts):
    found = examine_trainer(text_trainer(tmp_path, texts, gradient_accumulation_steps=4, delivery="sls"))
    assert set(notes(found)) <= {"tied_votes"} and wrong(found) == []


def test_votes_that_remove_unused_columns_drops(tmp_path, tokens):
    (finding,) = [f for f in examine_trainer(stock(tmp_path, tokens["train"])) if f.severity == "wrong"]
    assert finding.name == "votes_dropped" and "`label` instead" in finding.what and "votes" in finding.where
    # A loss of the user's own does not get them either: the step fails, for a reason that the doctor knows.
    found = examine_trainer(stock(tmp_path, tokens["train"], cls=SoftTrainer))
    assert wrong(found) == ["votes_dropped"]
    kept = examine_trainer(stock(tmp_path, tokens["train"], cls=SoftTrainer, remove_unused_columns=False))
    assert wrong(kept) == []


def test_votes_under_another_name_are_known_by_their_form(tmp_path, tokens):
    train = tokens["train"].remove_columns(["votes", "example_id"])
    assert wrong(examine_trainer(stock(tmp_path, train))) == ["votes_dropped"]
    # Two numbers are no votes on three classes.
    other = hard(tokens["train"]).add_column("place", [[0.5, 0.5]] * len(train))
    assert examine_trainer(stock(tmp_path, other)) == []


def test_a_head_that_uses_bce(tmp_path, tokens):
    trainer = stock(tmp_path, soft(tokens["train"]))
    (finding,) = [f for f in examine_trainer(trainer) if f.severity == "wrong"]
    assert finding.name == "bce_head" and "problem_type='multi_label_classification'" in finding.what
    assert trainer.model.config.problem_type is None  # put back, so that it is not pushed
    # The very trap: training goes through without a word.
    trainer.args.max_steps = 1
    trainer.train()
    assert trainer.model.config.problem_type == "multi_label_classification"


def test_a_bce_head_is_told_from_cross_entropy_with_two_classes_and_logits_of_zero(tmp_path, tokens):
    p = np.asarray(tokens["train"]["p"][:])[:, :2] + 0.1
    train = tokens["train"].remove_columns(["votes", "example_id", "label", "p"])
    train = train.add_column("labels", (p / p.sum(1, keepdims=True)).tolist())
    trainer = stock(tmp_path, train, names=["no", "yes"])
    with torch.no_grad():
        trainer.model.classifier.weight.zero_()
    assert wrong(examine_trainer(trainer)) == ["bce_head"]


def test_multi_label_targets_are_no_votes(tmp_path, tokens):
    train = tokens["train"].remove_columns(["votes", "example_id", "label", "p"])
    rows = [[1.0, float(i % 2), 0.0] for i in range(len(train))]
    assert examine_trainer(stock(tmp_path, train.add_column("labels", rows))) == []


def summed_over_items(outputs, labels, num_items_in_batch=None):
    return F.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


def summed_over_rows(outputs, labels, num_items_in_batch=None):
    return summed_over_items(outputs, labels, num_items_in_batch / labels.shape[1])


@pytest.mark.parametrize("steps", [1, 4])
def test_a_loss_divided_by_the_number_of_entries(tmp_path, tokens, steps):
    options = {"gradient_accumulation_steps": steps}
    trainer = stock(tmp_path, soft(tokens["train"]), compute_loss_func=summed_over_items, **options)
    (finding,) = [f for f in examine_trainer(trainer) if f.severity == "wrong"]
    assert finding.name == "loss_per_entry" and "3 times too small" in finding.what
    trainer = stock(tmp_path, soft(tokens["train"]), compute_loss_func=summed_over_rows, **options)
    assert wrong(examine_trainer(trainer)) == []


def test_a_loss_that_accumulation_does_not_divide(tmp_path, tokens):
    train, options = hard(tokens["train"]), {"gradient_accumulation_steps": 4}
    # transformers takes BERT's **kwargs for a loss that divides by num_items_in_batch; it does not.
    (finding,) = examine_trainer(stock(tmp_path, train, **options))
    assert (finding.name, finding.severity) == ("accumulated_loss", "wrong") and "2.00 times" in finding.what
    assert "gradient_accumulation_steps=4" in finding.what

    class Divided(Trainer):
        loss_is_scaled_for_ga = False

    assert examine_trainer(stock(tmp_path, train, cls=Divided, **options)) == []
    assert examine_trainer(stock(tmp_path, train)) == []  # without accumulation there is nothing to divide


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (SoftTrainer, []),
        (DivergenceTrainer, []),  # the same gradients
        (CountsTrainer, ["wrong loss_unnormalised"]),
        (MajorityOfVotesTrainer, ["note majority_loss"]),
        (SquaresTrainer, ["note another_loss"]),
    ],
)
def test_a_loss_of_ones_own(tmp_path, tokens, cls, expected):
    found = examine_trainer(stock(tmp_path, tokens["train"], cls=cls, remove_unused_columns=False))
    assert [f"{f.severity} {f.name}" for f in found if f.name != "tied_votes"] == expected


class Resampling(torch.utils.data.Dataset):
    """Labels drawn in the data set: by the epoch that it is told, from a generator of its own, or the global one."""

    def __init__(self, tokens: Dataset, how: str):
        self.rows = [dict(row) for row in tokens.select_columns(["input_ids", "attention_mask", "p"])]
        self.how, self.epoch, self.rng = how, 0, np.random.default_rng(0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict:
        row = self.rows[i]
        rng = {
            "epoch": lambda: np.random.default_rng((self.epoch, i)),
            "own": lambda: self.rng,
            "global": lambda: np.random,
        }
        rng["constant"] = lambda: np.random.default_rng(i)
        label = int(rng[self.how]().choice(3, p=row["p"]))
        return {"input_ids": row["input_ids"], "attention_mask": row["attention_mask"], "labels": label}


@pytest.mark.parametrize(
    ("how", "workers", "persistent", "expected"),
    [
        ("epoch", 1, True, ["wrong epoch_not_seen"]),
        ("epoch", 1, False, []),
        ("epoch", 0, False, []),
        ("own", 1, False, ["wrong epoch_not_seen"]),
        ("global", 1, True, ["note random_labels"]),
        ("constant", 1, True, []),
    ],
)
def test_an_epoch_that_workers_do_not_see(tmp_path, tokens, how, workers, persistent, expected):
    options = {"dataloader_num_workers": workers, "dataloader_persistent_workers": persistent}
    dataset = Resampling(tokens["train"], how)
    found = examine_trainer(stock(tmp_path, dataset, **options))
    assert [f"{f.severity} {f.name}" for f in found] == expected
    assert dataset.epoch == 0


def test_a_transform_whose_epoch_a_callback_sets(tmp_path, tokens):
    now = {"epoch": 0}

    class Tell(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs):
            now["epoch"] = int(state.epoch)

    def draw(batch):
        batch["labels"] = [
            int(np.random.default_rng((now["epoch"], *map(int, ids))).integers(3)) for ids in batch["input_ids"]
        ]
        return batch

    train = tokens["train"].select_columns(["input_ids", "attention_mask"]).with_transform(draw)
    options = {"dataloader_num_workers": 1, "callbacks": [Tell()]}
    assert wrong(examine_trainer(stock(tmp_path, train, dataloader_persistent_workers=True, **options))) == [
        "epoch_not_seen"
    ]
    assert examine_trainer(stock(tmp_path, train, **options)) == []


def test_classes_in_another_order(tmp_path, tokens):
    train = hard(tokens["train"])
    (finding,) = examine_trainer(stock(tmp_path, train, names=["positive", "Neutral", "negative"]))
    assert (finding.name, finding.severity) == ("class_order", "wrong")
    nli = check_class_order(
        ["entailment", "neutral", "contradiction"], {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}
    )
    assert wrong(nli) == ["class_order"]
    (note,) = examine_trainer(stock(tmp_path, train, names=["red", "green", "blue"]))
    assert (note.name, note.severity) == ("class_names", "note")
    assert examine_trainer(stock(tmp_path, train, names=["LABEL_0", "LABEL_1", "LABEL_2"])) == []


def test_rows_that_are_no_distribution_and_rows_with_a_tie(tmp_path, tokens):
    p = np.asarray(tokens["train"]["p"][:])
    p[[3, 7]] *= 4
    train = tokens["train"].remove_columns(["votes", "example_id", "label", "p"]).add_column("p", p.tolist())
    train = train.rename_column("p", "labels")
    (finding,) = [f for f in examine_trainer(stock(tmp_path, train)) if f.name == "unnormalised_votes"]
    assert finding.severity == "wrong" and "rows 3, 7" in finding.where and "sum to 4, 4" in finding.what
    found = check_rows(np.array([[2, 2, 1], [3, 0, 1], [1, 1, 1]]), "train")
    assert notes(found) == ["tied_votes"] and wrong(found) == [] and "rows 0, 2" in found[0].where
    assert wrong(check_rows(np.array([[2, 2, 1], [0, 0, 0], [-1, 1, 1]]), "train")) == ["unnormalised_votes"]
    assert wrong(check_rows(np.array([[0.1] * 10], np.float32), "train")) == []


def test_examples_that_are_trained_on_and_held_out(tmp_path, texts):
    leak = {"train": texts["train"], "eval": concatenate_datasets([texts["eval"], texts["train"].select([4])])}
    (finding,) = [f for f in examine_trainer(text_trainer(tmp_path, leak)) if f.severity == "wrong"]
    assert finding.name == "common_examples" and f"example_id {texts['train'][4]['example_id']}" in finding.where


def test_inputs_that_are_trained_on_and_held_out_under_another_id(tmp_path, texts):
    copied = texts["train"].select([4]).map(lambda row: {"example_id": 10**6})
    leak = {"train": texts["train"], "eval": concatenate_datasets([texts["eval"], copied])}
    (finding,) = [f for f in examine_trainer(text_trainer(tmp_path, leak)) if f.severity == "wrong"]
    assert finding.name == "common_inputs" and f"4 = {len(texts['eval'])}" in finding.where


def test_images_in_common(tmp_path, images):
    copied = images["train"].select([2]).map(lambda row: {"example_id": 10**6})
    leak = {"train": images["train"], "eval": concatenate_datasets([images["eval"], copied])}
    assert wrong(examine_splits(leak)) == ["common_inputs"]
    assert wrong(examine_splits(dict(images))) == []
    # As the trainer has them: decoded, in memory.
    model, processor = load_model("resnet18", images["train"].features["label"].names, task="image", width=0.125)
    for held_out, expected in (
        (leak["eval"], ["common_inputs"]),
        (images["train"].select([2]), ["common_examples"]),
        (images["eval"], []),
    ):
        options = {"train_dataset": images["train"], "eval_dataset": held_out, "processing_class": processor}
        assert wrong(examine_trainer(VotesTrainer(model=model, args=config(tmp_path), **options))) == expected


def test_the_trainer_is_left_as_it_was(tmp_path, images):
    """A batch-norm network, whose forward pass in training mode moves its statistics; and a run as if not examined."""

    def trainer(name: str) -> VotesTrainer:
        model, processor = load_model("resnet18", images["train"].features["label"].names, task="image", width=0.125)
        args = SoftLabelConfig(
            output_dir=str(tmp_path / name),
            max_steps=2,
            gradient_accumulation_steps=2,
            per_device_train_batch_size=4,
            report_to="none",
            delivery="sls",
            disable_tqdm=True,
            use_cpu=True,
        )
        return VotesTrainer(model=model, args=args, train_dataset=images["train"], processing_class=processor)

    examined, other = trainer("a"), trainer("b")
    before, arguments = copy.deepcopy(examined.model.state_dict()), examined.args.to_dict()
    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert wrong(examine_trainer(examined)) == []
    assert torch.equal(torch.rand(3), drawn)
    assert all(torch.equal(value, before[name]) for name, value in examined.model.state_dict().items())
    assert all(parameter.grad is None for parameter in examined.model.parameters())
    assert examined.args.to_dict() == arguments
    examined.train()
    other.train()
    for mine, theirs in zip(examined.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert examined.ledger.digest() == other.ledger.digest()


def test_a_step_that_fails_is_an_error_in_plain_words(tmp_path, tokens):
    train = hard(tokens["train"]).remove_columns("label")
    with pytest.raises(
        hf_softlabel.VotesError, match="A training step fails with ValueError: The model did not return"
    ):
        examine_trainer(stock(tmp_path, train))


def test_a_streamed_recipe_is_not_wrong(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert examine_recipe("recipes/synthetic/text.yaml", ["--streaming", "true", "--max_steps", "9"]) == []


@pytest.mark.parametrize("recipe", SYNTHETIC)
def test_no_shipped_recipe_is_wrong(recipe, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert {finding.name for finding in examine_recipe(f"recipes/synthetic/{recipe}")} <= {"tied_votes"}


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("chaosnli/soft.yaml", ["--model", "synthetic-bert", "--max_length", "32"]),
        ("chaosnli/multipass.yaml", ["--model", "synthetic-bert", "--max_length", "32", "--subset", "snli"]),
        ("popquorn/posterior_sls.yaml", ["--model", "synthetic-bert", "--max_length", "32"]),
        ("cifar10h/sls.yaml", ["--width", "0.125", "--gradient_accumulation_steps", "2"]),
    ],
)
def test_no_recipe_on_real_votes_is_wrong(recipe, words, sources, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = examine_recipe(f"recipes/{recipe}", words)
    assert {finding.name for finding in found} <= {"tied_votes"}


def doctor(capsys, *words) -> tuple[int, dict]:
    code = main(["doctor", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_recipe_with_a_delivery_that_needs_counts(tmp_path, texts, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"text": row["text"], "votes": p} for row, p in zip(texts["train"], distributions(texts["train"]), strict=True)
    ]
    Path("votes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("mine.yaml").write_text("dataset: table\nsources: votes.jsonl\nmodel: synthetic-bert\ndelivery: multipass\n")
    code, report = doctor(capsys, "mine.yaml")
    assert code == 1 and [f["name"] for f in report["findings"] if f["severity"] == "wrong"] == ["counts_missing"]
    for words in (["--delivery", "sls"], ["--votes_per_example", "5"]):
        code, report = doctor(capsys, "mine.yaml", *words)
        assert code == 0 and report["wrong"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml", "votes.jsonl"]  # nothing was written
    code, report = doctor(capsys, "votes.jsonl")
    assert code == 0 and "counts_missing" in [f["name"] for f in report["findings"]]


def test_a_table_with_bad_rows(tmp_path, capsys):
    path = tmp_path / "votes.csv"
    path.write_text("text,a,b\none,0.5,0.5\ntwo,0.5,0.7\nthree,1.0,0.0\nfour,0.9,0.0\n")
    code, report = doctor(capsys, path, "--label_columns", "a", "b")
    first, second = report["findings"]
    assert (code, report["wrong"], first["name"]) == (1, 1, "unnormalised_votes") and "rows 1, 3" in first["where"]
    assert (second["name"], second["severity"]) == ("tied_votes", "note") and "rows 0" in second["where"]
    path.write_text("text,a,b\none,2,3\ntwo,4,1\n")
    assert doctor(capsys, path, "--label_columns", "a", "b") == (0, {"target": str(path), "wrong": 0, "findings": []})


def test_ids_that_two_splits_share(tmp_path, capsys):
    folder = tmp_path / "data"
    folder.mkdir()
    for split, ids in (("train", [1, 2, 3]), ("test", [3, 4])):
        rows = [{"text": f"{split} {i}", "votes": [i, 1], "example_id": i} for i in ids]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, report = doctor(capsys, folder)
    assert code == 1 and report["findings"][0]["name"] == "common_examples"
    assert "example_id 3" in report["findings"][0]["where"]


def test_what_cannot_be_read_has_exit_code_2(tmp_path, capsys):
    path = tmp_path / "votes.csv"
    path.write_text("text,a,b\none,2,3\n")
    twice = tmp_path / "twice.csv"
    twice.write_text("example_id,text,a,b\n1,one,2,3\n1,two,2,3\n")
    for words in (
        ["nothing.csv"],
        [str(twice), "--label_columns", "a", "b"],
        [str(path), "--label_columns", "a", "c"],
        ["nothing.yaml"],
        [str(tmp_path / "x/y.yaml")],
    ):
        assert main(["doctor", *words]) == 2
        captured = capsys.readouterr()
        assert captured.err.splitlines()[-1].startswith("hf-softlabel: error: ") and captured.out == ""
    assert main(["doctor", "--subset", "text", str(ROOT / "recipes/synthetic/sls.yaml")]) == 2
    assert "The recipe comes first" in capsys.readouterr().err


def test_a_person_can_read_it(tmp_path, capsys):
    path = tmp_path / "votes.csv"
    path.write_text("text,a,b\none,0.5,0.7\ntwo,0.4,0.6\n")
    assert main(["doctor", str(path), "--label_columns", "a", "b"]) == 1
    assert capsys.readouterr().out == (
        "wrong  1 of 2 rows of votes are neither counts nor a distribution: they sum to 1.2, so they would "
        "weigh more\n"
        "       or less than the others in the loss.\n"
        "       where: train split, rows 0\n"
        "       fix:   divide each row by its sum, or store counts as integers; remove rows without votes\n"
        f"{path}: 1 wrong, 0 notes.\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        (["--cpu", "--num_processes", "2"], ["fewer_processes"]),
        (["--config_file", "cpu.yaml"], ["fewer_processes"]),
        (["--config_file", str(ROOT / "recipes/accelerate_configs/cpu2.yaml")], []),
    ],
)
def test_a_launch_with_fewer_processes_than_asked_for(tmp_path, launcher, expected):
    (tmp_path / "cpu.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_machines: 1\nnum_processes: 2\n"
        "machine_rank: 0\nmixed_precision: 'no'\nuse_cpu: true\n"
    )
    words = ["-m", "hf_softlabel", "doctor", str(ROOT / "recipes/synthetic/text.yaml"), "--json"]
    start = [sys.executable, "-m", "accelerate.commands.launch", *launcher]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run([*start, *words], capture_output=True, text=True, cwd=tmp_path, env=environment)
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert [f["name"] for f in report["findings"] if f["severity"] == "wrong"] == expected
    assert (done.returncode != 0) == bool(expected), done.stderr


def test_the_world_size_that_the_environment_asks_for(tmp_path, tokens, monkeypatch):
    assert asked_processes() is None
    trainer = stock(tmp_path, hard(tokens["train"]))
    monkeypatch.setenv("WORLD_SIZE", "2")
    (finding,) = examine_trainer(trainer)
    assert (finding.name, finding.where) == ("fewer_processes", "the environment variable WORLD_SIZE")


TWO_PROCESSES = """
import json, os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_doctor import Resampling, distributions, stock
from hf_softlabel import examine_trainer, load_model, tokenize_votes
from hf_softlabel.data.synthetic import TONES, load_synthetic

data = load_synthetic("text", size=60)
tokens = tokenize_votes(data, load_model("synthetic-bert", TONES, task="text")[1]).add_column("p", distributions(data))
report = []
for how in ("epoch", "constant"):
    trainer = stock(Path("."), Resampling(tokens, how))
    report.append([trainer.args.world_size, *(finding.name for finding in examine_trainer(trainer))])
if os.environ["RANK"] == "0":
    print(json.dumps(report))
"""


@pytest.mark.slow
def test_an_epoch_that_a_data_set_is_not_told_on_two_processes(tmp_path):
    (tmp_path / "script.py").write_text(TWO_PROCESSES.format(tests=str(ROOT / "tests")))
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "script.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(start, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert json.loads(done.stdout.splitlines()[-1]) == [[2, "epoch_not_told"], [2]], done.stderr
