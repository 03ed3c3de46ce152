"""manual: a program over shards, in which the user writes the collectives (`shard_map`).

A manual region has some axes of the mesh. Its program is the work of one device on its shards, and the collectives over
names in it run along these axes. The other axes are planned, inside the region as outside. Values get in and out by
`split` and `join`.

`tracked` (JAX: check_vma): types inside the region say over which of its axes a value varies. Replication of results is
then proved, sums over an axis are replicated, and derivatives communicate only where needed. Without it, a result that
is not sharded along an axis is taken from any device along the axis, and derivatives assume that all devices agree.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.dispatch import bind_axis_names, installed
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis, NumpyArray, UndefinedPrimal
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.named import NamedSum
from shardwise.compiler.ops.control.call import Call, drop_none, insert_none, present_mask
from shardwise.compiler.ops.control.control import Binding, Control, entry, exit_, operand, result
from shardwise.compiler.ops.control.region_boundary import Join, Split
from shardwise.compiler.ops.elementwise.arithmetic import Div
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.errors import ShardingError

DimAxes = tuple[tuple[str, ...], ...]  # for each dim, the axes of the region that shard it


@final
@record
class Manual(Control):
    """A manual region.

    Attributes:
        program: the program of one device, from shards of the operands to shards of the results.
        mesh: the mesh.
        axes: the axes of the region.
        in_dim_axes: for each operand, the axes that shard each dim.
        out_dim_axes: for each result, the axes that shard each dim.
        tracked: whether types say over which axes values vary.
        parts: for each of `axes`, its sub-axes in `mesh`, if that is finer than the mesh that the user named.
        explicit: whether types say how values are sharded along Explicit mesh axes.
    """

    name = "manual"
    program: Program
    mesh: Mesh | AbstractMesh
    axes: tuple[str, ...]
    in_dim_axes: tuple[DimAxes, ...]
    out_dim_axes: tuple[DimAxes, ...]
    tracked: bool = True
    parts: tuple[tuple[str, ...], ...] | None = None
    explicit: bool = True

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.program,)

    @property
    def axis_names(self) -> frozenset[Any]:
        return self.program.axis_names - frozenset(self.axes)

    @cached_property
    def mesh_axes(self) -> Mapping[str, tuple[str, ...]]:
        """The axes of `mesh` that each axis of the region consists of."""
        parts = [(axis,) for axis in self.axes] if self.parts is None else self.parts
        return dict(zip(self.axes, parts, strict=True))

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """Each binding is a group, as each has its own sharding. One more group is for replicated operands."""
        return (
            *(
                Binding(n, Split(*self._mesh_sharding(dim_axes), self._explicit_axes), (operand(n),), (entry(n),))
                for n, dim_axes in enumerate(self.in_dim_axes)
            ),
            *(
                Binding(
                    len(self.in_dim_axes) + n,
                    Join(*self._mesh_sharding(dim_axes)[:2], self.axes, self.mesh if self._explicit_axes else None),
                    (exit_(n),),
                    (result(n),),
                )
                for n, dim_axes in enumerate(self.out_dim_axes)
            ),
        )

    @cached_property
    def _explicit_axes(self) -> tuple[str, ...]:
        """The Explicit mesh axes that are manual in the region."""
        explicit = self.mesh.abstract.explicit_axes if self.explicit else ()
        return tuple(part for parts in self.mesh_axes.values() for part in parts if part in explicit)

    def _mesh_sharding(self, dim_axes: DimAxes) -> tuple[DimAxes, tuple[int, ...], tuple[str, ...]]:
        """Return for each dim its mesh axes and its number of shards; and the axes over which shards vary."""
        varying = tuple(axis for axes in dim_axes for axis in axes) if self.tracked else ()
        dims = tuple(tuple(part for axis in axes for part in self.mesh_axes[axis]) for axes in dim_axes)
        return dims, tuple(self._extent(axes) for axes in dim_axes), varying

    def _extent(self, axes: Sequence[str]) -> int:
        """Return the number of devices along axes of the region."""
        sizes = self.mesh.shape
        return int(np.prod([sizes[part] for axis in axes for part in self.mesh_axes[axis]], dtype=np.int64))

    @property
    def const_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return ((len(self.in_dim_axes) + len(self.out_dim_axes), (0,)),)

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> "Manual":
        (program,) = programs
        if counts is None:
            return self.with_program(
                program,
                _append_key_dims(self.in_dim_axes, program.in_types),
                _append_key_dims(self.out_dim_axes, program.out_types),
            )
        all_counts = [*counts, *[0] * (len(self.in_dim_axes) + len(self.out_dim_axes) + 1 - len(counts))]
        out_counts = all_counts[len(self.in_dim_axes) :]
        in_dim_axes = [
            dim_axes for dim_axes, count in zip(self.in_dim_axes, all_counts, strict=False) for _ in range(count)
        ]
        out_dim_axes = [
            dim_axes for dim_axes, count in zip(self.out_dim_axes, out_counts, strict=False) for _ in range(count)
        ]
        in_dim_axes += [((),) * type.ndim for type in program.in_types[len(in_dim_axes) :]]
        return self.with_program(program, in_dim_axes, out_dim_axes)

    def with_program(
        self, program: Program, in_dim_axes: Sequence[DimAxes], out_dim_axes: Sequence[DimAxes]
    ) -> "Manual":
        """Return the region with another program."""
        return replace(self, program=program, in_dim_axes=tuple(in_dim_axes), out_dim_axes=tuple(out_dim_axes))

    def on_refined_mesh(
        self, mesh: Mesh | AbstractMesh, sub_axes: Mapping[str, tuple[str, ...]], program: Program
    ) -> "Manual":
        """Return the region on a finer mesh. `sub_axes`: for each axis of the present mesh, its axes in that mesh."""
        parts = tuple(tuple(fine for part in self.mesh_axes[axis] for fine in sub_axes[part]) for axis in self.axes)
        return replace(self, program=program, mesh=mesh, parts=parts)

    def _bind_axes(self) -> AbstractContextManager[None]:
        """Bind the names of the axes while the program is rewritten: a user's derivative rule may use them."""
        sizes = {axis: self._extent((axis,)) for axis in self.axes}
        return bind_axis_names(sizes, frozenset(self.axes) if self.tracked else frozenset())

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        with self._bind_axes():
            return super().jvp(primals, tangents)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        active = present_mask(tangents)
        with self._bind_axes():
            forward, linear, out_active = installed.transforms.linearize(self.program, active)
        count = len(self.program.outputs)
        residuals = [_Residual.of(self, forward, value) for value in forward.outputs[count:]]
        results = self._forward_region(forward, residuals)(*primals)
        new_results = iter(results[count:])
        saved = [next(new_results) if r.operand is None else primals[r.operand] for r in residuals]
        in_dim_axes = [*(residual.dim_axes for residual in residuals), *_select(self.in_dim_axes, active)]
        linear_region = self.with_program(
            _linear_program(linear, residuals), in_dim_axes, _select(self.out_dim_axes, out_active)
        )
        return results[:count], insert_none(linear_region(*saved, *drop_none(tangents)), out_active)

    def _forward_region(self, forward: Program, residuals: Sequence["_Residual"]) -> "Manual":
        """Build the region that returns the results, and the residuals that are not operands."""
        count = len(self.program.outputs)
        new = [residual for residual in residuals if residual.operand is None]
        program = forward.with_equations(
            (*forward.equations, *(residual.reshape for residual in new if residual.reshape)),
            (*forward.outputs[:count], *(residual.saved_value for residual in new)),
        )
        return self.with_program(
            program, self.in_dim_axes, [*self.out_dim_axes, *(residual.dim_axes for residual in new)]
        )

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        linear = tuple(isinstance(x, UndefinedPrimal) for x in operands)
        nonzero = present_mask(cotangent)
        with self._bind_axes():
            program, out_nonzero = installed.transforms.transpose(self.program, linear, nonzero)
        known = [x for x in operands if not isinstance(x, UndefinedPrimal)]
        in_dim_axes = [
            *_select(self.in_dim_axes, [not is_linear for is_linear in linear]),
            *_select(self.out_dim_axes, nonzero),
        ]
        out_dim_axes = _select(_select(self.in_dim_axes, linear), out_nonzero)
        if not self.tracked:
            program = self._assume_replicated(program, len(known), in_dim_axes, out_dim_axes)
        cotangents = self.with_program(program, in_dim_axes, out_dim_axes)(*known, *drop_none(cotangent))
        return tuple(insert_none(insert_none(cotangents, out_nonzero), linear))

    def _assume_replicated(
        self, program: Program, known: int, in_dim_axes: Sequence[DimAxes], out_dim_axes: Sequence[DimAxes]
    ) -> Program:
        """Adapt a transposed program to values that are assumed, not proved, to be replicated.

        Along each axis that does not shard a value, an incoming cotangent is divided by the number of devices, and an
        outgoing one is summed over the devices.
        """

        def body(*args: Any) -> list[Any]:
            shares = [
                Div()(x, full_like(x, self._extent(self._unsharded_axes(dim_axes))))
                for x, dim_axes in zip(args[known:], in_dim_axes[known:], strict=True)
            ]
            cotangents = Call(program)(*args[:known], *shares)
            return [
                NamedSum(axes)(x) if (axes := self._unsharded_axes(dim_axes)) else x
                for x, dim_axes in zip(cotangents, out_dim_axes, strict=True)
            ]

        return installed.transforms.rewrite(program.name, program.in_types, body)

    def _unsharded_axes(self, dim_axes: DimAxes) -> tuple[str, ...]:
        """Return the axes of the region that do not shard a value."""
        used = {axis for axes in dim_axes for axis in axes}
        return tuple(axis for axis in self.axes if axis not in used)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        if axis.spmd:
            # The mesh axes of the batch dim leave the region, and operands are pinned to them.
            region = self._without_axes(axis.spmd)
            pinned = [
                x if dim is None else self._pinned(x, dim, axis.spmd) for x, dim in zip(operands, dims, strict=True)
            ]
            return region.vmap(BatchAxis(axis.size, axis.name), pinned, dims)
        with self._bind_axes():
            program, out_dims = installed.transforms.vmap(self.program, axis, tuple(dims))
        in_dim_axes = [_insert_dim(dim_axes, dim) for dim_axes, dim in zip(self.in_dim_axes, dims, strict=True)]
        out_dim_axes = [_insert_dim(dim_axes, dim) for dim_axes, dim in zip(self.out_dim_axes, out_dims, strict=True)]
        return self.with_program(program, in_dim_axes, out_dim_axes)(*operands), out_dims

    def _without_axes(self, spmd: tuple[str, ...]) -> "Manual":
        """Return the region without these axes, which it must not use."""
        mesh = self.mesh.abstract
        for axis in spmd:
            if axis not in mesh.axis_names:
                why = mesh.unknown_axis_message(axis)
            elif any(axis in axes for dim_axes in (*self.in_dim_axes, *self.out_dim_axes) for axes in dim_axes):
                why = f"axis {axis!r} already shards its arguments or results"
            elif axis in self.program.axis_names or any(
                axis in equation.op.axes for equation in self.program.walk() if isinstance(equation.op, Manual)
            ):
                why = f"its collectives use axis {axis!r}"
            else:
                continue
            raise ShardingError(f"vmap with spmd_axis_name={spmd} is incompatible with a shard_map inside: {why}")
        kept = tuple(axis for axis in self.axes if axis not in spmd)
        parts = None if self.parts is None else tuple(self.mesh_axes[axis] for axis in kept)
        return replace(self, axes=kept, parts=parts)

    def _pinned(self, x: Any, dim: int, spmd: tuple[str, ...]) -> Any:
        """Pin `dim` of `x` to these axes; the other dims are open."""
        ndim = x.type.ndim
        dim_axes = tuple(spmd if d == dim else () for d in range(ndim))
        return Constrain(dim_axes, self.mesh, tuple(d for d in range(ndim) if d != dim))(x)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        """Run all devices of the region at once: each of its axes is a vmap, in which collectives are ordinary ops."""
        program = installed.transforms.erase_varying(installed.transforms.inline(self.program))
        stacks = [self._stack_shards(x, dim_axes) for x, dim_axes in zip(operands, self.in_dim_axes, strict=True)]
        for axis in reversed(self.axes):
            dims = tuple(0 if any(axis in axes for axes in dim_axes) else None for dim_axes in self.in_dim_axes)
            program, _ = installed.transforms.vmap(program, BatchAxis(self._extent((axis,)), axis), dims, True)
        results = evaluate(program, stacks)
        return tuple(self._join_shards(x, dim_axes) for x, dim_axes in zip(results, self.out_dim_axes, strict=True))

    def _stack_shards(self, x: NumpyArray, dim_axes: DimAxes) -> NumpyArray:
        """Split an array into shards, with a leading dim for each axis that shards it, ordered as the region's axes."""
        sizes: list[int] = []
        axis_dims: dict[str, int] = {}
        shard_dims = []
        for size, axes in zip(x.shape, dim_axes, strict=True):
            for axis in axes:
                axis_dims[axis] = len(sizes)
                sizes.append(self._extent((axis,)))
            shard_dims.append(len(sizes))
            sizes.append(size // self._extent(axes))
        order = [*(axis_dims[axis] for axis in self.axes if axis in axis_dims), *shard_dims]
        return x.reshape(sizes).transpose(order)

    def _join_shards(self, x: NumpyArray, dim_axes: DimAxes) -> NumpyArray:
        """Join shards, which have a leading dim for each axis of the region, to an array."""
        sharding = [axis for axes in dim_axes for axis in axes]
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


@final
class _Residual:
    """A residual of a linearized region: an operand, or a further result of the forward region.

    A residual that varies over axes becomes a result with a new leading dim, which these axes shard.

    Attributes:
        value: the residual inside the forward program.
        operand: the number of the operand, or None.
        dim_axes: the axes that shard each dim outside the region.
        reshape: the equation that adds the leading dim, or None.
    """

    def __init__(self, value: Value, operand: int | None, dim_axes: DimAxes, reshape: Equation | None):
        self.value = value
        self.operand = operand
        self.dim_axes = dim_axes
        self.reshape = reshape

    @staticmethod
    def of(region: Manual, forward: Program, value: Value) -> "_Residual":
        if value in forward.inputs:
            number = forward.inputs.index(value)
            return _Residual(value, number, region.in_dim_axes[number], None)
        axes = tuple(axis for axis in region.axes if axis in value.type.varying or not region.tracked)
        unsharded: DimAxes = ((),) * value.type.ndim
        if not axes:
            return _Residual(value, None, unsharded, None)
        shape = (1, *value.type.shape)
        reshape = Equation(Reshape(shape), [value], [Value(value.type.with_shape(shape))])
        return _Residual(value, None, (axes, *unsharded), reshape)

    @property
    def saved_value(self) -> Value:
        """The value that the forward region returns."""
        return self.reshape.outputs[0] if self.reshape else self.value


def _linear_program(linear: Program, residuals: Sequence[_Residual]) -> Program:
    """Return `linear` with saved residuals, which may have a leading dim of size 1, as its first inputs."""

    def body(*args: Any) -> Sequence[Any]:
        values = [
            Reshape(residual.value.type.shape)(x) if residual.reshape else x
            for residual, x in zip(residuals, args, strict=False)
        ]
        return Call(linear)(*values, *args[len(residuals) :])  # type: ignore[no-any-return]

    types = [*(residual.saved_value.type for residual in residuals), *linear.in_types[len(residuals) :]]
    return installed.transforms.rewrite(linear.name, types, body)


def _append_key_dims(dim_axes: Sequence[DimAxes], types: Sequence[ArrayType]) -> list[DimAxes]:
    """Add an unsharded dim for keys that have been replaced by their words, which need one more dim."""
    return [(*dims, *[()] * (type.ndim - len(dims))) for dims, type in zip(dim_axes, types, strict=True)]


def _select(items: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    return [item for item, selected in zip(items, mask, strict=True) if selected]


def _insert_dim(dim_axes: DimAxes, dim: int | None) -> DimAxes:
    """Insert an unsharded dim."""
    return dim_axes if dim is None else (*dim_axes[:dim], (), *dim_axes[dim:])
