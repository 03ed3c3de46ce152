"""jax.interpreters.mlir: lowering rules of primitives.

A rule is called with values of MLIR, and builds a module of StableHLO, which is read as a function of arrays. So what
it computes is propagated, partitioned and explained as any other program. Functions of arrays (`lower_fun`) and Python
functions (`emit_python_callback`) are no operations of a module: a rule that calls one is called again, with arrays.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

import numpy as np

from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.callbacks.callback import call_host
from shardwise.api.jaxprs.primitive import Primitive, lowerings
from shardwise.base._jaxlib import build_module, mlir_ir
from shardwise.base.missing_names import report_missing
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import DTypeLike
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.hlo import element_type, literal, tensor_type
from shardwise.extend.mlir import ir
from shardwise.stablehlo.load import load
from shardwise.typing import ArrayLike, SupportsShape

__all__ = [
    "aval_to_ir_type",
    "dense_int_array",
    "dtype_to_ir_type",
    "emit_python_callback",
    "ir",
    "ir_constant",
    "lower_fun",
    "register_lowering",
]


class _NeedsArrays(Exception):
    """A rule that was called with values of MLIR calls a function of arrays."""


def _check_arrays(operands: Sequence[object]) -> None:
    if any(isinstance(x, mlir_ir.Value) for x in operands):
        raise _NeedsArrays


@final
class _TracedLowering:
    """The result of `lower_fun`: a lowering that is a function of arrays. Rules may call it."""

    def __init__(self, function: Callable[..., Any], multiple_results: bool):
        self.function, self.multiple_results = function, multiple_results

    def __call__(self, ctx: object, *operands: Array, **params: object) -> Sequence[Array]:
        _check_arrays(operands)
        result = self.function(*operands, **params)
        return list(result) if self.multiple_results else [result]


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
    return _TracedLowering(fun, multiple_results)


_Rule = TypeVar("_Rule", bound=_TracedLowering | Callable[..., Any])


def register_lowering(
    prim: Primitive, rule: _Rule, platform: str | None = None, inline: bool = True, cacheable: bool = True
) -> _Rule:
    """Register the lowering of a primitive: what `lower_fun` has made, or a rule that builds operations of MLIR.

    `inline` and `cacheable` have no effect: a rule is traced where the primitive is applied.
    """
    if isinstance(rule, _TracedLowering):
        lowerings[prim] = rule.function
        return rule
    call: Callable[..., Any] = rule

    def call_rule(*operands: Array, **params: object) -> Sequence[Array] | Array:
        types = [type_of(x) for x in operands]
        context = _LoweringContext(types, prim.result_types(types, params) or ())
        try:
            text = build_module([tensor_type(type) for type in types], lambda *args: call(context, *args, **params))
        except _NeedsArrays:
            values = list(call(context, *operands, **params))
            return values if prim.multiple_results else values[0]
        result = load(text)(*operands)
        return [result] if prim.multiple_results and not isinstance(result, tuple) else result

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
    _check_arrays(operands)
    structs = tuple(ShapeDtypeStruct(type.shape, type.dtype) for type in result_avals)
    kind = "unordered" if has_side_effect else "pure"
    results = call_host(callback, structs, tuple(operands), {}, kind, sharding, partitioned=partitioned)
    return results, token, None


def dtype_to_ir_type(dtype: DTypeLike) -> Any:
    """Return the type of MLIR for the elements of arrays."""
    return mlir_ir.Type.parse(element_type(canonical_dtype(dtype)))


def aval_to_ir_type(ctx: object, aval: SupportsShape) -> Any:
    """Return the type of MLIR for arrays of a type. `ctx` has no effect: types do not depend on the module."""
    return mlir_ir.Type.parse(tensor_type(ArrayType(tuple(aval.shape), canonical_dtype(aval.dtype))))


def ir_constant(val: ArrayLike, *, const_lowering: object = None, aval: SupportsShape | None = None) -> Any:
    """Emit a constant of StableHLO, and return its value.

    `aval` is its type, if it is not that of `val`. `const_lowering` has no effect: constants are part of the module.
    """
    array = np.asarray(val)
    type = ArrayType(array.shape, type_of(val).dtype if aval is None else canonical_dtype(aval.dtype))
    if type.dtype.kind == "c":  # jaxlib does not parse complex elements
        elements = np.ascontiguousarray(array, type.dtype)
        value = mlir_ir.DenseElementsAttr.get(elements, type=dtype_to_ir_type(type.dtype), shape=array.shape)
    else:
        elements = np.array([literal(x, type.dtype) for x in array.ravel()], object).reshape(array.shape)
        text = str(elements.tolist()).replace("'", "") if array.size else ""
        value = mlir_ir.Attribute.parse(f"dense<{text}> : {tensor_type(type)}")
    return mlir_ir.Operation.create("stablehlo.constant", [value.type], attributes={"value": value}).result


def dense_int_array(xs: Sequence[int]) -> Any:
    """Return an attribute of MLIR with 64-bit integers, such as the dims of an operation."""
    return mlir_ir.DenseI64ArrayAttr.get([int(x) for x in xs])


report_missing(__name__, __all__)
