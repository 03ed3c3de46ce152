"""pmap: a function that each device runs on its own slice of the arguments.

It is jit of a manual region (`shard_map`) over a mesh with one axis, which has a device for each slice. The region
takes away the dim that is mapped, and says how arguments and results lie. Types inside do not say what varies: a
derivative inside is each device's own, and a sum over the devices has the sum of their cotangents for its own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, final

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
from shardwise.api.pmap_processes import own, shared
from shardwise.api.shard_map import ShardMapOptions, map_shards
from shardwise.api.static_args import Selection, Split, check_overlap, select, split
from shardwise.compiler.arrays.methods import reshape
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.control.manual import DimAxes, Manual
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import Mesh, mesh_context
from shardwise.compiler.shardings.spec import spec_of
from shardwise.config import config
from shardwise.errors import ShardingError, UnboundAxisError
from shardwise.runtime.client import devices as all_devices
from shardwise.runtime.client import process_index
from shardwise.runtime.sharding import NamedSharding, Sharding

Function = Callable[..., Any]

NAMELESS = "pmap"  # what the axis is called where nothing in the function calls it anything


def pmap(
    fun: Function,
    axis_name: str | None = None,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
) -> Any:
    """`fun`, compiled, run by several devices at once: each takes one slice of the arguments, and gives one slice of
    the results.

    `in_axes` (a tree prefix of the positional arguments) says along which dim an argument is sliced; None hands it to
    all devices whole. Arguments given by keyword are sliced along their first dim. Slices of results are stacked along
    `out_axes` (a tree prefix of the results); None takes the first device's, for what is the same on all. Axes count
    from 0, at the front. There are as many devices as slices, the first of all, or of `devices`. Where these are of
    several processes, each of them calls this, gives slices for its own devices, and gets theirs.

    `axis_name` is a name by which `lax.psum`, `lax.axis_index` and their kin in `fun` compute along the devices. Where
    none is given and `fun` uses exactly one that nothing around it has, it is that; `fun` is traced again to tell.
    Derivatives taken inside `fun` are each device's own: sum them with `lax.psum`, or take their mean.

    >>> share = jax.pmap(lambda x: x / lax.psum(x, "i"), axis_name="i")
    >>> share(jnp.arange(4.0))
    Array([0.        , 0.16666667, 0.33333334, 0.5       ], dtype=float32)
    """
    check_function("pmap", fun)
    what = f"pmap of {describe_function(fun)}"
    check_axes(what, in_axes, axis_name, axis_size)
    check_nonnegative_axes(what, "in_axes", in_axes)
    check_nonnegative_axes(what, "out_axes", out_axes)
    if axis_name is not None and not isinstance(axis_name, str):
        raise TypeError(f"{what}: axis_name must be a string, as names of mesh axes are, not {axis_name!r}")
    if devices is not None and not len(devices):
        raise ValueError(f"{what}: devices is empty; leave it out, and the first of all devices are taken")
    static = _positions(fun, "static_broadcasted", static_broadcasted_argnums)
    donate = _positions(fun, "donate", donate_argnums)
    check_overlap(fun, static, donate)
    if isinstance(in_axes, (tuple, list)):
        in_axes = tuple(axes for place, axes in enumerate(in_axes) if not static.has(place, len(in_axes)))
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
    """What `pmap` was asked for beside the function; `in_axes` are those of arguments that are not static."""

    axis_name: str | None = None
    in_axes: Any = 0
    out_axes: Any = 0
    devices: tuple[Any, ...] | None = None
    backend: str | None = None
    axis_size: int | None = None

    @property
    def there(self) -> Sequence[Any]:
        """The devices that may be mapped over."""
        return all_devices(self.backend) if self.devices is None else self.devices


@final
class Pmapped(jit.Jitted):
    """A function that `pmap` has wrapped."""

    options: PmapOptions

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if config.state.disable_jit:
            found = split(self.function, self.options.static, args, keywords)
            return self._body(found)(*found.args, **found.keywords)
        if self._has_other_processes:
            return self._with_other_processes(args, keywords)
        return super().__call__(*args, **keywords)

    @cached_property
    def _has_other_processes(self) -> bool:
        there = self.options.there
        return any(device.process_index != there[0].process_index for device in there)

    def _with_other_processes(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Every process calls this, with slices for its own devices, and gets theirs."""
        what = f"pmap of {describe_function(self.function)}"
        found = split(self.function, self.options.static, args, keywords)
        leaves, structure = tree.flatten((found.args, found.keywords))
        if is_traced(leaves):
            raise NotImplementedError(
                f"{what}: over the devices of several processes, slices of each are given from outside of every "
                "transform: inside, use shard_map, with arrays that lie on a mesh of all devices"
            )
        axes = argument_axes(what, self.options.in_axes, found.args, found.keywords)
        there = self.options.there
        mesh = Mesh(there, (self.options.axis_name or NAMELESS,))
        here = [device for device in there if device.process_index == process_index()]
        names = argument_names(found.bind(self.function), found.args, found.keywords)
        given = []
        for leaf, axis, name in zip(leaves, axes, names, strict=True):
            kind = type_of(leaf)
            dim = None if axis is None else mapped_dim(what, axis, kind, name)
            if dim is not None and kind.shape[dim] != len(here):
                raise ValueError(
                    f"{what}: this process has {len(here)} of the {len(there)} devices, and gives {kind.shape[dim]} "
                    f"slices of {name}, {kind}: give one for each of its own devices"
                )
            given.append(shared(leaf, dim, mesh))
        slices, named = structure.unflatten(given)
        return tree.map(own, found.bind(super().__call__)(*slices, **named))

    def _body(self, found: Split) -> Function:
        """The function over all devices."""
        function = found.bind(self.function)
        name = self.options.axis_name

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            try:
                return _Slices.of(function, self.options, args, keywords).spread(NAMELESS if name is None else name)
            except UnboundAxisError as error:
                if name is not None or not isinstance(error.axis, str):
                    raise
                used = error.axis
            try:
                return _Slices.of(function, self.options, args, keywords).spread(used)
            except UnboundAxisError as error:
                raise UnboundAxisError(
                    f"pmap of {describe_function(function)}: no axis_name is given, and it computes along {used!r} and "
                    f"{error.axis!r}. Say which of them the devices are: pmap(…, axis_name={used!r}).",
                    error.axis,
                ) from None

        return call

    def _in_shardings(
        self, traced: jit.TracedFunction, args: Any, types: Sequence[ArrayType], names: Sequence[str]
    ) -> tuple[Sharding | None, ...]:
        region = _region(traced)
        return tuple(_sharding(region, cuts) for cuts in region.ins[: len(types)])

    def _out_shardings(self, traced: jit.TracedFunction) -> tuple[Sharding | None, ...]:
        region = _region(traced)
        return tuple(_sharding(region, cuts) for cuts in region.outs)


