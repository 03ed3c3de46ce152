"""A small S3 server on loopback, for tests: one thread, objects in memory, no authentication."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    lock: threading.Lock

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("x-amz-bucket-region", "us-east-1")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    @property
    def _key(self) -> str:
        """The bucket and the key."""
        return unquote(urlsplit(self.path).path).lstrip("/")

    def do_HEAD(self) -> None:
        self._answer(200)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            return self._list(query)
        with self.lock:
            content = self.objects.get(self._key)
        if content is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        if self.headers.get("If-None-Match") == tag:
            return self._answer(304, ETag=tag)
        if "Range" not in self.headers:
            return self._answer(200, content, ETag=tag)
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        start = int(first) if first else len(content) - int(last)
        stop = int(last) + 1 if first and last else len(content)
        part = content[start:stop]
        self._answer(206, part, ETag=tag, Content_Range=f"bytes {start}-{start + len(part) - 1}/{len(content)}")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
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

    def _list(self, query: dict[str, list[str]]) -> None:
        bucket, prefix = self._key.split("/", 1)[0], query.get("prefix", [""])[0]
        with self.lock:
            keys = sorted(
                key.removeprefix(f"{bucket}/") for key in self.objects if key.startswith(f"{bucket}/{prefix}")
            )
        items = "".join(f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>" for key in keys)
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>"
        self._answer(200, body.encode(), Content_Type="application/xml")


@contextmanager
def s3_server() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Run a server; return its URL and its objects by bucket and key, which a test may change."""
    objects: dict[str, bytes] = {}
    handler = type("Handler", (_Handler,), {"objects": objects, "lock": threading.Lock()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", objects
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
