"""Picks of one program for another of other sizes: the same choices, and the same result as one device."""

import numpy as np

import shardwise as sw
from shardwise import numpy as jnp
from shardwise.compiler.candidates.layout_problem import layout_problem
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.plan.choose import choose_candidates
from shardwise.compiler.plan.cost import Costs
from shardwise.compiler.plan.hardware import CPU
from shardwise.compiler.plan.plan_from_picks import plan_from_picks
from shardwise.compiler.plan.transfer import transfer_picks
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build

MESH = AbstractMesh((2, 4), ("data", "model"))
SPECS = (P("data", "model"), P("model", "data"), P("data"))


def layers(up, down, x):
    return [x + jnp.maximum(x @ up, 0) @ down]


def sharded_program(function, sizes, specs=SPECS, mesh=MESH):
    rows, width, hidden = sizes
    types = [ArrayType(shape, np.float32) for shape in ((width, hidden), (hidden, width), (rows, width))]
    program, _ = build(function, types, "layers")
    pins = [pin_of(spec, type.shape, mesh) for spec, type in zip(specs, types, strict=True)]
    return layout_problem(program, mesh, pins, [None])


def picks_of(problem):
    return choose_candidates(problem, Costs(CPU, problem.mesh))


def test_picks_are_those_of_the_equations_in_order():
    source, target = sharded_program(layers, (8, 16, 32)), sharded_program(layers, (40, 8, 64), mesh=MESH)
    picks = picks_of(source)
    moved = transfer_picks(picks, source, target)
    assert moved is not None and list(moved) == ["data", "model"]
    for axis, rows in picks.items():
        assert list(moved[axis]) == list(target.planned)
        assert [rows[equation] for equation in source.planned] == list(moved[axis].values())


def test_the_program_equals_one_device():
    source, target = sharded_program(layers, (8, 16, 32)), sharded_program(layers, (40, 8, 64))
    moved = transfer_picks(picks_of(source), source, target)
    local = partition(target, plan_from_picks(target, moved))
    rng = np.random.default_rng(0)
    args = [rng.normal(size=type.shape).astype(np.float32) for type in target.program.in_types]
    for x, expected in zip(evaluate_shards(local, args), evaluate(target.program, args), strict=True):
        np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-4)


def test_programs_that_differ_in_more_than_sizes_have_no_picks_in_common():
    source = sharded_program(layers, (8, 16, 32))
    picks = picks_of(source)
    renamed = AbstractMesh((2, 4), ("data", "tensor"))
    for target in (
        sharded_program(lambda up, down, x: [x + jnp.tanh(x @ up) @ down], (8, 16, 32)),
        sharded_program(lambda up, down, x: [x @ up @ down + jnp.maximum(x @ up, 0) @ down], (8, 16, 32)),
        sharded_program(lambda up, down, x: [x + jnp.maximum(x @ up, 0) @ sw.lax.stop_gradient(down) * 2], (8, 16, 32)),
        sharded_program(layers, (8, 16, 32), (P("data", "tensor"), P("tensor", "data"), P("data")), renamed),
        sharded_program(layers, (8, 16, 32), (P(), P(), P("data"))),  # the model axis shards nothing here
    ):
        assert transfer_picks(picks, source, target) is None


def test_equations_that_read_other_values_have_no_picks_in_common():
    source = sharded_program(lambda up, down, x: [x + (x + x) @ up @ down], (8, 16, 32))
    target = sharded_program(lambda up, down, x: [(y := x + x) + y @ up @ down], (8, 16, 32))
    assert len(source.planned) == len(target.planned)
    assert transfer_picks(picks_of(source), source, target) is None
