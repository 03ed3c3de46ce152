"""custom_jvp and custom_vjp: functions with derivative rules that the user defines."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, final

import numpy as np

from shardwise import tree
from shardwise.api.arguments import array_leaves, call_text, describe_function, function_name
from shardwise.api.flatten import FlatFunction, is_traced
from shardwise.api.float0 import flatten_hiding_float0, float0
from shardwise.api.ref import hide_refs
from shardwise.compiler.arrays.operands import PYTHON_SCALARS, as_operand
from shardwise.compiler.dtypes import is_float, is_inexact
from shardwise.compiler.ir.dispatch import resolve_shardings
from shardwise.compiler.ir.types import ArrayType, Typed
from shardwise.compiler.ops.control.custom_derivatives import CustomJvp, CustomVjp
from shardwise.compiler.ops.control.retype import zeros_of
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.placement.reshard import cotangent_type
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.build import build

Function = Callable[..., Any]
_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Call(NamedTuple):
    """One call of a function with custom rules: its nondiff arguments, and the structure of the other arguments."""

    function: Function
    nondiff: dict[int, Any]  # nondiff arguments by position
    arg_count: int
    structure: tree.Structure  # of the tuple of differentiable arguments

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """Return all arguments in order; `leaves` are those of the differentiable ones."""
        differentiable = iter(self.structure.unflatten(list(leaves)))
        return [
            self.nondiff[position] if position in self.nondiff else next(differentiable)
            for position in range(self.arg_count)
        ]

    def bound_function(self, *args: Any) -> Any:
        """Call the function with these differentiable arguments."""
        return self.function(*self.arguments(flatten_hiding_float0(hide_refs(args))[0]))

    @property
    def nondiff_args(self) -> list[Any]:
        """The nondiff arguments in order, which rules receive first."""
        return [self.nondiff[position] for position in sorted(self.nondiff)]


class ForwardsDefinitions:
    """A function with a custom rule. If it wraps another one, the methods that define that one's rules are its own too.

    So `custom_vjp(custom_vmap(f))` has `def_vmap`.
    """

    fun: Function

    def __getattr__(self, name: str) -> Any:
        inner = vars(self).get("fun")
        if name in {"def_vmap", "defjvp", "defjvps", "defvjp"} and isinstance(inner, ForwardsDefinitions):
            return getattr(inner, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)


class _CustomDerivative(ForwardsDefinitions, Generic[_P, _R]):
    """Base of custom_jvp and custom_vjp: splits the arguments of a call, and records a traced call as one op."""

    name: str

    def __init__(self, fun: Callable[_P, _R], nondiff_argnums: int | Sequence[int] = ()):
        self.fun: Function = fun
        self.nondiff_argnums = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        update_wrapper(self, fun, updated=())

    def __repr__(self) -> str:
        return f"<{self.name} of {call_text(self.fun)}>"

    def _op(self, call: _Call, out_tree: tree.Structure, program: Any, captured_count: int) -> Any:
        raise NotImplementedError

    def __call__(self, *args: _P.args, **keywords: _P.kwargs) -> _R:
        bound = inspect.signature(self.fun).bind(*args, **keywords)
        bound.apply_defaults()
        if bound.kwargs:
            raise TypeError(
                f"{self.name}: {describe_function(self.fun)} has keyword-only parameters, which its rules cannot "
                "receive: make them positional"
            )
        nondiff = {position % len(bound.args): bound.args[position] for position in self.nondiff_argnums}
        differentiable = hide_refs(tuple(arg for position, arg in enumerate(bound.args) if position not in nondiff))
        leaves, structure = array_leaves(self.fun, differentiable, {})
        if not is_traced(leaves):
            return self.fun(*bound.args)
        call = _Call(self.fun, nondiff, len(bound.args), flatten_hiding_float0(differentiable)[1])
        flat = FlatFunction(call.bound_function, structure)
        operands = [as_operand(x) for x in leaves]
        program, captured = build(flat, [x.type for x in operands], function_name(self.fun))
        outputs = self._op(call, flat.out_tree, program, len(captured))(*operands, *captured)
        return flat.out_tree.unflatten(list(outputs))


@final
class custom_jvp(_CustomDerivative[_P, _R]):
    """Define a function with a custom derivative rule in forward mode, which `defjvp` sets.

    Reverse mode transposes the rule, so it works too.

    Args:
        fun: the function.
        nondiff_argnums: the positions of arguments that are not differentiated. They can be any Python objects; the
            rule receives them first.

    Raises:
        AttributeError: when a traced call needs the rule and there is none.
        TypeError: when called, if `fun` has keyword-only parameters or a differentiable argument is not a pytree of
            arrays; when differentiated, if the rule does not return a result and a tangent of the types of the
            function's result.

    Example:
        >>> @jax.custom_jvp
        ... def safe_sqrt(x):
        ...     return jnp.sqrt(x)
        >>> @safe_sqrt.defjvp
        ... def safe_sqrt_jvp(primals, tangents):
        ...     (x,), (dx,) = primals, tangents
        ...     return safe_sqrt(x), dx / jnp.maximum(2 * safe_sqrt(x), 0.5)
        >>> jax.grad(safe_sqrt)(0.0)
        Array(2., dtype=float32, weak_type=True)
    """

    name = "custom_jvp"

    def __init__(self, fun: Callable[_P, _R], nondiff_argnums: int | Sequence[int] = ()):
        super().__init__(fun, nondiff_argnums)
        self.jvp: Function | None = None
        self.symbolic_zeros = False

    def defjvp(self, jvp: Function, symbolic_zeros: bool = False) -> Function:
        """Set the rule: `jvp(*nondiff_args, primals, tangents)` returns the result and its tangent.

        With `symbolic_zeros`, the rule receives a tangent that is known to be zero as a `SymbolicZero`.
        """
        self.jvp, self.symbolic_zeros = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Function | None) -> None:
        """Set one rule per argument: `jvp(tangent, result, *primals)`, or None where the derivative is zero."""
        if self.nondiff_argnums:
            raise TypeError(
                f"custom_jvp: defjvps of {describe_function(self.fun)} does not support nondiff_argnums: use defjvp"
            )

        function: Function = self

        def sum_of_rules(primals: Any, tangents: Any) -> Any:
            result = function(*primals)
            parts = [rule(t, result, *primals) for rule, t in zip(jvps, tangents, strict=True) if rule is not None]
            total = parts[0] if parts else tree.map(lambda x: full(x.type.shape, 0, x.type.dtype), result)
            for part in parts[1:]:
                total = tree.map(add_tangents, total, part)
            return result, total

        self.defjvp(sum_of_rules)

    def _op(self, call: _Call, out_tree: tree.Structure, program: Any, captured_count: int) -> Any:
        if self.jvp is None:
            raise AttributeError(
                f"custom_jvp: {describe_function(self.fun)} has no derivative rule: define it with `defjvp`"
            )
        rule = _JvpRule(call, self.jvp, out_tree, program.out_types, self.symbolic_zeros)
        return CustomJvp(program, captured_count, rule)


@final
class _JvpRule:
    """A user's jvp rule as a function of flat lists."""

    def __init__(
        self, call: _Call, rule: Function, out_tree: tree.Structure, types: Sequence[ArrayType], symbolic: bool
    ):
        self.call, self.rule, self.out_tree, self.types, self.symbolic = call, rule, out_tree, types, symbolic

    @property
    def name(self) -> str:
        return function_name(self.call.function)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        dense = [_rule_operand(x.type, t, self.symbolic) for x, t in zip(primals, tangents, strict=True)]
        structure = self.call.structure
        with resolve_shardings(False):
            pair = self.rule(*self.call.nondiff_args, structure.unflatten(list(primals)), structure.unflatten(dense))
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise TypeError(
                f"the jvp rule of {describe_function(self.call.function)} must return (result, tangent), not {pair!r}"
            )
        out = _check_leaves("jvp rule", "result", pair[0], self.out_tree, self.types, self.call.function)
        tangents_out = _check_leaves("jvp rule", "tangent", pair[1], self.out_tree, self.types, self.call.function)
        return out, tangents_out


