"""improve: fewer bytes where the first plan is not the fastest, equal values, and pins of the user hold."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.golden import models


def lowered(model, optimizer, improve):
    mesh = sw.make_mesh(tuple(model.axes.values()), tuple(model.axes))
    arguments = sw.tree.map(lambda leaf: leaf.struct(mesh), model.arguments(optimizer))
    with sw.config.override("improve_plans", improve):
        return sw.jit(model.step(optimizer)).lower(*arguments)


@pytest.mark.parametrize(
    ("model", "most"),
    [
        (models.long_attention(length=512), 0.5),
        pytest.param(models.mlp(scanned=True), 0.9, marks=pytest.mark.slow),
        pytest.param(models.vocabulary(), 1.0, marks=pytest.mark.slow),
    ],
    ids=["attention", "mlp", "vocabulary"],
)
def test_training_steps_send_no_more_and_compute_the_same(model, most):
    plain, improved = (lowered(model, "sgd", improve) for improve in (False, True))
    assert improved.plan.wire_bytes <= most * plain.plan.wire_bytes
    assert [out.layout for out in improved._prepared.stages.local.outputs] == [
        out.layout for out in plain._prepared.stages.local.outputs
    ]
    mesh = sw.make_mesh(tuple(model.axes.values()), tuple(model.axes))
    rng = np.random.default_rng(0)
    arguments = sw.tree.map(
        lambda leaf: sw.device_put(leaf.value(rng), NamedSharding(mesh, leaf.spec)), model.arguments("sgd")
    )
    results, expected = (function.compile()(*arguments) for function in (improved, plain))
    for result, value in zip(sw.tree.leaves(results), sw.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, value, rtol=2e-4, atol=2e-5)


def test_axes_in_the_wrong_order_are_avoided():
    """Along each axis alone, rows of `x` over both axes are cheapest; but `x` then needs a permute."""
    mesh = sw.make_mesh((2, 2), ("a", "b"), devices=sw.devices()[:4])
    x, y = (
        sw.ShapeDtypeStruct((64, 64), np.float32, sharding=NamedSharding(mesh, spec)) for spec in (P("b"), P(None, "b"))
    )
    product = sw.jit(lambda x, y: x @ y, out_shardings=NamedSharding(mesh, P("a")))
    plain = product.lower(x, y).plan
    with sw.config.override("improve_plans", True):
        improved = product.lower(x, y).plan
    assert "permute" in str(plain) and improved.wire_bytes < plain.wire_bytes


def test_constraints_of_the_user_hold():
    mesh = sw.make_mesh((8,), ("a",))
    kept = NamedSharding(mesh, P("a"))

    def program(x):
        pinned = sw.lax.with_sharding_constraint(x.T, kept)
        return sw.lax.with_sharding_constraint(pinned @ x, NamedSharding(mesh, P(None, "a")))

    x = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
    with sw.config.override("improve_plans", True):
        out = sw.jit(program)(sw.device_put(x, kept))
    assert out.sharding.spec == P(None, "a")
    np.testing.assert_allclose(out, x.T @ x, rtol=1e-4, atol=1e-4)
