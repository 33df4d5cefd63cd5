"""A Hub on loopback that takes pushes: as much of the HTTP interface as `create_repo`, `create_commit` and
`from_pretrained` use. It lives in the memory of the test's own process, which can look at every commit.

    with serve(tokens={"hf_abc": "someone"}) as hub:  # HF_ENDPOINT=hub.url for the process under test
        ...
        hub.files("someone/model")["README.md"]
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import huggingface_hub.hf_api
import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

DATE = "2024-01-01T00:00:00.000Z"
# What the Hub keeps as LFS objects, which are uploaded one by one before the commit.
LARGE = re.compile(r".*\.(safetensors|bin|parquet|pt|pth|npz|png)")


@dataclass
class Commit:
    title: str
    files: dict[str, bytes]

    @property
    def sha(self) -> str:
        listing = self.title + "".join(f"{path} {_sha256(data)}\n" for path, data in sorted(self.files.items()))
        return hashlib.sha1(listing.encode()).hexdigest()


@dataclass
class Repository:
    """A model or data set with the one branch `main`."""

    name: str
    private: bool
    commits: list[Commit] = field(default_factory=lambda: [Commit("initial commit", {})])

    def at(self, revision: str) -> Commit | None:
        if revision == "main":
            return self.commits[-1]
        return next((commit for commit in self.commits if commit.sha == revision), None)


@lru_cache(maxsize=64)
def _sha256(data: bytes) -> str:
    # Of the same few files at each request.
    return hashlib.sha256(data).hexdigest()


def _oid(path: str, data: bytes) -> str:
    """By which a client knows that a file has not changed."""
    return _sha256(data) if LARGE.fullmatch(path) else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _refusal(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": message}, status, {"X-Error-Code": code, "X-Error-Message": message})


def metadata_flaws(card: str) -> list[str]:
    """What the Hub would not take of a card's metadata; only what these cards use is looked at."""
    match = re.match(r"---\n(.*?)\n---\n", card, re.S)
    if match is None:
        return ["there is no metadata"]
    data = yaml.safe_load(match[1])
    flaws = [f"{key} must be a list of words" for key in ("tags", "datasets") if not _words(data.get(key, []))]
    for model in data.get("model-index", []):
        if not isinstance(model.get("name"), str):
            flaws.append("model-index: a model has no name")
        for result in model["results"]:
            places = [(result["task"], ("type",)), (result["dataset"], ("type", "name"))]
            places += [(metric, ("type", "value")) for metric in result["metrics"]]
            flaws += [f"model-index: {key} is missing" for part, keys in places for key in keys if key not in part]
            values = [metric.get("value") for metric in result["metrics"]]
            flaws += [f"model-index: {value} is no number" for value in values if not isinstance(value, int | float)]
    return flaws


