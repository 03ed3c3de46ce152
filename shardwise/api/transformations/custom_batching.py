"""custom_vmap and sequential_vmap: functions with batching rules that the user defines."""

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, final

from shardwise import tree
from shardwise.api.arguments import array_leaves, call_text, check_function, describe_function, function_name
from shardwise.api.control import map as map_slices
from shardwise.api.flatten import FlatFunction, is_traced
from shardwise.api.transformations.custom import ForwardsDefinitions
from shardwise.api.transformations.float0 import flatten_hiding_float0
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.control.custom_batching import BatchingRule, CustomVmap
from shardwise.compiler.dtypes import is_inexact
from shardwise.compiler.ir.dispatch import resolve_shardings
from shardwise.compiler.ir.masks import insert_none
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.placement.retype import zeros_of
from shardwise.compiler.ops.reduce.broadcast import batch_dim_at
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.linearize import jvp_function

Function = Callable[..., Any]
_P = ParamSpec("_P")
_R = TypeVar("_R")


@final
class custom_vmap(ForwardsDefinitions, Generic[_P, _R]):
    """Define a function with a custom batching rule, which `def_vmap` sets and `vmap` uses.

    Forward mode differentiates the rule too. Reverse mode needs `custom_vjp` around it: `custom_vjp(custom_vmap(f))`.

    Args:
        fun: the function.

    Raises:
        AttributeError: when called, if there is no rule.
        TypeError: when called, if an argument is not a pytree of arrays; when mapped, if the function closes over a
            mapped value, or if the rule returns something of a wrong type.
        ValueError: when mapped, if the rule returns results of another structure than the function.
        NotImplementedError: when differentiated in reverse mode.

    Example:
        >>> @jax.custom_batching.custom_vmap
        ... def add(x, y):
        ...     return x + y
        >>> @add.def_vmap
        ... def add_vmap(axis_size, in_batched, xs, ys):
        ...     return xs * ys, True  # not the sum, so that the use of the rule shows
        >>> jax.vmap(add)(jnp.arange(3), jnp.arange(1, 4))
        Array([0, 2, 6], dtype=int32)
    """

    def __init__(self, fun: Callable[_P, _R]):
        check_function("custom_vmap", fun)
        self.fun: Function = fun
        self.vmap_rule: Function | None = None
        update_wrapper(self, fun, updated=())

    def __repr__(self) -> str:
        return f"<custom_vmap of {call_text(self.fun)}>"

    def def_vmap(self, vmap_rule: Function) -> Function:
        """Set the rule: `vmap_rule(axis_size, in_batched, *args)` returns the results and which of them are batched.

        `in_batched` is a list with a pytree of booleans per argument. Batched arguments and results have the batch axis
        first. Of the jvp of the function, an argument is batched if its tangent is.
        """
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: _P.args, **keywords: _P.kwargs) -> _R:
        if self.vmap_rule is None:
            raise AttributeError(
                f"custom_vmap: {describe_function(self.fun)} has no batching rule: define it with `def_vmap`"
            )
        bound = inspect.signature(self.fun).bind(*args, **keywords)
        bound.apply_defaults()
        if bound.kwargs:
            raise TypeError(
                f"custom_vmap: {describe_function(self.fun)} has keyword-only parameters, which its rule cannot "
                "receive: make them positional"
            )
        leaves, structure = array_leaves(self.fun, bound.args, {})
        if not is_traced(leaves):
            return self.fun(*bound.args)
        flat = FlatFunction(self.fun, structure)
        operands = [as_operand(x) for x in leaves]
        program, captured = build(flat, [x.type for x in operands], function_name(self.fun))
        in_tree = flatten_hiding_float0(bound.args)[1]
        rule = _Rule(self.fun, self.vmap_rule, in_tree, flat.out_tree, program.out_types)
        return flat.out_tree.unflatten(list(CustomVmap(program, rule)(*operands, *captured)))


