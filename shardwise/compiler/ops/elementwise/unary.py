"""Base class of elementwise ops with one operand, whose derivatives are formulas of expressions."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from shardwise.compiler.dtypes import numpy_carrier
from shardwise.compiler.ir.op import NumpyArray, ignore_float_errors
from shardwise.compiler.ops.elementwise.base import INEXACT, Elementwise
from shardwise.compiler.ops.elementwise.expr import Expr


class Unary(Elementwise):
    """An elementwise op with one operand.

    `numpy_function` computes the reference. Narrow dtypes are computed in a wide dtype and rounded once.
    """

    arity = 1
    accepts = INEXACT
    numpy_function: ClassVar[Any]

    def tangent(self, dx: Expr, x: Expr, y: Expr) -> Expr | None:
        """Return the tangent of the result `y`, given the operand `x` and its tangent `dx`; None if it is zero."""
        raise self.missing_rule("tangent")

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        y = self(x)
        tangent = self.tangent(Expr(dx), Expr(x), Expr(y))
        return y, None if tangent is None else tangent.array

    @ignore_float_errors
    def reference(self, *operands: NumpyArray) -> Any:
        (x,) = operands
        return np.asarray(self.numpy_function(x.astype(numpy_carrier(x.dtype)))).astype(x.dtype)