def _words(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


class Hub:
    """The server's state, and its routes.

    Args:
        tokens: the user of each token that is accepted.

    Attributes:
        repositories: by `models/owner/name` or `datasets/owner/name`.
        cut: connections to paths that match this are cut off while the request is read; set it to None to mend them.
        requests: method and path of every request, in order.
    """

    def __init__(self, tokens: dict[str, str]):
        self.tokens = tokens
        self.url = ""
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.cut: re.Pattern | None = None
        self.requests: list[str] = []
        self.app = Starlette(routes=self._routes())

    def commits(self, name: str, kind: str = "models") -> list[Commit]:
        """All commits but the one that made the repository."""
        return self.repositories[f"{kind}/{name}"].commits[1:]

    def files(self, name: str, kind: str = "models") -> dict[str, bytes]:
        """What the newest commit holds."""
        return self.repositories[f"{kind}/{name}"].commits[-1].files

    def point_clients_here(self, monkeypatch: Any, cache: Path) -> None:
        """Make the clients of this very process use the Hub; they have read HF_ENDPOINT when they were imported."""
        settings = {
            "ENDPOINT": self.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": self.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(cache),
            "HF_HUB_DISABLE_XET": True,
        }
        for name, value in settings.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        monkeypatch.setattr("datasets.config.HF_ENDPOINT", self.url)
        # Behind the functions of the module itself, such as file_exists.
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", self.url)
        # transformers keeps a client from its first use, perhaps in an earlier test, and with it that test's address.
        monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)
        monkeypatch.delenv("HF_TOKEN", raising=False)

    def _user(self, request: Request) -> str | None:
        return self.tokens.get(request.headers.get("authorization", "").removeprefix("Bearer "))

    def _find(self, request: Request, writes: bool = False) -> tuple[Repository, Commit] | Response:
        values = request.path_params
        name = f"{values['owner']}/{values['name']}"
        repository = self.repositories.get(f"{values.get('kind', 'models')}/{name}")
        user = self._user(request)
        if repository is None or (repository.private and user != values["owner"]):
            # What somebody may not see is said not to be there.
            return _refusal(404 if user else 401, "RepoNotFound", "Repository not found")
        if writes and user != values["owner"]:
            return _refusal(403 if user else 401, "", "You do not have the rights to write to this repository")
        commit = repository.at(values.get("revision", "main"))
        if commit is None:
            return _refusal(404, "RevisionNotFound", f"Invalid rev id: {values['revision']}")
        return repository, commit

    def whoami(self, request: Request) -> Response:
        user = self._user(request)
        if user is None:
            return _refusal(401, "", "Invalid user token.")
        return JSONResponse({"type": "user", "name": user, "fullname": user, "orgs": []})

    async def create(self, request: Request) -> Response:
        user, asked = self._user(request), await request.json()
        if user is None:
            return _refusal(401, "", "Invalid user token.")
        owner = asked.get("organization") or user
        if owner != user:
            return _refusal(403, "", f"You don't have the rights to create a model under the namespace {owner!r}")
        name, kind = f"{owner}/{asked['name']}", f"{asked.get('type') or 'model'}s"
        answer = {"url": f"{self.url}/{'' if kind == 'models' else kind + '/'}{name}", "id": name, "name": name}
        if f"{kind}/{name}" in self.repositories:
            return JSONResponse({**answer, "error": "You already created this model repo"}, 409)
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.repositories[f"{kind}/{name}"] = Repository(name, private)
        return JSONResponse(answer)

    async def validate(self, request: Request) -> Response:
        flaws = metadata_flaws((await request.json())["content"])
        return JSONResponse({"errors": [{"message": flaw} for flaw in flaws], "warnings": []}, 400 if flaws else 200)

    def info(self, request: Request) -> Response:
        found = self._find(request)
        if isinstance(found, Response):
            return found
        repository, commit = found
        return JSONResponse(
            {
                "_id": commit.sha[:24],
                "id": repository.name,
                "sha": commit.sha,
                "author": repository.name.split("/")[0],
                "private": repository.private,
                "gated": False,
                "disabled": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "createdAt": DATE,
                "lastModified": DATE,
                "siblings": [{"rfilename": path} for path in commit.files],
            }
        )

    def auth_check(self, request: Request) -> Response:
        found = self._find(request, writes=True)
        return found if isinstance(found, Response) else Response()

    def tree(self, request: Request) -> Response:
        """Files below a folder, or of the whole repository; a client that does not ask for all gets one level."""
        found = self._find(request)
        if isinstance(found, Response):
            return found
        below = request.path_params.get("path", "").strip("/")
        prefix, entries = f"{below}/" if below else "", {}
        for path, data in found[1].files.items():
            if not path.startswith(prefix):
                continue
            folder, slash, _ = path.removeprefix(prefix).partition("/")
            if slash:
                place = prefix + folder
                entries[place] = {"type": "directory", "path": place, "size": 0, "oid": "0" * 40}
            if not slash or request.query_params.get("recursive", "").lower() in ("1", "true"):
                entries[path] = {"type": "file", "path": path, "size": len(data), "oid": _oid(path, data)[:40]}
        if below and not entries:
            return _refusal(404, "EntryNotFound", f"{below} does not exist")
        return JSONResponse(list(entries.values()))

    async def paths_info(self, request: Request) -> Response:
        found = self._find(request)
        if isinstance(found, Response):
            return found
        if "json" in request.headers.get("content-type", ""):
            wanted = (await request.json())["paths"]
        else:
            wanted = (await request.form()).getlist("paths")
        return JSONResponse(
            [
                {"type": "file", "path": path, "size": len(data), "oid": _oid(path, data)[:40]}
                for path, data in found[1].files.items()
                if path in wanted
            ]
        )

    async def preupload(self, request: Request) -> Response:
        found = self._find(request, writes=True)
        if isinstance(found, Response):
            return found
        answer = []
        for file in (await request.json())["files"]:
            path = file["path"]
            mode = "lfs" if LARGE.fullmatch(path) else "regular"
            known = found[1].files.get(path)
            oid = None if known is None else _oid(path, known)
            answer.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return JSONResponse({"files": answer})

    async def lfs_batch(self, request: Request) -> Response:
        answer = []
        for item in (await request.json())["objects"]:
            known = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.objects:
                known["actions"] = {"upload": {"href": f"{self.url}/lfs/{item['oid']}"}}
            answer.append(known)
        return JSONResponse({"transfer": "basic", "objects": answer}, media_type="application/vnd.git-lfs+json")

    async def lfs_put(self, request: Request) -> Response:
        data = await request.body()
        if _sha256(data) != request.path_params["oid"]:
            return _refusal(400, "", "The object is not what it was announced as")
        self.objects[request.path_params["oid"]] = data
        return Response()

    async def commit(self, request: Request) -> Response:
        found = self._find(request, writes=True)
        if isinstance(found, Response):
            return found
        repository, before = found
        files, title = dict(before.files), ""
        for line in (await request.body()).splitlines():
            operation = json.loads(line)
            value = operation["value"]
            match operation["key"]:
                case "header":
                    title = value["summary"]
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.objects[value["oid"]]
                case "deletedFile":
                    files.pop(value["path"])
                case "deletedFolder":
                    folder = value["path"].rstrip("/") + "/"
                    files = {path: data for path, data in files.items() if not path.startswith(folder)}
        new = Commit(title, files)
        repository.commits.append(new)
        address = f"{self.url}/{repository.name}/commit/{new.sha}"
        return JSONResponse({"success": True, "commitOid": new.sha, "commitUrl": address, "hookOutput": ""})

    def resolve(self, request: Request) -> Response:
        found = self._find(request)
        if isinstance(found, Response):
            return found
        commit, path = found[1], request.path_params["path"]
        headers = {"X-Repo-Commit": commit.sha}
        if path not in commit.files:
            refusal = _refusal(404, "EntryNotFound", "Entry not found")
            refusal.headers.update(headers)
            return refusal
        data = commit.files[path]
        headers |= {"ETag": f'"{_oid(path, data)}"', "X-Linked-Size": str(len(data))}
        # Streams of Parquet files read them piece by piece, the end first.
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if wanted is None:
            return Response(data, headers=headers, media_type="application/octet-stream")
        first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return Response(data[first : last + 1], 206, headers, "application/octet-stream")

    def _routes(self) -> list[Route]:
        api, file = "/api/{kind}/{owner}/{name}", "{owner}/{name}/resolve/{revision}/{path:path}"
        batch = "{owner}/{name}.git/info/lfs/objects/batch"
        return [
            Route("/api/whoami-v2", self.whoami),
            Route("/api/repos/create", self.create, methods=["POST"]),
            Route("/api/validate-yaml", self.validate, methods=["POST"]),
            Route(api, self.info),
            Route(f"{api}/auth-check/write", self.auth_check),
            Route(f"{api}/revision/{{revision}}", self.info),
            Route(f"{api}/tree/{{revision}}", self.tree),
            Route(f"{api}/tree/{{revision}}/{{path:path}}", self.tree),
            Route(f"{api}/paths-info/{{revision}}", self.paths_info, methods=["POST"]),
            Route(f"{api}/preupload/{{revision}}", self.preupload, methods=["POST"]),
            Route(f"{api}/commit/{{revision}}", self.commit, methods=["POST"]),
            Route("/lfs/{oid}", self.lfs_put, methods=["PUT"]),
            Route(f"/{batch}", self.lfs_batch, methods=["POST"]),
            Route(f"/{{kind}}/{batch}", self.lfs_batch, methods=["POST"]),
            Route(f"/{{kind}}/{file}", self.resolve),
            Route(f"/{file}", self.resolve),
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The routes, as ASGI asks for them, with a record of requests and connections that are cut."""
        if scope["type"] == "http":
            self.requests.append(f"{scope['method']} {scope['path']}")
            if self.cut is not None and self.cut.fullmatch(scope["path"]):
                await receive()
                # uvicorn's own connection: an answer of any kind would be no cut.
                send.__self__.transport.abort()
                return
        await self.app(scope, receive, send)


def environment(url: str, home: Path, token: str | None = None) -> dict[str, str]:
    """For a new process that is to use the Hub at `url`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    kept |= {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return kept | ({"HF_TOKEN": token} if token else {})


@contextlib.contextmanager
def serve(tokens: dict[str, str]) -> Iterator[Hub]:
    """An empty Hub on a free port of 127.0.0.1, from a thread."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    # Before the thread has started: who comes early waits instead of being refused.
    listener.listen()
    hub = Hub(tokens)
    hub.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(hub, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
