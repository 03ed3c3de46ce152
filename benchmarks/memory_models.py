"""Training steps that no rule of the memory model was developed on: `benchmarks/memory_predictions.py` holds them out.

They differ from the other steps in architecture, optimizer and dtype. Each function returns the step, whose first
argument is donated, and the types of its arguments. `STEPS` has them by name.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import lax, nn, random
from shardwise.models import Decoder, Experts, train_state, train_step

Tree = Any
F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
Types = tuple[Any, ...]
Make = TypeVar("Make", bound=Callable[..., tuple[Any, Types]])


def by_name(*makers: Make) -> dict[str, Make]:
    """Return functions that make steps by their names, in words."""
    return {maker.__name__.replace("_", " "): maker for maker in makers}


def of(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def momentum(loss: Callable[..., Any], params: Tree, *batch: Any) -> tuple[Any, Types]:
    """Return a step of SGD with momentum."""

    def step(state: Tree, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], *batch)
        means = jax.tree.map(lambda m, g: 0.9 * m + g, state[1], gradients)
        return (jax.tree.map(lambda p, m: p - 0.01 * m, state[0], means), means), value

    return jax.jit(step, donate_argnums=0), ((params, params), *batch)


def adam(loss: Callable[..., Any], params: Tree, *batch: Any) -> tuple[Any, Types]:
    """Return a step of Adam with a clipped gradient."""

    def step(state: Tree, *batch: Any) -> Any:
        weights, means, squares = state
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        norm = jnp.sqrt(sum(jnp.sum(g.astype(F32) ** 2) for g in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), gradients)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
        squares = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, squares, gradients)
        weights = jax.tree.map(lambda w, m, s: w - 1e-3 * m / (jnp.sqrt(s) + 1e-8), weights, means, squares)
        return (weights, means, squares), value

    return jax.jit(step, donate_argnums=0), ((params, params, params), *batch)


def layer_norm(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    centered = wide - wide.mean(-1, keepdims=True)
    return (centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def attend(heads: int, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Return attention whose scores are stored, in f32."""
    q, k, v = (x.reshape(*x.shape[:2], heads, -1) for x in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    out = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores).astype(v.dtype), v)
    return out.reshape(*out.shape[:2], -1)


def cross_entropy(logits: Any, labels: Any) -> Any:
    logits = logits.astype(F32)
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(nn.logsumexp(logits, -1) - chosen)


def conv(x: Any, kernel: Any, stride: int = 1, groups: int = 1, dilation: int = 1) -> Any:
    return lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        (stride, stride),
        "SAME",
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def encoder_decoder() -> tuple[Any, Types]:
    width, hidden, heads = 512, 2048, 8

    def block(x: Any, p: Tree, memory: Any = None) -> Any:
        length = x.shape[1]
        h = layer_norm(x, p["n1"])
        mask = None if memory is None else jnp.tril(jnp.ones((length, length), bool))
        x = x + attend(heads, h @ p["q"], h @ p["k"], h @ p["v"], mask) @ p["o"]
        if memory is not None:
            h = layer_norm(x, p["n3"])
            x = x + attend(heads, h @ p["cq"], memory @ p["ck"], memory @ p["cv"]) @ p["co"]
        return x + nn.relu(layer_norm(x, p["n2"]) @ p["up"]) @ p["down"]

    def loss(params: Tree, source: Any, target: Any) -> Any:
        memory = params["words"][source]
        for p in params["encoder"]:
            memory = block(memory, p)
        x = params["words"][target[:, :-1]]
        for p in params["decoder"]:
            x = block(x, p, memory)
        return cross_entropy(x @ params["words"].T, target[:, 1:])

    square = of(width, width)
    sizes = {"up": of(width, hidden), "down": of(hidden, width), "n1": of(width), "n2": of(width)}
    layer = {**dict.fromkeys("qkvo", square), **sizes}
    both = {**layer, **dict.fromkeys(("cq", "ck", "cv", "co"), square), "n3": of(width)}
    params = {"words": of(16000, width), "encoder": [layer] * 3, "decoder": [both] * 3}
    return momentum(loss, params, of(16, 256, dtype=I32), of(16, 257, dtype=I32))


