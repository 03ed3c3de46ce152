"""A fourth set of held-out steps for `benchmarks/memory_predictions.py`, written without knowledge of the rules.

The author chose programs that people run and that the other sets lack, and had read neither the code of the memory
model nor any prediction of these steps. `STEPS` has the steps on one device by name, `SHARDED` those on a mesh, and
`MESHES` the shapes of these meshes.
"""

from itertools import pairwise
from typing import Any

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks.memory_held_out import Mesh, Tree, normalized, sharded, transformer_layer, transformer_weights
from benchmarks.memory_models import (
    BF16,
    F32,
    I32,
    Types,
    adam,
    attend,
    by_name,
    conv,
    cross_entropy,
    layer_norm,
    momentum,
    of,
)
from shardwise import lax, nn, random

I8, U8, U32 = jnp.int8, jnp.uint8, jnp.uint32


def group_norm(x: Any, scale: Any, groups: int = 8) -> Any:
    """Return images with normalized groups of channels."""
    grouped = x.astype(F32).reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    centered = grouped - grouped.mean((1, 3), keepdims=True)
    out = centered * lax.rsqrt((centered**2).mean((1, 3), keepdims=True) + 1e-5)
    return (out.reshape(x.shape) * scale).astype(x.dtype)


def moving_average(average: Tree, params: Tree, decay: float) -> Tree:
    return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)


def adam_update(params: Tree, gradients: Tree, means: Tree, squares: Tree, rate: float) -> tuple[Tree, Tree, Tree]:
    """Return the parameters, means and squares after an update of Adam without bias correction."""
    means = moving_average(means, gradients, 0.9)
    squares = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, squares, gradients)
    params = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-8), params, means, squares)
    return params, means, squares


def masked_autoencoder() -> tuple[Any, Types]:
    """Return an autoencoder of images that encodes a random quarter of the patches, and decodes the others."""
    width, narrow, batch, side, patch = 384, 192, 8, 14, 16
    patches, pixels = side * side, patch * patch * 3
    kept = patches // 4

    def loss(params: Tree, images: Any, seed: Any) -> Any:
        x = images.reshape(batch, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, patches, pixels)
        order = jnp.argsort(random.uniform(random.key(seed), (batch, patches)), 1)
        shown = jnp.take_along_axis(x, order[:, :kept, None], 1)
        h = (shown @ params["in"] + params["places"][order[:, :kept]]).astype(BF16)
        for w in params["encoder"]:
            h = transformer_layer(6, False, h, w)
        h = normalized(h) @ params["narrow"].astype(BF16)
        blank = jnp.broadcast_to(params["blank"].astype(BF16), (batch, patches - kept, narrow))
        h = jnp.take_along_axis(jnp.concatenate([h, blank], 1), jnp.argsort(order, 1)[..., None], 1)
        h = h + params["small_places"].astype(BF16)
        for w in params["decoder"]:
            h = transformer_layer(6, False, h, w)
        out = (normalized(h) @ params["out"].astype(BF16)).astype(F32)
        target = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
        hidden = jnp.argsort(order, 1) >= kept
        return jnp.sum(jnp.mean((out - target) ** 2, -1) * hidden) / jnp.sum(hidden)

    params = {"in": of(pixels, width), "places": of(patches, width), "encoder": [transformer_weights(width)] * 5}
    params |= {"narrow": of(width, narrow), "blank": of(narrow), "small_places": of(patches, narrow)}
    params |= {"decoder": [transformer_weights(narrow)] * 3, "out": of(narrow, pixels)}
    return adam(loss, params, of(batch, side * patch, side * patch, 3), of(dtype=U32))


