"""Profiling: traces of the execution on devices, and profiles of device memory.

`start_trace` and `stop_trace`, or `with trace(folder):`, write XLA's profile for TensorBoard
(`plugins/profile/<time>/*.xplane.pb` and `*.trace.json.gz`) and `perfetto_trace.json.gz` for https://ui.perfetto.dev.
In the latter, the event of a compiled op has the name and source line of the op (`encoder/train.py:41/dot` instead of
XLA's `fusion.3`) and the list of ops fused into it. Its category is `compute`, or `collective` for communication.
"""

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, final

from shardwise.base._jaxlib import (
    ProfileData,
    ProfileEvent,
    ProfileLine,
    ProfileOptions,
    ProfilePlane,
    TraceMe,
    export_session,
    heap_profile,
    profile_subprocess,
    profiler_server,
    profiler_session,
    stop_session,
)
from shardwise.base.lazy import set_public_names
from shardwise.runtime.client import clients
from shardwise.runtime.perfetto_trace import write_perfetto_trace

__all__ = [
    "ProfileData",
    "ProfileEvent",
    "ProfileLine",
    "ProfileOptions",
    "ProfilePlane",
    "ProfileSession",
    "StepTraceAnnotation",
    "TraceAnnotation",
    "annotate_function",
    "device_memory_profile",
    "export_profile_data",
    "register_subprocess",
    "save_device_memory_profile",
    "start_server",
    "start_trace",
    "stop_server",
    "stop_trace",
    "trace",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


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
    """The running session and server of this process; at most one of each."""

    session: "ProfileSession | None" = None
    server: Any = None


_state = _ProfilerState()


@final
class _RecordedProfile(ProfileData):  # type: ignore[misc]
    """The profile of a session, with the bytes that can be exported."""

    def __init__(self, serialized: bytes, recorder: Any):
        super().__init__(serialized)
        self.serialized, self.recorder = serialized, recorder


@final
class ProfileSession:
    """A recording of the execution on devices, whose profile stays in memory and may be written to a folder.

    `start` and `stop`, or `with ProfileSession() as session:`, begin and end it. There can be one at a time.

    Args:
        log_dir: the folder that `stop` writes to; None to write nothing.
        create_perfetto_link: not supported. It must be False.
        create_perfetto_trace: ignored. The file for Perfetto is always written.
        profiler_options: the options of XLA's profiler.

    Raises:
        NotImplementedError: if `create_perfetto_link` is true.

    Attributes:
        log_dir: the folder; None if there is none.
        is_running: whether it has started and not stopped.
        profile_data: the profile of the last recording; None before its end.

    Example:
        >>> with jax.profiler.ProfileSession() as session:
        ...     total = jnp.arange(3).sum().block_until_ready()
        >>> any(plane.name == "/host:CPU" for plane in session.profile_data.planes)
        True
    """

    def __init__(
        self,
        log_dir: PathLike[str] | str | None = None,
        create_perfetto_link: bool = False,
        create_perfetto_trace: bool = False,
        profiler_options: ProfileOptions | None = None,
    ):
        _reject_link("ProfileSession", create_perfetto_link, log_dir)
        self.log_dir = None if log_dir is None else str(log_dir)
        self.profiler_options = profiler_options
        self.profile_data: ProfileData | None = None
        self._recorder: Any = None

    @property
    def is_running(self) -> bool:
        """Whether the session has started and not stopped."""
        return self._recorder is not None

    def start(self) -> "ProfileSession":
        """Start to record. Raises RuntimeError if a session is running, and OSError if `log_dir` cannot be created."""
        if _state.session is not None:
            raise RuntimeError(
                f"a trace to {_state.session.log_dir} is already running, and there can be only one. Stop it first, "
                "with stop_trace() or the session's stop()."
            )
        if self.log_dir is not None:
            Path(self.log_dir).mkdir(parents=True, exist_ok=True)  # fail before the program runs
        clients.get()  # loads the backends, which register the tracers of their devices
        self._recorder, self.profile_data = profiler_session(self.profiler_options), None
        _state.session = self
        return self

    def stop(self) -> ProfileData:
        """Stop, write the profile to `log_dir` if there is one, and return it. Raises RuntimeError if not running."""
        if self._recorder is None:
            raise RuntimeError("stop: the session is not running; call start first")
        recorder, self._recorder, _state.session = self._recorder, None, None
        self.profile_data = profile = _RecordedProfile(stop_session(recorder), recorder)
        if self.log_dir is not None:
            self.export_profile_data(self.log_dir)
        return profile

    def export_profile_data(
        self,
        log_dir: PathLike[str] | str,
        create_perfetto_link: bool = False,
        create_perfetto_trace: bool = False,
        session_id: str | None = None,
    ) -> None:
        """Write the profile to a folder, as the function `export_profile_data` does."""
        export_profile_data(self, log_dir, create_perfetto_link, create_perfetto_trace, session_id)

    def __enter__(self) -> "ProfileSession":
        return self.start()

    def __exit__(self, *exception: object) -> None:
        if self.is_running:  # `stop` may be called inside the block
            self.stop()


def export_profile_data(
    profile_data: ProfileData | ProfileSession,
    log_dir: PathLike[str] | str,
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    session_id: str | None = None,
) -> None:
    """Write a profile to a folder, for TensorBoard and Perfetto.

    Args:
        profile_data: a session that has stopped, or the profile that it returned.
        log_dir: the folder to write to. It is created if needed.
        create_perfetto_link: not supported. It must be False.
        create_perfetto_trace: ignored. The file for Perfetto is always written.
        session_id: the name of the run's folder in `plugins/profile`; by default the time.

    Raises:
        NotImplementedError: if `create_perfetto_link` is true.
        RuntimeError: if the session is running, or has not recorded anything.
        TypeError: if `profile_data` is something else, such as a profile that was read from a file.
        OSError: if the folder cannot be written.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with jax.profiler.ProfileSession() as session:
        ...     total = jnp.arange(3).sum()
        >>> with TemporaryDirectory() as folder:
        ...     jax.profiler.export_profile_data(session, folder, session_id="first")
        ...     written = [path.name for path in Path(folder, "plugins/profile/first").glob("*.xplane.pb")]
        >>> len(written)
        1
    """
    _reject_link("export_profile_data", create_perfetto_link, log_dir)
    profile = profile_data
    if isinstance(profile, ProfileSession):
        if profile.is_running:
            raise RuntimeError("export_profile_data: the session is running; call its stop() first")
        if profile.profile_data is None:
            raise RuntimeError("export_profile_data: the session has not recorded anything; call its start() first")
        profile = profile.profile_data
    if not isinstance(profile, _RecordedProfile):
        raise TypeError(
            f"export_profile_data: expected a ProfileSession, or the profile that its stop() returned, not {profile!r}"
        )
    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as scratch:
        export_session(profile.recorder, profile.serialized, scratch)
        (run,) = Path(scratch, "plugins", "profile").iterdir()
        target = folder / "plugins" / "profile" / (session_id or run.name)
        target.mkdir(parents=True, exist_ok=True)
        written = [file.replace(target / file.name) for file in run.iterdir()]
    write_perfetto_trace(folder, [file for file in written if file.name.endswith(".trace.json.gz")])


def _reject_link(function: str, create_perfetto_link: bool, log_dir: object) -> None:
    if create_perfetto_link:
        raise NotImplementedError(
            f"{function}: create_perfetto_link is not supported. When the trace is written, open "
            f"{Path(str(log_dir)) / 'perfetto_trace.json.gz'} in https://ui.perfetto.dev"
        )


def start_trace(
    log_dir: PathLike[str] | str,
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: ProfileOptions | None = None,
) -> ProfileSession:
    """Start recording a trace; `stop_trace` writes it.

    Args:
        log_dir: the folder to write to. It is created if needed.
        create_perfetto_link: not supported. It must be False.
        create_perfetto_trace: ignored. The file for Perfetto is always written.
        profiler_options: the options of XLA's profiler.

    Returns:
        The session that is running.

    Raises:
        NotImplementedError: if `create_perfetto_link` is true.
        RuntimeError: if a trace is already running.
        OSError: if the folder cannot be created.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     session = jax.profiler.start_trace(folder)
        ...     total = jnp.arange(3).sum()
        ...     profile = jax.profiler.stop_trace()
    """
    _reject_link("start_trace", create_perfetto_link, log_dir)
    return ProfileSession(log_dir, profiler_options=profiler_options).start()


def stop_trace() -> ProfileData:
    """Stop the running trace and write it to its folder.

    Returns:
        The profile.

    Raises:
        RuntimeError: if no trace is running.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     session = jax.profiler.start_trace(folder)
        ...     total = jnp.arange(3).sum()
        ...     profile = jax.profiler.stop_trace()
        ...     written = [path.name for path in Path(folder).rglob("perfetto*")]
        >>> written
        ['perfetto_trace.json.gz']
    """
    if _state.session is None:
        raise RuntimeError("stop_trace: no trace is running; call start_trace first")
    return _state.session.stop()


@contextmanager
def trace(
    log_dir: PathLike[str] | str | None = None,
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: ProfileOptions | None = None,
) -> Iterator[ProfileSession]:
    """A context manager that records a trace of the code it encloses.

    Args:
        log_dir: the folder to write to, which is created if needed; None to write nothing.
        create_perfetto_link: not supported. It must be False.
        create_perfetto_trace: ignored. The file for Perfetto is always written.
        profiler_options: the options of XLA's profiler.

    Yields:
        The session that is running.

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
    _reject_link("trace", create_perfetto_link, log_dir)
    with ProfileSession(log_dir, profiler_options=profiler_options) as session:
        yield session


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
