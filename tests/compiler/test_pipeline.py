"""The compiler pipeline: every stage prints as text that parses back to the same stage."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from examples import mlp
from shardwise.compiler.ir.parse import parse_program
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.spmd import partition
from shardwise.errors import ProgramError
from shardwise.execute.request import partition_request
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.compiler.stage_parsers import parse_local, parse_plan, parse_sharded


@pytest.fixture(scope="module")
def demo(mesh):
    """The stages of the demo's training step with a constraint inside, and its arguments."""
    open_rows = NamedSharding(mesh, P(P.UNCONSTRAINED, None))

    def step(params, x, y):
        return mlp.train_step(params, sw.lax.with_sharding_constraint(jnp.exp(x), open_rows), y)

    args = mlp.shard(mesh, mlp.initial_params(), *mlp.batch())
    request, _ = sw.jit(step).request(args, {})
    return partition_request(request, request.target())[0], [np.asarray(x) for x in sw.tree.leaves(args)]


def test_a_program_parses_back(demo):
    program = demo[0].problem.program
    text = str(program)
    again = parse_program(text)
    assert str(again) == _without_comments(text)  # a constraint parses back without its devices
    assert parse_program(str(again)) == again


def test_a_parsed_sharded_program_has_the_same_collectives(demo):
    problem = demo[0].problem
    again = parse_sharded(str(problem))
    assert str(again) == _without_comments(str(problem))
    planned = partition(again, parse_plan(str(demo[0].plan), again))
    assert _collectives(planned) == _collectives(demo[0].local)


def test_a_plan_parses_back(demo):
    problem, plan = demo[0].problem, demo[0].plan
    again = parse_plan(str(plan), problem)
    assert again.outputs == plan.outputs
    assert again.choices == plan.choices


def test_a_local_program_parses_back_and_runs(demo):
    local, args = demo[0].local, demo[1]
    again = parse_local(str(local))
    assert again.program == local.program
    assert (again.inputs, again.outputs, again.mesh) == (local.inputs, local.outputs, local.mesh)
    for mine, other in zip(evaluate_shards(again, args), evaluate_shards(local, args), strict=True):
        np.testing.assert_array_equal(mine, other)


LOCAL = "local f on mesh(a=2)\nin f32[4] P('{axis}')\nout f32[4] P({out})\nprogram f(a: f32[{size}]) {{\n  return a\n}}"


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_sharded, "local x on mesh()", "expected 'sharded NAME on mesh"),
        (parse_local, "sharded x on mesh()", "expected 'local NAME on mesh"),
        (
            parse_local,
            LOCAL.format(axis="a", out=None, size=4),
            r"input 0 is f32\[4\], but a shard of f32\[4\] in P\('a'\) has shape",
        ),
        (parse_local, LOCAL.format(axis="a", out=None, size=2), r"output 0 is f32\[2\], but a shard"),
        (parse_local, LOCAL.format(axis="b", out=None, size=2), "has no axis 'b'"),
        (parse_local, LOCAL.format(axis="a", out="", size=2), r"output 0: P\(\) does not have the rank of f32\[4\]"),
    ],
)
def test_text_of_another_stage_or_with_wrong_shard_shapes_raises(parse, text, message):
    with pytest.raises(ProgramError, match=message):
        parse(text)


def test_the_plan_of_another_program_raises(demo):
    text = str(demo[0].plan)
    with pytest.raises(ProgramError, match=r"the plan has \d+ lines for \d+ equations"):
        parse_plan("\n".join(text.splitlines()[:3] + text.splitlines()[4:]), demo[0].problem)
    with pytest.raises(ProgramError, match="line 2: a choice for 'nonsense'"):
        parse_plan(text.replace(text.splitlines()[1].strip().partition(":")[0], "nonsense", 1), demo[0].problem)


def _collectives(local):
    return [(equation.op, equation.inputs[0].type) for equation in local.collectives()]


def _without_comments(text):
    return "\n".join(line.partition("   # ")[0] for line in text.splitlines())
