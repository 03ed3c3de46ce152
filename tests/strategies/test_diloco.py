"""local_updates: against a loop over the groups in numpy, and the bytes that its plans send between groups."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, lax, strategies
from shardwise.errors import StrategyError

RATE, DECAY, STEPS, ROUNDS = 0.05, 0.6, 3, 2
WIDTH, HIDDEN, ROWS = 8, 16, 32


@pytest.fixture
def groups():
    return sw.make_mesh((4, 2), ("group", "data"))


def loss(params, x):
    return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - x) ** 2)


def train(params, state, x):
    value, gradients = sw.value_and_grad(loss)(params, x)
    state = sw.tree.map(lambda m, g: DECAY * m + g, state, gradients)
    return sw.tree.map(lambda p, m: p - RATE * m, params, state), state, value


def numpy_train(params, state, x):
    hidden = np.tanh(x @ params["up"])
    error = hidden @ params["down"] - x
    output = 2 * error / error.size
    gradients = {"down": hidden.T @ output, "up": x.T @ (output @ params["down"].T * (1 - hidden**2))}
    state = {name: DECAY * state[name] + gradients[name] for name in state}
    return {name: params[name] - RATE * state[name] for name in params}, state, np.mean(error**2)


def numpy_local_updates(params, batches, groups, rate, momentum):
    """Return the outer parameters and the losses [round, step, group] of training one group after the other."""
    zeros = {name: np.zeros_like(value) for name, value in params.items()}
    velocity, states, losses = zeros, [zeros] * groups, []
    for batches_of_round in batches:
        copies, losses_of_round = [params] * groups, []
        for batch in batches_of_round:
            rows = np.split(batch, groups)
            results = [numpy_train(*each) for each in zip(copies, states, rows, strict=True)]
            copies, states = [each[0] for each in results], [each[1] for each in results]
            losses_of_round.append([each[2] for each in results])
        gradients = {name: params[name] - np.mean([copy[name] for copy in copies], 0) for name in params}
        velocity = {name: momentum * velocity[name] + gradients[name] for name in params}
        params = {name: params[name] - rate * (gradients[name] + momentum * velocity[name]) for name in params}
        losses.append(losses_of_round)
    return params, np.array(losses)


def example():
    rng = np.random.default_rng(0)
    params = {"up": rng.normal(size=(WIDTH, HIDDEN)), "down": rng.normal(size=(HIDDEN, WIDTH))}
    return params, rng.normal(size=(ROUNDS, STEPS, ROWS, WIDTH))


def float32(tree):
    return sw.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("fuses", [True, False], ids=["round", "steps"])
def test_groups_train_as_one_after_the_other_in_numpy(groups, fuses):
    params, batches = example()
    outer = strategies.OuterMomentum(0.7, 0.9)
    local = strategies.local_updates(train, groups, "group", outer=outer)
    weights = float32(params)
    state = sw.jit(local.create)(weights, sw.tree.map(jnp.zeros_like, weights))
    losses = []
    for batches_of_round in batches:
        x = sw.device_put(
            jnp.asarray(batches_of_round, jnp.float32), sw.NamedSharding(groups, P(None, ("group", "data")))
        )
        if fuses:
            state, values = sw.jit(local.round)(state, x)
        else:
            values = []
            for batch in x:
                state, value = sw.jit(local.step)(state, batch)
                values.append(value)
            state = sw.jit(local.exchange)(state)
        losses.append(np.array(values))
    expected, expected_losses = numpy_local_updates(params, batches, 4, 0.7, 0.9)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    for name in expected:
        np.testing.assert_allclose(state.outer[name], expected[name], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(state.params[name], np.stack([state.outer[name]] * 4))


def test_local_sgd_continues_from_the_mean(groups):
    params, batches = example()
    local = strategies.local_updates(train, groups, "group", outer=strategies.OuterMomentum(1.0, 0.0))
    weights = float32(params)
    state, _ = local.step(local.create(weights, sw.tree.map(jnp.zeros_like, weights)), float32(batches[0, 0]))
    exchanged = local.exchange(state)
    for name in weights:
        np.testing.assert_allclose(exchanged.outer[name], np.mean(state.params[name], 0), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(exchanged.state[name], state.state[name])


def group_bytes(plan):
    """Return the bytes that a device sends in collectives over the axis of the groups."""
    return sum(row.sent for row in plan.collectives if "group" in row.axes)


@pytest.mark.parametrize(("shape", "is_sharded"), [((8, 1), False), ((4, 2), False), ((2, 4), True)], ids=str)
def test_only_the_exchange_communicates_between_groups(shape, is_sharded):
    """H steps and an exchange send as many bytes between groups as one step of synchronous data parallelism."""
    mesh, count = sw.make_mesh(shape, ("group", "data")), 100
    sharding = sw.NamedSharding(mesh, P("data") if is_sharded else P())
    weights = sw.device_put({"up": jnp.ones((64, 256)), "down": jnp.ones((256, 64))}, sharding)
    x = sw.ShapeDtypeStruct((64, 64), np.float32, sharding=sw.NamedSharding(mesh, P(("group", "data"))))
    xs = sw.ShapeDtypeStruct((count, 64, 64), np.float32, sharding=sw.NamedSharding(mesh, P(None, ("group", "data"))))
    local = strategies.local_updates(train, mesh, "group")
    create = sw.jit(local.create)
    assert create.lower(weights, weights).plan.counts() == {}
    state = create(weights, weights)
    assert state.params["up"].sharding.spec == P("group", *sharding.spec)
    stepped, exchanged, fused = (
        sw.jit(function).lower(*args).plan
        for function, args in ((local.step, (state, x)), (local.exchange, (state,)), (local.round, (state, xs)))
    )
    assert group_bytes(stepped) == 0
    assert exchanged.counts() == {"all_reduce": 2} and group_bytes(exchanged) == exchanged.wire_bytes
    each_step = group_bytes(sw.jit(train, out_shardings=(sharding, sharding, None)).lower(weights, weights, x).plan)
    assert group_bytes(fused) == group_bytes(exchanged) > 0
    assert group_bytes(fused) / count <= 0.01 * each_step


def test_constraints_of_a_group_are_those_of_its_step(groups):
    def constrained(params, state, x):
        x = lax.with_sharding_constraint(x, sw.NamedSharding(groups, P("data")))
        return train(params, state, x)

    params, batches = example()
    weights, batch = float32(params), float32(batches[0, 0])
    local = strategies.local_updates(constrained, groups, "group")
    _, losses = sw.jit(local.step)(local.create(weights, sw.tree.map(jnp.zeros_like, weights)), batch)
    expected = [numpy_train(params, {"up": 0.0, "down": 0.0}, x)[2] for x in np.split(batches[0, 0], 4)]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_errors(groups):
    with pytest.raises(StrategyError, match="local_updates: the mesh has no axis 'grup'"):
        strategies.local_updates(train, groups, "grup")
    local = strategies.local_updates(train, groups, "group")
    state = local.create({"w": jnp.ones(2)}, ())
    with pytest.raises(StrategyError, match=r"the batch at 'x' has 6 rows, which 4 groups .* Use 8 rows"):
        local.step(state, {"x": jnp.ones((6, 2))})
    with pytest.raises(StrategyError, match=r"the batch is .*, which has no rows"):
        local.step(state, jnp.ones(()))
