"""Operands of Fourier transforms, and transforms along several dims."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardwise.compiler.arrays.operands import as_inexact, astype_weak
from shardwise.compiler.dtypes import numpy_carrier
from shardwise.compiler.ops.linalg.fft import Fft


def promote_for_fft(x: Any, kind: str, name: str) -> Any:
    """`x` in the narrowest type of numbers that `kind` takes and that holds it: floats, or complex numbers of them.
    `name` is the function that was given it, for errors.
    """
    x = as_inexact(x, name)
    dtype = x.type.dtype
    if kind == "RFFT":
        if dtype.kind == "c":
            raise ValueError(f"{name}: {kind} is of real numbers, not {x.type}; take their real part, or use FFT")
        return astype_weak(x, numpy_carrier(dtype), False)
    if dtype.kind == "c":
        return astype_weak(x, dtype, False)
    return astype_weak(x, np.complex128 if dtype == np.float64 else np.complex64, False)


def fft_along(x: Any, kind: str, dims: Sequence[int], lengths: Sequence[int]) -> Any:
    """The transform along `dims`; where `kind` is of real numbers, they are real along the last of these.

    Forth it goes from the last dim to the first, back the other way: what one leaves cut, the other can begin with.
    """
    if not dims:
        return x
    pairs = list(zip(dims, lengths, strict=True))
    if kind in ("FFT", "RFFT"):
        pairs.reverse()
        kinds = [kind, *["FFT"] * (len(pairs) - 1)]
    else:
        kinds = [*["IFFT"] * (len(pairs) - 1), kind]
    for each, (dim, length) in zip(kinds, pairs, strict=True):
        x = Fft(each, dim, length)(x)
    return x
