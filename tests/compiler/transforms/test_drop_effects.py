"""drop_effects removes effects whose results are not used, inside of calls too."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.transforms.drop_effects import drop_effects


def traced(function):
    return sw.make_jaxpr(function)(np.ones(3, np.float32)).program


def test_prints_are_removed_inside_of_calls():
    def inner(x):
        sw.debug.print("{}", x)
        return x + 1

    program = traced(lambda x: sw.jit(inner)(x) * 2)
    assert program.effect
    found = drop_effects(program)
    assert not found.effect
    assert found.out_types == program.out_types
    assert "callback" in str(program) and "callback" not in str(found)


def test_a_program_without_effects_is_returned():
    program = traced(lambda x: x * 2)
    assert drop_effects(program) is program


def test_a_result_that_is_used_is_an_error():
    def read(x):
        return sw.experimental.io_callback(lambda x: x, x, x) + 1

    with pytest.raises(TypeError, match=r"has an effect, which cannot be repeated: at .*test_drop_effects.py:\d+"):
        drop_effects(traced(read))
