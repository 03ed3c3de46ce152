"""What all functions of `random` share: their arguments checked, and one compiled program for each call outside jit."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from shardwise.api.placement import with_sharding_constraint
from shardwise.compiler.ir.types import DType, is_float, is_inexact, is_integer
from shardwise.compiler.ops.operands import as_operand, astype_weak, broadcast_shapes, composed, stretch, type_of
from shardwise.compiler.ops.promote import canonical_dtype, default_dtype

Shape = tuple[int, ...]


def draw(sampler: Callable[..., Any], key: Any, *parameters: Any, out_sharding: Any = None, **static: Any) -> Any:
    """`sampler(key, *parameters, **static)`, laid out as `out_sharding` says; `key` is its words."""
    return _drawn(key, *parameters, sampler=sampler, out_sharding=out_sharding, **static)


@composed
def _drawn(key: Any, *parameters: Any, sampler: Callable[..., Any], out_sharding: Any, **static: Any) -> Any:
    found = sampler(as_operand(key), *parameters, **static)
    return found if out_sharding is None else with_sharding_constraint(found, out_sharding)


def float_dtype(name: str, dtype: Any) -> DType:
    """The float dtype that was asked for; by default that of a Python float."""
    found = default_dtype("float*") if dtype is None else canonical_dtype(dtype)
    if not is_float(found):
        raise ValueError(f"{name}: dtype should be a float, not {found}")
    return found


def inexact_dtype(name: str, dtype: Any) -> DType:
    """The same, or a complex dtype."""
    found = default_dtype("float*") if dtype is None else canonical_dtype(dtype)
    if not is_inexact(found):
        raise ValueError(f"{name}: dtype should be a float or complex, not {found}")
    return found


def integer_dtype(name: str, dtype: Any) -> DType:
    """The integer dtype that was asked for; by default that of a Python integer."""
    found = default_dtype("int*") if dtype is None else canonical_dtype(dtype)
    if not is_integer(found):
        raise ValueError(f"{name}: dtype should be an integer, not {found}")
    return found


def sizes(name: str, shape: Any) -> Shape:
    """A shape as a tuple of Python integers. An integer stands for one dim."""
    try:
        found = tuple(operator.index(size) for size in ((shape,) if isinstance(shape, (int, np.integer)) else shape))
    except TypeError:
        raise TypeError(f"{name}: shape should be a tuple of integers, not {shape!r}") from None
    if any(size < 0 for size in found):
        raise ValueError(f"{name}: a size cannot be negative: shape {found}")
    return found


def shape_with(name: str, shape: Any, *parameters: Any) -> Shape:
    """The shape of the draws: what was asked for, to which parameters must broadcast, or that of the parameters."""
    shapes = [type_of(parameter, name).shape for parameter in parameters]
    return fitting(name, shape, *shapes)


def fitting(name: str, shape: Any, *shapes: Shape) -> Shape:
    """The same for parameters of these shapes."""
    if shape is None:
        return broadcast_shapes(name, *shapes) if shapes else ()
    wanted = sizes(name, shape)
    if shapes and broadcast_shapes(name, wanted, *shapes) != wanted:
        raise ValueError(
            f"{name}: parameters of shapes {' and '.join(map(str, shapes))} do not broadcast to shape {wanted}"
        )
    return wanted


def parameter(x: Any, shape: Shape, dtype: DType) -> Any:
    """A parameter of a distribution for every draw."""
    return stretch(astype_weak(x, dtype, False), shape)


def converts_safely(name: str, dtype: DType, *parameters: Any) -> None:
    """A parameter may not lose its fraction or its imaginary part in the draws' dtype."""
    for given in parameters:
        kind = type_of(given, name)
        if (
            not kind.weak
            and is_inexact(kind.dtype)
            and np.promote_types(_of_numpy(kind.dtype), _of_numpy(dtype)) != (_of_numpy(dtype))
        ):
            raise TypeError(f"{name}: a parameter of type {kind} does not fit draws of {dtype}; convert it first")


def _of_numpy(dtype: DType) -> DType:
    return np.dtype(np.float16) if is_float(dtype) and dtype.itemsize < np.dtype(np.float32).itemsize else dtype


def limits(dtype: DType) -> Any:
    """The properties of a float dtype."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def one_of(name: str, what: str, given: Any, choices: Sequence[Any]) -> None:
    if given not in choices:
        raise ValueError(f"{name}: {what} should be one of {', '.join(map(repr, choices))}, not {given!r}")
