"""colocated_python: run Python functions in the processes whose devices hold the arguments.

Every process runs the whole program here, so each process with a device of the arguments calls the function itself. It
finds its shards in `x.addressable_shards`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from typing import Any, final

from shardwise import tree
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.arguments import check_function
from shardwise.base._jaxlib import Device
from shardwise.base.lazy import publish
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import Mesh, device_grid
from shardwise.runtime.array import ArrayImpl, array_signature, put_shards
from shardwise.runtime.client import devices as all_devices
from shardwise.runtime.client import process_index


def colocated_cpu_devices(devices_or_mesh: Mesh | Iterable[Any]) -> Any:
    """Return CPU devices of the processes that devices belong to.

    Args:
        devices_or_mesh: devices, or a mesh.

    Returns:
        One CPU device for each device, as a tuple, or as a mesh of the same shape. The n-th device of a process has the
        n-th CPU device of that process. A CPU device is its own.

    Raises:
        ValueError: if a process has fewer CPU devices than there are devices of it.

    Example:
        >>> mesh = jax.make_mesh((2,), ("x",))
        >>> jax.experimental.colocated_python.colocated_cpu_devices(mesh) == mesh
        True
    """
    if isinstance(devices_or_mesh, Mesh):
        mesh = devices_or_mesh
        cpus = colocated_cpu_devices(mesh.flat_devices)
        return Mesh(device_grid(cpus, mesh.axis_sizes), mesh.axis_names, mesh.axis_types)
    given = tuple(devices_or_mesh)
    if all(device.platform == "cpu" for device in given):
        return given
    return tuple(_colocated_cpu_device(device) for device in given)


def _colocated_cpu_device(device: Device) -> Device:
    """Return the CPU device at the position of a device among those of its process."""
    if device.platform == "cpu":
        return device
    here = [other for other in device.client.devices() if other.process_index == device.process_index]
    cpus = [cpu for cpu in all_devices("cpu") if cpu.process_index == device.process_index]
    number = here.index(device)
    if number >= len(cpus):
        raise ValueError(
            f"colocated_cpu_devices: process {device.process_index} has {len(here)} devices like {device}, but only "
            f"{len(cpus)} CPU devices. Call config.update('num_cpu_devices', {len(here)}) before their first use."
        )
    return cpus[number]


@final
class _ColocatedFunction:
    """A function that runs in the processes of its devices, with what `specialize` says about it."""

    def __init__(
        self, function: Callable[..., Any], devices: Sequence[Device] | None, out_specs: Callable[..., Any] | None
    ):
        self._function, self._devices, self._out_specs = function, devices, out_specs
        update_wrapper(self, function)

    def specialize(
        self,
        in_specs: object = None,
        out_specs_fn: Callable[..., Any] | None = None,
        devices: Sequence[Device] | None = None,
    ) -> "_ColocatedFunction":
        """Return the function with known devices or types of results.

        Args:
            in_specs: accepted and not needed: arguments know their types.
            out_specs_fn: a function from the types of the arguments, as `ShapeDtypeStruct`, to those of the results. A
                process that does not run the function makes its results from them.
            devices: the devices whose processes run the function; by default those of the arguments.
        """
        return _ColocatedFunction(
            self._function,
            self._devices if devices is None else tuple(devices),
            self._out_specs if out_specs_fn is None else out_specs_fn,
        )

    def __call__(self, *args: object, **kwargs: object) -> Any:
        arrays = [leaf for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, ArrayImpl)]
        devices = self._devices or [device for array in arrays for device in array.sharding.devices]
        if not devices or any(device.process_index == process_index() for device in devices):
            return self._function(*args, **kwargs)
        if self._out_specs is None:
            raise ValueError(
                f"colocated_python: process {process_index()} has no device of the arguments, so it does not run "
                f"`{self.__name__}` and does not know the types of its results: pass them with "  # type: ignore[attr-defined]
                "`specialize(out_specs_fn=…)`"
            )
        specs = tree.map(_struct, (args, kwargs))
        return tree.map(_array_elsewhere, self._out_specs(*specs[0], **specs[1]))


def _struct(x: object) -> Any:
    return ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) if isinstance(x, ArrayImpl) else x


def _array_elsewhere(spec: ShapeDtypeStruct) -> ArrayImpl:
    """Return an array of which this process has no shard."""
    sharding: Any = spec.sharding
    if sharding is None or sharding.has_addressable_devices:
        raise ValueError(f"colocated_python: out_specs_fn must return shardings on the devices of the function: {spec}")
    type = ArrayType(tuple(spec.shape), spec.dtype)
    shard_type = type.with_shape(sharding.shard_shape(type.shape))
    return ArrayImpl.from_buffers(put_shards([], shard_type, sharding), array_signature(type, sharding, True))


def colocated_python(fun: Callable[..., Any]) -> Any:
    """Run a Python function in the processes whose devices hold its arguments.

    Args:
        fun: the function. Each of these processes calls it; it may read `x.addressable_shards`, and make arrays with
            `make_array_from_single_device_arrays`.

    Returns:
        A function like `fun`. Its method `specialize(out_specs_fn=…, devices=…)` tells the types of the results to
        processes that do not run it, and the devices for calls without arrays.

    Raises:
        TypeError: if `fun` is not callable.

    Example:
        >>> jax.experimental.colocated_python.colocated_python(lambda x: x + 1)(jnp.arange(3))
        Array([1, 2, 3], dtype=int32)
    """
    check_function("colocated_python", fun)
    return _ColocatedFunction(fun, None, None)


def colocated_python_class(cls: type) -> type:
    """Make the public methods of a class run in the processes whose devices hold their arguments.

    Args:
        cls: the class. Every process has an object of its own.

    Returns:
        A subclass of it.

    Raises:
        TypeError: if `cls` is not a class.

    Example:
        >>> @jax.experimental.colocated_python.colocated_python_class
        ... class Counter:
        ...     total = 0
        ...
        ...     def add(self, x):
        ...         self.total += int(x.sum())
        ...         return self.total
        >>> Counter().add(jnp.arange(3))
        3
    """
    if not isinstance(cls, type):
        raise TypeError(f"colocated_python_class needs a class, not {cls!r}")

    def method(function: Callable[..., Any]) -> Any:
        def call(self: object, *args: object, **kwargs: object) -> Any:
            return colocated_python(lambda *args, **kwargs: function(self, *args, **kwargs))(*args, **kwargs)

        return update_wrapper(call, function)

    methods = {name: method(value) for name, value in vars(cls).items() if callable(value) and not name.startswith("_")}
    return type(cls.__name__, (cls,), {**methods, "__doc__": cls.__doc__, "__module__": cls.__module__})


publish(__name__)
