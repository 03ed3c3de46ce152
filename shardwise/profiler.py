"""Profiles: what ran when, on which device, for which line of the program; and what memory is held by whom.

`start_trace` and `stop_trace`, or `with trace(folder):`, write a folder that TensorBoard shows, as XLA exports it
(`plugins/profile/<time>/*.xplane.pb` and `*.trace.json.gz`), and `perfetto_trace.json.gz`, which https://ui.perfetto.dev
opens as it is. There, an event of a compiled op bears the op's own name and line (`encoder/train.py:41/dot`, where XLA
says `fusion.3`) and says what it is made of; its category is `compute`, or `collective` where devices exchange data.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn, TypeVar, final

from shardwise._jaxlib import (
    ProfileOptions,
    TraceMe,
    heap_profile,
    module_texts,
    profiler_server,
    profiler_session,
    stop_session,
)
from shardwise.errors import not_here
from shardwise.runtime.client import clients, process_count, process_index
from shardwise.runtime.instructions import Instruction, read_instructions

__all__ = [
    "ProfileOptions",
    "StepTraceAnnotation",
    "TraceAnnotation",
    "annotate_function",
    "device_memory_profile",
    "save_device_memory_profile",
    "start_server",
    "start_trace",
    "stop_server",
    "stop_trace",
    "trace",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NOISE = re.compile(r"ThreadpoolListener|end: |Wait for (donation|usage) holds|PythonRefManager")


class TraceAnnotation(TraceMe):  # type: ignore[misc]
    """A name for what runs inside `with`, as an event of the trace; keywords are shown with it.

    >>> with jax.profiler.TraceAnnotation("load", batch=3):
    ...     x = jnp.ones(3)
    """


class StepTraceAnnotation(TraceAnnotation):
    """A step of training: `with StepTraceAnnotation("train", step_num=step): …`. Profiles are then shown step by step.

    >>> with jax.profiler.StepTraceAnnotation("train", step_num=0):
    ...     x = jnp.ones(3)
    """

    def __init__(self, name: str, **kwargs: Any):
        super().__init__(name, _r=1, **kwargs)


def annotate_function(func: _Function, name: str | None = None, **decorator_kwargs: Any) -> _Function:
    """`func`, whose every call is an event of the trace.

    >>> jax.profiler.annotate_function(lambda x: x + 1, name="increment")(1)
    2
    """
    shown = name or getattr(func, "__qualname__", None) or str(getattr(func, "__name__", "function"))

    @wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        with TraceAnnotation(shown, **decorator_kwargs):
            return func(*args, **kwargs)

    return call  # type: ignore[return-value]


@final
class _Running:
    """The trace and the server of this process, of which there is one each."""

    session: Any = None
    folder = Path()
    server: Any = None


_running = _Running()


def start_trace(
    log_dir: PathLike[str] | str,
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: ProfileOptions | None = None,
) -> None:
    """Begin to record what runs, until `stop_trace` writes it to the folder `log_dir`.

    The file for Perfetto is always written; `create_perfetto_trace` need not ask for it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     jax.profiler.start_trace(folder)
    ...     total = jnp.arange(3).sum()
    ...     jax.profiler.stop_trace()
    """
    if create_perfetto_link:
        raise NotImplementedError(
            f"start_trace: a link is not here: open {Path(log_dir) / 'perfetto_trace.json.gz'} in "
            "https://ui.perfetto.dev once the trace has stopped"
        )
    if _running.session is not None:
        raise RuntimeError(
            f"start_trace: a trace, to {_running.folder}, has been started already: there is one at a time. "
            "Call stop_trace first."
        )
    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)  # what cannot be written is known before the program has run
    clients.get()  # what watches devices comes with them
    _running.session, _running.folder = profiler_session(profiler_options), folder


def stop_trace() -> None:
    """End the trace that `start_trace` began, and write it.

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
    if _running.session is None:
        raise RuntimeError("stop_trace: no trace has been started: call start_trace first")
    session, _running.session = _running.session, None
    folder = _running.folder
    before = _exported(folder)
    stop_session(session, str(folder))
    written = [path for path, when in _exported(folder).items() if before.get(path) != when]
    name = "perfetto_trace" if process_count() == 1 else f"perfetto_trace_{process_index()}"
    events = [event for path in written for event in _load(path)]
    with gzip.open(folder / f"{name}.json.gz", "wt") as file:
        json.dump({"displayTimeUnit": "ns", "traceEvents": list(_annotated(events))}, file)


