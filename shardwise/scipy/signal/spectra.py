"""Short-time Fourier transforms, power spectra, and the removal of trends."""

import operator
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

import shardwise.numpy as jnp
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import lazy_module
from shardwise.compiler.arrays.indexing import canonical_axis
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact
from shardwise.typing import ArrayLike

_scipy_signal = lazy_module("scipy.signal")  # 1.2 s, and only some windows need it

# The name of a window of scipy, a tuple of a name and parameters, or a vector of weights.
Window: TypeAlias = str | tuple[Any, ...] | Array | np.ndarray
# The name of the trend to remove from each segment, False for none, or a function of the segments.
Detrend: TypeAlias = str | Literal[False] | Callable[[Array], Array]


_SMALLEST_WINDOW_SUM = 1e-10


def detrend(
    data: ArrayLike, axis: int = -1, type: str = "linear", bp: ArrayLike = 0, overwrite_data: None = None
) -> Array:
    """Subtract the mean or the least-squares line along an axis.

    Args:
        data: the array. Integers become floats.
        axis: the axis along which the trend is removed.
        type: "linear" for the line, "constant" for the mean.
        bp: the positions where a new line starts, with "linear".
        overwrite_data: None; arrays are not overwritten.

    Returns:
        The array without its trend.

    Raises:
        ValueError: if `type` is unknown, `axis` is out of bounds, or a position is outside of the axis.
        NotImplementedError: if `overwrite_data` is given.

    Example:
        >>> jax.scipy.signal.detrend(jnp.array([1.0, 2.0, 6.0]), type="constant")
        Array([-2., -1.,  3.], dtype=float32)
    """
    if overwrite_data is not None:
        raise NotImplementedError("detrend: overwrite_data is not supported, since arrays are immutable")
    if type not in ("constant", "linear"):
        raise ValueError(f"detrend: type must be 'constant' or 'linear', not {type!r}")
    x = as_inexact(data, "detrend")
    dim = canonical_axis("detrend", axis, x.ndim)
    last = jnp.moveaxis(x, dim, -1)
    size = last.shape[-1]
    positions = sorted({0, size, *np.atleast_1d(np.asarray(bp)).tolist()}) if type == "linear" else [0, size]
    if positions[0] < 0 or positions[-1] > size:
        raise ValueError(f"detrend: breakpoints must lie between 0 and {size}, not {bp}")
    parts = [_without_trend(last[..., start:stop], type == "linear") for start, stop in pairwise(positions)]
    return jnp.moveaxis(jnp.concatenate(parts, axis=-1), -1, dim)


def _without_trend(x: Array, linear: bool) -> Any:
    """Subtract the mean or the line along the last axis."""
    deviation = x - x.mean(axis=-1, keepdims=True)
    size = x.shape[-1]
    if not linear or size < 2:
        return deviation
    time = (jnp.arange(size, dtype=x.real.dtype) - (size - 1) / 2) / size
    slope = jnp.sum(deviation * time, axis=-1, keepdims=True) / jnp.sum(time**2)
    return deviation - slope * time


class _Segments(NamedTuple):
    """How a signal is divided: the size of segments, their overlap, the size of transforms, and the window."""

    size: int
    overlap: int
    transform_size: int
    window: Any

    @property
    def step(self) -> int:
        return self.size - self.overlap


