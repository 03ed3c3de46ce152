"""Everything that we rely on from jaxlib, by name. No other file imports it: its Python surface changes with versions.

Works with jaxlib 0.10.2 (Python 3.11) to 0.11.x. `tests/test_jaxlib.py` exercises each name.
"""

import gc
import os
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from threading import RLock, get_ident
from typing import Any, final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's own log is off unless the user asks: errors are raised

import numpy as np
from jaxlib import _hlo, _jax, _profiler
from jaxlib import version as _version
from jaxlib import xla_client as _xla

from shardwise.lazy import lazy_module

# MLIR's bindings take as long to import as half of this package, and scipy's LAPACK takes longer.
_mlir = lazy_module("jaxlib.mlir.ir")
_mlir_extension = lazy_module("jaxlib.mlir._mlir_libs._jax_mlir_ext")
_stablehlo = lazy_module("jaxlib.mlir.dialects.stablehlo")
_lapack = lazy_module("jaxlib.cpu._lapack")

PyTreeRegistry = _jax.pytree.PyTreeRegistry
PyTreeDef = _jax.pytree.PyTreeDef
SequenceKey = _jax.pytree.SequenceKey
DictKey = _jax.pytree.DictKey
GetAttrKey = _jax.pytree.GetAttrKey
FlattenedIndexKey = _jax.pytree.FlattenedIndexKey
treedef_tuple = _jax.pytree.treedef_tuple
all_leaves = _jax.pytree.all_leaves
Buffers = _jax.ArrayImpl  # one piece on each of some devices
RuntimeFailure = _jax.JaxRuntimeError
Device = _jax.Device
ProfileOptions = _profiler.ProfileOptions
TraceMe = _profiler.TraceMe
block_until_ready = _jax.batched_block_until_ready

_LAPACK, _HYBRID = "lapack_", "cuhybrid_"  # how the names of their routines begin

# What threads of XLA drop of Python's objects, jaxlib keeps until it is told to let go.
gc.callbacks.append(lambda phase, info: _jax.collect_garbage())

# In 0.11 the checks of a result handler can no longer be skipped, and the keyword is gone.
_HANDLER_KEYWORDS = {"_skip_checks": True} if "_skip_checks" in (_jax.array_result_handler.__doc__ or "") else {}


@final
class _WholeType:
    """What jaxlib asks of an array's type. It sees the pieces of all devices as one array, joined along dim 0."""

    __slots__ = ("dtype", "ndim", "shape", "weak_type")

    def __init__(self, piece: tuple[int, ...], dtype: Any, devices: int):
        self.shape = (piece[0] * devices, *piece[1:]) if piece else ()
        self.dtype, self.weak_type, self.ndim = np.dtype(dtype), False, len(piece)


@final
class _OnDevices(_jax.Sharding):  # type: ignore[misc]
    """What jaxlib asks of a sharding: dim 0 cut once for each device. Our layouts are our own affair.

    A scalar has no dim to cut: jaxlib takes it as replicated, and at the boundary of a program ours always are.
    """

    # Importing jax patches `_jax.Sharding` with read-only properties of these names: class attributes shadow them.
    _internal_device_list = None
    memory_kind: str | None = None
    device_set: Any = None

    def __init__(self, devices: tuple[Any, ...], memory_kind: str | None = None):
        super().__init__()
        self._internal_device_list = _jax.DeviceList(devices)
        self.memory_kind = memory_kind  # None: the one that devices compute in
        self.device_set = set(devices)
        self.count = len(devices)

    def _to_xla_hlo_sharding(self, ndim: int) -> Any:
        if ndim == 0 or self.count == 1:
            return _hlo.HloSharding.replicate()
        return _hlo.HloSharding.iota_tile((self.count,) + (1,) * (ndim - 1))

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] // self.count, *shape[1:]) if shape else ()


def cpu_client(devices: int) -> Any:
    """A client with this many virtual devices in this process."""
    return _xla.make_cpu_client(num_devices=devices)


@cache
def cuda_library() -> Path | None:
    """The file of the CUDA plugin, if it is installed."""
    plugins = find_spec("jax_plugins")
    folders = plugins.submodule_search_locations if plugins else None
    return next((path for folder in folders or () for path in sorted(Path(folder).glob("*/xla_cuda_plugin.so"))), None)


def _cuda_package(library: Path) -> str:
    """The package that holds what the CUDA plugin calls: `jax_cuda13_plugin`."""
    return f"jax_cuda{library.parent.name.removeprefix('xla_cuda')}_plugin"