def masked_language_model() -> tuple[Any, Types]:
    width, heads, layers = 768, 12, 6

    def dropout(x: Any, key: Any) -> Any:
        return jnp.where(random.bernoulli(key, 0.9, x.shape), x / 0.9, 0).astype(x.dtype)

    def loss(params: Tree, tokens: Any, labels: Any, seed: Any) -> Any:
        keys = random.split(random.key(seed), 2 * layers)
        x = params["words"].astype(BF16)[tokens] + params["places"].astype(BF16)
        for number, p in enumerate(params["layers"]):
            w = jax.tree.map(lambda leaf: leaf.astype(BF16), p)
            attended = attend(heads, *jnp.split(x @ w["qkv"], 3, -1)) @ w["o"]
            x = layer_norm(x + dropout(attended, keys[2 * number]), p["n1"])
            h = nn.gelu(x @ w["up"], approximate=False) @ w["down"]
            x = layer_norm(x + dropout(h, keys[2 * number + 1]), p["n2"])
        return cross_entropy(x @ params["words"].astype(BF16).T, labels)

    layer = {"qkv": of(width, 3 * width), "o": of(width, width), "up": of(width, 4 * width)}
    layer |= {"down": of(4 * width, width), "n1": of(width), "n2": of(width)}
    params = {"words": of(30522, width), "places": of(128, width), "layers": [layer] * layers}
    return adam(loss, params, of(32, 128, dtype=I32), of(32, 128, dtype=I32), of(dtype=jnp.uint32))


def residual_net() -> tuple[Any, Types]:
    def batch_norm(x: Any, scale: Any) -> Any:
        wide = x.astype(F32)
        mean, square = wide.mean((0, 1, 2)), (wide**2).mean((0, 1, 2))
        return ((wide - mean) * lax.rsqrt(square - mean**2 + 1e-5) * scale).astype(x.dtype)

    def loss(params: Tree, images: Any, labels: Any) -> Any:
        x = nn.relu(batch_norm(conv(images, params["stem"], 2), params["scale"]))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for p in params["blocks"]:
            stride = 2 if "skip" in p and p["skip"].shape[2] != 64 else 1
            h = nn.relu(batch_norm(conv(x, p["in"]), p["s1"]))
            h = nn.relu(batch_norm(conv(h, p["middle"], stride), p["s2"]))
            h = batch_norm(conv(h, p["out"]), p["s3"])
            x = nn.relu(h + (batch_norm(conv(x, p["skip"], stride), p["s4"]) if "skip" in p else x))
        return cross_entropy(x.mean((1, 2)) @ params["head"].astype(BF16), labels)

    blocks, inner = [], 64
    for width, count in ((64, 2), (128, 2), (256, 2)):
        for number in range(count):
            block = {"in": of(1, 1, inner, width), "middle": of(3, 3, width, width), "out": of(1, 1, width, 4 * width)}
            block |= {"s1": of(width), "s2": of(width), "s3": of(4 * width)}
            if number == 0:
                block |= {"skip": of(1, 1, inner, 4 * width), "s4": of(4 * width)}
            blocks.append(block)
            inner = 4 * width
    params = {"stem": of(7, 7, 3, 64), "scale": of(64), "blocks": blocks, "head": of(inner, 1000)}
    return momentum(loss, params, of(32, 128, 128, 3, dtype=BF16), of(32, dtype=I32))


def depthwise_net() -> tuple[Any, Types]:
    def loss(params: Tree, images: Any, labels: Any) -> Any:
        x = conv(images, params["stem"], 4)
        for p in params["blocks"]:
            h = layer_norm(conv(x, p["depth"], groups=x.shape[-1]), p["norm"])
            x = x + nn.gelu(h @ p["up"]) @ p["down"]
        return cross_entropy(x.mean((1, 2)) @ params["head"], labels)

    width = 128
    block = {"depth": of(7, 7, 1, width), "norm": of(width), "up": of(width, 4 * width), "down": of(4 * width, width)}
    params = {"stem": of(4, 4, 3, width), "blocks": [block] * 4, "head": of(width, 1000)}
    return adam(loss, params, of(32, 128, 128, 3), of(32, dtype=I32))


