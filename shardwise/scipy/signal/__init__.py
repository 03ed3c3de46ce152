"""scipy.signal: convolution, correlation, Fourier transforms of segments, power spectra and trends."""

from shardwise.base.lazy import set_public_names
from shardwise.scipy.signal.convolutions import convolve, convolve2d, correlate, correlate2d, fftconvolve
from shardwise.scipy.signal.spectra import csd, detrend, istft, stft, welch

__all__ = [
    "convolve",
    "convolve2d",
    "correlate",
    "correlate2d",
    "csd",
    "detrend",
    "fftconvolve",
    "istft",
    "stft",
    "welch",
]

set_public_names(__name__, __all__)
