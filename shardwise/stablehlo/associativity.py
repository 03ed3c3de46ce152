"""Reductions by functions that are not associative, whose results StableHLO does not define."""

from collections.abc import Callable, Sequence

import numpy as np

from shardwise.compiler.dtypes import DType, is_float
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import NumpyArray
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import build
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.operation import Operation

_SAMPLES = 16


def check_associative(op: Operation, types: Sequence[ArrayType]) -> None:
    """Reject a reduction by a region that is not associative for some small numbers.

    `types` are the types of the arrays. Other compilers may reduce the elements in another order, with another result.
    The numbers are samples: a region that passes may still not be associative. One that captures values is not checked.
    """
    scalars = [type.with_shape(()) for type in types]
    program, captured = build(op.region(), [*scalars, *scalars], "computation")
    if captured:
        return
    rng = np.random.default_rng(0)

    def combine(xs: Sequence[NumpyArray], ys: Sequence[NumpyArray]) -> Sequence[NumpyArray]:
        return evaluate(program, [*xs, *ys])

    for _ in range(_SAMPLES):
        x, y, z = ([_sample(rng, type.dtype) for type in scalars] for _ in range(3))
        left, right = combine(combine(x, y), z), combine(x, combine(y, z))
        if not all(map(_is_close, left, right)):
            raise UnsupportedError("the region is not associative, so the result depends on the order of the elements")


def _sample(rng: np.random.Generator, dtype: DType) -> NumpyArray:
    numbers: Callable[[], object] = rng.normal if is_float(dtype) or dtype.kind == "c" else lambda: rng.integers(0, 4)
    return np.asarray(numbers()).astype(dtype)


def _is_close(x: NumpyArray, y: NumpyArray) -> bool:
    if not (is_float(x.dtype) or x.dtype.kind == "c"):
        return bool(x == y)
    rounding = 0.1 if x.dtype.itemsize < 4 else 1e-3
    return np.allclose(x.astype(np.complex128), y.astype(np.complex128), rounding, rounding)  # NaN is never close
