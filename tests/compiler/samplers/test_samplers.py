"""Samplers: their programs on the words of keys, and errors."""

import numpy as np
import pytest

from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.samplers.distributions import RandomGamma
from shardwise.compiler.samplers.poisson_binomial import RejectionSampler, WaitingTimeSampler
from shardwise.compiler.samplers.sampler import sampling_program


def test_the_program_of_a_sampler_has_no_keys():
    program = sampling_program(RandomGamma(False), (parse_type("u32[3,2]"), parse_type("f32[3]")))
    values = [value for equation in program.walk() for value in (*equation.inputs, *equation.outputs)]
    assert values
    assert [value for value in values if is_key(value.type.dtype)] == []


def test_the_sample_of_a_shard_does_not_depend_on_the_other_elements():
    keys, shapes = np.arange(8, dtype=np.uint32).reshape(4, 2), np.float32([0.3, 1, 7, 0.01])
    samples = RandomGamma(False).reference(keys, shapes)
    shard = slice(1, 3)
    np.testing.assert_array_equal(RandomGamma(False).reference(keys[shard], shapes[shard]), samples[shard])
    assert len(set(samples.tolist())) == len(samples)


@pytest.mark.parametrize(
    ("op", "types", "text"),
    [
        (RandomGamma(False), "u32[2] f32[3]", "random_gamma: needs a key for each element"),
        (RandomGamma(False), "u32[3,2] i32[3]", "random_gamma: needs a float parameter"),
        (
            WaitingTimeSampler("pareto", (1,)),
            "u32[2] u64[] f32[3]",
            "random_waiting: 'pareto' with 1 parameters is not supported",
        ),
        (
            WaitingTimeSampler("poisson", (1,)),
            "u32[2] u64[] i32[3]",
            "random_waiting: parameters must be floats of one type",
        ),
        (
            RejectionSampler("poisson", (1,)),
            "u32[2] u64[] i32[] bool[2] f32[3]",
            "random_rejection: needs one i32 of min_iterations per key and a mask",
        ),
    ],
    ids=["gamma-keys", "gamma-integers", "kind", "integers", "live"],
)
def test_wrong_operands_raise_type_error(op, types, text):
    with pytest.raises(TypeError, match=text):
        op.out_types(*(parse_type(word) for word in types.split()))
