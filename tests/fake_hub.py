"""A small server that speaks the part of the Hub's API that pushing a model needs, and keeps what it was given.

`python -m tests.fake_hub FOLDER` runs it until interrupted: any token may write, and what is pushed is written to the folder.

Made after the client `huggingface_hub` 2.4. It checks what the real one checks of a push: the token, the metadata of the card,
the length and hash of large files, and that a commit names only those that were uploaded.
"""

import base64
import contextlib
import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

LARGE = (".safetensors", ".bin", ".png", ".model")
REGULAR_LIMIT = 10_000_000


class FakeHub:
    """The server, on a free port of this machine.

    Attributes:
        endpoint: for `HF_ENDPOINT`.
        tokens: the user and the role of each token; where it is `None`, any token may write.
        files: the files of each repository by their paths, on all its branches.
        commits: of all repositories, each (repository, branch, message, paths).
        branches: of each repository.
        visibility: as each repository was made.
        requests: each (method, path).
        broken: parts of paths that are answered with status 500.
        folder: where to write what is pushed, if not only here.
    """

    def __init__(self, tokens, folder=None):
        self.folder = folder
        self.tokens = tokens
        self.files, self.commits, self.branches, self.visibility = {}, [], {}, {}
        self.requests, self.broken, self.large = [], set(), {}
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def everything(self):
        """Each path in a repository with its bytes, and each commit's message."""
        for repository, files in self.files.items():
            for path, content in files.items():
                yield f"{repository}/{path}", content
        for _, _, message, _ in self.commits:
            yield "commit message", message.encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self._body()
        self._answer(200, {})

    def do_GET(self):
        self._route("GET")

    def do_POST(self):
        self._route("POST")

    def do_PUT(self):
        self._route("PUT")

    def _route(self, method):
        path = self.path.split("?")[0]
        body = self._body()
        self.hub.requests.append((method, path))
        if any(part in path for part in self.hub.broken):
            return self._answer(500, {"error": "broken for the test"})
        if method == "PUT" and path.startswith("/lfs/"):
            return self._store_large(path.removeprefix("/lfs/"), body)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        anyone = ("you", "write") if token and self.hub.tokens is None else ("", "")
        self.user, self.role = (self.hub.tokens or {}).get(token, anyone)
        if not self.user:
            return self._answer(401, {"error": "Invalid credentials in Authorization header"})
        parts = path.strip("/").split("/")
        if path == "/api/whoami-v2":
            auth = {"type": "access_token", "accessToken": {"displayName": "test", "role": self.role}}
            return self._answer(200, {"type": "user", "name": self.user, "orgs": [{"name": "lab"}], "auth": auth})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._validate(json.loads(body)["content"])
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(json.loads(body))
        if path == "/lfs-verify":
            given = json.loads(body)
            stored = self.hub.large.get(given["oid"])
            return self._answer(200 if stored is not None and len(stored) == given["size"] else 404, {})
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            repository = "/".join(parts[2:4])
            if repository not in self.hub.files:
                return self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            if len(parts) == 4 or parts[4] == "revision":
                return self._answer(200, {"id": repository, "sha": "0" * 40})
            if parts[4] == "branch":
                self.hub.branches[repository].add(parts[5])
                return self._answer(200, {})
            if parts[5] not in self.hub.branches[repository]:
                return self._answer(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
            if parts[4] == "preupload":
                return self._preupload(json.loads(body))
            if parts[4] == "commit":
                return self._commit(repository, parts[5], body)
        return self._answer(404, {"error": f"no such route: {method} {path}"})

    def _create(self, given):
        owner = given["organization"] or self.user
        if owner not in (self.user, "lab") or self.role == "read":
            return self._answer(403, {"error": f"You don't have the rights to create a model under {owner}"})
        repository = f"{owner}/{given['name']}"
        answer = {"url": f"{self.hub.endpoint}/{repository}", "name": repository, "id": "1"}
        if repository in self.hub.files:
            return self._answer(409, {**answer, "error": "You already created this model repo"})
        self.hub.files[repository], self.hub.branches[repository] = {}, {"main"}
        self.hub.visibility[repository] = given.get("visibility", given.get("private"))
        return self._answer(200, answer)

    def _validate(self, content):
        try:
            _, header, _ = content.split("---\n", 2)
            data = yaml.safe_load(header)
            lists = [data.get(name) or [] for name in ("tags", "datasets")]
            assert isinstance(data, dict) and all(isinstance(item, str) for items in lists for item in items)
        except Exception as error:
            return self._answer(400, {"errors": [{"message": repr(error)}], "warnings": []})
        return self._answer(200, {"errors": [], "warnings": []})

    def _preupload(self, given):
        def mode(item):
            return "lfs" if item["path"].endswith(LARGE) or item["size"] > REGULAR_LIMIT else "regular"

        files = [{"path": item["path"], "uploadMode": mode(item), "shouldIgnore": False} for item in given["files"]]
        self._answer(200, {"files": files})

    def _batch(self, given):
        objects = []
        for item in given["objects"]:
            actions = {
                "upload": {"href": f"{self.hub.endpoint}/lfs/{item['oid']}"},
                "verify": {"href": f"{self.hub.endpoint}/lfs-verify"},
            }
            # As the real one: what it has already needs no upload.
            objects.append({**item, **({} if item["oid"] in self.hub.large else {"actions": actions})})
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _store_large(self, oid, body):
        if hashlib.sha256(body).hexdigest() != oid:
            return self._answer(400, {"error": "the content has another hash"})
        self.hub.large[oid] = body
        return self._answer(200, {})

    def _commit(self, repository, branch, body):
        lines = [json.loads(line) for line in body.decode().splitlines()]
        added = {}
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                added[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile" and value["oid"] in self.hub.large:
                added[value["path"]] = self.hub.large[value["oid"]]
            else:
                return self._answer(400, {"error": f"cannot commit {line['key']}: {value}"})
        self.hub.files[repository].update(added)
        for path, content in added.items() if self.hub.folder else ():
            (self.hub.folder / repository / path).parent.mkdir(parents=True, exist_ok=True)
            (self.hub.folder / repository / path).write_bytes(content)
        message = lines[0]["value"]["summary"] + lines[0]["value"].get("description", "")
        self.hub.commits.append((repository, branch, message, sorted(added)))
        sha = hashlib.sha1(body).hexdigest()
        url = f"{self.hub.endpoint}/{repository}/commit/{sha}"
        return self._answer(200, {"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def _body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status, content, headers=None):
        data = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


if __name__ == "__main__":
    with FakeHub(None, Path(sys.argv[1])) as server:
        print(f"HF_ENDPOINT={server.endpoint}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
