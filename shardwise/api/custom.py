"""custom_jvp and custom_vjp: functions whose derivative the user writes."""

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, NamedTuple, final

import numpy as np

from shardwise import tree
from shardwise.api.arguments import array_leaves, describe_function, function_name
from shardwise.api.differentiate import float0
from shardwise.api.flatten import FlatFunction, is_traced
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.types import ArrayType, Typed
from shardwise.compiler.ops.control.custom_derivatives import CustomJvp, CustomVjp
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.build import build

Function = Callable[..., Any]


class _Call(NamedTuple):
    """One call of a custom function: its arguments apart, and the structures that its rule needs."""

    function: Function
    fixed: dict[int, Any]  # arguments that are not differentiated, by place
    total: int
    structure: tree.Structure  # of the tuple of the other arguments

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """All arguments in order."""
        rest = iter(self.structure.unflatten(list(leaves)))
        return [self.fixed[place] if place in self.fixed else next(rest) for place in range(self.total)]

    def dynamic(self, *args: Any) -> Any:
        """The function of the other arguments alone."""
        return self.function(*self.arguments(tree.leaves(args)))

    @property
    def leading(self) -> list[Any]:
        """The arguments that are not differentiated, which rules get first."""
        return [self.fixed[place] for place in sorted(self.fixed)]


class _Custom:
    """What both kinds share: taking a call apart, and making it an op where it is traced."""

    kind: str

    def __init__(self, fun: Function, nondiff_argnums: int | Sequence[int] = ()):
        self.fun = fun
        self.nondiff_argnums = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        update_wrapper(self, fun, updated=())

    def _op(self, call: _Call, results: tree.Structure, program: Any, captured: int) -> Any:
        raise NotImplementedError

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        given = inspect.signature(self.fun).bind(*args, **keywords)
        given.apply_defaults()
        if given.kwargs:
            raise TypeError(
                f"{self.kind}: {describe_function(self.fun)} has keyword-only parameters, which rules cannot get"
            )
        fixed = {place % len(given.args): given.args[place] for place in self.nondiff_argnums}
        dynamic = tuple(arg for place, arg in enumerate(given.args) if place not in fixed)
        leaves, structure = array_leaves(self.fun, dynamic, {})
        if not is_traced(leaves):
            return self.fun(*given.args)
        call = _Call(self.fun, fixed, len(given.args), tree.structure(dynamic))
        flat = FlatFunction(call.dynamic, structure)
        operands = [as_operand(x) for x in leaves]
        program, captured = build(flat, [x.type for x in operands], function_name(self.fun))
        found = self._op(call, flat.out_tree, program, len(captured))(*operands, *captured)
        return flat.out_tree.unflatten(list(found))


@final
class custom_jvp(_Custom):
    """A function whose derivative is given in forward mode, by `defjvp`.

    Arguments in `nondiff_argnums` may be anything; rules get them first.

    >>> @jax.custom_jvp
    ... def safe_sqrt(x):
    ...     return jnp.sqrt(x)
    >>> @safe_sqrt.defjvp
    ... def slope(primals, tangents):
    ...     (x,), (dx,) = primals, tangents
    ...     return safe_sqrt(x), dx / jnp.maximum(2 * safe_sqrt(x), 0.5)
    >>> jax.grad(safe_sqrt)(0.0)
    Array(2., dtype=float32)
    """

    kind = "custom_jvp"

    def __init__(self, fun: Function, nondiff_argnums: int | Sequence[int] = ()):
        super().__init__(fun, nondiff_argnums)
        self.jvp: Function | None = None
        self.symbolic_zeros = False

    def defjvp(self, jvp: Function, symbolic_zeros: bool = False) -> Function:
        """Give the rule: `jvp(*nondiff, primals, tangents)` returns the result and its tangent.

        With `symbolic_zeros`, a tangent that is zero is given as a `SymbolicZero`.
        """
        self.jvp, self.symbolic_zeros = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Function | None) -> None:
        """Give one rule an argument: `jvp(tangent, result, *primals)`, or None where the derivative is zero."""
        if self.nondiff_argnums:
            raise TypeError(f"custom_jvp: defjvps of {describe_function(self.fun)} cannot be used with nondiff_argnums")

        def together(primals: Any, tangents: Any) -> Any:
            result = self(*primals)
            parts = [rule(t, result, *primals) for rule, t in zip(jvps, tangents, strict=True) if rule is not None]
            total = parts[0] if parts else tree.map(lambda x: full(x.type.shape, 0, x.type.dtype), result)
            for part in parts[1:]:
                total = tree.map(add_tangents, total, part)
            return result, total

        self.defjvp(together)

    def _op(self, call: _Call, results: tree.Structure, program: Any, captured: int) -> Any:
        if self.jvp is None:
            raise AttributeError(f"custom_jvp: {describe_function(self.fun)} has no rule: give one with `.defjvp`")
        rule = _JvpRule(call, self.jvp, results, program.out_types, self.symbolic_zeros)
        return CustomJvp(program, captured, rule)


