"""Adapter for jaxlib. No other module imports jaxlib, because its Python API changes between versions.

Works with the versions of jaxlib that `shardwise/version.py` names. `tests/test_jaxlib.py` exercises each name.

"Buffers" are jaxlib's ArrayImpl: one buffer on each of some devices. jaxlib sees the shards of all devices as one
array, concatenated along dim 0; the package's own layouts are unknown to it.
"""

import gc
import os
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from threading import RLock, get_ident
from types import ModuleType
from typing import Any, Protocol, TypeAlias, final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no log of XLA by default: errors are raised

import numpy as np
from jaxlib import _hlo, _jax, _profile_data, _profiler
from jaxlib import version as _version
from jaxlib import xla_client as _xla
from jaxlib.cpu import _lapack

from shardwise.base.blas_threads import run_blas_in_calling_thread
from shardwise.base.dlpack_capsule import tensor_in
from shardwise.base.lazy import lazy_module

# MLIR's bindings take 10 to 36 ms each, and few programs need them.
mlir_ir = lazy_module("jaxlib.mlir.ir")
_mlir_extension = lazy_module("jaxlib.mlir._mlir_libs._jax_mlir_ext")
_chlo = lazy_module("jaxlib.mlir.dialects.chlo")
_stablehlo = lazy_module("jaxlib.mlir.dialects.stablehlo")
_sdy = lazy_module("jaxlib.mlir.dialects.sdy")
_triton = lazy_module("jaxlib.triton.dialect")

mlir_passmanager = lazy_module("jaxlib.mlir.passmanager")
mlir_dialects = {
    name: lazy_module(f"jaxlib.mlir.dialects.{name}")
    for name in (
        *("arith", "builtin", "chlo", "func", "math", "memref", "mpmd", "scf", "sdy", "sparse_tensor", "stablehlo"),
        "vector",
    )
}

PyTreeRegistry: TypeAlias = _jax.pytree.PyTreeRegistry
PyTreeDef: TypeAlias = _jax.pytree.PyTreeDef
SequenceKey = _jax.pytree.SequenceKey
DictKey = _jax.pytree.DictKey
GetAttrKey = _jax.pytree.GetAttrKey
FlattenedIndexKey = _jax.pytree.FlattenedIndexKey
treedef_tuple = _jax.pytree.treedef_tuple
all_leaves = _jax.pytree.all_leaves
Buffers: TypeAlias = _jax.ArrayImpl
RuntimeFailure = _jax.JaxRuntimeError
Device = _jax.Device  # no TypeAlias: mypy rejects `isinstance` with an alias of Any
Client: TypeAlias = _jax.Client
DeviceTopology: TypeAlias = _jax.DeviceTopology
Executable: TypeAlias = _jax.LoadedExecutable
Store: TypeAlias = _jax.DistributedRuntimeClient  # of the coordination service
Token: TypeAlias = _jax.ShardedToken  # of a run
ProfileData: TypeAlias = _profile_data.ProfileData
ProfileEvent: TypeAlias = _profile_data.ProfileEvent
ProfileLine: TypeAlias = _profile_data.ProfileLine
ProfileOptions: TypeAlias = _profiler.ProfileOptions
ProfilePlane: TypeAlias = _profile_data.ProfilePlane
ProfilerSession: TypeAlias = _profiler.ProfilerSession
TraceMe = _profiler.TraceMe
OpSharding, HloSharding = _xla.OpSharding, _hlo.HloSharding
deserialize_portable_artifact = _jax.mlir.deserialize_portable_artifact
hlo_to_stablehlo = _jax.mlir.hlo_to_stablehlo
refine_polymorphic_shapes = _jax.mlir.refine_polymorphic_shapes
serialize_portable_artifact = _jax.mlir.serialize_portable_artifact
block_until_ready = _jax.batched_block_until_ready


class MlirObject(Protocol):
    """An object of MLIR's bindings, which have no types: a module, an op, a value, a type or an attribute."""

    def __getattr__(self, name: str) -> Any: ...


ALIAS_ALIGNMENT = 64  # bytes: XLA's CPU client copies host memory that is not aligned to it
PERTURBED_SOLVE = "tridiagonal_solve_perturbed_ffi"
_LAPACK, _HYBRID = "lapack_", ("cuhybrid_", "hiphybrid_")  # prefixes of the names of their routines

# jaxlib keeps Python objects that XLA's threads release until this is called.
gc.callbacks.append(lambda phase, info: _jax.collect_garbage())

# jaxlib 0.11 removed this keyword.
_HANDLER_KEYWORDS = {"_skip_checks": True} if "_skip_checks" in (_jax.array_result_handler.__doc__ or "") else {}