@final
@dataclass(frozen=True, eq=False)
class _Slices:
    """One call: the arrays among the arguments, and the dim along which each is sliced."""

    function: Function
    options: PmapOptions
    leaves: list[Any]
    structure: tree.Structure
    dims: list[int | None]
    size: int

    @staticmethod
    def of(function: Function, options: PmapOptions, args: tuple[Any, ...], keywords: dict[str, Any]) -> "_Slices":
        what = f"pmap of {describe_function(function)}"
        leaves, structure = tree.flatten((args, keywords))
        types = [type_of(leaf) for leaf in leaves]
        names = argument_names(function, args, keywords)
        axes = argument_axes(what, options.in_axes, args, keywords)
        dims = [
            None if axis is None else mapped_dim(what, axis, type, name)
            for axis, type, name in zip(axes, types, names, strict=True)
        ]
        sliced = zip(names, types, dims, strict=True)
        sizes = {name: type.shape[dim] for name, type, dim in sliced if dim is not None}
        return _Slices(function, options, leaves, structure, dims, common_size(what, options.axis_size, sizes))

    @property
    def what(self) -> str:
        return f"pmap of {describe_function(self.function)}"

    def spread(self, name: str) -> Any:
        """The function over all devices, whose axis has this name."""
        in_specs, out_specs = axes_to_specs(tuple(self.dims), name), axes_to_specs(self.options.out_axes, name)
        region = ShardMapOptions("pmap", self._mesh(name), in_specs, out_specs, frozenset(), False)
        return map_shards(self._on_one, region)(*self.leaves)

    def _mesh(self, name: str) -> Mesh:
        """The devices, one for each slice."""
        if mesh_context.manual_axes:
            axes = ", ".join(map(repr, sorted(mesh_context.manual_axes)))
            raise ShardingError(
                f"{self.what}: the devices are shared out already, along {axes}, by the pmap or shard_map around it.\n"
                "  Map the inner dim with vmap; or lay the devices out in a mesh with two axes, and look after both "
                "with shard_map."
            )
        there = self.options.there
        if not 1 <= self.size <= len(there):
            given_ones = "there are" if self.options.devices is None else "`devices` has"
            raise ValueError(
                f"{self.what}: the mapped axes have size {self.size}, which takes as many devices, and {given_ones} "
                f"{len(there)}. Map fewer slices a call, or leave the rest to vmap inside: pmap(vmap(…))."
            )
        return Mesh(there[: self.size], (name,))

    @property
    def _on_one(self) -> Function:
        """What one device does with its pieces."""

        @wraps(self.function)
        def on_one(*pieces: Any) -> Any:
            taken = [
                x if dim is None else reshape(x, shape=(*x.type.shape[:dim], *x.type.shape[dim + 1 :]))
                for x, dim in zip(pieces, self.dims, strict=True)
            ]
            args, keywords = self.structure.unflatten(taken)
            found, results = tree.flatten(self.function(*args, **keywords))
            check_outputs(self.function, found)
            axes = output_axes(self.what, self.options.out_axes, results)
            slices = [self._slice(number, x, axis) for number, (x, axis) in enumerate(zip(found, axes, strict=True))]
            return results.unflatten(slices)

        return on_one

    def _slice(self, number: int, x: Any, axis: int | None) -> Any:
        """A result of one device as a slice of the whole."""
        if axis is None:
            return x
        shape = type_of(x).shape
        if axis > len(shape):
            raise ValueError(
                f"{self.what}: out_axes gives axis {axis} for result {number}, of which each device has {type_of(x)}: "
                f"slices can be stacked along axes 0 to {len(shape)}"
            )
        return reshape(x, shape=(*shape[:axis], 1, *shape[axis:]))


def _positions(fun: Function, what: str, numbers: int | Iterable[int]) -> Selection:
    """Arguments that are selected where they are given by position; by keyword, all are sliced."""
    return Selection(select(fun, what, numbers, None).numbers, frozenset())


def _region(traced: jit.TracedFunction) -> Manual:
    """The region that was traced."""
    return next(equation.op for equation in traced.program.equations if isinstance(equation.op, Manual))


def _sharding(region: Manual, cuts: DimAxes) -> NamedSharding:
    assert isinstance(region.mesh, Mesh)
    return NamedSharding(region.mesh, spec_of(Layout(cuts)))
