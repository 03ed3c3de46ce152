"""Doctor: checks of this machine, each with a fix for the problem that it finds."""

import json
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, final

from shardwise.base._jaxlib import jaxlib_version
from shardwise.base.blas_threads import blas_libraries, run_blas_in_calling_thread
from shardwise.base.lazy import lazy_module
from shardwise.base.torch_versions import INSTALL, PAIR, installed_version, torch_problem
from shardwise.processes.environment import NoProcessesError, find_processes
from shardwise.version import JAXLIB_BOUNDS, NEWEST_JAXLIB, OLDEST_JAXLIB, UNSUPPORTED_JAXLIB, __version__

_linear_algebra = lazy_module("scipy.linalg")  # its import takes 280 ms, and other commands do not need it

PROCESSES, DEVICES_EACH = 2, 2  # of the loopback collective
CHECK_TIME = 120  # seconds for a check that starts processes
ENOUGH_MEMORY = 2**30
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


@final
@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: the name of the check.
        status: "ok"; "warning" if programs run, but something may be wrong; "error" if they do not.
        detail: the finding.
        fix: the remedy, unless the status is "ok".
    """

    name: str
    status: Literal["ok", "warning", "error"]
    detail: str
    fix: str = ""


def run_doctor(*, as_json: bool = False) -> int:
    """Run all checks and print them. Return 1 if one has the status "error", else 0.

    Args:
        as_json: whether to print one JSON object instead of lines.
    """
    checks = []
    for check in run_checks():
        checks.append(check)
        if not as_json:
            print(_text(check), flush=True)
    errors = sum(check.status == "error" for check in checks)
    if as_json:
        print(json.dumps({"ok": not errors, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        warnings = sum(check.status == "warning" for check in checks)
        print(f"{len(checks)} checks: {errors} errors, {warnings} warnings")
    return int(errors > 0)


def run_checks() -> Iterator[Check]:
    """Yield the result of each check. A check that raises an exception has the status "error"."""
    for name, check in CHECKS.items():
        try:
            yield check()
        except Exception as error:
            yield Check(name, "error", f"{type(error).__name__}: {error}", "report this as a bug of Shardwise")


def _text(check: Check) -> str:
    mark = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}[check.status]
    return f"{mark}  {check.name}: {check.detail}" + (f"\n           fix: {check.fix}" if check.fix else "")


def check_python() -> Check:
    """Check the version and word size of Python."""
    detail = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    oldest = min(NEWEST_JAXLIB)
    if sys.version_info < oldest or struct.calcsize("P") < 8:
        return Check("python", "error", detail, f"install a 64-bit Python {'.'.join(map(str, oldest))} or newer")
    return Check("python", "ok", detail)


def check_jaxlib(version: str | None = None) -> Check:
    """Check that jaxlib has a supported version."""
    version = version or jaxlib_version()
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    detail = f"jaxlib {version}, shardwise {__version__}"
    if not OLDEST_JAXLIB <= numbers < UNSUPPORTED_JAXLIB:
        return Check("jaxlib", "error", detail, f'pip install "jaxlib{JAXLIB_BOUNDS}"')
    return Check("jaxlib", "ok", detail)


def check_plugins(versions: Mapping[str, str] | None = None, has_gpu: bool | None = None) -> Check:
    """Check that the CUDA plugin is installed if there is a GPU, in the version of jaxlib."""
    if versions is None:
        names = ("jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt")
        versions = {name: version for name in names if (version := installed_version(name)) is not None}
    if has_gpu is None:
        has_gpu = Path("/proc/driver/nvidia/version").exists()
    detail = ", ".join(f"{name} {version}" for name, version in versions.items()) or "no CUDA plugin"
    if wrong := [name for name, version in versions.items() if version != jaxlib_version()]:
        fix = f"pip install {' '.join(f'{name}=={jaxlib_version()}' for name in wrong)}"
        return Check("plugins", "error", f"{detail}, but jaxlib {jaxlib_version()}", fix)
    if has_gpu and not versions:
        fix = f'pip install "jax-cuda12-plugin[with-cuda]=={jaxlib_version()}"'
        return Check("plugins", "warning", "an NVIDIA driver, but no CUDA plugin: programs run on the CPU", fix)
    return Check("plugins", "ok", detail)


def check_torch(version_of: Callable[[str], str | None] = installed_version) -> Check:
    """Check that PyTorch and torchax, if one of them is installed, are a pair that `shardwise.torch` supports."""
    versions = {name: version for name in ("torch", "torchax") if (version := version_of(name)) is not None}
    detail = ", ".join(f"{name} {version}" for name, version in versions.items())
    problem = torch_problem(version_of)
    if problem is None:
        return Check("torch", "ok", detail)
    if "torchax" not in versions:  # PyTorch alone serves other programs
        return Check("torch", "ok", f"{detail or 'no PyTorch'}; shardwise.torch needs {PAIR}")
    return Check("torch", "warning", f"{problem}: shardwise.torch needs {PAIR}", INSTALL)


def check_platforms() -> Check:
    """Load the libraries of all installed PJRT plugins, in a separate process."""
    run = _run_python("-m", "shardwise.launch.platform_check")
    if run.returncode:
        fix = "set SHARDWISE_PLATFORMS=cpu to leave all plugins out, and uninstall plugins until the check passes"
        return Check("platforms", "error", _last_line(run), fix)
    found = json.loads(run.stdout)
    problems = [*found["warnings"], *(plugin["problem"] for plugin in found["plugins"] if plugin["problem"])]
    if problems:
        fix = "repair or uninstall the plugin, or set SHARDWISE_PLATFORMS=cpu"
        return Check("platforms", "warning", " ".join(problems), fix)
    names = [f"{plugin['name']} ({plugin['library']}, priority {plugin['priority']})" for plugin in found["plugins"]]
    return Check("platforms", "ok", ", ".join([*names, "cpu"]))


def check_devices() -> Check:
    """Run a program on the first device, in a separate process, because XLA aborts a process with invalid flags."""
    run = _run_python("-m", "shardwise.launch.device_check")
    if run.returncode:
        fix = "set SHARDWISE_PLATFORMS=cpu to use the CPU only, and check XLA_FLAGS, the driver and the plugins"
        return Check("devices", "error", _last_line(run), fix)
    devices = json.loads(run.stdout)
    kinds = [(device["platform"], device["kind"]) for device in devices]
    parts = [f"{kinds.count(each)} × {each[0]} ({each[1]})" for each in dict.fromkeys(kinds)]
    limits = {device["bytes_limit"] for device in devices} - {None}
    memory = f", {min(limits) / 2**30:.1f} GiB per device" if limits else ""
    return Check("devices", "ok", ", ".join(parts) + memory)


def check_memory(available: int | None = None) -> Check:
    """Check the free memory of the host, and of its container."""
    if available is None:
        available = _available_memory()
    if available is None:
        return Check("memory", "ok", "the free memory is unknown on this system")
    detail = f"{available / 2**30:.1f} GiB are free"
    if available < ENOUGH_MEMORY:
        return Check("memory", "warning", detail, "end other programs, or raise the memory limit of the container")
    return Check("memory", "ok", detail)


def _available_memory() -> int | None:
    free = []
    if (host := Path("/proc/meminfo")).exists():
        free += [1024 * int(line.split()[1]) for line in host.read_text().splitlines() if line.startswith("MemAvail")]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdecimal():
        free.append(int(text) - int(used.read_text()))
    return min(free, default=None)


def check_ports(host: str = "127.0.0.1") -> Check:
    """Check that a process can listen on a loopback port and be reached there."""
    try:
        with socket.create_server((host, 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
            port = server.getsockname()[1]
    except OSError as error:
        return Check("ports", "error", f"{host}: {error}", "bring the loopback interface up: ip link set lo up")
    try:
        name = socket.gethostname()
        socket.getaddrinfo(name, port)
    except OSError as error:
        fix = "add the host name to /etc/hosts, or pass an IP address as coordinator_address on several hosts"
        return Check("ports", "warning", f"the host name {name!r} has no address: {error}", fix)
    return Check("ports", "ok", f"port {port} of {host} can be reached; the host name {name!r} has an address")


def check_proxies(variables: Mapping[str, str] = os.environ) -> Check:
    """Check for proxy variables, which may send the traffic between processes to a proxy."""
    proxies = [name for name in variables if name.lower() in PROXIES and variables[name]]
    if not proxies:
        return Check("proxies", "ok", "no proxy variable is set")
    exceptions = variables.get("no_grpc_proxy") or variables.get("no_proxy") or variables.get("NO_PROXY") or ""
    detail = f"{', '.join(proxies)} set; no_proxy={exceptions!r}"
    if "*" in exceptions.split(","):
        return Check("proxies", "ok", detail)
    fix = "add the hosts of the cluster to no_proxy; distributed.initialize adds the coordinator's host"
    return Check("proxies", "warning", detail, fix)


def check_blas() -> Check:
    """Check that scipy's BLAS can run in the calling thread, which LAPACK on several devices requires."""
    _linear_algebra.lapack.dgesv([[1.0]], [1.0])  # loads the libraries
    run_blas_in_calling_thread()
    libraries = blas_libraries()
    detail = ", ".join(f"{library.internal_api} {library.version}" for library in libraries) or "no BLAS is loaded"
    if many := [library for library in libraries if library.num_threads != 1]:
        names = " and ".join(f"{library.internal_api} ({library.num_threads} threads)" for library in many)
        fix = "set OPENBLAS_NUM_THREADS=1, MKL_NUM_THREADS=1 and OMP_NUM_THREADS=1"
        return Check("blas", "warning", f"{names} keeps its threads: linear algebra on several devices is slow", fix)
    return Check("blas", "ok", f"{detail}: one thread per call; {os.cpu_count()} processors")