@contextmanager
def trace(
    log_dir: PathLike[str] | str,
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: ProfileOptions | None = None,
) -> Iterator[None]:
    """Record what runs inside `with`, and write it to the folder `log_dir`; see `start_trace`.

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


def _exported(folder: Path) -> dict[Path, int]:
    """The traces in a folder, and when each was written: two that start in one second have one name."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("plugins/profile/*/*.trace.json.gz")}


def _load(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def _annotated(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """XLA's events with the names of our ops, without those that tell nothing."""
    wanted = {_module(event) for event in events if "hlo_op" in event.get("args", {})}
    known = _instructions(wanted)
    for event in events:
        if not event or _NOISE.match(event.get("name", "")):
            continue
        if event["ph"] != "X":  # the names of threads
            yield event
            continue
        args = {name: value for name, value in event.get("args", {}).items() if name != "_src"}
        if "hlo_op" not in args:
            yield {**event, **({"args": args} if args else {}), "cat": "host"}
            continue
        found = known.get((_module(event), args["hlo_op"]), [])
        names = [instruction.name.split(";")[0] for instruction in found if instruction.name]
        sources = [instruction.source for instruction in found if instruction.source]
        parts = [part for instruction in found for part in instruction.made_of]
        yield {
            **event,
            "name": " or ".join(dict.fromkeys(names)) or event["name"],
            "cat": "collective" if any(instruction.is_collective for instruction in found) else "compute",
            "args": {
                **args,
                **({"source": " or ".join(dict.fromkeys(sources))} if sources else {}),
                **({"made_of": ", ".join(dict.fromkeys(parts))} if len(set(parts)) > 1 else {}),
            },
        }


def _module(event: dict[str, Any]) -> str:
    return re.sub(r"\(\d+\)$", "", str(event["args"].get("hlo_module", "")))


def _instructions(modules: set[str]) -> dict[tuple[str, str], list[Instruction]]:
    """What an instruction of a module may be: of several programs of one name, XLA does not say which one ran."""
    found: dict[tuple[str, str], list[Instruction]] = {}
    for client in clients.all():
        for name, text in module_texts(client, modules):
            for instruction, row in read_instructions(text()).items():
                kept = found.setdefault((name, instruction), [])
                if row not in kept:
                    kept.append(row)
    return found


def device_memory_profile(backend: str | None = None) -> bytes:
    """Which arrays and programs hold memory of the devices, for `pprof`. With the setting `memory_profile_lines`,
    it says which Python lines made them.

    >>> len(jax.profiler.device_memory_profile()) > 0
    True
    """
    return gzip.compress(heap_profile(clients.get(backend)))


def save_device_memory_profile(filename: PathLike[str] | str, backend: str | None = None) -> None:
    """Write `device_memory_profile` to a file: `pprof --web <file>` shows it.

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
    """Let TensorBoard take profiles of this process while it runs, through a port."""
    if _running.server is not None:
        raise ValueError("start_server: a profiler server is running already: there is one at a time")
    if requires_backend:
        clients.get()
    _running.server = profiler_server(port)
    return _running.server


def stop_server() -> None:
    """End the server that `start_server` began."""
    if _running.server is None:
        raise ValueError("stop_server: no profiler server is running")
    _running.server = None


def __getattr__(name: str) -> NoReturn:
    raise not_here("shardwise.profiler", name, __all__)
