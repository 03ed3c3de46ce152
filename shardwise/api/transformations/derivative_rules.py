"""Derivative rules of users as functions of flat lists, which the ops of custom_jvp and custom_vjp call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from shardwise import tree
from shardwise.api.arguments import describe_function, function_name
from shardwise.api.flatten import check_outputs
from shardwise.api.ref import hide_refs
from shardwise.api.transformations.float0 import flatten_hiding_float0, float0
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, as_operand
from shardwise.compiler.dtypes import is_float, is_inexact
from shardwise.compiler.ir.dispatch import current_value, rebind, resolve_shardings
from shardwise.compiler.ir.masks import present_mask
from shardwise.compiler.ir.types import ArrayType, Typed
from shardwise.compiler.ops.placement.reshard import cotangent_type
from shardwise.compiler.ops.placement.retype import zeros_of
from shardwise.compiler.trace.summed_gradients import ignore_summed_gradients
from shardwise.typing import ArrayLike

Function = Callable[..., Any]


class RuleCall(NamedTuple):
    """One call of a function with custom rules: its nondiff arguments, and the structure of the other arguments.

    The operands of rules are the leaves of the differentiable arguments, then the values that the function captures,
    then those that only its rules capture.
    """

    function: Function
    nondiff: dict[int, Any]  # nondiff arguments by position
    arg_count: int
    structure: tree.Structure  # of the tuple of differentiable arguments
    captured: Sequence[Sequence[Any]] = ()  # the names of each captured value, see `rebind`
    rule_captured: int = 0  # how many of these, the last ones, only the rules close over

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """Return all arguments in order; `leaves` are those of the differentiable ones."""
        differentiable = iter(self.structure.unflatten(list(leaves)))
        return [
            self.nondiff[position] if position in self.nondiff else next(differentiable)
            for position in range(self.arg_count)
        ]

    def bound_function(self, *args: object) -> Any:
        """Call the function with these differentiable arguments."""
        return self.function(*self.arguments(flatten_hiding_float0(hide_refs(args))[0]))

    def split(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the operands of a rule: those of the arguments, and the captured values."""
        count = len(operands) - len(self.captured)
        return operands[:count], operands[count:]

    def constant_names(self, name: str, active: Sequence[bool]) -> list[Sequence[Any]]:
        """Return the names of each captured value; none if only the rules capture it and it is differentiated.

        The derivative of the rule with respect to such a value would be lost, so the rule may use its type alone.

        Args:
            name: the transformation, for the message.
            active: whether each operand is differentiated.

        Raises:
            TypeError: if a value that the function captures is differentiated.
        """
        first = len(active) - len(self.captured)
        if any(active[first : len(active) - self.rule_captured]):
            raise TypeError(
                f"{name}: `{function_name(self.function)}` closes over a value that is being differentiated, but its "
                "rule has no derivative for it. Pass the value as an argument."
            )
        return [() if is_active else names for names, is_active in zip(self.captured, active[first:], strict=True)]

    @property
    def nondiff_args(self) -> list[Any]:
        """The nondiff arguments in order, which rules receive first."""
        return [self.nondiff[position] for position in sorted(self.nondiff)]


@final
class Results:
    """The structure and the types of a function's results, which those of its rule must match.

    They are unknown until the rule returns if the function is not traced.
    """

    def __init__(self, structure: tree.Structure | None = None, types: Sequence[ArrayType] = ()):
        self.structure: tree.Structure = structure
        self.types = types

    def leaves(self, rule: str, value: object, function: Function) -> list[Any]:
        """Return the leaves of a rule's result, which must have the function's structure, shapes and dtypes."""
        if self.structure is None:
            leaves, self.structure = flatten_hiding_float0(value)
            check_outputs(function, leaves)
            operands = [as_operand(current_value(leaf), rule) for leaf in leaves]
            self.types = [x.type for x in operands]
            return operands
        leaves = self._flatten(rule, "result", value, function)
        return [
            self._operand(rule, "result", index, leaf, type, function)
            for index, (leaf, type) in enumerate(zip(leaves, self.types, strict=True))
        ]

    def tangents(self, rule: str, value: object, function: Function) -> list[Any]:
        """Return the leaves of the tangent of a rule's result; one that is zero becomes None."""
        leaves = self._flatten(rule, "tangent", value, function)
        return [
            None
            if not is_inexact(type.dtype) or isinstance(leaf, SymbolicZero)
            else self._operand(rule, "tangent", index, leaf, type, function)
            for index, (leaf, type) in enumerate(zip(leaves, self.types, strict=True))
        ]

    def _flatten(self, rule: str, role: str, value: object, function: Function) -> list[Any]:
        leaves, structure = tree.flatten(value, lambda x: isinstance(x, SymbolicZero))
        if structure != self.structure:
            raise TypeError(
                f"the {rule} of {describe_function(function)} returned a {role} of structure {structure}, but the "
                f"function returns {self.structure}"
            )
        return leaves

    @staticmethod
    def _operand(rule: str, role: str, number: int, leaf: ArrayLike, type: ArrayType, function: Function) -> Array:
        x = as_operand(current_value(leaf), rule)
        if x.type.shape != type.shape or x.type.dtype != type.dtype:
            raise TypeError(
                f"the {rule} of {describe_function(function)} returned {role} {number} of type {x.type}, but the "
                f"function returns {type}"
            )
        return x


