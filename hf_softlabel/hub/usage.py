"""The part of a model card that says how to use the model, in a few lines of code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..scaling import SCALING_NAME

if TYPE_CHECKING:
    from .card import ModelFacts

PIPELINES = {
    "text": "text-classification",
    "pair": "text-classification",
    "choice": "multiple-choice",
    "image": "image-classification",
}


def usage(facts: ModelFacts, base: str | None) -> str:
    """Code to run, and what to know about it. `base` is the Hub id of an adapter's model."""
    repo = facts.repo_id
    if facts.adapter:
        return _adapter_usage(facts, base)
    if facts.task == "choice":
        lines = [
            "from transformers import AutoModelForMultipleChoice, AutoTokenizer",
            "",
            f'tokenizer = AutoTokenizer.from_pretrained("{repo}")',
            f'model = AutoModelForMultipleChoice.from_pretrained("{repo}")',
            'first, last, choices = "What was seen first.", "What was seen last.", ["One choice.", "The other."]',
            'inputs = tokenizer([first] * 2, [f"{choice} {last}" for choice in choices], padding=True, '
            'return_tensors="pt")',
            "print(model(**{key: value[None] for key, value in inputs.items()}).logits.softmax(-1))",
        ]
        return _python(lines)
    example = {
        "text": '"Any text."',
        "pair": '{"text": "A premise.", "text_pair": "A hypothesis."}',
        "image": '"photo.png"',
    }[facts.task]
    trust = ", trust_remote_code=True" if facts.code else ""
    lines = [
        "from transformers import pipeline",
        "",
        f'classify = pipeline("{PIPELINES[facts.task]}", model="{repo}", top_k=None{trust})',
        f"print(classify({example}))",
    ]
    text = _python(lines)
    if facts.code:
        text += (
            "\n\n`trust_remote_code=True` runs the model's code, `resnet.py`, and needs timm; with hf_softlabel "
            "installed, `import hf_softlabel.models` does without it."
        )
    if facts.scaling is not None:
        text += f"\n\n{_calibrated_usage(facts)}"
    return text


def _adapter_usage(facts: ModelFacts, base: str | None) -> str:
    # The head is the adapter's; that of the base may be for other classes.
    repo, head = facts.repo_id, f"num_labels={len(facts.names)}, ignore_mismatched_sizes=True"
    if facts.task in ("text", "pair"):
        texts = {"text": '"Any text."', "pair": '"A premise.", "A hypothesis."'}[facts.task]
        lines = [
            "from peft import AutoPeftModelForSequenceClassification",
            "from transformers import AutoTokenizer",
            "",
            f'inputs = AutoTokenizer.from_pretrained("{repo}")({texts}, return_tensors="pt")',
            f'model = AutoPeftModelForSequenceClassification.from_pretrained("{repo}", {head})',
            "print(model(**inputs).logits.softmax(-1))",
        ]
        return _python(lines)
    # PEFT has no Auto class for these.
    auto = {"choice": "AutoModelForMultipleChoice", "image": "AutoModelForImageClassification"}[facts.task]
    more = f", {head}" if facts.task == "image" else ""
    lines = [
        "from peft import PeftModel",
        f"from transformers import {auto}",
        "",
        f'base = {auto}.from_pretrained("{base}"{more})',
        f'model = PeftModel.from_pretrained(base, "{repo}")',
    ]
    return _python(lines)


def _calibrated_usage(facts: ModelFacts) -> str:
    kind = "a temperature" if facts.scaling.bias is None else "a scale and a bias for each class"
    inputs = {
        "text": 'classify.tokenizer("Any text.", return_tensors="pt")',
        "pair": 'classify.tokenizer("A premise.", "A hypothesis.", return_tensors="pt")',
        "image": 'classify.image_processor(Image.open("photo.png").convert("RGB"), return_tensors="pt")',
    }[facts.task]
    lines = ["from PIL import Image"] if facts.task == "image" else []
    lines += [
        "from hf_softlabel.scaling import Scaling",
        "",
        f"logits = classify.model(**{inputs}).logits",
        f'print(Scaling.load("{facts.repo_id}")(logits).softmax(-1))',
    ]
    return (
        f"These are the probabilities before calibration. `{SCALING_NAME}` has {kind}, fitted to the votes of "
        f"{facts.scaling.examples:,} further examples:\n\n{_python(lines)}"
    )


def _python(lines: list[str]) -> str:
    return "\n".join(["```python", *lines, "```"])
