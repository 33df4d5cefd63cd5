"""The code path of an online user: a Hub over HTTP, and addresses that do or do not answer."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import shutil
import socket
import subprocess
import threading
import zipfile
from pathlib import Path

import datasets
import pytest
from loopback.hub import serve
from loopback.hub_writer import environment
from preloaded import python

from hf_softlabel.data.errors import VotesError
from hf_softlabel.data.load import load_votes
from hf_softlabel.data.sources import Source, find_source

# The stream is closed because Arrow may abort the interpreter at its exit while a Parquet file is half read
# (huggingface/datasets#7566).
CLIENT = """
import gc, hashlib, itertools, json, sys
from hf_softlabel.data.load import load_votes
from hf_softlabel.data.votes import class_names

def plain(row):
    return {**row, "image": hashlib.sha256(row["image"].tobytes()).hexdigest()}

whole = load_votes("cifar10h", sources=sys.argv[1])["train"]
stream = load_votes("cifar10h", sources=sys.argv[1], streaming=True)["train"]
rows = iter(stream)
first = list(itertools.islice(rows, 5))
rows.close()
gc.collect()
print(json.dumps({
    "rows": len(whole),
    "votes": sum(map(sum, whole["votes"])),
    "names": [class_names(whole), class_names(stream)],
    "whole": [plain(whole[i]) for i in range(5)],
    "stream": [plain(row) for row in first],
}))
"""


def run_client(code: str, endpoint: str, home: Path, *arguments: str) -> dict:
    done = subprocess.run(
        [python(), "-c", code, *arguments],
        env=environment(endpoint, home),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.sources
def test_cifar10h_from_a_hub(sources, tmp_path):
    folder = tmp_path / "only_the_counts"
    folder.mkdir()
    shutil.copy(next(sources.rglob("cifar10h-counts.npy")), folder)
    with serve(sources / "hub") as url:
        result = run_client(CLIENT, url, tmp_path / "home", str(folder))
    assert (result["rows"], result["votes"]) == (10_000, 511_000)
    assert result["stream"] == result["whole"]
    assert [row["example_id"] for row in result["stream"]] == [0, 1, 2, 3, 4]
    assert result["whole"][0]["votes"] == [0, 1, 1, 48, 0, 1, 0, 0, 0, 0]
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    assert result["names"] == [names, names]
    local = load_votes("cifar10h", sources=sources)["train"][3]
    assert hashlib.sha256(local["image"].tobytes()).hexdigest() == result["whole"][3]["image"]


TABLE_CLIENT = """
import json, sys
from hf_softlabel.data.load import load_votes

def rows(**options):
    return {key: list(split) for key, split in load_votes("someone/votes", **options).items()}

try:
    load_votes("someone/absent")
    error = None
except ValueError as caught:
    error = f"{type(caught).__name__}: {caught}"
try:
    load_votes("someone/votes", revision="absent")
    revision = None
except ValueError as caught:
    revision = f"{type(caught).__name__}: {caught}"
print(json.dumps({"whole": rows(), "stream": rows(streaming=True), "error": error, "revision": revision}))
"""


OOD_CLIENT = """
import json
from hf_softlabel.diagnostics.ood_data import load_ood_set, parse_ood_set