# jaxlib imports this whenever it makes an array of one device, and does without it if that fails.
_SOUGHT = "jax._src.sharding_impls"
_JAX_MODULES = str(Path(__file__).parents[1] / "jax_modules") + os.sep


@final
class JaxBlocker:
    """A finder that keeps jaxlib from importing jax.

    If jax is installed, jaxlib would import it, which takes longer than to import this package; if it is not, each
    search through the folders of packages takes longer than reading an array. So `sys.modules` says that the module
    does not exist, until somebody else imports jax.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name not in ("jax", _SOUGHT):
            return
        if is_jaxlib_asking():
            hide_jax()  # again, if somebody has tried to import jax in vain
            raise ModuleNotFoundError("jax is not imported on behalf of jaxlib", name=name)
        if name == "jax" and sys.modules.get(_SOUGHT, ...) is None:
            del sys.modules[_SOUGHT]


def is_jaxlib_asking() -> bool:
    """Return whether jaxlib's own code is importing a module, or reading an attribute of one that `as_jax` provides."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(("<frozen importlib", _JAX_MODULES)):
        frame = frame.f_back
    return frame is not None and frame.f_globals is globals()  # jaxlib was called here; its C++ code has no frames


def hide_jax() -> None:
    """Let imports of the module that jaxlib looks for fail at once, unless jax is imported."""
    if "jax" not in sys.modules:
        sys.modules[_SOUGHT] = None  # type: ignore[assignment]


sys.meta_path.insert(0, JaxBlocker)
hide_jax()


@final
class _ConcatenatedType:
    """The type that jaxlib sees: that of all shards, concatenated along dim 0."""

    __slots__ = ("dtype", "ndim", "shape", "weak_type")

    def __init__(self, shard_shape: tuple[int, ...], dtype: np.dtype[Any], devices: int):
        self.shape = (shard_shape[0] * devices, *shard_shape[1:]) if shard_shape else ()
        self.dtype, self.weak_type, self.ndim = np.dtype(dtype), False, len(shard_shape)


@final
class _ConcatenatedSharding(_jax.Sharding):  # type: ignore[misc]
    """The sharding that jaxlib sees: dim 0 is sharded over all devices, and scalars are replicated."""

    # Importing jax patches `_jax.Sharding` with read-only properties of these names: class attributes shadow them.
    _internal_device_list = None
    memory_kind: str | None = None
    device_set: Any = None

    def __init__(self, devices: tuple[Any, ...], memory_kind: str | None = None):
        super().__init__()
        self._internal_device_list = _jax.DeviceList(devices)
        self.memory_kind = memory_kind  # None for the default memory
        self.device_set = set(devices)
        self.count = len(devices)

    def _to_xla_hlo_sharding(self, ndim: int) -> Any:
        if ndim == 0 or self.count == 1:
            return _hlo.HloSharding.replicate()
        return _hlo.HloSharding.iota_tile((self.count,) + (1,) * (ndim - 1))

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] // self.count, *shape[1:]) if shape else ()


def cpu_client(devices: int) -> Client:
    """Create a CPU client with this many virtual devices."""
    return _xla.make_cpu_client(num_devices=devices)


PluginOptions = Mapping[str, str | int | list[int] | float | bool]


def load_plugin(name: str, library: str) -> Any:
    """Load the shared library of a PJRT plugin under a name, once per process, and return its `PJRT_Api`."""
    api = _xla.load_pjrt_plugin_dynamically(name, library)
    _profiler.register_plugin_profiler(api)
    return api


def load_plugin_api(name: str, api: Any) -> None:
    """Make the `PJRT_Api` of a plugin whose library is loaded already known under a name, once per process."""
    _xla.load_pjrt_plugin_with_c_api(name, api)


def plugin_client(name: str, options: PluginOptions, store: Store | None = None) -> Client:
    """Create a client of a loaded PJRT plugin.

    Args:
        name: the name under which the plugin was loaded.
        options: the plugin's options.
        store: the connection to the coordination service of a cluster.
    """
    if not _xla.pjrt_plugin_initialized(name):
        _xla.initialize_pjrt_plugin(name)
    return _xla.make_c_api_client(name, dict(options), store)


def plugin_topology(api: Any, name: str, options: PluginOptions) -> DeviceTopology:
    """Return a topology of a loaded PJRT plugin: devices that need not be present.

    Args:
        api: the plugin's `PJRT_Api`.
        name: the name of the topology, if the plugin has names for them.
        options: the plugin's options.
    """
    return _jax.get_c_api_topology(api, name, dict(options))


