"""explain, simulate and sweep of functions of real JAX."""

from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

from shardwise import inside_jax  # noqa: E402
from shardwise.explain.hlo_wire import wire  # noqa: E402
from tests.inside_jax import steps  # noqa: E402

pytestmark = pytest.mark.jax

NamedSharding = jax.sharding.NamedSharding


def test_a_plan_has_the_bytes_and_the_lines_of_the_user(capsys):
    explanation = inside_jax.explain(steps.step)(*steps.arguments())
    assert explanation.wire_bytes == steps.BYTES
    assert explanation.counts() == {"all_reduce": 4}
    source = Path(steps.__file__).read_text().splitlines()
    lines = {source[row.source.line - 1].strip() for row in explanation.collectives}
    assert lines == {"return jnp.sum((hidden @ w2 - y) ** 2)", "hidden = jnp.maximum(x @ w1, 0.0)"}
    assert "step on mesh data=4, model=2: 4 collectives" in capsys.readouterr().out


def test_the_collectives_of_the_executable_are_those_of_the_plan(capsys):
    args = steps.arguments()
    sent = wire(inside_jax.jit(steps.step).lower(*args).compile().as_text()).sent
    assert sent == inside_jax.explain(steps.step)(*args).wire_bytes


def test_lines_of_functions_that_jax_jits_are_those_of_each_caller(capsys):
    def function(x):
        y = jax.numpy.cumsum(x, axis=0)
        return y, jax.numpy.cumsum(y * 2, axis=0)

    plan = inside_jax.explain(function)(steps.arguments()[2]).plan
    first = function.__code__.co_firstlineno
    assert {row.source.line for row in plan.values if row.op == "cumulative"} == {first + 1, first + 2}


def test_simulate_on_another_mesh():
    mesh = jax.sharding.AbstractMesh((64, 2), ("data", "model"))
    args = [
        jax.ShapeDtypeStruct(tuple(64 * size for size in x.shape), x.dtype, sharding=x.sharding)
        for x in steps.arguments()
    ]
    run = inside_jax.simulate(steps.step, hardware="h100", mesh=mesh)(*args)
    assert run.plan.mesh.device_count == 128
    assert run.seconds > 0


def test_sweep():
    def arguments(mesh, batch):
        shapes = (*steps.SHAPES[:2], (batch, 12), (batch, 6))
        return tuple(
            jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec))
            for shape, spec in zip(shapes, steps.SPECS, strict=True)
        )

    auto = (jax.sharding.AxisType.Auto,) * 2  # the default is Explicit since JAX 0.11
    meshes = [jax.sharding.AbstractMesh((count, 2), ("data", "model"), auto) for count in (4, 8)]
    runs = inside_jax.sweep(steps.step, arguments, hardware="h100", mesh=meshes, batch=[16, 32])
    assert [(row.label("mesh"), row.label("batch")) for row in runs.rows] == [
        (mesh, batch) for mesh in ("data=4,model=2", "data=8,model=2") for batch in ("16", "32")
    ]


def test_constraints_to_paste(capsys):
    (constraint,) = inside_jax.explain(steps.loss)(*steps.arguments()).plan.constraints()
    assert constraint.file == steps.__file__
    assert constraint.code == "hidden = jax.lax.with_sharding_constraint(hidden, P('data', 'model'))"
    assert Path(steps.__file__).read_text().splitlines()[constraint.line - 1].strip().startswith("hidden = ")