def coupled_flow() -> tuple[Any, Types]:
    """Return a flow of images with mixed channels and affine couplings, which splits half of the channels off twice."""
    batch, size, depth, inner, levels = 16, 32, 4, 96, 3

    def couple(carry: Any, p: Tree) -> Any:
        x, density = carry
        x = (x + p["shift"]) * jnp.exp(p["log_scale"])
        x = x @ (jnp.eye(x.shape[-1]) + p["mix"])
        volume = jnp.sum(p["log_scale"]) + jnp.linalg.slogdet(jnp.eye(x.shape[-1]) + p["mix"])[1]
        left, right = jnp.split(x, 2, -1)
        h = nn.relu(conv(left, p["first"]))
        h = conv(nn.relu(h @ p["middle"]), p["last"])
        log_scale, shift = jnp.split(h, 2, -1)
        log_scale = jnp.tanh(log_scale)
        x = jnp.concatenate([left, (right + shift) * jnp.exp(log_scale)], -1)
        return (x, density + x.shape[1] * x.shape[2] * volume + jnp.sum(log_scale, (1, 2, 3))), None

    def loss(params: Tree, images: Any, seed: Any) -> Any:
        x = (images + random.uniform(random.key(seed), images.shape)) / 256 - 0.5
        density = jnp.zeros(batch)
        for level, stack in enumerate(params):
            height, channels = x.shape[1] // 2, x.shape[-1]
            x = x.reshape(batch, height, 2, height, 2, channels).transpose(0, 1, 3, 2, 4, 5)
            x = x.reshape(batch, height, height, 4 * channels)
            (x, density), _ = lax.scan(couple, (x, density), stack)
            if level < levels - 1:
                x, noise = jnp.split(x, 2, -1)
                density = density - 0.5 * jnp.sum(noise**2, (1, 2, 3))
        density = density - 0.5 * jnp.sum(x**2, (1, 2, 3))
        return -jnp.mean(density) / (size * size * 3)

    params, channels = [], 3
    for _ in range(levels):
        channels *= 4
        stack = {"shift": of(depth, channels), "log_scale": of(depth, channels), "mix": of(depth, channels, channels)}
        stack |= {"first": of(depth, 3, 3, channels // 2, inner), "middle": of(depth, inner, inner)}
        params.append(stack | {"last": of(depth, 3, 3, inner, channels)})
        channels //= 2
    return adam(loss, params, of(batch, size, size, 3, dtype=U8), of(dtype=U32))


def splatted_scene() -> tuple[Any, Types]:
    """Return a step on Gaussians in space, which are projected, ordered by depth, and blended in tiles of an image."""
    splats, side, tile, most = 4096, 8, 16, 96

    def projected(params: Tree, camera: Tree) -> tuple[Any, ...]:
        a, b, c, d = jnp.moveaxis(
            params["turns"] / jnp.linalg.norm(params["turns"] + 1e-3, axis=-1, keepdims=True), -1, 0
        )
        rows = [1 - 2 * (c * c + d * d), 2 * (b * c - a * d), 2 * (b * d + a * c)]
        rows += [2 * (b * c + a * d), 1 - 2 * (b * b + d * d), 2 * (c * d - a * b)]
        rows += [2 * (b * d - a * c), 2 * (c * d + a * b), 1 - 2 * (b * b + c * c)]
        axes = jnp.stack(rows, -1).reshape(splats, 3, 3) * jnp.exp(params["scales"])[:, None]
        points = params["points"] @ camera["turn"].T + camera["shift"]
        depths = jnp.maximum(points[:, 2] + 4, 0.2)
        middles = points[:, :2] / depths[:, None]
        zero = jnp.zeros_like(depths)
        slopes = jnp.stack([1 / depths, zero, -middles[:, 0] / depths, zero, 1 / depths, -middles[:, 1] / depths], -1)
        seen = slopes.reshape(splats, 2, 3) @ camera["turn"] @ axes
        spreads = seen @ seen.swapaxes(1, 2) + 1e-3 * jnp.eye(2)
        return middles, depths, spreads

    def loss(params: Tree, camera: Tree, image: Any) -> Any:
        middles, depths, spreads = projected(params, camera)
        determinants = spreads[:, 0, 0] * spreads[:, 1, 1] - spreads[:, 0, 1] ** 2
        reach = 3 * jnp.sqrt(spreads[:, 0, 0] + spreads[:, 1, 1])
        colors, opacities = nn.sigmoid(params["colors"]), nn.sigmoid(params["opacities"])

        def render(corner: Any) -> Any:
            center = corner + 1 / side
            near = jnp.all(jnp.abs(middles - center) < (reach + 1 / side)[:, None], -1)
            keys, chosen = lax.top_k(jnp.where(near, -lax.stop_gradient(depths), -jnp.inf), most)
            steps = (jnp.arange(tile) + 0.5) * 2 / (side * tile)
            pixels = corner + jnp.stack(jnp.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2)
            x, y = jnp.moveaxis(pixels[:, None] - middles[chosen], -1, 0)
            spread = spreads[chosen]
            power = spread[:, 1, 1] * x * x - 2 * spread[:, 0, 1] * x * y + spread[:, 0, 0] * y * y
            alpha = opacities[chosen] * jnp.exp(-0.5 * power / determinants[chosen])
            alpha = jnp.where(keys > -jnp.inf, jnp.minimum(alpha, 0.99), 0)
            passing = jnp.cumprod(1 - alpha, -1)
            before = jnp.pad(passing[:, :-1], ((0, 0), (1, 0)), constant_values=1)
            return (before * alpha) @ colors[chosen] + passing[:, -1:] * params["background"]

        line = jnp.arange(side) * 2 / side - 1
        corners = jnp.stack(jnp.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
        tiles = jax.vmap(render)(corners).reshape(side, side, tile, tile, 3)
        return jnp.mean(jnp.abs(tiles.swapaxes(1, 2).reshape(image.shape) - image))

    params = {"points": of(splats, 3), "turns": of(splats, 4), "scales": of(splats, 3), "colors": of(splats, 3)}
    params |= {"opacities": of(splats), "background": of(3)}
    return adam(loss, params, {"turn": of(3, 3), "shift": of(3)}, of(side * tile, side * tile, 3))


def sampled_neighbors() -> tuple[Any, Types]:
    """Return a classifier of nodes of a large graph, which draws neighbors and their neighbors in the step itself."""
    nodes, edges, features, width, batch, fans, classes = 65536, 1 << 20, 128, 256, 512, (12, 8), 47

    def draw(key: Any, offsets: Any, targets: Any, nodes: Any, count: int) -> Any:
        start, degree = offsets[nodes], offsets[nodes + 1] - offsets[nodes]
        chosen = (random.uniform(key, (*nodes.shape, count)) * degree[..., None]).astype(I32)
        drawn = targets[jnp.minimum(start[..., None] + chosen, edges - 1)]
        return jnp.where(degree[..., None] > 0, drawn, nodes[..., None])

    def combine(p: Tree, own: Any, others: Any) -> Any:
        pooled = nn.relu(others @ p["pool"]).max(-2)
        x = nn.relu(own @ p["own"] + pooled @ p["others"])
        return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-6)

    def loss(params: Tree, table: Any, offsets: Any, targets: Any, nodes: Any, labels: Any, seed: Any) -> Any:
        one, two = random.split(random.key(seed))
        first = draw(one, offsets, targets, nodes, fans[0])
        second = draw(two, offsets, targets, first, fans[1])
        near, middle, far = (table[index].astype(F32) for index in (nodes, first, second))
        inner = combine(params["one"], near, middle)
        outer = combine(params["one"], middle, far)
        return cross_entropy(combine(params["two"], inner, outer) @ params["out"], labels)

    def weights(inner: int) -> Tree:
        return {"pool": of(inner, width), "own": of(inner, width), "others": of(width, width)}

    params = {"one": weights(features), "two": weights(width), "out": of(width, classes)}
    graph = (of(nodes, features, dtype=BF16), of(nodes + 1, dtype=I32), of(edges, dtype=I32))
    return momentum(loss, params, *graph, of(batch, dtype=I32), of(batch, dtype=I32), of(dtype=U32))


def transducer() -> tuple[Any, Types]:
    """Return a recognizer of speech whose scores join every frame with every prefix of the text, with LSTM encoders."""
    batch, frames, bands, letters, words, width = 4, 96, 80, 20, 512, 256

    def recurrent(p: Tree, x: Any) -> Any:
        def cell(carry: Any, row: Any) -> Any:
            h, memory = carry
            i, f, g, o = jnp.split(row + h @ p["h"], 4, -1)
            memory = nn.sigmoid(f + 1) * memory + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(memory)
            return (h, memory), h

        zero = jnp.zeros((batch, width))
        return lax.scan(cell, (zero, zero), (x @ p["x"]).swapaxes(0, 1))[1].swapaxes(0, 1)

    def loss(params: Tree, sounds: Any, labels: Any) -> Any:
        x = sounds
        for p in params["encoder"]:
            x = recurrent(p, x)
        prefixes = recurrent(params["predictor"], params["words"][jnp.pad(labels, ((0, 0), (1, 0)))])
        joined = jnp.tanh((x @ params["left"])[:, :, None] + (prefixes @ params["right"])[:, None])
        shares = nn.log_softmax(joined @ params["out"])
        blank = shares[..., 0]
        spoken = jnp.take_along_axis(shares[:, :, :-1], labels[:, None, :, None], -1)[..., 0]
        spoken = jnp.pad(spoken, ((0, 0), (0, 0), (0, 1)), constant_values=-1e9)
        # Diagonal `n` has all pairs of frame `n - u` and prefix `u`.
        places = jnp.arange(frames + letters)[:, None] - jnp.arange(letters + 1)
        inside = (places >= 0) & (places < frames)
        columns = jnp.arange(letters + 1)
        frame = jnp.clip(places, 0, frames - 1)
        blank, spoken = (jnp.where(inside, y[:, frame, columns], -1e9).swapaxes(0, 1) for y in (blank, spoken))

        def advance(alpha: Any, row: Any) -> Any:
            stay, move = alpha + row[0], alpha + row[1]
            return jnp.logaddexp(stay, jnp.pad(move[:, :-1], ((0, 0), (1, 0)), constant_values=-1e9)), None

        start = jnp.full((batch, letters + 1), -1e9).at[:, 0].set(0.0)
        last, _ = lax.scan(advance, start, (blank, spoken))
        return -jnp.mean(last[:, -1]) / frames

    def weights(inner: int) -> Tree:
        return {"x": of(inner, 4 * width), "h": of(width, 4 * width)}

    params = {"encoder": [weights(bands), weights(width)], "predictor": weights(width), "words": of(words, width)}
    params |= {"left": of(width, width), "right": of(width, width), "out": of(width, words)}
    return adam(loss, params, of(batch, frames, bands), of(batch, letters, dtype=I32))


def momentum_contrast() -> tuple[Any, Types]:
    """Return a step on two views of images, whose negatives are a queue of features of a slow encoder."""
    batch, size, features, room = 32, 64, 128, 16384

    def encode(params: Tree, images: Any) -> Any:
        x = nn.relu(group_norm(conv(images, params["stem"], 2), params["scale"]))
        for p in params["blocks"]:
            h = nn.relu(group_norm(conv(x, p["one"], 2), p["s1"]))
            h = group_norm(conv(h, p["two"]), p["s2"])
            x = nn.relu(h + conv(x, p["skip"], 2))
        x = nn.relu(x.mean((1, 2)) @ params["hidden"]) @ params["out"]
        return x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6)

    def loss(params: Tree, keys: Any, queue: Any, images: Any) -> Any:
        queries = encode(params, images)
        logits = jnp.concatenate([jnp.sum(queries * keys, -1, keepdims=True), queries @ queue.T], -1) / 0.2
        return cross_entropy(logits, jnp.zeros(batch, I32))

    def step(state: Tree, one: Any, two: Any) -> Any:
        params, slow, speeds, queue, place = state
        slow = moving_average(slow, params, 0.999)
        keys = encode(slow, two)
        value, gradients = jax.value_and_grad(loss)(params, keys, queue, one)
        speeds = jax.tree.map(lambda s, p, g: 0.9 * s + g + 1e-4 * p, speeds, params, gradients)
        params = jax.tree.map(lambda p, s: p - 0.03 * s, params, speeds)
        queue = lax.dynamic_update_slice(queue, keys, (place, 0))
        return (params, slow, speeds, queue, (place + batch) % room), value

    widths = (64, 96, 128, 192)
    blocks = []
    for inner, outer in pairwise(widths):
        block = {"one": of(3, 3, inner, outer), "two": of(3, 3, outer, outer), "skip": of(1, 1, inner, outer)}
        blocks.append(block | {"s1": of(outer), "s2": of(outer)})
    params = {"stem": of(5, 5, 3, widths[0]), "scale": of(widths[0]), "blocks": blocks}
    params |= {"hidden": of(widths[-1], 512), "out": of(512, features)}
    views = of(batch, size, size, 3)
    state = (params, params, params, of(room, features), of(dtype=I32))
    return jax.jit(step, donate_argnums=0), (state, views, views)


def taught_decoder() -> tuple[Any, Types]:
    """Return a step of a small decoder that learns the most likely tokens of a large one, and the text."""
    words, batch, length, most, warmth = 8000, 2, 256, 48, 2.0

    def logits(heads: int, params: Tree, tokens: Any) -> Any:
        table = params["words"].astype(BF16)
        x, _ = lax.scan(lambda x, w: (transformer_layer(heads, True, x, w), None), table[tokens], params["layers"])
        return (normalized(x) @ table.T).astype(F32)

    def loss(params: Tree, teacher: Tree, tokens: Any) -> Any:
        own, inputs = logits(4, params, tokens[:, :-1]), tokens[:, :-1]
        best, chosen = lax.top_k(logits(8, teacher, inputs), most)
        wanted = nn.softmax(lax.stop_gradient(best) / warmth)
        shares = nn.log_softmax(own / warmth)
        near = jnp.take_along_axis(shares, chosen, -1)
        divergence = jnp.sum(wanted * (jnp.log(wanted + 1e-9) - near), -1)
        return warmth**2 * jnp.mean(divergence) + 0.1 * cross_entropy(own, tokens[:, 1:])

    params = {"words": of(words, 256), "layers": transformer_weights(256, 4)}
    teacher = {"words": of(words, 512, dtype=BF16), "layers": transformer_weights(512, 8, BF16)}
    return adam(loss, params, teacher, of(batch, length + 1, dtype=I32))


def latent_bottleneck() -> tuple[Any, Types]:
    """Return a classifier whose few latent vectors read all pixels several times, with the same weights."""
    batch, side, latents, width, inner, bands, rounds = 4, 56, 128, 256, 128, 16, 3
    entries = 3 + 2 + 4 * bands

    def loss(params: Tree, images: Any, labels: Any) -> Any:
        line = jnp.linspace(-1, 1, side)
        places = jnp.stack(jnp.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
        waves = (places[..., None] * jnp.linspace(1, side / 2, bands) * jnp.pi).reshape(side * side, -1)
        places = jnp.concatenate([places, jnp.sin(waves), jnp.cos(waves)], -1)
        pixels = images.reshape(batch, side * side, 3)
        pixels = jnp.concatenate([pixels, jnp.broadcast_to(places, (batch, *places.shape))], -1)
        pixels = normalized(pixels)
        keys, values = pixels @ params["k"], pixels @ params["v"]
        x = jnp.broadcast_to(params["latents"], (batch, latents, width))
        for _ in range(rounds):
            x = x + attend(2, normalized(x) @ params["q"], keys, values) @ params["o"]
            for w in params["layers"]:
                x = transformer_layer(8, False, x, w)
        return cross_entropy(normalized(x).mean(1) @ params["head"], labels)

    params = {"latents": of(latents, width), "q": of(width, inner), "k": of(entries, inner), "v": of(entries, inner)}
    params |= {"o": of(inner, width), "layers": [transformer_weights(width)] * 2, "head": of(width, 1000)}
    return adam(loss, params, of(batch, side, side, 3), of(batch, dtype=I32))


def feature_tokens() -> tuple[Any, Types]:
    """Return a step of Lion on rows of a table, with attention between features and between rows, and averages."""
    rows, numbers, kinds, entries, width = 160, 20, 11, 500, 64
    columns = numbers + kinds + 1

    def loss(params: Tree, values: Any, present: Any, categories: Any, targets: Any) -> Any:
        given = jnp.where(present[..., None], values[..., None] * params["slopes"] + params["shifts"], params["absent"])
        named = params["tables"][categories + entries * jnp.arange(kinds)]
        first = jnp.broadcast_to(params["summary"], (rows, 1, width))
        x = jnp.concatenate([first, given, named], 1)
        for p in params["layers"]:
            x = transformer_layer(8, False, x, p["features"])
            x = transformer_layer(2, False, x.swapaxes(0, 1), p["rows"]).swapaxes(0, 1)
        out = layer_norm(x[:, 0], params["norm"]) @ params["head"]
        mean, log_deviation = out[:, 0], out[:, 1]
        return jnp.mean(0.5 * ((targets - mean) * jnp.exp(-log_deviation)) ** 2 + log_deviation)

    def step(state: Tree, *batch: Any) -> Any:
        params, means, averages = state
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        signs = jax.tree.map(lambda m, g: jnp.sign(0.9 * m + 0.1 * g), means, gradients)
        params = jax.tree.map(lambda p, s: p - 1e-4 * (s + 0.1 * p), params, signs)
        return (params, moving_average(means, gradients, 0.99), moving_average(averages, params, 0.999)), value

    layer = {"features": transformer_weights(width), "rows": transformer_weights(width)}
    params = {"slopes": of(numbers, width), "shifts": of(numbers, width), "absent": of(numbers, width)}
    params |= {"tables": of(kinds * entries, width), "summary": of(width), "norm": of(width), "head": of(width, 2)}
    params["layers"] = [layer] * 3
    assert columns == 32
    batch = (of(rows, numbers), of(rows, numbers, dtype=bool), of(rows, kinds, dtype=I32), of(rows))
    return jax.jit(step, donate_argnums=0), ((params,) * 3, *batch)


def delta_rule() -> tuple[Any, Types]:
    """Return a decoder whose heads correct a matrix of memories token by token, computed for chunks by solves."""
    width, heads, chunk, layers, words, batch, length = 384, 6, 64, 2, 6000, 2, 512
    head, chunks = width // heads, length // chunk

    def remember(q: Any, k: Any, v: Any, rate: Any) -> Any:
        q, k, v = (y.reshape(batch, chunks, chunk, heads, head).transpose(1, 0, 3, 2, 4) for y in (q, k, v))
        rate = rate.reshape(batch, chunks, chunk, heads).transpose(1, 0, 3, 2)[..., None]
        lower = jnp.tril(jnp.ones((chunk, chunk), bool), -1)
        overlaps = jnp.where(lower, (rate * k) @ k.swapaxes(-1, -2), 0) + jnp.eye(chunk)
        solved = lax.linalg.triangular_solve(
            overlaps, jnp.concatenate([rate * k, rate * v], -1), left_side=True, lower=True
        )
        scores = jnp.where(lower | jnp.eye(chunk, dtype=bool), q @ k.swapaxes(-1, -2), 0)

        def advance(memory: Any, row: Any) -> Any:
            q, k, solved, scores = row
            read, write = jnp.split(solved, 2, -1)
            news = write - read @ memory
            return memory + k.swapaxes(-1, -2) @ news, q @ memory + scores @ news

        _, out = lax.scan(advance, jnp.zeros((batch, heads, head, head)), (q, k, solved, scores))
        return out.transpose(1, 0, 3, 2, 4).reshape(batch, length, width)

    def loss(params: Tree, tokens: Any) -> Any:
        x = params["words"][tokens[:, :-1]]
        for p in params["layers"]:
            h = normalized(x)
            q, k, v = (nn.silu(h @ p[name]).reshape(batch, length, heads, head) for name in "qkv")
            q, k = (y * lax.rsqrt(jnp.sum(y * y, -1, keepdims=True) + 1e-6) for y in (q, k))
            out = remember(q, k, v, nn.sigmoid(h @ p["rate"]))
            x = x + (normalized(out) * nn.silu(h @ p["gate"])) @ p["o"]
            x = x + nn.relu(normalized(x) @ p["up"]) ** 2 @ p["down"]
        return cross_entropy(normalized(x) @ params["words"].T, tokens[:, 1:])

    layer = {**transformer_weights(width), "gate": of(width, width), "rate": of(width, heads)}
    params = {"words": of(words, width), "layers": [layer] * layers}
    return adam(loss, params, of(batch, length + 1, dtype=I32))


def mean_flow() -> tuple[Any, Types]:
    """Return a step of a generator in one step, whose target has a derivative of the net in forward mode."""
    batch, side, channels, width, blocks = 6, 32, 4, 128, 4

    def velocity(params: Tree, x: Any, start: Any, end: Any) -> Any:
        rates = jnp.exp(-jnp.arange(32) / 32 * 8) * 100
        waves = jnp.concatenate([start[:, None] * rates, end[:, None] * rates], -1)
        times = nn.silu(jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1) @ params["times"])
        x = conv(x, params["in"])
        for p in params["blocks"]:
            shift, scale, gate = jnp.split((times @ p["modulate"])[:, None, None], 3, -1)
            h = conv(x, p["depth"], groups=width)
            h = h * lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6) * (1 + scale) + shift
            x = x + gate * (nn.gelu(h @ p["up"]) @ p["down"])
        return conv(x, params["out"])

    def loss(params: Tree, images: Any, seed: Any) -> Any:
        noise_key, time_key = random.split(random.key(seed))
        noise = random.normal(noise_key, images.shape)
        start, end = jnp.sort(nn.sigmoid(random.normal(time_key, (2, batch)) - 0.4), 0)
        x = images + end[:, None, None, None] * (noise - images)
        primals, tangents = (x, start, end), (noise - images, jnp.zeros_like(start), jnp.ones_like(end))
        mean, change = jax.jvp(lambda *inputs: velocity(params, *inputs), primals, tangents)
        target = lax.stop_gradient(noise - images - (end - start)[:, None, None, None] * change)
        errors = jnp.sum((mean - target) ** 2, (1, 2, 3))
        return jnp.mean(errors / lax.stop_gradient(errors + 1e-3))

    def step(state: Tree, images: Any, seed: Any) -> Any:
        params, means, squares, averages = state
        value, gradients = jax.value_and_grad(loss)(params, images, seed)
        params, means, squares = adam_update(params, gradients, means, squares, 1e-4)
        return (params, means, squares, moving_average(averages, params, 0.9999)), value

    block = {"modulate": of(width, 3 * width), "depth": of(5, 5, 1, width), "up": of(width, 3 * width)}
    block["down"] = of(3 * width, width)
    params = {"times": of(128, width), "in": of(3, 3, channels, width), "blocks": [block] * blocks}
    params["out"] = of(3, 3, width, channels)
    return jax.jit(step, donate_argnums=0), ((params,) * 4, of(batch, side, side, channels), of(dtype=U32))


