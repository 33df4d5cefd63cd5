"""A W&B server on loopback, so that tests run the real wandb client without a network.

It keeps runs (config, summary, history, files), artifacts and views (reports) in memory, and uploaded files in a
folder, and speaks as much GraphQL as wandb 0.31 and wandb-workspaces 0.4 do. It does not parse queries: an answer has
every field that any query of its operation asks for. What it does not know gets a 400 at once, because the client
would retry for a minute if the connection was dropped, and is listed in `refused`, which tests assert to be empty.

    with serve(folder) as server:  # WANDB_BASE_URL=server.url and WANDB_API_KEY=KEY for the process under test
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

ENTITY = "annotators"
KEY = "0123456789abcdef0123456789abcdef01234567"
DATE = "2026-01-01T00:00:00Z"
HISTORY, SUMMARY = "wandb-history.jsonl", "wandb-summary.json"


def _id(kind: str, name: str) -> str:
    return base64.b64encode(f"{kind}:{name}".encode()).decode()


def _page(nodes: list[dict]) -> dict[str, Any]:
    """All nodes as the first and last page of a connection."""
    edges = [{"node": node, "cursor": str(i)} for i, node in enumerate(nodes)]
    return {"edges": edges, "totalCount": len(nodes), "pageInfo": {"endCursor": None, "hasNextPage": False}}


def _project(name: str) -> dict[str, Any]:
    return {
        "__typename": "Project",
        "id": _id("Project", name),
        "internalId": _id("ProjectInternalId", name),
        "name": name,
        "entityName": ENTITY,
        "entity": {"id": _id("Entity", ENTITY), "name": ENTITY},
        "createdAt": DATE,
        "isBenchmark": False,
        "user": None,
    }


@dataclass
class StoredRun:
    """What the server knows of a run. `attributes` are its displayName, groupName, jobType and tags."""

    name: str
    project: str
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    events: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)
    state: str = "running"

    def values(self) -> dict[str, Any]:
        """The configuration as the user logged it."""
        return {key: item["value"] for key, item in self.config.items() if key != "_wandb"}

    def node(self) -> dict[str, Any]:
        tail = [json.dumps(row) for row in self.history[-1:]]
        keys = {key: {} for row in self.history for key in row}
        return {
            "__typename": "Run",
            "id": _id("Run", f"v1:{self.name}:{self.project}:{ENTITY}"),
            "internalId": self.name,
            "name": self.name,
            "displayName": self.attributes.get("displayName") or self.name,
            "description": None,
            "notes": None,
            "config": json.dumps(self.config),
            "wandbConfig": "{}",
            "summaryMetrics": json.dumps(self.summary),
            "systemMetrics": "{}",
            "sweepName": None,
            "tags": self.attributes.get("tags") or [],
            "group": self.attributes.get("groupName"),
            "jobType": self.attributes.get("jobType"),
            "state": self.state,
            "createdAt": DATE,
            "heartbeatAt": DATE,
            "historyLineCount": len(self.history),
            "historyKeys": {"lastStep": len(self.history) - 1, "keys": keys},
            "historyTail": json.dumps(tail),
            "eventsLineCount": self.events,
            "eventsTail": "[]",
            "logLineCount": 0,
            "commit": None,
            "readOnly": False,
            "user": {"name": ENTITY, "username": ENTITY},
            "project": _project(self.project),
            "projectId": "1",
            "stopped": False,
            "host": None,
            "fileCount": 0,
        }


class WandbServer:
    """The server's state, which tests read, and the operations that change it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.url = ""
        self.runs: dict[str, StoredRun] = {}
        self.projects: set[str] = set()
        self.views: dict[str, dict[str, Any]] = {}
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.operations: list[str] = []
        self.refused: list[str] = []
        self.keys_seen: set[str] = set()
        # A server that is gone: from now on, or once a client has opened its run.
        self.down = self.down_after_start = False
        self._lock = threading.Lock()

    def files(self, run: str) -> dict[str, Path]:
        """The files that were uploaded for a run, by name."""
        below = self.folder / "runs" / run
        return {str(path.relative_to(below)): path for path in sorted(below.rglob("*")) if path.is_file()}

    # Operations of wandb-core, the client's service, by their names in GraphQL. `v` are the variables.

    def Viewer(self, v: dict) -> dict:
        person = {"id": _id("User", ENTITY), "entity": ENTITY, "username": ENTITY, "name": ENTITY, "email": "a@b.c"}
        more = {"admin": False, "flags": "{}", "deletedAt": None, "apiKeys": _page([]), "accountType": None}
        return {"viewer": {**person, **more, "teams": _page([{"name": ENTITY}])}}

    GetViewer = GetDefaultEntity = Viewer

    def ServerFeaturesQuery(self, v: dict) -> dict:
        return {"serverInfo": {"features": [], "cliVersionInfo": {}, "latestLocalVersionInfo": None}}

    ServerInfo = ServerFeaturesQuery

    def OrganizationCoreWeaveOrganizationID(self, v: dict) -> dict:
        return {"entity": {"organization": {"coreWeaveOrganizationId": None}}}

    def RunResumeStatus(self, v: dict) -> dict:
        run = self.runs.get(v["name"])
        return {"model": {**_project(v["project"]), "bucket": run.node() if run else None}}

    def UpsertBucket(self, v: dict) -> dict:
        name = v.get("name") or v["id"]
        new = name not in self.runs
        run = self.runs.setdefault(name, StoredRun(name, v["project"]))
        self.projects.add(run.project)
        if v.get("config"):
            run.config = json.loads(v["config"])
        if v.get("summaryMetrics"):
            run.summary |= json.loads(v["summaryMetrics"])
        run.attributes |= {key: v[key] for key in ("displayName", "groupName", "jobType", "tags") if v.get(key)}
        run.state = "running"
        self.down |= self.down_after_start
        return {"upsertBucket": {"bucket": run.node(), "inserted": new}}

    def RunStoppedStatus(self, v: dict) -> dict:
        return {"project": {"run": {"stopped": False}}}

    def CreateRunFiles(self, v: dict) -> dict:
        files = [{"name": name, "uploadUrl": f"{self.url}/store/runs/{v['run']}/{name}"} for name in v["files"]]
        return {"createRunFiles": {"runID": v["run"], "uploadHeaders": [], "files": files}}

    def ArtifactType(self, v: dict) -> dict:
        return {"project": {"artifact": None}}

    def CreateArtifact(self, v: dict) -> dict:
        identity = _id("Artifact", v["clientID"])
        self.artifacts[identity] = {**v, "files": [], "committed": False}
        artifact = {"id": identity, "state": "PENDING", "artifactSequence": {"id": "s", "latestArtifact": None}}
        return {"createArtifact": {"artifact": artifact}}

    def CreateArtifactManifest(self, v: dict) -> dict:
        url = f"{self.url}/store/artifacts/{_folder(v['artifactID'])}/manifest.json"
        file = {"id": "f", "name": "manifest", "displayName": "manifest", "uploadUrl": url, "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": "m", "file": file}}}

    def CreateArtifactFiles(self, v: dict) -> dict:
        nodes = []
        for file in v["artifactFiles"]:
            self.artifacts[file["artifactID"]]["files"].append(file["name"])
            path = f"artifacts/{_folder(file['artifactID'])}/{file['name']}"
            place = {"uploadUrl": f"{self.url}/store/{path}", "uploadHeaders": [], "uploadMultipartUrls": None}
            names = {"id": "f", "name": file["name"], "displayName": file["name"], "storagePath": path}
            nodes.append({**names, **place, "artifact": {"id": file["artifactID"]}})
        return {"createArtifactFiles": {"files": _page(nodes)}}

    def CommitArtifact(self, v: dict) -> dict:
        self.artifacts[v["artifactID"]]["committed"] = True
        return {"commitArtifact": {"artifact": {"id": v["artifactID"], "digest": "d"}}}

    # Operations of wandb.Api and of wandb-workspaces.

    def GetProjects(self, v: dict) -> dict:
        known = v["entity"] == ENTITY
        return {"models": _page([_project(name) for name in sorted(self.projects)]) if known else None}

    def ProjectInternalId(self, v: dict) -> dict:
        return {"project": _project(v["projectName"])}

    def CreateProject(self, v: dict) -> dict:
        self.projects.add(v["name"])
        project = {**_project(v["name"]), "description": None, "access": None, "views": None}
        return {"result": {"project": project, "model": project, "inserted": True}}

    def Runs(self, v: dict) -> dict:
        nodes = [run.node() for run in self.runs.values() if run.project == v["project"]]
        return {"project": {**_project(v["project"]), "runCount": len(nodes), "readOnly": False, "runs": _page(nodes)}}

    def Run(self, v: dict) -> dict:
        run = self.runs.get(v.get("name") or v.get("run"))
        return {"project": {**_project(v["project"]), "run": run.node() if run else None}}

    RunHistoryKeys = Run

    def HistoryPage(self, v: dict) -> dict:
        run = self.runs[v["run"]]
        rows = [json.dumps(row) for row in run.history if v["minStep"] <= row["_step"] < v["maxStep"]]
        return {"project": {**_project(run.project), "run": {**run.node(), "history": rows[: v["pageSize"]]}}}

    def SampledHistoryPage(self, v: dict) -> dict:
        run, keys = self.runs[v["run"]], json.loads(v["spec"])["keys"]
        rows = [{key: row[key] for key in keys} for row in run.history if all(key in row for key in keys)]
        return {"project": {"run": {**run.node(), "sampledHistory": [rows]}}}

    def RunParquetHistory(self, v: dict) -> dict:
        return {"project": {"run": {"parquetHistory": {"parquetUrls": [], "liveData": []}}}}

    def upsertView(self, v: dict) -> dict:
        identity = v.get("id") or _id("View", v["name"])
        new = identity not in self.views
        self.views[identity] = v
        return {"upsertView": {"view": self._view(identity), "inserted": new}}

    def SpecificReport(self, v: dict) -> dict:
        return {"view": self._view(v["reportId"])}

    def _view(self, identity: str) -> dict:
        view = self.views[identity]
        kept = {key: view.get(key) for key in ("type", "name", "displayName", "description", "spec")}
        people = {"user": {"name": ENTITY, "username": ENTITY, "userInfo": {}}}
        dates = {"createdAt": DATE, "updatedAt": DATE}
        return {"id": identity, **kept, **people, **dates, "project": _project(view["projectName"])}

    # HTTP.

    async def graphql(self, request: Request) -> Response:
        if self.down:
            return Response(status_code=503)
        kind, _, code = request.headers.get("authorization", "").partition(" ")
        key = base64.b64decode(code).decode().partition(":")[2] if kind == "Basic" else code
        self.keys_seen.add(key)
        if key != KEY:
            return JSONResponse({"errors": [{"message": "user is not logged in"}]}, 401)
        body = json.loads(await _body(request))
        name = re.search(r"(?:query|mutation)\s+(\w+)", body["query"])[1]
        variables = body.get("variables") or {}
        variables |= variables.pop("input", None) or {}
        with self._lock:
            self.operations.append(name)
            if name.startswith("_") or name not in type(self).__dict__:
                self.refused.append(name)
                return JSONResponse({"errors": [{"message": f"unknown operation {name}: {body['query']}"}]}, 400)
            return JSONResponse({"data": getattr(self, name)(variables)})

    async def file_stream(self, request: Request) -> Response:
        if self.down:
            return Response(status_code=503)
        body = json.loads(await _body(request))
        with self._lock:
            run = self.runs[request.path_params["run"]]
            for name, chunk in (body.get("files") or {}).items():
                if name == HISTORY:
                    run.history[chunk["offset"] :] = map(json.loads, chunk["content"])
                elif name == SUMMARY:
                    run.summary = json.loads(chunk["content"][-1])
            if body.get("complete"):
                run.state = "failed" if body.get("exitcode") else "finished"
        return JSONResponse({"exitcode": None, "limits": {}})

    async def store(self, request: Request) -> Response:
        path = self.folder / request.path_params["path"]
        if request.method == "GET":
            return FileResponse(path) if path.is_file() else Response(status_code=404)
        content = await _body(request)
        path.parent.mkdir(parents=True, exist_ok=True)
        await run_in_threadpool(path.write_bytes, content)
        return Response()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/graphql", self.graphql, methods=["POST"]),
                Route("/files/{entity}/{project}/{run}/file_stream", self.file_stream, methods=["POST"]),
                Route("/store/{path:path}", self.store, methods=["PUT", "GET"]),
            ]
        )


def _folder(artifact: str) -> str:
    return artifact.replace("=", "").replace("/", "-")[-40:]


async def _body(request: Request) -> bytes:
    content = await request.body()
    return gzip.decompress(content) if request.headers.get("content-encoding") == "gzip" else content


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[WandbServer]:
    """Serve on a free port of 127.0.0.1 from a thread."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = WandbServer(folder)
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    service = uvicorn.Server(uvicorn.Config(server.app(), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=service.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        service.should_exit = True
        thread.join(10)
        listener.close()
