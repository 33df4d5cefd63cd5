"""Pushes of a training run: during it, at its end, from several processes, and what they must not give away."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import HfApi, snapshot_download
from loopback.hub_writer import environment, metadata_flaws, serve
from trainers import config, expected_digest, text_trainer

from hf_softlabel import VotesTrainer
from hf_softlabel.cli import main
from hf_softlabel.data.errors import VotesError

ROOT = Path(__file__).parents[1]
TOKEN = "hf_RecognisableSecret"
MODEL = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
CARD = {"README.md", "reliability.png"}


@pytest.fixture
def hub():
    with serve({TOKEN: "someone"}) as hub:
        yield hub


@pytest.fixture
def here(hub, monkeypatch, tmp_path):
    hub.point_clients_here(monkeypatch, tmp_path / "cache")
    return hub


def recipe(folder: Path, **more) -> Path:
    values = yaml.safe_load((ROOT / "recipes/synthetic/text.yaml").read_text())
    small = {"num_train_epochs": 2, "train_size": 96, "disable_tqdm": True, "output_dir": str(folder / "run")}
    hub = {"push_to_hub": True, "hub_model_id": "someone/texts"}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values | small | hub | more))
    return path


def holders(folder: Path, secret: str) -> list[str]:
    """The files below a folder in which a secret stands."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


