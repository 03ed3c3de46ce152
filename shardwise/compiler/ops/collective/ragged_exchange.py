"""Ragged all-to-all: members send slices of rows whose sizes are computed at run time.

named_ragged_all_to_all   over named axes, the op of `lax.ragged_all_to_all`; see `named` for members
ragged_all_to_all         between devices, in local programs

Operands are the rows to send (`x`), the array that received rows replace (`output`), and four arrays of integers with
one element per slice: the first row of the slice in `x`, its number of rows, the row of the receiver's `output` at
which it is written, and the number of rows of each received slice. With k slices and n members, each member receives
k/n consecutive slices. Rows outside `x` or `output` are not sent. Where received slices overlap, the last one wins.

On GPUs and TPUs it is XLA's ragged-all-to-all. XLA's CPU backend does not implement it, so every device gathers the
rows of all devices and selects the rows that are sent to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, TypeAlias, final

import numpy as np

from shardwise.compiler.dtypes import DTypeLike, is_integer
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op, Primal, UndefinedPrimal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType, Scalar
from shardwise.compiler.ops.collective.collectives import AllGather, AllToAll, Collective, Groups
from shardwise.compiler.ops.collective.named import mesh_axes_of
from shardwise.compiler.ops.collective.named_exchange import NamedAllToAll, NamedExchangeOp
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Sub
from shardwise.compiler.ops.elementwise.bitwise import And
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.compiler.ops.indexing.gather import Gather
from shardwise.compiler.ops.reduce.broadcast import Broadcast, batch_dim_at
from shardwise.compiler.ops.reduce.reductions import ReduceMax, ReduceOr
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.ops.shape.constants import Full, full, zeros_like
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.ops.shape.slicing import Concatenate, slice_along
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import Traffic, all_to_all

_NATIVE_PLATFORMS = ("cuda", "rocm", "tpu")

Apply = Callable[..., Any]  # (op, *operands) → result: in a frame, or in an HLO builder
_Value: TypeAlias = Operand | HloValue


@final
@record
class RaggedAllToAll(Collective):
    """Ragged all-to-all between the devices along `axes`; `count` is the number of devices of a group.

    `rows` is the number of rows for the cost model: the rows of `x`, but at most the rows of `output`.
    """

    name = "ragged_all_to_all"
    axes: tuple[str, ...]
    count: int
    rows: int
    groups: Groups | None = field(default=None, repr=False)

    def out_type(self, x: ArrayType, output: ArrayType, *slices: ArrayType) -> ArrayType:
        return _check_types(self.name, self.count, x, output, slices)

    def exchange(self, mesh: AbstractMesh, *operands: Sequence[NumpyArray]) -> list[NumpyArray]:
        xs, outputs, starts, sizes, places, _ = operands
        results = [output.copy() for output in outputs]
        per_device = starts[0].size // self.count
        for row in mesh.groups(self.axes, self.groups):
            for position, receiver in enumerate(row):
                for sender in row:
                    for index in range(position * per_device, (position + 1) * per_device):
                        start, size, place = (int(array[sender][index]) for array in (starts, sizes, places))
                        rows = np.arange(size)
                        inside = (start + rows >= 0) & (start + rows < len(xs[sender]))
                        inside &= (place + rows >= 0) & (place + rows < len(results[receiver]))
                        results[receiver][place + rows[inside]] = xs[sender][start + rows[inside]]
        return results

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        """Return the traffic of a device that sends each of `rows` rows once, evenly distributed over the devices."""
        row_bytes = operand.nbytes / operand.shape[0] if operand.shape[0] else 0
        return all_to_all(self.rows * row_bytes, self.count)

    def lower(self, hlo: Hlo, x: HloValue, output: HloValue, *slices: HloValue) -> Any:
        if not x.type.size:
            return output
        if hlo.platform in _NATIVE_PLATFORMS:
            # XLA's converter crashes without a channel.
            attributes = (
                'call_target_name = "ragged_all_to_all", api_version = 4 : i32, backend_config = '
                f"{{replica_groups = {hlo.groups(self.axes, self.groups)}, channel_id = {hlo.channel} : i64}}"
            )
            return hlo.op("stablehlo.custom_call", (x, output, *slices), output.type, attributes)

        def apply(op: Op, *operands: HloValue) -> Any:
            return op.lower(hlo, *operands)

        rows = apply(AllGather(0, self.axes, self.count, self.groups), x)
        # The first row, the number of rows and the target row of each slice that this device receives.
        exchange = AllToAll(0, 0, self.axes, self.count, self.groups)
        starts, sizes, places = (apply(exchange, each) for each in slices[:3])
        return _take_slices(apply, rows, output, starts, sizes, places, self.count)


@final
@record
class NamedRaggedAllToAll(NamedExchangeOp):
    """Ragged all-to-all between the members along `axes`, of these `sizes`. It is linear in its first two operands.

    Its transpose sends the slices back. It is exact if the slices of `x` do not overlap.
    """

    name = "named_ragged_all_to_all"
    groups: Groups | None = field(default=None, repr=False)

    def out_type(self, x: ArrayType, output: ArrayType, *slices: ArrayType) -> ArrayType:
        return _check_types("ragged_all_to_all", self.count, x, output, slices)

    def factors(self, x: ArrayType, output: ArrayType, *slices: ArrayType) -> FactorRule:  # type: ignore[override]
        rows, out_rows, each = 0, 1, 2  # need replication; the other dims pass through
        rest = tuple((dim + 2,) for dim in range(1, x.ndim))
        operands = (((rows,), *rest), ((out_rows,), *rest), *[((each,),)] * 4)
        sizes = (x.shape[0], output.shape[0], slices[0].shape[0], *x.shape[1:])
        return FactorRule(operands, (((out_rows,), *rest),), sizes, need_replication=frozenset((rows, out_rows, each)))

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0, 1),)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        rows = min(operand.type.shape[0] for operand in operands[:2])
        return RaggedAllToAll(mesh_axes_of(context, self.axes), self.count, rows, self.groups)(*operands)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        x, output, *slices = primals
        pairs = zip((x, output), tangents[:2], strict=True)
        dx, d_output = (zeros_like(primal) if tangent is None else tangent for primal, tangent in pairs)
        both_zero = tangents[0] is None and tangents[1] is None
        return self(*primals), None if both_zero else self(dx, d_output, *slices)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        x, output, starts, sent, places, received = operands
        exchange = NamedAllToAll(self.axes, self.sizes, 0, 0, self.groups)
        shape = (self.count, starts.type.size // self.count)
        # The rows where this member received the slices, and the rows where their senders had them.
        own_places, origins = (Reshape(starts.type.shape)(exchange(Reshape(shape)(each))) for each in (places, starts))
        x_cotangent = output_cotangent = None
        if isinstance(x, UndefinedPrimal):
            zeros = full(x.type.shape, 0, cotangent.type.dtype)
            x_cotangent = self(cotangent, zeros, own_places, received, origins, sent)
        if isinstance(output, UndefinedPrimal):
            shape = (output.type.shape[0], starts.type.size)
            inside = _within(_call, _row_offsets(_call, shape, own_places), Broadcast(shape, (1,))(received))
            is_received = Broadcast(cotangent.type.shape, (0,))(ReduceOr((1,))(inside))
            output_cotangent = Select()(is_received, zeros_like(cotangent), cotangent)
        return x_cotangent, output_cotangent, None, None, None, None

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        x, output = (batch_dim_at(each, dim, 0, axis.size) for each, dim in zip(operands[:2], dims[:2], strict=True))
        slices = [batch_dim_at(each, dim, 1, axis.size) for each, dim in zip(operands[2:], dims[2:], strict=True)]
        if axis.name in self.axes:
            return self._along_dim(x, output, *slices), 0
        # The arrays of all batch elements are concatenated, with the slices of each member adjacent.
        starts, sent, places, received = slices
        starts, places = (_shift_rows(each, array.type.shape[1]) for each, array in ((starts, x), (places, output)))
        merged = [
            Reshape((each.type.shape[0] * each.type.shape[1], *each.type.shape[2:]))(each) for each in (x, output)
        ]
        flat = [Reshape((each.type.size,))(each) for each in (starts, sent, places, received)]
        return Reshape(output.type.shape)(self(*merged, *flat)), 0

    def _along_dim(self, x: Operand, output: Operand, *slices: Operand) -> Any:
        """Compute the op if dim 0 of `x` and `output`, and dim 1 of the slices, is the dim of all members."""
        if len(self.axes) > 1 or self.groups:
            raise NotImplementedError(
                "ragged_all_to_all: vmap over the axis needs it to be the only axis, without axis_index_groups"
            )
        count = self.count
        rows = Reshape((count * x.type.shape[1], *x.type.shape[2:]))(x)
        results = []
        per_member = slices[0].type.shape[0] // count
        for member in range(count):
            own = [slice_along(each, 0, member * per_member, (member + 1) * per_member) for each in slices[:3]]
            starts, sizes, places = (Reshape((count * per_member,))(batch_dim_at(each, 1, 0, count)) for each in own)
            target = Reshape(output.type.shape[1:])(slice_along(output, 0, member, member + 1))
            taken = _take_slices(_call, rows, target, starts, sizes, places, count)
            results.append(Reshape((1, *taken.type.shape))(taken))
        return Concatenate(0)(*results)


def _call(op: Op, *operands: Operand) -> Any:
    return op(*operands)


def _take_slices(
    apply: Apply, rows: _Value, output: _Value, starts: _Value, sizes: _Value, places: _Value, senders: int
) -> Any:
    """Return `output` with slices of `rows` written into it.

    Args:
        apply: applies an op.
        rows: the rows of all senders, concatenated.
        output: the array to write into.
        starts: the first row of each slice, among the rows of its sender.
        sizes: the number of rows of each slice.
        places: the row of `output` at which each slice is written.
        senders: the number of senders, each of which has the same number of consecutive slices.
    """
    count, dtype = starts.type.size, starts.type.dtype
    per_sender = rows.type.shape[0] // senders
    shape = (output.type.shape[0], count)
    offset = _row_offsets(apply, shape, places)
    row = apply(Add(), offset, apply(Broadcast(shape, (1,)), starts))
    inside = _within(apply, offset, apply(Broadcast(shape, (1,)), sizes))
    inside = apply(And(), inside, _within(apply, row, _constant(apply, shape, per_sender, dtype)))
    number = apply(Iota(shape, 1, dtype))
    last = apply(ReduceMax((1,)), apply(Select(), inside, number, _constant(apply, shape, -1, dtype)))
    # The rows of all senders are concatenated.
    by_sender = (senders, count // senders)
    base = apply(Mul(), apply(Iota(by_sender, 0, dtype)), _constant(apply, by_sender, per_sender, dtype))
    row = apply(Add(), row, apply(Broadcast(shape, (1,)), apply(Reshape((count,)), base)))
    is_last = apply(Compare("EQ"), number, apply(Broadcast(shape, (0,)), last))
    index = apply(Sum((1,)), apply(Select(), is_last, row, _constant(apply, shape, 0, dtype)))
    gather = Gather(
        window=tuple(range(1, rows.type.ndim)),
        collapsed=(0,),
        batch=(),
        index_batch=(),
        mapped=(0,),
        sizes=(1, *rows.type.shape[1:]),
    )
    taken = apply(gather, rows, apply(Reshape((shape[0], 1)), index))
    is_received = apply(Compare("GE"), last, _constant(apply, shape[:1], 0, dtype))
    return apply(Select(), apply(Broadcast(output.type.shape, (0,)), is_received), taken, output)


def _row_offsets(apply: Apply, shape: tuple[int, int], places: _Value) -> Any:
    """Return the distance of each row from the target row of each slice, [row, slice]."""
    return apply(Sub(), apply(Iota(shape, 0, places.type.dtype)), apply(Broadcast(shape, (1,)), places))


def _within(apply: Apply, index: _Value, size: _Value) -> Any:
    """Return whether 0 <= index < size."""
    zero = _constant(apply, index.type.shape, 0, index.type.dtype)
    return apply(And(), apply(Compare("LE"), zero, index), apply(Compare("LT"), index, size))


def _constant(apply: Apply, shape: tuple[int, ...], value: int, dtype: DTypeLike) -> Any:
    return apply(Full(shape, Scalar.from_value(value, dtype)))


def _shift_rows(slices: Operand, rows: int) -> Any:
    """Add the first row of each batch element to [slice, batch element], if each batch element has `rows` rows."""
    index = Iota(slices.type.shape, 1, slices.type.dtype)()
    return (Expr(slices) + Expr(index) * rows).array


def _check_types(name: str, count: int, x: ArrayType, output: ArrayType, slices: Sequence[ArrayType]) -> ArrayType:
    """Return the type of the result, which is the type of `output`.

    Raises:
        TypeError: if the types of the operands do not agree.
    """
    if not x.ndim or x.dtype != output.dtype or x.shape[1:] != output.shape[1:] or x.ndim != output.ndim:
        raise TypeError(
            f"{name}: operand {x} and output {output} must be arrays of rows, of equal dtypes and equal sizes of all "
            "dims but the first"
        )
    names = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")
    for label, type in zip(names, slices, strict=True):
        if not is_integer(type.dtype) or type.ndim != 1:
            raise TypeError(f"{name}: {label} must be integers, one per slice, not {type}")
    if len({(type.shape, type.dtype) for type in slices}) != 1:
        listed = ", ".join(f"{label} {type}" for label, type in zip(names, slices, strict=True))
        raise TypeError(f"{name}: {listed} must have equal sizes and dtypes")
    if not slices[0].size or slices[0].size % count:
        raise TypeError(
            f"{name}: the number of slices, {slices[0].size}, must be a multiple of the number of members, {count}: "
            "each member gets as many"
        )
    return output.strong()