def _segments(
    name: str, length: int, window: Window, nperseg: int | None, noverlap: int | None, nfft: int | None
) -> _Segments:
    """Return the division of a signal of `length` elements, with scipy's defaults."""
    if isinstance(window, (str, tuple)):
        size = min(256 if nperseg is None else operator.index(nperseg), length)
        if size < 1:
            raise ValueError(f"{name}: nperseg must be positive, not {nperseg}")
        weights = jnp.asarray(_scipy_signal.get_window(window, size))
    else:
        weights = as_inexact(window, name)
        if weights.ndim != 1 or weights.size > length:
            raise ValueError(f"{name}: window must be a vector of at most {length} elements, not {weights.type}")
        size = weights.size
        if nperseg is not None and nperseg != size:
            raise ValueError(f"{name}: nperseg is {nperseg}, but the window has {size} elements")
    transform_size = size if nfft is None else operator.index(nfft)
    overlap = size // 2 if noverlap is None else operator.index(noverlap)
    if transform_size < size:
        raise ValueError(f"{name}: nfft, {transform_size}, must be at least nperseg, {size}")
    if not 0 <= overlap < size:
        raise ValueError(f"{name}: noverlap, {overlap}, must be less than nperseg, {size}")
    return _Segments(size, overlap, transform_size, weights)


def _transforms(x: Array, segments: _Segments, detrend_type: Detrend, onesided: bool) -> Any:
    """Return the Fourier transforms of the windowed segments of the last axis: (..., segment, frequency)."""
    count = (x.shape[-1] - segments.overlap) // segments.step
    starts = np.arange(count) * segments.step
    parts = x[..., starts[:, None] + np.arange(segments.size)]
    if callable(detrend_type):
        parts = detrend_type(parts)
    elif detrend_type:
        parts = detrend(parts, type=detrend_type)
    parts = parts * segments.window.astype(x.real.dtype)
    return (jnp.fft.rfft if onesided else jnp.fft.fft)(parts, segments.transform_size)


def _frequencies(segments: _Segments, fs: float, onesided: bool) -> Any:
    frequencies = jnp.fft.rfftfreq if onesided else jnp.fft.fftfreq
    return frequencies(segments.transform_size) * fs


_SPECTRUM = Family(
    {
        "axis": "the axis of time.",
        "x": "the signal.",
        "fs": "the sampling frequency.",
        "window": "the name of a window of scipy, a tuple of a name and parameters, or a vector of weights.",
        "noverlap": "the overlap of segments; half of their size if None.",
        "nfft": "the size of the transforms; `nperseg` if None.",
        "detrend": '"constant" or "linear" to remove the trend of segments, or False.',
        "return_onesided": "whether only the frequencies from 0 on are returned, for real signals.",
        "scaling": '"density" for power per frequency, "spectrum" for power.',
        "average": '"mean" or "median" of the segments.',
    },
    raises=["ValueError: if sizes do not fit, or `scaling` or `average` is unknown."],
)


@documented(_SPECTRUM, raises=["ValueError: if sizes do not fit, or `boundary` is unknown."])
def stft(
    x: ArrayLike,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int = 256,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = False,
    return_onesided: bool = True,
    boundary: str | None = "zeros",
    padded: bool = True,
    axis: int = -1,
) -> tuple[Array, Array, Array]:
    """Compute the short-time Fourier transform: the transforms of overlapping windowed segments.

    Args:
        nperseg: the size of segments; at most that of the signal.
        boundary: how the signal is extended by half a segment at both ends: "zeros", "even", "odd", "constant" or None.
        padded: whether zeros are appended so that the last segment is complete.

    Returns:
        The frequencies, the times of the centers of segments, and the transforms. Their axis of frequencies replaces
        `axis`, the last axis is that of segments.

    Example:
        >>> frequencies, times, transforms = jax.scipy.signal.stft(jnp.ones(32), nperseg=8)
        >>> transforms.shape
        (5, 9)
    """
    modes: dict[Any, Any] = {"zeros": "constant", "even": "reflect", "odd": "reflect", "constant": "edge", None: None}
    if boundary not in modes:
        raise ValueError(f"stft: boundary must be 'zeros', 'even', 'odd', 'constant' or None, not {boundary!r}")
    signal = as_inexact(x, "stft")
    dim = canonical_axis("stft", axis, signal.ndim)
    signal = jnp.moveaxis(signal, dim, -1)
    segments = _segments("stft", signal.shape[-1], window, nperseg, noverlap, nfft)
    no_padding = [(0, 0)] * (signal.ndim - 1)
    if boundary is not None:
        half = segments.size // 2
        options = {"reflect_type": "odd"} if boundary == "odd" else {}
        signal = jnp.pad(signal, [*no_padding, (half, half)], mode=modes[boundary], **options)
    if padded:
        missing = -(signal.shape[-1] - segments.size) % segments.step
        signal = jnp.pad(signal, [*no_padding, (0, missing)])
    onesided = return_onesided and not jnp.iscomplexobj(signal)
    result = _transforms(signal, segments, detrend, onesided) / jnp.abs(segments.window.sum())
    times = (jnp.arange(result.shape[-2], dtype=result.real.dtype) * segments.step + segments.size / 2) / fs
    times = times - segments.size / 2 / fs if boundary is not None else times
    return _frequencies(segments, fs, onesided), times, jnp.moveaxis(result, -1, dim)


