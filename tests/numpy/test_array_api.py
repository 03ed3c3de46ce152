"""Methods of arrays, the array API standard, and DLPack."""

import inspect

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = np.array([[3.0, 1.0, 2.0], [0.0, -1.0, 5.0]], np.float32)
METHODS = {
    "argpartition": lambda x: x.argpartition(1)[..., 0],
    "byteswap": lambda x: x.byteswap(),
    "choose": lambda x: (x > 1).astype(np.int32).choose([x, -x]),
    "clip": lambda x: x.clip(0, 2),
    "compress": lambda x: x.compress(np.array([True, False, True]), axis=1),
    "conjugate": lambda x: x.conjugate(),
    "copy": lambda x: x.copy(),
    "cumprod": lambda x: x.cumprod(axis=1),
    "diagonal": lambda x: x.diagonal(1),
    "dot": lambda x: x.dot(x.T),
    "flatten": lambda x: x.flatten("F"),
    "itemsize": lambda x: x.itemsize,
    "mT": lambda x: x[None].mT,
    "max": lambda x: x.max(axis=0, initial=2.0, where=x > 0),
    "mean": lambda x: x.mean(axis=0, where=x > -1),
    "nonzero": lambda x: x.nonzero(),
    "prod": lambda x: x.prod(axis=1, keepdims=True),
    "ravel": lambda x: x.ravel(),
    "repeat": lambda x: x.repeat(2, axis=0),
    "reshape": lambda x: x.reshape(3, 2, order="F"),
    "round": lambda x: x.round(1),
    "searchsorted": lambda x: x[0, ::2][::-1].searchsorted(x),
    "sort": lambda x: x.sort() if not isinstance(x, np.ndarray) else np.sort(x),
    "squeeze": lambda x: x[:, None].squeeze(1),
    "std": lambda x: x.std(axis=1, ddof=1),
    "sum": lambda x: x.sum(initial=10.0),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "take": lambda x: x.take(np.array([0, 2]), axis=1),
    "trace": lambda x: x.trace(1),
    "transpose": lambda x: x.transpose(1, 0),
    "transpose none": lambda x: x.transpose(None),
    "var": lambda x: x.var(),
    "view": lambda x: x.view(np.int32),
    "view bytes": lambda x: x.view(np.uint8),
    "view pairs": lambda x: x[:, :2].copy().view(np.complex64),
    "item": lambda x: x.item(1, 2),
    "item flat": lambda x: x.item(4),
    "contains": lambda x: (2.0 in x, 9.0 in x),
    "round number": lambda x: round(x[0, 0] + 0.7),
    "format": lambda x: f"{x[0, 0]:.2f}",
    "index": lambda x: [7, 8, 9][x[0, 1].astype(np.int32)],
    "complex": lambda x: complex(x[0, 0]),
    "tobytes": lambda x: x.tobytes(),
}


@pytest.mark.table(default=7)
@pytest.mark.parametrize("name", METHODS)
def test_methods_like_numpy(name, mesh):
    expected = METHODS[name](X)
    for x in (jnp.array(X), sw.device_put(X, NamedSharding(mesh, P(None, "model")))):
        result = METHODS[name](x)
        for got, want in zip(
            *((part if isinstance(part, tuple) else (part,)) for part in (result, expected)), strict=True
        ):
            if isinstance(want, (str, bytes)):
                assert got == want
            else:
                np.testing.assert_allclose(np.asarray(got).astype(complex), np.asarray(want).astype(complex), rtol=1e-6)


def test_view_reinterprets_bits():
    x = jnp.array([1 + 2j, 3 - 4j], jnp.complex64)
    assert x.view(jnp.float32).tolist() == [1, 2, 3, -4]
    assert x.view(jnp.float32).view(jnp.complex64).tolist() == x.tolist()
    assert jnp.array([True, False]).view(jnp.int8).tolist() == [1, 0]
    assert jnp.array([2, 0], jnp.int8).view(bool).tolist() == [True, False]
    assert jnp.float32(1).view(jnp.int32).tolist() == 0x3F800000
    assert jnp.array([1.5, -2], jnp.bfloat16).view(jnp.uint16).tolist() == [0x3FC0, 0xC000]
    assert (
        jnp.array([1 + 2j], jnp.complex64).byteswap().tolist() == np.array([1 + 2j], np.complex64).byteswap().tolist()
    )
    assert x.view() is x


def test_array_namespace_follows_the_standard():
    x = jnp.ones(2)
    space = x.__array_namespace__(api_version="2024.12")
    assert space is jnp
    assert sw.jit(lambda x: x.__array_namespace__().sum(x))(x) == 2
    assert jnp.__array_api_version__ == "2024.12"
    info = space.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 64}
    assert info.default_device() is None
    assert info.default_dtypes()["real floating"] == np.float32
    assert info.devices() == [None, *sw.devices()]
    assert set(info.dtypes()) == {
        *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float32", "complex64")
    }
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32"}
    with pytest.raises(ValueError, match=r"array API version '2021.12' is not supported; supported: 2024.12"):
        x.__array_namespace__(api_version="2021.12")


