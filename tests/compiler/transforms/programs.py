"""Programs for the tests of transformations, and the names of their ops."""

from shardwise.compiler.control.call import Call
from shardwise.compiler.ir.program import Program
from shardwise.compiler.ir.types import parse_type
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.elementwise.arithmetic import Mul
from shardwise.compiler.trace.build import rewrite


def program(name: str, types: str, body) -> Program:
    return verify(rewrite(name, [parse_type(text) for text in types.split()], body))


SQUARE = program("square", "f64[3]", lambda x: [Mul()(x, x)])


def ops_of(body: Program) -> list[str]:
    """Return the number of ops of each name, including those of called programs."""
    found = []
    for equation in body.equations:
        found += ops_of(equation.op.program) if isinstance(equation.op, Call) else [equation.op.name]
    return found
