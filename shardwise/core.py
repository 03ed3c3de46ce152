"""Types, tracers, primitives and jaxprs, under the names of `jax.core`."""

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np

from shardwise.api.ahead_of_time.inspect import typeof
from shardwise.api.config_contexts import ensure_compile_time_eval
from shardwise.api.jaxprs.custom_trace import Trace
from shardwise.api.jaxprs.jaxpr import (
    Atom,
    ClosedJaxpr,
    DropVar,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    eval_jaxpr,
    jaxpr_as_fun,
)
from shardwise.api.jaxprs.primitive import Primitive
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.named_sharding import traced_sharding
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.compiler.trace.tracer import Tracer
from shardwise.typing import DTypeLike

__all__ = [
    "AbstractValue",
    "Atom",
    "ClosedJaxpr",
    "DropVar",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "ShapedArray",
    "Trace",
    "Tracer",
    "Var",
    "ensure_compile_time_eval",
    "eval_jaxpr",
    "jaxpr_as_fun",
    "typeof",
    "valid_jaxtype",
]

AbstractValue = ArrayType

# The types of values of a class. TensorFlow Probability adds a proxy of arrays, which functions accept anyway.
pytype_aval_mappings: dict[type, Any] = {np.ndarray: type_of}


class _ArrayTypes(type):
    """The class of `ShapedArray`, whose instances are all types of arrays."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, ArrayType)


@final
class ShapedArray(metaclass=_ArrayTypes):
    """The type of an array, as `typeof` returns it: equal types are one object.

    Args:
        shape: the sizes of the dims.
        dtype: the dtype; without `enable_x64`, a 64-bit dtype becomes 32-bit.
        weak_type: whether the type is weak, as that of a Python scalar is.
        sharding: the sharding; the type shows it along Explicit mesh axes.
        vma: the Manual mesh axes over which the value varies, inside `shard_map`.

    Returns:
        The type, with `shape`, `dtype`, `ndim`, `size`, `weak_type`, `sharding`, `vma`, `mat`, `str_short`, `update`.

    Raises:
        TypeError: if `dtype` is unknown, or if a size is negative.
        ShardingError: if `sharding` does not fit the shape.

    Example:
        >>> jax.core.ShapedArray((2, 3), jnp.float32).str_short()
        'float32[2,3]'
    """

    def __new__(
        cls,
        shape: Sequence[int],
        dtype: DTypeLike,
        weak_type: bool = False,
        *,
        sharding: Sharding | None = None,
        vma: Iterable[str] = (),
    ) -> Any:
        type = ArrayType(tuple(shape), canonical_dtype(dtype), weak_type).with_varying(vma)
        return type if sharding is None else type.with_explicit(traced_sharding(sharding, type.shape))


def valid_jaxtype(x: object) -> bool:
    """Return whether a value is an array, a number or a tracer.

    Args:
        x: the value.

    Returns:
        Whether functions of arrays accept it.

    Raises:
        Nothing.

    Example:
        >>> jax.core.valid_jaxtype(1.0), jax.core.valid_jaxtype("text")
        (True, False)
    """
    try:
        type_of(x)
    except TypeError:
        return False
    return True


set_public_names(__name__, __all__)
