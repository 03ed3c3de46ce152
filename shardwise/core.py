"""Types, tracers, primitives and jaxprs, under the names of `jax.core`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from shardwise.base.lazy import Deprecated, set_public_names
from shardwise.compiler.arrays.operands import type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.ir.dispatch import use_frames
from shardwise.compiler.ir.types import ArrayType, ManualAxisType
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
    "ParamDict",
    "Primitive",
    "ShapedArray",
    "Trace",
    "Tracer",
    "Var",
    "ensure_compile_time_eval",
    "eval_context",
    "eval_jaxpr",
    "jaxpr_as_fun",
    "max_dim",
    "min_dim",
    "typeof",
    "valid_jaxtype",
]

AbstractValue = ArrayType
ParamDict = dict[str, Any]  # the parameters of an equation, in annotations
_REPLICATED = ManualAxisType()

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
        manual_axis_type: the state along Manual mesh axes, inside `shard_map`.
        memory_space: must be None or JAX's `MemorySpace.Device`; the memory of an array is part of its sharding here.

    Returns:
        The type, with `shape`, `dtype`, `ndim`, `size`, `weak_type`, `sharding`, `vma`, `mat`, `str_short`, `update`.

    Raises:
        TypeError: if `dtype` is unknown, or if a size is negative.
        ShardingError: if `sharding` does not fit the shape, or if an axis of `manual_axis_type` is not Manual.
        NotImplementedError: if `memory_space` is another one.

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
        manual_axis_type: ManualAxisType = _REPLICATED,
        memory_space: object = None,
    ) -> Any:
        if getattr(memory_space, "name", "Device") != "Device":
            raise NotImplementedError(
                f"ShapedArray: memory_space={memory_space} is not supported. Use a sharding with a memory kind."
            )
        type = ArrayType(tuple(shape), canonical_dtype(dtype), weak_type)
        if sharding is not None:
            type = type.with_explicit(traced_sharding(sharding, type.shape))
        return type.update_manual_axis_type(manual_axis_type)


def is_constant_dim(d: object) -> bool:
    """Return whether a dim is no symbolic one: all dims are integers here. Haliax."""
    return True


@contextmanager
def eval_context() -> Iterator[None]:
    """Run ops on concrete arrays at once in a `with` block, inside traced functions too.

    Unlike `ensure_compile_time_eval`, no op is recorded: traced operands are an error.

    Example:
        >>> @jax.jit
        ... def f(x):
        ...     with jax.core.eval_context():
        ...         size = int(jnp.arange(3).sum())
        ...     return x * size
        >>> print(f(2))
        6
    """
    with use_frames([]):
        yield


def max_dim(d1: int, d2: int) -> int:
    """Return the larger of two sizes. Dims are integers here; JAX has symbolic ones too.

    Args:
        d1, d2: the sizes.

    Returns:
        The larger one.

    Example:
        >>> jax.core.max_dim(2, 3)
        3
    """
    return max(d1, d2)


def min_dim(d1: int, d2: int) -> int:
    """Return the smaller of two sizes.

    Args:
        d1, d2: the sizes.

    Returns:
        The smaller one.

    Example:
        >>> jax.core.min_dim(2, 3)
        2
    """
    return min(d1, d2)


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


_MOVED = (
    *("Effect", "concrete_or_error", "find_top_trace", "get_opaque_trace_state", "nonempty_axis_env_DO_NOT_USE"),
    *("unsafe_am_i_under_a_jit_DO_NOT_USE", "unsafe_get_axis_names_DO_NOT_USE"),
)

set_public_names(
    __name__,
    __all__,
    {name: Deprecated("shardwise.extend.core", f"use jax.extend.core.{name}") for name in _MOVED},
)