def device_topology(devices: Sequence[_jax.Device]) -> DeviceTopology:
    """Return the topology of devices of this machine."""
    return _jax.get_topology_for_devices(list(devices))


def topology_devices(topology: DeviceTopology) -> list[_jax.Device]:
    """Return the devices of a topology. Programs can be compiled for them, but not run."""
    return list(topology._make_compile_only_devices())


def is_compile_only(device: _jax.Device) -> bool:
    """Return whether a device is that of a topology."""
    return isinstance(device.client, _jax.CompileOnlyPyClient)


def gpu_plugin_options() -> dict[str, Any]:
    """Return the options of a GPU plugin: those of the memory allocator, from XLA's environment variables."""
    return dict(_xla.generate_pjrt_gpu_plugin_options())


_hybrid_modules: list[Any] = []  # GPU routines that call LAPACK on the host, and are not initialized yet


def register_gpu_kernels(api: Any, platform: str, package: str, extension: str) -> None:
    """Register jaxlib's GPU kernels (cuSOLVER, cuSPARSE and others) as custom calls of a plugin, without importing jax.

    Args:
        api: the `PJRT_Api` of the plugin.
        platform: XLA's name of the platform, "CUDA" or "ROCM".
        package: the package with the kernels, such as "jax_cuda13_plugin".
        extension: the module of the package that registers them with the plugin.
    """
    registrar = lazy_module(f"{package}.{extension}")
    _xla.register_custom_type_handler(platform, partial(registrar.register_custom_type, api))
    _xla.register_custom_call_handler(platform, partial(registrar.register_custom_call_target, api))
    for name, value in registrar.ffi_types().items():
        _xla.register_custom_type(name, value, platform=platform)
    handlers = {**registrar.ffi_handlers()}
    for part in ("_solver", "_sparse", "_hybrid", "_linalg"):
        handlers.update(lazy_module(f"{package}.{part}").registrations())
    for name, value in handlers.items():
        _xla.register_custom_call_target(name, value, platform=platform, api_version=1)
    _hybrid_modules.append(lazy_module(f"{package}._hybrid"))


def pjrt_platform(client: Client) -> str:
    """Return the platform of a client as PJRT calls it: "cuda" or "rocm", which `client.platform` both calls "gpu"."""
    return str(client._raw_platform)


# Seconds: XLA aborts the process when a timeout of its own passes, so ours come first.
_NEVER = 10**6
# Seconds until XLA gives up to tell the service that a process disconnects.
_DISCONNECT_TIME = 2


def cluster_service(address: str, processes: int, heartbeat_timeout: int) -> Any:
    """Start XLA's coordination service. A process that is lost does not end the others (`recoverable`)."""
    return _jax.get_distributed_runtime_service(
        address,
        processes,
        heartbeat_timeout=heartbeat_timeout,
        cluster_register_timeout=_NEVER,
        shutdown_timeout=_DISCONNECT_TIME,
        recoverable=True,
    )


def cluster_store(address: str, rank: int, heartbeat_timeout: int) -> Store:
    """Return a client of XLA's coordination service, which is not connected yet.

    `connect()` waits for all processes, however long it takes. XLA aborts the process if the service refuses it, or is
    lost later.
    """
    return _jax.get_distributed_runtime_client(
        address,
        rank,
        init_timeout=_NEVER,
        shutdown_timeout=_DISCONNECT_TIME,
        heartbeat_timeout=heartbeat_timeout,
        shutdown_on_destruction=False,
    )


def cluster_collectives(store: Store, host: str) -> Any:
    """Return Gloo's collectives between CPU devices, for `cluster_cpu_client`. It listens on a port of this host."""
    return _jax.make_gloo_tcp_collectives(distributed_client=store, hostname=host)


def cluster_cpu_client(store: Store, rank: int, processes: int, devices: int, collectives: Any) -> Client:
    """Create a client whose devices are those of all processes; this process has `devices` of them."""
    return _xla.make_cpu_client(
        distributed_client=store, node_id=rank, num_nodes=processes, collectives=collectives, num_devices=devices
    )


def preemption_sync_manager(store: Store) -> Any:
    """Return an object that watches for SIGTERM and agrees with all processes on a step, by `reached_sync_point`."""
    manager = _jax.create_preemption_sync_manager()
    manager.initialize(store)
    return manager


ResultHandler = Callable[[Any], Any]  # wraps one raw result of an executable as buffers
CompilerOptions = Sequence[tuple[str, str | bool | int | float]]  # names and values of XLA's compiler options
EFFORT_OPTIONS = ("optimization_level", "memory_fitting_level")  # those that are no flags of XLA