@pytest.mark.slow
def test_two_processes_push_each_checkpoint_and_one_card(hub, tmp_path):
    path = recipe(tmp_path, hub_strategy="every_save", use_cpu=True)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
    launch += [str(ROOT / "recipes/accelerate_configs/cpu2.yaml"), "-m", "hf_softlabel", "train", str(path)]
    done = subprocess.run(
        [*launch, "--hub_token", TOKEN],
        env=environment(hub, tmp_path / "home", None),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    assert json.loads((run / "metrics.json").read_text())["world_size"] == 2
    commits = hub.commits("someone/texts")
    titles = ["Training in progress, epoch 1", "Training in progress, epoch 2", "End of training"]
    assert [commit.title for commit in commits] == titles
    assert [commit.files.keys() for commit in commits[:2]] == [MODEL, MODEL]
    assert commits[2].files.keys() == MODEL | CARD | {"metrics.json"}
    assert commits[2].files["model.safetensors"] == (run / "model/model.safetensors").read_bytes()
    assert metadata_flaws(commits[2].files["README.md"].decode()) == []
    assert hub.repositories["models/someone/texts"].private
    assert holders(tmp_path, TOKEN) == [] and TOKEN not in done.stdout + done.stderr
    for commit in commits:
        for name, data in commit.files.items():
            assert TOKEN.encode() not in data and str(tmp_path).encode() not in data, name


def test_a_cut_last_push_leaves_a_finished_run_and_says_how_to_push_it(here, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    here.cut = re.compile(r"/api/models/.*/commit/main")
    assert main(["train", str(recipe(tmp_path, hub_strategy="every_save"))]) == 2
    printed = capsys.readouterr().err
    assert (tmp_path / "run" / "DONE").exists() and here.commits("someone/texts") == []
    assert "error: The push to someone/texts broke off" in printed and TOKEN not in printed
    here.cut = None
    command = re.search(r"`hf-softlabel (push .*)` tries again", printed)[1]
    assert main(shlex.split(command)) == 0
    assert here.files("someone/texts").keys() == MODEL | CARD | {"metrics.json"}
    assert holders(tmp_path / "run", TOKEN) == []


def test_a_refused_token_stops_a_run_before_it_starts(here, tmp_path, capsys):
    assert main(["train", str(recipe(tmp_path)), "--hub_token", "hf_WrongSecret"]) == 2
    printed = capsys.readouterr()
    assert "The Hub does not let you write to someone/texts: Invalid user token" in printed.err
    assert "hf_WrongSecret" not in printed.err + printed.out and "Traceback" not in printed.err
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert holders(tmp_path, "hf_WrongSecret") == []


def test_a_trainer_pushes_its_model_with_a_card(here, tmp_path, texts):
    trainer = text_trainer(tmp_path, texts, hub_model_id="someone/mine", hub_token=TOKEN, delivery="sls")
    trainer.train()
    trainer.push_to_hub()
    assert len(here.commits("someone/mine")) == 1 and here.repositories["models/someone/mine"].private
    files = here.files("someone/mine")
    assert files.keys() == MODEL | CARD
    card = files["README.md"].decode()
    assert metadata_flaws(card) == [] and "| Delivery | **sls**, `resample_every: 1`: one label" in card
    soft_nll = trainer.evaluate()["eval_soft_nll"]
    assert f"| soft NLL ↓ | {soft_nll:.4f} |" in card and f"`{trainer.ledger.digest()}`" in card
    for name, data in files.items():
        assert TOKEN.encode() not in data and str(tmp_path).encode() not in data, name
    saved = torch.load(Path(trainer.args.output_dir) / "training_args.bin", weights_only=False)
    assert saved.hub_token is None and trainer.args.hub_token == TOKEN


def test_a_public_repository_is_refused_unless_asked_for(here, tmp_path, texts):
    options = {"hub_model_id": "someone/seen", "hub_token": TOKEN, "push_to_hub": True}
    text_trainer(tmp_path, texts, hub_private_repo=False, **options)
    assert not here.repositories["models/someone/seen"].private
    with pytest.raises(VotesError, match=r"someone/seen exists and is public: set hub_private_repo: false"):
        text_trainer(tmp_path, texts, **options)


def test_a_repository_with_files_of_others_is_refused_before_the_training(here, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    api = HfApi(token=TOKEN)
    api.create_repo("someone/texts", private=True)
    api.upload_file(path_or_fileobj=b"mine", path_in_repo="notes.txt", repo_id="someone/texts")
    path = recipe(tmp_path, num_train_epochs=1)
    assert main(["train", str(path)]) == 2
    assert "holds files that this run has not pushed: set another hub_model_id" in capsys.readouterr().err
    assert here.files("someone/texts") == {"notes.txt": b"mine"} and not (tmp_path / "run" / "DONE").exists()
    api.delete_file("notes.txt", "someone/texts")
    assert main(["train", str(path)]) == 0
    # Started anew it finds its own repository, and what somebody has put there meanwhile stays.
    api.upload_file(path_or_fileobj=b"mine", path_in_repo="notes.txt", repo_id="someone/texts")
    assert main(["train", str(path), "--overwrite"]) == 0
    assert here.files("someone/texts")["notes.txt"] == b"mine"
    assert "hub.json" not in here.files("someone/texts")
    capsys.readouterr()


def test_a_repository_is_private_also_where_the_recipe_leaves_that_open(here, tmp_path, texts):
    options = {"hub_model_id": "someone/open", "hub_token": TOKEN, "push_to_hub": True}
    text_trainer(tmp_path, texts, hub_private_repo=None, **options)
    assert here.repositories["models/someone/open"].private


def test_a_model_that_others_could_not_load_is_not_pushed(here, tmp_path, texts):
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(60, 3)

        def forward(self, input_ids, **_):
            return self.embed(input_ids).mean(1)

    tokenizer = text_trainer(tmp_path, texts).processing_class
    trainer = VotesTrainer(Plain(), config(tmp_path), eval_dataset=texts["eval"], processing_class=tokenizer)
    with pytest.raises(VotesError, match="push_to_hub is for models of transformers"):
        trainer.push_to_hub()


def test_training_goes_on_from_a_checkpoint_of_the_hub(here, tmp_path, texts):
    options = {"hub_model_id": "someone/resumed", "hub_token": TOKEN, "push_to_hub": True, "delivery": "sls"}
    options |= {"hub_strategy": "checkpoint", "save_strategy": "epoch"}
    text_trainer(tmp_path / "first", texts, num_train_epochs=1, **options).train()
    downloaded = snapshot_download("someone/resumed", local_dir=tmp_path / "downloaded", token=TOKEN)
    second = text_trainer(tmp_path / "second", texts, num_train_epochs=2, delivery="sls")
    second.train(resume_from_checkpoint=f"{downloaded}/last-checkpoint")
    assert second.state.global_step == 2 * -(-len(texts["train"]) // 8)
    assert second.ledger.digest() == expected_digest(texts["train"], second.delivery, epochs=2)
