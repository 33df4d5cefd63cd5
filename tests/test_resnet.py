"""The CIFAR ResNet: its shape, timm's initialisation, and that a saved one is the same one anywhere."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification

from hf_softlabel.data.images import ImageTransform
from hf_softlabel.models import CIFAR_MEAN, CIFAR_STD, build_resnet, image_processor
from hf_softlabel.resnet import CifarResNetConfig, CifarResNetForImageClassification, cifar_resnet

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
ROOT = Path(__file__).resolve().parent.parent

# Loads a saved folder in a process of its own and prints the logits of images. argv: folder, images, package or "".
LOAD = """
import json, sys
folder, images, package = sys.argv[1:]
if package:
    sys.path.insert(0, package)
    import hf_softlabel.models
else:
    sys.modules["hf_softlabel"] = None  # an import of it now fails, installed or not
import numpy as np
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline
options = {} if package else {"trust_remote_code": True}
classify = pipeline("image-classification", model=folder, **options)
images = [Image.fromarray(image) for image in np.load(images)]
scores = [{x["label"]: x["score"] for x in row} for row in classify(images, function_to_apply="none", top_k=10)]
inputs = AutoImageProcessor.from_pretrained(folder)(images, return_tensors="pt")
model = AutoModelForImageClassification.from_pretrained(folder, **options).eval()
print(json.dumps({"scores": scores, "logits": model(**inputs).logits.tolist(), "module": type(model).__module__}))
"""


def trained(**kwargs) -> CifarResNetForImageClassification:
    """A network in which every part matters: fresh ones have zero residual branches and unit statistics."""
    model = build_resnet(NAMES, width=0.25, seed=7, **kwargs).eval()
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                tensor.uniform_(0.5, 1.5, generator=generator)
    return model


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """(3, 32, 32, 3) uint8 with smooth parts and edges, black and white included."""
    y, x = np.mgrid[0:32, 0:32]
    ramp = np.stack([y * 8, x * 8, (x + y) * 4], -1)
    disc = np.where(((y - 15) ** 2 + (x - 12) ** 2 < 90)[..., None], 255 - ramp, ramp // 3)
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3))
    return np.stack([ramp, disc, noise]).astype(np.uint8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, images) -> tuple[Path, CifarResNetForImageClassification]:
    folder = tmp_path_factory.mktemp("saved")
    model = trained()
    model.save_pretrained(folder)
    image_processor().save_pretrained(folder)
    np.save(folder / "images.npy", images)
    return folder, model


def parameters_by_hand(c: int, blocks: tuple[int, ...], classes: int) -> int:
    """Convolutions without bias, two numbers per normalised channel, a 1 x 1 shortcut where a stage begins."""
    total = 3 * 3 * 3 * c + 2 * c
    inputs = c
    for stage, number in enumerate(blocks):
        out = c * 2**stage
        for block in range(number):
            total += 9 * inputs * out + 9 * out * out + 4 * out
            if stage > 0 and block == 0:
                total += inputs * out + 2 * out
            inputs = out
    return total + inputs * classes + classes


def test_parameter_counts():
    count = {
        (depth, width): build_resnet(NAMES, depth, width, seed=0).num_parameters()
        for depth, width in [(18, 1.0), (18, 0.25), (34, 0.125)]
    }
    assert count[18, 1.0] == 11_173_962 == parameters_by_hand(64, (2, 2, 2, 2), 10)
    assert count[18, 0.25] == parameters_by_hand(16, (2, 2, 2, 2), 10) == 701_466
    assert count[34, 0.125] == parameters_by_hand(8, (3, 4, 6, 3), 10)


def test_stem_keeps_the_resolution():
    model = trained()
    pixels = torch.randn(2, 3, 32, 32)
    output = model(pixels, output_hidden_states=True)
    assert [tuple(h.shape[1:]) for h in output.hidden_states] == [
        (16, 32, 32),
        (16, 32, 32),
        (32, 16, 16),
        (64, 8, 8),
        (128, 4, 4),
    ]
    assert torch.equal(output.logits, model(pixels).logits)
    features = model.features(pixels)
    assert features.shape == (2, 128)
    assert torch.allclose(features, output.hidden_states[-1].mean((2, 3)))
    assert torch.equal(model.network.fc(features), output.logits)


def test_initialisation_is_timms_and_seeded():
    """transformers must not draw the weights again: its N(0, 0.02) would be another experiment."""
    config = CifarResNetConfig(width=0.5, num_labels=10)
    torch.manual_seed(5)
    bare = cifar_resnet(config).state_dict()
    torch.manual_seed(5)
    for model in (CifarResNetForImageClassification(config), build_resnet(NAMES, width=0.5, seed=5)):
        state = model.network.state_dict()
        assert state.keys() == bare.keys()
        assert all(torch.equal(state[key], bare[key]) for key in bare)
    for name, module in model.network.named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * math.prod(module.kernel_size)
            count = module.weight.numel()
            assert abs(module.weight.std().item() / math.sqrt(2 / fan_out) - 1) < 5 / math.sqrt(2 * count)
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == (0 if name.endswith("bn2") else 1)).all()
    limit = model.network.fc.in_features**-0.5
    assert 0.95 * limit < model.network.fc.weight.abs().max() <= limit
    assert model.network.fc.bias.abs().max() > 0


def test_other_seed_other_weights_and_global_generator_untouched():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    a, b = (build_resnet(NAMES, width=0.125, seed=seed) for seed in (0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(a.network.conv1.weight, b.network.conv1.weight)


def test_loss_of_hard_and_soft_labels():
    model = trained()
    pixels = torch.randn(4, 3, 32, 32)
    labels = torch.tensor([0, 3, 9, 3])
    logp = model(pixels).logits.log_softmax(-1)
    assert torch.isclose(model(pixels, labels=labels).loss, -logp[range(4), labels].mean())
    soft = torch.rand(4, 10).softmax(-1)
    assert torch.isclose(model(pixels, labels=soft).loss, -(soft * logp).sum(-1).mean())
    as_tuple = model(pixels, labels=labels, return_dict=False)
    assert len(as_tuple) == 2 and torch.equal(as_tuple[1].log_softmax(-1), logp)


@pytest.mark.parametrize(("depth", "width"), [(50, 1.0), (18, 0.3), (18, 0.0)])
def test_impossible_networks_are_refused(depth, width):
    with pytest.raises(ValueError, match="depth must be" if depth == 50 else "width must be"):
        CifarResNetConfig(depth=depth, width=width)


def test_round_trip_through_auto_classes(saved, images):
    folder, model = saved
    config = AutoConfig.from_pretrained(folder)
    assert type(config) is CifarResNetConfig
    assert (config.depth, config.width, config.image_size) == (18, 0.25, 32)
    assert config.id2label == dict(enumerate(NAMES)) and config.label2id["truck"] == 9
    again = AutoModelForImageClassification.from_pretrained(folder)
    assert type(again) is CifarResNetForImageClassification and not again.training
    assert all(torch.equal(a, again.state_dict()[key]) for key, a in model.state_dict().items())
    inputs = AutoImageProcessor.from_pretrained(folder)(list(images), return_tensors="pt")["pixel_values"]
    ours = ImageTransform(CIFAR_MEAN, CIFAR_STD)(torch.from_numpy(images).permute(0, 3, 1, 2))
    assert torch.allclose(inputs, ours, atol=1e-6)


def test_new_head_is_drawn_as_timm_does_and_the_rest_is_loaded(saved):
    folder, model = saved
    torch.manual_seed(0)
    other = CifarResNetForImageClassification.from_pretrained(
        folder, id2label={0: "a", 1: "b", 2: "c"}, label2id={"a": 0, "b": 1, "c": 2}, ignore_mismatched_sizes=True
    )
    state = other.state_dict()
    assert all(torch.equal(a, state[key]) for key, a in model.state_dict().items() if ".fc." not in key)
    limit = 128**-0.5
    assert state["network.fc.weight"].shape == (3, 128)
    assert 0.9 * limit < state["network.fc.weight"].abs().max() <= limit
    assert 0 < state["network.fc.bias"].abs().max() <= limit


@pytest.mark.parametrize("installed", [True, False])
def test_pipeline_in_a_new_process(saved, images, installed, tmp_path):
    """With the package, and without it from the code that was saved beside the weights."""
    folder, model = saved
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (CIFAR_MEAN, CIFAR_STD))
    with torch.no_grad():
        expected = model((pixels - mean) / std).logits
    arguments = [str(folder), str(folder / "images.npy"), str(ROOT) if installed else ""]
    result = subprocess.run(
        [sys.executable, "-I", "-c", LOAD, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "", "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["module"].startswith("hf_softlabel" if installed else "transformers_modules")
    assert torch.allclose(torch.tensor(found["logits"]), expected, atol=1e-5)
    scores = torch.tensor([[row[name] for name in NAMES] for row in found["scores"]])
    assert torch.allclose(scores, expected, atol=1e-5)
