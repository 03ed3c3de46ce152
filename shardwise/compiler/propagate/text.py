"""A ShardedProgram as text, and back. Its candidates follow from the program and the pins, and are not printed.

sharded mlp on mesh(data=4, model=2)
in P('data', None)
in P(None, 'model')
out free
program mlp(…) { … }
"""

from shardwise.compiler.ir.text import format_program, parse_program
from shardwise.compiler.propagate.sharded import ShardedProgram, propagate
from shardwise.compiler.shardings.layout import Pin, parse_layout
from shardwise.compiler.shardings.mesh import parse_mesh
from shardwise.errors import ProgramError


def format_sharded(sharded: ShardedProgram) -> str:
    """The text of a sharded program."""
    lines = [f"sharded {sharded.program.name} on mesh({sharded.mesh})"]
    lines += [f"in {_format_pin(pin)}" for pin in sharded.in_pins]
    lines += [f"out {'free' if pin is None else _format_pin(pin)}" for pin in sharded.out_pins]
    return "\n".join([*lines, format_program(sharded.program)])


def parse_sharded(text: str) -> ShardedProgram:
    """The sharded program that prints as `text`."""
    head, mark, rest = text.partition("\nprogram ")
    first, *lines = head.splitlines()
    if not first.startswith("sharded ") or not mark:
        raise ProgramError("line 1: expected 'sharded NAME on mesh(…)', lines of pins, and a program")
    ins = [_parse_pin(line.removeprefix("in ")) for line in lines if line.startswith("in ")]
    outs = [
        None if line == "out free" else _parse_pin(line.removeprefix("out "))
        for line in lines
        if line.startswith("out ")
    ]
    mesh = parse_mesh(first.partition(" on mesh(")[2].removesuffix(")"))
    return propagate(parse_program(f"program {rest}"), mesh, ins, outs)


def _format_pin(pin: Pin) -> str:
    dims = "".join(f" open {dim}" for dim in sorted(pin.open_dims))
    return f"{pin.layout}{dims}"


def _parse_pin(text: str) -> Pin:
    layout, *dims = text.split(" open ")
    return Pin(parse_layout(layout), frozenset(map(int, dims)))