def energy_model() -> tuple[Any, Types]:
    """Return a step of a model of energies, whose samples walk along its gradient from chains of earlier steps."""
    batch, size, room, walk = 32, 32, 1024, 16

    def energies(params: Tree, x: Any) -> Any:
        for number, kernel in enumerate(params["kernels"]):
            x = nn.silu(conv(x, kernel, 1 + number % 2))
        return (x.sum((1, 2)) @ params["out"])[:, 0]

    def loss(params: Tree, data: Any, samples: Any) -> Any:
        real, drawn = energies(params, data), energies(params, samples)
        return jnp.mean(real) - jnp.mean(drawn) + 0.1 * jnp.mean(real**2 + drawn**2)

    def step(state: Tree, data: Any, seed: Any) -> Any:
        params, means, squares, chains = state
        where_key, fresh_key, start_key, walk_key = random.split(random.key(seed), 4)
        where = random.randint(where_key, (batch,), 0, room)
        fresh = random.bernoulli(fresh_key, 0.05, (batch, 1, 1, 1))
        x = jnp.where(fresh, random.uniform(start_key, data.shape), chains[where].astype(F32) / 255)

        def move(x: Any, key: Any) -> Any:
            slope = jax.grad(lambda x: jnp.sum(energies(params, x)))(x)
            x = x - 10 * jnp.clip(slope, -0.01, 0.01) + 0.005 * random.normal(key, x.shape)
            return jnp.clip(x, 0, 1), None

        x, _ = lax.scan(move, x, random.split(walk_key, walk))
        value, gradients = jax.value_and_grad(loss)(params, data, x)
        params, means, squares = adam_update(params, gradients, means, squares, 1e-4)
        chains = chains.at[where].set((255 * x + 0.5).astype(U8))
        return (params, means, squares, chains), value

    widths = (3, 64, 96, 96, 128, 128)
    params = {"kernels": [of(3, 3, a, b) for a, b in pairwise(widths)], "out": of(widths[-1], 1)}
    state = (params, params, params, of(room, size, size, 3, dtype=U8))
    return jax.jit(step, donate_argnums=0), (state, of(batch, size, size, 3), of(dtype=U32))


