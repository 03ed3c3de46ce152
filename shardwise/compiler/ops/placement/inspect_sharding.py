"""inspect: report the sharding of a value while a program is compiled (`inspect_array_sharding`)."""

from collections.abc import Callable, Sequence
from typing import Any, final

from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class Inspect(Op):
    """An op without results. While a program is compiled, `callback` is called with the sharding of the operand.

    It accepts every layout of its operand, even a partial one, so inspecting a value does not change its sharding.
    """

    name = "inspect"
    accepts_keys = True
    single = False
    callback: Callable[[Any], None]

    @property
    def effect(self) -> str:
        return "unordered"

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return ()

    def factors(self, x: ArrayType) -> FactorRule:
        return FactorRule((tuple((dim,) for dim in range(x.ndim)),), (), x.shape)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        return ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), ()

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(*operands), []

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        return []

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return ()
