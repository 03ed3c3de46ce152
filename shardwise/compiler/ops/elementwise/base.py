"""Base classes of elementwise ops.

Operands have equal shapes and dtypes, because the functions in `compiler/arrays` promote and broadcast first. The base
classes implement every rule except the derivative, the numpy reference and the name of the StableHLO op.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_inexact, is_integer
from shardwise.compiler.ir.fusion import FUSED
from shardwise.compiler.ir.op import BatchAxis, Hlo, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType, ScalarLike
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.shardings.factors import FactorRule

# The StableHLO ops that replace arithmetic on booleans.
BOOLEAN_HLO_NAMES = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}


@final
@record
class DtypeSet:
    """The dtypes that an op accepts. `description` names them in error messages."""

    description: str
    contains: Callable[[DType], bool]


ANY = DtypeSet("numbers or booleans", lambda dtype: True)


NUMBERS = DtypeSet("numbers", lambda dtype: dtype != np.bool_)


REALS = DtypeSet("integers or floats", lambda dtype: is_integer(dtype) or is_float(dtype))


INEXACT = DtypeSet("floats or complex numbers", is_inexact)


FLOATS = DtypeSet("floats", is_float)


class Elementwise(Op):
    """An op whose operands and result have the same shape."""

    fusion = FUSED
    cheap_to_recompute = is_elementwise = True
    arity: ClassVar[int] = 2
    accepts: ClassVar[DtypeSet] = ANY
    hlo_name: ClassVar[str]
    dialect: ClassVar[str] = "stablehlo"

    def out_type(self, *types: ArrayType) -> ArrayType:
        if len(types) != self.arity:
            raise TypeError(f"{self.name}: needs {self.arity} operand{'s' * (self.arity > 1)}, not {len(types)}")
        return self.result_type(*types)

    def result_type(self, *types: ArrayType) -> ArrayType:
        """Check the operand types and return the type of the result. The number of operands is already checked."""
        shapes = {type.shape for type in types}
        dtypes = {type.dtype for type in types}
        if len(shapes) != 1 or len(dtypes) != 1:
            raise TypeError(
                f"{self.name}: operands must have one shape and one dtype, not {', '.join(map(str, types))}"
            )
        if not self.accepts.contains(types[0].dtype):
            raise TypeError(f"{self.name}: needs {self.accepts.description}, not {types[0]}")
        return ArrayType(types[0].shape, types[0].dtype, all(type.weak for type in types))

    def factors(self, *types: ArrayType) -> FactorRule:
        return FactorRule.pointwise(types[0].shape, len(types))

    def padding(self, fills: Sequence[Any]) -> Any:
        return None if any(fill is None for fill in fills) else self.reference(*map(np.asarray, fills))

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        target = next(dim for dim in dims if dim is not None)
        return self(*(batch_dim_at(x, dim, target, axis.size) for x, dim in zip(operands, dims, strict=True))), target

    def lower(self, hlo: Hlo, *operands: Any) -> Any:
        out = self.out_type(*(x.type for x in operands))
        # XLA's constant folding computes true + true = false, so booleans are lowered to logical ops.
        name = BOOLEAN_HLO_NAMES.get(self.hlo_name, self.hlo_name) if out.dtype == np.bool_ else self.hlo_name
        return hlo.op(f"{self.dialect}.{name}", operands, out)


def full_like(x: Operand, number: ScalarLike) -> Any:
    """Return an array with the type of `x` and all elements equal to `number`.

    Rules use it instead of the operators of arrays, because these promote according to the user's settings.
    """
    return full(x.type.shape, number, x.type.dtype, x.type.weak)
