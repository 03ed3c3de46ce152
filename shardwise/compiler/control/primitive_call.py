"""PrimitiveCall: a user-defined op with its rules, as JAX's `Primitive`."""

from collections.abc import Sequence
from typing import Any, Protocol, final

from shardwise.compiler.control.call import CallLike
from shardwise.compiler.ir.op import BatchAxis, Hlo, HloValue, NumpyArray, Op, Primal
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.errors import MissingRuleError

Params = tuple[tuple[str, Any], ...]  # unhashable values are wrapped in an IdentityKey


class PrimitiveRules(Protocol):
    """The rules of a primitive, on flat lists of arrays; zero tangents and cotangents are None."""

    @property
    def name(self) -> str: ...
    def jvp(
        self, params: Params, primals: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]: ...
    def transpose(self, params: Params, cotangents: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]: ...
    def vmap(
        self, params: Params, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]
    ) -> tuple[Sequence[Any], Sequence[int | None]]: ...


@final
@record
class PrimitiveCall(CallLike):
    """A call of a primitive. `program` is its computation, traced from its lowering; its rules transform the call."""

    name = "primitive"
    opaque = True
    rules: PrimitiveRules
    params: Params

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        return self.rules.jvp(self.params, primals, tangents)

    def transpose(self, cotangent: Sequence[Operand | None], *operands: Primal) -> tuple[Any, ...]:
        return tuple(self.rules.transpose(self.params, cotangent, operands))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        return self.rules.vmap(self.params, axis, operands, dims)


@final
@record
class MissingLowering(Op):
    """A placeholder in the program of a primitive without a lowering. It has types, but cannot run.

    `problem` is the message of the error, of class `error`.
    """

    name = "missing_lowering"
    single = False
    problem: str
    results: tuple[ArrayType, ...]
    error: type[MissingRuleError] = MissingRuleError

    @property
    def effect(self) -> str:
        return "" if self.results else "unordered"  # an op without results or effects would be removed as dead code

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return self.results

    def factors(self, *types: ArrayType) -> Any:
        raise self._error()

    def reference(self, *operands: NumpyArray) -> Any:
        raise self._error()

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        raise self._error()

    def _error(self) -> MissingRuleError:
        return self.error(self.problem)