def state_space() -> tuple[Any, Types]:
    width, states, layers = 512, 8, 2

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], a[1] * b[0] + b[1]

    def loss(params: Tree, x: Any, y: Any) -> Any:
        for p in params:
            decay = jnp.exp(-nn.softplus(x @ p["step"])[..., None] * jnp.exp(p["rates"]))
            inputs = x[..., None] * (x @ p["in"])[..., None, :]
            _, states = lax.associative_scan(combine, (decay, inputs), axis=1)
            read = jnp.einsum("btdn,btn->btd", states, x @ p["out"])
            x = x + nn.silu(x @ p["gate"]) * read
        return jnp.mean((x - y) ** 2)

    layer = {"step": of(width, width), "gate": of(width, width), "rates": of(width, states)}
    layer |= {"in": of(width, states), "out": of(width, states)}
    return momentum(loss, [layer] * layers, of(4, 512, width), of(4, 512, width))


def translation() -> tuple[Any, Types]:
    width = 256

    def cell(p: Tree, h: Any, x: Any) -> Any:
        z, r = jnp.split(nn.sigmoid(x @ p["gates_x"] + h @ p["gates_h"]), 2, -1)
        return z * h + (1 - z) * jnp.tanh(x @ p["new_x"] + (r * h) @ p["new_h"])

    def loss(params: Tree, source: Any, target: Any) -> Any:
        zero = jnp.zeros((source.shape[0], width))

        def encode(h: Any, x: Any) -> Any:
            h = cell(params["encoder"], h, x)
            return h, h

        last, memory = lax.scan(encode, zero, jnp.swapaxes(params["words"][source], 0, 1))

        def decode(h: Any, x: Any) -> Any:
            weights = nn.softmax(jnp.einsum("bd,tbd->bt", h @ params["query"], memory))
            context = jnp.einsum("bt,tbd->bd", weights, memory)
            h = cell(params["decoder"], h, jnp.concatenate([x, context], -1))
            return h, h

        _, outputs = lax.scan(decode, last, jnp.swapaxes(params["words"][target[:, :-1]], 0, 1))
        return cross_entropy(outputs @ params["head"], jnp.swapaxes(target[:, 1:], 0, 1))

    def gates(inner: int) -> Tree:
        sizes = {"gates_x": of(inner, 2 * width), "gates_h": of(width, 2 * width)}
        return {**sizes, "new_x": of(inner, width), "new_h": of(width, width)}

    params = {"words": of(8000, width), "query": of(width, width), "head": of(width, 8000)}
    params |= {"encoder": gates(width), "decoder": gates(2 * width)}
    return adam(loss, params, of(128, 32, dtype=I32), of(128, 33, dtype=I32))


def adapters() -> tuple[Any, Types]:
    width, heads, rank = 1024, 16, 16

    def loss(adapters: Tree, frozen: Tree, tokens: Any) -> Any:
        x = frozen["words"][tokens[:, :-1]]
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))

        def layer(x: Any, both: Any) -> Any:
            w, a = both
            h = layer_norm(x, w["n1"])
            q = h @ w["q"] + (h @ a["qa"].astype(BF16)) @ a["qb"].astype(BF16)
            v = h @ w["v"] + (h @ a["va"].astype(BF16)) @ a["vb"].astype(BF16)
            x = x + attend(heads, q, h @ w["k"], v, mask) @ w["o"]
            h = layer_norm(x, w["n2"])
            return x + (nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], None

        x, _ = lax.scan(layer, x, (frozen["layers"], adapters))
        return cross_entropy(x @ frozen["words"].T, tokens[:, 1:])

    def step(state: Tree, frozen: Tree, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state[0], frozen, tokens)
        means = jax.tree.map(lambda m, g: 0.9 * m + g, state[1], gradients)
        return (jax.tree.map(lambda p, m: p - 0.01 * m, state[0], means), means), value

    layers = 8
    low = {"qa": of(layers, width, rank), "qb": of(layers, rank, width)}
    low |= {"va": of(layers, width, rank), "vb": of(layers, rank, width)}
    weights = {name: of(layers, width, width, dtype=BF16) for name in "qkvo"}
    weights |= {"gate": of(layers, width, 2816, dtype=BF16), "up": of(layers, width, 2816, dtype=BF16)}
    weights |= {"down": of(layers, 2816, width, dtype=BF16), "n1": of(layers, width), "n2": of(layers, width)}
    frozen = {"words": of(32000, width, dtype=BF16), "layers": weights}
    return jax.jit(step, donate_argnums=0), ((low, low), frozen, of(4, 513, dtype=I32))


