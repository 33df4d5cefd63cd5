"""Models that are pushed to a Hub over HTTP, and loaded again in new processes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hub_calls import TOKEN, assert_refused_token_is_not_shown, command, contents, run_code
from huggingface_hub import HfApi, ModelCard
from loopback.hub_writer import Hub, metadata_flaws
from PIL import Image
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

from hf_softlabel import load_model
from hf_softlabel.cli import main
from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.synthetic import load_synthetic
from hf_softlabel.hub.card import model_card
from hf_softlabel.hub.push import model_files, push_run, trouble

ROOT = Path(__file__).parents[1]
CLASSES = ["against", "unsure", "for"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hub_push")


@pytest.fixture(scope="module")
def text_run(folder) -> Path:
    """A run on a table and from a checkpoint that lie at absolute paths; the checkpoint was trained with BCE."""
    model, tokenizer = load_model("synthetic-bert", CLASSES, task="text")
    model.config.problem_type = "multi_label_classification"
    model.save_pretrained(folder / "checkpoint")
    tokenizer.save_pretrained(folder / "checkpoint")
    data = load_synthetic("text", size=80)
    lines = [f"{row['text']},{','.join(map(str, row['votes']))}" for row in data]
    (folder / "votes.csv").write_text("\n".join([f"text,{','.join(CLASSES)}", *lines]) + "\n")
    recipe = {
        "dataset": "table",
        "sources": str(folder / "votes.csv"),
        "label_columns": CLASSES,
        "text_columns": ["text"],
        "delivery": "soft",
        "model": str(folder / "checkpoint"),
        "output_dir": str(folder / "text"),
        **TRAINING,
    }
    return trained(folder, recipe)


@pytest.fixture(scope="module")
def image_run(folder) -> Path:
    recipe = yaml.safe_load((ROOT / "recipes/synthetic/sls.yaml").read_text())
    size = {"calibration_fraction": 0.5, "num_train_epochs": 4, "output_dir": str(folder / "image")}
    return trained(folder, recipe | TRAINING | size)


TRAINING = {
    "num_train_epochs": 1,
    "per_device_train_batch_size": 32,
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "report_to": "none",
    "disable_tqdm": True,
    "seed": 0,
}


def trained(folder: Path, recipe: dict) -> Path:
    out = Path(recipe["output_dir"])
    path = folder / f"{out.name}.yaml"
    path.write_text(yaml.safe_dump(recipe))
    assert main(["train", str(path)]) == 0
    return out


RELOAD = """
import json, re, sys
import numpy as np, torch
if "without" in sys.argv:
    sys.modules["hf_softlabel"] = None  # as if it were not installed
elif "image" in sys.argv:
    import hf_softlabel.models
import transformers
from huggingface_hub import hf_hub_download

repo, auto = sys.argv[1:3]
trust = {"trust_remote_code": True} if "without" in sys.argv else {}
model = getattr(transformers, auto).from_pretrained(repo, **trust).eval()
inputs = {key: torch.from_numpy(value) for key, value in np.load("inputs.npz").items()}
with torch.no_grad():
    np.save(sys.argv[3], model(**inputs).logits.numpy())
card = open(hf_hub_download(repo, "README.md")).read()
blocks = re.findall(r"```python\\n(.*?)```", card, re.S)
names = {}
for block in blocks[: 1 if "without" in sys.argv else None]:
    assert len([line for line in block.splitlines() if line]) <= 5
    exec(block, names)
"""


def reload(hub: Hub, folder: Path, repo: str, auto: str, *more: str) -> tuple[np.ndarray, str]:
    """Logits for inputs.npz, and what the card's own code prints, in a new process."""
    out = folder / "logits.npy"
    done = run_code(hub, folder / "home", RELOAD, repo, auto, str(out), *more, folder=folder)
    return np.load(out), done.stdout