@final
class custom_vjp(_CustomDerivative[_P, _R]):
    """Define a function with custom derivative rules in reverse mode, which `defvjp` sets.

    Forward mode is not supported for such a function.

    Args:
        fun: the function.
        nondiff_argnums: the positions of arguments that are not differentiated. They can be any Python objects; the
            backward rule receives them first.

    Raises:
        AttributeError: when a traced call needs the rules and there are none.
        TypeError: when called, if `fun` has keyword-only parameters or a differentiable argument is not a pytree of
            arrays; when differentiated, if a rule returns something of a wrong structure or type.

    Example:
        >>> @jax.custom_vjp
        ... def clip_gradient(x):
        ...     return x
        >>> clip_gradient.defvjp(lambda x: (x, None), lambda residuals, ct: (jnp.clip(ct, -1, 1),))
        >>> jax.grad(lambda x: 5 * clip_gradient(x))(2.0)
        Array(1., dtype=float32, weak_type=True)
    """

    name = "custom_vjp"

    def __init__(self, fun: Callable[_P, _R], nondiff_argnums: int | Sequence[int] = ()):
        super().__init__(fun, nondiff_argnums)
        self.fwd: Function | None = None
        self.bwd: Function | None = None
        self.symbolic_zeros = False

    def defvjp(self, fwd: Function, bwd: Function, symbolic_zeros: bool = False, optimize_remat: bool = False) -> None:
        """Set the rules.

        `fwd(*args)` returns the result and the residuals. `bwd(*nondiff_args, residuals, cotangent)` returns a tuple of
        cotangents, one per differentiable argument; None stands for zero.

        With `symbolic_zeros`, `fwd` receives each array as a `CustomVJPPrimal`, which tells whether it is
        differentiated, and `bwd` receives a cotangent that is known to be zero as a `SymbolicZero`.

        `optimize_remat` has no effect: `checkpoint` always recomputes only the parts of `fwd` that are needed.
        """
        self.fwd, self.bwd, self.symbolic_zeros = fwd, bwd, symbolic_zeros

    def _op(self, call: _Call, out_tree: tree.Structure, program: Any, captured_count: int) -> Any:
        if self.fwd is None or self.bwd is None:
            raise AttributeError(
                f"custom_vjp: {describe_function(self.fun)} has no derivative rules: define them with `defvjp`"
            )
        rule = _VjpRule(call, self.fwd, self.bwd, out_tree, program.out_types, self.symbolic_zeros)
        return CustomVjp(program, captured_count, rule)