def compile_text(
    text: str,
    devices: Sequence[_jax.Device],
    callbacks: Sequence[Callable[..., Any]] = (),
    options: CompilerOptions = (),
) -> Executable:
    """Compile a StableHLO module into an executable that runs once on each device; replica i is on `devices[i]`.

    Args:
        text: the module.
        devices: the devices that run it.
        callbacks: the Python functions that its custom calls call, by number, with numpy arrays and tokens.
        options: compiler options of XLA.
    """
    compile_options = _compile_options(devices, options)
    device_list, client = _jax.DeviceList(tuple(devices)), devices[0].client
    _load_libraries(text, client)
    if not callbacks:
        return client.compile_and_load(text, device_list, compile_options)
    marked = [_launch_order.mark_callback(callback) for callback in callbacks]
    return client.compile_and_load(parse_module(text), device_list, compile_options, host_callbacks=marked)


def compile_for_topology(text: str, devices: Sequence[_jax.Device], options: CompilerOptions = ()) -> Any:
    """Compile a StableHLO module for devices of a topology. The result has no device: it can be read and serialized."""
    client = devices[0].client
    return client.compile(parse_module(text), _jax.DeviceList(tuple(devices)), _compile_options(devices, options))


def _compile_options(devices: Sequence[_jax.Device], overrides: CompilerOptions) -> Any:
    return compile_options(len(devices), 1, [device.id for device in devices], overrides)


def compile_options(
    replicas: int, partitions: int, device_ids: Any, overrides: CompilerOptions = (), fdo_profile: bytes | None = None
) -> Any:
    """Return the options of a compilation. XLA chooses the devices if `device_ids` is None."""
    options = _xla.CompileOptions()
    options.env_option_overrides = [(name, value) for name, value in overrides if name not in EFFORT_OPTIONS]
    for name, value in overrides:
        if name in EFFORT_OPTIONS:
            setattr(options.executable_build_options, name, value)
    options.num_replicas, options.num_partitions = replicas, partitions
    if device_ids is not None:
        assignment = np.asarray(device_ids).reshape(replicas, partitions)
        options.device_assignment = _xla.DeviceAssignment.create(assignment)
    if fdo_profile is not None:
        options.executable_build_options.fdo_profile = fdo_profile
    return options


def serialize_executable(executable: Executable) -> bytes:
    """Serialize an executable. The bytes have no checksum: the caller must detect damage."""
    if isinstance(executable, _jax.Executable):  # for devices of a topology
        return bytes(executable.serialize())
    return bytes(executable.client.serialize_executable(executable))


def deserialize_executable(
    blob: bytes, text: str, devices: Sequence[_jax.Device], options: CompilerOptions = ()
) -> Executable:
    """Load a serialized executable of the module `text`, for the same devices and options."""
    device_list, client = _jax.DeviceList(tuple(devices)), devices[0].client
    _load_libraries(text, client)
    return client.deserialize_executable(blob, device_list, _compile_options(devices, options))


def profiled_instructions(folder: str) -> bytes:
    """Return the costs of instructions in the profile of one run, as a serialized message of XLA."""
    return bytes(_profiler.get_profiled_instructions_proto(folder))


def jaxlib_version() -> str:
    """Return the version of jaxlib."""
    return str(_version.__version__)


def extension_version() -> int:
    """Return the version of jaxlib's C++ code, which libraries compare."""
    return int(_xla._version)


def versions(device: _jax.Device) -> str:
    """Return the versions that an executable depends on: of jaxlib, of the platform, and the kind of device."""
    if is_compile_only(device):
        return topology_versions(device)
    return f"{_version.__version__} {device.client.platform_version} {device.device_kind}"


def topology_versions(device: _jax.Device) -> str:
    """Return the versions that an executable for a topology of such devices depends on; it has no platform's."""
    return f"{_version.__version__} topology {device.device_kind}"


def _load_libraries(text: str, client: Client) -> None:
    """Load the libraries whose routines a module calls."""
    if _LAPACK in text or PERTURBED_SOLVE in text:
        _register_lapack()
    is_hybrid = any(prefix in text for prefix in _HYBRID)
    if is_hybrid:
        _initialize_hybrid()
    if (_LAPACK in text or is_hybrid) and client.local_device_count() > 1:
        run_blas_in_calling_thread()


def _initialize_hybrid() -> None:
    """Let the hybrid GPU routines, which call LAPACK on the host, find LAPACK."""
    while _hybrid_modules:
        _hybrid_modules.pop().initialize()


@cache
def _register_lapack() -> None:
    """Register the LAPACK routines of scipy as custom calls."""
    _lapack.initialize()
    for name, handler in _lapack.registrations().items():
        if name.startswith(_LAPACK) or name == PERTURBED_SOLVE:
            _xla.register_custom_call_target(name, handler, platform="cpu", api_version=1)


