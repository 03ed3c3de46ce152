"""custom_jvp and custom_vjp: functions with derivative rules that the user defines."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, final

from shardwise import tree
from shardwise.api.arguments import array_leaves, call_text, describe_function, function_name
from shardwise.api.flatten import FlatFunction
from shardwise.api.ref import hide_refs
from shardwise.api.static_args import select_arguments
from shardwise.api.transformations.closure_tracers import closure_tracers
from shardwise.api.transformations.derivative_rules import FlatJvpRule, FlatVjpRule, Results, RuleCall
from shardwise.api.transformations.float0 import flatten_hiding_float0
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.control.custom_derivatives import (
    CustomJvp,
    CustomVjp,
    forward_mode_error,
    linearize_by_rule,
)
from shardwise.compiler.ir.dispatch import rebound_names, recording_frame
from shardwise.compiler.ir.program import Program, Value
from shardwise.compiler.ops.elementwise.arithmetic import add_tangents
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.linearize import DualFrame

Function = Callable[..., Any]
_P = ParamSpec("_P")
_R = TypeVar("_R")


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
    """Base of custom_jvp and custom_vjp: splits the arguments of a call, and records a traced call as one op.

    A call that is differentiated at once, as in `grad(f)`, is not recorded: its rule runs instead of the function.
    """

    name: str

    def __init__(
        self,
        fun: Callable[_P, _R],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ):
        self.fun: Function = fun
        named = select_arguments(fun, "nondiff", None, nondiff_argnames).numbers if nondiff_argnames else ()
        numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else nondiff_argnums
        self.nondiff_argnums = tuple(sorted({*numbers, *named}))
        update_wrapper(self, fun, updated=())

    def __repr__(self) -> str:
        return f"<{self.name} of {call_text(self.fun)}>"

    def _op(self, call: RuleCall, results: Results, program: Program, captured_count: int) -> Any:
        """Return the op of a traced call."""
        raise NotImplementedError

    def _differentiate(
        self, call: RuleCall, results: Results, primals: Sequence[Any], tangents: Sequence[Any], linearizing: bool
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Run the rule, and return the leaves of the result and their tangents."""
        raise NotImplementedError

    def _rules(self) -> tuple[Function, ...]:
        """Return the user's rules; raise an AttributeError if they are not defined."""
        raise NotImplementedError

    def __call__(self, *args: _P.args, **keywords: _P.kwargs) -> _R:
        self._rules()
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
        frame = recording_frame(leaves)
        if frame is None:
            return self.fun(*bound.args)
        call = RuleCall(self.fun, nondiff, len(bound.args), flatten_hiding_float0(differentiable)[1])
        operands = [as_operand(x) for x in leaves]
        if isinstance(frame, DualFrame):
            return self._call_in(frame, call, operands)
        flat = FlatFunction(call.bound_function, structure)
        program, captured = build(flat, [x.type for x in operands], function_name(self.fun))
        results = Results(flat.out_tree, program.out_types)
        # The program ignores values that only the rules close over, but a transformation passes them on to the rules.
        rule_captured = [x for x in closure_tracers(*self._rules()) if not any(x is y for y in captured)]
        program = replace(program, inputs=(*program.inputs, *(Value(x.type) for x in rule_captured)))
        captured = [*captured, *rule_captured]
        call = call._replace(captured=list(map(rebound_names, captured)), rule_captured=len(rule_captured))
        outputs = self._op(call, results, program, len(captured))(*operands, *captured)
        return flat.out_tree.unflatten(list(outputs))

    def _call_in(self, frame: DualFrame, call: RuleCall, operands: Sequence[Any]) -> Any:
        """Return the result of a call in a function that is being differentiated."""
        results = Results()

        def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
            if any(tangent is not None for tangent in tangents):
                return self._differentiate(call, results, primals, tangents, frame.duals.linearizing)
            call_outside: Function = self
            out = results.leaves("function", call_outside(*call.arguments(primals)), self.fun)
            return out, [None] * len(out)

        outputs = frame.apply_rule(function_name(self.fun), rule, operands)
        return results.structure.unflatten(list(outputs))