@final
class _VjpRule:
    """A user's fwd rule as a function of flat lists."""

    def __init__(
        self,
        call: _Call,
        fwd: Function,
        bwd: Function,
        out_tree: tree.Structure,
        types: Sequence[ArrayType],
        symbolic: bool,
    ):
        self.call, self.fwd, self.bwd, self.out_tree, self.types = call, fwd, bwd, out_tree, types
        self.symbolic = symbolic

    @property
    def name(self) -> str:
        return function_name(self.call.function)

    def forward(self, primals: Sequence[Any], active: Sequence[bool]) -> tuple[list[Any], list[Any], "_CotangentMap"]:
        leaves: Sequence[Any] = primals
        if self.symbolic:
            leaves = [CustomVJPPrimal(x, perturbed) for x, perturbed in zip(primals, active, strict=True)]
        with resolve_shardings(False):
            pair = self.fwd(*self.call.arguments(leaves))
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise TypeError(
                f"the fwd rule of {describe_function(self.call.function)} must return (result, residuals), not {pair!r}"
            )
        out = _check_leaves("fwd rule", "result", pair[0], self.out_tree, self.types, self.call.function)
        residuals, structure = tree.flatten(hide_refs(pair[1]))
        constants = {number: x for number, x in enumerate(residuals) if isinstance(x, PYTHON_SCALARS)}
        operands = [as_operand(x) for number, x in enumerate(residuals) if number not in constants]
        return out, operands, _CotangentMap(self, structure, constants, [x.type for x in primals])


