"""Data sets of votes that are built, pushed to a Hub over HTTP, and read back in new processes, streamed too."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict, Features, Value
from hub_calls import TOKEN, assert_refused_token_is_not_shown, command, contents, run_code
from huggingface_hub import DatasetCard, HfApi
from loopback.hub_writer import Hub, Repository, metadata_flaws
from PIL import Image as Picture

from hf_softlabel import class_names, load_votes
from hf_softlabel.cli import main
from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.votes import votes_features
from hf_softlabel.hub.data import build_data, push_data
from hf_softlabel.score import VotesSource

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def table(tmp_path) -> Path:
    return write_table(tmp_path / "secret_place" / "votes.csv")


def write_table(path: Path, votes=((4, 0), (2, 2), (1, 3), (0, 8))) -> Path:
    path.parent.mkdir(exist_ok=True)
    rows = [f"question {i},{no},{yes}" for i, (no, yes) in enumerate(votes)]
    path.write_text("\n".join(["text,no,yes", *rows]) + "\n")
    return path


def built(table: Path, folder: Path) -> Path:
    return build_data(VotesSource(str(table), options={"label_columns": ["no", "yes"]}), folder)


def digest(rows) -> str:
    """Of all rows with everything in them: pixels, texts, votes, ids."""
    total = hashlib.sha256()
    for row in rows:
        plain = {key: value.tobytes().hex() if hasattr(value, "tobytes") else value for key, value in row.items()}
        total.update(json.dumps(plain, sort_keys=True).encode())
    return total.hexdigest()


def features(dataset) -> dict[str, str]:
    return {column: str(feature) for column, feature in sorted(dataset.features.items())}


READ = """
import hashlib, json, re, sys
from datasets import load_dataset
from huggingface_hub import hf_hub_download
from hf_softlabel import class_names, load_votes
{functions}
repo = sys.argv[1]
whole, stream = load_votes(repo), load_votes(repo, streaming=True)
card = open(hf_hub_download(repo, "README.md", repo_type="dataset")).read()
exec(re.search(r"```python\\n(.*?)```", card, re.S)[1])
print(json.dumps({{
    "whole": {{key: digest(split) for key, split in whole.items()}},
    "stream": {{key: digest(split) for key, split in stream.items()}},
    "stock": {{key: digest(split) for key, split in load_dataset(repo).items()}},
    "names": [class_names(next(iter(found.values()))) for found in (whole, stream)],
    "features": [features(next(iter(found.values()))) for found in (whole, stream)],
}}))
"""


def check_read_back(hub: Hub, home: Path, repo: str, local: DatasetDict) -> None:
    """In a new process the Hub gives every row as it was, whole, streamed, and by `datasets` alone."""
    code = READ.format(functions=inspect.getsource(digest) + inspect.getsource(features))
    done = run_code(hub, home, code, repo, timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    expected = {key: digest(split) for key, split in local.items()}
    assert found["whole"] == found["stream"] == found["stock"] == expected
    first = next(iter(local.values()))
    assert found["names"] == [class_names(first)] * 2
    assert found["features"] == [features(first)] * 2


def check_nothing_private(files: dict[str, bytes], *private: str) -> None:
    for name, data in files.items():
        for word in (TOKEN, str(Path.home()) + "/", "/tmp/", *private):
            assert word.encode() not in data, f"{word} in {name}"


def test_images_are_pushed_in_one_commit_and_read_back_equal(hub, tmp_path):
    words = ("data", "push", "synthetic", "--subset", "vision", "--repo", "someone/textures")
    done = command(hub, tmp_path / "home", *words)
    assert done.returncode == 0, done.stderr
    assert f"pushed to {hub.url}/datasets/someone/textures" in done.stdout
    assert hub.repositories["datasets/someone/textures"].private
    files = hub.files("someone/textures", "datasets")
    assert files.keys() == {"README.md", "votes.json", "data/train-00000-of-00001.parquet"}
    check_nothing_private(files, str(tmp_path))
    card = files["README.md"].decode()
    assert metadata_flaws(card) == [] and "OWNER/NAME" not in card
    assert DatasetCard(card).data.license == "apache-2.0"
    check_read_back(hub, tmp_path / "home", "someone/textures", load_votes("synthetic", "vision"))

    # The same votes once more, built anew, are no second commit.
    done = command(hub, tmp_path / "home", *words)
    assert done.returncode == 0 and "holds these votes already" in done.stdout
    assert len(hub.commits("someone/textures", "datasets")) == 1
    shown = command(hub, tmp_path / "home", "data", "show", "someone/textures", "--examples", "1")
    assert shown.returncode == 0, shown.stderr
    assert "examples    2,000 (train 2,000)" in shown.stdout and "horizontal, vertical, checks" in shown.stdout


def test_splits_and_images_that_lie_in_files_of_this_machine(here, tmp_path):
    pictures = tmp_path / "secret_place"
    for i, split in enumerate(["train", "train", "test"]):
        (pictures / split).mkdir(parents=True, exist_ok=True)
        Picture.new("RGB", (4, 4), (80 * i, 0, 9)).save(pictures / split / f"{i}.png")
        row = {"file_name": f"{i}.png", "note": f"n{i}", "votes": [i + 1, 2], "example_id": 5 - i}
        with open(pictures / split / "metadata.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
    folder = build_data(VotesSource(str(pictures)), tmp_path / "built")
    push_data(folder, "someone/pictures", token=TOKEN)
    check_nothing_private(here.files("someone/pictures", "datasets"), "secret_place", str(tmp_path))
    check_read_back(here, tmp_path / "home", "someone/pictures", load_votes(str(pictures)))


def test_sparse_votes_on_many_classes_are_read_back_as_they_were(here, tmp_path):
    names = [f"word {i}" for i in range(300)]
    votes = [{"labels": [i, i + 7], "counts": [1 + i % 3, 2]} for i in range(30)]
    columns = {"text": ["?"] * 30, "votes": votes, "example_id": range(30), "label": [None] * 30}
    kept = Features({"text": Value("string"), **votes_features(names, sparse=True)})
    Dataset.from_dict(columns, features=kept).save_to_disk(tmp_path / "saved")
    push_data(build_data(VotesSource(str(tmp_path / "saved")), tmp_path / "built"), "someone/sparse", token=TOKEN)
    card = here.files("someone/sparse", "datasets")["README.md"].decode()
    assert "| `votes` | `labels`, the classes that have votes, and `counts`, how many |" in card
    # Twenty of them, the most frequent.
    assert card.count("\n| word ") == 20 and "\n| and 280 more | | |\n" in card
    check_read_back(here, tmp_path / "home", "someone/sparse", load_votes(str(tmp_path / "saved")))


@pytest.mark.sources
@pytest.mark.parametrize(
    ("name", "subset", "licence"),
    [
        pytest.param("cifar10h", None, "The votes are under CC BY-NC-SA 4.0. CIFAR-10's", marks=pytest.mark.slow),
        ("chaosnli", "alphanli", "The votes are under CC BY-NC 4.0. The texts are those of Abductive NLI"),
        ("chaosnli", "snli+mnli", "SNLI's, under CC BY-SA 4.0. The texts are MultiNLI's"),
        ("popquorn", "offensiveness", "We know of no licence"),
    ],
)
def test_the_authors_votes_come_back_from_the_hub_as_they_were(here, sources, tmp_path, name, subset, licence):
    folder = build_data(VotesSource(name, subset, str(sources)), tmp_path / "built")
    push_data(folder, "someone/votes", token=TOKEN)
    files = here.files("someone/votes", "datasets")
    check_nothing_private(files, str(sources), str(tmp_path))
    card = files["README.md"].decode()
    assert metadata_flaws(card) == []
    assert licence in card.split("## Licence and citation")[1]
    # That of the votes would be taken for that of the whole.
    known = DatasetCard(card).data
    assert known.license == (None if name == "popquorn" else "other")
    if name != "popquorn":
        assert known.license_name == f"cc-by-nc-{'sa-' * (name == 'cifar10h')}4.0-for-the-votes-only"
        assert re.fullmatch(r"[a-z0-9.-]+", known.license_name) and known.license_link.startswith("https://")
    check_read_back(here, tmp_path / "home", "someone/votes", load_votes(name, subset, sources=sources))


def test_a_whole_card(table, tmp_path, capsys):
    words = ["data", "build", str(table), "--label_columns", "no", "yes", "--output_dir", str(tmp_path / "built")]
    assert main(words) == 0
    assert f"built in {tmp_path / 'built'}" in capsys.readouterr().out
    assert (tmp_path / "built" / "README.md").read_text() == (GOLDEN / "data_card.md").read_text()


def test_a_folder_that_looks_like_a_hub_id_is_not_told(table, tmp_path, monkeypatch):
    load_votes(str(table), label_columns=["no", "yes"]).save_to_disk(tmp_path / "secret_place" / "saved")
    monkeypatch.chdir(tmp_path)
    for source in (VotesSource("secret_place/saved"), VotesSource("table", sources="secret_place/saved")):
        check_nothing_private(contents(build_data(source, "built")), "secret_place")
    assert "huggingface.co" not in Path("built/README.md").read_text()


def test_a_refused_token_is_said_without_showing_it(hub, table, tmp_path):
    wrong = "hf_WrongSecret"
    words = ("data", "push", str(table), "--label_columns", "no", "yes", "--repo", "someone/votes")
    done = command(hub, tmp_path / "home", *words, "--token", wrong, token=None)
    assert_refused_token_is_not_shown(done, "someone/votes", wrong)
    assert not hub.repositories


def test_what_the_hub_would_refuse_is_said_before_the_build(here, tmp_path, capsys):
    """The data is not even there: who is told so was asked for it before the Hub was."""
    api = HfApi(token=TOKEN)
    for name, private in (("seen", False), ("taken", True), ("empty", True)):
        api.create_repo(f"someone/{name}", repo_type="dataset", private=private)
    api.upload_file(path_or_fileobj=b"x", path_in_repo="x.txt", repo_id="someone/taken", repo_type="dataset")
    here.tokens["hf_Other"] = "other"
    here.repositories["datasets/other/seen"] = Repository("other/seen", private=False)
    for repo, token, message in [
        ("someone/new", "hf_Wrong", "does not let you write to someone/new: Invalid user token"),
        ("someone/seen", TOKEN, "someone/seen exists and is public: push to it with --public"),
        ("someone/taken", TOKEN, "someone/taken exists and holds another data set"),
        ("other/seen", TOKEN, "does not let you write to other/seen: You do not have the rights"),
        ("a/b/c", TOKEN, "is no name of a repository"),
        ("someone/empty", TOKEN, "could not be loaded"),
        ("someone/new", TOKEN, "could not be loaded"),
    ]:
        assert main(["data", "push", "no/data", "--repo", repo, "--token", token]) == 2
        assert message in capsys.readouterr().err
    assert "datasets/someone/new" not in here.repositories


def test_a_name_that_exists_is_not_taken_over(here, table, tmp_path):
    first = built(table, tmp_path / "first")
    other = built(write_table(tmp_path / "other.csv", [(1, 1), (5, 0)]), tmp_path / "other")
    push_data(first, "someone/votes", token=TOKEN)
    with pytest.raises(VotesError, match=r"someone/votes exists and holds another data set.*--overwrite"):
        push_data(other, "someone/votes", token=TOKEN)
    assert len(here.commits("someone/votes", "datasets")) == 1
    here.files("someone/votes", "datasets")["old.csv"] = b"a,b\n"
    assert push_data(other, "someone/votes", token=TOKEN, overwrite=True)[1]
    files = here.files("someone/votes", "datasets")
    assert files.keys() == {"README.md", "votes.json", "data/train-00000-of-00001.parquet"}
    assert files["data/train-00000-of-00001.parquet"] == (other / "data/train-00000-of-00001.parquet").read_bytes()

    # What somebody put there by other means is another data set too.
    here.files("someone/votes", "datasets").pop("votes.json")
    with pytest.raises(VotesError, match="holds another data set"):
        push_data(other, "someone/votes", token=TOKEN)


def test_a_public_repository_is_not_pushed_to_unasked(here, table, tmp_path):
    folder = built(table, tmp_path / "built")
    push_data(folder, "someone/seen", private=False, token=TOKEN)
    assert not here.repositories["datasets/someone/seen"].private
    with pytest.raises(VotesError, match=r"someone/seen exists and is public.*--public"):
        push_data(folder, "someone/seen", token=TOKEN)


def test_a_connection_that_is_cut_leaves_nothing_half_pushed(here, table, tmp_path):
    folder = built(table, tmp_path / "built")
    before = contents(folder)
    here.cut = re.compile(r"/api/datasets/.*/commit/main")
    with pytest.raises(VotesError, match=r"The push to someone/votes broke off: .*the same command tries again"):
        push_data(folder, "someone/votes", token=TOKEN)
    assert contents(folder) == before and here.commits("someone/votes", "datasets") == []
    here.cut = None
    assert push_data(folder, "someone/votes", token=TOKEN)[1]
    assert len(here.commits("someone/votes", "datasets")) == 1


def test_a_built_folder_is_pushed_with_the_card_that_its_owner_wrote(here, table, tmp_path, capsys):
    folder = built(table, tmp_path / "built")
    card = (folder / "README.md").read_text().replace("Say here under which licence", "CC0. That is")
    (folder / "README.md").write_text(card)
    assert main(["data", "push", str(folder), "--repo", "someone/votes", "--token", TOKEN]) == 0
    pushed = here.files("someone/votes", "datasets")["README.md"].decode()
    assert "CC0. That is" in pushed and 'load_votes("someone/votes")' in pushed
    data = next((folder / "data").iterdir())
    data.write_bytes(data.read_bytes() + b"x")
    assert main(["data", "push", str(folder), "--repo", "someone/again", "--token", TOKEN]) == 2
    assert "is not the file that was built" in capsys.readouterr().err
    assert "datasets/someone/again" not in here.repositories
    assert main(["data", "push", str(folder), "--repo", "votes"]) == 2
    assert "needs its owner too: owner/votes" in capsys.readouterr().err


def test_a_build_replaces_only_a_build(table, tmp_path):
    folder = built(table, tmp_path / "built")
    before = contents(folder)
    built(table, folder)
    assert contents(folder) == before
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(VotesError, match=r"added or changed since it was built \(notes.txt\)"):
        built(table, folder)
    (folder / "notes.txt").unlink()
    (folder / "README.md").write_text("mine")
    with pytest.raises(VotesError, match=r"added or changed since it was built \(README.md\)"):
        built(table, folder)
    with pytest.raises(VotesError, match="not empty and was not made by `data build`"):
        built(table, table.parent)
    with pytest.raises(VotesError, match="is a file"):
        built(table, table)
    assert table.exists()


LIMITED = """
import resource, signal, sys
from hf_softlabel.cli import main

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.exit(main(sys.argv[1:]))
"""


def test_a_build_that_fails_leaves_what_was_there(table, tmp_path):
    folder = built(table, tmp_path / "built")
    source = tmp_path / "votes.parquet"
    load_votes(str(table), label_columns=["no", "yes"])["train"].to_parquet(source)
    os.truncate(source, source.stat().st_size // 2)
    before, around = contents(folder), sorted(tmp_path.iterdir())
    with pytest.raises(VotesError, match="all zero"):
        built(write_table(table, [(1, 1), (0, 0)]), folder)
    with pytest.raises(VotesError, match=r"votes\.parquet could not be loaded"):
        build_data(VotesSource(str(source)), folder)
    # A disk that is full in the middle of the writing: no file may have more than 100,000 bytes.
    for place in (folder, tmp_path / "new"):
        words = ["data", "build", "synthetic", "--subset", "vision", "--output_dir", str(place)]
        environment = {**os.environ, "HF_HOME": str(tmp_path.parent / "home"), "OMP_NUM_THREADS": "1"}
        run = [sys.executable, "-c", LIMITED, *words]
        done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2, done.stderr
        assert f"error: {place} could not be written" in done.stderr and "Nothing there has changed" in done.stderr
    assert contents(folder) == before and sorted(tmp_path.iterdir()) == around
