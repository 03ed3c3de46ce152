"""manual: a program over shards, in which the user writes the collectives (`shard_map`).

A manual region has some axes of the mesh. Its program is the work of one device on its shards, and collectives over
axis names run along these axes. The planner plans the other axes, both inside and outside the region. Values enter and
leave the region by `split` and `join`.

`tracked` (JAX: check_vma): types inside the region record over which of its axes a value varies, is unreduced or
reduced. Replication of results is then proved, sums over an axis are replicated, and derivatives communicate only where
needed. Without it, a result that is not sharded along an axis is read from any device along the axis, and derivatives
assume that all devices agree.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cached_property
from itertools import compress
from typing import Any, final

import numpy as np

from shardwise.compiler.control.call import Call
from shardwise.compiler.control.control_rules import ControlRules
from shardwise.compiler.control.region_boundary import Join, ShardSpec, Split
from shardwise.compiler.control.region_residuals import Residual, linear_program
from shardwise.compiler.ir.control import Binding, entry, exit_, operand, result
from shardwise.compiler.ir.dispatch import bind_axis_names
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.masks import drop_none, insert_none, present_mask
from shardwise.compiler.ir.op import BatchAxis, NumpyArray, Op, Primal, UndefinedPrimal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.named import NamedSum
from shardwise.compiler.ops.elementwise.arithmetic import Div
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.placement.reshard import reshard_to
from shardwise.compiler.shardings.explicit import Axes, ExplicitSharding
from shardwise.compiler.shardings.mesh import AbstractMesh, AxisType, Mesh, mesh_context, typed_axes
from shardwise.compiler.shardings.refine import refine_axis_types, sub_axes_of
from shardwise.compiler.trace.build import rewrite
from shardwise.compiler.transforms.erase_varying import erase_varying
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.linearize import linearize_program
from shardwise.compiler.transforms.transpose import transpose_program
from shardwise.compiler.transforms.vmap import vmap_program
from shardwise.errors import ShardingError

DimAxes = tuple[Axes, ...]  # for each dim, the axes of the region that shard it
Sums = tuple[Axes, Axes]  # the region's axes along which an array is unreduced, and reduced


@final
@record
class Manual(ControlRules):
    """A manual region.

    Attributes:
        program: the program of one device, from shards of the operands to shards of the results.
        mesh: the mesh.
        axes: the axes of the region.
        in_dim_axes: for each operand, the axes that shard each dim.
        out_dim_axes: for each result, the axes that shard each dim.
        tracked: whether types record over which axes values vary.
        parts: for each of `axes`, its sub-axes in `mesh`, if `mesh` is finer than the user's mesh.
        explicit: whether types record shardings along Explicit mesh axes.
        in_sums: for each operand, the axes along which it is unreduced and reduced; empty if there are none.
        out_sums: the same for the results.
    """

    name = "manual"
    is_manual = True
    user_function = "shard_map"
    program: Program
    mesh: Mesh | AbstractMesh
    axes: tuple[str, ...]
    in_dim_axes: tuple[DimAxes, ...]
    out_dim_axes: tuple[DimAxes, ...]
    tracked: bool = True
    parts: tuple[tuple[str, ...], ...] | None = None
    explicit: bool = True
    in_sums: tuple[Sums, ...] = field(default=(), repr=False)
    out_sums: tuple[Sums, ...] = field(default=(), repr=False)

    @staticmethod
    def from_specs(
        program: Program,
        mesh: Mesh | AbstractMesh,
        axes: Axes,
        in_specs: Sequence[ShardSpec],
        out_specs: Sequence[ShardSpec],
        tracked: bool,
    ) -> "Manual":
        """Return the region with these specs of its operands and results."""
        region = Manual(program, mesh, axes, (), (), tracked)
        return region.with_program(program, in_specs, out_specs)

    @property
    def user_mesh(self) -> Mesh | AbstractMesh:
        return self.mesh

    @cached_property
    def in_specs(self) -> tuple[ShardSpec, ...]:
        """The spec of each operand."""
        return _specs(self.in_dim_axes, self.in_sums)

    @cached_property
    def out_specs(self) -> tuple[ShardSpec, ...]:
        """The spec of each result."""
        return _specs(self.out_dim_axes, self.out_sums)

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.program,)

    @property
    def axis_names(self) -> frozenset[Any]:
        return self.program.axis_names - frozenset(self.axes)

    @cached_property
    def mesh_axes(self) -> Mapping[str, tuple[str, ...]]:
        """The axes of `mesh` that make up each axis of the region."""
        parts = [(axis,) for axis in self.axes] if self.parts is None else self.parts
        return dict(zip(self.axes, parts, strict=True))

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """Each binding is its own group, because each has its own sharding. Replicated operands are one more group."""
        return (
            *(Binding(n, self._split(spec), (operand(n),), (entry(n),)) for n, spec in enumerate(self.in_specs)),
            *(
                Binding(len(self.in_specs) + n, self._join(spec), (exit_(n),), (result(n),))
                for n, spec in enumerate(self.out_specs)
            ),
        )

    def _split(self, spec: ShardSpec) -> Split:
        dims, counts = self._mesh_sharding(spec)
        varying = spec.sharding_axes if self.tracked else ()
        manual = self.axes if self.explicit else ()
        return Split(dims, counts, varying, manual, self._parts(spec.unreduced), spec.reduced, self.tracked)

    def _join(self, spec: ShardSpec) -> Join:
        mesh = self.mesh if self.explicit else None
        return Join(*self._mesh_sharding(spec), self.axes, mesh, self._parts(spec.unreduced), spec.reduced)

    def _mesh_sharding(self, spec: ShardSpec) -> tuple[DimAxes, tuple[int, ...]]:
        """Return the mesh axes and the number of shards of each dim."""
        return tuple(map(self._parts, spec.dims)), tuple(map(self._extent, spec.dims))

    def _parts(self, axes: Axes) -> Axes:
        """Return the mesh axes that make up axes of the region."""
        return tuple(part for axis in axes for part in self.mesh_axes[axis])

    def _extent(self, axes: Sequence[str]) -> int:
        """Return the number of devices along axes of the region."""
        sizes = self.mesh.shape
        return int(np.prod([sizes[part] for axis in axes for part in self.mesh_axes[axis]], dtype=np.int64))

    @property
    def const_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return ((len(self.in_specs) + len(self.out_specs), (0,)),)

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> "Manual":
        (program,) = programs
        if counts is None:
            return self.with_program(
                program,
                _append_key_dims(self.in_specs, program.in_types),
                _append_key_dims(self.out_specs, program.out_types),
            )
        all_counts = [*counts, *[0] * (len(self.in_specs) + len(self.out_specs) + 1 - len(counts))]
        out_counts = all_counts[len(self.in_specs) :]
        in_specs = [spec for spec, count in zip(self.in_specs, all_counts, strict=False) for _ in range(count)]
        out_specs = [spec for spec, count in zip(self.out_specs, out_counts, strict=False) for _ in range(count)]
        in_specs += [ShardSpec(((),) * type.ndim) for type in program.in_types[len(in_specs) :]]
        return self.with_program(program, in_specs, out_specs)

    def with_program(self, program: Program, in_specs: Sequence[ShardSpec], out_specs: Sequence[ShardSpec]) -> "Manual":
        """Return the region with another program."""
        return replace(
            self,
            program=program,
            in_dim_axes=tuple(spec.dims for spec in in_specs),
            out_dim_axes=tuple(spec.dims for spec in out_specs),
            in_sums=_sums(in_specs),
            out_sums=_sums(out_specs),
        )

    def refine(self, mesh: Mesh | AbstractMesh, refine_program: Callable[[Program], Program]) -> "Manual":
        coarse, fine = self.mesh.abstract, mesh.abstract
        sub_axes = sub_axes_of(coarse, fine)
        typed = refine_axis_types(coarse, fine)  # the types of results depend on the axis types
        region_mesh = mesh.with_axes(typed) if isinstance(mesh, Mesh) and not typed.manual_axes else typed
        parts = tuple(tuple(fine for part in self.mesh_axes[axis] for fine in sub_axes[part]) for axis in self.axes)
        return replace(self, program=refine_program(self.program), mesh=region_mesh, parts=parts)

    def mesh_inside(self, mesh: AbstractMesh) -> AbstractMesh:
        return mesh.update_axis_types(dict.fromkeys(self._parts(self.axes), AxisType.Manual))

    def without_varying(self) -> "Manual":
        return replace(self, tracked=False)

    def without_explicit(self) -> "Manual":
        return replace(self, explicit=False)

    @contextmanager
    def _bind_axes(self) -> Iterator[None]:
        """Bind the axis names while the program is rewritten, because a user's derivative rule may use them."""
        sizes = {axis: self._extent((axis,)) for axis in self.axes}
        tracked = frozenset(typed_axes(self.axes, sizes)) if self.tracked else frozenset()
        with bind_axis_names(sizes, tracked), mesh_context.in_region(self.mesh, self.axes):
            yield

    def jvp_programs(self, tangents: Sequence[Any]) -> tuple[tuple[bool, ...], list[Program]]:
        with self._bind_axes():
            return super().jvp_programs(tangents)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        active = present_mask(tangents)
        with self._bind_axes():
            forward, linear, out_active = linearize_program(self.program, active)
        count = len(self.program.outputs)
        residuals = [
            Residual.from_output(
                forward, value, self.in_specs, self.axes, value.type.varying if self.tracked else self._used_axes
            )
            for value in forward.outputs[count:]
        ]
        results = self._forward_region(forward, residuals)(*primals)
        new_results = iter(results[count:])
        saved = [next(new_results) if r.operand is None else primals[r.operand] for r in residuals]
        in_specs = [*(residual.spec for residual in residuals), *compress(self.in_specs, active)]
        linear_region = self.with_program(
            linear_program(linear, residuals), in_specs, [*compress(self.out_specs, out_active)]
        )
        return results[:count], insert_none(linear_region(*saved, *drop_none(tangents)), out_active)

    def _forward_region(self, forward: Program, residuals: Sequence[Residual]) -> "Manual":
        """Build the region that returns the results, and the residuals that are not operands of the region."""
        count = len(self.program.outputs)
        new = [residual for residual in residuals if residual.operand is None]
        program = forward.with_equations(
            (*forward.equations, *(residual.reshape for residual in new if residual.reshape)),
            (*forward.outputs[:count], *(residual.saved_value for residual in new)),
        )
        return self.with_program(program, self.in_specs, [*self.out_specs, *(residual.spec for residual in new)])

    def transpose(self, cotangent: Sequence[Operand | None], *operands: Primal) -> tuple[Any, ...]:
        linear = tuple(isinstance(x, UndefinedPrimal) for x in operands)
        nonzero = present_mask(cotangent)
        with self._bind_axes():
            program, out_nonzero = transpose_program(self.program, linear, nonzero)
        known = [x for x in operands if not isinstance(x, UndefinedPrimal)]
        in_specs = [
            *compress(self.in_specs, [not is_linear for is_linear in linear]),
            *(spec.cotangent for spec in compress(self.out_specs, nonzero)),
        ]
        out_specs = [spec.cotangent for spec in compress(compress(self.in_specs, linear), out_nonzero)]
        if not self.tracked:
            program = self._assume_replicated(program, len(known), in_specs, out_specs)
        cotangents = self.with_program(program, in_specs, out_specs)(*known, *drop_none(cotangent))
        return tuple(insert_none(insert_none(cotangents, out_nonzero), linear))

    def _assume_replicated(
        self, program: Program, known: int, in_specs: Sequence[ShardSpec], out_specs: Sequence[ShardSpec]
    ) -> Program:
        """Adapt a transposed program to values that are assumed, not proved, to be replicated.

        Along each axis where a value is replicated, an incoming cotangent is divided by the number of devices, and an
        outgoing cotangent is summed over the devices. The terms of an unreduced outgoing cotangent are not summed.
        """

        def body(*args: Operand) -> list[Any]:
            shares = [
                Div()(x, full_like(x, self._extent(self._replicated_axes(spec, spec.reduced))))
                for x, spec in zip(args[known:], in_specs[known:], strict=True)
            ]
            cotangents = Call(program)(*args[:known], *shares)
            return [self._sum_over_devices(x, spec) for x, spec in zip(cotangents, out_specs, strict=True)]

        return rewrite(program.name, program.in_types, body)

    def _sum_over_devices(self, x: Operand, spec: ShardSpec) -> Any:
        """Sum an outgoing cotangent over the axes where it is replicated; compute the mean where it is reduced."""
        axes = self._replicated_axes(spec)
        total = NamedSum(axes)(x) if axes else x
        return Div()(total, full_like(total, self._extent(spec.reduced))) if spec.reduced else total

    @cached_property
    def _used_axes(self) -> frozenset[str]:
        """The axes in specs or in the program. All values are replicated along the others."""
        named = (axis for spec in self._all_specs for axis in (*spec.sharding_axes, *spec.unreduced, *spec.reduced))
        return self.program.axis_names.union(named)

    def _replicated_axes(self, spec: ShardSpec, excluded: Axes = ()) -> Axes:
        """Return the used axes that neither shard a value nor leave it unreduced, without the excluded axes."""
        others = (*spec.sharding_axes, *spec.unreduced, *excluded)
        return tuple(axis for axis in self.axes if axis in self._used_axes and axis not in others)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        """Remove the mesh axes of the batch dim from the region: `spmd_axis_name`, or Explicit axes."""
        batch_axes = axis.explicit.dims[0] if axis.explicit else ()
        leaving = axis.spmd or tuple(name for name in batch_axes if name in self.axes)
        label = f"with spmd_axis_name={leaving}" if axis.spmd else f"over a dim that is sharded along {leaving}"
        region = self._without_axes(leaving, label) if leaving else self
        if axis.spmd and set(axis.spmd) <= set(self.mesh.abstract.explicit_axes):
            axis = BatchAxis(
                axis.size,
                axis.name,
                (),
                axis.explicit or ExplicitSharding.from_dims(self.mesh, (typed_axes(axis.spmd, self.mesh.shape),)),
            )
            operands = [x if dim is None else _shard_dim(x, dim, axis) for x, dim in zip(operands, dims, strict=True)]
        elif axis.spmd:
            operands = [
                x if dim is None else self._pinned(x, dim, axis.spmd) for x, dim in zip(operands, dims, strict=True)
            ]
        explicit = axis.explicit and axis.explicit.inside_region(region.axes, tracked=True)
        with region._bind_axes():
            program, out_dims = vmap_program(region.program, BatchAxis(axis.size, axis.name, (), explicit), tuple(dims))
        in_specs = [_insert_dim(spec, dim) for spec, dim in zip(self.in_specs, dims, strict=True)]
        out_specs = [_insert_dim(spec, dim) for spec, dim in zip(self.out_specs, out_dims, strict=True)]
        return region.with_program(program, in_specs, out_specs)(*operands), out_dims

    def _without_axes(self, spmd: Axes, label: str) -> "Manual":
        """Return the region without these axes, which it must not use. `label` describes the vmap, for messages."""
        mesh = self.mesh.abstract
        for axis in spmd:
            if axis not in mesh.axis_names:
                why = mesh.unknown_axis_message(axis)
            elif any(axis in (*spec.sharding_axes, *spec.unreduced, *spec.reduced) for spec in self._all_specs):
                why = f"axis {axis!r} already shards its arguments or results"
            elif axis in self.program.axis_names or any(
                axis in equation.op.axes for equation in self.program.walk() if isinstance(equation.op, Manual)
            ):
                why = f"its collectives use axis {axis!r}"
            else:
                continue
            raise ShardingError(f"vmap {label} is incompatible with a shard_map inside: {why}")
        kept = tuple(axis for axis in self.axes if axis not in spmd)
        parts = None if self.parts is None else tuple(self.mesh_axes[axis] for axis in kept)
        types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        program = _with_axis_types(self.program, {axis: types[axis] for axis in spmd})
        return replace(self, program=program, axes=kept, parts=parts)

    @property
    def _all_specs(self) -> tuple[ShardSpec, ...]:
        return (*self.in_specs, *self.out_specs)

    def _pinned(self, x: Operand, dim: int, spmd: tuple[str, ...]) -> Any:
        """Pin `dim` of `x` to these axes; the other dims are open."""
        ndim = x.type.ndim
        dim_axes = tuple(spmd if d == dim else () for d in range(ndim))
        return Constrain(dim_axes, self.mesh, tuple(d for d in range(ndim) if d != dim))(x)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        """Run all devices of the region at once: each axis is a vmap, under which collectives are ordinary ops."""
        program = erase_varying(inline(self.program))
        stacks = [self._stack_shards(x, spec) for x, spec in zip(operands, self.in_specs, strict=True)]
        for axis in reversed(self.axes):
            dims = tuple(0 if axis in (*spec.sharding_axes, *spec.unreduced) else None for spec in self.in_specs)
            program, _ = vmap_program(program, BatchAxis(self._extent((axis,)), axis), dims, True)
        results = evaluate(program, stacks)
        return tuple(self._join_shards(x, spec) for x, spec in zip(results, self.out_specs, strict=True))

    def _stack_shards(self, x: NumpyArray, spec: ShardSpec) -> NumpyArray:
        """Split an array into shards, with a leading dim for each axis that shards it, ordered as the region's axes.

        An unreduced axis adds a leading dim too: the first device has the array as its term, the other terms are zero.
        """
        unreduced = [axis for axis in self.axes if axis in spec.unreduced]
        for axis in reversed(unreduced):
            x = np.stack([x, *[np.zeros_like(x)] * (self._extent((axis,)) - 1)])
        dim_axes = (*((axis,) for axis in unreduced), *spec.dims)
        sizes: list[int] = []
        axis_dims: dict[str, int] = {}
        shard_dims = []
        for size, axes in zip(x.shape, dim_axes, strict=True):
            for axis in axes:
                axis_dims[axis] = len(sizes)
                sizes.append(self._extent((axis,)))
            shard_dims.append(len(sizes))
            sizes.append(size // self._extent(axes))
        terms = shard_dims[: len(unreduced)]  # of size 1
        order = [*(axis_dims[axis] for axis in self.axes if axis in axis_dims), *shard_dims[len(unreduced) :]]
        stacked: NumpyArray = x.reshape(sizes).transpose([*terms, *order])[(0,) * len(terms)]
        return stacked

    def _join_shards(self, x: NumpyArray, spec: ShardSpec) -> NumpyArray:
        """Join shards, which have a leading dim for each axis of the region, into an array."""
        dim_axes, sharding = spec.dims, spec.sharding_axes
        unreduced = tuple(index for index, axis in enumerate(self.axes) if axis in spec.unreduced)
        x = x.sum(unreduced, dtype=x.dtype, keepdims=True) if unreduced else x
        shards = x[tuple(slice(None) if axis in sharding else 0 for axis in self.axes)]
        leading = [axis for axis in self.axes if axis in sharding]
        order = [
            position
            for dim, axes in enumerate(dim_axes)
            for position in (*(leading.index(axis) for axis in axes), len(leading) + dim)
        ]
        shard_shape = x.shape[len(self.axes) :]
        return shards.transpose(order).reshape(
            [size * self._extent(axes) for size, axes in zip(shard_shape, dim_axes, strict=True)]
        )


def _shard_dim(x: Operand, dim: int, axis: BatchAxis) -> Any:
    """Return `x` with its batch dim sharded along the axes of `axis`."""
    return reshard_to(x, x.type.without((dim,)).with_dim(dim, axis.size, axis.explicit).explicit)


def _with_axis_types(program: Program, types: Mapping[str, AxisType]) -> Program:
    """Change the types of mesh axes in the program of a region, in the types of its values and in its ops."""
    new_values: dict[Value, Value] = {}

    def convert_value(value: Value) -> Value:
        explicit = value.type.explicit
        if explicit is not None:
            explicit = replace(explicit, mesh=explicit.mesh.abstract.update_axis_types(types))
        new = new_values[value] = Value(value.type.with_explicit(explicit))
        return new

    def convert_op(op: Op) -> Op:
        meshes = {name: mesh for name, mesh in vars(op).items() if isinstance(mesh, AbstractMesh)}
        changed: Any = {name: mesh.update_axis_types(types) for name, mesh in meshes.items()}
        op = replace(op, **changed) if changed else op  # type: ignore[type-var]
        return op.map_programs(lambda inner: _with_axis_types(inner, types))

    inputs = tuple(map(convert_value, program.inputs))
    equations = [
        equation.replace(
            op=convert_op(equation.op),
            inputs=[new_values[value] for value in equation.inputs],
            outputs=[convert_value(value) for value in equation.outputs],
        )
        for equation in program.equations
    ]
    return Program(inputs, tuple(equations), tuple(new_values[value] for value in program.outputs), program.name)


def _specs(dim_axes: Sequence[DimAxes], sums: Sequence[Sums]) -> tuple[ShardSpec, ...]:
    all_sums = sums or (((), ()),) * len(dim_axes)
    return tuple(ShardSpec(dims, *of_value) for dims, of_value in zip(dim_axes, all_sums, strict=True))


def _sums(specs: Sequence[ShardSpec]) -> tuple[Sums, ...]:
    """Return the unreduced and reduced axes of values; empty if there are none."""
    sums = tuple((spec.unreduced, spec.reduced) for spec in specs)
    return sums if any(axes for of_value in sums for axes in of_value) else ()


def _append_key_dims(specs: Sequence[ShardSpec], types: Sequence[ArrayType]) -> list[ShardSpec]:
    """Add an unsharded dim to the specs of keys that have been lowered to words."""
    return [
        spec._replace(dims=(*spec.dims, *[()] * (type.ndim - len(spec.dims))))
        for spec, type in zip(specs, types, strict=True)
    ]


def _insert_dim(spec: ShardSpec, dim: int | None) -> ShardSpec:
    """Insert an unsharded dim."""
    return spec if dim is None else spec._replace(dims=(*spec.dims[:dim], (), *spec.dims[dim:]))