@final
class _CotangentMap:
    """A user's bwd rule as a function of flat lists, after one call of the fwd rule.

    Attributes:
        rule: the rules.
        residual_tree: the structure of the residuals.
        constants: the residuals that are Python scalars, by number: the bwd rule may branch on them.
        in_types: the types of the arguments.
    """

    def __init__(
        self, rule: _VjpRule, residual_tree: tree.Structure, constants: dict[int, Any], in_types: list[ArrayType]
    ):
        self.rule, self.residual_tree, self.constants, self.in_types = rule, residual_tree, constants, in_types

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def call(self) -> _Call:
        return self.rule.call

    def __call__(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        types = map(cotangent_type, self.rule.types)
        dense = [_rule_operand(type, ct, self.rule.symbolic) for type, ct in zip(types, cotangents, strict=True)]
        arrays = iter(residuals)
        leaves = [
            self.constants[number] if number in self.constants else next(arrays)
            for number in range(self.residual_tree.num_leaves)
        ]
        residual = self.residual_tree.unflatten(leaves)
        with resolve_shardings(False):
            in_cotangents = self.rule.bwd(*self.call.nondiff_args, residual, self.rule.out_tree.unflatten(dense))
        arguments = self.call.structure.children()
        if not isinstance(in_cotangents, (tuple, list)) or len(in_cotangents) != len(arguments):
            raise TypeError(
                f"the bwd rule of {describe_function(self.call.function)} must return a tuple of {len(arguments)} "
                f"cotangents, one per differentiable argument, not {in_cotangents!r}"
            )
        out: list[Any] = []
        in_types = iter(self.in_types)
        for number, (argument, cotangent) in enumerate(zip(arguments, in_cotangents, strict=True)):
            leaf_types = [next(in_types) for _ in range(argument.num_leaves)]
            if cotangent is None:
                out += [None] * len(leaf_types)
                continue
            leaf_cotangents = _cotangent_leaves(argument, cotangent)
            if leaf_cotangents is None:
                raise TypeError(
                    f"the bwd rule of {describe_function(self.call.function)} returned a cotangent of structure "
                    f"{tree.structure(cotangent)} for argument {number}, which has structure {argument}"
                )
            out += [
                _check_cotangent(type, x, self.call.function)
                for type, x in zip(leaf_types, leaf_cotangents, strict=True)
            ]
        return out


def _cotangent_leaves(argument: tree.Structure, cotangent: Any) -> list[Any] | None:
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

    def __init__(self, type: ArrayType):
        self.type = type

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


def _rule_operand(type: ArrayType, derivative: Any, symbolic: bool) -> Any:
    """Return a tangent or cotangent as a rule receives it: zeros for None, or a SymbolicZero; float0 for integers."""
    if not is_inexact(type.dtype):
        return SymbolicZero(type) if symbolic else np.zeros(type.shape, float0)
    if derivative is None:
        return SymbolicZero(type) if symbolic else zeros_of(type.strong())
    return derivative


def _check_leaves(
    rule: str, role: str, value: Any, structure: tree.Structure, types: Sequence[ArrayType], function: Function
) -> list[Any]:
    """Return the leaves of a rule's result or tangent, which must have the function's structure, shapes and dtypes.

    `role` is "result" or "tangent"; a tangent that is zero becomes None.
    """
    leaves, value_structure = tree.flatten(value, lambda x: isinstance(x, SymbolicZero))
    if value_structure != structure:
        raise TypeError(
            f"the {rule} of {describe_function(function)} returned a {role} of structure {value_structure}, but the "
            f"function returns {structure}"
        )
    out: list[Any] = []
    for number, (leaf, type) in enumerate(zip(leaves, types, strict=True)):
        if role == "tangent" and (not is_inexact(type.dtype) or isinstance(leaf, SymbolicZero)):
            out.append(None)
            continue
        x = as_operand(leaf, rule)
        if x.type.shape != type.shape or x.type.dtype != type.dtype:
            raise TypeError(
                f"the {rule} of {describe_function(function)} returned {role} {number} of type {x.type}, but the "
                f"function returns {type}"
            )
        out.append(x)
    return out


def _check_cotangent(type: ArrayType, leaf: Any, function: Function) -> Any:
    if leaf is None or isinstance(leaf, SymbolicZero) or not is_inexact(type.dtype):
        return None
    x = as_operand(leaf, "bwd rule")
    converts = is_float(x.type.dtype) and is_float(type.dtype)  # a cotangent gets the precision of its primal
    if x.type.shape != type.shape or not (converts or x.type.dtype == type.dtype):
        raise TypeError(
            f"the bwd rule of {describe_function(function)} returned a cotangent of type {x.type} for an argument of "
            f"type {type}"
        )
    return x