def click_through() -> tuple[Any, Types]:
    tables, width = 8, 64

    def loss(params: Tree, dense: Any, sparse: Any, clicked: Any) -> Any:
        x = nn.relu(nn.relu(dense @ params["bottom1"]) @ params["bottom2"])
        features = [x, *(table[sparse[:, index]] for index, table in enumerate(params["tables"]))]
        stacked = jnp.stack(features, 1)
        rows, columns = jnp.triu_indices(tables + 1, 1)
        crossed = jnp.einsum("bif,bjf->bij", stacked, stacked)[:, rows, columns]
        h = nn.relu(jnp.concatenate([x, crossed], -1) @ params["top1"])
        logits = (nn.relu(h @ params["top2"]) @ params["top3"])[:, 0]
        return jnp.mean(nn.softplus(logits) - clicked * logits)

    crosses = (tables + 1) * tables // 2
    params = {"tables": [of(50000, width)] * tables, "bottom1": of(13, 512), "bottom2": of(512, width)}
    params |= {"top1": of(width + crosses, 1024), "top2": of(1024, 512), "top3": of(512, 1)}
    return momentum(loss, params, of(16384, 13), of(16384, tables, dtype=I32), of(16384))


def autoencoder() -> tuple[Any, Types]:
    def up(x: Any, kernel: Any) -> Any:
        return lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def loss(params: Tree, images: Any, noise: Any) -> Any:
        x = nn.silu(conv(nn.silu(conv(images, params["down1"], 2)), params["down2"], 2))
        mean, log_variance = jnp.split(x.reshape(x.shape[0], -1) @ params["latent"], 2, -1)
        z = mean + noise * jnp.exp(0.5 * log_variance)
        h = nn.silu((z @ params["raise"]).reshape(x.shape))
        out = up(nn.silu(up(h, params["up1"])), params["up2"])
        divergence = 0.5 * jnp.mean(mean**2 + jnp.exp(log_variance) - log_variance - 1)
        return jnp.mean((out - images) ** 2) + divergence

    latent, inner = 128, 16 * 16 * 64
    params = {"down1": of(4, 4, 3, 32), "down2": of(4, 4, 32, 64), "latent": of(inner, 2 * latent)}
    params |= {"raise": of(latent, inner), "up1": of(4, 4, 64, 32), "up2": of(4, 4, 32, 3)}
    return adam(loss, params, of(128, 64, 64, 3), of(128, latent))


def contrastive() -> tuple[Any, Types]:
    width, heads = 384, 6

    def tower(x: Any, p: Tree) -> Any:
        x = x @ p["in"]

        def layer(x: Any, w: Tree) -> Any:
            h = layer_norm(x, w["n1"])
            x = x + attend(heads, *jnp.split(h @ w["qkv"], 3, -1)) @ w["o"]
            return x + nn.gelu(layer_norm(x, w["n2"]) @ w["up"]) @ w["down"], None

        x, _ = lax.scan(layer, x, p["layers"])
        x = x.mean(1) @ p["out"]
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def loss(params: Tree, images: Any, texts: Any) -> Any:
        scores = tower(images, params["image"]) @ tower(texts, params["text"]).T * 20
        labels = jnp.arange(scores.shape[0])
        return 0.5 * (cross_entropy(scores, labels) + cross_entropy(scores.T, labels))

    def weights(inner: int, layers: int) -> Tree:
        stacked = {"qkv": of(layers, width, 3 * width), "o": of(layers, width, width), "n1": of(layers, width)}
        stacked |= {"up": of(layers, width, 4 * width), "down": of(layers, 4 * width, width), "n2": of(layers, width)}
        return {"in": of(inner, width), "layers": stacked, "out": of(width, 256)}

    params = {"image": weights(768, 6), "text": weights(512, 4)}
    return adam(loss, params, of(256, 49, 768), of(256, 32, 512))


