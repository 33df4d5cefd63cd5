"""A read-only Hub on loopback, so that tests run the code path of an online user without a network.

It serves a folder laid out as `datasets/<owner>/<name>/<files>` (and `models/...`) with as much of the Hub's HTTP
interface as `load_dataset` and `hf_hub_download` use to find and read files. A repository has the one branch `main`.

    with serve(folder) as url:  # HF_ENDPOINT=url for the process under test
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

DATE = "2024-01-01T00:00:00.000Z"


@cache
def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _refusal(code: str, message: str) -> Response:
    """The Hub's clients tell the kinds of 404 by these headers."""
    return JSONResponse({"error": message}, 404, {"X-Error-Code": code, "X-Error-Message": message})


class _Repository:
    """One folder with its files, seen as a repository with a single commit."""

    def __init__(self, folder: Path, name: str):
        self.name = name
        self.files = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}
        listing = "".join(f"{path} {_digest(file)}\n" for path, file in self.files.items())
        self.commit = hashlib.sha1(listing.encode()).hexdigest()

    def entries(self, below: str = "", recursive: bool = True) -> list[dict]:
        """Files and folders as the Hub lists them."""
        prefix = f"{below}/" if below else ""
        found: dict[str, dict] = {}
        for path, file in self.files.items():
            if not path.startswith(prefix):
                continue
            parts = path[len(prefix) :].split("/")
            for depth in range(1, len(parts)):
                folder = prefix + "/".join(parts[:depth])
                if depth == 1 or recursive:
                    oid = hashlib.sha1(folder.encode()).hexdigest()
                    found[folder] = {"type": "directory", "path": folder, "size": 0, "oid": oid}
            if len(parts) == 1 or recursive:
                size, oid = file.stat().st_size, _digest(file)
                lfs = {"oid": oid, "size": size, "pointerSize": 134}
                found[path] = {"type": "file", "path": path, "size": size, "oid": oid[:40], "lfs": lfs}
        return list(found.values())


class _Hub:
    def __init__(self, root: Path):
        self.root = root

    def _find(self, request: Request) -> _Repository | Response:
        values = request.path_params
        name = f"{values['owner']}/{values['name']}"
        folder = self.root / values.get("kind", "models") / name
        if not folder.is_dir():
            return _refusal("RepoNotFound", "Repository not found")
        repository = _Repository(folder, name)
        if values.get("revision", "main") not in ("main", repository.commit):
            return _refusal("RevisionNotFound", f"Invalid rev id: {values['revision']}")
        return repository

    def info(self, request: Request) -> Response:
        repository = self._find(request)
        if isinstance(repository, Response):
            return repository
        return JSONResponse(
            {
                "_id": repository.commit[:24],
                "id": repository.name,
                "sha": repository.commit,
                "author": repository.name.split("/")[0],
                "private": False,
                "gated": False,
                "disabled": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "createdAt": DATE,
                "lastModified": DATE,
                "siblings": [{"rfilename": path} for path in repository.files],
            }
        )

    def tree(self, request: Request) -> Response:
        repository = self._find(request)
        if isinstance(repository, Response):
            return repository
        recursive = request.query_params.get("recursive", "").lower() in ("1", "true")
        below = request.path_params.get("path", "").strip("/")
        entries = repository.entries(below, recursive)
        return JSONResponse(entries) if entries else _refusal("EntryNotFound", f"{below} does not exist")

    async def paths_info(self, request: Request) -> Response:
        repository = self._find(request)
        if isinstance(repository, Response):
            return repository
        if "json" in request.headers.get("content-type", ""):
            wanted = (await request.json())["paths"]
        else:
            wanted = (await request.form()).getlist("paths")
        return JSONResponse([entry for entry in repository.entries() if entry["path"] in wanted])

    def resolve(self, request: Request) -> Response:
        repository = self._find(request)
        if isinstance(repository, Response):
            return repository
        headers = {"X-Repo-Commit": repository.commit}
        file = repository.files.get(request.path_params["path"])
        if file is None:
            refusal = _refusal("EntryNotFound", "Entry not found")
            refusal.headers.update(headers)
            return refusal
        headers |= {"ETag": f'"{_digest(file)}"', "X-Linked-Size": str(file.stat().st_size)}
        return FileResponse(file, headers=headers, media_type="application/octet-stream")

    def app(self) -> Starlette:
        api = "/api/{kind}/{owner}/{name}"
        file = "{owner}/{name}/resolve/{revision}/{path:path}"
        return Starlette(
            routes=[
                Route(api, self.info),
                Route(f"{api}/revision/{{revision}}", self.info),
                Route(f"{api}/tree/{{revision}}", self.tree),
                Route(f"{api}/tree/{{revision}}/{{path:path}}", self.tree),
                Route(f"{api}/paths-info/{{revision}}", self.paths_info, methods=["POST"]),
                Route(f"/{{kind}}/{file}", self.resolve),
                Route(f"/{file}", self.resolve),
            ]
        )


@contextlib.contextmanager
def serve(root: Path) -> Iterator[str]:
    """Serve `root` on a free port of 127.0.0.1 from a thread; gives the address for HF_ENDPOINT."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(_Hub(root).app(), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
