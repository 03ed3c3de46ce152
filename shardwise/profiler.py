"""Profiling: traces of the execution on devices, and profiles of device memory.

`start_trace` and `stop_trace`, or `with trace(folder):`, write XLA's profile for TensorBoard
(`plugins/profile/<time>/*.xplane.pb` and `*.trace.json.gz`) and `perfetto_trace.json.gz` for https://ui.perfetto.dev.
In the latter, the event of a compiled op has the name and source line of the op (`encoder/train.py:41/dot` instead of
XLA's `fusion.3`) and the list of ops fused into it. Its category is `compute`, or `collective` for communication.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, final

from shardwise.base._jaxlib import (
    ProfileData,
    ProfileEvent,
    ProfileOptions,
    ProfilePlane,
    TraceMe,
    heap_profile,
    module_texts,
    profile_subprocess,
    profiler_server,
    profiler_session,
    stop_session,
)
from shardwise.base.lazy import set_public_names
from shardwise.runtime.client import clients, process_count, process_index
from shardwise.runtime.hlo_instructions import Instruction, read_instructions

__all__ = [
    "ProfileData",
    "ProfileEvent",
    "ProfileOptions",
    "ProfilePlane",
    "StepTraceAnnotation",
    "TraceAnnotation",
    "annotate_function",
    "device_memory_profile",
    "register_subprocess",
    "save_device_memory_profile",
    "start_server",
    "start_trace",
    "stop_server",
    "stop_trace",
    "trace",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_INTERNAL_EVENTS = re.compile(r"ThreadpoolListener|end: |Wait for (donation|usage) holds|PythonRefManager")


class TraceAnnotation(TraceMe):  # type: ignore[misc]
    """A context manager that adds an event to the trace for the code it encloses.

    Args:
        name: the name of the event.
        **kwargs: metadata shown with the event.

    Raises:
        TypeError: if `name` is not a string.

    Example:
        >>> with jax.profiler.TraceAnnotation("load", batch=3):
        ...     x = jnp.ones(3)
    """


class StepTraceAnnotation(TraceAnnotation):
    """A context manager that marks a training step in the trace, so that TensorBoard shows the profile per step.

    Args:
        name: the name of the event.
        **kwargs: metadata shown with the event, usually `step_num`.

    Raises:
        TypeError: if `name` is not a string.

    Example:
        >>> with jax.profiler.StepTraceAnnotation("train", step_num=0):
        ...     x = jnp.ones(3)
    """

    def __init__(self, name: str, **kwargs: object):
        super().__init__(name, _r=1, **kwargs)


def annotate_function(func: _Function, name: str | None = None, **decorator_kwargs: object) -> _Function:
    """Wrap a function so that each call is an event of the trace.

    Args:
        func: the function.
        name: the name of the event. By default, that of the function.
        **decorator_kwargs: metadata shown with the event.

    Returns:
        The wrapped function.

    Raises:
        TypeError: by a call of the result, if `func` is not callable.

    Example:
        >>> jax.profiler.annotate_function(lambda x: x + 1, name="increment")(1)
        2
    """
    event_name = name or getattr(func, "__qualname__", None) or str(getattr(func, "__name__", "function"))

    @wraps(func)
    def call(*args: object, **kwargs: object) -> Any:
        with TraceAnnotation(event_name, **decorator_kwargs):
            return func(*args, **kwargs)

    return call  # type: ignore[return-value]


@final
class _ProfilerState:
    """The running trace and server of this process; at most one of each."""

    session: Any = None
    folder = Path()
    server: Any = None


_state = _ProfilerState()


def start_trace(
    log_dir: PathLike[str] | str,
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: ProfileOptions | None = None,
) -> None:
    """Start recording a trace; `stop_trace` writes it.

    Args:
        log_dir: the folder to write to. It is created if needed.
        create_perfetto_link: not supported. It must be False.
        create_perfetto_trace: ignored. The file for Perfetto is always written.
        profiler_options: the options of XLA's profiler.

    Raises:
        NotImplementedError: if `create_perfetto_link` is true.
        RuntimeError: if a trace is already running.
        OSError: if the folder cannot be created.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     jax.profiler.start_trace(folder)
        ...     total = jnp.arange(3).sum()
        ...     jax.profiler.stop_trace()
    """
    if create_perfetto_link:
        raise NotImplementedError(
            "start_trace: create_perfetto_link is not supported. "
            f"After stop_trace, open {Path(log_dir) / 'perfetto_trace.json.gz'} in https://ui.perfetto.dev"
        )
    if _state.session is not None:
        raise RuntimeError(
            f"start_trace: a trace to {_state.folder} is already running, and there can be only one. "
            "Call stop_trace first."
        )
    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)  # fail before the program runs if it cannot be written
    clients.get()  # loads the backends, which register the tracers of their devices
    _state.session, _state.folder = profiler_session(profiler_options), folder


def stop_trace() -> None:
    """Stop the running trace and write it to its folder.

    Raises:
        RuntimeError: if no trace is running.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     jax.profiler.start_trace(folder)
        ...     total = jnp.arange(3).sum()
        ...     jax.profiler.stop_trace()
        ...     written = [path.name for path in Path(folder).rglob("perfetto*")]
        >>> written
        ['perfetto_trace.json.gz']
    """
    if _state.session is None:
        raise RuntimeError("stop_trace: no trace is running; call start_trace first")
    session, _state.session = _state.session, None
    folder = _state.folder
    old_times = _exported_trace_times(folder)
    stop_session(session, str(folder))
    written = [path for path, time in _exported_trace_times(folder).items() if old_times.get(path) != time]
    name = "perfetto_trace" if process_count() == 1 else f"perfetto_trace_{process_index()}"
    events = [event for path in written for event in _read_events(path)]
    with gzip.open(folder / f"{name}.json.gz", "wt") as file:
        json.dump({"displayTimeUnit": "ns", "traceEvents": list(_annotate_events(events))}, file)


@contextmanager
def trace(
    log_dir: PathLike[str] | str,
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: ProfileOptions | None = None,
) -> Iterator[None]:
    """A context manager that records a trace of the code it encloses.

    Args:
        log_dir: the folder to write to. It is created if needed.
        create_perfetto_link: not supported. It must be False.
        create_perfetto_trace: ignored. The file for Perfetto is always written.
        profiler_options: the options of XLA's profiler.

    Yields:
        None.

    Raises:
        NotImplementedError: if `create_perfetto_link` is true.
        RuntimeError: if a trace is already running.
        OSError: if the folder cannot be created.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with jax.profiler.trace(folder):
        ...         total = jnp.arange(3).sum()
        ...     written = [path.name for path in Path(folder).rglob("perfetto*")]
        >>> written
        ['perfetto_trace.json.gz']
    """
    start_trace(log_dir, create_perfetto_link, create_perfetto_trace, profiler_options)
    try:
        yield
    finally:
        stop_trace()


def _exported_trace_times(folder: Path) -> dict[Path, int]:
    """Return the modification time of each trace in a folder: traces started in the same second have the same name."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("plugins/profile/*/*.trace.json.gz")}


def _read_events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def _annotate_events(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield XLA's events with the names and source lines of ops, without events internal to XLA's runtime."""
    modules = {_module_name(event) for event in events if "hlo_op" in event.get("args", {})}
    instructions = _read_modules(modules)
    for event in events:
        if not event or _INTERNAL_EVENTS.match(event.get("name", "")):
            continue
        if event["ph"] != "X":  # metadata, such as thread names
            yield event
            continue
        args = {name: value for name, value in event.get("args", {}).items() if name != "_src"}
        if "hlo_op" not in args:
            yield {**event, **({"args": args} if args else {}), "cat": "host"}
            continue
        candidates = instructions.get((_module_name(event), args["hlo_op"]), [])
        names = [instruction.name.split(";")[0] for instruction in candidates if instruction.name]
        sources = [instruction.source for instruction in candidates if instruction.source]
        fused_ops = [op for instruction in candidates for op in instruction.made_of]
        yield {
            **event,
            "name": " or ".join(dict.fromkeys(names)) or event["name"],
            "cat": "collective" if any(instruction.is_collective for instruction in candidates) else "compute",
            "args": {
                **args,
                **({"source": " or ".join(dict.fromkeys(sources))} if sources else {}),
                **({"made_of": ", ".join(dict.fromkeys(fused_ops))} if len(set(fused_ops)) > 1 else {}),
            },
        }


def _module_name(event: dict[str, Any]) -> str:
    return re.sub(r"\(\d+\)$", "", str(event["args"].get("hlo_module", "")))


def _read_modules(modules: set[str]) -> dict[tuple[str, str], list[Instruction]]:
    """Return the candidate instructions for each pair of module name and instruction name.

    There are several if programs have the same name: XLA's events do not say which of them ran.
    """
    candidates: dict[tuple[str, str], list[Instruction]] = {}
    for client in clients.all():
        for module, text in module_texts(client, modules):
            for name, instruction in read_instructions(text()).items():
                known = candidates.setdefault((module, name), [])
                if instruction not in known:
                    known.append(instruction)
    return candidates


def device_memory_profile(backend: str | None = None) -> bytes:
    """Return a profile of the device memory held by arrays and executables, in the format of `pprof`.

    With the setting `memory_profile_lines`, it contains the Python lines that allocated them.

    Args:
        backend: the platform, such as "cpu" or "gpu". By default, the default platform.

    Returns:
        The gzipped profile.

    Raises:
        RuntimeError: if there is no such platform.

    Example:
        >>> len(jax.profiler.device_memory_profile()) > 0
        True
    """
    return gzip.compress(heap_profile(clients.get(backend)))


def save_device_memory_profile(filename: PathLike[str] | str, backend: str | None = None) -> None:
    """Write a device memory profile to a file, which `pprof --web <file>` shows.

    Args:
        filename: the path of the file.
        backend: the platform, such as "cpu" or "gpu". By default, the default platform.

    Raises:
        RuntimeError: if there is no such platform.
        OSError: if the file cannot be written.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     jax.profiler.save_device_memory_profile(f"{folder}/memory.prof")
        ...     written = Path(f"{folder}/memory.prof").stat().st_size > 0
        >>> written
        True
    """
    Path(filename).write_bytes(device_memory_profile(backend))


def start_server(port: int, requires_backend: bool = True) -> Any:
    """Start a server from which TensorBoard can capture profiles of this process.

    Args:
        port: the port to listen on.
        requires_backend: whether to load the backends first, so that their devices are profiled.

    Returns:
        The server. It runs until `stop_server` is called or the process ends.

    Raises:
        ValueError: if a server is already running.
    """
    if _state.server is not None:
        raise ValueError("start_server: a profiler server is already running, and there can be only one")
    if requires_backend:
        clients.get()
    _state.server = profiler_server(port)
    return _state.server


def register_subprocess(pid: int, port: int) -> Callable[[], None]:
    """Include a subprocess in the profiles that this process takes, such as a worker that loads data.

    Args:
        pid: the id of the process.
        port: the port of its profiler server.

    Returns:
        A function that ends this. It ends too when the function is garbage-collected.

    Raises:
        RuntimeError: if the subprocess is registered already, or if its server cannot be reached.
    """
    unregister: Callable[[], None] = profile_subprocess(pid, port)
    return unregister


def stop_server() -> None:
    """Stop the profiler server.

    Raises:
        ValueError: if no server is running.
    """
    if _state.server is None:
        raise ValueError("stop_server: no profiler server is running")
    _state.server = None


set_public_names(__name__, __all__)