def register_target(name: str, handler: Any, platform: str, **options: Any) -> None:
    """Register a handler of XLA's typed foreign function interface: a capsule, or a dict of capsules by stage."""
    _xla.register_custom_call_target(name, handler, platform=platform, api_version=1, **options)


def register_type(name: str, registration: Any, platform: str) -> None:
    """Register a type that stateful handlers keep."""
    _xla.register_custom_type(name, registration, platform=platform)


def folder() -> str:
    """Return the folder of jaxlib."""
    return str(Path(str(_xla.__file__)).parent)


def _mlir_context() -> Any:
    """Return a new context of MLIR with the dialects of modules."""
    context = mlir_ir.Context()
    registry = mlir_ir.DialectRegistry()
    _mlir_extension.register_dialects(registry)
    context.append_dialect_registry(registry)
    _chlo.register_dialect(context)
    _stablehlo.register_dialect(context)
    _sdy.register_dialect(context)
    context.load_all_available_dialects()
    return context


def build_module(in_types: Sequence[str], body: Callable[..., Sequence[Any]]) -> str:
    """Return the text of a module. Its `main` has arguments of these types, and returns what `body` builds from them.

    Args:
        in_types: the types of the arguments, in MLIR's syntax.
        body: a function of values of MLIR, which emits operations and returns values.
    """
    with _mlir_context(), mlir_ir.Location.unknown():
        module = mlir_ir.Module.create()
        types = [mlir_ir.Type.parse(type) for type in in_types]
        with mlir_ir.InsertionPoint(module.body):
            mlir_dialects["func"].FuncOp.from_py_func(*types, name="main")(lambda *args: tuple(body(*args)))
        return str(module)


def parse_module(text: str | bytes) -> Any:
    """Parse a module in MLIR's syntax or bytecode. Compilation with callbacks needs the parsed form."""
    return mlir_ir.Module.parse(text, _mlir_context())


def triton_functions(text: str) -> list[tuple[str, str, str]]:
    """Parse and verify a module of Triton IR, and return the name, visibility and type of each of its functions.

    Raises:
        ValueError: if the text is no such module. The arguments of the error are pairs of a location, such as
            `"-":4:10` for line 4, and a message.
    """
    context = mlir_ir.Context()
    _triton.register_dialect(context)
    context.load_all_available_dialects()
    with context:
        try:
            module = mlir_ir.Module.parse(text)
        except mlir_ir.MLIRError as error:
            found = [(str(each.location), str(each.message)) for each in error.error_diagnostics]
            raise ValueError(*found) from None
        functions = [op for op in module.body.operations if op.operation.name == "tt.func"]
        return [
            (
                mlir_ir.StringAttr(op.attributes["sym_name"]).value,
                mlir_ir.StringAttr(op.attributes["sym_visibility"]).value if "sym_visibility" in op.attributes else "",
                str(op.attributes["function_type"]),
            )
            for op in functions
        ]


def parse_portable_artifact(artifact: bytes) -> Any:
    """Parse a portable artifact of StableHLO, and upgrade its ops to the current version."""
    context = _mlir_context()
    messages: list[str] = []

    def record(diagnostic: Any) -> bool:
        with suppress(RuntimeError):  # the message quotes bytes that are not UTF-8
            messages.append(diagnostic.message)
        return True  # otherwise MLIR prints it

    with context.attach_diagnostic_handler(record):
        try:
            return _stablehlo.deserialize_portable_artifact(context, artifact)
        except ValueError as error:
            raise ValueError(": ".join((str(error), *messages))) from error


def stablehlo_version() -> tuple[int, ...]:
    """Return the newest version of StableHLO that can be parsed."""
    return tuple(map(int, _stablehlo.get_current_version().split(".")))


def hlo_computation(text: str) -> Any:
    """Convert a StableHLO module to an XlaComputation, which XLA has not optimized."""
    return _jax.mlir.mlir_module_to_xla_computation(text, use_tuple_args=False, return_tuple=False)


def hlo_text(text: str) -> str:
    """Convert a StableHLO module to HLO, as text; XLA has not optimized it."""
    return str(hlo_computation(text).as_hlo_text())


def hlo_module_text(proto: bytes) -> str:
    """Convert a serialized `HloModuleProto` to text, with metadata and source lines."""
    return str(_hlo.XlaComputation(proto).get_hlo_module().to_string())


