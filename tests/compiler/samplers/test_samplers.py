"""Samplers: the types of their operands."""

import pytest

from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.samplers.distributions import RandomGamma
from shardwise.compiler.samplers.poisson_binomial import RejectionSampler, WaitingTimeSampler


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
