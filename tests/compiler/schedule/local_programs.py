"""Programs of one device from text, for the tests of the schedule."""

from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.partition.local_program import LocalProgram, Placement, verify_local
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.schedule.kernel_graph import KernelGraph
from shardwise.compiler.shardings.layout import Layout
from shardwise.compiler.shardings.mesh import AbstractMesh

H200 = chip("h200")
MESH = AbstractMesh((4, 2), ("data", "model"))
GATHER = "all_gather[dim=0, axes=('data',), count=4]"
REDUCE = "all_reduce[axes=('data',), reduction=sum]"
SCATTER = "reduce_scatter[dim=0, axes=('data',), count=4, reduction=sum]"
DOT = "dot[contract=((1,), (0,)), batch=((), ())]"


def local_of(text):
    """Return the local program of a text such as `(a: f32[4]) { … }`; each of its inputs and outputs is replicated."""
    program = parse_program(f"program main{text}")
    inputs, outputs = (
        tuple(Placement(type, Layout.replicated(type.ndim)) for type in types)
        for types in (program.in_types, program.out_types)
    )
    return verify_local(LocalProgram(program, MESH, inputs, outputs))


def graph_of(text):
    local = local_of(text)
    return KernelGraph.from_program(local, local.program, H200)


def layers(count, rows=256, size=1024, gather=GATHER):
    """Return the text of products with gathered weights, one after the other, of `rows` rows."""
    inputs = ", ".join(f"w{n}: f32[{size // 4},{size}]" for n in range(count))
    lines = [
        f"g{n}: f32[{size},{size}] = {gather} w{n}\nx{n + 1}: f32[{rows},{size}] = {DOT} x{n} g{n}"
        for n in range(count)
    ]
    return f"(x0: f32[{rows},{size}], {inputs}) {{\n{chr(10).join(lines)}\nreturn x{count}\n}}"


def gradients(count, rows=4096, size=1024, reduce=REDUCE):
    """Return the text of products whose results are reduced, and of a product that needs all of them at the end."""
    lines = [
        f"h{n}: f32[{size},{size}] = dot[contract=((0,), (0,)), batch=((), ())] x y{n}\n"
        f"r{n}: f32[{size},{size}] = {reduce} h{n}"
        for n in range(count)
    ]
    inputs = ", ".join(f"y{n}: f32[{rows},{size}]" for n in range(count))
    results = ", ".join(f"r{n}" for n in range(count))
    return f"(x: f32[{rows},{size}], {inputs}) {{\n{chr(10).join(lines)}\nreturn {results}\n}}"


def names(local, equations):
    """Return the places of equations in a program."""
    return [local.program.equations.index(equation) for equation in equations]
