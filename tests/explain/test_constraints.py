"""The layouts of a plan as constraints to paste."""

import shardwise as jax
from shardwise.sharding import PartitionSpec as P

jnp = jax.numpy


def layers(weights, x):
    for weight in weights:
        x = jnp.tanh(
            x @ weight,
        )
    total = x.sum()
    return total


def test_one_constraint_per_assignment():
    mesh = jax.make_mesh((4,), ("data",))
    x = jax.device_put(jnp.ones((8, 4)), jax.NamedSharding(mesh, P("data")))
    plan = jax.jit(layers).lower([jnp.ones((4, 4))] * 2, x).plan
    (constraint,) = plan.constraints()
    assert constraint.name == "x"
    assert constraint.line == layers.__code__.co_firstlineno + 4
    assert str(plan.constraints()).endswith("x = jax.lax.with_sharding_constraint(x, P('data'))")


def test_values_in_different_layouts_have_none():
    mesh = jax.make_mesh((4,), ("data",))

    def double(x):
        y = x * 2
        return y

    rows, columns = (
        jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, spec)) for spec in (P("data"), P(None, "data"))
    )
    plan = jax.jit(lambda a, b: (double(a), double(b))).lower(rows, columns).plan
    assert plan.constraints() == ()


def test_values_of_lambdas_and_comprehensions_have_none():
    mesh = jax.make_mesh((4,), ("data",))

    def halves(tree):
        halved = jax.tree.map(lambda x: x / 2, tree)
        listed = [x + 1 for x in halved]
        return listed

    rows = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, P("data")))
    assert jax.jit(halves).lower([rows, rows]).plan.constraints() == ()
