"""FP8 training: losses beside bfloat16, plans of all layouts, microbatches, checkpoints, and errors."""

from collections import Counter

import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P, checkpoints, lax, strategies
from shardwise.errors import HardwareError, StrategyError
from shardwise.strategies import FP8Policy

F32 = np.float32
POLICY = FP8Policy(history=4)
RULES = {"layers/(query|up)": P(None, None, "model"), "layers/(out|down)": P(None, "model", None)}


def init(layers=2, width=32, hidden=64, words=48):
    rng = np.random.default_rng(0)

    def matrix(*shape):
        return jnp.asarray(rng.standard_normal(shape).astype(F32) / np.sqrt(F32(shape[-2])))

    shapes = {"query": (width, width), "out": (width, width), "up": (width, hidden), "down": (hidden, width)}
    return {"embed": matrix(words, width), "layers": {name: matrix(layers, *shape) for name, shape in shapes.items()}}


def loss(params, tokens):
    """A transformer whose queries are its keys and values."""

    def layer(x, w):
        h = x @ w["query"]
        scores = jax.nn.softmax((h @ h.mT).astype(F32) / 8).astype(h.dtype)
        x = x + (scores @ h) @ w["out"]
        return x + jnp.maximum(x @ w["up"], 0) @ w["down"], None

    x, _ = lax.scan(layer, params["embed"][tokens[:, :-1]], params["layers"])
    logits = (x @ params["embed"].T).astype(F32)
    return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0])


LOSS = strategies.mixed_precision(loss, POLICY)


def step(params, scales, tokens):
    value, (grads, maxima) = jax.value_and_grad(LOSS, (0, 1))(params, scales, tokens)
    return jax.tree.map(lambda p, g: p - 0.2 * g, params, grads), scales.update(maxima), value


def random_tokens(rows=8, length=9, words=48):
    return jnp.asarray(np.random.default_rng(1).integers(0, words, (rows, length)).astype(np.int32))


def train(steps, state, tokens, compiled):
    losses = []
    for _ in range(steps):
        *state, value = compiled(*state, tokens)
        losses.append(value)
    return state, [float(value) for value in losses]


def test_losses_are_close_to_those_of_wider_floats():
    params, tokens = init(), random_tokens()
    scales = POLICY.create(loss, params, tokens)
    _, losses = train(50, [params, scales], tokens, jax.jit(step))

    def wide_step(function):
        def step(params, tokens):
            value, grads = jax.value_and_grad(function)(params, tokens)
            return jax.tree.map(lambda p, g: p - 0.2 * g, params, grads), value

        return train(50, [params], tokens, jax.jit(step))[1]

    exact, bf16 = wide_step(loss), wide_step(strategies.mixed_precision(loss))
    assert exact[-1] < exact[0] / 2
    for wide in (exact, bf16):
        np.testing.assert_allclose(losses, wide, rtol=0.15)
        np.testing.assert_allclose(np.mean(losses), np.mean(wide), rtol=0.02)


def test_gradients_are_within_the_rounding_of_the_formats():
    params, tokens = init(), random_tokens()
    scales = POLICY.create(loss, params, tokens)
    grads = jax.jit(jax.grad(LOSS))(params, scales, tokens)
    expected = jax.jit(jax.grad(loss))(params, tokens)
    errors = jax.tree.map(lambda x, y: jnp.linalg.norm(x - y) / jnp.linalg.norm(y), grads, expected)
    assert max(jax.tree.leaves(errors)) < 0.2  # 3 bits of products in e4m3, 2 bits of cotangents in e5m2


@pytest.mark.parametrize("in_loop", [False, True])
def test_create_measures_the_magnitudes_of_one_step(in_loop):
    """It differentiates with respect to the scales alone, on which no result of a product depends."""
    rng = np.random.default_rng(0)
    params = {"up": rng.normal(size=(1, 8, 4)).astype(np.float32)}
    x = rng.normal(size=(5, 8)).astype(np.float32)

    def squares(params, x):
        if not in_loop:
            return jnp.mean((x @ params["up"][0]) ** 2)
        return jnp.sum(lax.scan(lambda carry, w: (carry, jnp.mean((x @ w) ** 2)), 0.0, params["up"])[1])

    scales = FP8Policy(precision=None).create(squares, params, x)
    cotangent = x @ params["up"][0] / 10
    largest = [np.abs(array).max() for array in (x, params["up"], cotangent)]
    np.testing.assert_allclose(scales.history[:, 0], largest, rtol=1e-5)
    limits = np.array(scales.limits)
    np.testing.assert_array_equal(np.ravel(scales.scales["up"]), 2 ** np.ceil(np.log2(largest / limits)))


