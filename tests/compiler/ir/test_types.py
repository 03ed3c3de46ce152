"""Array types, dtypes and constants: properties, text, and errors."""

import pickle

import ml_dtypes
import numpy as np
import pytest

from shardwise.compiler.dtypes import (
    SHORT_NAMES,
    integer_range,
    is_float,
    is_inexact,
    is_integer,
    numpy_carrier,
    short_name,
)
from shardwise.compiler.ir.types import ArrayType, Scalar, explain_marks, parse_type


class TestArrayType:
    def test_equal_types_are_one_object(self):
        assert ArrayType((3, 4), np.float32) is ArrayType((3, 4), "float32")
        assert ArrayType((np.int64(3),), np.float32) is ArrayType((3,), np.dtype(np.float32))
        assert ArrayType((3,), np.float32) is not ArrayType((3,), np.float32, True)
        assert ArrayType((3,), np.float32) != ArrayType((3,), np.int32)

    def test_unpickling_returns_the_same_object(self):
        type = ArrayType((3,), ml_dtypes.bfloat16, True)
        assert pickle.loads(pickle.dumps(type)) is type

    def test_it_is_immutable(self):
        with pytest.raises(AttributeError, match="ArrayType is immutable: cannot set shape"):
            ArrayType((3,), np.float32).shape = (4,)

    @pytest.mark.parametrize(
        ("type", "text"),
        [
            (ArrayType((), np.float32), "f32[]"),
            (ArrayType((3, 4), ml_dtypes.bfloat16), "bf16[3,4]"),
            (ArrayType((0,), np.bool_), "bool[0]"),
            (ArrayType((2,), np.complex128, True), "c128[2]~"),
            (ArrayType((2,), ml_dtypes.float8_e4m3fn), "f8_e4m3fn[2]"),
        ],
    )
    def test_it_prints_and_parses(self, type, text):
        assert str(type) == repr(type) == text
        assert parse_type(text) is type

    @pytest.mark.parametrize("text", ["f32", "f32[", "f33[2]", "f32[-1]", "f32[2]x", "", "f32[2] "])
    def test_invalid_text_raises(self, text):
        with pytest.raises(ValueError, match="not a type"):
            parse_type(text)

    def test_sizes(self):
        type = ArrayType((3, 4), np.float16)
        assert (type.ndim, type.size, type.nbytes) == (2, 12, 24)
        assert ArrayType((), np.int64).size == 1
        assert ArrayType((2**20, 2**20, 2**10), np.int8).size == 2**50
        assert ArrayType((3, 0), np.int8).nbytes == 0

    def test_derived_types(self):
        type = ArrayType((3, 4, 5), np.float32, True)
        assert str(type.with_shape((2,))) == "f32[2]~"
        assert str(type.with_dtype(np.int32)) == "i32[3,4,5]"
        assert str(type.without((0, 2))) == "f32[4]~"
        assert type.strong() is ArrayType((3, 4, 5), np.float32)
        assert type.strong().strong() is type.strong()

    @pytest.mark.parametrize("dtype", [np.object_, np.str_, "datetime64[s]", np.longdouble])
    def test_unsupported_dtypes_raise(self, dtype):
        with pytest.raises(TypeError, match=r"arrays of .* are not supported; element types: bool, i16"):
            ArrayType((3,), dtype)

    def test_negative_sizes_raise(self):
        with pytest.raises(TypeError, match=r"a size cannot be negative: shape \(3, -1\)"):
            ArrayType((3, -1), np.float32)


class TestDtypes:
    def test_short_names_are_one_to_one(self):
        assert len(set(SHORT_NAMES.values())) == len(SHORT_NAMES)
        for name, dtype in SHORT_NAMES.items():
            assert short_name(dtype) == name

    def test_predicates(self):
        eight = {
            f"f8_{kind}"
            for kind in ["e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"]
        }
        floats = {"f16", "f32", "f64", "bf16", "f4_e2m1fn", *eight}
        integers = {"i2", "u2", "i4", "i8", "i16", "i32", "i64", "u4", "u8", "u16", "u32", "u64"}
        assert {name for name, dtype in SHORT_NAMES.items() if is_float(dtype)} == floats
        assert {name for name, dtype in SHORT_NAMES.items() if is_integer(dtype)} == integers
        assert {name for name, dtype in SHORT_NAMES.items() if is_inexact(dtype)} == {*floats, "c64", "c128"}

    def test_integer_ranges(self):
        for dtype in filter(is_integer, SHORT_NAMES.values()):
            limits = ml_dtypes.iinfo(dtype)
            assert integer_range(dtype) == (limits.min, limits.max)

    def test_numpy_computes_in_the_carrier_which_holds_every_value(self):
        for name, dtype in SHORT_NAMES.items():
            wide = numpy_carrier(dtype)
            assert wide.isbuiltin == 1
            if dtype.itemsize == 1 and dtype != np.bool_:
                codes = np.arange({"2": 4, "4": 16}.get(name[1], 256), dtype=np.uint8)
                values = codes.view(dtype)
                again = values.astype(wide).astype(dtype)
                np.testing.assert_array_equal(again.astype(wide), values.astype(wide))