def put(
    shards: Sequence[Any], devices: Sequence[_jax.Device], local: Sequence[_jax.Device], memory_kind: str | None = None
) -> Buffers:
    """Copy numpy shards to devices, and return the buffers.

    jaxlib copies each shard before this returns. By default it would alias aligned memory: later writes to a shard
    would change the buffers, and they could not be donated. jaxlib fails if two shards start at the same address, as
    those of a replicated array do, so all but the first of them are copied here. For jaxlib a scalar is replicated, and
    it copies the first one to all devices: the terms of an unreduced scalar are copied one by one.

    Args:
        shards: one shard for each device of this process.
        devices: all devices of the array.
        local: those of this process.
        memory_kind: the memory of the devices; None for the default memory.
    """
    distinct, addresses = [], set()
    for shard in shards:
        contiguous = np.asarray(shard, order="C")
        address = contiguous.__array_interface__["data"][0]
        distinct.append(contiguous.copy() if address in addresses else contiguous)
        addresses.add(address)
    if distinct[0].ndim == 0 and len({scalar.tobytes() for scalar in distinct}) > 1:
        scalars = [put([x], (device,), (device,), memory_kind) for x, device in zip(distinct, local, strict=True)]
        return join(scalars, (), distinct[0].dtype, devices, local, memory_kind)
    type = _ConcatenatedType(distinct[0].shape, distinct[0].dtype, len(devices))
    sharding = _ConcatenatedSharding(tuple(devices), memory_kind)
    semantics = _jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
    return _jax.batched_device_put(
        type, sharding, distinct, list(local), host_buffer_semantics=semantics, enable_x64=True
    )


@final
class _BufferMemory:
    """The memory of buffers of one CPU device, which stays alive as long as a numpy array shares it."""

    def __init__(self, buffers: Buffers, nbytes: int):
        self._buffers = buffers
        address = address_of(buffers)
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}


def put_writable(initial: np.ndarray[Any, Any], device: _jax.Device) -> tuple[Buffers, np.ndarray[Any, Any]]:
    """Copy an array to a CPU device; return the buffers and a numpy array that shares their memory, to write into.

    XLA owns the memory, so the buffers can be donated, which those that alias the memory of a numpy array cannot. The
    elements must be written before any other code has the buffers. The dtype must have whole bytes.
    """
    buffers = put([initial], (device,), (device,))
    return buffers, np.asarray(_BufferMemory(buffers, initial.nbytes)).view(initial.dtype).reshape(initial.shape)


def put_aliased(memory: np.ndarray[Any, Any], device: _jax.Device) -> Buffers:
    """Return buffers of a CPU device that share the memory of a contiguous array, and keep it alive.

    XLA copies the elements when the buffers are donated. The memory must start at a multiple of `ALIAS_ALIGNMENT`
    bytes, and nothing may write into it after other code has the buffers.
    """
    type, sharding = _ConcatenatedType(memory.shape, memory.dtype, 1), _ConcatenatedSharding((device,))
    semantics = _jax.HostBufferSemantics.ZERO_COPY
    buffers = _jax.batched_device_put(
        type, sharding, [memory], [device], host_buffer_semantics=semantics, enable_x64=True
    )
    if address_of(buffers) != memory.ctypes.data:  # XLA may copy; later writes would then be lost
        raise RuntimeError(f"XLA has copied an array of {memory.nbytes:,} bytes instead of sharing its memory")
    return buffers


def copy_to_memory(buffers: Buffers, devices: Sequence[_jax.Device], memory_kind: str, copied: bool = False) -> Buffers:
    """Copy buffers to another memory of their devices. `copied`: copy even if they are in it already."""
    sharding = _ConcatenatedSharding(tuple(devices), memory_kind)
    semantics = _jax.ArrayCopySemantics.ALWAYS_COPY if copied else _jax.ArrayCopySemantics.REUSE_INPUT
    (result,) = _jax.batched_copy_array_to_devices_with_sharding(
        [buffers], [sharding._internal_device_list], [sharding], [semantics]
    )
    return result


def result_handler(
    shape: tuple[int, ...], dtype: np.dtype[Any], devices: Sequence[_jax.Device], memory_kind: str | None = None
) -> ResultHandler:
    """Return a function that wraps one raw result of an executable as buffers.

    Args:
        shape: the shape of a shard.
        dtype: the dtype.
        devices: the devices.
        memory_kind: the memory of the result; None for the default memory.
    """
    type, sharding = _ConcatenatedType(shape, dtype, len(devices)), _ConcatenatedSharding(tuple(devices), memory_kind)
    handler: ResultHandler = _jax.array_result_handler(type, sharding, committed=True, **_HANDLER_KEYWORDS)
    return handler


