"""The family of elementwise ops.

Operands have equal shapes: the functions in `compiler/arrays` broadcast and promote first. The family fills in all
rules but the derivative, the numpy reference and the name of the StableHLO op.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

import numpy as np

from shardwise.compiler.dtypes import DType, is_float, is_inexact, is_integer, numpy_carrier
from shardwise.compiler.ir.op import BatchAxis, Hlo, NumpyArray, Op, ignore_float_errors
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.shardings.factors import FactorRule

# What arithmetic means for booleans.
BOOLEAN_HLO_NAMES = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}


@final
@record
class DtypeSet:
    """The element types that an op takes, in words for its error."""

    description: str
    contains: Callable[[DType], bool]


ANY = DtypeSet("numbers or booleans", lambda dtype: True)


NUMBERS = DtypeSet("numbers", lambda dtype: dtype != np.bool_)


REALS = DtypeSet("integers or floats", lambda dtype: is_integer(dtype) or is_float(dtype))


INEXACT = DtypeSet("floats or complex numbers", is_inexact)


FLOATS = DtypeSet("floats", is_float)


class Elementwise(Op):
    """Operands of one shape; the result has it too."""

    cheap_to_recompute = True
    arity: ClassVar[int] = 2
    accepts: ClassVar[DtypeSet] = ANY
    hlo_name: ClassVar[str]
    dialect: ClassVar[str] = "stablehlo"

    def out_type(self, *types: ArrayType) -> ArrayType:
        if len(types) != self.arity:
            raise TypeError(f"{self.name}: needs {self.arity} operand{'s' * (self.arity > 1)}, not {len(types)}")
        return self.result_type(*types)

    def result_type(self, *types: ArrayType) -> ArrayType:
        """The type of the result, given as many operands as there should be."""
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
        # XLA folds true + true of constants to false: booleans get the logical ops by their own names.
        name = BOOLEAN_HLO_NAMES.get(self.hlo_name, self.hlo_name) if out.dtype == np.bool_ else self.hlo_name
        return hlo.op(f"{self.dialect}.{name}", operands, out)


class Unary(Elementwise):
    """One operand. `meaning` is numpy's function: narrow types are computed in wide ones, and rounded once."""

    arity = 1
    accepts = INEXACT
    numpy_function: ClassVar[Any]

    def tangent(self, dx: Any, x: Any, y: Any) -> Any:
        """The tangent of the result `y` of `x`, of which `dx` is the tangent; None where the slope is zero."""
        raise self.missing_rule("tangent")

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        return y, self.tangent(dx, x, y)

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        return np.asarray(self.numpy_function(x.astype(numpy_carrier(x.dtype)))).astype(x.dtype)


def full_like(x: Any, number: Any) -> Any:
    """An array of one number, with the type of `x`. (Operators would promote by the user's settings.)"""
    return full(x.type.shape, number, x.type.dtype, x.type.weak)
