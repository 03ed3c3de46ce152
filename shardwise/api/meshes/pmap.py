"""pmap: run a function on several devices, each on its own slice of the arguments.

pmap is jit of a manual region (`shard_map`) over a mesh with one axis and one device per slice. The region removes the
mapped dim and determines the shardings of arguments and results. Its types do not track varying axes, so a derivative
inside is the device's own, and the cotangent of `lax.psum` is the sum of the cotangents of all devices.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from itertools import zip_longest
from typing import Any, ParamSpec, TypeVar, final

import numpy as np

from shardwise import tree
from shardwise.api import jit
from shardwise.api.arguments import argument_names, check_function, describe_function
from shardwise.api.axes import (
    argument_axes,
    axes_to_specs,
    check_axes,
    check_nonnegative_axes,
    common_size,
    mapped_dim,
    output_axes,
)
from shardwise.api.flatten import check_outputs, is_traced
from shardwise.api.meshes.pmap_processes import global_to_local, local_to_global
from shardwise.api.meshes.shard_map import ShardMapOptions, map_shards
from shardwise.api.static_args import ArgumentSelection, SplitArguments, check_overlap, select_arguments, split_static
from shardwise.api.transformations.float0 import float0, is_float0
from shardwise.base.config import config
from shardwise.compiler.arrays.methods import Array, reshape
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.control.manual import DimAxes, Manual
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import Mesh, mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.shardings.spec import spec_of
from shardwise.errors import ShardingError, UnboundAxisError
from shardwise.execute.request import Request
from shardwise.runtime.array import ArraySignature, array_signature
from shardwise.runtime.client import devices as all_devices
from shardwise.runtime.client import process_index
from shardwise.typing import ArrayLike

Function = Callable[..., Any]
_P = ParamSpec("_P")
_R = TypeVar("_R")

DEFAULT_AXIS_NAME = "pmap"  # the name of the mesh axis if the function uses no axis name


def pmap(
    fun: Callable[_P, _R],
    axis_name: str | None = None,
    *,
    in_axes: object = 0,
    out_axes: object = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
) -> "Pmapped[_P, _R]":
    """Compile a function and run it on several devices in parallel, each on its own slice of the arguments.

    There is one device per slice. Arguments passed by keyword are mapped over axis 0. Derivatives inside `fun` are each
    device's own: sum or average them with `lax.psum` or `lax.pmean`.

    If the devices belong to several processes, all of them call the mapped function, each with the slices for its own
    devices, and each receives the slices of the results on its own devices.

    Args:
        fun: the function of one slice.
        axis_name: the name of the mapped axis, for collectives such as `lax.psum` in `fun`. Without it, the single
            unbound name that `fun` uses is taken; `fun` is traced twice then.
        in_axes: the axis of each argument to map over, a nonnegative integer, as a tree prefix of the positional
            arguments; None passes an argument to all devices.
        out_axes: the axis of each result along which the slices are stacked, as a tree prefix of the results; None
            returns the first device's value.
        static_broadcasted_argnums: the positional arguments that are Python values and part of the program.
        devices: the devices to use; by default the first ones of the platform.
        backend: the platform, if `devices` are not given.
        axis_size: the size of the mapped axis; required if no argument is mapped.
        donate_argnums: the positional arguments whose buffers may be reused for results.

    Returns:
        A function of stacked slices that returns stacked slices.

    Raises:
        TypeError: if `fun` is not callable, or if `axis_name`, `in_axes` or `axis_size` has a wrong type; when called,
            if an argument is not a pytree of arrays.
        ValueError: if an axis is not a nonnegative integer or None, if `devices` is empty, or if an argument is both
            static and donated; when called, if `in_axes` or `out_axes` is not a tree prefix, if mapped axes differ in
            size, or if there are fewer devices than slices.
        ShardingError: when called inside another `pmap` or a `shard_map`.
        UnboundAxisError: when called, if `fun` uses an axis name that is not bound.

    Example:
        >>> normalize = jax.pmap(lambda x: x / lax.psum(x, "i"), axis_name="i")
        >>> normalize(jnp.arange(4.0))
        Array([0.        , 0.16666667, 0.33333334, 0.5       ], dtype=float32)
    """
    check_function("pmap", fun)
    label = f"pmap of {describe_function(fun)}"
    check_axes(label, in_axes, axis_name, axis_size)
    check_nonnegative_axes(label, "in_axes", in_axes)
    check_nonnegative_axes(label, "out_axes", out_axes)
    if axis_name is not None and not isinstance(axis_name, str):
        raise TypeError(f"{label}: axis_name must be a string, not {axis_name!r}")
    if devices is not None and not len(devices):
        raise ValueError(f"{label}: devices is empty; leave it out to use the first devices of the platform")
    static = _select_positions(fun, "static_broadcasted", static_broadcasted_argnums)
    donate = _select_positions(fun, "donate", donate_argnums)
    check_overlap(fun, static, donate)
    if isinstance(in_axes, (tuple, list)):
        in_axes = tuple(axes for position, axes in enumerate(in_axes) if not static.has(position, len(in_axes)))
    options = PmapOptions(
        static=static,
        donate=donate,
        axis_name=axis_name,
        in_axes=in_axes,
        out_axes=out_axes,
        devices=None if devices is None else tuple(devices),
        backend=backend,
        axis_size=axis_size,
    )
    return Pmapped(fun, options)


@final
@dataclass(frozen=True)
class PmapOptions(jit.JitOptions):
    """The options of `pmap`; `in_axes` has no entries for static arguments."""

    axis_name: str | None = None
    in_axes: Any = 0
    out_axes: Any = 0
    devices: tuple[Any, ...] | None = None
    backend: str | None = None
    axis_size: int | None = None

    @property
    def available_devices(self) -> Sequence[Any]:
        """The devices that slices can be mapped to, in order."""
        return all_devices(self.backend) if self.devices is None else self.devices


@final
class Pmapped(jit.Jitted[_P, _R]):
    """A function that `pmap` has wrapped."""

    options: PmapOptions
    _transformation = "pmap"

    def __call__(self, *args: _P.args, **keywords: _P.kwargs) -> _R:
        if config.state.disable_jit:
            arguments = split_static(self.function, self.options.static, args, keywords)
            return self._body(arguments)(*arguments.args, **arguments.keywords)
        if self._is_multi_process:
            return self._call_multi_process(args, keywords)
        return super().__call__(*args, **keywords)

    @cached_property
    def _is_multi_process(self) -> bool:
        devices = self.options.available_devices
        return any(device.process_index != devices[0].process_index for device in devices)

    def _call_multi_process(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the function with slices for this process's devices; all processes do so together."""
        label = f"pmap of {describe_function(self.function)}"
        arguments = split_static(self.function, self.options.static, args, keywords)
        leaves, structure = tree.flatten((arguments.args, arguments.keywords))
        leaves = [_without_float0(leaf) for leaf in leaves]
        if is_traced(leaves):
            raise NotImplementedError(
                f"{label}: over devices of several processes, pmap cannot be used inside another transformation: use "
                "shard_map there, with arrays that are sharded over a mesh of all devices"
            )
        axes = argument_axes(label, self.options.in_axes, arguments.args, arguments.keywords)
        devices = self.options.available_devices
        mesh = Mesh(devices, (self.options.axis_name or DEFAULT_AXIS_NAME,))
        local_devices = [device for device in devices if device.process_index == process_index()]
        names = argument_names(arguments.bind(self.function), arguments.args, arguments.keywords)
        global_arrays = []
        for leaf, axis, name in zip(leaves, axes, names, strict=True):
            type = type_of(leaf)
            dim = None if axis is None else mapped_dim(label, axis, type, name)
            if dim is not None and type.shape[dim] != len(local_devices):
                raise ValueError(
                    f"{label}: {name}, {type}, has {type.shape[dim]} slices, but this process has {len(local_devices)} "
                    f"of the {len(devices)} devices: pass one slice per local device"
                )
            global_arrays.append(local_to_global(leaf, dim, mesh))
        global_args, global_keywords = structure.unflatten(global_arrays)
        return tree.map(global_to_local, arguments.bind(super().__call__)(*global_args, **global_keywords))

    def _body(self, arguments: SplitArguments) -> Function:
        """Return the function over all devices, which is traced."""
        function = arguments.bind(self.function)
        name = self.options.axis_name

        @wraps(function)
        def call(*args: object, **keywords: object) -> Any:
            mapping = _Mapping.from_arguments(function, self.options, args, keywords)
            try:
                return mapping.run(DEFAULT_AXIS_NAME if name is None else name)
            except UnboundAxisError as error:
                if name is not None or not isinstance(error.axis, str):
                    raise
                used = error.axis
            try:
                return mapping.run(used)
            except UnboundAxisError as error:
                raise UnboundAxisError(
                    f"pmap of {describe_function(function)}: no axis_name is given, but the function uses the unbound "
                    f"axis names {used!r} and {error.axis!r}. Pass the one that pmap should bind, such as "
                    f"pmap(…, axis_name={used!r}).",
                    error.axis,
                ) from None

        return call

    def _request(self, arguments: jit.Arguments) -> tuple[Request, jit.TracedFunction]:
        """Return the compilation request. Slices on other devices, such as results of another pmap, are moved."""
        request, traced = super()._request(arguments)
        signatures = [
            array_signature(signature.type, signature.sharding, committed=False)
            if sharding is not None and _has_same_shards(signature, sharding)
            else signature
            for signature, sharding in zip_longest(request.signatures, request.in_shardings)
        ]
        return replace(request, signatures=tuple(signatures)), traced

    def _in_shardings(
        self, traced: jit.TracedFunction, arguments: jit.Arguments, names: Sequence[str]
    ) -> tuple[Sharding | None, ...]:
        region = _manual_region(traced)
        return tuple(_named_sharding(region, dim_axes) for dim_axes in region.in_dim_axes[: len(arguments.types)])

    def _out_shardings(self, traced: jit.TracedFunction) -> tuple[Sharding | None, ...]:
        region = _manual_region(traced)
        return tuple(_named_sharding(region, dim_axes) for dim_axes in region.out_dim_axes)


