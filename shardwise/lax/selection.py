"""Selection between arrays (`select_n`) and between functions (`platform_dependent`)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.compiler.arrays.exact_operands import check_equal_shardings
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, broadcast_to_shape, compiled_function, type_of
from shardwise.compiler.ops.elementwise.base import full_like
from shardwise.compiler.ops.elementwise.bitwise import BITS
from shardwise.compiler.ops.elementwise.select import Compare, Select
from shardwise.runtime.client import default_backend, default_lowering_platform
from shardwise.typing import ArrayLike


def select_n(which: ArrayLike, *cases: ArrayLike) -> Array:
    """Choose each element from one of several arrays by its index in `which`.

    Args:
        which: booleans (for one or two cases) or integers, of the shape of the cases; or a scalar, which chooses an
            array. Indices are clamped: one that is too small means the first case, one that is too large the last.
        *cases: one or more arrays of the same shape and dtype.

    Returns:
        An array of the type of the cases.

    Raises:
        ValueError: if there are no cases.
        TypeError: if `which` has another dtype or shape, or booleans choose between more than 2 cases, or the cases
            differ in type.

    Example:
        >>> lax.select_n(jnp.array([2, 0, 1]), jnp.array([1, 2, 3]), jnp.array([4, 5, 6]), jnp.array([7, 8, 9]))
        Array([7, 2, 6], dtype=int32)
    """
    if not cases:
        raise ValueError("select_n: needs at least one case")
    index, types = type_of(which, "select_n"), [type_of(x, "select_n") for x in cases]
    if not BITS.contains(index.dtype):
        raise TypeError(f"select_n: which must hold booleans or integers, not {index}")
    if index.dtype == np.bool_ and len(cases) > 2:
        raise TypeError(f"select_n: booleans can select between at most 2 cases, not {len(cases)}; use integers")
    if len({(type.shape, type.dtype) for type in types}) != 1:
        raise TypeError(f"select_n: cases must have the same shape and dtype, not {', '.join(map(str, types))}")
    if index.shape not in ((), types[0].shape):
        raise TypeError(f"select_n: which must be a scalar or have the shape of the cases, {types[0]}, not {index}")
    check_equal_shardings("select_n", *cases, *([which] if index.ndim else []))
    return _select_n(which, *cases)


@compiled_function
def _select_n(which: ArrayLike, *cases: ArrayLike) -> Any:
    arrays = [as_operand(x) for x in cases]
    index = broadcast_to_shape(as_operand(which), arrays[0].type.shape)
    if len(arrays) == 1:
        return arrays[0]
    if index.type.dtype == np.bool_:
        return Select()(index, arrays[1], arrays[0])
    return _select_by_bisection(index, arrays, 0)


def _select_by_bisection(which: Array, cases: list[Any], first: int) -> Any:
    """Select among cases whose indices start at `first`: bisect them, with one comparison per level."""
    if len(cases) == 1:
        return cases[0]
    half = len(cases) // 2
    low = _select_by_bisection(which, cases[:half], first)
    high = _select_by_bisection(which, cases[half:], first + half)
    return Select()(Compare("LT")(which, full_like(which, first + half)), low, high)


def platform_dependent(
    *args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> Any:
    """Call the function for the default backend's platform.

    The choice is made when the program is traced.

    Args:
        *args: the arguments of the function.
        default: the function for platforms that have no function of their own.
        **per_platform: functions by platform: `cpu=`, `gpu=` for GPUs of all vendors, `cuda=`, `tpu=`, and so on.

    Returns:
        The result of the chosen function.

    Raises:
        NotImplementedError: if there is neither a function for the platform nor a default.

    Example:
        >>> lax.platform_dependent(jnp.array(3), cpu=lambda x: x + 1, default=lambda x: x - 1)
        Array(4, dtype=int32, weak_type=True)
    """
    platform = default_backend()
    names = (platform, default_lowering_platform())
    function = next((per_platform[name] for name in names if name in per_platform), default)
    if function is None:
        raise NotImplementedError(
            f"platform_dependent: there is no function for the platform {platform!r} and no default; "
            f"functions were given for: {', '.join(per_platform) or 'none'}"
        )
    return function(*args)
