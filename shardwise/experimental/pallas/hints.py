"""Hints for compilers of kernels, which the interpreter ignores, and output for debugging."""

import string
from typing import Any

from shardwise.api.callbacks.debug_callback import debug_print as print_values
from shardwise.api.ref import RefLike
from shardwise.compiler.arrays.methods import Array
from shardwise.experimental.pallas.grid_context import require_interpreter
from shardwise.typing import ArrayLike


def multiple_of(x: Array, values: object) -> Any:
    """Return `x`, which is a multiple of `values`; a hint for compilers.

    Args:
        x: an integer, which may be traced.
        values: its divisors.

    Returns:
        `x`.

    Raises:
        Nothing: the claim is not checked.

    Example:
        >>> pallas.multiple_of(8, 4)
        8
    """
    del values
    return x


def max_contiguous(x: Array, values: object) -> Any:
    """Return `x`, whose first `values` elements are contiguous; a hint for compilers.

    Args:
        x: an array of indices.
        values: the number of elements.

    Returns:
        `x`.

    Raises:
        Nothing: the claim is not checked.

    Example:
        >>> pallas.triton.max_contiguous(jnp.arange(2), 2)
        Array([0, 1], dtype=int32)
    """
    del values
    return x


def touch(ref: RefLike) -> None:
    """Do nothing; for compilers, a read and a write of a Ref.

    Args:
        ref: a pytree of Refs.

    Raises:
        Nothing.

    Example:
        >>> pallas.tpu.touch(jax.new_ref(jnp.ones(2)))
    """


def delay(nanos: ArrayLike) -> None:
    """Do nothing; on a device, wait.

    Args:
        nanos: the time in nanoseconds.

    Raises:
        Nothing.

    Example:
        >>> pallas.delay(10)
    """


def debug_barrier() -> None:
    """Let the threads of a step wait for each other. The interpreter has none, and runs a kernel with a barrier.

    Example:
        >>> pallas.triton.debug_barrier()
    """
    require_interpreter("it has a debug_barrier")


def with_memory_space_constraint(x: Array, memory_space: object) -> Any:
    """Return `x`; for compilers, in another memory.

    Args:
        x: an array.
        memory_space: a memory space.

    Returns:
        `x`.

    Raises:
        Nothing.

    Example:
        >>> pallas.tpu.with_memory_space_constraint(jnp.ones(2), pallas.tpu.HBM)
        Array([1., 1.], dtype=float32)
    """
    del memory_space
    return x


def trace_value(label: str, value: ArrayLike) -> None:
    """Do nothing; on a TPU, write a value to the profile.

    Args:
        label: its name.
        value: a scalar.

    Raises:
        Nothing.

    Example:
        >>> pallas.tpu.trace_value("steps", 3)
    """


def debug_print(fmt: str, *args: Any) -> None:
    """Print values from a kernel.

    Args:
        fmt: a format string. Without placeholders, the values are printed after it.
        args: the values.

    Raises:
        ValueError: if the placeholders do not fit the values.

    Example:
        >>> def kernel(out_ref):
        ...     pallas.debug_print("step {}", 0)
        >>> _ = pallas.pallas_call(kernel, jnp.zeros(1))(), jax.effects_barrier()
        step 0
    """
    has_fields = any(field is not None for _, field, _, _ in string.Formatter().parse(fmt))
    print_values(fmt if has_fields else " ".join([fmt, *["{}"] * len(args)]), *args)
