"""A Hugging Face hub on a local port: enough of its protocol to download the files of one directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves ``folder`` as ``repo`` at the revisions given.

    Attributes:
        requests: ``METHOD path`` of everything asked for.
        broken: names of files of which only the first half is sent.
        error_code: what the hub says about the repository instead of serving it, such as GatedRepo.
    """

    daemon_threads = True

    def __init__(self, folder: Path, repo: str, revisions: tuple[str, ...]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.repo = repo
        self.revisions = revisions
        self.requests: list[str] = []
        self.broken: set[str] = set()
        self.error_code: str | None = None

    @property
    def endpoint(self) -> str:
        """The address to give as the hub's endpoint."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serve_hub(folder: Path, repo: str = "org/name", revisions: tuple[str, ...] = ("main",)) -> Iterator[Hub]:
    """Run such a hub while the block runs."""
    hub = Hub(folder, repo, revisions)
    thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        api = f"/api/models/{hub.repo}"
        if hub.error_code is not None:
            self._send(403 if hub.error_code == "GatedRepo" else 404, {"X-Error-Code": hub.error_code})
        elif not path.startswith((f"{api}/", f"/{hub.repo}/")):
            self._send(404, {"X-Error-Code": "RepoNotFound"})
        elif path.startswith(f"{api}/revision/"):
            self._send_info(path.removeprefix(f"{api}/revision/"))
        elif path == f"{api}/tree/{COMMIT}":
            self._send_json([self._entry(file) for file in self._files()])
        else:
            self._send_file(path.removeprefix(f"/{hub.repo}/resolve/{COMMIT}/"))

    def _files(self) -> list[Path]:
        return sorted(file for file in self.server.folder.rglob("*") if file.is_file())

    def _name(self, file: Path) -> str:
        return file.relative_to(self.server.folder).as_posix()

    def _entry(self, file: Path) -> dict[str, object]:
        return {"type": "file", "path": self._name(file), "size": file.stat().st_size, "oid": _etag(file)}

    def _send_info(self, revision: str) -> None:
        if revision not in (*self.server.revisions, COMMIT):
            self._send(404, {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [{"rfilename": self._name(file)} for file in self._files()]
        self._send_json({"id": self.server.repo, "sha": COMMIT, "siblings": siblings})

    def _send_json(self, document: object) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(document).encode())

    def _send_file(self, name: str) -> None:
        file = self.server.folder / name
        if file not in self._files():
            self._send(404, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"ETag": f'"{_etag(file)}"', "X-Repo-Commit": COMMIT}
        body = file.read_bytes()
        self._send(200, headers, body, keep=len(body) // 2 if name in self.server.broken else None)

    def _send(self, status: int, headers: dict[str, str], body: bytes = b"", keep: int | None = None) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:keep])
        self.close_connection = keep is not None


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
