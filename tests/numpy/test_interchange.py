"""The array API standard, and DLPack."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.test_dlpack import aligned


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