@final
class _LaunchOrder:
    """Orders the launches of programs with collectives on the CPU devices of this process.

    Each such run occupies one thread per device. XLA starts the runs of one Python thread in the same order on every
    device, but has no order between Python threads: runs of two threads could deadlock. And it aborts the process when
    more than 32 runs wait. So a thread waits for the last run of another thread before it launches, and bounds the
    number of its own active runs. Waiting for a finished run takes a tenth of the time of a short run, so a thread
    waits once every `WINDOW` launches.
    """

    WINDOW = 8  # at most twice as many runs are active

    def __init__(self) -> None:
        self.lock = RLock()
        self.callback_threads: set[int] = set()  # XLA's threads that run a Python callback
        self.last: Any = None  # the results of the last run, which have its token, and the function that waits for it
        self.thread = 0  # the Python thread that launched it
        self.remaining = 0  # launches of this thread before it must wait
        self._previous: Any = None  # `last` of the previous window

    def wait(self, thread: int) -> None:
        """Wait until a thread may launch the next window. The caller holds the lock."""
        if self.thread != thread:
            self._wait_for(self.last)
            self.thread, self._previous = thread, None
        else:
            self._wait_for(self._previous)
            self._previous = self.last
        self.remaining = self.WINDOW

    def _wait_for(self, run: tuple[Any, Callable[[Token], None]] | None) -> None:
        if run is None:
            return
        results, wait_for_token = run
        try:
            token = results.consume_token()
        except ValueError:  # it was consumed by an earlier wait
            return
        wait_for_token(token)

    def mark_callback(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a callback of a run so that launches inside it do not wait for that run."""

        def call(*args: object) -> Any:
            thread = get_ident()
            outermost = thread not in self.callback_threads
            self.callback_threads.add(thread)
            try:
                return callback(*args)
            finally:
                if outermost:
                    self.callback_threads.discard(thread)

        return call


_launch_order = _LaunchOrder()


def _wait_for_token(token: Token) -> None:
    with suppress(RuntimeFailure):  # the results report the failure too
        token.block_until_ready()


def launcher(
    executable: Executable,
    handlers: Sequence[ResultHandler],
    create: Callable[[], Any] = list,
    fill: Callable[[Any, list[Any]], Any] = lambda _, results: results,
    wait: bool = False,
    ordered: bool = False,
    wait_for_token: Callable[[Token], None] = _wait_for_token,
) -> Callable[[list[Any]], Any]:
    """Return a function that runs an executable on buffers.

    Args:
        executable: the compiled program.
        handlers: the `result_handler` of each result.
        create: called before the run, to create the containers of the results: devices need the processor afterwards.
        fill: called after the run, to put the results into the containers.
        wait: whether to wait until the run and its effects are complete.
        ordered: whether launches must be ordered, because devices of this process run collectives.
        wait_for_token: waits until a run is complete, and does not raise its failure.
    """
    execute = executable.execute_sharded

    def run_async(buffers: list[Any]) -> Any:
        containers = create()
        return fill(containers, execute(buffers).consume_with_handlers(handlers))

    def run_and_wait(buffers: list[Any]) -> Any:
        results = execute(buffers, with_tokens=True)
        token = results.consume_token()
        wait_for_token(token)
        token.block_until_ready()
        return fill(create(), results.consume_with_handlers(handlers))

    run = run_and_wait if wait else run_async
    if not ordered:
        return run

    order = _launch_order

    def run_in_order(buffers: list[Any]) -> Any:
        thread = get_ident()
        if thread in order.callback_threads:
            return run(buffers)
        containers = create()
        with order.lock:
            if not order.remaining or order.thread != thread:
                order.wait(thread)
            order.remaining -= 1
            if wait:
                return run_and_wait(buffers)
            results = execute(buffers, with_tokens=True)
            order.last = results, wait_for_token
        return fill(containers, results.consume_with_handlers(handlers))

    return run_in_order


def split(buffers: Buffers) -> list[Buffers]:
    """Return the shards on the devices of this process, each as buffers of one device, in device order, uncopied."""
    devices = buffers._sharding._internal_device_list
    if len(devices) > 1:
        return list(buffers._arrays)
    return [buffers] if devices[0].process_index == devices[0].client.process_index() else []


def first_shard(buffers: Buffers) -> Buffers:
    """Return the first shard on the devices of this process as buffers of one device, uncopied."""
    return buffers._fully_replicated_shard()


def clone(buffers: Buffers) -> Buffers:
    """Return another object for the same buffers, all of which are on devices of this process.

    jaxlib keeps the results of `split` and `first_shard` as long as the object that they were called with exists.
    """
    return buffers.clone()


def join(
    shards: Sequence[Buffers],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    devices: Sequence[_jax.Device],
    local: Sequence[_jax.Device],
    memory_kind: str | None = None,
) -> Buffers:
    """Combine buffers of one device each into buffers over `devices`.

    A shard that is on its device already is not copied, and shares its memory. Others are copied from device to
    device, or through the host if the platforms differ.

    Args:
        shards: the buffers for each device of this process; none if all devices belong to other processes.
        shape: the shape of a shard.
        dtype: the dtype.
        devices: all devices of the array.
        local: those of this process.
        memory_kind: the memory of the shards; None for the default memory.
    """
    type = _ConcatenatedType(shape, dtype, len(devices))
    transferable = [
        shard if _device_of(shard).client is device.client else to_numpy(shard)
        for shard, device in zip(shards, local, strict=True)
    ]
    sharding = _ConcatenatedSharding(tuple(devices), memory_kind)
    return _jax.batched_device_put(type, sharding, transferable, list(local), enable_x64=True)


def _device_of(shard: Buffers) -> _jax.Device:
    """Return the device of buffers of one device."""
    return shard._sharding._internal_device_list[0]


def to_numpy(shard: Buffers) -> np.ndarray[Any, Any]:
    """Read buffers of one device as a numpy array, which cannot be written to. On CPU devices it shares their memory.

    `np.asarray` is not usable here: for bfloat16, and after a failed run, it returns an object array without an error.
    """
    if _device_of(shard).platform == "cpu":  # DLPack takes a tenth of the time, because jaxlib looks for jax below
        with suppress(RuntimeError, BufferError):  # the dtype is one of ml_dtypes', or the run has failed
            return np.from_dlpack(_HostCapsule(to_dlpack(shard)))
    return shard._single_device_array_to_np_array_did_copy()[0]  # type: ignore[no-any-return]


@final
class _HostCapsule:
    """A DLPack capsule of host memory, as numpy wants it."""

    __slots__ = ("_capsule",)

    def __init__(self, capsule: object):
        self._capsule = capsule

    def __dlpack__(self, **options: object) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the host


def address_of(shard: Buffers) -> int:
    """Return the address of buffers of one device, in the memory of the device."""
    with suppress(RuntimeFailure):  # DLPack has no integers of less than a byte
        capsule = to_dlpack(shard)
        tensor = tensor_in(capsule)
        return (tensor.data or 0) + int(tensor.byte_offset)
    return int(shard.unsafe_buffer_pointer())


def start_copy_to_host(shard: Buffers) -> None:
    """Start to copy buffers of one device to the host, for a later `to_numpy`."""
    shard._copy_single_device_array_to_host_async()


def to_dlpack(shard: Buffers) -> Any:
    """Return a DLPack capsule that shares the memory of buffers of one device."""
    return _jax.buffer_to_dlpack_managed_tensor(shard, stream=None)


def from_dlpack(capsule: object, device: _jax.Device, may_copy: bool) -> Buffers:
    """Return buffers of one device that share the memory of a DLPack capsule; a copy if XLA cannot use it directly.

    With `may_copy=False`, jaxlib raises an error instead of copying.
    """
    return _jax.dlpack_managed_tensor_to_buffer(capsule, device, None, None if may_copy else False)


def record_tracebacks(on: bool) -> None:
    """Set whether each array records the Python traceback that created it, for `heap_profile`.

    It costs 2 µs per call and, until the next garbage collection or array from the host, about 200 bytes per call.
    """
    _jax.set_tracebacks_enabled(on)


def profiler_session(options: ProfileOptions | None = None) -> ProfilerSession:
    """Start to record a profile of this process."""
    return _profiler.ProfilerSession(options or ProfileOptions())


def stop_session(session: ProfilerSession) -> bytes:
    """Stop a recording, and return the serialized profile."""
    return bytes(session.stop())


def export_session(session: ProfilerSession, profile: bytes, folder: str) -> None:
    """Write the serialized profile of a recording in TensorBoard's format."""
    session.export(profile, folder)


def profile_subprocess(pid: int, port: int) -> Any:
    """Include a process with a profiler server in this process's profiles; return a function that ends it."""
    return _profiler.register_subprocess(pid, port)


def profiler_server(port: int) -> Any:
    """Start a server from which profiles of this process can be taken, for as long as the object is alive."""
    return _profiler.start_server(port)


def heap_profile(client: Client) -> bytes:
    """Return the memory profile of a client's devices, in the format of `pprof`."""
    return bytes(client.heap_profile())


def module_texts(client: Client, names: Container[str]) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the live compiled modules of these names, each with a function that returns its optimized HLO text."""
    for executable in client.live_executables():
        for module in executable.hlo_modules():
            if module.name in names:
                yield module.name, module.to_string