@final
class custom_jvp(_CustomDerivative[_P, _R]):
    """Define a function with a custom derivative rule in forward mode, which `defjvp` sets.

    Reverse mode transposes the rule, so it works too.

    Args:
        fun: the function.
        nondiff_argnums: the positions of arguments that are not differentiated. They can be any Python objects; the
            rule receives them first.
        nondiff_argnames: the names of such arguments.

    Raises:
        AttributeError: when called, if there is no rule.
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

    def __init__(
        self,
        fun: Callable[_P, _R],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ):
        super().__init__(fun, nondiff_argnums, nondiff_argnames)
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

        def sum_of_rules(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
            result = function(*primals)
            parts = [rule(t, result, *primals) for rule, t in zip(jvps, tangents, strict=True) if rule is not None]
            total = parts[0] if parts else tree.map(lambda x: full(x.type.shape, 0, x.type.dtype), result)
            for part in parts[1:]:
                total = tree.map(add_tangents, total, part)
            return result, total

        self.defjvp(sum_of_rules)

    def _rules(self) -> tuple[Function, ...]:
        if self.jvp is None:
            raise AttributeError(
                f"custom_jvp: {describe_function(self.fun)} has no derivative rule: define it with `defjvp`"
            )
        return (self.jvp,)

    def _rule(self, call: RuleCall, results: Results) -> FlatJvpRule:
        (jvp,) = self._rules()
        return FlatJvpRule(call, jvp, results, self.symbolic_zeros)

    def _op(self, call: RuleCall, results: Results, program: Program, captured_count: int) -> Any:
        return CustomJvp(program, captured_count, self._rule(call, results))

    def _differentiate(
        self, call: RuleCall, results: Results, primals: Sequence[Any], tangents: Sequence[Any], linearizing: bool
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        return self._rule(call, results).jvp(primals, tangents)


@final
class custom_vjp(_CustomDerivative[_P, _R]):
    """Define a function with custom derivative rules in reverse mode, which `defvjp` sets.

    Forward mode is not supported for such a function.

    Args:
        fun: the function.
        nondiff_argnums: the positions of arguments that are not differentiated. They can be any Python objects; the
            backward rule receives them first.
        nondiff_argnames: the names of such arguments.

    Raises:
        AttributeError: when called, if there are no rules.
        TypeError: when called, if `fun` has keyword-only parameters or a differentiable argument is not a pytree of
            arrays; when differentiated, if a rule returns something of a wrong structure, or `fwd` a wrong type.
        ValueError: when differentiated, if `bwd` returns a cotangent of a wrong shape or dtype.

    Example:
        >>> @jax.custom_vjp
        ... def clip_gradient(x):
        ...     return x
        >>> clip_gradient.defvjp(lambda x: (x, None), lambda residuals, ct: (jnp.clip(ct, -1, 1),))
        >>> jax.grad(lambda x: 5 * clip_gradient(x))(2.0)
        Array(1., dtype=float32, weak_type=True)
    """

    name = "custom_vjp"

    def __init__(
        self,
        fun: Callable[_P, _R],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ):
        super().__init__(fun, nondiff_argnums, nondiff_argnames)
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

    def _rules(self) -> tuple[Function, ...]:
        if self.fwd is None or self.bwd is None:
            raise AttributeError(
                f"custom_vjp: {describe_function(self.fun)} has no derivative rules: define them with `defvjp`"
            )
        return self.fwd, self.bwd

    def _rule(self, call: RuleCall, results: Results) -> FlatVjpRule:
        fwd, bwd = self._rules()
        return FlatVjpRule(call, fwd, bwd, results, self.symbolic_zeros)

    def _op(self, call: RuleCall, results: Results, program: Program, captured_count: int) -> Any:
        return CustomVjp(program, captured_count, self._rule(call, results))

    def _differentiate(
        self, call: RuleCall, results: Results, primals: Sequence[Any], tangents: Sequence[Any], linearizing: bool
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        if not linearizing:
            raise forward_mode_error(function_name(self.fun))
        return linearize_by_rule(self._rule(call, results), primals, tangents)