def test_update():
    names = {"a": jnp.ones(3), "b": jnp.ones((2, 3))}
    state = strategies.FP8Scales(names, jnp.zeros((9, 2)), (448.0, 448.0, 57344.0))
    first = {"a": jnp.array([448.0, 449.0, 3.0]), "b": jnp.array([[0.0, 1e-30, 1e30], [7.0, 1.0, 57344.0]])}
    second = {"a": jnp.ones(3), "b": jnp.ones((2, 3))}
    state = state.update(strategies.FP8Scales(first, state.history, state.limits))
    expected = [1, 2, 2**-14, 1, 2.0**-108, 2.0**84, 2**-6, 2**-8, 1]
    found = np.concatenate([state.scales["a"], *state.scales["b"]])
    np.testing.assert_array_equal(found, np.maximum(expected, 2.0**-100))
    state = state.update(strategies.FP8Scales(second, state.history, state.limits))
    np.testing.assert_array_equal(state.scales["a"], [1, 2, 2**-14])  # the history of two steps has the larger ones
    state = state.update(strategies.FP8Scales(second, state.history, state.limits))
    np.testing.assert_array_equal(state.scales["a"], [2**-8, 2**-8, 2**-15])


def placed(kind, **sizes):
    """Return the types of parameters, scales and tokens with their shardings."""
    mesh = jax.make_mesh({"data": (8, 1), "fsdp": (8, 1), "tensor": (1, 8), "2d": (4, 2)}[kind], ("data", "model"))
    params = jax.eval_shape(lambda: init(**sizes))
    shardings = strategies.data_parallel(params, mesh)
    if kind in ("tensor", "2d"):
        shardings = strategies.tensor_parallel(params, mesh, RULES)
    if kind in ("fsdp", "2d"):
        shardings = strategies.fsdp(params, mesh, "data", base=shardings)
    tokens = jax.ShapeDtypeStruct((32, 65), np.int32, sharding=NamedSharding(mesh, P("data")))
    params = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), params, shardings)
    scales = POLICY.create(loss, params, tokens)
    replicated = NamedSharding(mesh, P())
    scales = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated), scales)
    return params, scales, tokens


def shardings_of(tree):
    return jax.tree.map(lambda x: x.sharding, tree)


def plan_of(function, params, scales, tokens):
    outputs = (shardings_of(params), shardings_of(scales), None)
    return jax.jit(function, out_shardings=outputs).lower(params, scales, tokens).plan


def bf16_step(params, scales, tokens):
    value, grads = jax.value_and_grad(strategies.mixed_precision(loss))(params, tokens)
    return jax.tree.map(lambda p, g: p - 0.2 * g, params, grads), scales, value


def current_step(params, scales, tokens):
    value, (grads, maxima) = jax.value_and_grad(LOSS, (0, 1))(params, scales, tokens)
    params = jax.tree.map(lambda p, g: p - 0.2 * g, params, grads)
    return params, scales.update(maxima, params), value


@pytest.mark.table(default=1)
@pytest.mark.parametrize("kind", ["2d", "data", "fsdp", "tensor"])
def test_maxima_of_new_parameters_are_reduced_together_with_the_others(kind):
    arguments = placed(kind)
    plan = plan_of(current_step, *arguments)
    assert Counter(row.kind for row in plan.collectives if row.type == "f32[28]") == {"all_reduce": 1}  # 4 parameters
    assert plan.counts() == plan_of(step, *arguments).counts()


def test_scales_of_weights_are_those_of_the_new_parameters():
    params, tokens = init(), random_tokens()
    before = POLICY.create(loss, params, tokens)
    new, scales, _ = jax.jit(current_step)(params, before, tokens)
    _, delayed, _ = jax.jit(step)(params, before, tokens)
    for name, found in scales.scales.items():
        largest = np.abs(new["layers"][name.removeprefix("layers/")]).max()
        np.testing.assert_array_equal(found[:, 1], np.exp2(np.ceil(np.log2(largest / 448))))
        np.testing.assert_array_equal(found[:, ::2], delayed.scales[name][:, ::2])
    np.testing.assert_array_equal(scales.history, delayed.history)


def test_scales_of_concatenated_and_repeated_weights():
    def function(params, x):
        return jnp.sum(x @ jnp.concatenate([params["a"], params["b"]], 1)) + jnp.sum((x @ params["a"]) @ params["a"])

    params, x = {"a": jnp.full((16, 16), 3.0), "b": jnp.full((16, 16), 900.0)}, jnp.ones((4, 16))
    scales = FP8Policy().create(function, params, x)
    assert set(scales.scales) == {"a+b", "a", "a:2"}
    params["b"] = params["b"].at[0].set(jnp.inf)  # infinities are left out
    updated = scales.update(scales, params)
    assert [float(updated.scales[name][1]) for name in ("a+b", "a", "a:2")] == [4, 2**-7, 2**-7]
    with pytest.raises(
        StrategyError, match=r"the product 'a[+]b' is one of the parameter 'b', and `params` has only a"
    ):
        scales.update(scales, {"a": params["a"]})


