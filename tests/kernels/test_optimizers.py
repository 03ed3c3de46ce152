"""kernels.adam: against a formula in float64 and Optax, its Triton IR, in-place updates, and shardings."""

import re

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P
from shardwise.compiler.kernels.adam import Adam
from tests.compiler.kernels.run_kernel import run_kernel

F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(0)


def operands(shape, gradient=F32, moment=F32):
    arrays = [RNG.standard_normal(shape) for _ in range(3)]
    scalars = np.array([0.1, 1 / (1 - 0.9**3), 1 / (1 - 0.99**3)], np.float32)
    square = RNG.random(shape).astype(moment)
    return [scalars, arrays[0].astype(F32), arrays[1].astype(gradient), arrays[2].astype(moment), square]


def formula(scalars, parameters, gradient, mean, square, decay=0.0):
    parameters, gradient, mean, square = (x.astype(np.float64) for x in (parameters, gradient, mean, square))
    mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
    update = mean * scalars[1] / (np.sqrt(square * scalars[2]) + 1e-8) + decay * parameters
    return parameters - scalars[0] * update, mean, square


@pytest.mark.parametrize(
    ("shape", "gradient", "moment", "copy", "decay"),
    [
        ((3, 7), F32, F32, None, 0.0),
        ((), BF16, F32, BF16, 0.1),
        ((2, 1024), BF16, BF16, BF16, 0.0),
        ((1, 5, 411), np.dtype(np.float16), F32, F32, 0.1),
    ],
)
def test_meaning_and_ir(shape, gradient, moment, copy, decay):
    op = Adam(0.9, 0.99, 1e-8, decay, copy)
    arrays = operands(shape, gradient, moment)
    parameters, mean, square = formula(*arrays, decay=decay)
    expected = [parameters, mean, square, *([parameters] if copy else [])]
    dtypes = [F32, moment, moment, copy]
    for results in (op.reference(*arrays), run_kernel(op, *arrays)):
        for actual, value, dtype in zip(results, expected, dtypes, strict=False):
            assert actual.dtype == dtype and actual.shape == shape
            np.testing.assert_allclose(actual.astype(F32), value, rtol=1e-5 if dtype == F32 else 1e-2, atol=1e-5)


def quadratic(params):
    return sum((jnp.asarray(x, np.float32) ** 2 * scale).sum() for scale, x in enumerate(jax.tree.leaves(params), 1))


def test_three_steps_with_a_schedule():
    rates = [0.1, 0.05, 0.02]
    params = {"w": RNG.standard_normal((5, 3)).astype(np.float32), "b": [np.float32(2.0)]}
    optimizer = jax.kernels.adam(lambda count: jnp.asarray(rates)[count], b2=0.99)
    state, step = optimizer.init(params), jax.jit(optimizer.apply)
    expected = [(np.asarray(x, F32), np.zeros_like(x), np.zeros_like(x)) for x in jax.tree.leaves(params)]
    for count, rate in enumerate(rates, 1):
        params, state = step(jax.grad(quadratic)(params), state, params)
        scalars = [rate, 1 / (1 - 0.9**count), 1 / (1 - 0.99**count)]
        expected = [formula(scalars, x, 2 * scale * x, *rest) for scale, (x, *rest) in enumerate(expected, 1)]
    assert state.count == 3 and state.compute is None
    for trees, index in ((params, 0), (state.mu, 1), (state.nu, 2)):
        for actual, row in zip(jax.tree.leaves(trees), expected, strict=True):
            np.testing.assert_allclose(actual, row[index], rtol=1e-5, atol=1e-6)


def test_parameters_of_64_bits():
    with jax.enable_x64(True):
        params, gradient = RNG.standard_normal(5), RNG.standard_normal(5)
        optimizer = jax.kernels.adam(0.1, b2=0.99)
        expected, state = (params, 0 * params, 0 * params), optimizer.init(params)
        for count in (1, 2, 3):
            params, state = optimizer.apply(gradient, state, params)
            expected = formula([0.1, 1 / (1 - 0.9**count), 1 / (1 - 0.99**count)], expected[0], gradient, *expected[1:])
        assert params.dtype == np.float64
        for actual, value in zip((params, state.mu, state.nu), expected, strict=True):
            np.testing.assert_allclose(actual, value, rtol=1e-13)


