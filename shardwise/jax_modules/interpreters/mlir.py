"""jax.interpreters.mlir: lowering rules of primitives.

A lowering is a function of arrays, which is traced. A rule that JAX would call with MLIR values is called with arrays
too. It may call Python functions by `emit_python_callback`, as Equinox does; building MLIR operations is an error.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.callbacks.callback import call_host
from shardwise.api.jaxprs.primitive import Primitive, lowerings
from shardwise.base.missing_names import report_missing
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.ir.types import ArrayType
from shardwise.errors import MissingRuleError

__all__ = ["emit_python_callback", "lower_fun", "register_lowering"]  # Equinox


@final
class _TracedLowering:
    """The result of `lower_fun`: a lowering that is a function of arrays."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function


@final
class _LoweringContext:
    """The context of a lowering rule: the types of operands and results."""

    def __init__(self, avals_in: Sequence[ArrayType], avals_out: Sequence[ArrayType]):
        self.avals_in, self.avals_out = avals_in, avals_out
        self.module_context = self

    def add_keepalive(self, value: object) -> None:
        """Do nothing: programs keep their callbacks alive."""


def lower_fun(fun: Callable[..., Any], multiple_results: bool = True) -> _TracedLowering:
    """Return a function of arrays as a lowering rule."""
    return _TracedLowering(fun)


_Rule = TypeVar("_Rule", bound=_TracedLowering | Callable[..., Any])


def register_lowering(
    prim: Primitive, rule: _Rule, platform: str | None = None, inline: bool = True, cacheable: bool = True
) -> _Rule:
    """Register the lowering of a primitive: what `lower_fun` has made, or a rule that calls Python functions.

    `inline` and `cacheable` have no effect: a rule is traced where the primitive is applied.
    """
    if isinstance(rule, _TracedLowering):
        lowerings[prim] = rule.function
        return rule
    call: Callable[..., Any] = rule

    def call_rule(*operands: Array, **params: object) -> Sequence[Array] | Array:
        types = [type_of(x) for x in operands]
        results = prim.result_types(types, params)
        try:
            values = list(call(_LoweringContext(types, results or ()), *operands, **params))
        except Exception as error:
            raise MissingRuleError(prim.lowering_problem) from error
        return values if prim.multiple_results else values[0]

    lowerings[prim] = call_rule
    return rule


def emit_python_callback(
    ctx: object,
    callback: Callable[..., Any],
    token: object,
    operands: Sequence[Array],
    operand_avals: Sequence[ArrayType],
    result_avals: Sequence[ArrayType],
    *,
    has_side_effect: bool,
    returns_token: bool = True,
    partitioned: bool = False,
    sharding: object = None,
) -> tuple[Sequence[Any], Any, None]:
    """Call a Python function of arrays from the program. Returns the results, the token, and None.

    `partitioned`: whether every device calls it with its own shards. `returns_token` has no effect: programs order
    callbacks without tokens.
    """
    structs = tuple(ShapeDtypeStruct(type.shape, type.dtype) for type in result_avals)
    kind = "unordered" if has_side_effect else "pure"
    results = call_host(callback, structs, tuple(operands), {}, kind, sharding, partitioned=partitioned)
    return results, token, None


report_missing(__name__, __all__)
