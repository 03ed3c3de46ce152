"""Convolutions and correlations of rows of numbers."""

from typing import Any

from shardwise.compiler.ops.conv import Conv
from shardwise.compiler.ops.operands import as_inexact, as_operand, astype_weak, composed, type_of
from shardwise.compiler.ops.parts import Conj
from shardwise.compiler.ops.promote import canonical_dtype, meet
from shardwise.compiler.ops.shape import Reshape
from shardwise.compiler.ops.slicing import Reverse
from shardwise.lax.precision import precisions


def convolve(a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Element k is the sum of all `a[i] * v[j]` with i + j = k. `mode`: "full" has all k, "valid" those where all of
    the shorter row takes part, "same" as many as the longer row has elements, in the middle.

    >>> jnp.convolve(jnp.array([1, 2, 3]), jnp.array([1, 1]))
    Array([1., 3., 5., 3.], dtype=float32)
    """
    _check("convolve", a, v, mode)
    levels = precisions("convolve", precision)
    return _slid(a, v, name="convolve", mode=mode, precision=levels, dtype=preferred_element_type)


def correlate(a: Any, v: Any, mode: str = "valid", *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """Element k is the sum of all `a[i + k] * conj(v[i])`; `mode` is as in `convolve`.

    >>> jnp.correlate(jnp.array([1, 2, 3]), jnp.array([1, 1]))
    Array([3., 5.], dtype=float32)
    """
    _check("correlate", a, v, mode)
    levels = precisions("correlate", precision)
    return _slid(a, v, name="correlate", mode=mode, precision=levels, dtype=preferred_element_type)


def _check(name: str, a: Any, v: Any, mode: str) -> None:
    types = [type_of(x, name) for x in (a, v)]
    if any(type.ndim != 1 for type in types):
        raise ValueError(f"{name}: needs two arrays of rank 1, not {types[0]} and {types[1]}")
    if not all(type.size for type in types):
        raise ValueError(f"{name}: an operand is empty: {types[0]} and {types[1]}")
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"{name}: mode is 'full', 'same' or 'valid', not {mode!r}")


@composed
def _slid(a: Any, v: Any, *, name: str, mode: str, precision: tuple[str, str], dtype: Any) -> Any:
    rows = [as_operand(x, name) for x in (a, v)]
    if dtype is None:
        rows = [as_inexact(x, name) for x in rows]
    common, weak = meet(name, [x.type for x in rows])
    x, y = (astype_weak(row, common, weak) for row in rows)
    turned = name == "convolve"
    if not turned and common.kind == "c":
        y = Conj()(y)
    swapped = x.type.size < y.type.size  # the longer one is what the other slides over
    if swapped:
        x, y = y, x
    size = y.type.size
    low, high = {"full": (size - 1, size - 1), "same": (size // 2, size - size // 2 - 1), "valid": (0, 0)}[mode]
    if turned:
        y = Reverse((0,))(y)
    result = common if dtype is None else canonical_dtype(dtype)
    op = Conv("bi0", "oi0", "bo0", (1,), (low,), (high,), (1,), (1,), result, precision)
    found = op(Reshape((1, 1, x.type.size))(x), Reshape((1, 1, size))(y))
    found = Reshape(found.type.shape[2:])(found)
    return Reverse((0,))(found) if swapped and not turned else found
