"""Fourier transforms along the last axes: close to the op of `compiler/ops/fft.py`."""

import enum
import operator
from collections.abc import Sequence
from typing import Any

from shardwise.compiler.arrays.fft import fft_along, promote_for_fft


class FftType(enum.IntEnum):
    """Which Fourier transform: forth or back (I), of complex numbers or of real ones (R)."""

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


def fft(x: Any, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Any:
    """The Fourier transform along the last axes, as many as `fft_lengths` has.

    The lengths are those of the numbers that are transformed: of an axis of `x`, but that IRFFT takes the last axis
    from n // 2 + 1 elements to n. Integers become floats, and where the transform is not RFFT complex numbers.

    >>> lax.fft(jnp.ones(4), lax.FftType.RFFT, (4,))
    Array([4.+0.j, 0.+0.j, 0.+0.j], dtype=complex64)
    """
    kind = _kind(fft_type)
    lengths = tuple(operator.index(length) for length in fft_lengths)
    operand = promote_for_fft(x, kind, "lax.fft")
    ndim = operand.type.ndim
    if len(lengths) > ndim:
        raise ValueError(f"lax.fft: {operand.type} has no {len(lengths)} axes for fft_lengths {lengths}")
    dims = range(ndim - len(lengths), ndim)
    needed = list(lengths)
    if kind == "IRFFT" and needed:
        needed[-1] = needed[-1] // 2 + 1
    if tuple(operand.type.shape[dim] for dim in dims) != tuple(needed) or 0 in lengths:
        raise ValueError(
            f"lax.fft: {kind} with fft_lengths {lengths} needs last axes of sizes {tuple(needed)}, each 1 or more, "
            f"not {operand.type}"
        )
    return fft_along(operand, kind, dims, lengths)


def _kind(fft_type: FftType | str) -> str:
    name = fft_type.upper() if isinstance(fft_type, str) else getattr(fft_type, "name", "")
    if name not in FftType.__members__:
        raise ValueError(f"lax.fft: fft_type {fft_type!r} is none of {', '.join(FftType.__members__)}")
    return name
