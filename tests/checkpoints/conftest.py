"""Object stores on loopback servers, for the tests of checkpoints."""

import pytest

from shardwise.checkpoints import snapshot
from tests.checkpoints.object_server import GcsHandler, S3Handler, object_server

# By the scheme of URLs: the handler of requests, variables with credentials, and the variable with the endpoint.
SERVERS = {
    "s3": (
        S3Handler,
        {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"},
        "AWS_ENDPOINT_URL",
    ),
    "gs": (GcsHandler, {"GOOGLE_AUTH_TOKEN_FOR_TESTING": "test"}, "TENSORSTORE_GCS_HTTP_URL"),
}


class Store:
    """An object store: the URL of a bucket, its objects by key, and the variable that names the server."""

    def __init__(self, scheme, objects, endpoint_variable):
        self.url = f"{scheme}://bucket"
        self.endpoint_variable = endpoint_variable
        self._objects = objects

    def __iter__(self):
        return (key.removeprefix("bucket/") for key in self._objects)

    def __getitem__(self, key):
        return self._objects[f"bucket/{key}"]

    def __setitem__(self, key, content):
        self._objects[f"bucket/{key}"] = content

    def __delitem__(self, key):
        del self._objects[f"bucket/{key}"]


@pytest.fixture(params=["s3", pytest.param("gs", marks=pytest.mark.slow)])
def store(request, monkeypatch):
    """Serve an object store of every scheme, one after the other."""
    handler, variables, endpoint = SERVERS[request.param]
    with object_server(handler) as (url, objects):
        for name, value in {**variables, endpoint: url}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(snapshot, "LARGEST_PACKED", 100)
        yield Store(request.param, objects, endpoint)
