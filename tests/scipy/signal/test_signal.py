"""Compare scipy.signal with scipy and JAX: values, gradients, and 8 devices with one."""

import numpy as np
import pytest
import scipy.signal

from shardwise.scipy import signal
from tests.agreement import Case, gradients_like, mesh_like_one_device

try:
    import jax
    import jax.scipy.signal
except ImportError:  # one of the oracles
    jax = None

RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.normal(size=(8, 6)).astype(np.float32) for _ in range(2))
SMALL = RANDOM.normal(size=(3, 2)).astype(np.float32)
LONG, OTHER = (RANDOM.normal(size=(2, 64)).astype(np.float32) for _ in range(2))
MODES = ("full", "same", "valid")
LOOSE = {"rtol": 1e-4, "atol": 2e-5}
CONVOLUTIONS = [
    *(Case(name, (X, SMALL), {"mode": m}, **LOOSE) for name in ("convolve", "correlate", "convolve2d") for m in MODES),
    *(Case("correlate2d", (X, SMALL), {"mode": mode}, **LOOSE) for mode in MODES),
    *(Case("fftconvolve", (X, SMALL), {"mode": mode}, **LOOSE) for mode in MODES),
    Case("convolve", (X[0], SMALL[:, 0]), {"method": "fft"}, **LOOSE),
    Case("convolve", (SMALL, X), {"mode": "valid"}, **LOOSE),
    Case("fftconvolve", (X, Y[:3]), {"axes": [0]}, **LOOSE),
]
SPECTRA = [
    Case("detrend", (LONG,), **LOOSE),
    Case("detrend", (LONG,), {"type": "constant", "axis": 0}, **LOOSE),
    Case("detrend", (LONG,), {"bp": [10, 40]}, **LOOSE),
    Case("welch", (LONG,), {"nperseg": 16}, **LOOSE),
    Case("welch", (LONG.T.copy(),), {"nperseg": 15, "axis": 0, "scaling": "spectrum", "average": "median"}, **LOOSE),
    Case("csd", (LONG, OTHER), {"nperseg": 16, "nfft": 20, "fs": 10.0}, **LOOSE),
    Case("csd", (LONG, OTHER), {"nperseg": 16, "return_onesided": False, "detrend": False}, **LOOSE),
    Case("stft", (LONG,), {"nperseg": 16}, **LOOSE),
    Case("stft", (LONG,), {"nperseg": 15, "noverlap": 9, "boundary": None, "padded": False, "fs": 4.0}, **LOOSE),
    Case("stft", (LONG,), {"nperseg": 16, "return_onesided": False, "window": "hamming"}, **LOOSE),
]
_, _, TRANSFORMS = scipy.signal.stft(LONG[0], nperseg=16)
INVERSES = [Case("istft", (TRANSFORMS.astype(np.complex64),), {"nperseg": 16}, **LOOSE)]


@pytest.mark.slow
@pytest.mark.jax
def test_gradients_like_jax():
    pytest.importorskip("jax")
    gradients_like(signal, jax.scipy.signal, [*CONVOLUTIONS[::4], SPECTRA[0], SPECTRA[3]], jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("sharded_dim", ["first", "last"])
def test_sharded(mesh, sharded_dim):
    mesh_like_one_device(mesh, signal, [*CONVOLUTIONS[::5], *SPECTRA[::3], *INVERSES], sharded_dim)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: signal.convolve(X, X[0]), ValueError, "both arrays must have the same rank, not 2 and 1"),
        (lambda: signal.convolve(X, SMALL, mode="half"), ValueError, "mode must be 'full', 'same' or 'valid'"),
        (lambda: signal.convolve(X, SMALL, method="slow"), ValueError, "method must be"),
        (lambda: signal.convolve(X[:2], SMALL, mode="valid"), ValueError, "one array must be at least as large"),
        (lambda: signal.convolve2d(X[0], X[0]), ValueError, "needs two matrices"),
        (lambda: signal.convolve2d(X, SMALL, boundary="wrap"), NotImplementedError, "only boundary='fill'"),
        (lambda: signal.fftconvolve(X, SMALL, axes=(0,)), ValueError, "do not broadcast along axis 1"),
        (lambda: signal.detrend(X, type="cubic"), ValueError, "type must be 'constant' or 'linear'"),
        (lambda: signal.detrend(X, bp=99), ValueError, "breakpoints must lie between 0 and 6"),
        (lambda: signal.stft(LONG, nperseg=8, noverlap=8), ValueError, "noverlap, 8, must be less than nperseg, 8"),
        (lambda: signal.stft(LONG, nperseg=8, nfft=4), ValueError, "nfft, 4, must be at least nperseg, 8"),
        (lambda: signal.stft(LONG, boundary="wrap"), ValueError, "boundary must be"),
        (lambda: signal.welch(LONG, scaling="power"), ValueError, "scaling must be"),
        (lambda: signal.welch(LONG, average="mode"), ValueError, "average must be"),
        (lambda: signal.istft(TRANSFORMS, time_axis=1, freq_axis=1), ValueError, "must differ"),
    ],
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