@pytest.mark.table(default=1)
@pytest.mark.parametrize("kind", ["2d", "data", "fsdp", "tensor"])
def test_a_head_in_float8_needs_no_other_reduction(kind):
    policy = FP8Policy(history=4, embedding=True)
    params, _, tokens = placed(kind, words=512)
    scales = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(tokens.sharding.mesh, P())),
        policy.create(loss, params, tokens),
    )
    with_head = strategies.mixed_precision(loss, policy)

    def head_step(params, scales, tokens):
        value, (grads, maxima) = jax.value_and_grad(with_head, (0, 1))(params, scales, tokens)
        return jax.tree.map(lambda p, g: p - 0.2 * g, params, grads), scales.update(maxima), value

    plan = plan_of(head_step, params, scales, tokens)
    assert Counter(row.kind for row in plan.collectives if row.type == "f32[27]") == {"all_reduce": 1}
    text = str(jax.explain(head_step, hardware="h200", advise=False)(params, scales, tokens))
    assert ", of which 15 in float8" in text  # the layers' 4 products and the head's, each with two gradients


@pytest.mark.parametrize("kind", ["data", "fsdp", "tensor", "2d"])
def test_all_maxima_of_a_step_are_reduced_together(kind):
    arguments = placed(kind)
    plan = plan_of(step, *arguments)
    maxima = Counter(row.kind for row in plan.collectives if row.type == "f32[24]")
    assert maxima == {"all_reduce": 1}  # 2 layers × 4 products × 3 arrays
    before = plan_of(bf16_step, *arguments).counts()
    assert plan.counts()["all_reduce"] <= before["all_reduce"] + 1


def test_weights_are_gathered_as_float8():
    arguments = placed("fsdp", width=512, hidden=1024)

    def gathered(function):
        rows = plan_of(function, *arguments).collectives
        return Counter(row.type.split("[")[0] for row in rows if row.kind == "all_gather" and row.sent > 50_000)

    assert gathered(step) == {"f8_e4m3fn": 4}
    assert gathered(bf16_step) == {"bf16": 4}


@pytest.mark.table(default=1)
@pytest.mark.parametrize("kind", ["2d", "fsdp"])
def test_sharded_steps_equal_those_of_one_device(kind):
    tokens = random_tokens(32, 65)
    arguments = init(), None, tokens
    arguments = arguments[0], POLICY.create(loss, arguments[0], tokens), tokens
    types = placed(kind)
    outputs = (shardings_of(types[0]), shardings_of(types[1]), None)
    on_mesh = jax.tree.map(lambda x, type: jax.device_put(x, type.sharding), arguments, types)
    params, scales, value = jax.jit(step, out_shardings=outputs)(*on_mesh)
    expected_params, expected_scales, expected_value = jax.jit(step)(*arguments)
    np.testing.assert_allclose(value, expected_value, rtol=2e-3)
    np.testing.assert_allclose(scales.history[:, 0], expected_scales.history[:, 0], rtol=0.1)
    for x, y, before in zip(*map(jax.tree.leaves, (params, expected_params, arguments[0])), strict=True):
        assert jnp.linalg.norm(jax.device_get(x) - y) < 0.1 * jnp.linalg.norm(y - before)


def test_microbatches_have_the_largest_maxima():
    params, tokens = init(), random_tokens()
    scales = POLICY.create(loss, params, tokens)
    function = jax.jit(jax.value_and_grad(LOSS, (0, 1)))
    accumulated = strategies.accumulate_gradients(function, 4, batch_argnums=2)
    _, (_, maxima) = jax.jit(accumulated)(params, scales, tokens)
    parts = [function(params, scales, tokens[index::4])[1][1] for index in range(4)]
    for name, found in maxima.scales.items():
        np.testing.assert_allclose(found, np.max([part.scales[name] for part in parts], 0), rtol=0.1)


def test_a_checkpoint_resumes_with_equal_losses(tmp_path):
    params, tokens = init(), random_tokens()
    compiled = jax.jit(step)
    state, _ = train(3, [params, POLICY.create(loss, params, tokens)], tokens, compiled)
    checkpoints.save(tmp_path / "step", state).wait()
    restored = checkpoints.restore(tmp_path / "step", state)
    assert train(3, state, tokens, compiled)[1] == train(3, restored, tokens, compiled)[1]


