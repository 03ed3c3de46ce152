"""Object stores on loopback, for tests: S3 and Google Cloud Storage, objects in memory, no authentication."""

import hashlib
import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]  # by bucket and key
    lock: threading.Lock

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _answer_content(self, content: bytes, **headers: str) -> None:
        """Answer with an object, or with the range of it that the request names."""
        if "Range" not in self.headers:
            return self._answer(200, content, **headers)
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        start = int(first) if first else len(content) - int(last)
        stop = int(last) + 1 if first and last else len(content)
        part = content[start:stop]
        self._answer(206, part, Content_Range=f"bytes {start}-{start + len(part) - 1}/{len(content)}", **headers)

    def _read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    @property
    def _path(self) -> str:
        return urlsplit(self.path).path

    @property
    def _query(self) -> dict[str, str]:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in query.items()}


class S3Handler(_Handler):
    """S3: keys are paths, and conditions compare ETags."""

    @property
    def _key(self) -> str:
        """The bucket and the key."""
        return unquote(self._path).lstrip("/")

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        super()._answer(status, body, x_amz_bucket_region="us-east-1", **headers)

    def do_HEAD(self) -> None:
        self._answer(200)

    def do_GET(self) -> None:
        if "list-type" in self._query:
            return self._list(self._query.get("prefix", ""))
        with self.lock:
            content = self.objects.get(self._key)
        if content is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        if self.headers.get("If-None-Match") == tag:
            return self._answer(304, ETag=tag)
        self._answer_content(content, ETag=tag)

    def do_PUT(self) -> None:
        content = self._read_body()
        with self.lock:
            current = self.objects.get(self._key)
            if self.headers.get("If-None-Match") == "*" and current is not None:
                return self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            self.objects[self._key] = content
        self._answer(200, ETag=f'"{hashlib.md5(content).hexdigest()}"')

    def do_DELETE(self) -> None:
        with self.lock:
            self.objects.pop(self._key, None)
        self._answer(204)

    def _list(self, prefix: str) -> None:
        bucket = self._key.split("/", 1)[0]
        with self.lock:
            keys = sorted(
                key.removeprefix(f"{bucket}/") for key in self.objects if key.startswith(f"{bucket}/{prefix}")
            )
        items = "".join(f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>" for key in keys)
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
        self._answer(200, body.encode(), Content_Type="application/xml")


class GcsHandler(_Handler):
    """Google Cloud Storage: its JSON API. Keys are quoted, and conditions compare generations."""

    @property
    def _bucket(self) -> str:
        return self._path.partition("/storage/v1/b/")[2].split("/", 1)[0]

    @property
    def _key(self) -> str:
        """The bucket and the key."""
        return f"{self._bucket}/{unquote(self._path.partition('/o/')[2])}"

    def _generation(self, key: str) -> int:
        """Return a number that changes with the content; 0 if there is no such object. The caller holds the lock."""
        return zlib.crc32(self.objects[key]) + 1 if key in self.objects else 0

    def _is_refused(self, key: str) -> bool:
        """Answer if the object does not have the generation that the request needs. The caller holds the lock."""
        expected = self._query.get("ifGenerationMatch")
        refused = expected is not None and int(expected) != self._generation(key)
        if refused:
            self._answer(412)
        return refused

    def do_GET(self) -> None:
        if "/o/" not in self._path:
            return self._list()
        with self.lock:
            content, generation = self.objects.get(self._key), self._generation(self._key)
            if self._is_refused(self._key):
                return
        if content is None:
            return self._answer(404)
        headers = {"x_goog_generation": str(generation)}
        if self._query.get("ifGenerationNotMatch") == str(generation):
            return self._answer(304, **headers)
        self._answer_content(content, **headers)

    def do_POST(self) -> None:
        content = self._read_body()
        key = f"{self._bucket}/{self._query['name']}"
        with self.lock:
            if self._is_refused(key):
                return
            self.objects[key] = content
            metadata = self._metadata(key)
        self._answer(200, json.dumps(metadata).encode(), Content_Type="application/json")

    def do_DELETE(self) -> None:
        with self.lock:
            if self._is_refused(self._key):
                return
            found = self.objects.pop(self._key, None) is not None
        self._answer(204 if found else 404)

    def _metadata(self, key: str) -> dict[str, str]:
        bucket, _, name = key.partition("/")
        generation = str(self._generation(key))
        return {"name": name, "bucket": bucket, "generation": generation, "size": str(len(self.objects[key]))}

    def _list(self) -> None:
        first, end = self._query.get("startOffset", ""), self._query.get("endOffset")
        with self.lock:
            names = {key: key.removeprefix(f"{self._bucket}/") for key in self.objects if key.startswith(self._bucket)}
            items = [
                self._metadata(key) for key, name in sorted(names.items()) if first <= name and (not end or name < end)
            ]
        self._answer(200, json.dumps({"items": items}).encode(), Content_Type="application/json")


@contextmanager
def object_server(handler: type[_Handler]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Run a server; return its URL and its objects by bucket and key, which a test may change."""
    objects: dict[str, bytes] = {}
    bound = type("Handler", (handler,), {"objects": objects, "lock": threading.Lock()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", objects
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
