"""Compare the optimizers and schedules with JAX's, step by step, and on 8 devices with one."""

import functools

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.example_libraries import optimizers

try:
    import jax
    from jax.example_libraries import optimizers as jax_optimizers
except ImportError:  # the oracle
    jax = None

OPTIMIZERS = {
    "sgd": (0.1,),
    "momentum": (0.1, 0.9),
    "nesterov": (0.1, 0.9),
    "adagrad": (0.1,),
    "rmsprop": (0.1,),
    "rmsprop_momentum": (0.1,),
    "adam": (0.1,),
    "adamax": (0.1,),
    "sm3": (0.1,),
}
SCHEDULES = {
    "constant": (0.1,),
    "exponential_decay": (0.1, 3, 0.9),
    "inverse_time_decay": (0.1, 3, 0.9),
    "polynomial_decay": (0.1, 3, 0.01, 2.0),
    "piecewise_constant": ([1, 3], [0.1, 0.05, 0.01]),
}
PARAMS = {"w": np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8), "b": [np.arange(8, dtype=np.float32)]}


def train(package, library, name, args, params, steps=5):
    """Return the parameters after each step of the minimization of a quartic."""
    init, update, get_params = getattr(library, name)(*args)
    loss = lambda params: sum((x**2 + 0.1 * x**4).sum() for x in package.tree.leaves(params))  # noqa: E731

    def step(i, state):
        return update(i, package.grad(loss)(get_params(state)), state)

    step = step if package is jax and name == "sm3" else package.jit(step)  # JAX's state of sm3 has shapes as leaves
    state, history = init(params), []
    for i in range(steps):
        state = step(i, state)
        history.append(get_params(state))
    return history


@pytest.mark.table(default=3)
@pytest.mark.jax
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_like_jax(name):
    pytest.importorskip("jax")
    as_arrays = functools.partial(jax.tree.map, jax.numpy.asarray)
    ours = train(sw, optimizers, name, OPTIMIZERS[name], sw.tree.map(jnp.asarray, PARAMS))
    theirs = train(jax, jax_optimizers, name, OPTIMIZERS[name], as_arrays(PARAMS))
    for x, y in zip(sw.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


@pytest.mark.jax
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_like_jax(name):
    pytest.importorskip("jax")
    args = SCHEDULES[name]
    variants = [{}, {"staircase": True}] if name == "inverse_time_decay" else [{}]
    for keywords in variants:
        ours, theirs = getattr(optimizers, name)(*args, **keywords), getattr(jax_optimizers, name)(*args, **keywords)
        for i in range(6):
            np.testing.assert_allclose(ours(i), theirs(i), rtol=1e-6)
            np.testing.assert_allclose(sw.jit(ours)(i), theirs(i), rtol=1e-6)
    schedule = optimizers.sgd(optimizers.piecewise_constant([0], [1.0, 0.5]))
    assert float(schedule.params_fn(schedule.update_fn(1, 2.0, schedule.init_fn(3.0)))) == 2


@pytest.mark.parametrize("name", ["momentum", "adam", "sm3"])
def test_sharded(name, mesh):
    """States have the shardings of their parameters, and the steps are those on one device."""
    sharded = sw.device_put(PARAMS["w"], sw.NamedSharding(mesh, sw.P(None, ("data", "model"))))
    alone = train(sw, optimizers, name, OPTIMIZERS[name], {"w": jnp.asarray(PARAMS["w"])})
    history = train(sw, optimizers, name, OPTIMIZERS[name], {"w": sharded})
    np.testing.assert_allclose(history[-1]["w"], alone[-1]["w"], rtol=1e-5, atol=1e-6)
    assert history[-1]["w"].sharding.is_equivalent_to(sharded.sharding, 2)
    init, _, _ = getattr(optimizers, name)(*OPTIMIZERS[name])
    slot = init({"w": sharded}).packed_state[0][1]
    assert slot.shape == sharded.shape and slot.sharding.is_equivalent_to(sharded.sharding, 2)


def test_scalars_and_zero_gradients():
    for name, args in OPTIMIZERS.items():
        init, update, get_params = getattr(optimizers, name)(*args)
        assert jnp.shape(get_params(update(0, jnp.array(0.5), init(jnp.array(1.0))))) == ()
        unchanged = get_params(update(0, jnp.zeros(3), init(jnp.ones(3))))
        np.testing.assert_array_equal(unchanged, np.ones(3))


def test_norm_and_clipping():
    gradients = {"a": np.array([3.0, 0.0], np.float32), "b": np.float32(4)}
    np.testing.assert_allclose(optimizers.l2_norm(gradients), 5, rtol=1e-6)
    clipped = optimizers.clip_grads(gradients, 1.0)
    np.testing.assert_allclose(clipped["a"], [0.6, 0], rtol=1e-6)
    np.testing.assert_array_equal(optimizers.clip_grads(gradients, 9.0)["a"], gradients["a"])
    assert float(optimizers.l2_norm([])) == 0


def test_states_are_pytrees_that_can_be_saved():
    init, update, get_params = optimizers.adam(0.1)
    state = update(0, PARAMS, init(PARAMS))
    assert sw.tree.structure(sw.tree.map(jnp.zeros_like, state)) == sw.tree.structure(state)
    unpacked = optimizers.unpack_optimizer_state(state)
    assert isinstance(unpacked["w"], optimizers.JoinPoint) and len(unpacked["w"].subtree) == 3
    packed = optimizers.pack_optimizer_state(unpacked)
    assert sw.tree.structure(packed) == sw.tree.structure(state)
    for x, y in zip(sw.tree.leaves(packed), sw.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(x, y)
    assert sw.tree.structure(get_params(packed)) == sw.tree.structure(PARAMS)


def test_wrong_arguments():
    init, update, _ = optimizers.momentum(0.1, 0.9)
    with pytest.raises(TypeError, match="the gradients have the structure"):
        update(0, [PARAMS["w"]], init(PARAMS))
    with pytest.raises(TypeError, match="a step size must be a number or a function"):
        optimizers.sgd(jnp.ones(2))
    with pytest.raises(ValueError, match="1 boundaries need 2 values, not 3"):
        optimizers.piecewise_constant([1], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="must be sequences"):
        optimizers.piecewise_constant(1, [1.0])
    with pytest.raises(TypeError, match="every leaf must be a JoinPoint, not int"):
        optimizers.pack_optimizer_state({"w": 3})
    changing = optimizers.optimizer(lambda: (lambda x: x, lambda i, g, x: (x, x), lambda x: x))()
    with pytest.raises(TypeError, match="the update changed the structure of the state"):
        changing.update_fn(0, 1.0, changing.init_fn(1.0))