class TestScalar:
    def test_scalars_compare_by_their_bytes(self):
        assert Scalar.from_value(0.0, np.float32) != Scalar.from_value(-0.0, np.float32)
        assert Scalar.from_value(np.nan, np.float32) == Scalar.from_value(np.nan, np.float32)
        assert Scalar.from_value(1, np.float32) == Scalar.from_value(1.0, np.float32)
        assert Scalar.from_value(1, np.float32) != Scalar.from_value(1, np.int32)
        assert len({Scalar.from_value(1, np.int32), Scalar.from_value(1, np.int32)}) == 1

    @pytest.mark.parametrize("name", SHORT_NAMES)
    def test_a_scalar_holds_its_value(self, name):
        dtype = SHORT_NAMES[name]
        assert Scalar.from_value(1, dtype).array == np.ones((), dtype)
        assert Scalar.from_value(1, dtype).array.dtype == dtype

    def test_python_integers_of_32_bits_wrap_and_longer_ones_raise(self):
        assert Scalar.from_value(-1, np.uint8).array == 255
        assert Scalar.from_value(300, np.uint8).array == 44
        assert Scalar.from_value(2**32 - 1, np.uint32).array == 2**32 - 1
        assert Scalar.from_value(-(2**63), np.int64).array == -(2**63)
        assert Scalar.from_value(2**70, np.float32).array == 2.0**70
        with pytest.raises(OverflowError, match="the integer 1099511627776 does not fit i32"):
            Scalar.from_value(2**40, np.int32)
        with pytest.raises(OverflowError, match="the integer 4294967295 does not fit u8"):
            Scalar.from_value(2**32 - 1, np.uint8)

    @pytest.mark.parametrize(
        ("scalar", "text"),
        [
            (Scalar.from_value(0.5, np.float32), "f32(0.5)"),
            (Scalar.from_value(-0.0, ml_dtypes.bfloat16), "bf16(-0.0)"),
            (Scalar.from_value(np.inf, np.float64), "f64(inf)"),
            (Scalar.from_value(np.nan, np.float16), "f16(nan)"),
            (Scalar.from_value(-7, np.int8), "i8(-7)"),
            (Scalar.from_value(True, np.bool_), "bool(True)"),
            (Scalar.from_value(complex(-0.0, 2.5), np.complex64), "c64(-0.0, 2.5)"),
            (Scalar(np.dtype(np.float32), bytes.fromhex("ffc00000")[::-1]), "f32(0xffc00000)"),
        ],
        ids=str,
    )
    def test_it_prints(self, scalar, text):
        assert str(scalar) == text


def test_marks_of_types_are_explained():
    assert explain_marks("f32[3] and i32[] differ") == ""
    assert explain_marks("layout f32[8,4]{1,0} of XLA") == ""
    weak = "\n  `~` marks a weak type, that of a Python number: in promotion, the dtype of an array wins."
    assert explain_marks("f32[]~ and i32[2]~") == weak
    varying = "marks a value that varies over the mesh axis"
    assert explain_marks("f32[2]{V:data} and f32[]~{V:(data,model)}") == (
        f"{weak}\n  `V:data` {varying} 'data': it differs between devices."
        f"\n  `V:(data,model)` {varying} 'data' and 'model': it differs between devices."
    )


def test_types_of_tangents():
    assert ArrayType((2,), np.float32, weak=True).strip_weak_type() is ArrayType((2,), np.float32)
    assert ArrayType((2,), np.float32, weak=True).to_tangent_aval() is ArrayType((2,), np.float32)
    assert ArrayType((2,), np.int32).to_tangent_aval() is ArrayType((2,), np.int32)
