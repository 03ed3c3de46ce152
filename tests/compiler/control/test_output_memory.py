"""The memory in which programs leave their outputs, inside of calls too."""

from shardwise.compiler.control.call import Call
from shardwise.compiler.control.output_memory import out_kinds
from shardwise.compiler.ops.elementwise.arithmetic import Neg
from shardwise.compiler.ops.placement.memory_space import InMemory
from tests.compiler.control.control_programs import program


def test_outputs_in_other_memories_are_found_inside_of_calls():
    inner = program("inner", "f32[3]", lambda x: [Neg()(x), InMemory("pinned_host")(x)])
    outer = program("outer", "f32[3]", lambda x: [x, *reversed(Call(inner)(x)), InMemory("device")(x)])
    assert out_kinds(inner) == (None, "pinned_host")
    assert out_kinds(outer) == (None, "pinned_host", None, "device")