def radiance_field() -> tuple[Any, Types]:
    def loss(params: Tree, points: Any, directions: Any, colors: Any) -> Any:
        scaled = points[..., None] * 2.0 ** jnp.arange(10)
        encoded = jnp.concatenate([jnp.sin(scaled), jnp.cos(scaled)], -1).reshape(*points.shape[:2], -1)
        x = nn.relu(encoded @ params["in"])
        for number, w in enumerate(params["layers"]):
            x = nn.relu(jnp.concatenate([x, encoded], -1) @ params["skip"] if number == 2 else x @ w)
        density = nn.softplus(x @ params["density"])[..., 0]
        color = nn.sigmoid(
            jnp.concatenate([x, jnp.broadcast_to(directions[:, None], points.shape)], -1) @ params["color"]
        )
        passed = jnp.exp(-jnp.cumsum(density, 1) + density)
        weights = passed * (1 - jnp.exp(-density))
        return jnp.mean((jnp.einsum("rs,rsc->rc", weights, color) - colors) ** 2)

    params = {"in": of(60, 256), "layers": [of(256, 256)] * 5, "skip": of(316, 256)}
    params |= {"density": of(256, 1), "color": of(259, 3)}
    return adam(loss, params, of(1024, 64, 3), of(1024, 3), of(1024, 3))


def graph_attention() -> tuple[Any, Types]:
    nodes, heads, width = 16384, 4, 64

    def loss(params: Tree, x: Any, source: Any, target: Any, labels: Any) -> Any:
        for p in params["layers"]:
            h = (x @ p["w"]).reshape(nodes, heads, width)
            left, right = jnp.sum(h * p["left"], -1), jnp.sum(h * p["right"], -1)
            scores = nn.leaky_relu(left[source] + right[target])
            most = jnp.full((nodes, heads), -jnp.inf).at[target].max(scores)
            weights = jnp.exp(scores - lax.stop_gradient(most)[target])
            total = jnp.zeros((nodes, heads)).at[target].add(weights)
            sent = h[source] * (weights / total[target])[..., None]
            x = nn.elu(jnp.zeros_like(h).at[target].add(sent).reshape(nodes, heads * width))
        return cross_entropy(x @ params["head"], labels)

    def layer(inner: int) -> Tree:
        return {"w": of(inner, heads * width), "left": of(heads, width), "right": of(heads, width)}

    params = {"layers": [layer(128), layer(heads * width)], "head": of(heads * width, 40)}
    indices = of(8 * nodes, dtype=I32)
    return momentum(loss, params, of(nodes, 128), indices, indices, of(nodes, dtype=I32))


