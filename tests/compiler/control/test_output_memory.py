"""The memory in which programs leave their outputs, inside of calls too."""

import numpy as np
import pytest

from shardwise.compiler.control.call import Call
from shardwise.compiler.control.output_memory import out_kinds
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul, Neg
from shardwise.compiler.ops.placement.memory_space import InMemory
from shardwise.compiler.ops.shape.constants import full
from tests.compiler.control.control_programs import program


def test_outputs_in_other_memories_are_found_inside_of_calls():
    inner = program("inner", "f32[3]", lambda x: [Neg()(x), InMemory("pinned_host")(x)])
    outer = program("outer", "f32[3]", lambda x: [x, *reversed(Call(inner)(x)), InMemory("device")(x)])
    assert out_kinds(inner) == (None, "pinned_host")
    assert out_kinds(outer) == (None, "pinned_host", None, "device")


def test_results_are_in_the_memory_of_their_operands():
    def body(x, y):
        scaled = Mul()(x, full((3,), 2.0, np.float32))  # a constant of one value is in any memory
        return [scaled, Neg()(y), InMemory("device")(x), *Call(inner)(x)]

    inner = program("inner", "f32[3]", lambda x: [Neg()(x)])
    two = program("two", "f32[3] f32[3]", body)
    assert out_kinds(two, ["pinned_host", None]) == ("pinned_host", None, None, "pinned_host")
    assert out_kinds(two, [None, "pinned_host"]) == (None, "pinned_host", None, None)
    assert out_kinds(two) == (None, None, "device", None)


def test_operands_in_two_memories_are_an_error():
    total = program("total", "f32[3] f32[3]", lambda x, y: [Add()(x, y)])
    assert out_kinds(total, ["pinned_host", "pinned_host"]) == ("pinned_host",)
    with pytest.raises(ValueError, match=r"add at .*: the operands .* in different memories, pinned_host and device"):
        out_kinds(total, ["pinned_host", None])
