"""Pushes of a training run: during it, at its end, from several processes, and what they must not give away."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
import yaml
from hub_calls import TOKEN, run_code
from huggingface_hub import HfApi, ModelCard, snapshot_download
from loopback.hub_writer import environment, metadata_flaws
from preloaded import python
from trainers import config, expected_digest, text_trainer
from transformers import BertConfig

from hf_softlabel import VotesTrainer, load_model
from hf_softlabel.cli import main
from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.synthetic import TONES

ROOT = Path(__file__).parents[1]
MODEL = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
CARD = {"README.md", "reliability.png"}


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
    launch = [python(), "-m", "accelerate.commands.launch", "--config_file"]
    launch += [str(ROOT / "recipes/accelerate_configs/cpu2.yaml"), "-m", "hf_softlabel", "train", str(path)]
    done = subprocess.run(
        [*launch, "--hub_token", TOKEN],
        env=environment(hub.url, tmp_path / "home", None),
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


@pytest.mark.parametrize(("strategy", "folder"), [("checkpoint", "last-checkpoint"), ("all_checkpoints", None)])
def test_training_goes_on_from_a_checkpoint_of_the_hub(here, tmp_path, texts, strategy, folder):
    options = {"hub_model_id": "someone/resumed", "hub_token": TOKEN, "push_to_hub": True, "delivery": "sls"}
    options |= {"hub_strategy": strategy, "save_strategy": "epoch", "eval_strategy": "epoch"}
    first = text_trainer(tmp_path / "first", texts, num_train_epochs=1, load_best_model_at_end=True, **options)
    first.train()
    folder = folder or f"checkpoint-{first.state.global_step}"
    files = here.files("someone/resumed")
    assert f"{folder}/optimizer.pt" in files and f"{folder}/training_args.bin" not in files
    for name, data in files.items():
        assert TOKEN.encode() not in data and str(tmp_path).encode() not in data, name
    assert first.state.best_model_checkpoint.startswith(str(tmp_path))
    state = json.loads(files[f"{folder}/trainer_state.json"])
    assert state["best_model_checkpoint"] == f"checkpoint-{first.state.global_step}"
    assert state["global_step"] == first.state.global_step and state["best_metric"] == first.state.best_metric
    downloaded = snapshot_download("someone/resumed", local_dir=tmp_path / "downloaded", token=TOKEN)
    second = text_trainer(tmp_path / "second", texts, num_train_epochs=2, delivery="sls")
    second.train(resume_from_checkpoint=f"{downloaded}/{folder}")
    assert second.state.global_step == 2 * -(-len(texts["train"]) // 8)
    assert second.ledger.digest() == expected_digest(texts["train"], second.delivery, epochs=2)
    # Its manifest is of what was pushed: a file that did not arrive whole is still found.
    with open(f"{downloaded}/{folder}/optimizer.pt", "ab") as file:
        file.write(b"x")
    with pytest.raises(VotesError, match=r"optimizer\.pt has \d+ bytes instead of"):
        second.train(resume_from_checkpoint=f"{downloaded}/{folder}")


def test_a_run_that_is_finished_already_says_how_to_push_it(here, tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    path = recipe(tmp_path, push_to_hub=False, num_train_epochs=1)
    assert main(["train", str(path)]) == 0 and not here.repositories
    assert "push" not in caplog.text
    assert main(["train", str(path), "--push_to_hub", "true"]) == 0
    assert not here.repositories
    said = re.search(r"Nothing was pushed now: hf-softlabel (push .*) sees that it is there\.", caplog.text)
    assert main(shlex.split(said[1])) == 0
    assert here.files("someone/texts").keys() == MODEL | CARD | {"metrics.json"}
    capsys.readouterr()


def test_a_run_whose_checkpoints_are_there_is_pushed_beside_them(here, tmp_path, monkeypatch, capsys):
    """As after a last push that was cut: the repository holds the run's own checkpoints and no scores."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert main(["train", str(recipe(tmp_path, push_to_hub=False, num_train_epochs=1))]) == 0
    api = HfApi(token=TOKEN)
    api.create_repo("someone/texts", private=True)
    for name in ("model.safetensors", "last-checkpoint/model.safetensors"):
        api.upload_file(path_or_fileobj=b"earlier", path_in_repo=name, repo_id="someone/texts")
    words = ["push", str(tmp_path / "run"), "--repo", "someone/texts"]
    assert main(words) == 2 and "holds another model" in capsys.readouterr().err
    (tmp_path / "run" / "hub.json").write_text('{"repository": "someone/texts"}')
    assert main(words) == 0
    files = here.files("someone/texts")
    assert files.keys() == MODEL | CARD | {"metrics.json", "last-checkpoint/model.safetensors"}
    assert files["model.safetensors"] == (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    capsys.readouterr()


def test_a_model_of_pairs_whose_columns_were_found_says_so_in_its_card(here, tmp_path, texts, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    rows = [{"text": row["text"], "text_pair": row["text"], "votes": row["votes"]} for row in texts["train"]]
    (tmp_path / "votes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = {"dataset": "table", "sources": str(tmp_path / "votes.jsonl"), "subset": None, "train_size": None}
    path = recipe(tmp_path, **table, num_train_epochs=1, push_to_hub=False)
    assert main(["train", str(path)]) == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["text_columns"] == ["text", "text_pair"]
    assert main(["push", str(tmp_path / "run"), "--repo", "someone/pairs"]) == 0
    usage = 'print(classify({"text": "A premise.", "text_pair": "A hypothesis."}))'
    assert usage in here.files("someone/pairs")["README.md"].decode()
    capsys.readouterr()

    both = {key: split.add_column("text_pair", split["text"][:]) for key, split in texts.items()}
    trainer = text_trainer(tmp_path / "own", both, hub_model_id="someone/own", hub_token=TOKEN, num_train_epochs=1)
    trainer.train()
    trainer.push_to_hub()
    assert usage in here.files("someone/own")["README.md"].decode()


ADAPTER_CLIENT = """
import json, re, sys
import torch
from huggingface_hub import hf_hub_download

code = re.search(r"```python\\n(.*?)```", open(hf_hub_download(sys.argv[1], "README.md")).read(), re.S)[1]
assert len([line for line in code.splitlines() if line]) <= 5
names = {}
exec(code, names)
with torch.no_grad():
    print(json.dumps(names["model"](**names["inputs"]).logits.tolist()))
"""


def lora(base, tokenizer, data, folder, **options) -> VotesTrainer:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))
    return VotesTrainer(
        model=model,
        args=config(folder, hub_token=TOKEN, learning_rate=1e-2, **options),
        train_dataset=data["train"],
        eval_dataset=data["eval"],
        processing_class=tokenizer,
    )


def test_an_adapter_is_pushed_without_its_base_and_loads_in_a_new_process(here, tmp_path, texts, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    base, tokenizer = load_model("synthetic-bert", TONES, task="text")
    # A base as others have them: with a head for other classes.
    base = type(base)(BertConfig(**{**base.config.to_dict(), "id2label": {0: "no", 1: "yes"}, "label2id": None}))
    for part in (base, tokenizer):
        part.push_to_hub("someone/base", token=TOKEN, private=True)
    model, tokenizer = load_model("someone/base", TONES, task="text")
    options = {"hub_model_id": "someone/adapter", "push_to_hub": True}
    options |= {"hub_strategy": "checkpoint", "save_strategy": "epoch"}
    trainer = lora(model, tokenizer, texts, tmp_path, **options)
    trainer.train()
    trainer.push_to_hub()
    files = here.files("someone/adapter")
    adapter = {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {name for name in files if "/" not in name} == adapter | CARD
    assert "last-checkpoint/adapter_model.safetensors" in files and "last-checkpoint/README.md" not in files
    for name, data in files.items():
        assert TOKEN.encode() not in data and str(tmp_path).encode() not in data, name
    card = files["README.md"].decode()
    assert metadata_flaws(card) == []
    known = ModelCard(card).data
    assert (known.library_name, known.base_model, known.base_model_relation) == ("peft", "someone/base", "adapter")
    assert "It is an adapter (LORA) of [someone/base]" in card
    done = run_code(here, tmp_path / "home", ADAPTER_CLIENT, "someone/adapter")
    trainer.model.eval()
    with torch.no_grad():
        expected = trainer.model(**tokenizer("Any text.", return_tensors="pt")).logits.tolist()
    assert json.loads(done.stdout.splitlines()[-1]) == expected


def test_an_adapter_whose_base_is_not_on_the_hub_is_refused_before_the_training(here, tmp_path, texts):
    base, tokenizer = load_model("synthetic-bert", TONES, task="text")
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    local, _ = load_model(tmp_path / "base", TONES, task="text")
    for model in (base, local):
        with pytest.raises(
            VotesError, match=r"is pushed without its base model, and .* is not on the Hub: push the base first"
        ):
            lora(model, tokenizer, texts, tmp_path, hub_model_id="someone/adapter", push_to_hub=True)
    assert not here.repositories


OWN_TRAINER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from trainers import text_trainer
from hf_softlabel import split_votes
from hf_softlabel.data.synthetic import load_synthetic

texts = split_votes(load_synthetic("text", size=60), seed=0)
options = {"hub_model_id": "someone/texts", "push_to_hub": True, "hub_strategy": "every_save"}
trainer = text_trainer(Path(sys.argv[2]), texts, report_to="trackio", save_strategy="epoch", **options)
trainer.train()
trainer.push_to_hub()
"""


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_trackio_makes_no_space_that_nobody_has_asked_for(hub, tmp_path, own):
    """Its callback would make one at each push, public unless hub_private_repo says otherwise."""
    words = ["-c", OWN_TRAINER, str(ROOT / "tests"), str(tmp_path)]
    if not own:
        path = recipe(tmp_path, hub_strategy="every_save", report_to="trackio")
        words = ["-m", "hf_softlabel", "train", str(path)]
    local = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [python(), *words],
        env=environment(hub.url, tmp_path / "home", TOKEN) | local,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert len(hub.commits("someone/texts")) == 3 and hub.repositories.keys() == {"models/someone/texts"}
    assert list((tmp_path / "trackio").glob("*.db"))


def test_a_space_that_is_asked_for_is_not_doubled_by_a_static_one(tmp_path, monkeypatch, texts):
    """A named Space takes the curves; its copy at the end of the training would be one more, which nobody named."""
    from hf_softlabel.callbacks.tracking import Tracking

    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for given, kept in ((None, False), ("someone/named", "someone/named")):
        trainer = text_trainer(tmp_path, texts, report_to="trackio", trackio_static_space_id=given)
        with Tracking(trainer, {"delivery": "soft", "seed": 0}, tmp_path / "run"):
            assert trainer.args.trackio_static_space_id == kept
