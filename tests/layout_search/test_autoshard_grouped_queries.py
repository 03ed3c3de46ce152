"""autoshard of attention whose key/value heads are fewer than the devices, or do not divide them."""

import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.shardings.mesh import AbstractMesh

ROWS, LENGTH, WIDTH, SIZE, LAYERS, WORDS = 16, 16, 64, 8, 2, 64
BF16 = jnp.bfloat16


def fused(q, k, v):
    return sw.nn.dot_product_attention(q, k, v, is_causal=True)


def repeated(q, k, v):
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("bthe,bshe->bhts", q, k).astype(jnp.float32)
    return jnp.einsum("bhts,bshe->bthe", sw.nn.softmax(scores).astype(v.dtype), v)


def grouped(q, k, v):
    q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
    scores = jnp.einsum("btkge,bske->bkgts", q, k).astype(jnp.float32)
    result = jnp.einsum("bkgts,bske->btkge", sw.nn.softmax(scores).astype(v.dtype), v)
    return result.reshape(*q.shape[:2], -1, q.shape[4])


def rotate(x):
    angles = jnp.arange(x.shape[1])[:, None] * 1e4 ** -jnp.linspace(0, 1, x.shape[3] // 2)
    cos, sin = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def norm(x, scale):
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale.astype(x.dtype)


def llama(attention, heads, shared, width=WIDTH, size=SIZE, layers=LAYERS, ffn=2 * WIDTH, words=WORDS):
    """Return a training step of a model in the style of Llama 3, and the types of its parameters."""

    def layer(x, p):
        p = sw.tree.map(lambda w: w.astype(BF16), p)
        h = norm(x, p["scale1"])
        q, k, v = ((h @ p[name]).reshape(*h.shape[:2], -1, size) for name in "qkv")
        x = x + attention(rotate(q), rotate(k), v).reshape(*h.shape[:2], -1) @ p["out"]
        h = norm(x, p["scale2"])
        return x + (sw.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], None

    def loss(params, tokens):
        x = params["embed"].astype(BF16)[tokens[:, :-1]]
        x, _ = lax.scan(sw.checkpoint(layer), x, params["layers"])
        logits = (x @ params["head"].astype(BF16)).astype(jnp.float32)
        return -jnp.mean(jnp.take_along_axis(sw.nn.log_softmax(logits), tokens[:, 1:, None], -1))

    def step(state, tokens):
        value, grads = sw.value_and_grad(loss)(state["params"], tokens)
        mean = sw.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
        square = sw.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, state["square"], grads)
        update = sw.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), state["params"], mean, square)
        return {"params": update, "mean": mean, "square": square}, value

    shapes = {
        "q": (width, heads * size), "k": (width, shared * size), "v": (width, shared * size),
        "out": (heads * size, width), "gate": (width, ffn), "up": (width, ffn), "down": (ffn, width),
        "scale1": (width,), "scale2": (width,),
    }  # fmt: skip
    stacked = {name: sw.ShapeDtypeStruct((layers, *shape), jnp.float32) for name, shape in shapes.items()}
    ends = {"embed": (words, width), "head": (width, words)}
    params = {"layers": stacked, **{name: sw.ShapeDtypeStruct(s, jnp.float32) for name, s in ends.items()}}
    return sw.jit(step, donate_argnums=0), {"params": params, "mean": params, "square": params}


def tokens(rows=ROWS, length=LENGTH):
    return sw.ShapeDtypeStruct((rows, length + 1), jnp.int32)


def test_key_heads_are_fewer_than_the_devices_along_an_axis():
    def loss(weights, x):
        q, k, v = (jnp.einsum("btd,dhe->bthe", x, w) for w in weights)
        return jnp.mean(grouped(q, k, v) ** 2)

    def step(weights, x):
        return sw.tree.map(lambda w, g: w - g, weights, sw.grad(loss)(weights, x))

    weights = [sw.ShapeDtypeStruct((WIDTH, heads, SIZE), jnp.float32) for heads in (8, 2, 2)]
    x = sw.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32)
    for mesh in (AbstractMesh((8,), ("model",)), AbstractMesh((3, 2), ("data", "model"))):
        assert sw.autoshard(step, mesh=mesh, hardware="h100")(weights, x).alternatives[0].fits


@pytest.mark.slow
@pytest.mark.parametrize("attention", [fused, repeated, grouped])
@pytest.mark.parametrize(("heads", "shared"), [(8, 2), (12, 3), (4, 1), (8, 8)])
@pytest.mark.parametrize("mesh", [(2, 4), (8,), (3, 2), (8, 8)])
def test_a_mesh_is_larger_than_the_number_of_key_heads(mesh, heads, shared, attention):
    step, state = llama(attention, heads, shared)
    axes = AbstractMesh(mesh, ("data", "model")[: len(mesh)])
    result = sw.autoshard(step, mesh=axes, hardware="h100")(state, tokens())
    assert result.alternatives[0].fits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "count", "rows"),
    [
        (dict(heads=32, shared=8, width=4096, layers=32, ffn=14336), 8, 16),
        (dict(heads=32, shared=8, width=4096, layers=32, ffn=14336), 64, 64),
        (dict(heads=64, shared=8, width=8192, layers=80, ffn=28672), 512, 512),
    ],
    ids=["8B-8", "8B-64", "70B-512"],
)
def test_llama_fits_on_h100s(sizes, count, rows):
    step, state = llama(fused, size=128, words=128256, **sizes)
    result = sw.autoshard(step, hardware="h100", count=count)(state, tokens(rows, 8192))
    assert result.peak_bytes <= 80e9