@final
class _JvpRule:
    """A user's rule, on flat lists."""

    def __init__(
        self, call: _Call, rule: Function, results: tree.Structure, types: Sequence[ArrayType], symbolic: bool
    ):
        self.call, self.rule, self.results, self.types, self.symbolic = call, rule, results, types, symbolic

    @property
    def name(self) -> str:
        return function_name(self.call.function)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        directions = [_given(x.type, t, self.symbolic) for x, t in zip(primals, tangents, strict=True)]
        structure = self.call.structure
        found = self.rule(*self.call.leading, structure.unflatten(list(primals)), structure.unflatten(directions))
        if not (isinstance(found, tuple) and len(found) == 2):
            raise TypeError(
                f"the jvp rule of {describe_function(self.call.function)} must return (result, tangent), not {found!r}"
            )
        out = _fitting("jvp rule", "result", found[0], self.results, self.types, self.call.function)
        moved = _fitting("jvp rule", "tangent", found[1], self.results, self.types, self.call.function)
        return out, moved


@final
class custom_vjp(_Custom):
    """A function whose derivative is given in reverse mode, by `defvjp`.

    Arguments in `nondiff_argnums` may be anything; the backward rule gets them first.

    >>> @jax.custom_vjp
    ... def clipped(x):
    ...     return x
    >>> clipped.defvjp(lambda x: (x, None), lambda residuals, flow: (jnp.clip(flow, -1, 1),))
    >>> jax.grad(lambda x: 5 * clipped(x))(2.0)
    Array(1., dtype=float32)
    """

    kind = "custom_vjp"

    def __init__(self, fun: Function, nondiff_argnums: int | Sequence[int] = ()):
        super().__init__(fun, nondiff_argnums)
        self.fwd: Function | None = None
        self.bwd: Function | None = None
        self.symbolic_zeros = False

    def defvjp(self, fwd: Function, bwd: Function, symbolic_zeros: bool = False) -> None:
        """Give the rules: `fwd(*args)` returns the result and residuals; `bwd(*nondiff, residuals, cotangent)` a tuple
        of cotangents, one for each differentiable argument (None where it is zero).

        With `symbolic_zeros`, `fwd` gets each array as a `CustomVJPPrimal`, which says whether it is differentiated,
        and `bwd` gets a `SymbolicZero` for a cotangent that is zero.
        """
        self.fwd, self.bwd, self.symbolic_zeros = fwd, bwd, symbolic_zeros

    def _op(self, call: _Call, results: tree.Structure, program: Any, captured: int) -> Any:
        if self.fwd is None or self.bwd is None:
            raise AttributeError(f"custom_vjp: {describe_function(self.fun)} has no rules: give them with `.defvjp`")
        rule = _VjpRule(call, self.fwd, self.bwd, results, program.out_types, self.symbolic_zeros)
        return CustomVjp(program, captured, rule)


