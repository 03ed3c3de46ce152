"""A ShardedProgram as text, and back. Its candidates follow from the program and the pins, and are not printed.

sharded mlp on mesh(data=4, model=2)
in P('data', None)
in P(None, 'model')
out free
program mlp(…) { … }
"""

from shardwise.compiler.ir.text import format_stage, parse_stage
from shardwise.compiler.propagate.propagate import ShardedProgram, propagate
from shardwise.compiler.shardings.layout import Pin, parse_layout


def format_sharded(sharded: ShardedProgram) -> str:
    """The text of a sharded program."""
    outs = ("free" if pin is None else _format_pin(pin) for pin in sharded.out_pins)
    return format_stage("sharded", sharded.program, sharded.mesh, map(_format_pin, sharded.in_pins), outs)


def parse_sharded(text: str) -> ShardedProgram:
    """The sharded program that prints as `text`."""
    program, mesh, ins, outs = parse_stage("sharded", text)
    pinned = [None if line == "free" else _parse_pin(line) for line in outs]
    return propagate(program, mesh, [_parse_pin(line) for line in ins], pinned)


def _format_pin(pin: Pin) -> str:
    dims = "".join(f" open {dim}" for dim in sorted(pin.open_dims))
    return f"{pin.layout}{dims}"


def _parse_pin(text: str) -> Pin:
    layout, *dims = text.split(" open ")
    return Pin(parse_layout(layout), frozenset(map(int, dims)))