def decoding() -> tuple[Any, Types]:
    layers, width, heads, length, batch = 8, 1024, 16, 2048, 32

    def step(cache: Tree, weights: Tree, tokens: Any, place: Any) -> Any:
        x = weights["words"][tokens]

        def layer(x: Any, both: Any) -> Any:
            w, keys, values = both
            h = layer_norm(x, w["n1"])
            q, k, v = (y.reshape(batch, heads, -1) for y in jnp.split(h @ w["qkv"], 3, -1))
            keys = lax.dynamic_update_slice(keys, k[:, None], (0, place, 0, 0))
            values = lax.dynamic_update_slice(values, v[:, None], (0, place, 0, 0))
            scores = jnp.einsum("bhd,bthd->bht", q, keys).astype(F32) / 8
            scores = jnp.where(jnp.arange(length) <= place, scores, -1e9)
            out = jnp.einsum("bht,bthd->bhd", nn.softmax(scores).astype(BF16), values)
            x = x + out.reshape(batch, width) @ w["o"]
            x = x + nn.silu(layer_norm(x, w["n2"]) @ w["up"]) @ w["down"]
            return x, (keys, values)

        x, cache = lax.scan(layer, x, (weights["layers"], *cache))
        return cache, jnp.argmax(x @ weights["words"].T, -1)

    def weight(*shape: int) -> Any:
        return of(layers, *shape, dtype=BF16)

    weights = {"qkv": weight(width, 3 * width), "o": weight(width, width), "up": weight(width, 4 * width)}
    weights |= {"down": weight(4 * width, width), "n1": of(layers, width), "n2": of(layers, width)}
    cache = (weight(batch, length, heads, width // heads),) * 2
    params = {"words": of(32000, width, dtype=BF16), "layers": weights}
    return jax.jit(step, donate_argnums=0), (cache, params, of(batch, dtype=I32), of(dtype=I32))


def grouped_queries() -> tuple[Any, Types]:
    width, heads, groups, head = 1024, 16, 4, 64

    def rotate(x: Any) -> Any:
        angles = jnp.arange(x.shape[1])[:, None, None] * 10000.0 ** (-jnp.arange(0, head, 2) / head)
        left, right = jnp.split(x.astype(F32), 2, -1)
        sin, cos = jnp.sin(angles), jnp.cos(angles)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1).astype(x.dtype)

    def loss(params: Tree, tokens: Any) -> Any:
        x = params["words"].astype(BF16)[tokens[:, :-1]]
        batch, length = x.shape[:2]
        for p in params["layers"]:
            w = {name: leaf.astype(BF16) for name, leaf in p.items()}
            h = layer_norm(x, p["n1"])
            q = rotate((h @ w["q"]).reshape(batch, length, heads, head))
            k = rotate((h @ w["k"]).reshape(batch, length, groups, head))
            v = (h @ w["v"]).reshape(batch, length, groups, head)
            q = q.reshape(batch, length, groups, heads // groups, head)
            scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, k).astype(F32) / 8
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
            out = jnp.einsum("bgrqk,bkgd->bqgrd", nn.softmax(scores).astype(BF16), v)
            x = x + out.reshape(batch, length, width) @ w["o"]
            h = layer_norm(x, p["n2"])
            x = x + (nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
        return cross_entropy(x @ params["words"].astype(BF16).T, tokens[:, 1:])

    kv = of(width, groups * head)
    layer = {"q": of(width, width), "k": kv, "v": kv, "o": of(width, width), "n1": of(width), "n2": of(width)}
    layer |= {"gate": of(width, 2816), "up": of(width, 2816), "down": of(2816, width)}
    return adam(loss, {"words": of(32000, width), "layers": [layer] * 6}, of(8, 513, dtype=I32))


def sparse_decoder() -> tuple[Any, Types]:
    sizes = Decoder(4, 512, 8, 8, 64, 1024, 16000, experts=Experts(count=8, chosen=2, hidden=1024))
    step = jax.jit(train_step(sizes), donate_argnums=0)
    return step, (train_state(sizes), of(8, 513, dtype=I32))


def diffusion_transformer() -> tuple[Any, Types]:
    width, heads, layers = 512, 8, 6

    def loss(params: Tree, latents: Any, noise: Any, time: Any) -> Any:
        phases = time[:, None] * jnp.exp(-jnp.arange(128) / 16)
        condition = nn.silu(jnp.concatenate([jnp.sin(phases), jnp.cos(phases)], -1) @ params["time"])
        x = (latents + noise * time[:, None, None]) @ params["in"] + params["places"]

        @jax.checkpoint
        def layer(x: Any, w: Tree) -> Any:
            parts = jnp.split((condition @ w["modulation"])[:, None], 6, -1)
            h = layer_norm(x, 1 + parts[0]) + parts[1]
            x = x + parts[2] * (attend(heads, *jnp.split(h @ w["qkv"], 3, -1)) @ w["o"])
            h = layer_norm(x, 1 + parts[3]) + parts[4]
            return x + parts[5] * (nn.gelu(h @ w["up"]) @ w["down"]), None

        x, _ = lax.scan(layer, x, params["layers"])
        return jnp.mean((x @ params["out"] - noise) ** 2)

    stacked = {"qkv": of(layers, width, 3 * width), "o": of(layers, width, width)}
    stacked |= {"up": of(layers, width, 4 * width), "down": of(layers, 4 * width, width)}
    stacked["modulation"] = of(layers, width, 6 * width)
    params = {"time": of(256, width), "in": of(16, width), "places": of(256, width)}
    params |= {"layers": stacked, "out": of(width, 16)}
    return adam(loss, params, of(32, 256, 16), of(32, 256, 16), of(32))


def policy_gradient() -> tuple[Any, Types]:
    def forward(params: Tree, x: Any) -> Any:
        h = jnp.tanh(jnp.tanh(x @ params["first"]) @ params["second"])
        return h @ params["actions"], (h @ params["value"])[..., 0]

    def loss(params: Tree, observations: Any, actions: Any, old: Any, rewards: Any) -> Any:
        logits, values = forward(params, observations)

        def backward(total: Any, row: Any) -> Any:
            reward, value, following = row
            total = reward + 0.99 * following - value + 0.95 * 0.99 * total
            return total, total

        following = jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])
        rows = lax.stop_gradient((rewards, values, following))
        _, advantages = lax.scan(backward, jnp.zeros(values.shape[1]), rows, reverse=True)
        chosen = jnp.take_along_axis(nn.log_softmax(logits), actions[..., None], -1)[..., 0]
        ratio = jnp.exp(chosen - old)
        surrogate = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
        return jnp.mean((values - lax.stop_gradient(advantages + values)) ** 2) - jnp.mean(surrogate)

    params = {"first": of(64, 512), "second": of(512, 512), "actions": of(512, 16), "value": of(512, 1)}
    steps, games = 128, 512
    rows = (of(steps, games, dtype=I32), of(steps, games), of(steps, games))
    return adam(loss, params, of(steps, games, 64), *rows)