@final
class _VjpRule:
    """A user's rules, on flat lists. The structure of the residuals is noted when they are made."""

    def __init__(
        self,
        call: _Call,
        fwd: Function,
        bwd: Function,
        results: tree.Structure,
        types: Sequence[ArrayType],
        symbolic: bool,
    ):
        self.call, self.fwd, self.bwd, self.results, self.types = call, fwd, bwd, results, types
        self.symbolic = symbolic
        self.residuals: tree.Structure = None
        self.in_types: list[ArrayType] = []

    @property
    def name(self) -> str:
        return function_name(self.call.function)

    def forward(self, primals: Sequence[Any], active: Sequence[bool]) -> tuple[list[Any], list[Any]]:
        self.in_types = [x.type for x in primals]
        given = [CustomVJPPrimal(x, on) for x, on in zip(primals, active, strict=True)] if self.symbolic else primals
        found = self.fwd(*self.call.arguments(given))
        if not (isinstance(found, tuple) and len(found) == 2):
            raise TypeError(f"the fwd rule of {describe_function(self.call.function)} must return (result, residuals)")
        out = _fitting("fwd rule", "result", found[0], self.results, self.types, self.call.function)
        leaves, self.residuals = tree.flatten(found[1])
        return out, [as_operand(x) for x in leaves]

    def backward(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        given = [_given(type, ct, self.symbolic) for type, ct in zip(self.types, cotangents, strict=True)]
        kept = self.residuals.unflatten(list(residuals))
        found = self.bwd(*self.call.leading, kept, self.results.unflatten(given))
        arguments = self.call.structure.children()
        if not isinstance(found, (tuple, list)) or len(found) != len(arguments):
            raise TypeError(
                f"the bwd rule of {describe_function(self.call.function)} must return a tuple of {len(arguments)} "
                "cotangents, "
                f"one for each differentiable argument, not {found!r}"
            )
        out: list[Any] = []
        types = iter(self.in_types)
        for number, (argument, part) in enumerate(zip(arguments, found, strict=True)):
            wanted = [next(types) for _ in range(argument.num_leaves)]
            if part is None:
                out += [full(type.shape, 0, type.dtype) for type in wanted]
                continue
            try:
                leaves = argument.flatten_up_to(part)
            except ValueError:
                raise TypeError(
                    f"the bwd rule of {describe_function(self.call.function)} returned a cotangent of structure "
                    f"{tree.structure(part)} for argument {number}, expected {argument}"
                ) from None
            out += [_cotangent(type, leaf, self.call.function) for type, leaf in zip(wanted, leaves, strict=True)]
        return out


@final
class SymbolicZero(Typed):
    """Stands for a tangent or cotangent that is zero, where a rule asked for these."""

    def __init__(self, type: ArrayType):
        self.type = type

    def __repr__(self) -> str:
        return f"SymbolicZero({self.type})"


class CustomVJPPrimal(NamedTuple):
    """An argument of a fwd rule with `symbolic_zeros`: its value, and whether it is differentiated."""

    value: Any
    perturbed: bool


def _given(type: ArrayType, derivative: Any, symbolic: bool) -> Any:
    """A tangent or cotangent as a rule sees it: zeros are zeros, or symbols; integers have none."""
    if not is_inexact(type.dtype):
        return np.zeros(type.shape, float0)
    if derivative is None:
        return SymbolicZero(type) if symbolic else full(type.shape, 0, type.dtype)
    return derivative


def _fitting(
    rule: str, what: str, found: Any, structure: tree.Structure, types: Sequence[ArrayType], function: Function
) -> list[Any]:
    """The leaves of what a rule returned, if they have the structure, shapes and dtypes of the function's results."""
    leaves, shape = tree.flatten(found, lambda x: isinstance(x, SymbolicZero))
    if shape != structure:
        raise TypeError(
            f"the {rule} of {describe_function(function)} returned a {what} of structure {shape}; the function's is "
            f"{structure}"
        )
    out: list[Any] = []
    for number, (leaf, type) in enumerate(zip(leaves, types, strict=True)):
        if what == "tangent" and (not is_inexact(type.dtype) or isinstance(leaf, SymbolicZero)):
            out.append(None)
            continue
        x = as_operand(leaf, rule)
        if x.type.shape != type.shape or x.type.dtype != type.dtype:
            raise TypeError(
                f"the {rule} of {describe_function(function)} returned a {what} {number} of type {x.type}; the "
                "function's is "
                f"{type}"
            )
        out.append(x)
    return out


def _cotangent(type: ArrayType, leaf: Any, function: Function) -> Any:
    if leaf is None or isinstance(leaf, SymbolicZero) or not is_inexact(type.dtype):
        return full(type.shape, 0, type.dtype)
    x = as_operand(leaf, "bwd rule")
    if x.type.shape != type.shape or x.type.dtype != type.dtype:
        raise TypeError(
            f"the bwd rule of {describe_function(function)} returned a cotangent of type {x.type} for {type}"
        )
    return x
