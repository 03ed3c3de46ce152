"""Parser for the text of a ShardedProgram. Candidates are not printed: `propagate` recomputes them.

sharded mlp on mesh(data=4, model=2)
in P('data', None)
in P(None, 'model')
out free
program mlp(…) { … }
"""

from shardwise.compiler.ir.parse import parse_stage
from shardwise.compiler.propagate.propagate import ShardedProgram, propagate
from shardwise.compiler.shardings.layout import Pin, parse_layout


def parse_sharded(text: str) -> ShardedProgram:
    """Return the sharded program that prints as `text`."""
    program, mesh, ins, outs = parse_stage("sharded", text)
    pinned = [None if line == "free" else _parse_pin(line) for line in outs]
    return propagate(program, mesh, [_parse_pin(line) for line in ins], pinned)


def _parse_pin(text: str) -> Pin:
    layout, *dims = text.split(" open ")
    return Pin(parse_layout(layout), frozenset(map(int, dims)))
