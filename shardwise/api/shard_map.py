"""shard_map: a function of one device's pieces, as a function of whole arrays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, final

from shardwise import tree
from shardwise.api.arguments import argument_names, array_leaves, describe_function, describe_mismatch, function_name
from shardwise.api.flatten import check_outputs, is_traced
from shardwise.api.placement import device_put
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.dispatch import bound_axes
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.named import AssertReplicated, PVary
from shardwise.compiler.ops.control.manual import DimAxes, Manual
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, mesh_context
from shardwise.compiler.shardings.spec import PartitionSpec, pin_of, spec_of
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.tracer import Tracer
from shardwise.compiler.transforms.may_differ import may_differ
from shardwise.errors import DeviceMismatchError, ShardingError
from shardwise.execute.executor import as_array
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.runtime.array import Array
from shardwise.runtime.sharding import NamedSharding

Function = Callable[..., Any]


@final
class InferFromArgs:
    """Stands for specs that are read off the arguments' shardings."""

    def __repr__(self) -> str:
        return "Infer"


Infer = InferFromArgs()


def shard_map(
    f: Function | None = None,
    /,
    *,
    out_specs: Any,
    in_specs: Any = Infer,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: Any = frozenset(),
    check_vma: bool = True,
) -> Any:
    """`f`, which each device runs on its own pieces, as a function of whole arrays.

    `in_specs` and `out_specs` (tree prefixes of the positional arguments and of the results) say how whole arrays are
    cut into pieces, and how results are put together. Arguments that lie otherwise are moved there first. Collectives
    (`lax.psum` and its kin) work along the axes of the mesh.

    `mesh`: where it runs; without one, the mesh in force. `axis_names`: the axes that `f` looks after, all of them
    unless given; along the others it is planned, as everything outside of it is. `check_vma`: types inside say over
    which axes values vary; a result that `out_specs` do not cut along an axis must be provably the same along it.

    >>> mesh = jax.make_mesh((4,), ("i",))
    >>> total = jax.shard_map(lambda x: lax.psum(x.sum(), "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    >>> total(jnp.arange(8))
    Array(28, dtype=int32)
    """
    if f is None:
        options = {"in_specs": in_specs, "out_specs": out_specs, "mesh": mesh}
        return partial(shard_map, **options, axis_names=axis_names, check_vma=check_vma)
    if not callable(f):
        raise TypeError(f"shard_map needs a function of the pieces, not {f!r}")
    return map_shards(f, ShardMapOptions("shard_map", mesh, in_specs, out_specs, axis_names, check_vma))


@final
@dataclass(frozen=True, eq=False)
class ShardMapOptions:
    """What the user asked of a region; `name` is the function that was called, for messages."""

    name: str
    mesh: Mesh | AbstractMesh | None
    in_specs: Any
    out_specs: Any
    axis_names: Any
    check: bool


def map_shards(f: Function, options: ShardMapOptions) -> Function:
    """`f` over pieces as a function of whole arrays."""
    _check_specs(f, options, "in_specs", options.in_specs)
    _check_specs(f, options, "out_specs", options.out_specs)

    @wraps(f)
    @filter_traceback
    def call(*args: Any, **keywords: Any) -> Any:
        if keywords:
            raise TypeError(
                f"{options.name} of {describe_function(f)} takes its arguments by position: in_specs have no place for "
                f"{', '.join(map(repr, keywords))}"
            )
        region = _Region.of(f, options)
        leaves, structure = array_leaves(f, args, {})
        names = argument_names(f, args, {})
        specs = region.in_specs(args, leaves, names)
        cuts = [
            region.cuts(spec, as_operand(leaf).type, f"{name} of {describe_function(f)}", "in_specs")
            for spec, leaf, name in zip(specs, leaves, names, strict=True)
        ]
        operands = region.placed(leaves, specs, names)
        pieces = [region.piece(x.type, cut, name) for x, cut, name in zip(operands, cuts, names, strict=True)]
        outs: list[DimAxes] = []
        results: tree.Structure = None

        def flat(*tracers: Any) -> list[Any]:
            nonlocal outs, results
            positional, _ = structure.unflatten(tracers)
            found, results = tree.flatten(f(*positional))
            check_outputs(f, found)
            arrays = [as_operand(x) for x in found]
            given = region.out_specs(results, arrays)
            outs = [
                region.cuts(spec, x.type, f"result {name} of {describe_function(f)}", "out_specs")
                for spec, x, name in zip(given, arrays, _result_names(results), strict=True)
            ]
            return [
                region.leaving(x, cut, name) for x, cut, name in zip(arrays, outs, _result_names(results), strict=True)
            ]

        with region.entered():
            program, captured = build(flat, pieces, function_name(f), region.sizes, region.tracked)
        whole: list[DimAxes] = [((),) * x.type.ndim for x in captured]
        op = Manual(program, region.mesh, region.axes, (*cuts, *whole), tuple(outs), options.check)
        return results.unflatten(list(op(*operands, *captured)))

    return call


