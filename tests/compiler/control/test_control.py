"""Control ops: bindings, result types, and loops and branches on a mesh."""

from random import Random

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.candidates.layout_problem import layout_problem
from shardwise.compiler.control.cond import Cond
from shardwise.compiler.control.scan import Scan
from shardwise.compiler.control.while_loop import While
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import BatchAxis
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.ir.program import Value
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.ops.elementwise.arithmetic import Add, Mul
from shardwise.compiler.ops.shape.constants import ArrayConstant, IdentityKey, full
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.plan.plan_from_picks import plan_from_picks
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.lift_constants import lift_constants
from shardwise.compiler.transforms.vmap import vmap_program
from tests.compiler.control.control_programs import program, types
from tests.compiler.control.test_while_loop import COUNT
from tests.compiler.ops.cases import cond_cases, scan_cases, while_cases
from tests.fuzz.check import random_picks
from tests.fuzz.layouts import partition_spec, random_spec

SQUARE = program("square", "f32[3]", lambda x: [Mul()(x, x)])
LOOP = Scan(program("add", "f32[2] f32[2] f32[2]", lambda k, c, x: [Add()(c, k), Mul()(c, x)]), 4, 1, 1)


@pytest.mark.parametrize(
    ("op", "operands", "text"),
    [
        (LOOP, "f32[2] f32[2]", "scan: takes 3 operands, not 2"),
        (
            LOOP,
            "f32[2] f32[3] f32[4,2]",
            r"scan: carry of operand 1 and exit 0 of program 0: f32\[3\] and f32\[2\] should",
        ),
        (LOOP, "f32[2] f32[2] f32[5,2]", r"scan: unstack of operand 2: f32\[5,2\] does not have 4 slices"),
        (LOOP, "f32[2] f32[2] f32[4,3]", r"scan: operand 2 is f32\[3\], but entry 2 of program 0 is f32\[2\]"),
        (LOOP, "i32[2] f32[2] f32[4,2]", r"scan: operand 0 is i32\[2\], but entry 0 of program 0 is f32\[2\]"),
        (COUNT, "f32[]", r"while: carry of operand 0 and exit 0 of program 1: f32\[\] and i32\[\] should be one type"),
        (COUNT, "i32[]~", r"i32\[\]~ and i32\[\] should be one type"),
        (Cond((SQUARE,)), "i32[2] f32[3]", r"cond: predicate of operand 0: i32\[2\] should be a scalar"),
        (Cond((SQUARE,)), "i32[] f32[4]", r"cond: operand 1 is f32\[4\], but entry 0 of program 0 is f32\[3\]"),
        (
            Cond((SQUARE, program("count", "f32[3]", lambda x: [full((3,), 1, np.int32)]))),
            "i32[] f32[3]",
            r"cond: merge of exit 0 of program 0 and exit 0 of program 1: f32\[3\] and i32\[3\] should be one type",
        ),
        (
            While(program("wide", "f32[3]", lambda x: [x]), SQUARE, 0, 0),
            "f32[3]",
            r"while: predicate of exit 0 of program 0: f32\[3\] should be a scalar",
        ),
    ],
)
def test_control_ops_reject_wrong_operands(op, operands, text):
    with pytest.raises(TypeError, match=text):
        op.out_types(*types(operands))


CONTROL_CASES = [*cond_cases(), *scan_cases(), *while_cases()]


@pytest.mark.parametrize("case", CONTROL_CASES, ids=str)
def test_an_op_is_rebuilt_from_its_ports(case):
    op = case.op
    operands = [Value(type) for type in case.types]
    ports = op.ports(operands, [p.inputs for p in op.programs], [p.outputs for p in op.programs])
    rebuilt, rebuilt_operands, port_numbers = op.rebuild(ports, op.programs)
    assert rebuilt == op and rebuilt_operands == operands
    assert len(port_numbers) == len(case.program.outputs)
    # Groups may come in any order; the order within a group is kept.
    reversed_groups = sorted(ports, key=lambda port: -port.group)
    assert op.rebuild(reversed_groups, op.programs)[0] == op


def test_bindings_are_ordered_by_group():
    for case in CONTROL_CASES:
        groups = [binding.group for binding in case.op.bindings]
        assert groups == sorted(groups)


