"""Promotion for Fourier transforms, and transforms along several dims."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.compiler.arrays.operands import as_inexact, astype_weak
from shardwise.compiler.dtypes import numpy_carrier
from shardwise.compiler.ops.linalg.fft import Fft

if TYPE_CHECKING:
    from shardwise.compiler.arrays.argument_types import ArrayLike
    from shardwise.compiler.arrays.methods import Array


def promote_for_fft(x: "ArrayLike", kind: str, name: str) -> Any:
    """Convert `x` to the narrowest float or complex dtype that a transform of this kind accepts.

    `name` is the calling function, for error messages.
    """
    x = as_inexact(x, name)
    dtype = x.type.dtype
    if kind == "RFFT":
        if dtype.kind == "c":
            raise ValueError(f"{name}: {kind} needs real numbers, not {x.type}; use FFT, or take the real part")
        return astype_weak(x, numpy_carrier(dtype), False)
    if dtype.kind == "c":
        return astype_weak(x, dtype, False)
    return astype_weak(x, np.complex128 if dtype == np.float64 else np.complex64, False)


def fft_along(x: "Array", kind: str, dims: Sequence[int], lengths: Sequence[int]) -> Any:
    """Transform along `dims`. A real transform (RFFT, IRFFT) applies to the last of them.

    The forward transform goes from the last dim to the first, the inverse from the first to the last, so that the
    inverse can start with the sharding that the forward transform ends with.
    """
    if not dims:
        return x
    pairs = list(zip(dims, lengths, strict=True))
    if kind in ("FFT", "RFFT"):
        pairs.reverse()
        kinds = [kind, *["FFT"] * (len(pairs) - 1)]
    else:
        kinds = [*["IFFT"] * (len(pairs) - 1), kind]
    for transform, (dim, length) in zip(kinds, pairs, strict=True):
        x = Fft(transform, dim, length)(x)
    return x
