"""Random ops: the types of their operands."""

import numpy as np
import pytest

from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ops.random.rng_bit_generator import RngBitGenerator, RngUniform
from shardwise.compiler.ops.random.threefry import RandomBits, RandomKeys
from tests.compiler.ops.random.test_threefry import U32


@pytest.mark.parametrize(
    ("op", "types", "text"),
    [
        (RandomBits((3,), (1,), 32), "i32[2] u64[]", "random_bits: a key must be 2 words of 32 bits"),
        (RandomBits((3,), (1,), 32), "u32[3] u64[]", "random_bits: a key must be 2 words of 32 bits"),
        (RandomBits((3,), (1,), 32), "u32[2] u32[]", "random_bits: needs a counter for each key"),
        (RandomKeys((3,), ()), "u32[2] u64[]", "random_keys: strides"),
        (RandomBits((3,), (1,), 12), "u32[2] u64[]", "random_bits: width must be one of 8, 16, 32, 64, not 12"),
        (
            RngBitGenerator((3,), np.dtype(U32), "DEFAULT"),
            "u32[3]",
            r"the key must be u32\[4\] or u64\[2\], not u32\[3\]",
        ),
        (
            RngBitGenerator((3,), np.dtype(np.int32), "DEFAULT"),
            "u32[4]",
            "rng_bit_generator: dtype must be one of uint8",
        ),
        (RngUniform((3,)), "f32[] i32[]", "rng_uniform: needs two scalars of one dtype"),
    ],
    ids=["signed", "three-words", "counter", "strides", "width", "state", "signed-bits", "two-dtypes"],
)
def test_wrong_operands_raise_type_error(op, types, text):
    with pytest.raises(TypeError, match=text):
        op.out_types(*(parse_type(word) for word in types.split()))