@final
class FlatJvpRule:
    """A user's jvp rule as a function of flat lists."""

    def __init__(self, call: RuleCall, rule: Function, results: Results, symbolic: bool):
        self.call, self.rule, self.results, self.symbolic = call, rule, results, symbolic

    @property
    def name(self) -> str:
        return function_name(self.call.function)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        arguments, captured = self.call.split(primals)
        names = self.call.constant_names("custom_jvp", present_mask(tangents))
        dense = [_rule_operand(x.type, t, self.symbolic) for x, t in zip(arguments, tangents, strict=False)]
        structure = self.call.structure
        with resolve_shardings(False), rebind(names, captured):
            pair = self.rule(*self.call.nondiff_args, structure.unflatten(list(arguments)), structure.unflatten(dense))
            if not (isinstance(pair, tuple) and len(pair) == 2):
                raise TypeError(
                    f"the jvp rule of {describe_function(self.call.function)} must return (result, tangent), not "
                    f"{pair!r}"
                )
            out = self.results.leaves("jvp rule", pair[0], self.call.function)
            return out, self.results.tangents("jvp rule", pair[1], self.call.function)


@final
class FlatVjpRule:
    """A user's fwd rule as a function of flat lists."""

    def __init__(self, call: RuleCall, fwd: Function, bwd: Function, results: Results, symbolic: bool):
        self.call, self.fwd, self.bwd, self.results, self.symbolic = call, fwd, bwd, results, symbolic

    @property
    def name(self) -> str:
        return function_name(self.call.function)

    def forward(self, primals: Sequence[Any], active: Sequence[bool]) -> tuple[list[Any], list[Any], "_CotangentMap"]:
        arguments, captured = self.call.split(primals)
        names = self.call.constant_names("custom_vjp", active)
        leaves: Sequence[Any] = arguments
        if self.symbolic:
            leaves = [CustomVJPPrimal(x, perturbed) for x, perturbed in zip(arguments, active, strict=False)]
        with resolve_shardings(False), ignore_summed_gradients(), rebind(names, captured):
            pair = self.fwd(*self.call.arguments(leaves))
            if not (isinstance(pair, tuple) and len(pair) == 2):
                raise TypeError(
                    f"the fwd rule of {describe_function(self.call.function)} must return (result, residuals), not "
                    f"{pair!r}"
                )
            out = self.results.leaves("fwd rule", pair[0], self.call.function)
            residuals, structure = tree.flatten(hide_refs(pair[1]))
            constants = {index: x for index, x in enumerate(residuals) if isinstance(x, PYTHON_SCALARS)}
            operands = [as_operand(current_value(x)) for index, x in enumerate(residuals) if index not in constants]
        backward = _CotangentMap(self, structure, constants, [x.type for x in arguments], names)
        return out, [*operands, *captured], backward