@final
class _Rule:
    """A user's batching rule as a function of flat lists. The last operands are values that the function captures."""

    def __init__(
        self,
        function: Function,
        rule: Function,
        in_tree: tree.Structure,
        out_tree: tree.Structure,
        types: Sequence[ArrayType],
    ):
        self.function, self.rule, self.in_tree, self.out_tree, self.types = function, rule, in_tree, out_tree, types

    @property
    def name(self) -> str:
        return function_name(self.function)

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], batched: Sequence[bool]) -> tuple[list[Any], list[bool]]:
        count = self.in_tree.num_leaves
        if any(batched[count:]):
            raise TypeError(
                f"custom_vmap: {describe_function(self.function)} closes over a value that is mapped, which its rule "
                "does not receive. Pass the value as an argument."
            )
        args = self.in_tree.unflatten(list(operands[:count]))
        with resolve_shardings(False):
            pair = self.rule(axis.size, list(self.in_tree.unflatten(list(batched[:count]))), *args)
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise TypeError(f"{self._label} must return (results, out_batched), not {pair!r}")
        results, structure = flatten_hiding_float0(pair[0])
        out_batched, batched_structure = tree.flatten(pair[1])
        if structure != self.out_tree or batched_structure != self.out_tree:
            raise ValueError(
                f"{self._label} returned results of structure {structure} and out_batched of structure "
                f"{batched_structure}, but the function returns {self.out_tree}"
            )
        if wrong := [x for x in out_batched if not isinstance(x, bool)]:
            raise TypeError(f"{self._label} returned out_batched with {wrong[0]!r}: it must consist of True and False")
        arrays = [as_operand(x, "custom_vmap") for x in results]
        for index, (x, is_batched, type) in enumerate(zip(arrays, out_batched, self.types, strict=True)):
            shape = (axis.size, *type.shape) if is_batched else type.shape
            if x.type.shape != shape or x.type.dtype != type.dtype:
                raise TypeError(
                    f"{self._label} returned result {index} of type {x.type}, where out_batched is {is_batched}, but "
                    f"the function returns {type}: the rule must return {type.dtype} of shape {shape}"
                )
        return arrays, out_batched

    def jvp(self, active: tuple[bool, ...]) -> "_JvpOfRule":
        return _JvpOfRule(self, active)

    @property
    def _label(self) -> str:
        return f"the batching rule of {describe_function(self.function)}"


@final
class _JvpOfRule:
    """The batching rule of a function's jvp: the jvp of its batching rule."""

    def __init__(self, rule: BatchingRule, active: tuple[bool, ...]):
        self.rule, self.active = rule, active

    @property
    def name(self) -> str:
        return self.rule.name

    def vmap(self, axis: BatchAxis, operands: Sequence[Any], batched: Sequence[bool]) -> tuple[list[Any], list[bool]]:
        count = len(self.active)
        tangents = insert_none(operands[count:], self.active)
        tangent_batched = insert_none(batched[count:], self.active)
        either = [x or bool(t) for x, t in zip(batched, tangent_batched, strict=False)]
        primals = [_batch(x, was, now, axis) for x, was, now in zip(operands, batched, either, strict=False)]
        tangents = [
            t if t is None else _batch(t, was, now, axis)
            for t, was, now in zip(tangents, tangent_batched, either, strict=True)
        ]
        out_batched: list[bool] = []

        def batched_function(*args: Array) -> list[Any]:
            nonlocal out_batched
            results, out_batched = self.rule.vmap(axis, args, either)
            return results

        results, out_tangents = jvp_function(batched_function, primals, tangents, self.name)
        dense = [
            zeros_of(x.type) if t is None else t
            for x, t in zip(results, out_tangents, strict=True)
            if is_inexact(x.type.dtype)
        ]
        differentiable = [x for x, result in zip(out_batched, results, strict=True) if is_inexact(result.type.dtype)]
        return [*results, *dense], [*out_batched, *differentiable]

    def jvp(self, active: tuple[bool, ...]) -> "_JvpOfRule":
        return _JvpOfRule(self, active)


def _batch(x: Array, is_batched: bool, target: bool, axis: BatchAxis) -> Array:
    """Return `x` with a batch dim, if `target` and it has none."""
    return batch_dim_at(x, None, 0, axis.size) if target and not is_batched else x


def sequential_vmap(f: Callable[_P, _R]) -> custom_vmap[_P, _R]:
    """Define a function that `vmap` calls for one slice after the other, in a loop.

    Args:
        f: the function.

    Returns:
        A `custom_vmap` function whose rule is `lax.map`.

    Raises:
        TypeError: if `f` is not callable.

    Example:
        >>> @jax.custom_batching.sequential_vmap
        ... def show(x):
        ...     jax.debug.print("{}", x)
        ...     return x + 1
        >>> jax.vmap(show)(jnp.arange(3))
        0
        1
        2
        Array([1, 2, 3], dtype=int32)
    """
    function: custom_vmap[_P, _R] = custom_vmap(f)
    call_slice: Function = function

    def rule(axis_size: int, in_batched: list[Any], *args: object) -> tuple[Any, Any]:
        flags = tree.leaves(in_batched)
        leaves, structure = tree.flatten(args)
        mapped = [x for x, is_batched in zip(leaves, flags, strict=True) if is_batched]

        def call(slices: list[Any]) -> Any:
            rest = iter(slices)
            arguments = [next(rest) if is_batched else x for x, is_batched in zip(leaves, flags, strict=True)]
            return call_slice(*structure.unflatten(arguments))

        results = map_slices(call, mapped)
        return results, tree.map(lambda _: True, results)

    function.def_vmap(rule)
    return function
