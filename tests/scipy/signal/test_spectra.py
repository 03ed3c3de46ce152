"""Compare spectra with scipy and JAX; stft has an inverse."""

import numpy as np
import pytest
import scipy.signal

import shardwise as sw
from shardwise.scipy import signal
from tests.agreement import values_like_both
from tests.scipy.signal.test_signal import INVERSES, LONG, SPECTRA


@pytest.mark.slow
def test_spectra_like_scipy_and_jax():
    values_like_both(signal, [*SPECTRA, *INVERSES], numpy=scipy.signal, theirs="scipy.signal")


@pytest.mark.slow
def test_stft_has_an_inverse():
    for window, size in (("hann", 16), ("hamming", 15), (np.ones(8, np.float32), 8)):
        _, _, transforms = signal.stft(LONG, window=window, nperseg=size)
        times, restored = signal.istft(transforms, window=window, nperseg=size)
        np.testing.assert_allclose(restored[:, :64], LONG, atol=1e-4)
        assert times.shape == restored.shape[-1:]
    gradient = sw.grad(lambda x: (abs(signal.stft(x, nperseg=8)[2]) ** 2).sum())(LONG[0])
    assert gradient.shape == (64,) and np.isfinite(gradient).all()