_, source, subset, split = parse_ood_set("svhn=ufldl-stanford/svhn#test")
found = load_ood_set(source, subset, split, examples=25, seed=1)
print(json.dumps({"columns": found.column_names, "rows": len(found), "size": found[0]["image"].size}))
"""


@pytest.mark.sources
def test_an_ood_set_from_a_hub(sources, tmp_path):
    with serve(sources / "hub") as url:
        found = run_client(OOD_CLIENT, url, tmp_path / "home")
    assert found == {"columns": ["image"], "rows": 25, "size": [32, 32]}


def test_a_table_from_a_hub_with_its_splits(tmp_path):
    folder = tmp_path / "hub" / "datasets" / "someone" / "votes"
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text('{"text": "a", "votes": [1, 2]}\n{"text": "b", "votes": [0, 3]}\n')
    (folder / "test.jsonl").write_text('{"text": "c", "votes": [5, 0]}\n')
    with serve(tmp_path / "hub") as url:
        result = run_client(TABLE_CLIENT, url, tmp_path / "home")
    assert result["stream"] == result["whole"]
    assert {key: [row["votes"] for row in rows] for key, rows in result["whole"].items()} == {
        "train": [[1, 2], [0, 3]],
        "test": [[5, 0]],
    }
    ids = [row["example_id"] for rows in result["whole"].values() for row in rows]
    assert ids[:2] == [0, 1] and len(set(ids)) == 3
    assert result["error"].startswith("VotesError: someone/absent could not be loaded")
    assert result["revision"].startswith("VotesError: someone/votes could not be loaded")


def test_an_empty_sources_folder_is_an_error_without_a_download(tmp_path, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: pytest.fail("the network was asked"))
    for name, subset, file in [
        ("cifar10h", None, "cifar10h-counts.npy"),
        ("chaosnli", "mnli", "chaosNLI_mnli_m.jsonl"),
        ("popquorn", "politeness", "politeness_raw_data.csv"),
    ]:
        with pytest.raises(VotesError, match=f"{file} is not in the sources folder .*{tmp_path.name}.*Download it"):
            load_votes(name, subset, sources=tmp_path)
        monkeypatch.setenv("HF_SOFTLABEL_SOURCES", str(tmp_path))
        with pytest.raises(VotesError, match=f"{file} is not in the sources folder"):
            load_votes(name, subset)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("HF_SOFTLABEL_SOURCES", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "hf_softlabel_sources"


@pytest.fixture
def closed_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return f"http://127.0.0.1:{port}/archive.zip"


def test_an_address_that_refuses_is_an_error_that_says_how_to_go_on(cache, closed_address, monkeypatch):
    monkeypatch.setattr("hf_softlabel.data.chaosnli.ADDRESS", closed_address)
    with pytest.raises(VotesError) as caught:
        load_votes("chaosnli", "snli")
    message = str(caught.value)
    for part in ("chaosNLI_snli.jsonl", closed_address, str(cache), "refused", "by hand", "HF_SOFTLABEL_SOURCES"):
        assert part in message
    assert not cache.exists()


def test_offline_mode_asks_no_network(cache, closed_address, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: pytest.fail("the network was asked"))
    with pytest.raises(VotesError, match="offline mode"):
        find_source(Source("a.txt", closed_address, None))


@pytest.fixture
def web():
    """A web server with the files of a dict; counts the requests."""
    files: dict[str, bytes] = {}
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200 if self.path in files else 404)
            self.end_headers()
            self.wfile.write(files.get(self.path, b""))

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", files, asked
    server.shutdown()
    server.server_close()


def test_downloads_are_verified_cached_and_atomic(cache, web):
    url, files, asked = web
    files["/a.txt"] = b"the authors' file"
    source = Source("a.txt", f"{url}/a.txt", hashlib.sha256(b"the authors' file").hexdigest())
    path = find_source(source)
    assert path == cache / "a.txt" and path.read_bytes() == b"the authors' file"
    assert find_source(source) == path and asked == ["/a.txt"]
    assert [file.name for file in cache.iterdir()] == ["a.txt"]

    path.write_bytes(b"spoilt")
    with pytest.raises(VotesError, match=r"a\.txt is not the a\.txt that its authors published: expected the sha256"):
        find_source(source)
    path.unlink()
    files["/a.txt"] = b"<html>The file was deleted</html>"
    with pytest.raises(VotesError, match=r"What http.*a\.txt sent is not the a\.txt"):
        find_source(source)
    assert list(cache.iterdir()) == []
    del files["/a.txt"]
    with pytest.raises(VotesError, match="404"):
        find_source(source)


def test_a_file_inside_an_archive(cache, web):
    url, files, _ = web
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__MACOSX/v1/._a.jsonl", "shadow")
        file.writestr("v1/a.jsonl", "wanted")
    files["/v1.zip?dl=1"] = archive.getvalue()
    digest = hashlib.sha256(b"wanted").hexdigest()
    assert find_source(Source("a.jsonl", f"{url}/v1.zip?dl=1", digest)).read_text() == "wanted"
    with pytest.raises(VotesError, match=r"the archive holds no b\.jsonl"):
        find_source(Source("b.jsonl", f"{url}/v1.zip?dl=1", digest))