@final
class _CotangentMap:
    """A user's bwd rule as a function of flat lists, after one call of the fwd rule.

    Attributes:
        rule: the rules.
        residual_tree: the structure of the residuals. The captured values of the function follow them.
        constants: the residuals that are Python scalars, by number: the bwd rule may branch on them.
        in_types: the types of the arguments.
        captured_names: the names of each captured value, see `rebind`.
    """

    def __init__(
        self,
        rule: FlatVjpRule,
        residual_tree: tree.Structure,
        constants: dict[int, Any],
        in_types: list[ArrayType],
        captured_names: list[Sequence[Any]],
    ):
        self.rule, self.residual_tree, self.constants = rule, residual_tree, constants
        self.in_types, self.captured_names = in_types, captured_names

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def call(self) -> RuleCall:
        return self.rule.call

    def __call__(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        types = map(cotangent_type, self.rule.results.types)
        dense = [_rule_operand(type, ct, self.rule.symbolic) for type, ct in zip(types, cotangents, strict=True)]
        saved, captured = self.call.split(residuals)
        arrays = iter(saved)
        leaves = [
            self.constants[index] if index in self.constants else next(arrays)
            for index in range(self.residual_tree.num_leaves)
        ]
        residual = self.residual_tree.unflatten(leaves)
        with resolve_shardings(False), ignore_summed_gradients(), rebind(self.captured_names, captured):
            in_cotangents = self.rule.bwd(
                *self.call.nondiff_args, residual, self.rule.results.structure.unflatten(dense)
            )
            return [*self._leaf_cotangents(in_cotangents), *[None] * len(captured)]

    def _leaf_cotangents(self, in_cotangents: object) -> list[Any]:
        """Return the cotangents of the leaves of the arguments, given the result of the bwd rule."""
        arguments = self.call.structure.children()
        if not isinstance(in_cotangents, (tuple, list)) or len(in_cotangents) != len(arguments):
            raise TypeError(
                f"the bwd rule of {describe_function(self.call.function)} must return a tuple of {len(arguments)} "
                f"cotangents, one per differentiable argument, not {in_cotangents!r}"
            )
        out: list[Any] = []
        in_types = iter(self.in_types)
        for index, (argument, cotangent) in enumerate(zip(arguments, in_cotangents, strict=True)):
            leaf_types = [next(in_types) for _ in range(argument.num_leaves)]
            if cotangent is None:
                out += [None] * len(leaf_types)
                continue
            leaf_cotangents = _cotangent_leaves(argument, cotangent)
            if leaf_cotangents is None:
                raise TypeError(
                    f"the bwd rule of {describe_function(self.call.function)} returned a cotangent of structure "
                    f"{tree.structure(cotangent)} for argument {index}, which has structure {argument}"
                )
            out += [
                _check_cotangent(type, x, self.call.function)
                for type, x in zip(leaf_types, leaf_cotangents, strict=True)
            ]
        return out


def _cotangent_leaves(argument: tree.Structure, cotangent: object) -> list[Any] | None:
    """Return the cotangents of the leaves of an argument; None if the structures differ.

    The cotangent may be a tree prefix of the argument: Flax returns arrays in place of nodes with one leaf.
    """
    try:
        return argument.flatten_up_to(cotangent)
    except ValueError:
        pass
    placeholder = argument.unflatten(list(range(argument.num_leaves)))
    try:
        return tree.broadcast_prefix(cotangent, placeholder, lambda x: x is None)
    except tree.TreeMismatch:
        return None


@final
class SymbolicZero(Typed):
    """A tangent or cotangent that is known to be zero, for rules with `symbolic_zeros`."""

    def __init__(self, aval: ArrayType):
        self.type = aval

    @property
    def dtype(self) -> Any:
        """The dtype of the zeros; float0 if the primal is not differentiable."""
        return self.type.dtype if is_inexact(self.type.dtype) else float0

    def __repr__(self) -> str:
        return f"SymbolicZero({self.type})"


@final
@dataclass(frozen=True, eq=False)
class CustomVJPPrimal:
    """An operand of a fwd rule with `symbolic_zeros`: its value, and whether it is differentiated."""

    value: Any
    perturbed: bool


def _rule_operand(type: ArrayType, derivative: Array | None, symbolic: bool) -> Any:
    """Return a tangent or cotangent as a rule receives it: zeros for None, or a SymbolicZero; float0 for integers."""
    if not is_inexact(type.dtype):
        return SymbolicZero(type) if symbolic else np.zeros(type.shape, float0)
    if derivative is None:
        return SymbolicZero(type) if symbolic else zeros_of(type.strong())
    return derivative


def _check_cotangent(type: ArrayType, leaf: object, function: Function) -> Any:
    if leaf is None or isinstance(leaf, SymbolicZero) or not is_inexact(type.dtype):
        return None
    x = as_operand(current_value(leaf), "bwd rule")
    converts = is_float(x.type.dtype) and is_float(type.dtype)  # a cotangent gets the precision of its primal
    if x.type.shape != type.shape or not (converts or x.type.dtype == type.dtype):
        raise ValueError(
            f"the bwd rule of {describe_function(function)} returned a cotangent of type {x.type} for an argument of "
            f"type {type}"
        )
    return x
