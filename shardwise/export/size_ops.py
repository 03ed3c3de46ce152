"""SizeOps: the ops at the start of a module that compute sizes from the shapes of its arguments."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.base._jaxlib import MlirObject, mlir_dialects, mlir_ir
from shardwise.base.symbolic_dim import Call, Dim, SymbolicDim, variables_of

_FUNCTIONS = {"floordiv": "divide", "mod": "remainder", "max": "maximum", "min": "minimum"}  # of positive integers


@final
class SizeOps:
    """Computes symbolic sizes as scalars at the start of a block. Equal sizes are computed once.

    Sizes are computed from variables, and a variable from the first dim of an argument that is a multiple of it plus a
    constant. Assertions check the other dims, and the constraints.

    Args:
        block: the block. Ops are inserted at its start until `finish` is called.
        in_shapes: the shapes of its arguments.

    Raises:
        ValueError: if the shapes do not determine all variables.
    """

    def __init__(self, block: MlirObject, in_shapes: Sequence[tuple[Dim, ...]]):
        self._values: dict[Any, Any] = {}
        self._scalar = mlir_ir.RankedTensorType.get([], mlir_ir.IntegerType.get_signless(32))
        with mlir_ir.InsertionPoint.at_block_begin(block):
            self._anchor = mlir_dialects["stablehlo"].constant(_elements(0)).owner
        self._define_variables(block.arguments, in_shapes)
        self.count = next(n for n, view in enumerate(block.operations) if view.operation == self._anchor.operation) + 1

    def _define_variables(self, arguments: Sequence[MlirObject], in_shapes: Sequence[tuple[Dim, ...]]) -> None:
        stablehlo = mlir_dialects["stablehlo"]
        symbolic = [
            (argument, index, dim)
            for argument, shape in zip(arguments, in_shapes, strict=True)
            for index, dim in enumerate(shape)
            if isinstance(dim, SymbolicDim)
        ]
        defined: list[tuple[Any, int]] = []
        with mlir_ir.InsertionPoint(self._anchor):
            for argument, index, dim in symbolic:
                linear = dim.linear()
                if linear is None or linear[0] in self._values:
                    continue
                name, factor, constant = linear
                size = stablehlo.get_dimension_size(argument, index)
                if constant:
                    size = stablehlo.subtract(size, self.value(constant))
                defined.append((argument, index))
                self._values[name] = size if factor == 1 else stablehlo.divide(size, self.value(factor))
            for argument, index, dim in symbolic:
                if str(dim) in self._values and (argument, index) in defined:
                    continue
                size = stablehlo.get_dimension_size(argument, index)
                self._assert(self.value(dim), "EQ", size, f"the size of a dim must be {dim}")
            if symbolic:
                for text, symbol, left, right in symbolic[0][2].scope.constraints:
                    if variables_of([left, right]) - self._values.keys():  # of another function
                        continue
                    direction = {">=": "GE", "<=": "LE", "==": "EQ"}[symbol]
                    self._assert(self.value(left), direction, self.value(right), f"the sizes must satisfy {text}")

    def _assert(self, left: MlirObject, direction: str, right: MlirObject, message: str) -> None:
        stablehlo = mlir_dialects["stablehlo"]
        holds = stablehlo.compare(
            left,
            right,
            stablehlo.ComparisonDirectionAttr.get(direction),
            compare_type=stablehlo.ComparisonTypeAttr.get("SIGNED"),
        )
        call = stablehlo.CustomCallOp(
            [],
            [holds],
            "shape_assertion",
            has_side_effect=True,
            api_version=mlir_ir.IntegerAttr.get(mlir_ir.IntegerType.get_signless(32), 2),
        )
        call.attributes["error_message"] = mlir_ir.StringAttr.get(f"Input shapes do not match: {message}")

    def value(self, dim: Dim) -> Any:
        """Return a size as a scalar."""
        if dim not in self._values:
            with mlir_ir.InsertionPoint(self._anchor):
                self._values[dim] = self._compute(dim)
        return self._values[dim]

    def vector(self, dims: Sequence[Dim]) -> Any:
        """Return sizes as a tensor of one dim."""
        key = tuple(dims)
        if key not in self._values:
            scalars = [self.value(dim) for dim in dims]
            stablehlo, element = mlir_dialects["stablehlo"], self._scalar.element_type
            with mlir_ir.InsertionPoint(self._anchor):
                ones = [stablehlo.reshape(mlir_ir.RankedTensorType.get([1], element), x) for x in scalars]
                self._values[key] = stablehlo.concatenate(ones, 0) if ones else stablehlo.constant(_elements([]))
        return self._values[key]

    def _compute(self, dim: Dim) -> Any:
        stablehlo = mlir_dialects["stablehlo"]
        if not isinstance(dim, SymbolicDim):
            return stablehlo.constant(_elements(dim))
        total = None
        for monomial, factor in dim.terms:
            term = None if factor == 1 and monomial else self.value(factor)
            for atom in monomial:
                value = self._call(atom) if isinstance(atom, Call) else self._values[atom]
                term = value if term is None else stablehlo.multiply(term, value)
            total = term if total is None else stablehlo.add(total, term)
        return total

    def _call(self, call: Call) -> Any:
        left, right = map(self.value, call.operands)
        return getattr(mlir_dialects["stablehlo"], _FUNCTIONS[call.function])(left, right)

    def finish(self) -> None:
        """Remove the op that marks where sizes are computed."""
        self._anchor.operation.erase()


def _elements(value: int | Sequence[int]) -> Any:
    return mlir_ir.DenseElementsAttr.get(np.asarray(value, np.int32))
