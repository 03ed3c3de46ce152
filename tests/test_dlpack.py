"""from_dlpack of arrays of other libraries."""

import numpy as np
import pytest

import shardwise as sw
from tests.numpy.test_array_methods_like_numpy import X


def aligned(shape, dtype=np.float32):
    """Return a numpy array that is aligned so that XLA can use its memory without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


@pytest.mark.table(default=2)
@pytest.mark.parametrize(
    "x",
    [
        np.arange(7, dtype=np.int8)[1:],
        X.T,
        np.array(2.5, np.float32),
        np.array([True, False]),
        np.array([1j], np.complex64),
    ],
    ids=lambda x: f"{x.dtype}{x.shape}",
)
def test_from_dlpack_accepts_any_memory(x):
    result = sw.dlpack.from_dlpack(x)
    assert result.tolist() == x.tolist()
    assert (result + result).tolist() == (x + x).tolist()


def test_from_dlpack_truncates_64_bit_dtypes_with_a_warning():
    with pytest.warns(UserWarning, match="float64 is not available"):
        result = sw.dlpack.from_dlpack(np.array([2.5]))
    assert result.dtype == np.float32 and result.tolist() == [2.5]


def test_from_dlpack_of_a_transposed_array():
    """The memory is aligned, so jaxlib would share it; it must not be read in row-major order."""
    memory = np.zeros(64 * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    x = memory[start : start + 24].view(np.float32).reshape(2, 3)
    x[:] = np.arange(6).reshape(2, 3)
    result = sw.dlpack.from_dlpack(x.T)
    assert result.tolist() == x.T.tolist()
    assert (result * 2).tolist() == (x.T * 2).tolist()
    with pytest.raises(BufferError, match="the array is not contiguous in row-major order"):
        sw.dlpack.from_dlpack(x.T, copy=False)
