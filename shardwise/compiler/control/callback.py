"""callback: call a Python function on the host from a running program.

On several devices the function is called once, on the first device, with replicated operands; all devices then receive
its results. In local programs this is the op `call_once`. In a manual region the function is called once per device of
the region, with that device's shards. With `partitioned`, every device calls it with its shards outside regions too.
"""

from collections.abc import Sequence
from typing import Any, Protocol, final

import numpy as np

from shardwise.compiler.control.scan import vmap_by_scan
from shardwise.compiler.control.vectorized_call import batch_operands
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.collective.collectives import Collective
from shardwise.compiler.ops.elementwise.select import lower_compare
from shardwise.compiler.reduction import SUM
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.traffic import Traffic, all_reduce


class HostFunction(Protocol):
    """A Python function from numpy arrays to numpy arrays. It compares by identity."""

    @property
    def name(self) -> str: ...
    def __call__(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]: ...


@final
class _Trimmed:
    """A host function of padded shards, which removes their padding along uneven dims and calls `function`.

    After `count` shards, each further operand is the start of a shard along an uneven dim. `uneven` has, for each of
    them, the index of the shard's operand, the dim, and the dim's global size.
    """

    def __init__(self, function: HostFunction, count: int, uneven: tuple[tuple[int, int, int], ...]):
        self.function, self.count, self.uneven = function, count, uneven

    @property
    def name(self) -> str:
        return self.function.name

    def __call__(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        shards = list(operands[: self.count])
        for (number, dim, size), start in zip(self.uneven, operands[self.count :], strict=True):
            held = min(max(size - int(start), 0), shards[number].shape[dim])
            shards[number] = shards[number].take(range(held), dim)
        return self.function(*shards)


@final
@record
class Callback(Op):
    """A call of `function`, which returns arrays of the types `results`.

    Attributes:
        function: the function on the host.
        results: the types of its results.
        kind: "pure" (may be called any number of times); "unordered" or "ordered" (called exactly once, in any order or
            in program order); "watch" or "ordered_watch" (the same for a function without results, which derivatives
            ignore).
        vectorized: how vmap calls a pure function: "" (one slice at a time), "expand_dims" (unbatched operands get a
            leading dim of size 1), "broadcast_all" (unbatched operands are broadcast), "unsupported" (an error).
        partitioned: whether every device calls the function, which has no results, with its own shards.
    """

    name = "callback"
    single = False
    function: HostFunction
    results: tuple[ArrayType, ...]
    kind: str
    vectorized: str = ""
    partitioned: bool = False

    @property
    def effect(self) -> str:
        return {"pure": "", "unordered": "unordered", "watch": "unordered"}.get(self.kind, "ordered")

    @property
    def is_debugging(self) -> bool:
        """Whether it is a `debug.callback`, which derivatives ignore."""
        return self.kind in ("watch", "ordered_watch")

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return self.results

    def factors(self, *types: ArrayType) -> FactorRule:
        """All dims must be replicated, because the function may read every element, unless it accepts shards."""
        sizes = [size for type in (*types, *self.results) for size in type.shape]
        numbers = iter(range(len(sizes)))

        def dims(types: Sequence[ArrayType]) -> tuple[Dims, ...]:
            return tuple(tuple((next(numbers),) for _ in type.shape) for type in types)

        replicated = frozenset() if self.partitioned else frozenset(range(len(sizes)))
        return FactorRule(dims(types), dims(self.results), tuple(sizes), need_replication=replicated)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        if self.partitioned:
            return self._without_padding(context, operands)
        return CallOnce(self, context.auto_axes)(*operands) if context.auto_axes else self(*operands)

    def _without_padding(self, context: LocalContext, operands: Sequence[Any]) -> Any:
        """Call the function with this device's shards, whose padding is removed on the host.

        The starts of the shards along uneven dims are passed as further operands.
        """
        uneven, starts = [], []
        for index, (x, type) in enumerate(zip(operands, context.global_types, strict=True)):
            for dim, size in enumerate(type.shape):
                _, count = context.sharding_of(dim, index)
                if x.type.shape[dim] * count != size:
                    uneven.append((index, dim, size))
                    starts.append(context.offset(dim, np.int32, index))
        function = _Trimmed(self.function, len(operands), tuple(uneven)) if uneven else self.function
        return Callback(function, self.results, self.kind, self.vectorized, True)(*operands, *starts)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        if not self.is_debugging:
            name = "pure_callback" if self.kind == "pure" else "io_callback"
            raise ValueError(
                f"{name}: cannot differentiate `{self.function.name}`, a Python function on the host. Wrap the "
                "callback in custom_jvp or custom_vjp with a derivative rule, or use stop_gradient."
            )
        return self(*primals), ()

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        if self.vectorized == "unsupported":
            raise NotImplementedError(
                f"pure_callback: vmap of `{self.function.name}` needs a vmap_method: 'sequential', "
                "'sequential_unrolled', 'expand_dims' or 'broadcast_all'"
            )
        if not self.vectorized or self.effect:
            return vmap_by_scan(self, axis, operands, dims)
        batched = batch_operands(self.vectorized, axis, operands, dims)
        results = tuple(type.with_shape((axis.size, *type.shape)) for type in self.results)
        batched_op = Callback(self.function, results, self.kind, self.vectorized, self.partitioned)
        return batched_op(*batched), [0] * len(results)

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        return hlo.callback(self.function, operands, self.results, self.effect)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return self.function(*operands)


@final
@record
class CallOnce(Collective):
    """Run a callback on the first device along `axes` and send its results to all devices."""

    name = "call_once"
    single = False
    callback: Callback
    axes: tuple[str, ...]

    @property
    def effect(self) -> str:
        return self.callback.effect

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return self.callback.out_types(*types)

    def exchange(self, mesh: AbstractMesh, *operands: Sequence[NumpyArray]) -> Any:
        present = [shards for shards in operands if len(shards)]
        out: list[list[Any]] = [[None] * mesh.device_count for _ in self.callback.results]
        for group in mesh.groups(self.axes):
            results = self.callback.reference(*(shards[group[0]] for shards in present))
            for device in group:
                for shards, result in zip(out, results, strict=True):
                    shards[device] = result
        return out

    def traffic(self, operand: ArrayType, mesh: AbstractMesh) -> Traffic:
        """An all-reduce of the results, which are zeros on the other devices."""
        return all_reduce(sum(type.nbytes for type in self.callback.results), mesh.extent(self.axes))

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        index = hlo.device_index(self.axes)
        is_first = lower_compare(hlo, "EQ", index, hlo.constant(0, index.type))
        branch_index = hlo.op("stablehlo.convert", (is_first,), index.type)
        results = hlo.branch(
            branch_index,
            [
                lambda: [hlo.constant(0, type) for type in self.callback.results],
                lambda: self.callback.lower(hlo, *operands),
            ],
            self.effect == "ordered",
        )
        return [self._broadcast_from_first(hlo, x) if x.type.size else x for x in results]

    def _broadcast_from_first(self, hlo: Hlo, x: HloValue) -> Any:
        """Broadcast the first device's array: an all-reduce of bits, which keeps -0.0; the other devices hold zeros."""
        if x.type.dtype.kind == "c":
            half = x.type.with_dtype(x.type.dtype.type(0).real.dtype)
            parts = [
                self._broadcast_from_first(hlo, hlo.op(f"stablehlo.{part}", (x,), half)) for part in ("real", "imag")
            ]
            return hlo.op("stablehlo.complex", parts, x.type)
        groups = hlo.group_attributes(self.axes)
        bits = x.type.with_dtype(np.dtype(f"uint{8 * x.type.dtype.itemsize}")) if is_float(x.type.dtype) else x.type
        x_bits = x if bits is x.type else hlo.op("stablehlo.bitcast_convert", (x,), bits)
        total = hlo.op("stablehlo.all_reduce", (x_bits,), bits, groups, (hlo.reducer(SUM, bits.dtype),))
        return total if bits is x.type else hlo.op("stablehlo.bitcast_convert", (total,), x.type)