@final
@dataclass(frozen=True, eq=False)
class _Region:
    """One call of a mapped function: where it runs, and what it looks after itself."""

    f: Function
    options: ShardMapOptions
    mesh: Mesh | AbstractMesh
    axes: tuple[str, ...]

    @staticmethod
    def of(f: Function, options: ShardMapOptions) -> "_Region":
        mesh = options.mesh if options.mesh is not None else mesh_context.mesh
        what = f"{options.name} of {describe_function(f)}"
        if not isinstance(mesh, (Mesh, AbstractMesh)):
            if mesh is not None:
                raise TypeError(f"{what}: mesh is a Mesh or an AbstractMesh, not {mesh!r}")
            given = "give `mesh=`, or " if options.name == "shard_map" else ""
            raise ValueError(
                f"{what} needs a mesh: {given}set the one that is meant, with `with mesh:` or `set_mesh(mesh)`"
            )
        asked = {options.axis_names} if isinstance(options.axis_names, str) else set(options.axis_names)
        abstract = mesh.abstract
        for axis in asked:
            if axis not in abstract.shape:
                raise ShardingError(f"{what}: axis_names has {axis!r}, but {abstract.unknown_axis_message(axis)}")
        taken = mesh_context.manual_axes
        if twice := sorted(asked & taken):
            raise ShardingError(f"{what}: a region around it looks after {', '.join(map(repr, twice))} already")
        axes = tuple(a for a in abstract.axis_names if (a in asked if asked else a not in taken))
        if not axes:
            raise ShardingError(f"{what}: regions around it look after all axes of the mesh {abstract} already")
        return _Region(f, options, mesh, axes)

    @property
    def abstract(self) -> AbstractMesh:
        return self.mesh.abstract

    @property
    def sizes(self) -> dict[str, int]:
        return {axis: self.mesh.shape[axis] for axis in self.axes}

    @property
    def tracked(self) -> frozenset[str]:
        return frozenset(self.axes) if self.options.check else frozenset()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """While the function is traced: bare specs are for this mesh, and its axes are taken."""
        before = mesh_context.mesh, mesh_context.manual_axes
        mesh_context.mesh = self.mesh if isinstance(self.mesh, Mesh) else mesh_context.mesh
        mesh_context.manual_axes = before[1] | frozenset(self.axes)
        try:
            yield
        finally:
            mesh_context.mesh, mesh_context.manual_axes = before

    def in_specs(self, args: tuple[Any, ...], leaves: Sequence[Any], names: Sequence[str]) -> list[PartitionSpec]:
        """A spec for each array among the arguments."""
        what = f"{self.options.name} of {describe_function(self.f)}"
        if self.options.in_specs is Infer:
            return [self._inferred(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
        prefix = self.options.in_specs
        prefix = tuple(prefix) if isinstance(prefix, list) else prefix
        try:
            given = tree.broadcast_prefix(prefix, args, lambda x: x is None or _is_spec(x))
        except tree.TreeMismatch as mismatch:
            raise ValueError(f"{what}: in_specs do not fit.\n  {describe_mismatch(mismatch, 'in_specs')}") from None
        return [PartitionSpec() if spec is None else spec for spec in given]

    def _inferred(self, leaf: Any, name: str) -> PartitionSpec:
        sharding = getattr(leaf, "sharding", None) if not isinstance(leaf, Tracer) else None
        if not isinstance(sharding, NamedSharding) or sharding.grid.abstract != self.abstract:
            raise ValueError(
                f"{self.options.name} of {describe_function(self.f)}: in_specs are not given, and {name} does not say "
                "how it "
                f"lies on the mesh {self.abstract}. Give in_specs."
            )
        return PartitionSpec(
            *(
                tuple(a for a in (e if isinstance(e, tuple) else () if e is None else (e,)) if a in self.axes)
                for e in sharding.spec
            )
        )

    def out_specs(self, structure: tree.Structure, arrays: Sequence[Any]) -> list[PartitionSpec]:
        """A spec for each result."""
        results = structure.unflatten(list(range(len(arrays))))
        try:
            return tree.broadcast_prefix(self.options.out_specs, results, _is_spec)
        except tree.TreeMismatch as mismatch:
            what = f"{self.options.name} of {describe_function(self.f)}"
            text = describe_mismatch(mismatch, "out_specs")
            if mismatch.difference.first == "None":
                text = f"{text.partition(': None is')[0]}. Of what is one value for all devices, the spec is P()."
            raise ValueError(f"{what}: out_specs do not fit.\n  {text}") from None

    def cuts(self, spec: PartitionSpec, type: ArrayType, what: str, which: str) -> DimAxes:
        """The axes that cut each dim of an array of this type."""
        place = f"{self.options.name}: {which} for {what}, {type}"
        beyond = [dim for dim in range(type.ndim, len(spec)) if spec[dim]]
        if beyond and which == "out_specs":
            raise ShardingError(
                f"{place}: {spec} joins pieces along dim {beyond[0]}, which they do not have. Give them one, as "
                f"`numpy.expand_dims(…, {type.ndim})` does, or join them along none, once they are one value for all."
            )
        try:
            pin = pin_of(spec, type.shape, self.abstract)
        except ShardingError as error:
            raise ShardingError(f"{place}: {error}") from None
        if pin.open_dims:
            raise ShardingError(
                f"{place}: {spec} leaves dim {min(pin.open_dims)} open, but here each device's piece must be known: "
                "name the axes that cut it, or None."
            )
        layout = pin.layout
        for axis in layout.axes:
            if axis not in self.axes:
                raise ShardingError(
                    f"{self.options.name}: {which} for {what} name {axis!r}, which is not among the axes that it looks "
                    f"after, {', '.join(map(repr, self.axes))}. Along the others, arrays lie as is planned: leave it "
                    "out, or add it to axis_names."
                )
        return layout.dims

    def piece(self, type: ArrayType, cuts: DimAxes, name: str) -> ArrayType:
        """One device's piece."""
        shape = []
        for dim, (size, axes) in enumerate(zip(type.shape, cuts, strict=True)):
            count = self.abstract.extent(axes)
            if size % count:
                over = " × ".join(f"{axis}={self.mesh.shape[axis]}" for axis in axes)
                padded = -(-size // count) * count
                raise ValueError(
                    f"{self.options.name} of {describe_function(self.f)}: dim {dim} of {name}, {type}, has size "
                    f"{size}, which "
                    f"does not divide into {count} pieces ({over}).\n"
                    "  Each device runs the same function on pieces of one size, so that none can be smaller. Pad the "
                    f"dim to {padded}, `numpy.pad` adds {padded - size}, and see to it that `{function_name(self.f)}` "
                    "is not misled by what was added; or leave the split to jit, which takes uneven dims."
                )
            shape.append(size // count)
        varying = {axis for axes in cuts for axis in axes} if self.options.check else set()
        return type.with_shape(tuple(shape)).with_varying((*type.varying, *varying))

    def placed(self, leaves: Sequence[Any], specs: Sequence[PartitionSpec], names: Sequence[str]) -> list[Any]:
        """The arguments as operands. Outside of any trace, those that are nowhere yet are put where they are needed."""
        if not isinstance(self.mesh, Mesh) or is_traced(leaves) or bound_axes():
            return [as_operand(leaf) for leaf in leaves]
        found = []
        for leaf, spec, name in zip(leaves, specs, names, strict=True):
            array = as_array(as_operand(leaf))
            is_there = isinstance(array, Array) and array.committed
            if is_there and array.sharding.device_set != set(self.mesh.flat_devices):
                raise DeviceMismatchError(
                    f"{self.options.name} of {describe_function(self.f)}: {name} lies on other devices, "
                    f"{array.sharding}, than "
                    f"the region runs on, {self.mesh}. Move it with `device_put` first."
                )
            is_there = is_there and array.sharding.devices == self.mesh.flat_devices
            found.append(array if is_there else device_put(array, NamedSharding(self.mesh, spec)))
        return found

    def leaving(self, x: Any, cuts: DimAxes, name: str) -> Any:
        """A result, which varies just over the axes that cut it."""
        if not self.options.check:
            return x
        cut = {axis for axes in cuts for axis in axes}
        claimed = tuple(axis for axis in self.axes if axis in x.type.varying and axis not in cut)
        if claimed:
            differing = [axis for axis in claimed if axis in may_differ(x) and self.mesh.shape[axis] > 1]
            if differing:
                raise self._unproved(x, cuts, name, differing)
            x = AssertReplicated(claimed)(x)
        more = tuple(axis for axis in self.axes if axis in cut and axis not in x.type.varying)
        return PVary(more)(x) if more else x

    def _unproved(self, x: Any, cuts: DimAxes, name: str, axes: Sequence[str]) -> ShardingError:
        names = ", ".join(map(repr, axes))
        which = repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))
        ways = [f"add up what the devices have, `lax.psum(…, {which})`"]
        if x.type.ndim:
            longer = spec_of(Layout(((*cuts[0], *axes), *cuts[1:])))
            ways.append(f"or join their pieces along a dim, out_specs={longer}")
        return ShardingError(
            f"{self.options.name} of {describe_function(self.f)}: out_specs={spec_of(Layout(cuts))} say that result "
            f"{name} is "
            f"the same on all devices along {names}, but each may have its own: it is {x.type}, made at {x.source}.\n"
            f"  If it should be one value, {', '.join(ways)}. If it is the same and this cannot be seen, "
            "check_vma=False takes any device's."
        )


def _is_spec(x: Any) -> bool:
    return isinstance(x, PartitionSpec)


def _result_names(structure: tree.Structure) -> list[str]:
    """Of each array among the results, for messages: its place, or 0 where it is the only one."""
    return [name or "0" for name in tree.leaf_names(structure.unflatten(range(structure.num_leaves)), "")]


def _check_specs(f: Function, options: ShardMapOptions, what: str, specs: Any) -> None:
    for spec in tree.leaves(specs, _is_spec):
        if not _is_spec(spec) and spec is not Infer:
            hint = f" Write P({spec!r})." if isinstance(spec, str) else ""
            raise TypeError(f"{options.name} of {describe_function(f)}: {what} are PartitionSpecs, not {spec!r}.{hint}")
