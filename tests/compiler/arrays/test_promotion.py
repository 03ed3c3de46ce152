"""Promotion like JAX: every pair of dtypes, and of dtypes with Python scalars."""

import itertools

import numpy as np
import pytest

from shardwise.base.config import config
from shardwise.compiler.arrays.promotion import canonical_dtype, default_dtype, promote_dtypes, scalar_type
from shardwise.compiler.dtypes import SHORT_NAMES
from shardwise.compiler.ir.types import ArrayType

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

WIDE = ("i64", "u64", "f64", "c128")
SCALARS = (True, 1, 1.5, 1j)


@pytest.fixture(params=[False, True], ids=["32-bit", "64-bit"])
def wide(request):
    """Run with 64-bit types disabled and enabled, in both packages."""
    with config.override("enable_x64", request.param), jax.enable_x64(request.param):
        yield request.param


def types(wide: bool) -> list[ArrayType]:
    """Return every array type and the types of Python scalars."""
    arrays = [ArrayType((), dtype) for name, dtype in SHORT_NAMES.items() if wide or name not in WIDE]
    return [*arrays, *(scalar_type(value) for value in SCALARS[1:])]


def in_jax(*operands: ArrayType) -> tuple[np.dtype, bool] | None:
    arrays = [x.dtype.type(1).item() if x.weak else jax.numpy.zeros(x.shape, x.dtype) for x in operands]
    try:
        dtype, weak = jax.dtypes.result_type(*arrays, return_weak_type_flag=True)
    except jax.dtypes.TypePromotionError:
        return None
    return np.dtype(dtype), weak


def ours(*operands: ArrayType) -> tuple[np.dtype, bool] | None:
    try:
        return promote_dtypes("add", operands)
    except TypeError:
        return None


def test_pairs_promote_like_jax(wide):
    pairs = list(itertools.product(types(wide), repeat=2))
    assert [(pair, ours(*pair)) for pair in pairs] == [(pair, in_jax(*pair)) for pair in pairs]


def test_triples_promote_like_jax(wide):
    names = ("bool", "u8", "i32", "bf16", "f16", "f32", "c64")
    some = [ArrayType((), SHORT_NAMES[name]) for name in names] + [scalar_type(value) for value in SCALARS[1:]]
    triples = list(itertools.product(some, repeat=3))
    assert [(triple, ours(*triple)) for triple in triples] == [(triple, in_jax(*triple)) for triple in triples]


@pytest.mark.parametrize("value", SCALARS, ids=repr)
def test_types_of_python_scalars_like_jax(wide, value):
    array = jax.numpy.asarray(value)
    assert scalar_type(value) == ArrayType((), array.dtype, array.weak_type)


def test_canonical_dtypes_like_jax(wide):
    for dtype in SHORT_NAMES.values():
        assert canonical_dtype(dtype) == jax.dtypes.canonicalize_dtype(dtype)


def test_default_dtypes_like_jax(wide):
    assert default_dtype("int*") == jax.numpy.asarray(1).dtype
    assert default_dtype("float*") == jax.numpy.asarray(1.5).dtype
    assert default_dtype("complex*") == jax.numpy.asarray(1j).dtype


def test_the_error_names_types_without_a_common_dtype():
    with pytest.raises(TypeError) as caught:
        promote_dtypes("add", [ArrayType((2,), SHORT_NAMES["f8_e5m2"]), ArrayType((), SHORT_NAMES["bf16"])])
    assert str(caught.value) == (
        "add: f8_e5m2[2] and bf16[] have no common dtype by promotion; convert one with `.astype`"
    )
