"""The text of HLO modules is parsed into computations and instructions."""

import pytest

from shardwise.runtime.hlo_text import HloInstruction, bracketed, read_computations

TEXT = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%fused.1 (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %exp.1 = f32[8]{0} exponential(%p), metadata={op_name="a{b\\"}"}
}

ENTRY %main (a: f32[8]) -> (f32[8], f32[8]) {
  %a = f32[8]{0} parameter(0)
  ROOT %pair = (f32[8]{0}, /*index=1*/f32[8]{0}) fusion(%a), kind=kLoop, calls=%fused.1
}
"""


def test_computations_have_their_instructions_in_order():
    computations = read_computations(TEXT)
    assert computations.entry == "main"
    names = {name: [each.name for each in instructions] for name, instructions in computations.by_name.items()}
    assert names == {"fused.1": ["p", "exp.1"], "main": ["a", "pair"]}


def test_an_instruction_has_type_opcode_and_attributes():
    pair = read_computations(TEXT).by_name["main"][1]
    assert (pair.type, pair.opcode) == ("(f32[8]{0}, f32[8]{0})", "fusion")
    assert pair.value("calls") == "%fused.1"
    assert pair.value("dimensions") is None


def test_brackets_in_quotes_do_not_count():
    exponential = read_computations(TEXT).by_name["fused.1"][1]
    assert bracketed(exponential.value("metadata")) == '{op_name="a{b\\"}"}'


def test_an_unclosed_bracket_is_an_error():
    with pytest.raises(ValueError, match="unclosed bracket"):
        assert HloInstruction("  %a = (f32[8]{0} add(%b)").type
