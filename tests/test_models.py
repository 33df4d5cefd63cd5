"""Loading models: heads for the classes of the data, seeds, and messages for what cannot be loaded."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from hf_softlabel.data.errors import VotesError
from hf_softlabel.models import CIFAR_MEAN, build_resnet, image_processor, load_model
from hf_softlabel.resnet import CifarResNetForImageClassification

NLI = ["entailment", "neutral", "contradiction"]


def bert(names: list[str], seed: int = 0) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        id2label=dict(enumerate(names)),
        label2id={name: i for i, name in enumerate(names)},
    )
    model = BertForSequenceClassification(config)
    torch.nn.init.normal_(model.classifier.bias)
    return model.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT with MNLI's order of the classes, and its tokenizer."""
    path = tmp_path_factory.mktemp("bert")
    words = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(path)
    bert(NLI[::-1]).save_pretrained(path)
    return path


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(torch.equal(x, b.state_dict()[key]) for key, x in a.state_dict().items())


def test_new_head_depends_on_the_seed_alone(folder):
    names = ["no", "maybe", "yes", "surely"]
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first, tokenizer = load_model(folder, names, task="text", seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(5)
    second, _ = load_model(folder, names, task="text", seed=1)
    third, _ = load_model(folder, names, task="text", seed=2)
    assert tokenizer("a b")["input_ids"] == [2, 3]
    assert isinstance(first, BertForSequenceClassification)
    assert first.config.id2label == dict(enumerate(names)) and first.config.label2id["surely"] == 3
    assert first.classifier.weight.shape == (4, 16)
    assert same(first, second) and same(first.bert, third.bert) and same(first.bert, bert(NLI[::-1]).bert)
    assert not torch.equal(first.classifier.weight, third.classifier.weight)


def test_a_checkpoint_for_several_labels_at_once_is_made_one_for_classes(folder, tmp_path):
    config = json.loads((Path(folder) / "config.json").read_text())
    shutil.copytree(folder, tmp_path / "many")
    (tmp_path / "many" / "config.json").write_text(
        json.dumps({**config, "problem_type": "multi_label_classification"})
    )
    model, _ = load_model(str(tmp_path / "many"), ["no", "yes"], task="text")
    assert model.config.problem_type is None


def test_head_with_the_same_classes_is_kept_and_put_in_order(folder, caplog):
    """An MNLI checkpoint says contradiction first; its head must not be taken for ours as it stands."""
    words = {"input_ids": torch.tensor([[2, 3, 2]])}
    logits = bert(NLI[::-1])(**words).logits
    straight, _ = load_model(folder, NLI[::-1], task="text")
    assert torch.equal(straight(**words).logits, logits) and not caplog.records
    with caplog.at_level(logging.WARNING):
        turned, _ = load_model(folder, [name.capitalize() for name in NLI], task="text")
    assert "order of the votes" in caplog.text
    assert torch.allclose(turned(**words).logits, logits[:, [2, 1, 0]])
    assert turned.config.id2label[0] == "Entailment"


def test_from_scratch_takes_only_the_architecture(folder):
    first, _ = load_model(folder, NLI, task="text", from_scratch=True, seed=4)
    second, _ = load_model(folder, NLI, task="text", from_scratch=True, seed=4)
    loaded, _ = load_model(folder, NLI, task="text")
    assert same(first, second)
    assert first.config.hidden_size == 16
    key = "bert.encoder.layer.0.output.dense.weight"
    assert not torch.equal(first.state_dict()[key], loaded.state_dict()[key])


def test_choice_model_has_a_score_for_each_choice(folder):
    model, _ = load_model(folder, ["hyp1", "hyp2"], task="choice", seed=1)
    again, _ = load_model(folder, ["hyp1", "hyp2"], task="choice", seed=1)
    assert isinstance(model, BertForMultipleChoice) and same(model, again)
    assert model(torch.randint(0, 4, (3, 2, 5))).logits.shape == (3, 2)
    assert model.config.id2label == {0: "hyp1", 1: "hyp2"}


def test_our_resnets_by_name_and_by_folder(tmp_path):
    model, processor = load_model("resnet34", ["cat", "dog"], task="image", width=0.125, seed=3)
    assert isinstance(model, CifarResNetForImageClassification)
    assert (model.config.depth, model.config.width, model.config.id2label) == (34, 0.125, {0: "cat", 1: "dog"})
    assert same(model, build_resnet(["cat", "dog"], 34, 0.125, seed=3))
    assert tuple(processor.image_mean) == CIFAR_MEAN and dict(processor.size) == {"height": 32, "width": 32}
    model.save_pretrained(tmp_path)
    image_processor(48, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)).save_pretrained(tmp_path)
    again, processor = load_model(tmp_path, ["cat", "dog"], task="image")
    assert same(model, again)
    assert dict(processor.size) == {"height": 48, "width": 48} and tuple(processor.image_std) == (0.4, 0.5, 0.6)


def test_what_cannot_be_loaded_is_explained(folder, tmp_path):
    with pytest.raises(VotesError, match=r"Cannot load '\./no/such/folder' as a text classifier.*What to do: give a"):
        load_model("./no/such/folder", NLI, task="text")
    with pytest.raises(VotesError, match=r"an image classifier .*or one of resnet18, resnet34"):
        load_model(folder, NLI, task="image")
    with pytest.raises(VotesError, match=r"at revision v1"):
        load_model(tmp_path / "none", NLI, task="choice", revision="v1")
    with pytest.raises(VotesError, match="Unknown task 'audio'"):
        load_model(folder, NLI, task="audio")
    with pytest.raises(VotesError, match=r"width=0\.5 is for resnet18 and resnet34 only"):
        load_model(folder, NLI, task="text", width=0.5)
    with pytest.raises(VotesError, match="must differ"):
        load_model(folder, ["a", "a"], task="text")
    with pytest.raises(VotesError, match="multiple of 1/32"):
        load_model("resnet18", NLI, task="image", width=0.3)


def test_errors_have_no_chain(folder):
    """What went wrong is in the message; a chain of tracebacks from inside transformers would bury it."""
    with pytest.raises(VotesError) as caught:
        load_model("./no/such/folder", NLI, task="text")
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
