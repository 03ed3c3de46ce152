"""Buffers that a kernel allocates for a part of its body."""

from collections.abc import Callable
from typing import Any

from shardwise import tree
from shardwise.api.ref import Ref
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.dtypes import DTypeLike
from shardwise.errors import UnsupportedError
from shardwise.experimental.pallas.grid_context import current_varying
from shardwise.experimental.pallas.memory import allocate, undefined


def run_scoped(f: Callable[..., Any], *types: object, collective_axes: object = (), **kw_types: object) -> Any:
    """Call a function with new buffers.

    Args:
        f: a function of the Refs of the buffers.
        types: the types of the buffers that are passed by position, such as `pltpu.VMEM(shape, dtype)`: pytrees.
        collective_axes: must be empty.
        kw_types: the types of the buffers that are passed by keyword.

    Returns:
        The result of `f`.

    Raises:
        TypeError: if a type is not that of a buffer.
        UnsupportedError: if `collective_axes` is not empty.

    Example:
        >>> def double(ref):
        ...     ref[...] = jnp.ones(2)
        ...     return 2 * ref[...]
        >>> pallas.run_scoped(double, pallas.tpu.VMEM((2,), jnp.float32))
        Array([2., 2.], dtype=float32)
    """
    if collective_axes not in ((), []):
        raise UnsupportedError(
            f"run_scoped: collective_axes={collective_axes!r} is not supported: the steps of a grid run one after the "
            "other. Allocate the buffer as scratch of `pallas_call`, which all steps share."
        )
    varying = current_varying()
    return f(
        *(tree.map(lambda type: allocate(type, varying), part) for part in types),
        **{name: tree.map(lambda type: allocate(type, varying), part) for name, part in kw_types.items()},
    )


def with_scoped(
    *types: object, collective_axes: object = (), **kw_types: object
) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator that calls a function with new buffers after its arguments; see `run_scoped`.

    Args:
        types, collective_axes, kw_types: as of `run_scoped`.

    Returns:
        A decorator.

    Raises:
        TypeError: when the function is called, if a type is not that of a buffer.

    Example:
        >>> @pallas.with_scoped(pallas.tpu.VMEM((2,), jnp.float32))
        ... def fill(x, ref):
        ...     ref[...] = x
        ...     return ref[...]
        >>> fill(jnp.ones(2))
        Array([1., 1.], dtype=float32)
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            return run_scoped(
                lambda *refs, **named: function(*args, *refs, **named),
                *types,
                collective_axes=collective_axes,
                **kw_types,
            )

        return call

    return decorate


def empty(shape: Any, dtype: DTypeLike) -> Any:
    """Return an array of undefined values.

    Args:
        shape: the shape.
        dtype: the dtype.

    Returns:
        An array of NaN, or of the least integer.

    Raises:
        TypeError: if `dtype` is unknown.

    Example:
        >>> pallas.empty((2,), jnp.float32)
        Array([nan, nan], dtype=float32)
    """
    return undefined(tuple(shape), dtype)


def empty_like(x: Array) -> Any:
    """Return arrays of undefined values, like those of a pytree.

    Args:
        x: a pytree of arrays, or of types with a shape and a dtype.

    Returns:
        A pytree of arrays.

    Raises:
        AttributeError: if a leaf has no shape.

    Example:
        >>> pallas.empty_like(jnp.ones(2))
        Array([nan, nan], dtype=float32)
    """
    return tree.map(lambda leaf: empty(leaf.shape, leaf.dtype), x)


def empty_ref_like(x: Array) -> Ref:
    """Return a Ref of undefined values.

    Args:
        x: a type with a shape and a dtype.

    Returns:
        The Ref.

    Raises:
        TypeError: if `x` has no shape and dtype.

    Example:
        >>> pallas.empty_ref_like(pallas.tpu.VMEM((2,), jnp.float32)).shape
        (2,)
    """
    return allocate(x)