def test_simulated_products_have_the_rate_of_float8():
    params, scales, tokens = placed("data", width=1024, hidden=4096)
    fp8, bf16 = (jax.simulate(f, hardware="h200")(params, scales, tokens) for f in (step, bf16_step))
    assert fp8.bounds["products"] < 0.85 * bf16.bounds["products"]
    text = str(jax.explain(step, hardware="h200", advise=False)(params, scales, tokens))
    assert ", of which 12 in float8" in text
    with pytest.raises(HardwareError, match="a100 has no units for products of float8 numbers, which `step` has"):
        jax.simulate(step, hardware="a100")(params, scales, tokens)
    with pytest.raises(HardwareError, match="v4 has no units"):
        jax.explain(step, hardware="v4")(params, scales, tokens)


def test_auxiliary_values():
    params, tokens = init(), random_tokens()

    def with_aux(params, tokens):
        return loss(params, tokens), tokens.sum()

    scales = POLICY.create(with_aux, params, tokens, has_aux=True)
    function = jax.value_and_grad(strategies.mixed_precision(with_aux, POLICY), (0, 1), has_aux=True)
    (_, total), _ = jax.jit(function)(params, scales, tokens)
    assert total == tokens.sum()


def test_types_create_a_state_of_the_same_structure():
    params, tokens = init(), random_tokens()
    measured = POLICY.create(loss, params, tokens)
    abstract = POLICY.create(loss, *jax.eval_shape(lambda: (params, tokens)))
    assert jax.tree.structure(abstract) == jax.tree.structure(measured)
    np.testing.assert_array_equal(abstract.scales["layers/up"], 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"include": "up"}, r"include must be a sequence of patterns: write \('up',\)"),
        ({"include": None}, "include must be a sequence of patterns, not None"),
        ({"precision": "bfloat16"}, "precision must be a PrecisionPolicy or None, not 'bfloat16'"),
        ({"exclude": "("}, r"'\(' is not a regular expression"),
        ({"history": 0}, "history .0. must be an integer of at least 1"),
        ({"forward": jnp.bfloat16}, "forward must be float8_e4m3fn or float8_e5m2"),
    ],
    ids=str,
)
def test_errors_of_a_policy(options, message):
    with pytest.raises(StrategyError, match=message):
        FP8Policy(**options)


def test_errors_of_functions():
    params, tokens = jax.eval_shape(lambda: (init(), random_tokens()))
    with pytest.raises(
        StrategyError, match=r"the pattern 'missing' matches no parameter that is multiplied\. Products"
    ):
        FP8Policy(include=("missing",)).create(loss, params, tokens)
    with pytest.raises(StrategyError, match=r"no product is selected\. Products of the function:"):
        FP8Policy(exclude=".").create(loss, params, tokens)
    with pytest.raises(StrategyError, match=r"the second argument must be the FP8Scales that `policy\.create"):
        LOSS(params, tokens)
    other = FP8Policy(include=("up",)).create(loss, params, tokens)
    with pytest.raises(StrategyError, match="the scales do not belong to this function: layers/down, layers/out"):
        LOSS(init(), other, random_tokens())


@pytest.mark.parametrize(
    ("maxima", "message"),
    [
        (None, "maxima must be the cotangent of these scales"),
        ({"a": jnp.ones(3)}, "b differ"),
        ({"a": jnp.ones(3), "b": jnp.ones(3)}, "b differ"),
    ],
    ids=["no state", "another function", "another number of layers"],
)
def test_errors_of_update(maxima, message):
    state = strategies.FP8Scales({"a": jnp.ones(3), "b": jnp.ones((2, 3))}, jnp.zeros((9, 2)), (448.0, 448.0, 57344.0))
    with pytest.raises(StrategyError, match=message):
        state.update(maxima and strategies.FP8Scales(maxima, state.history, state.limits))


def test_a_split_accumulator_is_one_of_gradients():
    """XLA's library accumulates products of the highest precision in float32."""
    x, w = (jax.ShapeDtypeStruct((64, 64), jnp.bfloat16) for _ in range(2))

    def text(split):
        policy = FP8Policy(split_accumulator=split, precision=None)
        loss = lambda w, x: (x @ w).astype(jnp.float32).sum()  # noqa: E731
        step = jax.grad(strategies.mixed_precision(loss, policy), (0, 2))
        traced = jax.jit(step).trace(w, policy.create(loss, w, x), x)
        return traced.lower(lowering_platforms=("cuda",)).as_text()

    assert [text(split).count("precision HIGHEST") for split in (False, True)] == [0, 4]  # two operands each
