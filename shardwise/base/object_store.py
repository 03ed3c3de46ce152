"""ObjectStore: the objects under a prefix of a bucket, such as `s3://bucket/run/`, through TensorStore."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from shardwise.base.lazy import lazy_module

ts: Any = lazy_module("tensorstore")  # an optional dependency, whose import takes 53 ms

DRIVERS = {"s3": "s3", "gs": "gcs"}  # URL scheme → TensorStore driver
# Requests for single objects are retried for half a minute, with 1, 2, 4 … seconds in between, so that a wrong address
# is an error soon. TensorStore retries requests for arrays for many minutes.
_RETRIES = {"max_retries": 5}


class ObjectStoreError(OSError):
    """A request to an object store has failed."""


@final
@dataclass(frozen=True)
class ObjectStore:
    """The objects under a prefix of a bucket.

    Attributes:
        scheme: "s3" or "gs".
        bucket: the bucket.
        path: the prefix, which ends with a slash; "" for the entire bucket.
    """

    scheme: str
    bucket: str
    path: str

    @classmethod
    def from_url(cls, url: str) -> "ObjectStore":
        """Parse a URL such as `s3://bucket/name`. Raises ValueError if it has an unknown scheme, or no bucket."""
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in DRIVERS:
            stores = " or ".join(f"{known}://" for known in DRIVERS)
            raise ValueError(f"{url!r} is not the URL of an object store: it must begin with {stores}")
        bucket, _, path = rest.strip("/").partition("/")
        if not bucket:
            raise ValueError(f"{url!r} names no bucket: write {scheme}://bucket/name")
        return cls(scheme, bucket, f"{path}/" if path else "")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.path}".rstrip("/")

    def child(self, name: str) -> "ObjectStore":
        """Return the objects under a longer prefix."""
        return ObjectStore(self.scheme, self.bucket, f"{self.path}{name}/")

    def kvstore(self) -> dict[str, Any]:
        """Return TensorStore's description of the prefix."""
        store = {"driver": DRIVERS[self.scheme], "bucket": self.bucket, "path": self.path}
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if self.scheme == "s3" and endpoint:  # TensorStore does not read these variables
            store["endpoint"] = endpoint
        return store

    def open(self) -> Any:
        """Return TensorStore's store."""
        retries = {f"{driver}_request_retries": _RETRIES for driver in DRIVERS.values()}
        return ts.KvStore.open(self.kvstore(), context=ts.Context(retries)).result()

    def request(self, request: Callable[[Any], Any], purpose: str) -> Any:
        """Return the result of a request to the store. `purpose` completes "cannot be", for the error."""
        try:
            return request(self.open()).result()
        except Exception as error:
            raise ObjectStoreError(f"{self} cannot be {purpose}: {error}") from error

    def keys(self, prefix: str = "") -> list[str]:
        """Return the names of all objects whose names begin with `prefix`."""
        keys = self.request(lambda store: store.list(ts.KvStore.KeyRange(prefix, _end(prefix))), "listed")
        return [key.decode() for key in keys]

    def read(self, name: str) -> bytes | None:
        """Return an object; None if there is none of this name."""
        result = self.request(lambda store: store.read(name), "read")
        return None if result.state == "missing" else bytes(result.value)

    def write(self, name: str, content: bytes | None) -> None:
        """Write an object, or delete it for None."""
        self.request(lambda store: store.write(name, content), "written")

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one of this name. Return whether it was written."""
        current = self.request(lambda store: store.read(name), "read")
        if current.state != "missing":
            return False
        generation = current.stamp.generation
        written = self.request(lambda store: store.write(name, content, if_equal=generation), "committed")
        return bool(written.generation)

    def delete_all(self) -> None:
        """Delete all objects under the prefix."""
        self.request(lambda store: store.delete_range(ts.KvStore.KeyRange()), "deleted")


def _end(prefix: str) -> str:
    """Return the first key after all keys that begin with an ASCII prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""
