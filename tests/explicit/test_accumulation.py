"""Gradient accumulation with reduced weights: a scan over layers in one over microbatches, and one reduction after."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, nn
from shardwise.sharding import AxisType, reshard
from shardwise.sharding import PartitionSpec as P

LAYERS, MICROBATCHES, LENGTH, WIDTH, HEADS, HIDDEN = 3, 4, 5, 8, 2, 16
RNG = np.random.default_rng(0)


def normal(*shape):
    return (RNG.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)


def transformer_weights():
    return {
        **{name: normal(LAYERS, WIDTH, WIDTH) for name in ("q", "k", "v", "out")},
        "up": normal(LAYERS, WIDTH, HIDDEN),
        "down": normal(LAYERS, HIDDEN, WIDTH),
        "norm": np.ones((LAYERS, WIDTH), np.float32),
    }


def transformer_block(x, w):
    normed = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w["norm"]
    q, k, v = ((normed @ w[name]).reshape(*x.shape[:2], HEADS, -1) for name in "qkv")
    scores = nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ w["out"]
    return x + nn.gelu(x @ w["up"]) @ w["down"]


def loss(weights, batch):
    """Return the loss of a stack of transformer blocks, one iteration of a scan each."""
    return (lax.scan(lambda x, w: (transformer_block(x, w), None), batch, weights)[0] ** 2).sum()


def accumulate(weights, batches, zeros):
    """Add up the gradients of all microbatches."""
    add = lambda total, batch: (sw.tree.map(jnp.add, total, sw.grad(loss)(weights, batch)), None)  # noqa: E731
    return lax.scan(add, zeros, batches)[0]


def one_device(weights, batches):
    return sw.jit(accumulate)(weights, batches, sw.tree.map(np.zeros_like, weights))


def collectives(function, *args):
    """Return the kind, axes and number of runs of each collective."""
    return sorted((row.kind, row.axes, row.times) for row in sw.jit(function).lower(*args).plan.collectives)


def assert_like(gradients, expected):
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("batch", [16, 18], ids=["even", "uneven"])
def test_data_parallel_gradients_are_reduced_once(batch):
    mesh = sw.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    weights, batches = transformer_weights(), normal(MICROBATCHES, batch, LENGTH, WIDTH)

    def step(weights, batches):
        reduced = sw.tree.map(lambda w: reshard(w, P(reduced={"data"})), weights)
        zeros = sw.tree.map(lambda w: jnp.zeros(w.shape, out_sharding=P(unreduced={"data"})), weights)
        return sw.tree.map(lambda g: reshard(g, P()), accumulate(reduced, batches, zeros))

    with sw.set_mesh(mesh):
        args = sw.device_put(weights, P()), sw.device_put(batches, P(None, "data"))
        assert collectives(step, *args) == [("all_reduce", ("data",), 1)] * len(weights)
        gradients = sw.jit(step)(*args)
    assert {str(sw.typeof(g)) for g in gradients.values()} == {str(sw.typeof(w)) for w in args[0].values()}
    assert_like(gradients, one_device(weights, batches))


@pytest.mark.table(default=1)
@pytest.mark.parametrize("batch", [16, 18], ids=["even", "uneven"])
def test_fsdp_gradients_are_scattered_once(batch):
    """Weights are gathered once, before both loops, and gradients are reduce-scattered once, after them."""
    mesh = sw.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    weights, batches = transformer_weights(), normal(MICROBATCHES, batch, LENGTH, WIDTH)
    sharded = P(None, "data")

    def step(weights, batches):
        gathered = sw.tree.map(lambda w: reshard(w, P(reduced={"data"})), weights)
        zeros = sw.tree.map(lambda w: jnp.zeros(w.shape, out_sharding=P(unreduced={"data"})), weights)
        return sw.tree.map(lambda g: reshard(g, sharded), accumulate(gathered, batches, zeros))

    with sw.set_mesh(mesh):
        args = sw.device_put(weights, sharded), sw.device_put(batches, P(None, "data"))
        once = [("all_gather", ("data",), 1), ("reduce_scatter", ("data",), 1)]
        assert collectives(step, *args) == sorted(once * len(weights))
        gradients = sw.jit(step)(*args)
    assert str(sw.typeof(gradients["up"])) == "f32[3,8@data,16]"
    assert_like(gradients, one_device(weights, batches))


def test_with_tensor_parallel_weights_only_the_model_axis_communicates_in_the_loops():
    mesh = sw.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    weights = {"up": normal(LAYERS, WIDTH, HIDDEN), "down": normal(LAYERS, HIDDEN, WIDTH)}
    batches = normal(MICROBATCHES, 12, WIDTH)
    specs = {"up": P(None, None, "model"), "down": P(None, "model", None)}

    def block(x, w):
        hidden = nn.gelu(x @ w["up"])
        return x + jnp.matmul(hidden, w["down"], out_sharding=P("data", None)), None

    def block_on_one_device(x, w):
        return x + nn.gelu(x @ w["up"]) @ w["down"], None

    def gradients_of(body, weights, batches, zeros):
        def of_loss(weights, x):
            return (lax.scan(body, x, weights)[0] ** 2).sum()

        add = lambda total, x: (sw.tree.map(jnp.add, total, sw.grad(of_loss)(weights, x)), None)  # noqa: E731
        return lax.scan(add, zeros, batches)[0]

    def step(weights, batches):
        reduced = {name: reshard(w, P(*specs[name], reduced={"data"})) for name, w in weights.items()}
        zeros = {
            name: jnp.zeros(w.shape, out_sharding=P(*specs[name], unreduced={"data"})) for name, w in weights.items()
        }
        total = gradients_of(block, reduced, batches, zeros)
        return {name: reshard(g, specs[name]) for name, g in total.items()}

    with sw.set_mesh(mesh):
        args = (
            {name: sw.device_put(w, specs[name]) for name, w in weights.items()},
            sw.device_put(batches, P(None, "data")),
        )
        rows = collectives(step, *args)
        assert [row for row in rows if "data" in row[1]] == [("all_reduce", ("data",), 1)] * 2
        assert all(times == LAYERS * MICROBATCHES for _, axes, times in rows if axes == ("model",))
        gradients = sw.jit(step)(*args)
    expected = sw.jit(lambda w, b: gradients_of(block_on_one_device, w, b, sw.tree.map(jnp.zeros_like, w)))(
        weights, batches
    )
    assert_like(gradients, expected)


def test_a_traced_factor_of_gradients_does_not_reduce_them():
    """A sum of unreduced gradients times a traced number stays unreduced: the loop sends nothing."""
    mesh = sw.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    weights, batches = normal(WIDTH, WIDTH), normal(MICROBATCHES, 16, WIDTH)
    scales = np.arange(1, MICROBATCHES + 1, dtype=np.float32)

    def gradient(w, x):
        return sw.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)

    def step(w, batches, scales):
        w = reshard(w, P(reduced={"data"}))
        zeros = jnp.zeros(w.shape, out_sharding=P(unreduced={"data"}))
        add = lambda total, row: (total + row[1] * gradient(w, row[0]), None)  # noqa: E731
        return reshard(lax.scan(add, zeros, (batches, scales))[0], P())

    with sw.set_mesh(mesh):
        args = sw.device_put(weights, P()), sw.device_put(batches, P(None, "data")), sw.device_put(scales, P())
        assert collectives(step, *args) == [("all_reduce", ("data",), 1)]
        total = sw.jit(step)(*args)
    expected = sum(scale * np.asarray(sw.jit(gradient)(weights, x)) for scale, x in zip(scales, batches, strict=True))
    np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-4)