def cuda_client() -> Any:
    """A client with all GPUs of this machine. The plugin's own `initialize` imports jax; this does the same without."""
    library = cuda_library()
    assert library is not None
    package = _cuda_package(library)
    api = _xla.load_pjrt_plugin_dynamically("cuda", str(library))
    _xla.initialize_pjrt_plugin("cuda")
    _profiler.register_plugin_profiler(api)
    extension = lazy_module(f"{package}.cuda_plugin_extension")
    _xla.register_custom_type_handler("CUDA", partial(extension.register_custom_type, api))
    _xla.register_custom_call_handler("CUDA", partial(extension.register_custom_call_target, api))
    for name, value in extension.ffi_types().items():
        _xla.register_custom_type(name, value, platform="CUDA")
    handlers = {**extension.ffi_handlers()}
    for part in ("_solver", "_sparse", "_hybrid"):
        handlers.update(lazy_module(f"{package}.{part}").registrations())
    for name, value in handlers.items():
        _xla.register_custom_call_target(name, value, platform="CUDA", api_version=1)
    return _xla.make_c_api_client("cuda", _xla.generate_pjrt_gpu_plugin_options(), None)


def cluster_service(address: str, processes: int, timeout: int) -> Any:
    """The coordination service; one process hosts it."""
    return _jax.get_distributed_runtime_service(
        address,
        processes,
        heartbeat_timeout=timeout,
        cluster_register_timeout=timeout,
        shutdown_timeout=timeout,
        recoverable=True,
    )


def cluster_store(address: str, rank: int, timeout: int) -> Any:
    """This process's connection to the coordination service, connected."""
    store = _jax.get_distributed_runtime_client(
        address,
        rank,
        init_timeout=timeout,
        shutdown_timeout=timeout,
        heartbeat_timeout=timeout,
        shutdown_on_destruction=False,
    )
    store.connect()
    return store


def wait_for_all(store: Any, name: str, timeout: int) -> None:
    """Until every process has come to the point of this name; an error once the timeout (in seconds) is over."""
    store.wait_at_barrier(name, 1000 * timeout)


def cluster_cpu_client(store: Any, rank: int, processes: int, devices: int, host: str) -> Any:
    """A client whose devices are those of all processes; `devices` of them are here."""
    collectives = _jax.make_gloo_tcp_collectives(distributed_client=store, hostname=host)
    return _xla.make_cpu_client(
        distributed_client=store, node_id=rank, num_nodes=processes, collectives=collectives, num_devices=devices
    )


CompilerOptions = Sequence[tuple[str, str | bool | int | float]]  # XLA's own, by name


def compile_text(
    text: str, devices: Sequence[Any], callbacks: Sequence[Callable[..., Any]] = (), asked: CompilerOptions = ()
) -> Any:
    """An executable that runs a module once on each device (replica i is `devices[i]`).

    `callbacks` are what the module's custom calls to Python call, by number: numpy arrays (and tokens) in and out.
    """
    options, where, client = _options(devices, asked), _jax.DeviceList(tuple(devices)), devices[0].client
    _bind_libraries(text)
    if not callbacks:
        return client.compile_and_load(text, where, options)
    marked = [_turns.marked(callback) for callback in callbacks]
    return client.compile_and_load(_parsed(text), where, options, host_callbacks=marked)


def _options(devices: Sequence[Any], asked: CompilerOptions) -> Any:
    options = _xla.CompileOptions()
    options.env_option_overrides = list(asked)
    options.num_replicas, options.num_partitions = len(devices), 1
    assignment = np.array([device.id for device in devices]).reshape(-1, 1)
    options.device_assignment = _xla.DeviceAssignment.create(assignment)
    return options


def serialize_executable(executable: Any) -> bytes:
    """An executable as bytes. They have no checksum: what loads them must know that they are whole."""
    return bytes(executable.client.serialize_executable(executable))


def deserialize_executable(blob: bytes, text: str, devices: Sequence[Any], asked: CompilerOptions = ()) -> Any:
    """The executable that was saved, of the module `text`, for the same devices and options."""
    _bind_libraries(text)
    return devices[0].client.deserialize_executable(blob, _jax.DeviceList(tuple(devices)), _options(devices, asked))


def versions(device: Any) -> str:
    """What an executable depends on besides its text: jaxlib, the platform's own version, the kind of device."""
    return f"{_version.__version__} {device.client.platform_version} {device.device_kind}"


def _bind_libraries(text: str) -> None:
    """Make ready the libraries whose routines a module calls."""
    if _LAPACK in text:
        _register_lapack()
    if _HYBRID in text:
        _initialize_hybrid()


@cache
def _initialize_hybrid() -> None:
    """Routines for arrays on GPUs that LAPACK does on the host need to know where LAPACK is."""
    library = cuda_library()
    assert library is not None
    lazy_module(f"{_cuda_package(library)}._hybrid").initialize()


