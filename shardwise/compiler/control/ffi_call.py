"""ffi_call: a call of a function that a compiled library registered with XLA's foreign function interface."""

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, final

from shardwise.compiler.control.scan import vmap_by_scan
from shardwise.compiler.control.vectorized_call import batch_operands
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.errors import UnsupportedError


@final
@record
class FfiCall(Op):
    """A call of the target `target`, which writes arrays of the types `results`.

    Attributes:
        target: the registered name.
        results: the types of the results.
        attributes: the names and values of the call's attributes, in MLIR syntax.
        operand_layouts: for each operand, its dims from major to minor; None for row-major.
        result_layouts: the same for each result.
        aliases: pairs (operand, result that reuses its buffer).
        side_effect: whether the function is called even if nothing uses its results.
        vectorized: how vmap calls it: "" (one slice at a time), "expand_dims" (unbatched operands get a leading dim of
            size 1), or "broadcast_all" (unbatched operands are broadcast).
        batch_dims: the number of leading dims that operands and results share, and along which they can be sharded.
        rule: the user's sharding rule.
    """

    name = "ffi_call"
    single = False
    target: str
    results: tuple[ArrayType, ...]
    attributes: tuple[tuple[str, str], ...] = ()
    operand_layouts: tuple[tuple[int, ...] | None, ...] = field(default=(), repr=False)
    result_layouts: tuple[tuple[int, ...] | None, ...] = field(default=(), repr=False)
    aliases: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    side_effect: bool = False
    vectorized: str = field(default="", repr=False)
    batch_dims: int = field(default=0, repr=False)
    rule: FactorRule | None = field(default=None, repr=False)

    @property
    def effect(self) -> str:
        return "unordered" if self.side_effect else ""

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        for role, layouts, arrays in (
            ("operand", self.operand_layouts, types),
            ("result", self.result_layouts, self.results),
        ):
            for layout, type in zip(layouts, arrays, strict=True) if layouts else ():
                if layout is not None and sorted(layout) != list(range(type.ndim)):
                    raise ValueError(f"ffi_call: {layout} is not a layout of the {role} {type} of {self.target!r}")
        return self.results

    def factors(self, *types: ArrayType) -> FactorRule:
        if self.rule is not None:
            return self.rule
        sizes = list(types[0].shape[: self.batch_dims]) if types else []
        tables = []
        for type in (*types, *self.results):
            rest = range(len(sizes), len(sizes) + type.ndim - self.batch_dims)
            tables.append(tuple((factor,) for factor in (*range(self.batch_dims), *rest)))
            sizes += type.shape[self.batch_dims :]
        replicated = frozenset(range(self.batch_dims, len(sizes)))
        return FactorRule(
            tuple(tables[: len(types)]), tuple(tables[len(types) :]), tuple(sizes), need_replication=replicated
        )

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        shards = zip(self.results, context.out_shapes, strict=True)
        return replace(self, results=tuple(type.with_shape(shape) for type, shape in shards), rule=None)(*operands)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        raise ValueError(
            f"ffi_call: cannot differentiate {self.target!r}, a compiled function. Wrap the call in custom_jvp or "
            "custom_vjp with a derivative rule, or use stop_gradient."
        )

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        if not self.vectorized:
            return vmap_by_scan(self, axis, operands, dims)
        batched = batch_operands(self.vectorized, axis, operands, dims)
        results = tuple(type.with_shape((axis.size, *type.shape)) for type in self.results)
        layouts = [tuple(map(_with_batch, of)) for of in (self.operand_layouts, self.result_layouts)]
        unbatched = [x.type if dim is None else x.type.without((dim,)) for x, dim in zip(operands, dims, strict=True)]
        rule = self.factors(*unbatched).vmapped([0] * len(dims), axis.size)
        if self.vectorized == "expand_dims":  # the leading dim of an unbatched operand has size 1, and no factor
            pairs = zip(rule.operands, dims, strict=True)
            rule = replace(rule, operands=tuple(of if dim is not None else ((), *of[1:]) for of, dim in pairs))
        op = replace(self, results=results, operand_layouts=layouts[0], result_layouts=layouts[1], rule=rule)
        return op(*batched), [0] * len(results)

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        types = [x.type for x in operands]
        return hlo.custom_call(
            self.target,
            operands,
            self.results,
            dict(self.attributes),
            _minor_to_major(self.operand_layouts, types),
            _minor_to_major(self.result_layouts, self.results),
            [(result, operand) for operand, result in self.aliases],
            self.side_effect,
        )

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        raise UnsupportedError(f"ffi_call: {self.target!r}, a compiled function, has no meaning in numpy")


def _with_batch(layout: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the layout of an array with a new leading dim, which is the most major one."""
    return None if layout is None else (0, *(dim + 1 for dim in layout))


def _minor_to_major(layouts: Sequence[tuple[int, ...] | None], types: Sequence[ArrayType]) -> list[tuple[int, ...]]:
    chosen = layouts or [None] * len(types)
    return [
        tuple(reversed(range(type.ndim) if layout is None else layout))
        for layout, type in zip(chosen, types, strict=True)
    ]