def differential_equation() -> tuple[Any, Types]:
    def field(params: Tree, point: Any) -> Any:
        x = point
        for w in params[:-1]:
            x = jnp.tanh(x @ w)
        return (x @ params[-1])[0]

    def residual(params: Tree, point: Any) -> Any:
        gradient = jax.grad(field, 1)
        second = [
            jax.jvp(lambda p: gradient(params, p), (point,), (direction,))[1][axis]
            for axis, direction in enumerate(jnp.eye(2))
        ]
        return second[0] + second[1] - jnp.sin(point[0])

    def loss(params: Tree, points: Any) -> Any:
        return jnp.mean(jax.vmap(residual, (None, 0))(params, points) ** 2)

    return momentum(loss, [of(2, 256), of(256, 256), of(256, 256), of(256, 1)], of(16384, 2))


def factored_optimizer() -> tuple[Any, Types]:
    def loss(params: Tree, x: Any, y: Any) -> Any:
        for up, down in params:
            x = x + nn.gelu(x @ up) @ down
        return jnp.mean((x - y).astype(F32) ** 2)

    def step(state: Tree, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state["weights"], x, y)

        def update(w: Any, rows: Any, columns: Any, g: Any) -> Any:
            squares = g.astype(F32) ** 2
            rows, columns = 0.9 * rows + 0.1 * squares.mean(1), 0.9 * columns + 0.1 * squares.mean(0)
            scale = lax.rsqrt(rows[:, None] * columns[None] / rows.mean() + 1e-30)
            return (w - 1e-2 * (g * scale)).astype(w.dtype), rows, columns

        new = jax.tree.map(update, state["weights"], state["rows"], state["columns"], gradients)
        parts = [
            jax.tree.map(lambda leaf, part=part: leaf[part], new, is_leaf=lambda node: len(node) == 3)
            for part in range(3)
        ]
        return dict(zip(("weights", "rows", "columns"), parts, strict=True)), value

    width, hidden, layers = 2048, 8192, 3
    state = {"weights": [(of(width, hidden, dtype=BF16), of(hidden, width, dtype=BF16))] * layers}
    state |= {"rows": [(of(width), of(hidden))] * layers, "columns": [(of(hidden), of(width))] * layers}
    batch = of(4096, width, dtype=BF16)
    return jax.jit(step, donate_argnums=0), (state, batch, batch)


