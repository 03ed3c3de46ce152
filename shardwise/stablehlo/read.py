"""Read a module: evaluate its functions for arrays of Shardwise.

    module of MLIR  --Reader-->  the functions of `ops`, applied to arrays  -->  Program

Each op is applied as the function of Shardwise with the same meaning, so that a Program is traced as if the user had
written it with Shardwise. Calls are inlined. MLIR has verified the module; each result must also have the type that the
module states, so that a wrong rule cannot change a program silently.
"""

from collections.abc import Sequence
from typing import Any, final

from shardwise.base._jaxlib import mlir_ir
from shardwise.base.config import config
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.program import Source
from shardwise.compiler.trace.provenance import provenance
from shardwise.compiler.transforms.replay import restore_source
from shardwise.errors import ProgramError, UnsupportedError
from shardwise.stablehlo.locations import source_of
from shardwise.stablehlo.module import Function, Module
from shardwise.stablehlo.operation import Operation
from shardwise.stablehlo.ops import OPS
from shardwise.stablehlo.types import array_type

# Calls are inlined, so a small module of functions that call each other twice could have any number of ops.
MAX_OPS = 1_000_000
MAX_CALL_DEPTH = 100

_RETURNS = ("func.return", "stablehlo.return", "sdy.return")
# What rules raise for operands that they reject. Errors of the program that calls the module pass.
_RULE_ERRORS = (
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    NameError,
    OverflowError,
    NotImplementedError,
    ArithmeticError,
)


@final
class Reader:
    """Evaluates the functions of one module."""

    def __init__(self, module: Module):
        self.module = module
        self._applied = 0
        self._depth = 0
        self._located: Exception | None = None  # the error that states its op and line

    def call(self, function: Function, args: Sequence[Any]) -> list[Any]:
        """Return the results of a function for arrays."""
        # 64-bit constants and results keep their dtypes, as in the module.
        with config.override("enable_x64", True), restore_source():
            try:
                return self._evaluate(function.body, args, {}, ())
            except RecursionError as error:
                raise ProgramError("calls and regions of the module are nested too deeply for Python") from error

    def _evaluate(self, block: Any, args: Sequence[Any], outer: dict[Any, Any], scope: tuple[str, ...]) -> list[Any]:
        """Return the results of a block.

        Args:
            block: the block of MLIR.
            args: the values of its arguments.
            outer: the values of the blocks around it.
            scope: the named scopes around it.
        """
        if self._depth == MAX_CALL_DEPTH:
            raise ProgramError(
                f"calls and regions are nested more than {MAX_CALL_DEPTH} deep, or a function calls itself"
            )
        values = dict(outer)
        values.update(zip(block.arguments, args, strict=True))
        self._depth += 1
        try:
            for view in block.operations:
                raw = view.operation
                if raw.name in _RETURNS:
                    return [values[operand] for operand in raw.operands]
                source = source_of(raw.location).within(scope)
                provenance.source = source
                results = self._apply(raw, [values[operand] for operand in raw.operands], values, source)
                values.update(zip(raw.results, results, strict=True))
        finally:
            self._depth -= 1
        raise ProgramError("a block of the module has no return")

    def _pinned(self, raw: Any, results: list[Any]) -> list[Any]:
        """Return the results of an op, pinned to the shardings that the op states."""
        pins = self.module.annotations.pins(raw.attributes, [result.type.ndim for result in results])
        return results if pins is None else [pin.apply(result) for pin, result in zip(pins, results, strict=True)]

    def _apply(self, raw: Any, operands: list[Any], values: dict[Any, Any], source: Source) -> list[Any]:
        """Return the results of an op."""
        self._applied += 1
        if self._applied > MAX_OPS:
            raise UnsupportedError(f"the module has more than {MAX_OPS:,} ops after its calls are inlined")
        name = str(raw.name)
        if name not in OPS:
            self._located = UnsupportedError(
                f"the op {name} at {source} is not supported. Compute this part outside of the module, or write it "
                "with other ops of StableHLO."
            )
            raise self._located
        op = Operation(raw, self.module, source, lambda block, args: self._evaluate(block, args, values, source.scope))
        try:
            results = OPS[name](op, *operands)
            if not isinstance(results, (list, tuple)):
                results = [results]
            checked = [_checked(result, stated.type) for result, stated in zip(results, raw.results, strict=True)]
            return self._pinned(raw, checked)
        except _RULE_ERRORS as error:
            if error is self._located:  # of an op inside a region
                raise
            # MLIR has verified the module, so another error is a form of the op that Shardwise cannot express.
            kind = ProgramError if isinstance(error, ProgramError) else UnsupportedError
            self._located = kind(f"{name} at {source}: {error}")
            raise self._located from error


def _checked(result: object, stated: object) -> Any:
    """Return a result, which must have the type that the module states. Values that are no tensors pass."""
    if not isinstance(stated, mlir_ir.RankedTensorType):
        return result
    array, expected = as_operand(result), array_type(stated)
    if (array.type.shape, array.type.dtype) != (expected.shape, expected.dtype):
        raise ProgramError(f"the result is {array.type}, but the module states {expected}")
    return array