@pytest.mark.parametrize("copy", [None, BF16])
def test_trees_without_parameters(copy):
    optimizer = jax.kernels.adam(0.1, compute_dtype=copy)
    params, state = optimizer.apply({}, optimizer.init({}), {})
    assert params == state.mu == state.nu == {} and state.count == 1
    assert state.compute == (None if copy is None else {})


def test_wrong_arguments_are_errors():
    x = jnp.ones(3)
    optimizer = jax.kernels.adam(0.1)
    state = optimizer.init(x)
    for call, expected in (
        (lambda: jax.kernels.adam("0.1"), "learning_rate: needs an array or a number, not '0.1'"),
        (lambda: jax.kernels.adam(x), "learning_rate must be a real number"),
        (lambda: jax.kernels.adam(lambda count: 1j).apply(x, state, x), "learning_rate must be a real number"),
        (lambda: optimizer.apply(x, tuple(state), x), "must be the state that `init` returns"),
        (lambda: optimizer.apply(jnp.arange(3), optimizer.init(jnp.arange(3)), jnp.arange(3)), "must be floats"),
        (lambda: optimizer.apply(jnp.ones(4), state, x), "the gradient of f32[3]"),
    ):
        with pytest.raises(TypeError, match=re.escape(expected)):
            call()


def test_the_copy_is_that_of_the_parameters():
    optimizer = jax.kernels.adam(0.1, compute_dtype=jnp.bfloat16)
    params = {"w": jnp.asarray(RNG.standard_normal((3, 4)), np.float32)}
    state = optimizer.init(params)
    np.testing.assert_array_equal(state.compute["w"], params["w"].astype(BF16))
    params, state = optimizer.apply(jax.grad(quadratic)(state.compute), state, params)
    np.testing.assert_array_equal(state.compute["w"], params["w"].astype(BF16))
    with pytest.raises(TypeError, match="must be a floating-point dtype, not int32"):
        jax.kernels.adam(0.1, compute_dtype=np.int32)
    with pytest.raises(TypeError, match="the gradient of f32"):
        optimizer.apply({"w": jnp.ones(3)}, state, params)


@pytest.mark.parametrize("spec", [P("data"), P("model", "data"), P(("data", "model"))], ids=str)
def test_each_device_updates_its_shards(spec):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    arrays = operands((10, 8))
    op = Adam(0.9, 0.99, 1e-8, 0.0, BF16)

    def step(scalars, *arrays):
        pinned = [jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)) for x in arrays]
        return op(scalars, *pinned)

    on_mesh = [jax.device_put(x, NamedSharding(mesh, P())) for x in arrays]
    assert not jax.explain(step)(*on_mesh).counts()
    for actual, expected in zip(jax.jit(step)(*on_mesh), op.reference(*arrays), strict=True):
        assert actual.sharding.spec == spec
        np.testing.assert_allclose(np.asarray(actual, F32), np.asarray(expected, F32), rtol=1e-5, atol=1e-5)


def test_one_kernel_per_array_updates_in_place():
    optimizer = jax.kernels.adam(0.1, compute_dtype=jnp.bfloat16)
    params = {"w": jax.ShapeDtypeStruct((3, 4), np.float32), "b": jax.ShapeDtypeStruct((4,), np.float32)}
    state = jax.eval_shape(optimizer.init, params)
    step = jax.jit(optimizer.apply, donate_argnums=(1, 2))
    text = step.trace(params, state, params).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == 2
    pairs = [
        f"output_tuple_indices = [{result}], operand_index = {operand}" for result, operand in ((0, 1), (1, 3), (2, 4))
    ]
    assert all(text.count(pair) == 2 for pair in pairs)


def test_vmap_and_jvp():
    op, (scalars, *arrays) = Adam(0.9, 0.99, 1e-8, 0.0), operands((2, 5))
    scalars = jnp.asarray(scalars)
    batched = jax.vmap(lambda *xs: op(scalars, *xs))(*arrays)
    for actual, expected in zip(batched, op.reference(np.asarray(scalars), *arrays), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda g: op(scalars, *map(jnp.asarray, (arrays[0], g, *arrays[2:])))[1].sum())(
        jnp.asarray(arrays[1])
    )
    np.testing.assert_allclose(gradient, np.full((2, 5), 0.1), rtol=1e-5)
