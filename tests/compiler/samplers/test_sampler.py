"""The program of a sampler on the words of its key."""

from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.samplers.distributions import RandomGamma
from shardwise.compiler.samplers.sampler import sampling_program


def test_the_program_of_a_sampler_has_no_keys():
    program = sampling_program(RandomGamma(False), (parse_type("u32[3,2]"), parse_type("f32[3]")))
    values = [value for equation in program.walk() for value in (*equation.inputs, *equation.outputs)]
    assert values
    assert [value for value in values if is_key(value.type.dtype)] == []
