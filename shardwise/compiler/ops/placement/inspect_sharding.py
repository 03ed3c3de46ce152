"""inspect: looks at how a value lies once a plan is there, and computes nothing."""

from collections.abc import Callable, Sequence
from typing import Any, final

from shardwise.compiler.ir.op import BatchAxis, Hlo, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.factors import FactorRule


@final
@record
class Inspect(Op):
    """No results. While a program is compiled, `look` is called with the sharding of the operand.

    It takes its operand in any layout, even as terms of a sum: looking at a value does not change where it lies.
    """

    name = "inspect"
    accepts_keys = True
    single = False
    look: Callable[[Any], None]

    @property
    def effect(self) -> str:
        return "unordered"

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return ()

    def factors(self, x: ArrayType) -> FactorRule:
        return FactorRule((tuple((dim,) for dim in range(x.ndim)),), (), x.shape)

    def linear_in(self, *types: ArrayType) -> tuple[tuple[int, ...], ...]:
        return ((0,),)

    def localize(self, context: LocalContext, *operands: Any) -> Any:
        return ()

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self(*primals), ()

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self(*operands), []

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        return []

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return ()