def particle_filter() -> tuple[Any, Types]:
    """Return a step on the likelihood of volatile series, by particles that are weighted and drawn again."""
    series, particles, length = 16, 1024, 96

    def likelihood(params: Tree, observed: Any, key: Any) -> Any:
        stay, spread = jnp.tanh(params["stay"]), nn.softplus(params["spread"])

        def resample(key: Any, weights: Any) -> Any:
            points = (jnp.arange(particles) + random.uniform(key)) / particles
            return jnp.minimum(jnp.searchsorted(jnp.cumsum(weights), points), particles - 1)

        def advance(x: Any, row: Any) -> Any:
            value, key = row
            noise_key, draw_key = random.split(key)
            x = params["level"] + stay * (x - params["level"]) + spread * random.normal(noise_key, (particles,))
            logs = -0.5 * (x + value**2 * jnp.exp(-x))
            most = lax.stop_gradient(logs.max())
            weights = jnp.exp(logs - most)
            total = jnp.sum(weights)
            x = x[resample(draw_key, lax.stop_gradient(weights / total))]
            return x, most + jnp.log(total / particles)

        start = params["level"] + spread * random.normal(key, (particles,))
        _, terms = lax.scan(advance, start, (observed, random.split(key, length)))
        return jnp.sum(terms)

    def loss(params: Tree, observed: Any, seed: Any) -> Any:
        keys = random.split(random.key(seed), series)
        return -jnp.mean(jax.vmap(likelihood)(params, observed, keys)) / length

    params = {"level": of(series), "stay": of(series), "spread": of(series)}
    return adam(loss, params, of(series, length), of(dtype=U32))