FUNCTIONS = """abs acos acosh add all any arange argmax argmin argsort asarray asin asinh astype atan atan2 atanh
bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor broadcast_arrays broadcast_to
can_cast ceil clip concat conj copysign cos cosh count_nonzero cumulative_prod cumulative_sum diff divide e empty
empty_like equal exp expand_dims expm1 eye finfo flip floor floor_divide from_dlpack full full_like greater
greater_equal hypot iinfo imag inf isdtype isfinite isinf isnan less less_equal linspace log log10 log1p log2 logaddexp
logical_and logical_not logical_or logical_xor matmul matrix_transpose max maximum mean meshgrid min minimum moveaxis
multiply nan negative newaxis nextafter nonzero not_equal ones ones_like permute_dims pi positive pow prod real
reciprocal remainder repeat reshape result_type roll round searchsorted sign signbit sin sinh sort sqrt square
squeeze stack std subtract sum take take_along_axis tan tanh tensordot tile tril triu trunc unique_all unique_counts
unique_inverse unique_values unstack var vecdot where zeros zeros_like"""


def test_namespace_has_all_functions_of_the_standard():
    assert [name for name in FUNCTIONS.split() if not hasattr(jnp, name)] == []


def test_arrays_have_the_methods_of_jax_arrays():
    jax = pytest.importorskip("jax")
    private = {"aval", "clone", "device_buffer", "device_buffers", "format", "platform", "traceback"}
    theirs = {name for name in dir(jax.numpy.ones(2)) if not name.startswith("_")} - private
    assert theirs <= set(dir(jnp.ones(2)))
    for name in theirs - {"at", "flat", "mT", "delete", "is_deleted", "block_until_ready", "on_device_size_in_bytes"}:
        mine, their = getattr(jnp.ones(2), name), getattr(jax.numpy.ones(2), name)
        if callable(mine):
            try:
                expected = list(inspect.signature(their).parameters)
            except ValueError:  # written in C++
                continue
            assert list(inspect.signature(mine).parameters) == expected, name


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x.flat, NotImplementedError, "arrays have no `flat`; use `x.flatten()`"),
        (
            lambda x: x.__setitem__(0, 1),
            TypeError,
            "arrays are immutable: use `x = x.at[index].set(values)` instead of item assignment",
        ),
        (lambda x: x.view(type=int), NotImplementedError, "view: the parameter `type` is not supported"),
        (
            lambda x: x.view(jnp.complex64),
            ValueError,
            "view: the 12 bytes of the last dim of f32[2,3] are not a multiple of the size of complex64",
        ),
        (
            lambda x: x[0, 0].view(jnp.int8),
            ValueError,
            "view: a scalar f32[] cannot be viewed as int8, which has a different size",
        ),
        (
            lambda x: x.view(jnp.int4),
            TypeError,
            "view: f32[2,3] as int4: dtypes narrower than a byte are not supported",
        ),
        (lambda x: x.mT.T[0].mT, ValueError, "matrix_transpose: needs an array of 2 or more dims, not f32[3]"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call(jnp.array(X))
    assert str(caught.value).split("\n")[0] == message


def aligned(shape, dtype=np.float32):
    """Return a numpy array that is aligned so that XLA can use its memory without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def test_dlpack_shares_memory_with_numpy():
    x = jnp.arange(6.0).reshape(2, 3)
    view = np.from_dlpack(x)
    assert view.tolist() == x.tolist()
    assert view.ctypes.data == x.unsafe_buffer_pointer()
    host = aligned((4, 4))
    host[:] = 1.5
    shared = jnp.from_dlpack(host)
    assert shared.unsafe_buffer_pointer() == host.ctypes.data
    assert (shared + 1).tolist() == [[2.5] * 4] * 4
    copied = jnp.from_dlpack(host, copy=True)
    host[0, 0] = 7
    assert copied.tolist() == [[1.5] * 4] * 4
    assert shared[0, 0] == 7


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


def test_dlpack_round_trip():
    for x in (jnp.ones(3, jnp.bfloat16), jnp.arange(4), jnp.ones((2, 2))):
        assert jnp.from_dlpack(x).tolist() == x.tolist()
        assert jnp.from_dlpack(x).dtype == x.dtype
    on_device_2 = sw.device_put(jnp.arange(3), sw.devices()[2])
    assert jnp.from_dlpack(on_device_2).devices() == {sw.devices()[2]}
    assert jnp.from_dlpack(jnp.arange(3), device=sw.devices()[1]).devices() == {sw.devices()[1]}
    assert on_device_2.__dlpack_device__() == (1, 0)
    assert not sw.dlpack.is_supported_dtype(jnp.int4)
    assert sw.dlpack.is_supported_dtype(ml_dtypes.bfloat16)


def test_dlpack_errors(mesh):
    x = sw.device_put(np.ones(10, np.float32), NamedSharding(mesh, P("data")))
    with pytest.raises(BufferError) as caught:
        x.__dlpack__()
    assert str(caught.value).startswith("this f32[10] is on 8 devices, in NamedSharding")
    assert "share `x.addressable_shards[i].data`" in str(caught.value)
    assert np.from_dlpack(x.addressable_shards[0].data).tolist() == [1, 1, 1]
    with pytest.raises(BufferError, match="i4\\[2\\] cannot be shared by DLPack"):
        jnp.ones(2, jnp.int4).__dlpack__()
    with pytest.raises(
        TypeError, match="from_dlpack: list does not support DLPack: it has no `__dlpack__` and `__dlpack_device__`"
    ):
        jnp.from_dlpack([1, 2])
    with pytest.raises(BufferError, match=r"is on .*: move it first with `to_device`"):
        jnp.ones(2).__dlpack__(dl_device=(2, 0))