@final
@dataclass(frozen=True, eq=False)
class _Mapping:
    """The leaves of one call's arguments, and the dim along which each is mapped.

    Booleans stand for the float0 arrays among the leaves, whose positions are `float0_leaves`.
    """

    function: Function
    options: PmapOptions
    leaves: list[Any]
    float0_leaves: frozenset[int]
    structure: tree.Structure
    dims: list[int | None]
    size: int

    @staticmethod
    def from_arguments(
        function: Function, options: PmapOptions, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> "_Mapping":
        label = f"pmap of {describe_function(function)}"
        leaves, structure = tree.flatten((args, keywords))
        float0_leaves = frozenset(position for position, leaf in enumerate(leaves) if is_float0(leaf))
        leaves = [_without_float0(leaf) for leaf in leaves]
        types = [type_of(leaf) for leaf in leaves]
        names = argument_names(function, args, keywords)
        axes = argument_axes(label, options.in_axes, args, keywords)
        dims = [
            None if axis is None else mapped_dim(label, axis, type, name)
            for axis, type, name in zip(axes, types, names, strict=True)
        ]
        mapped = zip(names, types, dims, strict=True)
        sizes = {name: type.shape[dim] for name, type, dim in mapped if dim is not None}
        size = common_size(label, options.axis_size, sizes)
        return _Mapping(function, options, leaves, float0_leaves, structure, dims, size)

    @property
    def label(self) -> str:
        return f"pmap of {describe_function(self.function)}"

    def run(self, name: str) -> Any:
        """Apply the function over all devices; the mesh axis is called `name`."""
        in_specs, out_specs = axes_to_specs(tuple(self.dims), name), axes_to_specs(self.options.out_axes, name)
        options = ShardMapOptions("pmap", self._mesh(name), in_specs, out_specs, frozenset(), False)
        return map_shards(self._shard_function, options)(*self.leaves)

    def _mesh(self, name: str) -> Mesh:
        """Return a mesh with one device per slice."""
        if mesh_context.manual_axes:
            axes = ", ".join(map(repr, sorted(mesh_context.manual_axes)))
            raise ShardingError(
                f"{self.label}: pmap cannot be nested in a pmap or shard_map, here with the axes {axes}.\n"
                "  Use vmap for the inner dim; or use one shard_map over a mesh with two axes."
            )
        devices = self.options.available_devices
        if not 1 <= self.size <= len(devices):
            available = "there are" if self.options.devices is None else "`devices` has"
            raise ValueError(
                f"{self.label}: the mapped axes have size {self.size}, but {available} {len(devices)} devices, and "
                "every slice needs its own. Pass fewer slices per call, or map the rest with vmap: pmap(vmap(…))."
            )
        return Mesh(devices[: self.size], (name,))

    @property
    def _shard_function(self) -> Function:
        """The function of one device's shards, in which mapped dims have size 1."""

        @wraps(self.function, updated=())  # without its `__signature__`: the arguments are the leaves
        def on_shards(*shards: Array) -> Any:
            slices = [
                x if dim is None else reshape(x, shape=(*x.type.shape[:dim], *x.type.shape[dim + 1 :]))
                for x, dim in zip(shards, self.dims, strict=True)
            ]
            args, keywords = self.structure.unflatten(
                [
                    np.zeros(x.type.shape, float0) if position in self.float0_leaves else x
                    for position, x in enumerate(slices)
                ]
            )
            outputs, out_tree = tree.flatten(self.function(*args, **keywords))
            check_outputs(self.function, outputs)
            axes = output_axes(self.label, self.options.out_axes, out_tree)
            return out_tree.unflatten(
                [self._add_dim(index, x, axis) for index, (x, axis) in enumerate(zip(outputs, axes, strict=True))]
            )

        return on_shards

    def _add_dim(self, number: int, x: ArrayLike, axis: int | None) -> Any:
        """Insert a dim of size 1 at `axis` into result `number`, along which the results of all devices are stacked."""
        if axis is None:
            return x
        type = type_of(_without_float0(x))
        shape = type.shape
        if axis > len(shape):
            raise ValueError(
                f"{self.label}: out_axes has axis {axis} for result {number}, which is {type} on each device: "
                f"the results can be stacked along axes 0 to {len(shape)}"
            )
        out_shape = (*shape[:axis], 1, *shape[axis:])
        return np.zeros(out_shape, float0) if is_float0(x) else reshape(x, shape=out_shape)


def _without_float0(leaf: Any) -> Any:
    """Return an argument or result; booleans of the same shape for a float0 array, as JAX does."""
    return np.zeros(leaf.shape, bool) if is_float0(leaf) else leaf


def _select_positions(fun: Function, prefix: str, argnums: int | Iterable[int]) -> ArgumentSelection:
    """Select arguments by position only: arguments passed by keyword are always mapped."""
    return ArgumentSelection(select_arguments(fun, prefix, argnums, None).numbers, frozenset())


def _has_same_shards(signature: ArraySignature, sharding: Sharding) -> bool:
    """Return whether an array has the shards of `sharding` in the same order, on any devices."""
    own, shape = signature.sharding, signature.type.shape
    return own.num_devices == sharding.num_devices and own.shard_indices(shape) == sharding.shard_indices(shape)


def _manual_region(traced: jit.TracedFunction) -> Manual:
    """Return the op of the manual region in a traced function."""
    return next(equation.op for equation in traced.program.equations if isinstance(equation.op, Manual))


def _named_sharding(region: Manual, dim_axes: DimAxes) -> NamedSharding:
    assert isinstance(region.mesh, Mesh)
    return NamedSharding(region.mesh, spec_of(Layout(dim_axes)))
