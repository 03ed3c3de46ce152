"""Queries of host services: the metadata server of a TPU VM, and the API of a Kubernetes cluster.

Proxy variables are ignored, because both services are in the local network.
"""

import json
import ssl
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from shardwise.processes.variables import Variables

METADATA_HOST = "metadata.google.internal"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

# Seconds, for one request to a service in the local network.
TIMEOUT = 5.0
# A response is a few kilobytes; the rest of a longer one is not read.
MAX_BYTES = 2**20


@final
class HostServices:
    """The services that a process can query about its job.

    Args:
        variables: the environment variables, which contain the addresses of the services.
        service_account: the folder of the Kubernetes service account.
        kubernetes_scheme: the scheme of the Kubernetes API.
    """

    def __init__(self, variables: Variables, service_account: Path = SERVICE_ACCOUNT, kubernetes_scheme: str = "https"):
        self._variables = variables
        self._service_account = service_account
        self._kubernetes_scheme = kubernetes_scheme

    def has_tpu_library(self) -> bool:
        """Return whether libtpu is installed, as on TPU VMs."""
        return find_spec("libtpu") is not None

    def tpu_metadata(self, key: str) -> str | None:
        """Return an attribute of this TPU VM from the metadata server, or None if it or the server does not exist."""
        host = self._variables.text("GCE_METADATA_IP") or self._variables.text("GCE_METADATA_HOST") or METADATA_HOST
        url = f"http://{host}/computeMetadata/v1/instance/attributes/{quote(key)}"
        try:
            return _read(build_opener(ProxyHandler({})), Request(url, headers={"Metadata-Flavor": "Google"}))
        except (OSError, HTTPException, ValueError):  # unknown host, refused, 404, or a malformed answer or address
            return None

    def kubernetes_job(self, name: str) -> dict[str, Any]:
        """Return a Job of this pod's namespace, as the Kubernetes API describes it.

        Raises:
            ValueError: if the API refuses or cannot be reached; the error names the variables to set instead.
        """
        host = self._variables.required_text("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")
        host = f"[{host}]" if ":" in host else host
        port = self._variables.integer("KUBERNETES_SERVICE_PORT") or 443
        try:
            namespace = self._secret("namespace")
            url = f"{self._kubernetes_scheme}://{host}:{port}/apis/batch/v1/namespaces/{quote(namespace)}/jobs/{quote(name)}"
            headers = {"Authorization": f"Bearer {self._secret('token')}", "Accept": "application/json"}
            job = json.loads(_read(self._kubernetes_opener(), Request(url, headers=headers)))
        except (OSError, HTTPException, ValueError) as error:
            reason = f"{error.code} {error.reason}" if isinstance(error, HTTPError) else error
            raise ValueError(
                f"cannot read the Job {name!r} from the Kubernetes API at {host}:{port}: {reason}. Set "
                "JAX_NUM_PROCESSES and JAX_COORDINATOR_ADDRESS in the pod's `env`, or allow its service account to "
                "get jobs"
            ) from None
        if not isinstance(job, dict):
            raise ValueError(f"the Kubernetes API at {host}:{port} does not describe the Job {name!r}: {job!r}")
        return job

    def _secret(self, name: str) -> str:
        return (self._service_account / name).read_text().strip()

    def _kubernetes_opener(self) -> OpenerDirector:
        if self._kubernetes_scheme == "http":
            return build_opener(ProxyHandler({}))
        context = ssl.create_default_context(cafile=str(self._service_account / "ca.crt"))
        return build_opener(ProxyHandler({}), HTTPSHandler(context=context))


def _read(opener: OpenerDirector, request: Request) -> str:
    try:
        with opener.open(request, timeout=TIMEOUT) as answer:
            content: bytes = answer.read(MAX_BYTES)
            return content.decode()
    except HTTPError as error:
        error.close()
        raise
