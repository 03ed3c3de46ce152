"""Instructions of XLA's text, with the ops and the lines that they compute."""

from shardwise.runtime.hlo_instructions import read_instructions

TEXT = """HloModule jit_f

FileNames
1 "/home/me/train.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=41 end_line=41 column=0 end_column=0}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8] parameter(0)
  %sub.1 = f32[8] subtract(%p, %p), metadata={op_name="train.py:41/sub" stack_frame_id=1}
  ROOT %exp.1 = f32[8] exponential(%sub.1), metadata={op_name="train.py:42/exp"}
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8] parameter(0)
  %fusion = f32[8] fusion(%a), kind=kLoop, calls=%fused, metadata={op_name="train.py:42/exp"}
  ROOT %sum = f32[8] all-reduce-start(%fusion), metadata={op_name="a;b" source_file="b.py" source_line=7}
}
"""


def test_a_fusion_is_made_of_the_ops_of_its_computation():
    fusion = read_instructions(TEXT)["fusion"]
    assert (fusion.opcode, fusion.name, fusion.is_collective) == ("fusion", "train.py:42/exp", False)
    assert fusion.made_of == ("train.py:41/sub", "train.py:42/exp")


def test_lines_come_from_the_tables_or_the_metadata():
    found = read_instructions(TEXT)
    assert found["sub.1"].source == "/home/me/train.py:41"
    assert found["sum"].source == "b.py:7"
    assert found["a"].source == found["a"].name == ""


def test_collectives_are_found_and_names_are_split():
    found = read_instructions(TEXT)["sum"]
    assert found.is_collective and found.made_of == ("a", "b")
