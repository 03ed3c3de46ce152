"""Discrete Fourier transforms along the last axes. They stage the op `Fft`."""

import enum
import operator
from collections.abc import Sequence

from shardwise.compiler.arrays.fft import fft_along, promote_for_fft
from shardwise.compiler.arrays.methods import Array
from shardwise.typing import ArrayLike


class FftType(enum.IntEnum):
    """The kind of Fourier transform: complex (FFT) or real (RFFT), and their inverses."""

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


def fft(x: ArrayLike, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Array:
    """Compute the discrete Fourier transform along the last axes.

    Args:
        x: an array. Integers become floats, and complex numbers unless the transform is RFFT.
        fft_type: an `FftType`, or its name.
        fft_lengths: the length of the transform along each of the last axes. These are the sizes of the axes of `x`,
            except that IRFFT transforms n // 2 + 1 elements of the last axis to n.

    Returns:
        An array of complex numbers, or of floats for IRFFT. RFFT returns n // 2 + 1 elements along the last axis.

    Raises:
        ValueError: if `fft_type` is unknown, `fft_lengths` does not agree with the shape, or RFFT is given complex
            numbers.

    Example:
        >>> lax.fft(jnp.ones(4), lax.FftType.RFFT, (4,))
        Array([4.+0.j, 0.+0.j, 0.+0.j], dtype=complex64)
    """
    type_name = _fft_type_name(fft_type)
    lengths = tuple(operator.index(length) for length in fft_lengths)
    operand = promote_for_fft(x, type_name, "lax.fft")
    ndim = operand.type.ndim
    if len(lengths) > ndim:
        raise ValueError(f"lax.fft: fft_lengths {lengths} needs {len(lengths)} axes, but {operand.type} has {ndim}")
    dims = range(ndim - len(lengths), ndim)
    in_sizes = list(lengths)
    if type_name == "IRFFT" and in_sizes:
        in_sizes[-1] = in_sizes[-1] // 2 + 1
    if tuple(operand.type.shape[dim] for dim in dims) != tuple(in_sizes) or 0 in lengths:
        raise ValueError(
            f"lax.fft: {type_name} with fft_lengths {lengths} needs last axes of sizes {tuple(in_sizes)}, each 1 or "
            f"more, not {operand.type}"
        )
    return fft_along(operand, type_name, dims, lengths)


def _fft_type_name(fft_type: FftType | str) -> str:
    name = fft_type.upper() if isinstance(fft_type, str) else getattr(fft_type, "name", "")
    if name not in FftType.__members__:
        raise ValueError(f"lax.fft: fft_type must be one of {', '.join(FftType.__members__)}, not {fft_type!r}")
    return name
