"""Elements of constants, of every dtype and in every form."""

import ml_dtypes
import numpy as np
import pytest

from shardwise.base import _jaxlib
from shardwise.compiler.dtypes import SHORT_NAMES
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.lower.hlo import literal, tensor_type
from shardwise.errors import UnsupportedError
from shardwise.stablehlo.elements import constant_elements


def elements(text):
    module = _jaxlib.parse_module(
        f"func.func @main() -> {text.rpartition(' : ')[2]} {{\n%0 = stablehlo.constant {text}\n"
        f"return %0 : {text.rpartition(' : ')[2]} }}"
    )
    return constant_elements(module.body.operations[0].regions[0].blocks[0].operations[0].operation)


@pytest.mark.parametrize("dtype", SHORT_NAMES.values(), ids=SHORT_NAMES)
@pytest.mark.parametrize("count", [1, 2, 3, 200])
def test_every_dtype(dtype, count):
    values = (np.arange(count) % 2 + (dtype.kind in "fV")).astype(dtype)
    text = ", ".join(literal(value, dtype) for value in values)
    read = np.broadcast_to(elements(f"dense<[{text}]> : {tensor_type(ArrayType((count,), dtype))}"), (count,))
    assert read.dtype == dtype
    np.testing.assert_array_equal(read.astype(np.complex128), values.astype(np.complex128))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>", np.array([[1, 2], [3, 4]], np.int32)),
        ("dense<-3> : tensor<5xi8>", np.int8(-3)),
        ("dense<> : tensor<0x3xf32>", np.zeros((0, 3), np.float32)),
        ("dense<[-0.0, 0x7F800000, 0x7FC00000]> : tensor<3xf32>", np.array([-0.0, np.inf, np.nan], np.float32)),
        ("dense<[0x7F80, 1.5, -2.0e-3]> : tensor<3xbf16>", np.array([np.inf, 1.5, -2e-3], ml_dtypes.bfloat16)),
        ("dense<(1.0, -2.5)> : tensor<3xcomplex<f32>>", np.complex64(1 - 2.5j)),
        (
            "dense<[[(1.0, 2.0)], [(0x7F800000, -0.0)]]> : tensor<2x1xcomplex<f32>>",
            np.array([[1 + 2j], [complex(np.inf, -0.0)]], np.complex64),
        ),
        ('dense<"0x0100000002000000"> : tensor<2xi32>', np.array([1, 2], np.int32)),
        ("dense<[true, false, true]> : tensor<3xi1>", np.array([True, False, True])),
    ],
)
def test_forms(text, expected):
    read = elements(text)
    assert (read.dtype, read.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(read.astype(np.complex128), expected.astype(np.complex128))


def test_resources_are_not_supported():
    with pytest.raises(UnsupportedError, match="constants outside of the module"):
        elements("dense_resource<weights> : tensor<2xf32>")
