"""Texts grouped by length are evaluated in the order of their lengths, with the same scores."""

from __future__ import annotations

import numpy as np
import pytest

from hf_softlabel import SoftLabelConfig, SoftLabelTrainer, load_model


@pytest.fixture
def make_trainer(texts, tmp_path):
    def make(**options) -> SoftLabelTrainer:
        model, tokenizer = load_model("synthetic-bert", ["negative", "neutral", "positive"], task="text")
        args = SoftLabelConfig(str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, **options)
        return SoftLabelTrainer(
            model=model,
            args=args,
            train_dataset=texts["train"],
            eval_dataset=texts["eval"],
            processing_class=tokenizer,
        )

    return make


GROUPED = {"train_sampling_strategy": "group_by_length", "per_device_eval_batch_size": 5}


def test_batches_hold_the_longest_texts_first_and_each_text_once(make_trainer, texts):
    batches = list(make_trainer(**GROUPED).get_eval_dataloader())
    lengths = [length for batch in batches for length in batch["attention_mask"].sum(1).tolist()]
    assert lengths == sorted(lengths, reverse=True) and len(set(lengths)) > 2
    assert [batch["input_ids"].shape[1] for batch in batches] == lengths[::5]
    ids = [i for batch in batches for i in batch["example_id"].tolist()]
    assert sorted(ids) == sorted(texts["eval"]["example_id"]) and ids != list(texts["eval"]["example_id"])


def test_scores_are_those_of_the_order_of_the_rows(make_trainer):
    grouped, plain = (make_trainer(**options).evaluate() for options in (GROUPED, {}))
    for name in ("eval_soft_nll", "eval_kl", "eval_accuracy", "eval_entropy_correlation"):
        assert grouped[name] == pytest.approx(plain[name], rel=1e-5)


def test_predictions_keep_the_order_of_the_rows_unless_grouping_is_asked_for(make_trainer, texts):
    prediction = make_trainer().predict(texts["eval"])
    np.testing.assert_array_equal(prediction.label_ids[1], texts["eval"]["example_id"])
