"""A hub on loopback: as much of its protocol as models and data sets need."""

import contextlib
import dataclasses
import hashlib
import http.server
import json
import pathlib
import re
import threading
import urllib.parse

COMMIT = "c" * 40
_API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(/.*)?")
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.*)")


@dataclasses.dataclass
class Repository:
  """What a hub id names: file -> bytes.

  `refusal` is the status that its files, or all of it (`hidden`), get.
  `broken` maps a file to the bytes after which the connection is cut, once.
  """

  files: dict
  refusal: int = 0
  hidden: bool = False
  broken: dict = dataclasses.field(default_factory=dict)


class Hub:
  """Repositories by name, "datasets/o/n" for data sets, and what was asked.

  `asked`: (method, path, Range header or "") in order.
  """

  def __init__(self, repositories):
    self.repositories = repositories
    self.asked = []
    self.url = ""


@contextlib.contextmanager
def serving(repositories):
  """Serves them on a free port while it is open; yields the `Hub`."""
  hub = Hub(repositories)

  class Handler(_Handler):
    pass

  Handler.hub = hub
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
  hub.url = f"http://127.0.0.1:{server.server_port}"
  thread = threading.Thread(target=server.serve_forever, daemon=True)
  thread.start()
  try:
    yield hub
  finally:
    server.shutdown()
    server.server_close()
    thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
  hub = None
  protocol_version = "HTTP/1.1"

  def log_message(self, *arguments):
    pass

  def do_HEAD(self):
    self._answer()

  def do_GET(self):
    self._answer()

  def do_POST(self):
    body = self.rfile.read(int(self.headers["Content-Length"] or 0))
    self._answer(body)

  def _answer(self, body=b""):
    url = urllib.parse.urlsplit(self.path)
    path, query = urllib.parse.unquote(url.path), url.query.lower()
    ranged = self.headers["Range"] or ""
    self.hub.asked.append((self.command, path, ranged))
    if match := _API.fullmatch(path):
      kind, name, rest = match.groups()
      name = name if kind == "models" else f"datasets/{name}"
      repository = self.hub.repositories.get(name)
      if repository is None or repository.hidden:
        return self._refuse(repository)
      rest = f"{rest or ''}{'?all' * ('recursive=true' in query)}"
      return self._describe(name, repository, rest, body)
    if match := _FILE.fullmatch(path):
      prefix, name, _, file = match.groups()
      repository = self.hub.repositories.get(f"{prefix or ''}{name}")
      if repository is None or repository.refusal:
        return self._refuse(repository)
      if file not in repository.files:
        return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
      return self._file(repository, file, ranged)
    return self._send(404, b"", {})

  def _refuse(self, repository):
    if repository is None:
      return self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
    code = "RepoNotFound" if repository.hidden else "GatedRepo"
    return self._send(repository.refusal, b"", {"X-Error-Code": code})

  def _describe(self, name, repository, rest, body):
    entries = [
      {
        "type": "file",
        "path": path,
        "size": len(content),
        "oid": _etag(content),
      }
      for path, content in sorted(repository.files.items())
    ]
    if rest.startswith("/tree/"):
      rest, _, every = rest.partition("?")
      found = _children(entries, rest.split("/", 3)[3:], every=bool(every))
    elif rest.startswith("/paths-info/"):
      form = urllib.parse.parse_qs(body.decode())
      asked = json.loads(body)["paths"] if body[:1] == b"{" else form["paths"]
      found = [e for e in entries if e["path"] in asked]
      folders = {
        path.rpartition("/")[0] for path in repository.files
      } & set(asked)  # fmt: skip
      found += [{"type": "directory", "path": f, "oid": "0"} for f in folders]
    else:
      found = {
        "id": name.removeprefix("datasets/"),
        "sha": COMMIT,
        "gated": "auto" if repository.refusal else False,
        "private": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "siblings": [
          {"rfilename": e["path"], "size": e["size"], "blobId": e["oid"]}
          for e in entries
        ],
      }
    content = json.dumps(found).encode()
    return self._send(200, content, {"Content-Type": "application/json"})

  def _file(self, repository, file, ranged):
    content = repository.files[file]
    headers = {
      "ETag": f'"{_etag(content)}"',
      "X-Repo-Commit": COMMIT,
      "Accept-Ranges": "bytes",
    }
    start, status, stop = 0, 200, len(content)
    if match := re.fullmatch(r"bytes=(\d+)-(\d*)", ranged):
      start, status = int(match[1]), 206
      stop = min(int(match[2]) + 1, stop) if match[2] else stop
      headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
    cut = None
    if self.command == "GET" and file in repository.broken:
      cut = repository.broken.pop(file)
    return self._send(status, content[start:stop], headers, cut=cut)

  def _send(self, status, content, headers, *, cut=None):
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name, value)
    self.send_header("Content-Length", str(len(content)))
    self.end_headers()
    if self.command != "HEAD":
      self.wfile.write(content[:cut])
    if cut is not None:
      self.wfile.flush()
      self.close_connection = True


def _children(entries, folder, *, every):
  """What is right below a folder, or all of it; [] is the top."""
  start = "".join(f"{part}/" for part in folder)
  inside = [e for e in entries if e["path"].startswith(start)]
  names = {e["path"].removeprefix(start).partition("/")[0] for e in inside}
  files = {e["path"]: e for e in inside}
  if every:
    folders = {str(p) for path in files for p in pathlib.PurePath(path).parents}
    names |= {f.removeprefix(start) for f in folders if f.startswith(start)}
    names |= {path.removeprefix(start) for path in files}
    names -= {"", "."}
  return [
    files[start + name]
    if start + name in files
    else {"type": "directory", "path": start + name, "oid": "0" * 40}
    for name in sorted(names)
  ]


def _etag(content):
  return hashlib.sha1(content).hexdigest()