@documented(_SPECTRUM)
def csd(
    x: ArrayLike,
    y: ArrayLike,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Array]:
    """Estimate the cross power spectral density of two signals by Welch's method.

    Args:
        x, y: the signals, which are broadcast. The shorter one is padded with zeros. `y` None means `x`.
        nperseg: the size of segments; 256 if None, and at most that of the signals.

    Returns:
        The frequencies and the density. Its axis of frequencies replaces `axis`.

    Example:
        >>> frequencies, density = jax.scipy.signal.csd(jnp.ones(32), jnp.arange(32.0), nperseg=8)
        >>> density.shape
        (5,)
    """
    return _spectral_density(
        "csd", x, y, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average
    )


@documented(_SPECTRUM)
def welch(
    x: ArrayLike,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Array, Array]:
    """Estimate the power spectral density of a signal by Welch's method.

    Args:
        nperseg: the size of segments; 256 if None, and at most that of the signal.

    Returns:
        The frequencies and the density, of real numbers. Its axis of frequencies replaces `axis`.

    Example:
        >>> frequencies, density = jax.scipy.signal.welch(jnp.ones(32), nperseg=8)
        >>> density.shape
        (5,)
    """
    frequencies, density = _spectral_density(
        "welch", x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis, average
    )
    return frequencies, density.real


def _spectral_density(
    name: str,
    x: ArrayLike,
    y: ArrayLike | None,
    fs: float,
    window: Window,
    nperseg: int | None,
    noverlap: int | None,
    nfft: int | None,
    detrend_type: Detrend,
    return_onesided: bool,
    scaling: str,
    axis: int,
    average: str,
) -> tuple[Any, Any]:
    if scaling not in ("density", "spectrum"):
        raise ValueError(f"{name}: scaling must be 'density' or 'spectrum', not {scaling!r}")
    if average not in ("mean", "median"):
        raise ValueError(f"{name}: average must be 'mean' or 'median', not {average!r}")
    signals = [as_inexact(signal, name) for signal in ((x,) if y is None else (x, y))]
    signals = [jnp.moveaxis(signal, canonical_axis(name, axis, signal.ndim), -1) for signal in signals]
    length = max(signal.shape[-1] for signal in signals)
    signals = [jnp.pad(signal, [(0, 0)] * (signal.ndim - 1) + [(0, length - signal.shape[-1])]) for signal in signals]
    segments = _segments(name, length, window, nperseg, noverlap, nfft)
    onesided = return_onesided and not any(map(jnp.iscomplexobj, signals))
    spectra = [_transforms(signal, segments, detrend_type, onesided) for signal in signals]
    power = spectra[0].conj() * spectra[-1]
    weights = segments.window.astype(power.real.dtype)
    power = power / (fs * jnp.sum(weights**2) if scaling == "density" else jnp.sum(weights) ** 2)
    if onesided:  # frequencies other than 0 and the highest stand for two
        number = jnp.arange(power.shape[-1])
        is_single = (number == 0) | ((2 * number == segments.transform_size) & (segments.transform_size % 2 == 0))
        power = jnp.where(is_single, power, 2 * power)
    averaged = power.mean(axis=-2) if average == "mean" else _median(power)
    return _frequencies(segments, fs, onesided), jnp.moveaxis(averaged, -1, axis)