def dilated_convolutions() -> tuple[Any, Types]:
    width = 128

    def loss(params: Tree, waves: Any, labels: Any) -> Any:
        x, skips = waves[:, :, None] @ params["in"], 0.0
        for number, p in enumerate(params["layers"]):
            padded = jnp.pad(x, ((0, 0), (2**number, 0), (0, 0)))
            both = lax.conv_general_dilated(
                padded, p["conv"], (1,), "VALID", rhs_dilation=(2**number,), dimension_numbers=("NHC", "HIO", "NHC")
            )
            gate, value = jnp.split(both, 2, -1)
            h = nn.sigmoid(gate) * jnp.tanh(value)
            skips, x = skips + h @ p["skip"], x + h @ p["out"]
        return cross_entropy(nn.relu(skips) @ params["head"], labels)

    layer = {"conv": of(2, width, 2 * width), "skip": of(width, width), "out": of(width, width)}
    params = {"in": of(1, width), "layers": [layer] * 6, "head": of(width, 256)}
    return momentum(loss, params, of(8, 4096), of(8, 4096, dtype=I32))


def recurrent_language_model() -> tuple[Any, Types]:
    width, layers = 512, 2

    def loss(params: Tree, tokens: Any) -> Any:
        x = jnp.swapaxes(params["words"][tokens[:, :-1]], 0, 1)
        for p in params["layers"]:

            def cell(carry: Any, x: Any, p: Tree = p) -> Any:
                h, c = carry
                i, f, o, g = jnp.split(jnp.concatenate([x, h], -1) @ p["w"] + p["b"], 4, -1)
                c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
                h = nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            zeros = jnp.zeros((x.shape[1], width))
            _, x = lax.scan(cell, (zeros, zeros), x)
        return cross_entropy(x @ params["words"].T, jnp.swapaxes(tokens[:, 1:], 0, 1))

    layer = {"w": of(2 * width, 4 * width), "b": of(4 * width)}
    return momentum(loss, {"words": of(10000, width), "layers": [layer] * layers}, of(64, 65, dtype=I32))


def sharpness_aware() -> tuple[Any, Types]:
    def loss(params: Tree, x: Any, y: Any) -> Any:
        for w, b in params[:-1]:
            x = nn.relu(x @ w + b)
        return cross_entropy(x @ params[-1], y)

    def step(params: Tree, x: Any, y: Any) -> Any:
        gradients = jax.grad(loss)(params, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
        moved = jax.tree.map(lambda p, g: p + 0.05 * g / norm, params, gradients)
        value, gradients = jax.value_and_grad(loss)(moved, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    width = 2048
    params = [(of(1024, width), of(width)), *[(of(width, width), of(width))] * 3, of(width, 1000)]
    return jax.jit(step, donate_argnums=0), (params, of(8192, 1024), of(8192, dtype=I32))


STEPS = by_name(
    masked_language_model,
    residual_net,
    depthwise_net,
    state_space,
    translation,
    adapters,
    autoencoder,
    contrastive,
    radiance_field,
    graph_attention,
    decoding,
    grouped_queries,
    sparse_decoder,
    diffusion_transformer,
    policy_gradient,
    differential_equation,
    factored_optimizer,
    dilated_convolutions,
    recurrent_language_model,
) | {"encoder-decoder": encoder_decoder, "click-through": click_through, "sharpness-aware": sharpness_aware}
