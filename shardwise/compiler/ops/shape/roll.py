"""Roll along a dim: elements that leave one end enter at the other.

If the dim is evenly sharded, the devices form a ring and permute blocks (`rotate`). Pipelines whose stages are sharded
over devices shift their microbatches this way, with one message per device. Otherwise devices exchange windows.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.ir.jax_checks import check_divisible
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.ops.collective.exchange_windows import ExchangeWindows, Source, Window
from shardwise.compiler.ops.shape.lower_dim import lower_concatenate, lower_slice, resize_dim
from shardwise.compiler.ops.shape.movement import MovementOp
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import Traffic, one_hop


@final
@record
class Roll(MovementOp):
    """Move element i along `dim` to `i + by`, modulo the size."""

    name = "roll"
    dim: int
    by: int

    def out_type(self, x: ArrayType) -> ArrayType:
        if not 0 <= self.dim < x.ndim:
            raise TypeError(f"roll: dim {self.dim} does not exist in {x}")
        if not 0 <= self.by < max(1, x.shape[self.dim]):
            raise TypeError(
                f"roll: the shift {self.by} is not in the range of dim {self.dim} of {x}; take it modulo the size"
            )
        return x

    def factors(self, x: ArrayType) -> FactorRule:
        dims = tuple((dim,) for dim in range(x.ndim))
        return FactorRule((dims,), (dims,), x.shape, exchange=frozenset({self.dim}))

    def check_as_jax(self, x: ArrayType) -> None:  # JAX concatenates two slices
        for size in (self.by, x.shape[self.dim] - self.by):
            check_divisible(self.name, x, (*x.shape[: self.dim], size, *x.shape[self.dim + 1 :]))

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        (x,) = operands
        axes, count = context.sharding_of(self.dim)
        if not axes:
            return self(x)
        size, shard_size = context.global_types[0].shape[self.dim], x.type.shape[self.dim]
        if shard_size * count == size and context.out_shapes[0][self.dim] == shard_size:
            return Rotate(self.dim, axes, count, self.by)(x)
        return self._exchange(axes, count, size, shard_size, context.out_shapes[0][self.dim])(x)

    def _exchange(
        self, axes: tuple[str, ...], count: int, size: int, shard_size: int, out_size: int
    ) -> ExchangeWindows:
        """Return the exchange of an unevenly sharded array: elements that do not wrap around, then elements that do."""
        sources = Source(0, shard_size, size - self.by, self.by), Source(0, shard_size, size, self.by - size)
        return ExchangeWindows(self.dim, axes, count, sources, (Window(0, out_size, out_size),))

    def exchanged_bytes(self, factor: int, count: int, *types: ArrayType) -> float:
        (x,) = types
        size = x.shape[factor]
        shard = resize_dim(x, factor, -(-size // count))
        if size % count:
            rows = shard.shape[factor]
            return self._exchange((), count, size, rows, rows).bytes_sent_of_shard(shard)
        return Rotate(factor, (), count, self.by).bytes_sent_of_shard(shard)

    def transpose(self, cotangent: Operand, *operands: Primal) -> tuple[Any, ...]:
        return (Roll(self.dim, -self.by % max(1, cotangent.type.shape[self.dim]))(cotangent),)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        (dim,) = dims
        assert dim is not None
        return Roll(self.dim + (self.dim >= dim), self.by)(*operands), dim

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        return _lower_roll(hlo, x, self.dim, x.type.shape[self.dim] - self.by)

    def reference(self, x: NumpyArray) -> NumpyArray:
        return np.roll(x, self.by, self.dim)


@final
@record
class Ring:
    """A ring permutation: device k along `axes` receives from device k + `distance`, modulo the number of devices."""

    axes: tuple[str, ...]
    distance: int

    def pairs(self, mesh: AbstractMesh) -> NumpyArray:
        """Return the (source, target) pair of every message."""
        groups = np.asarray(mesh.groups(self.axes))
        return np.stack([np.roll(groups, -self.distance, 1), groups], -1).reshape(-1, 2)


@final
@record
class Rotate(Collective):
    """Roll an array that is sharded into `count` equal shards along `dim`. The operand is this device's shard."""

    name = "rotate"
    dim: int
    axes: tuple[str, ...]
    count: int
    by: int

    def out_type(self, x: ArrayType) -> ArrayType:
        return x

    def exchange(self, mesh: AbstractMesh, shards: Sequence[NumpyArray]) -> list[NumpyArray]:
        out: list[Any] = [None] * mesh.device_count
        for group in mesh.groups(self.axes):
            array = np.concatenate([shards[device] for device in group], self.dim)
            rolled = np.split(np.roll(array, self.by, self.dim), self.count, self.dim)
            for device, shard in zip(group, rolled, strict=True):
                out[device] = shard
        return out

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        return one_hop(self.bytes_sent_of_shard(operand))

    def bytes_sent_of_shard(self, shard: ArrayType) -> float:
        """Return the bytes that one device sends if its shard has this type."""
        rows = shard.shape[self.dim]
        return sum(shard.nbytes * (stop - start) / rows for distance, start, stop in self._parts(rows) if distance)

    def _parts(self, rows: int) -> list[tuple[int, int, int]]:
        """Return the blocks of the new shard in order: the distance of the source device, and the start and stop."""
        if not rows:
            return []
        away, start = divmod(-self.by % (rows * self.count), rows)
        parts = [(away, start, rows), ((away + 1) % self.count, 0, start)]
        return [part for part in parts if part[1] < part[2]]

    def lower(self, hlo: Hlo, x: HloValue) -> Any:
        blocks = []
        for distance, start, stop in self._parts(x.type.shape[self.dim]):
            part = lower_slice(hlo, x, self.dim, start, stop)
            if distance:
                pairs = hlo.pair_attributes(Ring(self.axes, distance))
                part = hlo.op("stablehlo.collective_permute", (part,), part.type, pairs)
            blocks.append(part)
        return lower_concatenate(hlo, blocks or [x], self.dim)


def _lower_roll(hlo: Hlo, x: HloValue, dim: int, start: int) -> Any:
    """Emit the elements along `dim` from `start` on, then the elements before `start`."""
    size = x.type.shape[dim]
    parts = [lower_slice(hlo, x, dim, *ends) for ends in ((start, size), (0, start)) if ends[0] < ends[1]]
    return lower_concatenate(hlo, parts or [x], dim)