def check_environment(variables: Mapping[str, str] = os.environ) -> Check:
    """Check the variables of launchers and schedulers."""
    try:
        found = find_processes(variables)
    except NoProcessesError:
        return Check("environment", "ok", "no launcher or scheduler: this is one process")
    except ValueError as error:
        return Check("environment", "error", str(error), "set or unset the variables that the message names")
    detail = f"process {found.process_id} of {found.num_processes} by {found.method}, {found.coordinator_address}"
    return Check("environment", "ok", detail)


def check_collective() -> Check:
    """Add numbers over the devices of two processes."""
    with TemporaryDirectory() as logs:
        numbers = ("-n", PROCESSES, "--devices-per-process", DEVICES_EACH, "--timeout", CHECK_TIME / 2)
        options = (*map(str, numbers), "--log-dir", logs)
        run = _run_python("-m", "shardwise", "launch", *options, "-m", "shardwise.launch.collective_check")
    expected = f"{PROCESSES * DEVICES_EACH} devices"
    if run.returncode or run.stdout.count(expected) != PROCESSES:
        fix = "fix the checks above first; then look for a firewall on the loopback interface, and at the message"
        return Check("collective", "error", _last_line(run), fix)
    return Check("collective", "ok", f"a sum over {PROCESSES} processes with {DEVICES_EACH} devices each is right")


def _run_python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=CHECK_TIME, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {CHECK_TIME} s")


def _last_line(run: "subprocess.CompletedProcess[str]") -> str:
    """Return the last line of an error in the output, else the last line."""
    lines = [line for line in (run.stdout + run.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Failure" in line or "Check failed" in line]
    return (errors or lines or [f"exit code {run.returncode}"])[-1].strip()


CHECKS: dict[str, Callable[[], Check]] = {
    "python": check_python,
    "jaxlib": check_jaxlib,
    "plugins": check_plugins,
    "torch": check_torch,
    "platforms": check_platforms,
    "devices": check_devices,
    "memory": check_memory,
    "ports": check_ports,
    "proxies": check_proxies,
    "blas": check_blas,
    "environment": check_environment,
    "collective": check_collective,
}