@cache
def _register_lapack() -> None:
    """Make LAPACK's routines known to XLA by their names. They are scipy's, which takes long to import."""
    _lapack.initialize()
    for name, handler in _lapack.registrations().items():
        if name.startswith(_LAPACK):
            _xla.register_custom_call_target(name, handler, platform="cpu", api_version=1)


def _parsed(text: str) -> Any:
    """The module as an object: only that can be compiled together with callbacks.

    MLIR's bindings take as long to import as half of this package, and only callbacks need them.
    """
    context = _mlir.Context()
    registry = _mlir.DialectRegistry()
    _mlir_extension.register_dialects(registry)
    context.append_dialect_registry(registry)
    _stablehlo.register_dialect(context)
    context.load_all_available_dialects()
    return _mlir.Module.parse(text, context)


def put(pieces: Sequence[Any], devices: Sequence[Any], local: Sequence[Any], memory_kind: str | None = None) -> Any:
    """Buffers over `devices`: one numpy piece for each device that is here (`local`).

    jaxlib copies each before this returns. By default it would alias aligned memory for as long as the buffers live:
    who writes to a piece later would change them, and they could not be donated. It fails where two pieces begin at
    the same place, as those of a replicated array do: of these, all but the first are copied here too.
    """
    own, starts = [], set()
    for piece in pieces:
        whole = np.asarray(piece, order="C")
        start = whole.__array_interface__["data"][0]
        own.append(whole.copy() if start in starts else whole)
        starts.add(start)
    kind, where = _WholeType(own[0].shape, own[0].dtype, len(devices)), _OnDevices(tuple(devices), memory_kind)
    copied = _jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
    return _jax.batched_device_put(kind, where, own, list(local), host_buffer_semantics=copied, enable_x64=True)


def copy_to_memory(buffers: Any, devices: Sequence[Any], memory_kind: str, copied: bool = False) -> Any:
    """The same Buffers in a certain memory of their devices; `copied`: with memory of their own in any case."""
    where = _OnDevices(tuple(devices), memory_kind)
    how = _jax.ArrayCopySemantics.ALWAYS_COPY if copied else _jax.ArrayCopySemantics.REUSE_INPUT
    (found,) = _jax.batched_copy_array_to_devices_with_sharding(
        [buffers], [where._internal_device_list], [where], [how]
    )
    return found


def result_handler(shape: tuple[int, ...], dtype: Any, devices: Sequence[Any]) -> Any:
    """What turns one raw result into Buffers."""
    kind = _WholeType(shape, dtype, len(devices))
    return _jax.array_result_handler(kind, _OnDevices(tuple(devices)), committed=True, **_HANDLER_KEYWORDS)


