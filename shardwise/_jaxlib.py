"""Everything that we rely on from jaxlib, by name. No other file imports it: its Python surface changes with versions.

Works with jaxlib 0.10.2 (Python 3.11) to 0.11.x. `tests/test_jaxlib.py` exercises each name.
"""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's own log is off unless the user asks: errors are raised

import numpy as np
from jaxlib import _hlo, _jax
from jaxlib import xla_client as _xla

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
block_until_ready = _jax.batched_block_until_ready

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
    memory_kind = None
    device_set: Any = None

    def __init__(self, devices: tuple[Any, ...]):
        super().__init__()
        self._internal_device_list = _jax.DeviceList(devices)
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


def cluster_cpu_client(store: Any, rank: int, processes: int, devices: int, host: str) -> Any:
    """A client whose devices are those of all processes; `devices` of them are here."""
    collectives = _jax.make_gloo_tcp_collectives(distributed_client=store, hostname=host)
    return _xla.make_cpu_client(
        distributed_client=store, node_id=rank, num_nodes=processes, collectives=collectives, num_devices=devices
    )


def compile_text(client: Any, text: str, devices: Sequence[Any], callbacks: Sequence[Callable[..., Any]] = ()) -> Any:
    """An executable that runs a module once on each device (replica i is `devices[i]`).

    `callbacks` are what the module's custom calls to Python call, by number: numpy arrays (and tokens) in and out.
    """
    options = _xla.CompileOptions()
    options.num_replicas, options.num_partitions = len(devices), 1
    assignment = np.array([device.id for device in devices]).reshape(-1, 1)
    options.device_assignment = _xla.DeviceAssignment.create(assignment)
    where = _jax.DeviceList(tuple(devices))
    if not callbacks:
        return client.compile_and_load(text, where, options)
    return client.compile_and_load(_parsed(text), where, options, host_callbacks=list(callbacks))


def _parsed(text: str) -> Any:
    """The module as an object: only that can be compiled together with callbacks.

    MLIR's bindings take as long to import as half of this package, and only callbacks need them.
    """
    ir = import_module("jaxlib.mlir.ir")
    context = ir.Context()
    registry = ir.DialectRegistry()
    import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext").register_dialects(registry)
    context.append_dialect_registry(registry)
    import_module("jaxlib.mlir.dialects.stablehlo").register_dialect(context)
    context.load_all_available_dialects()
    return ir.Module.parse(text, context)


def put(pieces: Sequence[Any], devices: Sequence[Any], local: Sequence[Any]) -> Any:
    """Buffers over `devices`: one numpy piece for each device that is here (`local`).

    jaxlib may alias the numpy memory for as long as the buffers live, and its options against that do not hold for
    several devices: so each piece is copied here, and nobody else has the copy.
    """
    own = [np.array(piece, order="C", copy=True) for piece in pieces]
    kind = _WholeType(own[0].shape, own[0].dtype, len(devices))
    return _jax.batched_device_put(kind, _OnDevices(tuple(devices)), own, list(local), enable_x64=True)


def result_handler(shape: tuple[int, ...], dtype: Any, devices: Sequence[Any]) -> Any:
    """What turns one raw result into Buffers."""
    kind = _WholeType(shape, dtype, len(devices))
    return _jax.array_result_handler(kind, _OnDevices(tuple(devices)), committed=True, **_HANDLER_KEYWORDS)


def launcher(executable: Any, handlers: Sequence[Any], wait: bool = False) -> Callable[[list[Any]], list[Any]]:
    """Run with Buffers in and Buffers out; `wait` until all is done, effects too."""
    execute = executable.execute_sharded
    if not wait:
        return lambda buffers: execute(buffers).consume_with_handlers(handlers)

    def launch(buffers: list[Any]) -> list[Any]:
        results = execute(buffers, with_tokens=True)
        results.consume_token().block_until_ready()
        return results.consume_with_handlers(handlers)  # type: ignore[no-any-return]

    return launch


def split(buffers: Any) -> list[Any]:
    """The pieces that are on this process's devices, each as Buffers of one device, in device order. Nothing moves."""
    return list(buffers._arrays) if len(buffers._sharding.device_set) > 1 else [buffers]


def join(
    pieces: Sequence[Any], shape: tuple[int, ...], dtype: Any, devices: Sequence[Any], local: Sequence[Any]
) -> Any:
    """Buffers over `devices`, made of Buffers of one device each: one for each device that is here (`local`).

    A piece that lies on its device is taken as it is, and shares its memory; others are copied from device to device.
    """
    kind = _WholeType(shape, dtype, len(devices))
    return _jax.batched_device_put(kind, _OnDevices(tuple(devices)), list(pieces), list(local), enable_x64=True)


def read(piece: Any) -> np.ndarray[Any, Any]:
    """Buffers of one device as a numpy array.

    `np.asarray` on Buffers is a trap: for bfloat16, and after a failed run, it gives an object array without an error.
    """
    return piece._single_device_array_to_np_array_did_copy()[0]  # type: ignore[no-any-return]


def start_read(piece: Any) -> None:
    """Begin to copy Buffers of one device to the host, for a `read` that comes later."""
    piece._copy_single_device_array_to_host_async()


def read_pieces(buffers: Any) -> list[np.ndarray[Any, Any]]:
    """The pieces that are on this process's devices, as numpy arrays, in device order."""
    return [read(piece) for piece in split(buffers)]