def local_logits(auto, run: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    model = auto.from_pretrained(run / "model").eval()
    with torch.no_grad():
        return model(**{key: torch.from_numpy(value) for key, value in inputs.items()}).logits.numpy()


def test_a_text_model_is_pushed_in_one_commit_and_loads_anywhere(hub, folder, text_run, tmp_path):
    before = contents(text_run)
    done = command(hub, tmp_path / "home", "push", str(text_run), "--repo", "someone/texts")
    assert done.returncode == 0, done.stderr
    assert f"pushed to {hub.url}/someone/texts" in done.stdout
    assert contents(text_run) == before
    assert hub.repositories["models/someone/texts"].private
    assert len(hub.commits("someone/texts")) == 1
    files = hub.files("someone/texts")
    model = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert files.keys() == model | {"README.md", "metrics.json", "reliability.png"}
    for name, data in files.items():
        for private in (str(folder), str(Path.home()) + "/", TOKEN, "votes.csv"):
            assert private.encode() not in data, f"{private} in {name}"
    config = json.loads(files["config.json"])
    assert config.get("problem_type") in (None, "single_label_classification")
    assert config["id2label"] == {"0": "against", "1": "unsure", "2": "for"}
    card = files["README.md"].decode()
    assert metadata_flaws(card) == [] and "fine-tuned from a checkpoint that is not on the Hub" in card

    inputs = {"input_ids": np.array([[2, 5, 9, 11, 3], [2, 7, 7, 3, 0]]), "attention_mask": np.ones((2, 5), int)}
    np.savez(tmp_path / "inputs.npz", **inputs)
    logits, printed = reload(hub, tmp_path, "someone/texts", "AutoModelForSequenceClassification")
    assert np.array_equal(logits, local_logits(AutoModelForSequenceClassification, text_run, inputs))
    # A pipeline's softmax: with the checkpoint's problem_type they would be three sigmoids.
    scores = {entry["label"]: entry["score"] for entry in eval(printed)[0]}
    assert scores.keys() == set(CLASSES) and sum(scores.values()) == pytest.approx(1, abs=1e-5)


def test_a_resnet_is_pushed_with_its_code_and_its_calibration(hub, image_run, tmp_path):
    done = command(hub, tmp_path / "home", "push", str(image_run), "--repo", "someone/textures", "--public")
    assert done.returncode == 0, done.stderr
    assert not hub.repositories["models/someone/textures"].private
    files = hub.files("someone/textures")
    assert {"resnet.py", "scaling.json", "vote_coverage.json", "preprocessor_config.json"} <= files.keys()
    assert "training_args.bin" not in files

    inputs = {"pixel_values": np.random.default_rng(0).normal(size=(3, 3, 16, 16)).astype(np.float32)}
    np.savez(tmp_path / "inputs.npz", **inputs)
    Image.effect_noise((16, 16), 60).convert("RGB").save(tmp_path / "photo.png")
    import hf_softlabel.models  # noqa: F401, makes our ResNets known to the Auto classes

    expected = local_logits(AutoModelForImageClassification, image_run, inputs)
    with_package, printed = reload(hub, tmp_path, "someone/textures", "AutoModelForImageClassification", "image")
    without, _ = reload(hub, tmp_path, "someone/textures", "AutoModelForImageClassification", "without")
    assert np.array_equal(with_package, expected) and np.array_equal(without, expected)
    plain, calibrated = printed.splitlines()
    probabilities = {entry["label"]: entry["score"] for entry in eval(plain)}
    scale = json.loads(files["scaling.json"])["scale"]
    assert 0.2 < scale < 5 and abs(scale - 1) > 0.1  # else there would be nothing to see
    names = [name for _, name in sorted(json.loads(files["config.json"])["id2label"].items())]
    scaled = torch.tensor([probabilities[name] for name in names]).log().mul(scale).softmax(-1)
    found = [float(value) for value in re.findall(r"\d\.\d+", calibrated)]
    assert found == pytest.approx(scaled.tolist(), abs=1e-3)


def test_the_same_run_twice_is_one_commit_and_another_run_is_refused(here, text_run, image_run):
    for _ in range(2):
        push_run(text_run, "someone/model", token=TOKEN)
    assert len(here.commits("someone/model")) == 1
    # A card that was completed on the Hub stays.
    mine = here.files("someone/model")["README.md"] + b"\nWho voted: we did.\n"
    HfApi(token=TOKEN).upload_file(path_or_fileobj=mine, path_in_repo="README.md", repo_id="someone/model")
    push_run(text_run, "someone/model", token=TOKEN)
    assert here.files("someone/model")["README.md"] == mine
    with pytest.raises(VotesError, match=r"someone/model exists and holds another model.*--overwrite"):
        push_run(image_run, "someone/model", token=TOKEN)
    assert len(here.commits("someone/model")) == 2
    push_run(image_run, "someone/model", token=TOKEN, overwrite=True)
    # Nothing is left of the texts' tokenizer.
    assert "resnet.py" in here.files("someone/model") and "tokenizer.json" not in here.files("someone/model")


def test_configurations_are_pushed_without_paths_of_this_machine(tmp_path):
    inside = {"a": {"b": "/home/me/x", "c": 1}, "l": ["/home/me/y", "z"], "p": "/home/me", "q": "relative/x"}
    (tmp_path / "config.json").write_text(json.dumps(inside))
    found = json.loads(model_files(tmp_path)["config.json"])
    assert found == {"a": {"c": 1}, "l": ["z"], "q": "relative/x"}


def test_a_public_repository_is_not_pushed_to_unasked(here, text_run):
    push_run(text_run, "someone/seen", private=False, token=TOKEN)
    with pytest.raises(VotesError, match=r"someone/seen exists and is public.*--public"):
        push_run(text_run, "someone/seen", token=TOKEN)


def test_a_refused_token_is_said_without_showing_it(hub, text_run, tmp_path):
    before, wrong = contents(text_run), "hf_WrongSecret"
    words = ("push", str(text_run), "--repo", "someone/model", "--token", wrong)
    done = command(hub, tmp_path / "home", *words, token=None)
    assert_refused_token_is_not_shown(done, "someone/model", wrong)
    assert contents(text_run) == before and not hub.repositories


def test_no_token_and_somebody_elses_name(here, text_run):
    with pytest.raises(VotesError, match=r"does not let you write to other/model: .*namespace"):
        push_run(text_run, "other/model", token=TOKEN)
    with pytest.raises(VotesError, match=r"does not let you write to someone/model: .*hf auth login"):
        push_run(text_run, "someone/model")
    assert not here.repositories


@pytest.mark.parametrize("path", [pytest.param(r"/lfs/.*", marks=pytest.mark.slow), r"/api/models/.*/commit/main"])
def test_a_connection_cut_in_an_upload_leaves_all_as_it_was(here, text_run, path):
    """The client itself tries a large file again for 23 seconds; the commit it does not."""
    before = contents(text_run)
    here.cut = re.compile(path)
    with pytest.raises(
        VotesError,
        match=r"The push to someone/model broke off: .*`hf-softlabel push .* --repo someone/model` tries again",
    ):
        push_run(text_run, "someone/model", token=TOKEN)
    assert contents(text_run) == before
    assert here.commits("someone/model") == []
    here.cut = None
    push_run(text_run, "someone/model", token=TOKEN)
    assert len(here.commits("someone/model")) == 1
    assert here.files("someone/model")["model.safetensors"] == (text_run / "model/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("repo", "message"),
    [("model", "needs its owner too: owner/model"), ("a/b/c", "is no name of a repository"), ("a/-b", "is no name")],
)
def test_names_that_the_hub_would_not_have(text_run, repo, message):
    with pytest.raises(VotesError, match=message):
        push_run(text_run, repo)


def test_what_is_no_finished_run(text_run, tmp_path, capsys):
    run = shutil.copytree(text_run, tmp_path / "run")
    for missing, message in [
        ("model/config.json", f"The run {run} has no model/config.json any more"),
        ("DONE", f"The run {run} is not finished: it has no DONE. Start its recipe again"),
        ("config.yaml", f"{run} is not a run of `hf-softlabel train`: it has no config.yaml"),
    ]:
        (run / missing).unlink()
        assert main(["push", str(run), "--repo", "someone/model"]) == 2
        assert message in capsys.readouterr().err
    for nowhere in (tmp_path / "nowhere", text_run / "config.yaml"):
        assert main(["push", str(nowhere), "--repo", "someone/model"]) == 2
        assert f"There is no directory {nowhere}: name that of a finished run" in capsys.readouterr().err


def test_a_run_that_was_moved_has_the_same_card(text_run, tmp_path, monkeypatch):
    """In another folder `owner/name` of its recipe may be a folder, or be none any more."""
    run = shutil.copytree(text_run, tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text()) | {"model": "owner/model", "sources": "owner/votes"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    metrics = json.loads((run / "metrics.json").read_text())
    # As they were loaded, from files.
    assert (metrics["model_hub_id"], metrics["dataset_hub_id"], metrics["text_columns"]) == (None, None, ["text"])
    card = model_card(run, "someone/model")
    assert "owner/" not in card and "fine-tuned from a checkpoint that is not on the Hub" in card
    on_hub = {"model_hub_id": "owner/model", "dataset_hub_id": "owner/votes", "text_columns": ["text", "text_pair"]}
    (run / "metrics.json").write_text(json.dumps(metrics | on_hub))
    (tmp_path / "owner" / "model").mkdir(parents=True)
    (tmp_path / "owner" / "votes").mkdir()
    monkeypatch.chdir(tmp_path)
    card = model_card(run, "someone/model")
    assert "base_model: owner/model\n" in card and "datasets:\n- owner/votes\n" in card
    assert '"text_pair": "A hypothesis."' in card


def test_a_token_that_was_stored_by_a_login_is_not_told(here, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    (tmp_path / "token").write_text("hf_StoredSecret")
    said = trouble("someone/model", OSError("Bearer hf_StoredSecret, or hf_Given, was refused"), "hf_Given")
    assert said == "The push to someone/model broke off: Bearer <token>, or <token>, was refused."


def test_the_cards_metadata_is_read_by_the_hubs_client(here, text_run):
    push_run(text_run, "someone/model", token=TOKEN)
    data = ModelCard(here.files("someone/model")["README.md"].decode()).data
    metrics = json.loads((text_run / "metrics.json").read_text())
    assert data.pipeline_tag == "text-classification" and data.library_name == "transformers"
    found = {result.metric_type: result.metric_value for result in data.eval_results}
    assert found == {name: pytest.approx(metrics[name], abs=2e-6) for name in found}
    assert {"soft_nll", "kl", "accuracy", "ece_equal_mass_soft"} <= found.keys()