@final
class _Turns:
    """Runs on devices of one process that meet in collectives, each of which keeps a thread for every device.

    XLA starts what one thread launches in the same order on every device, and has no order between threads: two runs
    of different threads would wait for each other for ever. And it ends the process once more than 32 wait. So a
    thread whose turn it is waits for what another has launched, and before more than a few are under way for the
    first of them. Waiting for a run that has ended takes a tenth of a short run's time: not every run is waited for.
    """

    PACE = 8  # at most twice as many are under way

    def __init__(self) -> None:
        self.lock = RLock()
        self.calling: set[int] = set()  # threads of XLA's that call back to Python for a run
        self.last: Any = None  # the results of the last run, from which its token can be taken
        self.thread = 0  # that launched it
        self.more = 0  # that it may launch before it has to wait
        self._earlier: Any = None

    def wait(self, thread: int) -> None:
        """Until a thread may launch more. With the lock."""
        if self.thread != thread:
            self._ended(self.last)
            self.thread, self._earlier = thread, None
        else:
            self._ended(self._earlier)
            self._earlier = self.last
        self.more = self.PACE

    def _ended(self, results: Any) -> None:
        if results is None:
            return
        with suppress(ValueError):  # it was waited for: its token is taken
            token = results.consume_token()
            with suppress(RuntimeFailure):  # a failure is in the results too
                token.block_until_ready()

    def marked(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """What a run calls back, which may launch others itself: these are not to wait for that run."""

        def call(*args: Any) -> Any:
            thread = get_ident()
            outermost = thread not in self.calling
            self.calling.add(thread)
            try:
                return callback(*args)
            finally:
                if outermost:
                    self.calling.discard(thread)

        return call


_turns = _Turns()


def launcher(
    executable: Any,
    handlers: Sequence[Any],
    ready: Callable[[], Any] = list,
    filled: Callable[[Any, list[Any]], Any] = lambda _, found: found,
    wait: bool = False,
    meets: bool = False,
) -> Callable[[list[Any]], Any]:
    """Run with Buffers in and Buffers out; `wait` until all is done, effects too. `meets`: devices of this process meet
    in collectives. `ready` makes what `filled` puts the results into: once devices run, they want the processor."""
    execute = executable.execute_sharded

    def plain(buffers: list[Any]) -> Any:
        empty = ready()
        return filled(empty, execute(buffers).consume_with_handlers(handlers))

    def waited(buffers: list[Any]) -> Any:
        results = execute(buffers, with_tokens=True)
        results.consume_token().block_until_ready()
        return filled(ready(), results.consume_with_handlers(handlers))

    alone = waited if wait else plain
    if not meets:
        return alone

    turns = _turns

    def in_turn(buffers: list[Any]) -> Any:
        thread = get_ident()
        if thread in turns.calling:
            return alone(buffers)
        empty = ready()
        with turns.lock:
            if not turns.more or turns.thread != thread:
                turns.wait(thread)
            turns.more -= 1
            if wait:
                return waited(buffers)
            results = turns.last = execute(buffers, with_tokens=True)
        return filled(empty, results.consume_with_handlers(handlers))

    return in_turn


def split(buffers: Any) -> list[Any]:
    """The pieces that are on this process's devices, each as Buffers of one device, in device order. Nothing moves."""
    return list(buffers._arrays) if len(buffers._sharding.device_set) > 1 else [buffers]


def join(
    pieces: Sequence[Any],
    shape: tuple[int, ...],
    dtype: Any,
    devices: Sequence[Any],
    local: Sequence[Any],
    memory_kind: str | None = None,
) -> Any:
    """Buffers over `devices`, made of Buffers of one device each: one for each device that is here (`local`).

    A piece that lies on its device is taken as it is, and shares its memory; others are copied from device to device,
    or by way of the host where these are of different platforms. All lie in the memory that is named.
    """
    kind = _WholeType(shape, dtype, len(devices))
    reached = [
        piece if _client_of(piece) is device.client else to_numpy(piece)
        for piece, device in zip(pieces, local, strict=True)
    ]
    where = _OnDevices(tuple(devices), memory_kind)
    return _jax.batched_device_put(kind, where, reached, list(local), enable_x64=True)


def _client_of(piece: Any) -> Any:
    """The client whose device Buffers of one device are on."""
    return piece._sharding._internal_device_list[0].client


def to_numpy(piece: Any) -> np.ndarray[Any, Any]:
    """Buffers of one device as a numpy array.

    `np.asarray` on Buffers is a trap: for bfloat16, and after a failed run, it gives an object array without an error.
    """
    return piece._single_device_array_to_np_array_did_copy()[0]  # type: ignore[no-any-return]


def start_copy_to_host(piece: Any) -> None:
    """Begin to copy Buffers of one device to the host, for a `to_numpy` that comes later."""
    piece._copy_single_device_array_to_host_async()


def shards_to_numpy(buffers: Any) -> list[np.ndarray[Any, Any]]:
    """The pieces that are on this process's devices, as numpy arrays, in device order."""
    return [to_numpy(piece) for piece in split(buffers)]


def to_dlpack(piece: Any) -> Any:
    """A capsule that hands the memory of Buffers of one device to another library, which shares it."""
    return _jax.buffer_to_dlpack_managed_tensor(piece, stream=None)


def from_dlpack(capsule: Any, device: Any, may_copy: bool) -> Any:
    """Buffers of one device that share the memory of another library's array; a copy where XLA cannot use that, and
    that is allowed."""
    return _jax.dlpack_managed_tensor_to_buffer(capsule, device, None, None if may_copy else False)


def record_tracebacks(on: bool) -> None:
    """Whether each array knows the Python lines that made it, which `heap_profile` shows.

    It takes 2 µs a call; and until the next garbage collection, or array from the host, some 200 bytes a call.
    """
    _jax.set_tracebacks_enabled(on)


def profiler_session(options: Any = None) -> Any:
    """Begin to record what runs in this process."""
    return _profiler.ProfilerSession(options or ProfileOptions())


def stop_session(session: Any, folder: str) -> None:
    """End a recording, and write it as TensorBoard reads it."""
    session.stop_and_export(folder)


def profiler_server(port: int) -> Any:
    """What lets others take profiles of this process, for as long as it is kept."""
    return _profiler.start_server(port)


def heap_profile(client: Any) -> bytes:
    """Who holds memory of a client's devices, as `pprof` reads it."""
    return bytes(client.heap_profile())


def module_texts(client: Any, names: Container[str]) -> Iterator[tuple[str, Callable[[], str]]]:
    """The modules of these names that are compiled and alive, each with what gives its text, optimised."""
    for executable in client.live_executables():
        for module in executable.hlo_modules():
            if module.name in names:
                yield module.name, module.to_string
