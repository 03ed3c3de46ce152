"""Parse the text of a LocalProgram.

local mlp on mesh(data=4, model=2)
in f32[30,16] P('data', None)
out f32[30,4] P('data', None)
program mlp(a: f32[8,16], …) { … }
"""

from shardwise.compiler.ir.parse import parse_stage
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.partition.local_program import LocalProgram, Placement, verify_local
from shardwise.compiler.shardings.layout import parse_layout


def parse_local(text: str) -> LocalProgram:
    """Return the local program that prints as `text`."""
    program, mesh, ins, outs = parse_stage("local", text)
    return verify_local(
        LocalProgram(program, mesh, tuple(map(_parse_placement, ins)), tuple(map(_parse_placement, outs)))
    )


def _parse_placement(text: str) -> Placement:
    type, _, layout = text.partition(" ")
    return Placement(parse_type(type), parse_layout(layout))
