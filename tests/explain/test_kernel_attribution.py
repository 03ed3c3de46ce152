"""Kernels of CUDA graphs are aligned with the instructions that launched them, in profiles of an H200."""

import random
from pathlib import Path

import pytest

from shardwise.explain.device_trace import DeviceEvent, read_trace
from shardwise.explain.hlo_module import HloModule
from shardwise.explain.kernel_attribution import attribute, launches
from tests.explain.test_device_trace import LOOP

RECORDED = Path(__file__).parent / "recorded"


def recorded(name):
    return read_trace(RECORDED / f"h200_{name}.xplane.pb.gz").program("step")


def attributed(program, events=None):
    events = program.typical.events if events is None else events
    return [launch and launch.instruction.name for launch in attribute(events, program.module)]


def test_kernels_of_a_graph_are_in_the_order_of_the_schedule():
    """Four equal kernels have one name, and each product has a memset and a kernel of cuBLAS."""
    program = recorded("mlp")
    names = attributed(program)
    assert names[:8] == [
        *("wrapped_convert.1", "wrapped_convert.2", "wrapped_convert.3", "wrapped_convert"),
        *("custom-call.1", "custom-call.1", "loop_convert_multiply_fusion", "custom-call.0"),
    ]
    products = [name for name, event in zip(names, program.typical.events, strict=True) if "nvjet" in event.kernel]
    order = [each.instruction.name for each in launches(program.module) if each.instruction.opcode == "custom-call"]
    assert products == order and len(order) == 11


@pytest.mark.parametrize("name", ["mlp", "conv_net", "mixture_of_experts", "attention_at_8192"])
def test_every_kernel_has_an_instruction(name):
    program = recorded(name)
    assert None not in attributed(program)
    computing = {each.instruction.name for each in launches(program.module)}
    assert len(computing - set(attributed(program))) <= 0.02 * len(computing)


def test_named_events_agree_with_the_alignment():
    """The oracle: events that name their instruction, which are aligned as if they did not."""
    program = recorded("conv_net")
    events = program.typical.events
    hidden = [
        DeviceEvent(event.kernel, "command_buffer_0", index, event.start, event.seconds)
        for index, event in enumerate(events)
    ]
    names, found = attributed(program), attributed(program, hidden)
    stated = [index for index, event in enumerate(events) if not event.instruction.startswith("command_buffer")]
    assert len(stated) > 40
    assert [found[index] for index in stated] == [events[index].instruction for index in stated]
    assert found == names


def test_generated_kernels_out_of_order_are_found_by_name():
    program = recorded("mixture_of_experts")
    events = list(program.typical.events)
    random.Random(0).shuffle(events)
    found = {event.kernel: name for event, name in zip(events, attributed(program, events), strict=True)}
    generated = [kernel for kernel in found if "fusion" in kernel or "convert" in kernel]
    assert len(generated) > 20
    for kernel in generated:
        assert found[kernel].rstrip(".0123456789") == kernel.rstrip("_0123456789")


def test_kernels_of_another_program_have_no_instruction():
    module = HloModule(LOOP)
    events = [DeviceEvent("loop_add_fusion", "command_buffer_1", 1, 0.0, 1e-6)]
    assert attribute(events, module) == [None]


def test_a_node_of_a_loop_is_one_instruction():
    module = HloModule(LOOP)
    assert [each.instruction.name for each in launches(module)] == ["less.1", "square.1", "negate.1"]
    names = ("square_1", "square_1", "square_1", "negate_1")
    events = [
        DeviceEvent(name, "command_buffer_1", names.index(name), index * 1e-5, 1e-6) for index, name in enumerate(names)
    ]
    found = [launch and launch.instruction.name for launch in attribute(events, module)]
    assert found == ["square.1", "square.1", "square.1", "negate.1"]
