"""check_row_mean: prove that a loss is the mean, over the rows of a batch, of what it computes of each row.

Then the mean of the losses of equal microbatches is the loss of the batch. Rows are dim 0 of the arrays of the batch.
Up to a sum over the rows, each row must be computed from this row alone. After it, the loss must be linear in the sums,
with a coefficient that is inversely proportional to the number of rows: the programs for two numbers of rows, those of
a microbatch and of the batch, are compared. Terms without rows, such as a penalty on weights, may be added to a mean.

The same proof tells how auxiliary results of microbatches combine to those of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any, NamedTuple, final

import ml_dtypes
import numpy as np

from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.candidates.unfold import unfold
from shardwise.compiler.dtypes import DType, is_inexact, is_integer, is_key
from shardwise.compiler.ir.program import Equation, Program, Value
from shardwise.compiler.ops.elementwise.arithmetic import StopGradient
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape
from shardwise.compiler.reduction import AND, MAX, MIN, OR, SUM, Reduction
from shardwise.compiler.transforms.dce import live_equations
from shardwise.errors import MissingRuleError, StrategyError
from shardwise.parallel.paired_equations import paired_equations
from shardwise.parallel.row_independence import Comparison
from shardwise.parallel.rows import Rows

_LARGEST_DENOMINATOR = 1024  # of scales; reciprocals of the numbers of rows are rounded


@final
class _Linear(NamedTuple):
    """A value that is linear in what is computed of each row.

    Attributes:
        scale: the ratio of the weights of a row in the second program and in the first.
    """

    scale: Fraction


@final
class _Fixed(NamedTuple):
    """A value without rows.

    Attributes:
        values: the constants in both programs; None if the value is the same in both.
    """

    values: tuple[Any, Any] | None


@final
class _Extreme(NamedTuple):
    """The maximum or minimum of what is computed of each row; of booleans, whether any or all of them are true.

    Attributes:
        combination: how those of microbatches combine.
    """

    combination: "Combination"


_SAME = _Fixed(None)


Captured = Sequence[Any]  # the arrays that a loss closes over, which are the last inputs of its program


@final
class Combination(Enum):
    """How results of equal microbatches combine to the result of the batch."""

    MEAN = "the mean"
    SUM = "the sum"
    MAX = "the maximum"
    MIN = "the minimum"
    SAME = "any of them"
    ROWS = "the rows of all, in the order of the batch"


_EXTREMES = {MAX: Combination.MAX, MIN: Combination.MIN}
_EXTREMES_OF_BOOLEANS = {**_EXTREMES, AND: Combination.MIN, OR: Combination.MAX}
_VIEWS = (Broadcast, Reshape, StopGradient)  # ops that keep the values of elements


def check_row_mean(
    program: Program,
    larger: Program,
    batch: Sequence[int],
    label: str,
    captured: tuple[Captured, Captured] = ((), ()),
) -> tuple[Combination, ...]:
    """Check that a loss is a mean over rows, and return how its auxiliary results combine.

    Args:
        program: the program of the loss and its auxiliary results, without calls.
        larger: the program for more rows.
        batch: the indices of its inputs that have rows.
        label: the loss, for errors.
        captured: the arrays that the loss closes over, for both programs.

    Raises:
        StrategyError: if the loss is not a mean, if an auxiliary result is none of these combinations, or if that
            cannot be proven.
    """
    return _Proof(program, larger, batch, label, captured).check()


def check_single_row(program: Program, single: Program, batch: Sequence[int], label: str) -> None:
    """Check that a loss computes a single row as it computes each of several rows.

    A function may treat dims of size 1 in another way: `squeeze` removes them.

    Args:
        program: the program of the loss and its auxiliary results for several rows, without calls.
        single: the program for one row.
        batch: the indices of its inputs that have rows.
        label: the loss, for errors.

    Raises:
        StrategyError: if the programs compute different rows.
    """
    rows = Rows.from_values([program.inputs[index] for index in batch], unfold(program).equations)
    if different := Comparison(rows, 1, up_to_broadcasts=True).differences(program, single):
        where = f"`{different[0].op.name}` at {different[0].source} in {label}"
        raise StrategyError(
            f"mpmd_step: {where} computes a microbatch of one row in another way than several rows, as `squeeze` "
            "without an axis does: name the axes of size 1, or use fewer microbatches."
        )


@final
@dataclass(eq=False)
class _Proof:
    """Follows the rows through a program."""

    program: Program
    larger: Program
    batch: Sequence[int]
    label: str
    captured: tuple[Captured, Captured]
    _found: dict[Value, _Linear | _Fixed | _Extreme] = field(default_factory=dict)  # of values without rows

    def check(self) -> tuple[Combination, ...]:
        """Check the loss, and return how the auxiliary results combine."""
        self._rows = Rows.from_values(
            [self.program.inputs[index] for index in self.batch], unfold(self.program).equations
        )
        count = self.larger.inputs[self.batch[0]].type.shape[0]
        self._comparison = Comparison(self._rows, count)
        self._mean = Fraction(self._rows.count, count)
        if len(self.program.equations) != len(self.larger.equations) or len(self.captured[0]) != len(self.captured[1]):
            raise StrategyError(
                f"mpmd_step: {self.label} computes other values for {count} rows than for {self._rows.count}: {_ADVICE}"
            )
        self._found.update({value: _SAME for value in self.program.inputs if not self._rows.dims(value)})
        self._follow_captured()
        for one, other, is_alike in paired_equations(self.program, self.larger):
            if not is_alike:
                raise self._error(one, "depends on the number of rows")
            self._follow(one, other)
        loss, *auxiliary = self.program.outputs
        found = self._found.get(loss, _SAME)
        if isinstance(found, _Linear) and found.scale != self._mean:
            raise StrategyError(
                f"mpmd_step: {self.label} is {'a sum' if found.scale == 1 else 'not the mean'} over the rows of the "
                f"batch: {_ADVICE}"
            )
        if isinstance(found, _Fixed) and found.values is not None:
            raise StrategyError(f"mpmd_step: {self.label} depends on the number of rows: {_ADVICE}")
        return tuple(map(self._combination, auxiliary))

    def _combination(self, result: Value) -> Combination:
        """Return how an auxiliary result of microbatches combines."""
        if dims := self._rows.dims(result):
            if dims == [0] and result.type.shape[0] == self._rows.count:
                return Combination.ROWS
        else:
            found = self._found[result]
            if found == _SAME:
                return Combination.SAME
            if isinstance(found, _Linear) and found.scale == self._mean and is_inexact(result.type.dtype):
                return Combination.MEAN
            if isinstance(found, _Linear) and found.scale == 1:
                return Combination.SUM
            if isinstance(found, _Extreme):
                return found.combination
            if isinstance(found, _Fixed) and found.values is not None:
                one, other = map(_widened, found.values)
                if np.array_equal(one, other * float(self._mean)):  # such as the number of rows itself
                    return Combination.SUM
        raise StrategyError(
            f"mpmd_step: {self.label} has an auxiliary result of type {result.type} that is neither a mean nor a sum "
            f"over the rows of the batch, and does not have them as dim 0. {_AUXILIARY_ADVICE}"
        )

    def _follow_captured(self) -> None:
        """Compare the arrays that the loss closes over, which it may compute from the number of rows."""
        first = len(self.program.inputs) - len(self.captured[0])
        for value, one, other in zip(self.program.inputs[first:], *self.captured, strict=True):
            if self._rows.dims(value) or type_of(one) != type_of(other):
                raise StrategyError(
                    f"mpmd_step: {self.label} closes over an array of type {value.type} for {self._rows.count} rows, "
                    "which has one element per row or depends on their number: pass it to the step with the batch."
                )
            if one is other or is_key(value.type.dtype):
                continue
            arrays = np.asarray(one), np.asarray(other)
            if not np.array_equal(*arrays):
                self._found[value] = _Fixed(arrays)

    def _follow(self, one: Equation, other: Equation) -> None:
        """Find out what the results of an op are."""
        has_rows = [bool(self._rows.dims(value)) for value in one.inputs]
        if any(has_rows) or any(self._rows.dims(value) for value in one.outputs):
            self._follow_rows(one, other)
            return
        extreme = next((found for value in one.inputs if isinstance(found := self._found[value], _Extreme)), None)
        operands = [found for value in one.inputs if not isinstance(found := self._found[value], _Extreme)]
        result: _Linear | _Fixed | _Extreme
        if extreme is not None:
            if not isinstance(one.op, _VIEWS):
                raise self._error(one, f"reads {extreme.combination.value} over rows")
            result = extreme
        elif any(isinstance(operand, _Linear) for operand in operands):
            result = self._combine(one, other, operands)
        else:
            result = self._fixed(one, other, operands)
        self._found.update(dict.fromkeys(one.outputs, result))

    def _follow_rows(self, one: Equation, other: Equation) -> None:
        """Check an op on rows, which computes each row from this row, or sums them."""
        if not self._comparison.match(one.op, other.op):
            raise self._error(one, "depends on the number of rows")
        if any(self._found.get(value, _SAME) != _SAME for value in one.inputs):
            raise self._error(one, "computes rows from a value that depends on all rows, or on their number")
        if self._rows.pass_through(one):
            self._found.update({value: _SAME for value in one.outputs if not self._rows.dims(value)})
            return
        reduction = self._rows.reduction(one)
        if reduction is SUM:
            self._found.update(dict.fromkeys(one.outputs, _Linear(Fraction(1))))
        elif (combination := self._extreme(one, reduction)) is not None:
            self._found.update(dict.fromkeys(one.outputs, _Extreme(combination)))
        else:
            raise self._error(one, "does not compute each row from this row alone, nor the sum of all")

    def _extreme(self, equation: Equation, reduction: Reduction | None) -> Combination | None:
        """Return how the results of a reduction of rows combine, if it is an extreme that the loss does not read."""
        if reduction is None or len(equation.outputs) > 1 or self._is_of_loss(equation):
            return None
        is_logical = equation.outputs[0].type.dtype == np.bool_
        return (_EXTREMES_OF_BOOLEANS if is_logical else _EXTREMES).get(reduction)

    def _is_of_loss(self, equation: Equation) -> bool:
        """Return whether the loss depends on an op."""
        return any(
            not set(equation.outputs).isdisjoint(each.outputs)
            for each in live_equations(self.program.equations, self.program.outputs[:1])
        )

    def _combine(self, one: Equation, other: Equation, operands: Sequence[_Linear | _Fixed]) -> _Linear:
        """Return the result of an op on sums over rows."""
        linear = {index for index, operand in enumerate(operands) if isinstance(operand, _Linear)}
        types = [value.type for value in one.inputs]
        sets = [set(each) for each in one.op.linear_in(*types)]
        if isinstance(one.op, Convert) and _is_linear_up_to_rounding(types[0].dtype, one.op.dtype):
            sets = [{0}]
        jointly = next((each for each in sets if linear <= each), None)
        if jointly is None:
            raise self._error(one, "is not linear in a sum over rows")
        scales = {operand.scale for operand in operands if isinstance(operand, _Linear)}
        others = [operands[index] for index in jointly - linear]  # terms that are added
        if len(scales) > 1 or (others and (scales != {self._mean} or any(each != _SAME for each in others))):
            raise self._error(one, "adds values that are not means over the same rows")
        (scale,) = scales
        factors = [index for index in range(len(operands)) if index not in jointly]
        if all(operands[index] == _SAME for index in factors):
            if one.op != other.op:
                raise self._error(one, "depends on the number of rows")
            return _Linear(scale)
        values = []
        for number, equation in enumerate((one, other)):
            arrays = [
                operand.values[number]
                if isinstance(operand, _Fixed) and operand.values
                else np.ones(type.shape, type.dtype)
                for operand, type in zip(operands, types, strict=True)
            ]
            values.append(_widened(equation.op.reference(*arrays)))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.unique(values[1] / values[0])
        if len(ratios) != 1 or not np.isfinite(ratios[0]) or ratios[0].imag:
            raise self._error(one, "depends on the number of rows")
        return _Linear(scale * self._rounded(float(ratios[0].real), one.outputs[0].type.dtype))

    def _rounded(self, ratio: float, dtype: DType) -> Fraction:
        """Return the ratio of two numbers that were rounded to a dtype."""
        error = 4 * float(ml_dtypes.finfo(dtype).eps) if is_inexact(dtype) else 0.0  # type: ignore[no-untyped-call]
        simple = Fraction(ratio).limit_denominator(_LARGEST_DENOMINATOR)
        for each in (self._mean, simple):
            if abs(ratio - float(each)) <= error * abs(float(each)):
                return each
        return Fraction(ratio)

    def _fixed(self, one: Equation, other: Equation, operands: Sequence[_Linear | _Fixed]) -> _Fixed:
        """Return the result of an op without rows: constants, if they are not the same for both numbers of rows."""
        if one.op == other.op and all(operand == _SAME for operand in operands):
            return _SAME
        arrays: list[list[Any]] = [[], []]
        for value, operand in zip(one.inputs, operands, strict=True):
            constants = operand.values if isinstance(operand, _Fixed) else None
            if constants is None:
                constants = self._constant(value)
            arrays[0].append(constants[0])
            arrays[1].append(constants[1])
        if not one.op.single or any(array is None for array in arrays[0]):
            raise self._error(one, "depends on the number of rows")
        try:
            return _Fixed((one.op.reference(*arrays[0]), other.op.reference(*arrays[1])))
        except MissingRuleError as error:
            raise self._error(one, "depends on the number of rows") from error

    def _constant(self, value: Value) -> tuple[Any, Any]:
        """Return a value that is the same for both numbers of rows, twice; None if it is not a constant."""
        made_by = next((each for each in self.program.equations if value in each.outputs), None)
        if made_by is None or not made_by.op.single:
            return None, None
        operands = [self._constant(each)[0] for each in made_by.inputs]
        if any(operand is None for operand in operands):
            return None, None
        try:
            array = made_by.op.reference(*operands)
        except MissingRuleError:
            return None, None
        return array, array

    def _error(self, equation: Equation, problem: str) -> StrategyError:
        where = f"mpmd_step: `{equation.op.name}` at {equation.source} in {self.label} {problem}"
        if self._is_of_loss(equation):
            return StrategyError(f"{where}: {_ADVICE}")
        return StrategyError(f"{where}, and an auxiliary result depends on it. {_AUXILIARY_ADVICE}")


def _widened(array: Any) -> Any:
    """Return a numpy array in the widest real or complex dtype."""
    return np.asarray(array, np.complex128 if np.asarray(array).dtype.kind == "c" else np.float64)


def _is_linear_up_to_rounding(source: DType, target: DType) -> bool:
    """Return whether a conversion of a sum is the sum of conversions, but for the rounding of both."""
    if is_integer(source):
        return is_integer(target) or is_inexact(target)
    return is_inexact(source) and is_inexact(target) and (source.kind != "c" or target.kind == "c")


_AUXILIARY_ADVICE = (
    "A pipeline computes the auxiliary results of each microbatch: return sums, means and maxima over the rows, or "
    "arrays with the rows as dim 0, and compute what depends on several rows from these, in the step after "
    "the gradients."
)
_ADVICE = (
    "the pipeline returns the mean of the losses of the microbatches, so the loss must be the mean over the rows of "
    "the batch. For a weighted mean, divide the weights of the batch before the step."
)
