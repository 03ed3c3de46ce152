"""Compare convolutions with scipy and JAX, also of random shapes."""

import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.scipy import signal
from tests.agreement import values_like_both
from tests.scipy.signal.test_signal import CONVOLUTIONS


def test_convolutions_like_scipy_and_jax():
    values_like_both(signal, CONVOLUTIONS, numpy=scipy.signal, theirs="scipy.signal")


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3),
    mode=st.sampled_from(["full", "same"]),
    name=st.sampled_from(["convolve", "correlate", "fftconvolve"]),
    is_complex=st.booleans(),
)
def test_random_convolutions_like_scipy(sizes, mode, name, is_complex):
    random = np.random.default_rng(len(sizes))
    arrays = [random.normal(size=(2, *shape)).astype(np.float32) for shape in zip(*sizes, strict=True)]
    x, y = ((a[0] + 1j * a[1]) if is_complex else a[0] for a in arrays)
    expected = getattr(scipy.signal, name)(x, y, mode)
    np.testing.assert_allclose(getattr(signal, name)(x, y, mode), expected, atol=1e-4)