def _median(power: Array) -> Any:
    """Return the median of segments, divided by its bias for the square of normal numbers."""
    count = power.shape[-2]
    even = 2 * np.arange(1.0, (count - 1) // 2 + 1)
    bias = 1 + np.sum(1 / (even + 1) - 1 / even)
    if jnp.iscomplexobj(power):
        return (jnp.median(power.real, axis=-2) + 1j * jnp.median(power.imag, axis=-2)) / bias
    return jnp.median(power, axis=-2) / bias


def istft(
    Zxx: ArrayLike,
    fs: float = 1.0,
    window: Window = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
) -> tuple[Array, Array]:
    """Compute the inverse of `stft`, by least squares where segments overlap.

    Args:
        Zxx: the transforms.
        fs: the sampling frequency.
        window: the window of `stft`.
        nperseg: the size of segments; that which the number of frequencies belongs to if None.
        noverlap: the overlap of segments; half of their size if None.
        nfft: the size of the transforms; that which the number of frequencies belongs to if None.
        input_onesided: whether the transforms have the frequencies from 0 on only.
        boundary: whether `stft` extended the signal, so that half a segment is removed at both ends.
        time_axis: the axis of segments.
        freq_axis: the axis of frequencies.

    Returns:
        The times and the signal, whose axis of time is the last one.

    Raises:
        ValueError: if axes or sizes do not fit.

    Example:
        >>> _, _, transforms = jax.scipy.signal.stft(jnp.arange(32.0), nperseg=8)
        >>> times, signal = jax.scipy.signal.istft(transforms, nperseg=8)
        >>> bool(jnp.allclose(signal, jnp.arange(32.0), atol=1e-4))
        True
    """
    z = jnp.asarray(Zxx)
    z = z.astype(jnp.result_type(z, jnp.complex64))
    if z.ndim < 2:
        raise ValueError(f"istft: Zxx needs an axis of frequencies and one of segments, not the shape {z.shape}")
    dims = canonical_axis("istft", freq_axis, z.ndim), canonical_axis("istft", time_axis, z.ndim)
    if dims[0] == dims[1]:
        raise ValueError("istft: time_axis and freq_axis must differ")
    z = jnp.moveaxis(z, dims, (-1, -2))
    natural_size = 2 * (z.shape[-1] - 1) if input_onesided else z.shape[-1]
    is_vector = not isinstance(window, (str, tuple))
    size = nperseg if nperseg is not None else len(window) if is_vector else natural_size
    if nfft is None and input_onesided and size == natural_size + 1:
        nfft = size  # an odd size has as many frequencies as the even one below it
    transform_size = natural_size if nfft is None else nfft
    segments = _segments("istft", size, window, size, noverlap, transform_size)
    inverse = jnp.fft.irfft if input_onesided else jnp.fft.ifft
    weights = segments.window.astype(z.real.dtype)
    parts = inverse(z, transform_size)[..., :size] * (weights * weights.sum())
    count = z.shape[-2]
    positions = np.arange(count)[:, None] * segments.step + np.arange(size)
    length = size + (count - 1) * segments.step
    signal = jnp.zeros((*parts.shape[:-2], length), parts.dtype).at[..., positions].add(parts)
    total = jnp.zeros(length, weights.dtype).at[positions].add(jnp.broadcast_to(weights**2, (count, size)))
    if boundary:
        half = size // 2
        signal, total = signal[..., half : length - half], total[half : length - half]
    signal = signal / jnp.where(total > _SMALLEST_WINDOW_SUM, total, 1)
    return jnp.arange(signal.shape[-1], dtype=signal.real.dtype) / fs, signal
