"""Diagnostics while a model trains: what is logged and when, and that the training does not notice."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from trainers import text_trainer

from hf_softlabel import VotesError
from hf_softlabel.callbacks.diagnostics import HessianCallback, OODCallback, UncertaintyCallback, undisturbed
from hf_softlabel.callbacks.recipe import load_ood_sets
from hf_softlabel.cli import main
from hf_softlabel.data.synthetic import load_synthetic
from hf_softlabel.data.votes import dense_votes
from hf_softlabel.diagnostics import hessian_summary
from hf_softlabel.diagnostics.batches import TrainerBatches, high_disagreement
from hf_softlabel.diagnostics.ood import DETECTORS, OODSettings
from hf_softlabel.diagnostics.ood_data import load_ood_set, parse_ood_set
from hf_softlabel.metrics import entropy, score_votes

RECIPES = Path(__file__).parents[1] / "recipes" / "synthetic"


@pytest.fixture(scope="module")
def news(tmp_path_factory) -> str:
    """Texts of another domain, in a file."""
    path = tmp_path_factory.mktemp("ood") / "news.csv"
    lines = [f"the council of {town} votes on taxes in {month}" for town in ("rome", "oslo") for month in "abcdefghij"]
    path.write_text("\n".join(["text,year", *(f"{line},1999" for line in lines)]))
    return str(path)


def everything(trainer, news: str, every: int) -> list:
    outside = load_ood_sets(trainer, [f"news={news}"], None)
    return [
        UncertaintyCallback(trainer, every),
        HessianCallback(trainer, every, rtol=0.3, max_hvps=40),
        OODCallback(trainer, outside, every, OODSettings(knn_neighbours=3)),
    ]


@pytest.mark.parametrize("delivery", ["sls", "mixup"])
def test_the_training_does_not_notice_the_callbacks(tmp_path, texts, news, delivery):
    ends = []
    for every in (None, 1):
        trainer = text_trainer(
            tmp_path / str(every), texts, delivery=delivery, logging_strategy="steps", logging_steps=1
        )
        # Dropout draws from the global generator, which the callbacks must leave as it was.
        trainer.model.config.hidden_dropout_prob = 0.1
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.1
        callbacks = [] if every is None else everything(trainer, news, every)
        for callback in callbacks:
            trainer.add_callback(callback)
        torch.manual_seed(0)
        trainer.train()
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        ends.append((losses, torch.cat([p.detach().flatten() for p in trainer.model.parameters()])))
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in trainer.model.parameters())
    assert ends[0][0] == ends[1][0] and len(ends[0][0]) == 12
    assert torch.equal(ends[0][1], ends[1][1])


def test_random_states_and_modes_are_as_before(tmp_path, texts, news):
    trainer = text_trainer(tmp_path, texts)
    trainer.model.train()
    trainer.model.bert.eval()  # a module that was frozen on purpose
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    modes = [module.training for module in trainer.model.modules()]
    with undisturbed():
        for callback in everything(trainer, news, 0):
            callback.measure()
        random.random(), np.random.rand(), torch.rand(1)
    assert random.getstate() == states[0] and np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert [module.training for module in trainer.model.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in trainer.model.parameters())


def test_numbers_are_those_of_the_functions(tmp_path, texts, news):
    trainer = text_trainer(tmp_path, texts)
    uncertainty, hessian, ood = (callback.measure() for callback in everything(trainer, news, 0))
    prediction = trainer.predict(trainer.eval_dataset)
    votes = dense_votes(texts["eval"])
    scores = score_votes(prediction.predictions, prediction.label_ids[0], from_logits=True)
    for name in ("soft_nll", "kl", "js_distance"):
        assert uncertainty[name] == pytest.approx(scores[name], rel=1e-5)
    assert uncertainty["human_entropy"] == pytest.approx(entropy(votes).mean())
    chosen = high_disagreement(votes)
    assert uncertainty["high_disagreement"]["examples"] == len(chosen.rows)
    assert uncertainty["high_disagreement"]["human_entropy"] == pytest.approx(entropy(votes[chosen.rows]).mean())
    batches = TrainerBatches(trainer, trainer.eval_dataset, batch_size=5)
    exact = hessian_summary(trainer.model, batches, rtol=0.02, max_hvps=400)
    assert hessian["examples"] == 12 and hessian["high_disagreement"]["examples"] == len(chosen.rows)
    slack = hessian["lambda_max_error"] + exact.lambda_max_error
    assert abs(hessian["lambda_max"] - exact.lambda_max) <= slack + 1e-3 * abs(exact.lambda_max)
    assert ood["news"].keys() == {*DETECTORS, "settings"} and 0 <= ood["news"]["knn"]["auroc"] <= 1
    assert ood["news"]["settings"]["knn_neighbours"] == 3 and ood["news"]["settings"]["train_examples"] == 48


def test_gradients_are_taken_in_batches_of_the_training_and_the_numbers_do_not_depend_on_them(tmp_path, texts, news):
    found = []
    for size in (2, 5):
        trainer = text_trainer(tmp_path, texts, per_device_train_batch_size=size)
        sizes = {True: set(), False: set()}  # of the batches with gradients, and of those without
        trainer.model.classifier.register_forward_hook(
            lambda _, __, logits, sizes=sizes: sizes[torch.is_grad_enabled()].add(len(logits))
        )
        uncertainty, hessian, ood = everything(trainer, news, 0)
        ood.measure()
        found.append((hessian.measure(), ood.scores["news"]["odin"]))
        assert max(sizes[True]) == size
        sizes[False].clear()
        uncertainty.measure()
        assert max(sizes[False]) == min(4 * size, 12)  # an evaluation's, if there are as many
    (hessian, odin), (other_hessian, other_odin) = found
    for one, other in ((hessian, other_hessian), (hessian["high_disagreement"], other_hessian["high_disagreement"])):
        assert one["examples"] == other["examples"] and one["hvps"] == other["hvps"]
        for name in ("lambda_max", "trace"):
            assert one[name] == pytest.approx(other[name], rel=1e-5)
    np.testing.assert_allclose(odin, other_odin, rtol=1e-5)


def test_they_run_every_so_many_epochs_and_at_the_end_on_the_best_checkpoint(tmp_path, texts):
    trainer = text_trainer(
        tmp_path,
        texts,
        num_train_epochs=4,
        learning_rate=0.05,  # so high that the last epoch is not the best
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
    )
    trainer.add_callback(UncertaintyCallback(trainer, every=2))
    trainer.train()
    logged = [line for line in trainer.state.log_history if "eval_uncertainty/kl" in line]
    assert [line["epoch"] for line in logged] == [2.0, 4.0, 4.0]
    evaluations = [line["eval_soft_nll"] for line in trainer.state.log_history if "eval_soft_nll" in line]
    assert logged[0]["eval_uncertainty/soft_nll"] == pytest.approx(evaluations[1], rel=1e-5)
    assert logged[1]["eval_uncertainty/soft_nll"] == pytest.approx(evaluations[3], rel=1e-5)
    assert logged[2]["eval_uncertainty/soft_nll"] == pytest.approx(min(evaluations), rel=1e-5)
    assert not any("share" in key or "threshold" in key for key in logged[0])


def test_a_recipe_switches_them_on(tmp_path, news, capsys):
    out = tmp_path / "run"
    options = ["--num_train_epochs", "1", "--train_size", "80", "--disable_tqdm", "true", "--hessian_examples", "40"]
    options += [
        "--diagnostics",
        "uncertainty",
        "hessian",
        "ood",
        "--hessian_rtol",
        "0.3",
        "--ood_sets",
        f"news={news}",
    ]
    assert main(["train", str(RECIPES / "text.yaml"), "--output_dir", str(out), *options]) == 0
    found = json.loads((out / "diagnostics.json").read_text())
    assert found.keys() == {"uncertainty", "hessian", "ood"}
    assert found["hessian"]["examples"] == 40 and found["hessian"]["rtol"] == 0.3
    assert isinstance(found["hessian"]["lambda_max_converged"], bool)
    shown = capsys.readouterr().out
    assert "ood/news/energy           auroc " in shown and "hessian/high_disagreement" in shown


def test_what_is_wrong_is_said_before_training(tmp_path, capsys, news):
    recipe = str(RECIPES / "text.yaml")

    def error(*options: str) -> str:
        out = tmp_path / "never"
        assert main(["train", recipe, "--output_dir", str(out), "--disable_tqdm", "true", *options]) == 2
        assert not out.exists() or not any(out.iterdir())  # Trainer makes the folder
        return capsys.readouterr().err.splitlines()[-1]

    assert "diagnostics are uncertainty, hessian, ood; 'hesian' is none of them" in error("--diagnostics", "hesian")
    assert "OOD detection needs ood_sets" in error("--diagnostics", "ood")
    assert "written NAME=SOURCE" in error("--diagnostics", "ood", "--ood_sets", news)
    assert "has the splits train" in error("--diagnostics", "ood", "--ood_sets", f"news={news}#test")
    assert "There is no file or folder" in error("--diagnostics", "ood", "--ood_sets", "news=missing.csv")
    for name in ("in", "settings", "a/b"):
        assert f"cannot be named '{name}'" in error("--diagnostics", "ood", "--ood_sets", f"{name}={news}")
    twice = ["--ood_sets", f"news={news}", f"news={news}"]
    assert "Two OOD sets are named 'news'" in error("--diagnostics", "ood", *twice)
    assert "must be at least 1, not 0" in error(
        "--diagnostics", "ood", "--ood_examples", "0", "--ood_sets", f"news={news}"
    )
    assert "between 0 and 1, not 5.0" in error("--diagnostics", "hessian", "--hessian_rtol", "5")
    assert "this one is a stream" in error("--diagnostics", "uncertainty", "--streaming", "--max_steps", "3")


def test_texts_are_no_ood_set_of_an_image_model(tmp_path, capsys, news):
    options = ["--diagnostics", "ood", "--ood_sets", f"news={news}", "--disable_tqdm", "true"]
    assert main(["train", str(RECIPES / "sls.yaml"), "--output_dir", str(tmp_path / "run"), *options]) == 2
    assert not any((tmp_path / "run").glob("*"))


def test_the_last_measurement_is_shown_by_the_progress_bar_before_it_closes(tmp_path, news, capsys):
    args = ["--num_train_epochs", "1", "--train_size", "40", "--diagnostics", "uncertainty", "ood"]
    out = ["--output_dir", str(tmp_path / "run"), "--ood_sets", f"news={news}"]
    assert main(["train", str(RECIPES / "text.yaml"), *out, *args]) == 0
    found = json.loads((tmp_path / "run" / "diagnostics.json").read_text())
    # There are fewer training examples than neighbours by default.
    assert found["ood"]["news"]["settings"]["knn_neighbours"] == 40
    assert "ood/news/knn" in capsys.readouterr().out


def test_callbacks_refuse_at_once_what_they_could_not_measure_at_the_end(tmp_path, texts):
    trainer = text_trainer(tmp_path, texts)
    for options in ({"examples": 0}, {"rtol": 5.0}, {"every": -1}):
        with pytest.raises(VotesError, match=r"at least 1, not 0|between 0 and 1, not 5\.0|not -1"):
            HessianCallback(trainer, **options)
    with pytest.raises(VotesError, match="at most 1, not 2"):
        UncertaintyCallback(trainer, slice_share=2)
    several = text_trainer(tmp_path, {"train": texts["train"], "eval": {"a": texts["eval"]}})
    with pytest.raises(VotesError, match="one eval data set in memory, and this one is several data sets"):
        UncertaintyCallback(several)
    trainer.train_dataset = None
    with pytest.raises(VotesError, match="one train data set in memory, and this one is missing"):
        OODCallback(trainer, {})
    trainer.train_dataset = texts["train"].to_iterable_dataset()
    with pytest.raises(VotesError, match="this one is a stream"):
        OODCallback(trainer, {})


def test_ood_sets_by_name_file_and_folder(tmp_path, news):
    assert parse_ood_set("svhn=a/b:digits#extra") == ("svhn", "a/b", "digits", "extra")
    assert parse_ood_set("x=popquorn:politeness") == ("x", "popquorn", "politeness", None)
    assert load_ood_set(news).column_names == ["text", "year"]
    some = load_ood_set(news, examples=5, seed=3)
    assert len(some) == 5 and some["text"][:] == load_ood_set(news, examples=5, seed=3)["text"][:]
    load_synthetic("vision", size=12).save_to_disk(tmp_path / "images")
    assert "image" in load_ood_set(str(tmp_path / "images"), split="train").column_names
    Dataset.from_dict({"text": ["a"]}).to_parquet(tmp_path / "one.parquet")
    assert len(load_ood_set(str(tmp_path / "one.parquet"))) == 1


def test_the_slice_has_the_largest_entropies_and_all_that_tie():
    votes = np.array([[5, 0], [4, 1], [1, 4], [3, 2], [2, 3], [5, 0], [5, 0], [5, 0], [5, 0], [5, 0]])
    assert high_disagreement(votes, 0.1).rows == [3, 4]
    assert high_disagreement(votes, 0.4).rows == [1, 2, 3, 4]
    assert high_disagreement(votes, 1.0).rows == list(range(10))
    with pytest.raises(VotesError, match="above 0 and at most 1"):
        high_disagreement(votes, 0.0)


@pytest.mark.parametrize("examples", [0, 12])
def test_batches_are_the_trainers_own(tmp_path, texts, images, examples):
    trainer = text_trainer(tmp_path, texts)
    rows = list(range(examples))
    batches = TrainerBatches(trainer, trainer.eval_dataset, rows, batch_size=5)
    assert len(batches) == -(-examples // 5) == len(list(batches)) and batches.examples == examples
    if examples:
        p = torch.cat([p for _, p in batches])
        votes = dense_votes(texts["eval"])
        np.testing.assert_allclose(p, votes / votes.sum(1, keepdims=True), rtol=1e-6)
        prediction = trainer.predict(trainer.eval_dataset)
        trainer.model.eval()
        with torch.no_grad():
            logits = torch.cat([trainer.model(**inputs).logits for inputs, _ in batches])
        np.testing.assert_allclose(logits, prediction.predictions, atol=1e-5)
