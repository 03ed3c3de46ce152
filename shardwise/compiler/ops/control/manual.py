"""manual: a program over the pieces that devices hold, in which the user says what they send each other (shard_map).

A region has some axes of the mesh for its own. Its program is what one device does with its pieces, and the ops of
`named` in it are collectives along these axes; the other axes are planned, inside as outside. Values get in and out by
`split` and `join`: `ins` and `outs` have the axes that cut each dim.

`tracked`: types inside say over which axes of the region a value varies. Then what a result claims is proved, sums are
one value for all, and derivatives send no more than they must. Where nothing is tracked, a result that is not cut along
an axis is taken from any device along it, and derivatives suppose that all had the same.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
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

Cuts = tuple[tuple[str, ...], ...]  # for each dim, the axes of the region that cut it


@final
@record
class Manual(Control):
    """`program`, of one device, on pieces of the operands; its results are pieces of the op's.

    `parts`: the axes of `mesh` that each of `axes` is made of, where it is on a finer mesh than the user named.
    """

    name = "manual"
    program: Program
    mesh: Mesh | AbstractMesh
    axes: tuple[str, ...]
    ins: tuple[Cuts, ...]
    outs: tuple[Cuts, ...]
    tracked: bool = True
    parts: tuple[tuple[str, ...], ...] | None = None

    @property
    def programs(self) -> tuple[Program, ...]:
        return (self.program,)

    @property
    def axis_names(self) -> frozenset[Any]:
        return self.program.axis_names - frozenset(self.axes)

    @cached_property
    def named(self) -> Mapping[str, tuple[str, ...]]:
        """The axes of the mesh that each axis of the region is made of."""
        parts = [(axis,) for axis in self.axes] if self.parts is None else self.parts
        return dict(zip(self.axes, parts, strict=True))

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """One group a binding: each has cuts of its own. One more is for what gets in whole."""
        given = enumerate(self.ins)
        return (
            *(Binding(n, Split(*self._cut(cuts)), (operand(n),), (entry(n),)) for n, cuts in given),
            *(
                Binding(len(self.ins) + n, Join(*self._cut(cuts)[:2], self.axes), (exit_(n),), (result(n),))
                for n, cuts in enumerate(self.outs)
            ),
        )

    def _cut(self, cuts: Cuts) -> tuple[Cuts, tuple[int, ...], tuple[str, ...]]:
        """The axes of the mesh that cut each dim, into how many, and over which axes pieces vary."""
        names = tuple(axis for axes in cuts for axis in axes) if self.tracked else ()
        dims = tuple(tuple(part for axis in axes for part in self.named[axis]) for axes in cuts)
        return dims, tuple(self._extent(axes) for axes in cuts), names

    def _extent(self, axes: Sequence[str]) -> int:
        sizes = self.mesh.shape
        return int(np.prod([sizes[part] for axis in axes for part in self.named[axis]], dtype=np.int64))

    @property
    def const_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return ((len(self.ins) + len(self.outs), (0,)),)

    def with_programs(self, programs: Sequence[Program], counts: Sequence[int] | None = None) -> "Manual":
        (program,) = programs
        if counts is None:
            return self.of(program, _as_words(self.ins, program.in_types), _as_words(self.outs, program.out_types))
        often = [*counts, *[0] * (len(self.ins) + len(self.outs) + 1 - len(counts))]
        ins = [cuts for cuts, count in zip(self.ins, often, strict=False) for _ in range(count)]
        outs = [cuts for cuts, count in zip(self.outs, often[len(self.ins) :], strict=False) for _ in range(count)]
        ins += [((),) * type.ndim for type in program.in_types[len(ins) :]]
        return self.of(program, ins, outs)

    def of(self, program: Program, ins: Sequence[Cuts], outs: Sequence[Cuts]) -> "Manual":
        """The same region with another program."""
        return Manual(program, self.mesh, self.axes, tuple(ins), tuple(outs), self.tracked, self.parts)

    def on(self, mesh: Mesh | AbstractMesh, made_of: Mapping[str, tuple[str, ...]], program: Program) -> "Manual":
        """The same region on a finer mesh, whose axes those of the mesh so far are made of."""
        parts = tuple(tuple(fine for part in self.named[axis] for fine in made_of[part]) for axis in self.axes)
        return Manual(program, mesh, self.axes, self.ins, self.outs, self.tracked, parts)

    def _naming(self) -> AbstractContextManager[None]:
        """While its program is rewritten: a user's rule in it may compute along its axes."""
        sizes = {axis: self._extent((axis,)) for axis in self.axes}
        return bind_axis_names(sizes, frozenset(self.axes) if self.tracked else frozenset())

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        with self._naming():
            return super().jvp(primals, tangents)

    def linearize(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        with self._naming():
            forward, linear, moving = installed.transforms.linearize(self.program, present_mask(tangents))
        count = len(self.program.outputs)
        kept = [_Residual.of(self, forward, value) for value in forward.outputs[count:]]
        made = [residual for residual in kept if residual.operand is None]
        first = Program(
            forward.inputs,
            (*forward.equations, *(residual.equation for residual in made if residual.equation)),
            (*forward.outputs[:count], *(residual.given for residual in made)),
            forward.name,
        )
        results = self.of(first, self.ins, [*self.outs, *(residual.cuts for residual in made)])(*primals)
        rest = iter(results[count:])
        residuals = [next(rest) if residual.operand is None else primals[residual.operand] for residual in kept]

        def body(*args: Any) -> Sequence[Any]:
            taken = [
                Reshape(residual.value.type.shape)(x) if residual.equation else x
                for residual, x in zip(kept, args, strict=False)
            ]
            return Call(linear)(*taken, *args[len(kept) :])  # type: ignore[no-any-return]

        types = [*(residual.given.type for residual in kept), *linear.in_types[len(kept) :]]
        second = installed.transforms.rewrite(linear.name, types, body)
        ins = [*(residual.cuts for residual in kept), *_marked(self.ins, present_mask(tangents))]
        moved = self.of(second, ins, _marked(self.outs, moving))(*residuals, *drop_none(tangents))
        return results[:count], insert_none(moved, moving)

    def transpose(self, cotangent: Any, *operands: Any) -> tuple[Any, ...]:
        linear = tuple(isinstance(x, UndefinedPrimal) for x in operands)
        arrived = present_mask(cotangent)
        with self._naming():
            program, moving = installed.transforms.transpose(self.program, linear, arrived)
        known = [x for x in operands if not isinstance(x, UndefinedPrimal)]
        ins = [*_marked(self.ins, [not is_linear for is_linear in linear]), *_marked(self.outs, arrived)]
        outs = _marked(_marked(self.ins, linear), moving)
        if not self.tracked:
            program = self._supposing_copies(program, len(known), ins, outs)
        found = self.of(program, ins, outs)(*known, *drop_none(cotangent))
        return tuple(insert_none(insert_none(found, moving), linear))

    def _supposing_copies(self, program: Program, known: int, ins: Sequence[Cuts], outs: Sequence[Cuts]) -> Program:
        """A transposed program whose cotangents arrive as shares, and leave as sums, of what all devices along an axis
        are supposed to have alike."""

        def body(*args: Any) -> list[Any]:
            shares = [
                Div()(x, full_like(x, self._extent(self._uncut(cuts))))
                for x, cuts in zip(args[known:], ins[known:], strict=True)
            ]
            found = Call(program)(*args[:known], *shares)
            return [
                NamedSum(self._uncut(cuts))(x) if self._uncut(cuts) else x for x, cuts in zip(found, outs, strict=True)
            ]

        return installed.transforms.rewrite(program.name, program.in_types, body)

    def _uncut(self, cuts: Cuts) -> tuple[str, ...]:
        """The axes of the region that do not cut a value."""
        cut = {axis for axes in cuts for axis in axes}
        return tuple(axis for axis in self.axes if axis not in cut)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        if axis.spmd:
            # The mesh axes of the new dim are no longer the region's, and operands are pinned to them.
            region = self._giving_up(axis.spmd)
            pinned = [
                x if dim is None else self._pinned(x, dim, axis.spmd) for x, dim in zip(operands, dims, strict=True)
            ]
            return region.vmap(BatchAxis(axis.size, axis.name), pinned, dims)
        with self._naming():
            program, out_dims = installed.transforms.vmap(self.program, axis, tuple(dims))
        ins = [_with_dim(cuts, dim) for cuts, dim in zip(self.ins, dims, strict=True)]
        outs = [_with_dim(cuts, dim) for cuts, dim in zip(self.outs, out_dims, strict=True)]
        return self.of(program, ins, outs)(*operands), out_dims

    def _giving_up(self, spmd: tuple[str, ...]) -> "Manual":
        """The same region without these axes, which must be of no use to it."""
        mesh = self.mesh.abstract
        for axis in spmd:
            if axis not in mesh.axis_names:
                why = mesh.unknown_axis_message(axis)
            elif any(axis in axes for cuts in (*self.ins, *self.outs) for axes in cuts):
                why = f"axis {axis!r} cuts its arguments or results already"
            elif axis in self.program.axis_names or any(
                axis in at.op.axes for at in self.program.walk() if isinstance(at.op, Manual)
            ):
                why = f"it computes along axis {axis!r}"
            else:
                continue
            raise ShardingError(f"vmap with spmd_axis_name={spmd} does not fit the shard_map inside: {why}")
        kept = tuple(axis for axis in self.axes if axis not in spmd)
        parts = None if self.parts is None else tuple(self.named[axis] for axis in kept)
        return Manual(self.program, self.mesh, kept, self.ins, self.outs, self.tracked, parts)

    def _pinned(self, x: Any, dim: int, spmd: tuple[str, ...]) -> Any:
        """`x` with `dim` cut by these axes, and its other dims as they may be."""
        ndim = x.type.ndim
        cuts = tuple(spmd if d == dim else () for d in range(ndim))
        return Constrain(cuts, self.mesh, tuple(d for d in range(ndim) if d != dim))(x)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        """The members of the region side by side: each of its axes is a vmap, in which collectives are ordinary ops."""
        program = installed.transforms.erase_varying(installed.transforms.inline(self.program))
        stacks = [self._stacked(x, cuts) for x, cuts in zip(operands, self.ins, strict=True)]
        for axis in reversed(self.axes):
            dims = tuple(0 if any(axis in axes for axes in cuts) else None for cuts in self.ins)
            program, _ = installed.transforms.vmap(program, BatchAxis(self._extent((axis,)), axis), dims, True)
        found = evaluate(program, stacks)
        return tuple(self._joined(x, cuts) for x, cuts in zip(found, self.outs, strict=True))

    def _stacked(self, x: NumpyArray, cuts: Cuts) -> NumpyArray:
        """A whole array as its pieces: a dim in front for each axis that cuts it, in the order of the region's."""
        sizes: list[int] = []
        at: dict[str, int] = {}
        kept = []
        for size, axes in zip(x.shape, cuts, strict=True):
            for axis in axes:
                at[axis] = len(sizes)
                sizes.append(self._extent((axis,)))
            kept.append(len(sizes))
            sizes.append(size // self._extent(axes))
        order = [*(at[axis] for axis in self.axes if axis in at), *kept]
        return x.reshape(sizes).transpose(order)

    def _joined(self, x: NumpyArray, cuts: Cuts) -> NumpyArray:
        """The whole of pieces that have a dim in front for each axis of the region."""
        cut = [axis for axes in cuts for axis in axes]
        pieces = x[tuple(slice(None) if axis in cut else 0 for axis in self.axes)]
        front = [axis for axis in self.axes if axis in cut]
        order = [
            place
            for dim, axes in enumerate(cuts)
            for place in (*(front.index(axis) for axis in axes), len(front) + dim)
        ]
        shape = x.shape[len(self.axes) :]
        return pieces.transpose(order).reshape(
            [size * self._extent(axes) for size, axes in zip(shape, cuts, strict=True)]
        )


@final
class _Residual:
    """What a derivative needs of the forward half: an operand that is there anyway, or one more result of it.

    Each device's own is a slice along a new dim in front, which all axes cut over which it varies.
    """

    def __init__(self, value: Value, operand: int | None, cuts: Cuts, equation: Equation | None):
        self.value = value
        self.operand = operand
        self.cuts = cuts
        self.equation = equation

    @staticmethod
    def of(region: Manual, forward: Program, value: Value) -> "_Residual":
        if value in forward.inputs:
            place = forward.inputs.index(value)
            return _Residual(value, place, region.ins[place], None)
        axes = tuple(axis for axis in region.axes if axis in value.type.varying or not region.tracked)
        whole: Cuts = ((),) * value.type.ndim
        if not axes:
            return _Residual(value, None, whole, None)
        shape = (1, *value.type.shape)
        return _Residual(
            value, None, (axes, *whole), Equation(Reshape(shape), [value], [Value(value.type.with_shape(shape))])
        )

    @property
    def given(self) -> Value:
        """The result of the forward half."""
        return self.equation.outputs[0] if self.equation else self.value


def _as_words(cuts: Sequence[Cuts], types: Sequence[ArrayType]) -> list[Cuts]:
    """The cuts, where keys have become their words, along one more dim."""
    return [(*dims, *[()] * (type.ndim - len(dims))) for dims, type in zip(cuts, types, strict=True)]


def _marked(items: Sequence[Any], marks: Sequence[bool]) -> list[Any]:
    return [item for item, marked in zip(items, marks, strict=True) if marked]


def _with_dim(cuts: Cuts, dim: int | None) -> Cuts:
    """The cuts with a new dim that nothing cuts."""
    return cuts if dim is None else (*cuts[:dim], (), *cuts[dim:])
