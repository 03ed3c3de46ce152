"""jax.experimental.serialize_executable: compiled functions as bytes, to run in a later process without compilation."""

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from shardwise import tree
from shardwise.api.ahead_of_time.aot import Compiled, StageRefs
from shardwise.base._jaxlib import Client, Device, topology_versions, versions
from shardwise.base.lazy import publish
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.runtime.array import place
from shardwise.runtime.client import devices as all_devices


def serialize(compiled: Compiled) -> tuple[bytes, tree.Structure, tree.Structure]:
    """Serialize a compiled function.

    Args:
        compiled: the result of `jit(f).lower(...).compile()`.

    Returns:
        The bytes, and the pytree structures of the arguments and the results, which can be pickled if their nodes can.

    Raises:
        ValueError: if the function calls host functions.
        NotImplementedError: if the function closes over PRNG keys, or uses Refs.

    Example:
        >>> compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
        >>> payload, in_tree, out_tree = jax.experimental.serialize_executable.serialize(compiled)
        >>> type(payload)
        <class 'bytes'>
    """
    prepared, executable = compiled._prepared, compiled._launch.executable
    name = compiled._request.program.name
    if executable.has_callbacks:
        raise ValueError(f"serialize: `{name}` calls host functions, which cannot be serialized")
    if compiled._refs:
        raise NotImplementedError(f"serialize: `{name}` uses Refs: pass their arrays, and return those that change")
    if any(is_key(array.type.dtype) for array in prepared.constants):
        raise NotImplementedError(f"serialize: `{name}` closes over PRNG keys: pass them as arguments")
    constants = [_Constant(np.asarray(array), array.type, array.sharding) for array in prepared.constants]
    device, stripped = prepared.target.devices[0], replace(prepared, constants=[])
    content = compiled._request, stripped, constants, executable.binary.serialize(), versions(device)
    with io.BytesIO() as file:
        _Pickler(file).dump(content)
        return file.getvalue(), compiled.in_tree, compiled.out_tree


def deserialize_and_load(
    serialized: bytes,
    in_tree: tree.Structure,
    out_tree: tree.Structure,
    backend: str | Client | None = None,
    execution_devices: Sequence[Device] | None = None,
) -> Compiled:
    """Load a serialized function, for devices with the ids for which it was compiled.

    The bytes are unpickled: load only what you trust.

    Args:
        serialized: the bytes that `serialize` returned.
        in_tree: the pytree structure of the arguments.
        out_tree: the pytree structure of the results.
        backend: the platform or its client; by default the one that programs run on.
        execution_devices: the devices; by default all of the platform.

    Returns:
        The compiled function, which can be called.

    Raises:
        ValueError: if a device is missing, if the devices belong to another client, or if the function was compiled by
            another version of jaxlib or for another kind of device.

    Example:
        >>> compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
        >>> loaded = jax.experimental.serialize_executable.deserialize_and_load(
        ...     *jax.experimental.serialize_executable.serialize(compiled)
        ... )
        >>> loaded(2.0)
        Array(3., dtype=float32, weak_type=True)
    """
    client = all_devices(backend)[0].client if backend is None or isinstance(backend, str) else backend
    devices = client.devices() if execution_devices is None else list(execution_devices)
    if any(device.client is not client for device in devices):
        raise ValueError(f"deserialize_and_load: execution_devices {devices} do not belong to the backend {backend!r}")
    with io.BytesIO(serialized) as file:
        request, prepared, constants, executable, version = _Unpickler(file, devices).load()
    if version not in (versions(devices[0]), topology_versions(devices[0])):
        raise ValueError(
            f"deserialize_and_load: `{request.program.name}` was compiled with {version!r}, and here is "
            f"{versions(devices[0])!r}. Compile it again."
        )
    prepared = replace(prepared, constants=[place(x.elements, x.type, x.sharding, committed=True) for x in constants])
    return Compiled(request, prepared, prepared.compile(serialized=executable), in_tree, out_tree, StageRefs())


@final
@dataclass(frozen=True)
class _Constant:
    """An array that a function closes over."""

    elements: np.ndarray[Any, Any]
    type: ArrayType
    sharding: Sharding


@final
class _Pickler(pickle.Pickler):
    """Pickles devices by their ids."""

    def persistent_id(self, obj: object) -> int | None:
        return obj.id if isinstance(obj, Device) else None


@final
class _Unpickler(pickle.Unpickler):
    """Replaces the ids of devices by devices."""

    def __init__(self, file: io.BytesIO, devices: Sequence[Device]):
        super().__init__(file)
        self._devices = {device.id: device for device in devices}

    def persistent_load(self, pid: Any) -> Device:
        if pid not in self._devices:
            raise ValueError(
                f"deserialize_and_load: the function was compiled for the device with id {pid}, and there are "
                f"{sorted(self._devices)}"
            )
        return self._devices[pid]


publish(__name__)