def rolling_cache() -> tuple[Any, Types]:
    """Return eight tokens for each sequence, from a ring of keys and values of eight bits, drawn from the likeliest."""
    width, heads, groups, head, hidden, layers, words = 768, 12, 4, 64, 2048, 3, 16000
    batch, window, count, share = 8, 1024, 8, 0.9

    def quantized(x: Any) -> tuple[Any, Any]:
        scale = jnp.max(jnp.abs(x.astype(F32)), -1, keepdims=True) / 127 + 1e-8
        return jnp.round(x.astype(F32) / scale).astype(I8), scale[..., 0].astype(BF16)

    def step(cache: Any, params: Tree, tokens: Any, place: Any, seed: Any) -> Any:
        def layer(x: Any, row: Any) -> Any:
            w, *kept, place = row
            h = normalized(x)
            q, k, v = jnp.split(h @ w["qkv"], (heads * head, (heads + groups) * head), -1)
            slot = place % window
            fresh = []
            for name, new in (("k", k), ("v", v)):
                number = "kv".index(name)
                integers, scales = quantized(new.reshape(batch, 1, groups, head))
                fresh.append(lax.dynamic_update_slice(kept[2 * number], integers, (0, slot, 0, 0)))
                fresh.append(lax.dynamic_update_slice(kept[2 * number + 1], scales, (0, slot, 0)))
            keys = fresh[0].astype(BF16)
            scores = jnp.einsum("bgqd,bkgd->bgqk", q.reshape(batch, groups, heads // groups, head), keys).astype(F32)
            scores = scores * fresh[1].transpose(0, 2, 1)[:, :, None] * head**-0.5
            scores = jnp.where(jnp.arange(window) <= place, scores, -1e9)
            mixed = nn.softmax(scores) * fresh[3].transpose(0, 2, 1)[:, :, None]
            out = jnp.einsum("bgqk,bkgd->bgqd", mixed.astype(BF16), fresh[2].astype(BF16))
            x = x + out.reshape(batch, heads * head) @ w["o"]
            gate, up = jnp.split(normalized(x) @ w["up"], 2, -1)
            return x + (nn.silu(gate) * up) @ w["down"], tuple(fresh)

        def draw(logits: Any, key: Any) -> Any:
            order = jnp.argsort(-logits, -1)
            ranked = jnp.take_along_axis(nn.softmax(logits / 0.8), order, -1)
            ranked = jnp.where(jnp.cumsum(ranked, -1) - ranked < share, ranked, 0)
            chosen = random.categorical(key, jnp.log(ranked + 1e-20))
            return jnp.take_along_axis(order, chosen[:, None], -1)[:, 0]

        def advance(carry: Any, key: Any) -> Any:
            cache, tokens, place = carry
            places = jnp.broadcast_to(place, (layers,))
            x, cache = lax.scan(layer, params["words"][tokens], (params["layers"], *cache, places))
            tokens = draw((normalized(x) @ params["words"].T).astype(F32), key)
            return (cache, tokens, place + 1), tokens

        (cache, _, place), out = lax.scan(advance, (cache, tokens, place), random.split(random.key(seed), count))
        return cache, out.T, place

    stack = {"qkv": (width, (heads + 2 * groups) * head), "o": (heads * head, width), "up": (width, 2 * hidden)}
    stack["down"] = (hidden, width)
    weights = {name: of(layers, *sizes, dtype=BF16) for name, sizes in stack.items()}
    params = {"words": of(words, width, dtype=BF16), "layers": weights}
    integers = of(layers, batch, window, groups, head, dtype=I8)
    scales = of(layers, batch, window, groups, dtype=BF16)
    types = ((integers, scales, integers, scales), params, of(batch, dtype=I32), of(dtype=I32), of(dtype=U32))
    return jax.jit(step, donate_argnums=0), types


def routed_depth() -> tuple[Any, Types]:
    """Return a decoder in which every other layer reads only the tokens that a router selects."""
    width, pairs, words, batch, length = 384, 2, 6000, 2, 512
    kept = length // 8

    def loss(params: Tree, tokens: Any) -> Any:
        x = params["words"].astype(BF16)[tokens[:, :-1]]
        extra = jnp.zeros(())
        for p in params["pairs"]:
            x = transformer_layer(6, True, x, p["all"])
            scores = (x @ p["router"].astype(BF16)).astype(F32)
            _, chosen = lax.top_k(scores, kept)
            chosen = jnp.sort(chosen, -1)
            rows = jnp.take_along_axis(x, chosen[..., None], 1)
            gates = nn.sigmoid(jnp.take_along_axis(scores, chosen, 1))[..., None].astype(BF16)
            news = (transformer_layer(6, True, rows, p["some"]) - rows) * gates
            x = x.at[jnp.arange(batch)[:, None], chosen].add(news)
            selected = jnp.zeros((batch, length)).at[jnp.arange(batch)[:, None], chosen].set(1.0)
            guess = lax.stop_gradient(x) @ p["guess"].astype(BF16)
            extra = extra + jnp.mean(nn.softplus(guess.astype(F32)) - selected * guess.astype(F32))
        return cross_entropy(normalized(x) @ params["words"].astype(BF16).T, tokens[:, 1:]) + 0.01 * extra

    pair = {"all": transformer_weights(width), "some": transformer_weights(width), "router": of(width)}
    params = {"words": of(words, width), "pairs": [{**pair, "guess": of(width)}] * pairs}
    return adam(loss, params, of(batch, length + 1, dtype=I32))


def alternating_least_squares() -> tuple[Any, Types]:
    """Return factors of users and items after solves for all users, and then for all items, in chunks."""
    users, items, rank, viewed, viewers, chunk = 16384, 4096, 64, 32, 96, 1024

    def solved(table: Any, others: Any, counts: Any) -> Any:
        common = table.T @ table + 0.1 * jnp.eye(rank)

        def solve(rows: Any) -> Any:
            others, counts = rows
            near = table[jnp.maximum(others, 0)]
            trust = jnp.where(others >= 0, jnp.log1p(counts), 0)
            matrices = common + jnp.einsum("rnk,rn,rnl->rkl", near, trust, near)
            right = jnp.einsum("rnk,rn->rk", near, trust + (others >= 0))
            factors = jnp.linalg.cholesky(matrices)
            half = lax.linalg.triangular_solve(factors, right[..., None], left_side=True, lower=True)
            return lax.linalg.triangular_solve(factors, half, left_side=True, lower=True, transpose_a=True)[..., 0]

        blocks = (x.reshape(-1, chunk, x.shape[-1]) for x in (others, counts))
        return lax.map(solve, tuple(blocks)).reshape(-1, rank)

    def step(state: Tree, own: Tree, reverse: Tree) -> Any:
        by_user = solved(state["items"], own["others"], own["counts"])
        by_item = solved(by_user, reverse["others"], reverse["counts"])
        guesses = jnp.einsum("uk,unk->un", by_user, by_item[jnp.maximum(own["others"], 0)])
        error = jnp.mean((own["others"] >= 0) * (1 + jnp.log1p(own["counts"])) * (1 - guesses) ** 2)
        return {"users": by_user, "items": by_item}, error

    state = {"users": of(users, rank), "items": of(items, rank)}
    own = {"others": of(users, viewed, dtype=I32), "counts": of(users, viewed)}
    reverse = {"others": of(items, viewers, dtype=I32), "counts": of(items, viewers)}
    return jax.jit(step, donate_argnums=0), (state, own, reverse)


def style_transfer() -> tuple[Any, Types]:
    """Return an image after ten steps of Adam on its pixels, toward the features and correlations of two others."""
    size, steps = 160, 10

    def features(kernels: Tree, image: Any) -> list[Any]:
        x, found = image, []
        for stage in kernels:
            for kernel in stage:
                x = nn.relu(conv(x, kernel))
            found.append(x)
            x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        return found

    def correlations(x: Any) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        return rows.T @ rows / rows.shape[0]

    def step(state: Tree, kernels: Tree, content: Any, style: Any) -> Any:
        wanted = features(kernels, content)[-1]
        styles = [correlations(x) for x in features(kernels, style)]

        def loss(image: Any) -> Any:
            own = features(kernels, image)
            rough = jnp.mean((image[:, 1:] - image[:, :-1]) ** 2) + jnp.mean((image[:, :, 1:] - image[:, :, :-1]) ** 2)
            near = sum(jnp.mean((correlations(x) - y) ** 2) for x, y in zip(own, styles, strict=True))
            return jnp.mean((own[-1] - wanted) ** 2) + 100 * near + rough

        def advance(state: Any, _: Any) -> Any:
            value, slope = jax.value_and_grad(loss)(state[0])
            image, mean, square = adam_update(state[0], slope, *state[1:], 0.02)
            return (jnp.clip(image, 0, 1), mean, square), value

        return lax.scan(advance, state, None, length=steps)

    widths = (3, 32, 64, 128)
    kernels = [(of(3, 3, a, b), of(3, 3, b, b)) for a, b in pairwise(widths)]
    image = of(1, size, size, 3)
    return jax.jit(step, donate_argnums=0), ((image, image, image), kernels, image, image)


def radar_forecast() -> tuple[Any, Types]:
    """Return a step of a forecast of images, whose recurrent cells are convolutions, fed with its own outputs."""
    batch, side, inner, given, wanted = 4, 24, 32, 6, 5

    def cell(p: Tree, carry: Any, x: Any) -> Any:
        h, memory = carry
        both = conv(jnp.concatenate([x, h], -1), p["kernel"]) + p["bias"]
        i, f, g, o = jnp.split(both, 4, -1)
        memory = nn.sigmoid(f) * memory + nn.sigmoid(i) * jnp.tanh(g)
        return nn.sigmoid(o) * jnp.tanh(memory), memory

    def loss(params: Tree, frames: Any) -> Any:
        def advance(states: Any, frame: Any) -> Any:
            x = conv(frame, params["in"], 2)
            news = []
            for p, state in zip(params["cells"], states, strict=True):
                news.append(cell(p, state, x))
                x = news[-1][0]
            x = jax.image.resize(x, (batch, 2 * side, 2 * side, inner), "bilinear")
            return tuple(news), nn.sigmoid(conv(x, params["out"]))

        def extend(carry: Any, _: Any) -> Any:
            states, frame = carry
            states, frame = advance(states, frame)
            return (states, frame), frame

        zero = jnp.zeros((batch, side, side, inner))
        states, early = lax.scan(advance, ((zero, zero),) * len(params["cells"]), frames[:given])
        (_, _), late = lax.scan(jax.checkpoint(extend), (states, early[-1]), None, length=wanted - 1)
        outs = jnp.concatenate([early, late])
        heavy = 1 + 4 * (frames[1:] > 0.5)
        return jnp.mean(heavy * (jnp.abs(outs - frames[1:]) + (outs - frames[1:]) ** 2))

    cells = [{"kernel": of(3, 3, 2 * inner, 4 * inner), "bias": of(4 * inner)}] * 2
    params = {"in": of(3, 3, 1, inner), "cells": cells, "out": of(3, 3, inner, 1)}
    return adam(loss, params, of(given + wanted, batch, 2 * side, 2 * side, 1))


def tree_search() -> tuple[Any, Types]:
    """Return actions and visits after a search in a tree of learned states, for a batch of positions."""
    batch, actions, simulations, width = 128, 64, 32, 256

    def evaluate(params: Tree, state: Any) -> tuple[Any, Any]:
        h = nn.relu(state @ params["hidden"])
        return h @ params["policy"], jnp.tanh(h @ params["value"])

    def follow(params: Tree, state: Any, action: Any) -> tuple[Any, Any]:
        h = nn.relu(state @ params["state"] + params["actions"][action])
        return nn.standardize(state + h @ params["next"]), h @ params["reward"]

    def search(params: Tree, observation: Any, key: Any) -> Any:
        root = nn.standardize(observation @ params["in"])
        logits, value = evaluate(params, root)
        logits = logits + 0.25 * random.gumbel(key, (actions,))
        room = simulations + 1
        tree = {"states": jnp.zeros((room, width)).at[0].set(root), "parents": jnp.full(room, -1)}
        tree |= {"priors": jnp.zeros((room, actions)).at[0].set(nn.softmax(logits)), "entries": jnp.zeros(room, I32)}
        tree |= {"visits": jnp.zeros((room, actions)), "sums": jnp.zeros((room, actions))}
        tree |= {"children": jnp.full((room, actions), -1), "rewards": jnp.zeros(room)}

        def best(tree: Tree, node: Any) -> Any:
            visits = tree["visits"][node]
            bonus = tree["priors"][node] * jnp.sqrt(visits.sum() + 1) / (1 + visits)
            return jnp.argmax(tree["sums"][node] / jnp.maximum(visits, 1) + 1.25 * bonus)

        def simulate(number: Any, tree: Tree) -> Tree:
            def descend(place: Any) -> Any:
                node = tree["children"][place]
                return node, best(tree, node)

            start = (jnp.zeros((), I32), best(tree, 0))
            node, action = lax.while_loop(lambda place: tree["children"][place] >= 0, descend, start)
            state, reward = follow(params, tree["states"][node], action)
            logits, value = evaluate(params, state)
            new = number + 1
            tree = tree | {
                "states": tree["states"].at[new].set(state),
                "priors": tree["priors"].at[new].set(nn.softmax(logits)),
                "parents": tree["parents"].at[new].set(node),
                "entries": tree["entries"].at[new].set(action),
                "rewards": tree["rewards"].at[new].set(reward),
                "children": tree["children"].at[node, action].set(new),
            }

            def back_up(carry: Any) -> Any:
                node, total, visits, sums = carry
                parent, action = tree["parents"][node], tree["entries"][node]
                total = tree["rewards"][node] + 0.99 * total
                return parent, total, visits.at[parent, action].add(1), sums.at[parent, action].add(total)

            carry = (jnp.asarray(new), value, tree["visits"], tree["sums"])
            *_, visits, sums = lax.while_loop(lambda carry: carry[0] > 0, back_up, carry)
            return tree | {"visits": visits, "sums": sums}

        tree = lax.fori_loop(0, simulations, simulate, tree)
        return jnp.argmax(tree["visits"][0]), tree["visits"][0] / simulations, value

    def step(params: Tree, observations: Any, seed: Any) -> Any:
        return jax.vmap(search, (None, 0, 0))(params, observations, random.split(random.key(seed), batch))

    params = {"in": of(1024, width), "hidden": of(width, 512), "policy": of(512, actions), "value": of(512)}
    params |= {"state": of(width, 512), "actions": of(actions, 512), "next": of(512, width), "reward": of(512)}
    return jax.jit(step), (params, of(batch, 1024), of(dtype=U32))


def prioritized_replay() -> tuple[Any, Types]:
    """Return a step on distributions of values, of frames drawn by priority from a buffer in the state."""
    room, side, stacked, batch, actions, atoms, ahead, bound = 4096, 84, 4, 32, 18, 51, 3, 10.0

    def shares(params: Tree, frames: Any) -> Any:
        x = frames.astype(F32) / 255
        for kernel, stride in zip(params["kernels"], (4, 2, 1), strict=True):
            x = nn.relu(conv(x, kernel, stride))
        x = x.reshape(batch, -1)
        value = (nn.relu(x @ params["one"]) @ params["value"]).reshape(batch, 1, atoms)
        gains = (nn.relu(x @ params["two"]) @ params["gains"]).reshape(batch, actions, atoms)
        return nn.log_softmax(value + gains - gains.mean(1, keepdims=True))

    def step(state: Tree, seed: Any) -> Any:
        params, slow, means, squares, replay = state
        weights = replay["priorities"] ** 0.6 + 1e-6
        totals = jnp.cumsum(weights)
        points = (jnp.arange(batch) + random.uniform(random.key(seed), (batch,))) / batch * totals[-1]
        drawn = jnp.minimum(jnp.searchsorted(totals, points), room - stacked - ahead - 1)
        importance = (totals[-1] / (room * weights[drawn])) ** 0.4
        importance = importance / importance.max()
        window = drawn[:, None] + jnp.arange(stacked)
        now, later = (replay["frames"][window + gap].transpose(0, 2, 3, 1) for gap in (0, ahead))
        grid = jnp.linspace(-bound, bound, atoms)
        gap = 2 * bound / (atoms - 1)
        best = jnp.argmax(jnp.exp(shares(params, later)) @ grid, -1)
        wanted = jnp.exp(jnp.take_along_axis(shares(slow, later), best[:, None, None], 1)[:, 0])
        alive = 0.99**ahead * (1 - replay["ends"][drawn])
        shifted = jnp.clip(replay["rewards"][drawn][:, None] + alive[:, None] * grid, -bound, bound)
        near = jnp.clip(1 - jnp.abs(shifted[:, None] - grid[:, None]) / gap, 0, 1)
        target = lax.stop_gradient(jnp.einsum("bij,bj->bi", near, wanted))

        def loss(params: Tree) -> Any:
            chosen = jnp.take_along_axis(shares(params, now), replay["actions"][drawn][:, None, None], 1)[:, 0]
            losses = -jnp.sum(target * chosen, -1)
            return jnp.mean(importance * losses), losses

        (value, losses), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        params, means, squares = adam_update(params, gradients, means, squares, 1e-4)
        replay = replay | {"priorities": replay["priorities"].at[drawn].set(losses)}
        return (params, moving_average(slow, params, 0.995), means, squares, replay), value

    kernels = [of(8, 8, stacked, 32), of(4, 4, 32, 64), of(3, 3, 64, 64)]
    flat = 11 * 11 * 64
    params = {"kernels": kernels, "one": of(flat, 512), "two": of(flat, 512), "value": of(512, atoms)}
    params["gains"] = of(512, actions * atoms)
    replay = {"frames": of(room, side, side, dtype=U8), "actions": of(room, dtype=I32)}
    replay |= {"rewards": of(room), "ends": of(room), "priorities": of(room)}
    return jax.jit(step, donate_argnums=0), ((params, params, params, params, replay), of(dtype=U32))


def exchanged_experts(mesh: Mesh) -> tuple[Any, Types]:
    """Return layers of experts on devices of their own, to which tokens travel; those beyond a capacity are dropped."""
    width, hidden, layers, rows, experts = 256, 768, 3, 4096, 16
    axis, count = "expert", mesh.shape["expert"]
    room = rows // count // experts * 5 // 4

    def mix(x: Any, router: Any, up: Any, down: Any) -> Any:
        h = normalized(x)
        shares = nn.softmax(h @ router)
        chosen = jnp.argmax(shares, -1)
        marks = nn.one_hot(chosen, experts)
        order = jnp.take_along_axis(jnp.cumsum(marks, 0), chosen[:, None], 1)[:, 0].astype(I32) - 1
        slot = jnp.where(order < room, chosen * room + order, experts * room)
        sent = jnp.zeros((experts * room, width), BF16).at[slot].set(h.astype(BF16), mode="drop")
        held = lax.all_to_all(sent.reshape(experts, room, width), axis, 0, 1, tiled=True)
        held = nn.gelu(jnp.einsum("erw,ewh->erh", held, up.astype(BF16)))
        held = jnp.einsum("erh,ehw->erw", held, down.astype(BF16))
        back = lax.all_to_all(held, axis, 1, 0, tiled=True).reshape(experts * room, width)
        out = back.at[slot].get(mode="fill", fill_value=0).astype(F32)
        balance = experts * jnp.sum(lax.pmean(marks.mean(0), axis) * lax.pmean(shares.mean(0), axis))
        return x + out * jnp.max(shares, -1, keepdims=True), balance

    own = jax.P(axis)
    mixed = jax.shard_map(mix, mesh=mesh, in_specs=(own, jax.P(), own, own), out_specs=(own, jax.P()))

    def loss(params: Tree, x: Any, y: Any) -> Any:
        extra = jnp.zeros(())
        for p in params["layers"]:
            x, balance = mixed(x @ p["dense"], p["router"], p["up"], p["down"])
            extra = extra + balance
        return jnp.mean((x @ params["out"] - y) ** 2) + 0.01 * extra

    layer = sharded(mesh, {"dense": of(width, width), "router": of(width, experts)})
    layer |= sharded(mesh, {"up": of(experts, width, hidden), "down": of(experts, hidden, width)}, axis)
    params = {"layers": [layer] * layers, "out": sharded(mesh, of(width, width))}
    data = sharded(mesh, of(rows, width), axis)
    return adam(loss, params, data, data)


def federated_rounds(mesh: Mesh) -> tuple[Any, Types]:
    """Return a round of clients, each with steps of its own on its own data, whose changes are averaged."""
    axis, clients = "client", mesh.shape["client"]
    steps, batch, size, classes = 6, 16, 32, 62

    def loss(params: Tree, images: Any, labels: Any) -> Any:
        x = images
        for kernel, scale in zip(params["kernels"], params["scales"], strict=True):
            x = nn.relu(group_norm(conv(x, kernel), scale))
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return cross_entropy(nn.relu(x.reshape(batch, -1) @ params["hidden"]) @ params["out"], labels)

    def visit(params: Tree, images: Any, labels: Any, trust: Any) -> Any:
        def advance(own: Tree, row: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(own, *row)
            drift = jax.tree.map(lambda g, w, p: g + 0.01 * (w - p), gradients, own, params)
            return jax.tree.map(lambda w, g: w - 0.05 * g, own, drift), value

        own = jax.tree.map(lambda leaf: lax.pcast(leaf, axis, to="varying"), params)
        own, values = lax.scan(advance, own, (images[0], labels[0]))
        total = lax.psum(trust[0], axis)
        change = jax.tree.map(lambda w, p: lax.psum(trust[0] * (p - w), axis) / total, own, params)
        return change, lax.pmean(values.mean(), axis)

    own = jax.P(axis)
    visits = jax.shard_map(visit, mesh=mesh, in_specs=(jax.P(), own, own, own), out_specs=jax.P())

    def step(state: Tree, images: Any, labels: Any, trust: Any) -> Any:
        params, speeds = state
        change, value = visits(params, images, labels, trust)
        speeds = jax.tree.map(lambda s, c: 0.9 * s + c, speeds, change)
        return (jax.tree.map(lambda p, s, c: p - 0.7 * (c + 0.9 * s), params, speeds, change), speeds), value

    widths = (3, 48, 96, 128)
    params = {"kernels": [of(3, 3, a, b) for a, b in pairwise(widths)], "scales": [of(b) for b in widths[1:]]}
    params |= {"hidden": of(widths[-1] * (size // 8) ** 2, 512), "out": of(512, classes)}
    params = sharded(mesh, params)
    data = (of(clients, steps, batch, size, size, 3), of(clients, steps, batch, dtype=I32), of(clients))
    return jax.jit(step, donate_argnums=0), ((params, params), *sharded(mesh, data, axis))


def partitioned_rows(mesh: Mesh) -> tuple[Any, Types]:
    """Return a step of a net with skips that labels pixels, whose images are sharded along their rows."""
    batch, size, classes, widths = 4, 128, 8, (24, 48, 96)

    def twice(p: Tree, x: Any) -> Any:
        x = nn.silu(group_norm(conv(x, p["one"]), p["s1"]))
        return nn.silu(group_norm(conv(x, p["two"]), p["s2"]))

    def loss(params: Tree, images: Any, labels: Any) -> Any:
        x, skips = images, []
        for p in params["down"]:
            x = twice(p, x)
            skips.append(x)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = twice(params["middle"], x)
        for p, skip in zip(params["up"], reversed(skips), strict=True):
            x = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
            x = twice(p, jnp.concatenate([x, skip], -1))
        shares = nn.softmax(x @ params["out"])
        marks = nn.one_hot(labels, classes)
        dice = (2 * jnp.sum(shares * marks, (0, 1, 2)) + 1) / (jnp.sum(shares + marks, (0, 1, 2)) + 1)
        return 1 - jnp.mean(dice) - jnp.mean(jnp.sum(marks * jnp.log(shares + 1e-6), -1))

    def pair(inner: int, outer: int) -> Tree:
        return {"one": of(3, 3, inner, outer), "two": of(3, 3, outer, outer), "s1": of(outer), "s2": of(outer)}

    params: Tree = {"down": [pair(a, b) for a, b in pairwise((3, *widths))], "middle": pair(widths[-1], 128)}
    params["up"] = [pair(a + b, b) for a, b in zip((128, *widths[:0:-1]), reversed(widths), strict=True)]
    params["out"] = of(widths[0], classes)
    data = (of(batch, size, size, 3), of(batch, size, size, dtype=I32))
    return adam(loss, sharded(mesh, params), *sharded(mesh, data, "data", "rows"))


def partitioned_graph(mesh: Mesh) -> tuple[Any, Types]:
    """Return a classifier of nodes on eight devices, each of which sends along its edges to nodes of all."""
    nodes, edges, features, width, layers, classes = 32768, 262144, 100, 128, 3, 40
    axis = "nodes"

    def gathered(x: Any, sources: Any, targets: Any, strength: Any) -> Any:
        messages = x[sources] * strength[:, None]
        sums = jnp.zeros((nodes, x.shape[-1])).at[targets].add(messages)
        return lax.psum_scatter(sums, axis, scatter_dimension=0, tiled=True)

    own = jax.P(axis)
    spread = jax.shard_map(gathered, mesh=mesh, in_specs=(own,) * 4, out_specs=own)

    def loss(params: Tree, x: Any, sources: Any, targets: Any, strength: Any, labels: Any) -> Any:
        x = nn.relu(x @ params["in"])
        for p in params["layers"]:
            h = spread(layer_norm(x, p["norm"]), sources, targets, strength)
            x = x + nn.relu(h @ p["others"] + x @ p["own"])
        shares = nn.log_softmax(x @ params["out"])
        right = jnp.take_along_axis(shares, jnp.maximum(labels, 0)[:, None], 1)[:, 0]
        return -jnp.sum(right * (labels >= 0)) / jnp.maximum(jnp.sum(labels >= 0), 1)

    layer = {"others": of(width, width), "own": of(width, width), "norm": of(width)}
    params = {"in": of(features, width), "layers": [layer] * layers, "out": of(width, classes)}
    ends = (of(edges, dtype=I32), of(edges, dtype=I32), of(edges))
    data = sharded(mesh, (of(nodes, features), *ends, of(nodes, dtype=I32)), axis)
    return momentum(loss, sharded(mesh, params), *data)


STEPS = by_name(
    masked_autoencoder,
    coupled_flow,
    splatted_scene,
    sampled_neighbors,
    transducer,
    momentum_contrast,
    taught_decoder,
    latent_bottleneck,
    feature_tokens,
    delta_rule,
    mean_flow,
    energy_model,
    particle_filter,
    rolling_cache,
    routed_depth,
    alternating_least_squares,
    style_transfer,
    radar_forecast,
    tree_search,
    prioritized_replay,
)

SHARDED = by_name(exchanged_experts, federated_rounds, partitioned_rows, partitioned_graph)

MESHES = {
    "exchanged experts": {"expert": 4},
    "federated rounds": {"client": 4},
    "partitioned rows": {"data": 2, "rows": 4},
    "partitioned graph": {"nodes": 8},
}
