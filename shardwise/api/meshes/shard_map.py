"""shard_map: run a function on every device's shards, with explicit collectives.

A call traces the function on the types of the shards and applies one `Manual` op to the arguments.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, NotRequired, TypedDict, TypeVar, Unpack, final, overload

import numpy as np

from shardwise import tree
from shardwise.api.arguments import (
    argument_names,
    array_leaves,
    check_function,
    describe_function,
    function_name,
    prefix_error,
)
from shardwise.api.flatten import FlatFunction, is_traced
from shardwise.api.meshes.eager_region import EagerRegionFrame
from shardwise.api.meshes.placement import device_put
from shardwise.api.meshes.region_float0 import global_float0, shard_float0
from shardwise.api.meshes.region_specs import (
    check_specs,
    is_spec,
    replication_error,
    spec_text,
    split_unmapped,
    sums_error,
)
from shardwise.api.ref import Ref, current_values
from shardwise.api.ref_arguments import FunctionOfArrays, find_refs, refs_as_arguments, update_refs
from shardwise.api.transformations.float0 import hide_float0, is_float0
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.control.manual import Manual
from shardwise.compiler.control.region_boundary import ShardSpec
from shardwise.compiler.ir.dispatch import bound_axes, open_frames, use_frames
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.named import AssertReplicated, PUnreduced, PVary
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh, mesh_context, mesh_of_types, typed_axes
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec, check_length, pin_of
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.summed_gradients import warn_of_summed_gradients
from shardwise.compiler.trace.tracer import Frame, Tracer
from shardwise.compiler.transforms.drop_effects import without_effects
from shardwise.compiler.transforms.may_differ import may_differ
from shardwise.errors import DeviceMismatchError, ShardingError, ShardingTypeError
from shardwise.execute.executor import as_array
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.runtime.array import ArrayImpl, array_signature

Function = Callable[..., Any]
_F = TypeVar("_F", bound=Function)


@final
class InferFromArgs:
    """The type of `Infer`: `in_specs` are taken from the shardings of the arguments."""

    def __repr__(self) -> str:
        return "Infer"


Infer = InferFromArgs()


class _ShardMapKeywords(TypedDict):
    """The keyword arguments of `shard_map`, for type checkers."""

    out_specs: Any
    in_specs: NotRequired[Any]
    mesh: NotRequired[Mesh | AbstractMesh | None]
    axis_names: NotRequired[Any]
    check_vma: NotRequired[bool]


@overload
def shard_map(f: _F, /, **options: Unpack[_ShardMapKeywords]) -> _F: ...


@overload
def shard_map(f: None = None, /, **options: Unpack[_ShardMapKeywords]) -> Callable[[_F], _F]: ...


def shard_map(
    f: Function | None = None,
    /,
    *,
    out_specs: object,
    in_specs: object = Infer,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: Iterable[str] = frozenset(),
    check_vma: bool = True,
) -> Any:
    """Map a function over shards: every device runs it on its own shards of the arguments.

    Inside, collectives such as `lax.psum` communicate along the mesh axes. Arguments with another sharding than
    `in_specs` are resharded first. An argument may be a Ref: inside, it holds a shard, which the function may change.

    Args:
        f: the function of shards. Without it, the result is a decorator.
        out_specs: how the shards of the results are concatenated, as a tree prefix of the results. A result must be
            replicated along the axes that its spec does not use.
        in_specs: how the arguments are split into shards, as a tree prefix of the positional arguments. By default, as
            the arguments are sharded. Where it is None, the argument may be any object, and `f` gets it unchanged.
        mesh: the mesh; by default the current one.
        axis_names: the manual axes; by default all axes of the mesh. The planner shards along the others, as it does
            outside.
        check_vma: whether types inside track over which axes values vary. It is an error if a result is not known to
            be replicated along the axes that `out_specs` does not use. Without it, one device's value is used.

    Returns:
        A function of unsharded arrays, which accepts positional arguments only.

    Raises:
        TypeError: if `f` is not callable, if `in_specs` or `out_specs` holds something other than PartitionSpecs, or
            if `mesh` is not a mesh; when called, if an argument is not an array or is passed by keyword.
        ValueError: when called, if no mesh is set, if `in_specs` or `out_specs` is not a tree prefix, if `in_specs`
            cannot be inferred, or if the size of a dim is not divisible by the number of shards.
        ShardingError: when called, if a spec does not match an array or uses an axis that is not manual, if an axis is
            already manual in an enclosing `shard_map`, or if a result may vary along an axis that `out_specs` does not
            use.
        DeviceMismatchError: when called, if an argument is committed to devices that are not those of the mesh.

    Example:
        >>> mesh = jax.make_mesh((4,), ("i",))
        >>> total = jax.shard_map(lambda x: lax.psum(x.sum(), "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
        >>> total(jnp.arange(8))
        Array(28, dtype=int32)
    """
    if f is None:
        options = {"in_specs": in_specs, "out_specs": out_specs, "mesh": mesh}
        return partial(shard_map, **options, axis_names=axis_names, check_vma=check_vma)
    check_function("shard_map", f)
    return map_shards(f, ShardMapOptions("shard_map", mesh, in_specs, out_specs, axis_names, check_vma))


@final
@dataclass(frozen=True, eq=False)
class ShardMapOptions:
    """The options of a manual region; `name` is the public function that was called, for messages."""

    name: str
    mesh: Mesh | AbstractMesh | None
    in_specs: Any
    out_specs: Any
    axis_names: Any
    check: bool


def map_shards(f: Function, options: ShardMapOptions) -> Function:
    """Return `f`, a function of shards, as a function of unsharded arrays."""
    label = f"{options.name} of {describe_function(f)}"
    if options.in_specs is not Infer:
        check_specs(label, "in_specs", options.in_specs)
    check_specs(label, "out_specs", options.out_specs)

    @wraps(f)
    @filter_traceback
    def call(*args: object, **keywords: object) -> Any:
        if keywords:
            raise TypeError(
                f"{options.name} of {describe_function(f)} accepts positional arguments only, as in_specs has one "
                f"entry per position: pass {', '.join(map(repr, keywords))} by position"
            )
        return _Region.from_options(f, options).call(args)

    return call


@final
@dataclass(frozen=True, eq=False)
class _Region:
    """A mapped function with the mesh and the manual axes of one call."""

    f: Function
    options: ShardMapOptions
    mesh: Mesh | AbstractMesh
    axes: tuple[str, ...]

    @staticmethod
    def from_options(f: Function, options: ShardMapOptions) -> "_Region":
        """Determine the mesh and the manual axes of a call."""
        label = f"{options.name} of {describe_function(f)}"
        mesh = _region_mesh(label, options)
        return _Region(f, options, mesh_of_types(mesh), _manual_axes(label, options, mesh.abstract))

    def call(self, args: tuple[Any, ...]) -> Any:
        """Trace the function on shards, and apply the manual region to the arguments."""
        self.check_spec_count(args)
        if refs := self._mapped_refs(args):
            return self._call_with_refs(args, refs)
        mapped_function, leaves, in_tree, names, specs = self.mapped_arguments(args)
        in_specs = [
            self.shard_spec(spec, as_operand(leaf).type, f"{name} of {describe_function(self.f)}", "in_specs")
            for spec, leaf, name in zip(specs, leaves, names, strict=True)
        ]
        operands = self.place(leaves, specs, names)
        shard_types = [
            self.shard_type(x.type, spec, name) for x, spec, name in zip(operands, in_specs, names, strict=True)
        ]
        self.check_argument_count(args)
        body = _ShardFunction(self, mapped_function, in_tree)
        with mesh_context.in_region(self.mesh, self.axes), warn_of_summed_gradients():
            program, captured = build(
                body, shard_types, function_name(self.f), self.sizes, self.tracked, self._frame_type(operands, in_specs)
            )
        op = self.manual(program, in_specs, captured, body.out_specs)
        outputs = op(*operands, *captured)
        result = body.out_tree.unflatten(list(map(self.with_spec, outputs, self.out_specs(body.out_tree))))
        return global_float0(result, self.options.out_specs, self.abstract)

    def _mapped_refs(self, args: tuple[Any, ...]) -> dict[int, Ref]:
        """Return the Refs among the leaves of the arguments that have a spec, by position."""
        leaves, structure = tree.flatten(args)
        if not any(isinstance(leaf, Ref) for leaf in leaves):
            return {}
        refs = find_refs(self.label, leaves)
        specs = self.leaf_specs(structure.unflatten(current_values(leaves)))
        return {position: ref for position, ref in refs.items() if specs[position] is not None}

    def _call_with_refs(self, args: tuple[Any, ...], refs: dict[int, Ref]) -> Any:
        """Call the function with Refs among its arguments: it reads and changes the shards of their arrays."""
        leaves, structure = tree.flatten(args)
        for position, ref in refs.items():
            leaves[position] = ref[...]
        args = structure.unflatten(leaves)
        specs = self.leaf_specs(args)
        out_specs = self.options.out_specs, [specs[position] for position in refs]
        options = replace(self.options, out_specs=out_specs)
        with refs_as_arguments(refs.values()):
            result, arrays = replace(self, f=FunctionOfArrays(self.f, tuple(refs)), options=options).call(args)
        return update_refs(list(refs.values()), result, arrays)

    def with_spec(self, x: Array, spec: PartitionSpec) -> Array:
        """Return a result outside any trace with the spec that the user wrote: `P(None)` and `P()` mean the same."""
        if not isinstance(x, ArrayImpl):
            return x
        own = x.sharding
        if not isinstance(own, NamedSharding) or own.spec == spec or own.mesh_shape.explicit_axes:
            return x
        sharding = own.with_spec(spec)
        if own.mesh != self.mesh or not sharding.is_equivalent_to(own, x.type.ndim):
            return x
        return x.with_signature(array_signature(x.type, sharding, x.committed))

    def check_argument_count(self, args: tuple[Any, ...]) -> None:
        """Check that the function accepts this number of arguments."""
        try:
            inspect.signature(self.f, follow_wrapped=False).bind(*args)
        except TypeError as error:
            raise TypeError(
                f"{self.label} is called with {_count(len(args), 'argument')}, which `{function_name(self.f)}` does "
                f"not accept: {error}. Pass one array, and one entry of in_specs, for each of its parameters."
            ) from None
        except ValueError:  # some callables have no signature
            pass

    def check_spec_count(self, args: tuple[Any, ...]) -> None:
        """Check that `in_specs` has as many entries as there are arguments."""
        specs = self.options.in_specs
        if isinstance(specs, (tuple, list)) and not is_spec(specs) and len(specs) != len(args):
            self.check_argument_count(args)
            raise ValueError(
                f"{self.label} is called with {_count(len(args), 'argument')}, but in_specs has "
                f"{_count(len(specs), 'entry', 'entries')}: in_specs must be a tuple with one entry per positional "
                "argument, or a single entry for all of them."
            )

    def manual(
        self, program: Program, in_specs: Sequence[ShardSpec], captured: Sequence[Any], out_specs: Sequence[ShardSpec]
    ) -> Manual:
        """Return the op that runs a program on shards; the captured values are its last, replicated operands."""
        replicated = [ShardSpec(((),) * x.type.ndim) for x in captured]
        return Manual.from_specs(program, self.mesh, self.axes, (*in_specs, *replicated), out_specs, self.options.check)

    def _frame_type(self, operands: Sequence[Any], in_specs: Sequence[ShardSpec]) -> Callable[..., Frame]:
        """Return the type of frame in which the function is traced: outside any trace, one that computes values."""
        if open_frames() or not isinstance(self.mesh, Mesh):
            return Frame

        def run(program: Program, captured: Sequence[Any], rank: int) -> Any:
            """Return the only result of a program, the values of all devices stacked along dim 0."""
            op = self.manual(program, in_specs, captured, [ShardSpec((self.axes, *[()] * (rank - 1)))])
            with use_frames([]), mesh_context.outside_regions():
                return without_effects(op)(*operands, *captured)[0]

        return partial(EagerRegionFrame, self.options.name, run)

    @property
    def label(self) -> str:
        return f"{self.options.name} of {describe_function(self.f)}"

    @property
    def abstract(self) -> AbstractMesh:
        return self.mesh.abstract

    @property
    def sizes(self) -> dict[str, int]:
        return {axis: self.mesh.shape[axis] for axis in self.axes}

    @property
    def tracked(self) -> frozenset[str]:
        """The axes for which types inside the region track varying values."""
        return frozenset(typed_axes(self.axes, self.sizes)) if self.options.check else frozenset()

    def mapped_arguments(
        self, args: tuple[Any, ...]
    ) -> tuple[Function, list[Any], tree.Structure, list[str], list[PartitionSpec]]:
        """Return the function of the mapped arguments, their leaves, structure, names, and the spec of each leaf.

        Arguments whose spec is None are not mapped: the function gets them unchanged.
        """
        args, all_specs = shard_float0(args, self.leaf_specs(args), self._float0_shard_shape)
        function, mapped = split_unmapped(self.f, all_specs, args)
        leaves, in_tree = array_leaves(self.f, mapped, {})
        specs = [spec for spec in all_specs if spec is not None]
        return function, leaves, in_tree, argument_names(self.f, mapped, {}), specs

    def leaf_specs(self, args: tuple[Any, ...]) -> list[PartitionSpec | None]:
        """Return the spec of each leaf of the arguments; None for one that is not mapped."""
        if self.options.in_specs is Infer:
            array_leaves(self.f, args, {})  # raises an error that names the argument
            leaves, names = tree.leaves(args), argument_names(self.f, args, {})
            return [
                None if is_float0(leaf) else self._infer_spec(leaf, name)
                for leaf, name in zip(leaves, names, strict=True)
            ]
        prefix = self.options.in_specs
        prefix = tuple(prefix) if isinstance(prefix, list) else prefix
        try:
            return tree.broadcast_prefix(prefix, args, lambda x: x is None or is_spec(x))
        except tree.TreeMismatch as mismatch:
            raise ValueError(f"{self.label}: {prefix_error(mismatch, 'in_specs')}") from None

    def _float0_shard_shape(self, shape: tuple[int, ...], spec: PartitionSpec, position: int) -> tuple[int, ...]:
        """Return the shape of one device's shard of the float0 array that is the leaf `position` of the arguments."""
        type, name = ArrayType(shape, np.dtype(bool)), f"leaf {position} of the arguments"
        return self.shard_type(type, self.shard_spec(spec, type, name, "in_specs"), name).shape

    def _infer_spec(self, leaf: object, name: str) -> PartitionSpec:
        """Return the manual axes in an argument's own spec."""
        is_typed = not isinstance(leaf, Tracer) or bool(self.abstract.explicit_axes)
        sharding = getattr(leaf, "sharding", None) if is_typed else None
        if not isinstance(sharding, NamedSharding) or sharding.grid.abstract != self.abstract:
            raise ValueError(
                f"{self.label}: in_specs cannot be inferred, because {name} has no NamedSharding on the mesh "
                f"{self.abstract}. Pass in_specs."
            )
        spec = sharding.spec
        return PartitionSpec(
            *(
                tuple(a for a in (e if isinstance(e, tuple) else () if e is None else (e,)) if a in self.axes)
                for e in spec
            ),
            unreduced=spec.unreduced & set(self.axes),
            reduced=spec.reduced & set(self.axes),
        )

    def out_specs(self, out_tree: tree.Structure) -> list[PartitionSpec]:
        """Return the spec of each leaf of the results."""
        results = hide_float0(out_tree.unflatten(list(range(out_tree.num_leaves))))
        try:
            return tree.broadcast_prefix(self.options.out_specs, results, is_spec)
        except tree.TreeMismatch as mismatch:
            text = prefix_error(mismatch, "out_specs")
            if mismatch.difference.first == "None":
                text = f"{text.partition(': None is')[0]}. Use P() for a result that is replicated."
            raise ValueError(f"{self.label}: {text}") from None

    def shard_spec(self, spec: PartitionSpec, type: ArrayType, name: str, parameter: str) -> ShardSpec:
        """Return the axes along which `spec` shards each dim of an array of this type, is unreduced and is reduced.

        `parameter` is "in_specs" or "out_specs"; `name` is the argument or result, for messages.
        """
        label = f"{self.options.name}: {parameter} for {name}, {type}"
        beyond = [dim for dim in range(type.ndim, len(spec)) if spec[dim]]
        if beyond and parameter == "out_specs":
            raise ShardingError(
                f"{label}: {spec} concatenates the shards along dim {beyond[0]}, but they have rank {type.ndim}. Add "
                f"that dim, for example with `numpy.expand_dims(…, {type.ndim})`; or reduce the result, for example "
                "with `lax.psum`, and use P()."
            )
        try:
            pin = pin_of(spec, type.shape, self.abstract)
            check_length(spec, type.shape)
        except ShardingError as error:
            raise ShardingError(f"{label}: {error}") from None
        if pin.open_dims:
            raise ShardingError(
                f"{label}: {spec} has UNCONSTRAINED for dim {min(pin.open_dims)}, but the shapes of shards must be "
                "known here: name the mesh axes of the dim, or use None."
            )
        layout = pin.layout
        for axis in (*layout.axes, *spec.unreduced, *spec.reduced):
            if axis not in self.axes:
                raise ShardingError(
                    f"{self.options.name}: {parameter} for {name} uses {axis!r}, which is not a manual axis; the "
                    f"manual axes are {', '.join(map(repr, self.axes))}. Remove it from the spec, as the planner "
                    "shards arrays along the other axes; or add it to axis_names."
                )
        unreduced, reduced = (tuple(axis for axis in self.axes if axis in of) for of in (spec.unreduced, spec.reduced))
        if untyped := [axis for axis in (*unreduced, *reduced) if axis not in self.abstract.explicit_axes]:
            raise ShardingError(
                f"{label}: {spec} needs Explicit axes for unreduced and reduced values, and {untyped[0]!r} of the mesh "
                f"{self.abstract} is not one: pass `axis_types` to `make_mesh`, or reduce inside with `lax.psum`."
            )
        sizes = self.sizes
        dims = tuple(typed_axes(axes, sizes) for axes in layout.dims)
        return ShardSpec(dims, typed_axes(unreduced, sizes), typed_axes(reduced, sizes))

    def shard_type(self, type: ArrayType, spec: ShardSpec, name: str) -> ArrayType:
        """Return the type of one device's shard of argument `name`."""
        self._check_sums(type, spec, name)
        shape = []
        for dim, (size, axes) in enumerate(zip(type.shape, spec.dims, strict=True)):
            count = self.abstract.extent(axes)
            if size % count:
                sizes = " × ".join(f"{axis}={self.mesh.shape[axis]}" for axis in axes)
                padded = -(-size // count) * count
                raise ValueError(
                    f"{self.label}: dim {dim} of {name}, {type}, has size {size}, which is not divisible by {count}, "
                    f"the number of shards ({sizes}).\n"
                    f"  All shards must have the same shape. Pad the dim to {padded}, for example with `numpy.pad`, "
                    f"and make `{function_name(self.f)}` ignore the {padded - size} added elements; or use jit, which "
                    "supports uneven sharding."
                )
            shape.append(size // count)
        shard = type.with_shape(tuple(shape))
        if type.explicit is not None:
            shard = shard.with_explicit(type.explicit.inside_region(self.axes, self.options.check))
        return shard.with_varying((*type.varying, *(spec.sharding_axes if self.options.check else ())))

    def _check_sums(self, type: ArrayType, spec: ShardSpec, name: str) -> None:
        """Check that an argument is unreduced and reduced along the axes that its spec names."""
        sums = (type.explicit.unreduced, type.explicit.reduced) if type.explicit else ((), ())
        own = [frozenset(axis for axis in of if axis in self.axes) for of in sums]
        if own != [frozenset(spec.unreduced), frozenset(spec.reduced)]:
            expected = spec_text(ShardSpec(spec.dims, *map(tuple, map(sorted, own))))
            raise ShardingTypeError(
                f"{self.label}: {name} has type {type}, but in_specs has {spec_text(spec)}. The unreduced and reduced "
                f"axes must agree: write {expected}, or reshard the argument first, `reshard(x, {spec_text(spec)})`."
            )

    def place(self, leaves: Sequence[Any], specs: Sequence[PartitionSpec], names: Sequence[str]) -> list[Any]:
        """Return the arguments as operands; outside any trace, put uncommitted arrays on the mesh as `specs` say."""
        if not isinstance(self.mesh, Mesh) or is_traced(leaves) or bound_axes():
            return [as_operand(leaf) for leaf in leaves]
        operands = []
        for leaf, spec, name in zip(leaves, specs, names, strict=True):
            array = as_array(as_operand(leaf))
            is_committed = isinstance(array, ArrayImpl) and array.committed
            if is_committed and array.sharding.device_set != set(self.mesh.flat_devices):
                raise DeviceMismatchError(
                    f"{self.label}: {name} has {array.sharding}, whose devices are not those of the mesh {self.mesh}. "
                    "Move it with `device_put` first."
                )
            is_on_mesh = is_committed and array.sharding.devices == self.mesh.flat_devices
            operands.append(array if is_on_mesh else device_put(array, NamedSharding(self.mesh, spec)))
        return operands

    def check_output(self, x: Any, spec: ShardSpec, name: str) -> Any:
        """Return a result as a value that varies, is unreduced and is reduced along exactly the axes of its spec."""
        if not self.options.check:
            return x
        terms, copies = (of & set(self.axes) for of in (x.type.mat.unreduced, x.type.mat.reduced))
        casts = tuple(axis for axis in spec.unreduced if axis in x.type.varying)
        if terms | set(casts) != set(spec.unreduced) or copies != set(spec.reduced):
            raise sums_error(self.label, x, spec, name)
        x = PUnreduced(casts, mesh_of_types(self.mesh).abstract)(x) if casts else x
        unused = tuple(axis for axis in self.axes if axis in x.type.varying and axis not in spec.sharding_axes)
        if unused:
            differing = [axis for axis in unused if axis in may_differ(x) and self.mesh.shape[axis] > 1]
            if differing:
                raise replication_error(self.label, x, spec, name, differing)
            x = AssertReplicated(unused)(x)
        missing = tuple(axis for axis in self.axes if axis in spec.sharding_axes and axis not in x.type.varying)
        return PVary(missing)(x) if missing else x


@final
class _ShardFunction(FlatFunction):
    """The mapped function on flat shards; a call stores the specs of the results as `out_specs`."""

    def __init__(self, region: _Region, function: Function, in_tree: tree.Structure):
        super().__init__(function, in_tree)
        self.region = region
        self.out_specs: list[ShardSpec] = []

    def __call__(self, *leaves: object) -> list[Any]:
        region = self.region
        outputs = [as_operand(x) for x in super().__call__(*leaves)]
        specs, names = region.out_specs(self.out_tree), _result_names(self.out_tree)
        self.out_specs = [
            region.shard_spec(spec, x.type, f"result {name} of {describe_function(region.f)}", "out_specs")
            for spec, x, name in zip(specs, outputs, names, strict=True)
        ]
        return [
            region.check_output(x, spec, name) for x, spec, name in zip(outputs, self.out_specs, names, strict=True)
        ]


def _region_mesh(label: str, options: ShardMapOptions) -> Mesh | AbstractMesh:
    """Return the mesh of the options, or the current mesh.

    In a part of a program with other axis types (`auto_axes`), the axes of the options' mesh have these types.
    """
    mesh, current = options.mesh, mesh_context.mesh
    if mesh is None or (
        mesh_context.scoped
        and current is not None
        and isinstance(mesh, (Mesh, AbstractMesh))
        and mesh.shape_tuple == current.shape_tuple
    ):
        mesh = current
    if isinstance(mesh, (Mesh, AbstractMesh)):
        return mesh
    if mesh is not None:
        raise TypeError(f"{label}: mesh must be a Mesh or an AbstractMesh, not {mesh!r}")
    keyword = "pass `mesh=`, or " if options.name == "shard_map" else ""
    raise ValueError(f"{label} needs a mesh: {keyword}set one with `with mesh:` or `set_mesh(mesh)`")


def _manual_axes(label: str, options: ShardMapOptions, mesh: AbstractMesh) -> tuple[str, ...]:
    """Return the axes of `options.axis_names`, by default all axes that are not manual yet, in mesh order."""
    requested = {options.axis_names} if isinstance(options.axis_names, str) else set(options.axis_names)
    for axis in requested:
        if axis not in mesh.shape:
            raise ShardingError(f"{label}: axis_names has {axis!r}, but {mesh.unknown_axis_message(axis)}")
    if repeated := sorted(requested & mesh_context.manual_axes):
        raise ShardingError(
            f"{label}: {', '.join(map(repr, repeated))} is already a manual axis of an enclosing shard_map"
        )
    axes = tuple(a for a in mesh.axis_names if (a in requested if requested else a not in mesh_context.manual_axes))
    if not axes:
        raise ShardingError(f"{label}: all axes of the mesh {mesh} are already manual in an enclosing shard_map")
    return axes


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def _result_names(structure: tree.Structure) -> list[str]:
    """Return the path of each leaf of the results, for messages; 0 for a single result."""
    results = hide_float0(structure.unflatten(range(structure.num_leaves)))
    return [name or "0" for name in tree.leaf_names(results, "")]