def test_vmap_without_batched_operands_keeps_the_op():
    for case in CONTROL_CASES:
        batched, dims = vmap_program(case.program, BatchAxis(3), (None,) * len(case.types))
        assert batched == case.program and set(dims) <= {None}


def test_constant_arrays_of_loops_become_operands():
    array = jnp.arange(2.0)
    held = ArrayConstant(IdentityKey(array))
    inner = program("inner", "f32[2]", lambda c: [Mul()(c, held())])
    body = program("body", "f32[2]", lambda c: [*Scan(inner, 2, 0, 1)(c)])
    branches = Cond((program("same", "f32[2]", lambda x: [x]), program("loop", "f32[2]", Scan(body, 3, 0, 1))))
    outer = program("outer", "i32[] f32[2]", branches)
    lifted, arrays = lift_constants(inline(outer))
    assert all(x is array for x in arrays) and len(arrays) == 1
    assert not any(isinstance(equation.op, ArrayConstant) for equation in lifted.walk())
    x = np.array([1.0, 2.0], np.float32)
    for index, expected in enumerate((x, x * np.arange(2.0) ** 6)):
        (found,) = evaluate(verify(lifted), [np.int32(index), x, np.arange(2, dtype=np.float32)])
        np.testing.assert_array_equal(found, expected)


# Layouts: for all pins and plans, the partitioned program computes the same as the program.


def layers(c, ws):
    return lax.scan(lambda h, w: (jnp.exp(0.1 * (h @ w)), h.sum(axis=0)), c, ws)


def grown(c, ws):
    return lax.while_loop(lambda s: s[0].sum() < 40.0, lambda s: (s[0] + jnp.square(s[1]) + 1, s[1]), (c, ws[0, :1]))


def chosen(c, ws):
    return lax.cond(c.sum() > 0, lambda: c @ ws[0], lambda: c * ws[1].sum())


def summed(c, ws):
    return lax.scan(lambda s, w: (s + c.sum(axis=0) @ w, None), jnp.zeros(5), ws)[0]


def nested(c, ws):
    def row(h, w):
        return lax.cond(h.sum() > 0, lambda: lax.fori_loop(0, 2, lambda i, g: g @ w + i, h), lambda: h), None

    return lax.scan(row, c, ws, reverse=True)[0]


def gradient(function):
    def loss(c, ws):
        return sum(jnp.square(leaf).sum() for leaf in sw.tree.leaves(function(c, ws)))

    return sw.grad(loss, (0, 1))


FUNCTIONS = {
    **{f.__name__: f for f in (layers, grown, chosen, summed, nested)},
    **{f"gradient of {f.__name__}": gradient(f) for f in (layers, chosen, summed, nested)},
    "mapped while": lambda c, ws: sw.vmap(
        lambda row: lax.while_loop(lambda r: r.sum() < 9, lambda r: r + jnp.exp(-r) + 0.5, row)
    )(c),
}
MESHES = [{"x": 4, "a": 2}, {"x": 3}, {"a": 2, "x": 2}]


@pytest.mark.table(default=10)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("rows", [8, 6])
def test_every_layout_computes_the_same(name, rows):
    shapes = [(rows, 5), (3, 5, 5)]
    values = np.random.default_rng(rows)
    args = [values.uniform(-0.6, 1, shape).astype(np.float32) for shape in shapes]
    traced = sw.make_jaxpr(FUNCTIONS[name])(*args)
    assert not traced.consts
    unpartitioned = dce(inline(verify(traced.program)))
    expected = evaluate(unpartitioned, args)
    rng = Random(f"{name} {rows}")
    for sizes in MESHES:
        mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes))
        pins, out_pins = (
            [pin_of(partition_spec(random_spec(rng, shape, sizes)), shape, mesh) for shape in of]
            for of in (shapes, [type.shape for type in unpartitioned.out_types])
        )
        problem = layout_problem(unpartitioned, mesh, pins, [pin if rng.random() < 0.5 else None for pin in out_pins])
        plans = [choose(problem), *(plan_from_picks(problem, random_picks(problem, rng)) for _ in range(2))]
        for plan in plans:
            local = partition(problem, plan)
            assert parse_program(str(local.program)) == local.program
            for found, value in zip(evaluate_shards(local, args), expected, strict=True):
                np.testing.assert_allclose(found, value, rtol=2e-4, atol=2e-5)
