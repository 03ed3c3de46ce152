"""Scalar types, dtype queries, type promotion, and arrays of narrow dtypes. The oracle is JAX."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.base.config import config
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

FLOATS = ["float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"]
FLOATS += ["float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "bfloat16", "float16", "float32", "float64"]
INTEGERS = ["int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64"]
SUPPORTED = ["bool_", *INTEGERS, *FLOATS, "complex64", "complex128"]
NAMES = [*SUPPORTED, "int1", "uint1", "float6_e2m3fn", "float6_e3m2fn", "int_", "uint", "float_", "complex_", "single"]
NAMES += ["double", "csingle", "cdouble", "bool"]
ABSTRACT = [
    "generic",
    "number",
    "integer",
    "signedinteger",
    "unsignedinteger",
    "inexact",
    "floating",
    "complexfloating",
]
ABSTRACT += ["flexible", "character", "object_"]
NARROW = ["int2", "int4", "uint2", "uint4", *FLOATS[:9]]
KINDS = ["bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric"]


@pytest.fixture(params=[False, True], ids=["32", "64"])
def wide(request):
    """Both packages with 64-bit types off, then on."""
    config.update("enable_x64", request.param)
    with jax.enable_x64(request.param):
        yield request.param
    config.update("enable_x64", False)


@pytest.mark.parametrize("name", NAMES)
def test_scalar_type_is_a_dtype(name):
    ours, theirs = getattr(jnp, name), getattr(jax.numpy, name)
    assert ours.dtype == theirs.dtype
    assert np.dtype(ours) == theirs.dtype
    assert ours.__name__ == theirs.__name__
    assert ours == theirs.dtype.type
    assert ours == theirs.dtype
    assert theirs.dtype == ours
    assert hash(ours) == hash(theirs.dtype.type)
    assert isinstance(ours, type)
    assert isinstance(theirs.dtype.type(0), ours)
    assert ours != jnp.complex64 or name in ("complex64", "csingle")


@pytest.mark.table(default=16)
@pytest.mark.parametrize(
    "name", [name for name in SUPPORTED if name not in ("float64", "complex128", "int64", "uint64")]
)
@pytest.mark.parametrize("value", [1, [1, 0]], ids=str)
def test_scalar_type_creates_arrays(name, value):
    ours, theirs = getattr(jnp, name)(value), getattr(jax.numpy, name)(value)
    assert isinstance(ours, sw.Array)
    assert (ours.dtype, ours.shape, ours.weak_type) == (theirs.dtype, theirs.shape, theirs.weak_type)
    np.testing.assert_array_equal(np.asarray(ours).astype(complex), np.asarray(theirs).astype(complex))


def test_scalar_type_casts_tracers_and_checks_ranges():
    assert sw.jit(jnp.int8)(2.7).dtype == np.int8
    with pytest.raises(OverflowError, match=r"array: 300 is out of range for int8, which holds -128 to 127"):
        jnp.int8(300)


def test_abstract_types_are_those_of_numpy():
    for name in ABSTRACT:
        assert getattr(jnp, name) is getattr(jax.numpy, name)


def test_issubdtype_and_isdtype_like_jax():
    concrete = [name for name in NAMES if name != "bool"]
    for name in concrete:
        mine, theirs = getattr(jnp, name), getattr(jax.numpy, name)
        for other in ABSTRACT:
            assert jnp.issubdtype(mine, getattr(jnp, other)) == jax.numpy.issubdtype(theirs, getattr(jax.numpy, other))
        for other in concrete:
            expected = jax.numpy.issubdtype(theirs, getattr(jax.numpy, other))
            assert jnp.issubdtype(mine, getattr(jnp, other)) == expected, (name, other)
        for kind in KINDS:
            assert jnp.isdtype(mine, kind) == jax.numpy.isdtype(theirs, kind), (name, kind)
        assert jnp.isdtype(mine, ("bool", mine))
    assert not jnp.isdtype("float32", ())
    with pytest.raises(ValueError, match=r"isdtype: 'zz' is neither a dtype nor a kind; kinds: bool, signed integer"):
        jnp.isdtype("float32", "zz")


def test_finfo_and_iinfo_like_jax():
    for name in FLOATS:
        mine, theirs = jnp.finfo(getattr(jnp, name)), jax.numpy.finfo(getattr(jax.numpy, name))
        for part in ("bits", "eps", "max", "min", "tiny", "nmant", "smallest_subnormal", "dtype"):
            assert getattr(mine, part) == getattr(theirs, part), (name, part)
    for name in INTEGERS:
        mine, theirs = jnp.iinfo(getattr(jnp, name)), jax.numpy.iinfo(getattr(jax.numpy, name))
        assert (mine.bits, mine.min, mine.max) == (theirs.bits, theirs.min, theirs.max)
    assert jnp.finfo(jnp.ones(2)).max == np.finfo(np.float32).max
    assert jnp.finfo(np.complex64).dtype == np.float32
    assert jnp.iinfo(3).max == 2**63 - 1
    with pytest.raises(ValueError, match="iinfo: float32 is not an integer dtype; use `finfo` for floats"):
        jnp.iinfo(jnp.float32)


def attempt(call):
    try:
        return call()
    except (TypeError, ValueError):
        return "error"


@pytest.mark.table(default=1)
def test_promotion_like_jax(wide):
    names = [getattr(jnp, name).dtype for name in SUPPORTED] + [bool, int, float, complex]
    for one in names:
        for two in names:
            expected = attempt(lambda one=one, two=two: jax.numpy.promote_types(one, two))
            assert attempt(lambda one=one, two=two: jnp.promote_types(one, two)) == expected, (one, two)
    for args in [(3,), (3, np.int8(1)), (np.float64(3),), (np.int8, float), (True, 3), (np.ones(2, np.float16), 1j)]:
        assert jnp.result_type(*args) == jax.numpy.result_type(*args), args
    assert jnp.result_type(jnp.bool_, jnp.int4) == ml_dtypes.int4
    # numpy scalars are strongly typed, although `np.float64` and `np.complex128` are subclasses of Python's types.
    narrow = np.ones(2, ml_dtypes.bfloat16)
    for number in (np.float64(3), np.complex128(1j), np.float32(2), np.int64(2), 3.0):
        expected = jax.numpy.asarray(narrow) * number
        for result in (jnp.asarray(narrow) * number, sw.jit(lambda x, y: x * y)(narrow, number)):
            assert (result.dtype, result.weak_type) == (expected.dtype, expected.weak_type), number
        assert jnp.asarray(number).weak_type == jax.numpy.asarray(number).weak_type, number
    with pytest.raises(ValueError, match="result_type: needs at least one array, number or dtype"):
        jnp.result_type()


def test_promotion_errors():
    with pytest.raises(sw.dtypes.TypePromotionError) as caught:
        jnp.promote_types("bfloat16", jnp.float8_e5m2)
    assert str(caught.value) == (
        "promote_types: bfloat16 and float8_e5m2 have no common dtype by promotion; convert one with `.astype`"
    )
    with pytest.raises(ValueError, match="promote_types: arrays of float6_e2m3fn are not supported"):
        jnp.promote_types(jnp.float6_e2m3fn, "float32")


@pytest.mark.parametrize(
    "x", [3, 2.5, 1j, True, "a", [1], None, np.float32(1), np.array(1), np.ones(2), [1j]], ids=repr
)
def test_object_predicates_like_jax(x):
    for name in ("isscalar", "iscomplexobj", "isrealobj"):
        assert getattr(jnp, name)(x) == getattr(jax.numpy, name)(x)


def test_array_predicates():
    assert jnp.isscalar(jnp.float32(1))
    assert not jnp.isscalar(jnp.ones(2))
    assert jnp.iscomplexobj(jnp.ones(2, jnp.complex64))
    assert jnp.can_cast(jnp.int8, jnp.float32)


@pytest.mark.slow
@pytest.mark.table(default=4)
@pytest.mark.parametrize("name", NARROW)
def test_arrays_of_narrow_dtypes(name, mesh):
    """Creation, conversion, transfer, sharding and computation agree with JAX."""
    numbers = np.array([1, 0, 1, 2, 3, 1, 1, 0, 2, 1], np.float32)
    ours, theirs = getattr(jnp, name), getattr(jax.numpy, name)

    def program(np, dtype):
        def run(x):
            y = x.astype(dtype)
            return [
                y,
                y.astype(np.float32),
                y + y,
                y * y,
                np.maximum(y, y[::-1]),
                y == y[0],
                np.where(y > 1, y, y[::-1]),
                np.roll(y, 3),
                np.concatenate([y, y])[4:9],
                y.astype(np.int32),
            ]

        return run

    expected = jax.jit(program(jax.numpy, theirs))(numbers)
    sharded = sw.device_put(numbers, NamedSharding(mesh, P("data")))
    for operand in (numbers, sharded):
        for x, y in zip(sw.jit(program(jnp, ours))(operand), expected, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(np.asarray(x).astype(np.float32), np.asarray(y).astype(np.float32))
    created = jnp.array([1, 0, 1], ours)
    sharded = sw.device_put(created, NamedSharding(mesh, P("data")))
    on_one_device = sw.device_put(sharded, sw.devices()[3])
    for x in (created, sharded, on_one_device):
        expected = np.asarray(jax.numpy.array([1, 0, 1], theirs))
        np.testing.assert_array_equal(np.asarray(x).astype(np.float32), expected.astype(np.float32))


def test_dtypes_module_like_jax(wide):
    for dtype in (float, int, "complex128", np.int64, np.float16, jnp.bfloat16):
        assert sw.dtypes.canonicalize_dtype(dtype) == jax.dtypes.canonicalize_dtype(dtype)
    for x in (True, 3, 2.5, 1j, np.int8(1), np.ones(2)):
        assert sw.dtypes.scalar_type_of(x) is jax.dtypes.scalar_type_of(x)
    for name in SUPPORTED:
        assert sw.dtypes.itemsize_bits(getattr(jnp, name)) == jax.dtypes.itemsize_bits(getattr(jax.numpy, name)), name
    assert sw.dtypes.float0 == jax.dtypes.float0
    assert sw.dtypes.bfloat16 is jax.dtypes.bfloat16
    not_supported = {"extended", "prng_key"}  # extended dtypes of random keys
    assert {name for name in dir(jax.dtypes) if name[0] != "_"} <= {*dir(sw.dtypes), *not_supported}


def test_constants():
    assert (jnp.e, jnp.euler_gamma, jnp.pi, jnp.newaxis) == (np.e, np.euler_gamma, np.pi, None)
    assert jnp.ComplexWarning is jax.numpy.ComplexWarning
