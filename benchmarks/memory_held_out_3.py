"""A third set of held-out steps for `benchmarks/memory_predictions.py`, written without knowledge of the rules.

They were chosen by the fields in which such programs run, by an author who had not read the code of the memory model.
None was predicted while they were written, and none repeats a model of the other sets. `STEPS` has the steps on one
device by name, `SHARDED` those on a mesh, and `MESHES` the shapes of these meshes.
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

I8, U8, U32, F64 = jnp.int8, jnp.uint8, jnp.uint32, jnp.float64


def rotated(x: Any, places: Any) -> Any:
    """Return queries or keys, of shape `[..., length, heads, head]`, rotated by angles that depend on their places."""
    half = x.shape[-1] // 2
    angles = places[:, None, None] * 10000.0 ** (-jnp.arange(half) / half)
    left, right = x[..., :half].astype(F32), x[..., half:].astype(F32)
    sine, cosine = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([left * cosine - right * sine, left * sine + right * cosine], -1).astype(x.dtype)


def selective_scan() -> tuple[Any, Types]:
    """Return a language model of recurrences whose decays depend on the input, by an associative scan."""
    width, inner, states, rank, taps, layers, batch, length = 256, 512, 16, 16, 4, 4, 2, 256

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def mix(x: Any, w: Tree) -> Any:
        h, gate = jnp.split(normalized(x) @ w["in"], 2, -1)
        padded = jnp.pad(h, ((0, 0), (taps - 1, 0), (0, 0)))
        h = nn.silu(sum(padded[:, tap : tap + length] * w["taps"][tap] for tap in range(taps)))
        delta, b, c = jnp.split(h @ w["select"], (rank, rank + states), -1)
        delta = nn.softplus(delta @ w["delta"])
        decay = jnp.exp(-delta[..., None] * jnp.exp(w["rates"]))
        pushed = (delta * h)[..., None] * b[..., None, :]
        _, state = lax.associative_scan(combine, (decay, pushed), axis=1)
        y = jnp.einsum("blis,bls->bli", state, c) + h * w["skip"]
        return x + (y * nn.silu(gate)) @ w["out"], None

    def loss(params: Tree, tokens: Any) -> Any:
        x, _ = lax.scan(jax.checkpoint(mix), params["words"][tokens[:, :-1]], params["layers"])
        return cross_entropy(normalized(x) @ params["words"].T, tokens[:, 1:])

    stack = {"in": of(layers, width, 2 * inner), "taps": of(layers, taps, inner), "delta": of(layers, rank, inner)}
    stack |= {"select": of(layers, inner, rank + 2 * states), "rates": of(layers, inner, states)}
    stack |= {"skip": of(layers, inner), "out": of(layers, inner, width)}
    params = {"words": of(8192, width), "layers": stack}
    return adam(loss, params, of(batch, length + 1, dtype=I32))


def weighted_recurrence() -> tuple[Any, Types]:
    """Return a language model whose tokens are averaged with weights that decay, by a scan with running maxima."""
    width, layers, batch, length = 512, 3, 4, 384

    def average(decay: Any, bonus: Any, k: Any, v: Any) -> Any:
        def advance(carry: Any, row: Any) -> Any:
            above, below, most = carry
            k, v = row
            now = jnp.maximum(most, bonus + k)
            old, new = jnp.exp(most - now), jnp.exp(bonus + k - now)
            out = (old * above + new * v) / (old * below + new)
            later = jnp.maximum(most - decay, k)
            old, new = jnp.exp(most - decay - later), jnp.exp(k - later)
            return (old * above + new * v, old * below + new, later), out

        zero = jnp.zeros((batch, width))
        _, out = lax.scan(advance, (zero, zero, zero - 1e30), (k.swapaxes(0, 1), v.swapaxes(0, 1)))
        return out.swapaxes(0, 1)

    def shifted(x: Any, share: Any) -> Any:
        before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        return (x * share + before * (1 - share)).astype(BF16)

    def loss(params: Tree, tokens: Any) -> Any:
        x = layer_norm(params["words"][tokens[:, :-1]], params["norm"])
        for p in params["layers"]:
            w = jax.tree.map(lambda leaf: leaf.astype(BF16), p["products"])
            h = layer_norm(x, p["n1"])
            k, v, r = (shifted(h, p["shares"][number]) @ w[name] for number, name in enumerate("kvr"))
            out = average(nn.softplus(p["decay"]), p["bonus"], k.astype(F32), v.astype(F32))
            x = x + ((nn.sigmoid(r) * out.astype(BF16)) @ w["o"]).astype(F32)
            h = layer_norm(x, p["n2"])
            k = nn.relu(shifted(h, p["shares"][3]) @ w["up"]) ** 2
            x = x + (nn.sigmoid(shifted(h, p["shares"][4]) @ w["gate"]) * (k @ w["down"])).astype(F32)
        return cross_entropy(layer_norm(x, params["norm"]).astype(BF16) @ params["head"].astype(BF16), tokens[:, 1:])

    products = {**dict.fromkeys(("k", "v", "r", "o", "gate"), of(width, width)), "up": of(width, 4 * width)}
    products["down"] = of(4 * width, width)
    layer = {"products": products, "shares": of(5, width)} | dict.fromkeys(("decay", "bonus", "n1", "n2"), of(width))
    params = {"words": of(16000, width), "head": of(width, 16000), "norm": of(width), "layers": [layer] * layers}
    return adam(loss, params, of(batch, length + 1, dtype=I32))


def latent_attention() -> tuple[Any, Types]:
    """Return a decoder whose keys and values are expanded from a latent vector, and which predicts two tokens."""
    width, heads, head, turned, latent, layers, length = 512, 8, 64, 32, 128, 4, 512

    def layer(x: Any, w: Tree) -> Any:
        w = jax.tree.map(lambda leaf: leaf.astype(BF16), w)
        h, places = normalized(x), jnp.arange(length, dtype=F32)
        q = (normalized(h @ w["q_down"]) @ w["q_up"]).reshape(*h.shape[:2], heads, head + turned)
        compressed, shared_key = jnp.split(h @ w["kv_down"], (latent,), -1)
        k, v = jnp.split((normalized(compressed) @ w["kv_up"]).reshape(*h.shape[:2], heads, 2 * head), 2, -1)
        shared_key = rotated(shared_key[:, :, None], places)
        q = jnp.concatenate([q[..., :head], rotated(q[..., head:], places)], -1)
        k = jnp.concatenate([k, jnp.broadcast_to(shared_key, (*k.shape[:3], turned))], -1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * (head + turned) ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        out = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores).astype(BF16), v)
        x = x + out.reshape(*h.shape[:2], heads * head) @ w["o"]
        gate, up = jnp.split(normalized(x) @ w["up"], 2, -1)
        return x + (nn.silu(gate) * up) @ w["down"], None

    def loss(params: Tree, tokens: Any) -> Any:
        words, head = params["words"].astype(BF16), params["head"].astype(BF16)
        x, _ = lax.scan(layer, words[tokens[:, :-2]], params["layers"])
        first = cross_entropy(normalized(x) @ head, tokens[:, 1:-1])
        both = jnp.concatenate([normalized(x), normalized(words[tokens[:, 1:-1]])], -1)
        x, _ = layer(both @ params["joint"].astype(BF16), params["second"])
        return first + 0.3 * cross_entropy(normalized(x) @ head, tokens[:, 2:])

    def weights(*stack: int) -> Tree:
        sizes = {"q_down": (width, 256), "q_up": (256, heads * (head + turned)), "kv_down": (width, latent + turned)}
        sizes |= {"kv_up": (latent, 2 * heads * head), "o": (heads * head, width)}
        sizes |= {"up": (width, 2816), "down": (1408, width)}
        return {name: of(*stack, *size) for name, size in sizes.items()}

    params = {"words": of(12000, width), "head": of(width, 12000), "joint": of(2 * width, width)}
    params |= {"layers": weights(layers), "second": weights()}
    return adam(loss, params, of(4, length + 2, dtype=I32))


def packed_weights() -> tuple[Any, Types]:
    """Return the first pass of a language model over prompts, with two weights of four bits in each byte."""
    width, hidden, heads, group, layers, batch, length, room = 1024, 2816, 16, 64, 4, 2, 512, 1024

    def unpacked(w: Tree) -> Any:
        halves = jnp.stack([w["bits"] & 15, w["bits"] >> 4], 1).astype(I8) - 8
        rows = halves.reshape(-1, group, w["bits"].shape[-1]).astype(BF16) * w["scales"][:, None]
        return rows.reshape(-1, w["bits"].shape[-1])

    def step(cache: Any, params: Tree, tokens: Any, lengths: Any, seed: Any) -> Any:
        places = jnp.arange(length, dtype=F32)
        mask = jnp.tril(jnp.ones((length, length), bool)) & (jnp.arange(length) < lengths[:, None])[:, None, None]

        def layer(x: Any, row: Any) -> Any:
            w, keys, values = row
            h = normalized(x)
            q, k, v = ((h @ unpacked(w[name])).reshape(batch, length, heads, -1) for name in "qkv")
            q, k = rotated(q, places), rotated(k, places)
            keys = lax.dynamic_update_slice(keys, k, (0, 0, 0, 0))
            values = lax.dynamic_update_slice(values, v, (0, 0, 0, 0))
            flat = (y.reshape(batch, length, width) for y in (q, k, v))
            x = x + attend(heads, *flat, mask) @ unpacked(w["o"])
            h = normalized(x)
            h = nn.silu(h @ unpacked(w["gate"])) * (h @ unpacked(w["up"]))
            return x + h @ unpacked(w["down"]), (keys, values)

        x, cache = lax.scan(layer, params["words"][tokens], (params["layers"], *cache))
        last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], 1)[:, 0]
        logits = (normalized(last) @ params["words"].T).astype(F32)
        noise = random.gumbel(random.key(seed), logits.shape)
        return cache, jnp.argmax(logits / 0.7 + noise, -1)

    def packed(inner: int, outer: int) -> Tree:
        return {
            "bits": of(layers, inner // 2, outer, dtype=U8),
            "scales": of(layers, inner // group, outer, dtype=BF16),
        }

    stack = dict.fromkeys("qkvo", packed(width, width)) | {"down": packed(hidden, width)}
    stack |= dict.fromkeys(("gate", "up"), packed(width, hidden))
    params = {"words": of(32000, width, dtype=BF16), "layers": stack}
    kept = of(layers, batch, room, heads, width // heads, dtype=BF16)
    types = ((kept, kept), params, of(batch, length, dtype=I32), of(batch, dtype=I32), of(dtype=U32))
    return jax.jit(step, donate_argnums=0), types


def speech_recognition() -> tuple[Any, Types]:
    """Return a recognizer of attention and convolutions in time, whose loss sums over all alignments."""
    width, heads, taps, batch, frames, bands, letters, words = 256, 4, 15, 8, 400, 80, 40, 1024

    def alignments(shares: Any, labels: Any) -> Any:
        extended = jnp.zeros(2 * letters + 1, I32).at[1::2].set(labels)
        scores = shares[:, extended]
        repeats = extended == jnp.roll(extended, 2)
        skips = (extended != 0) & ~repeats & (jnp.arange(2 * letters + 1) > 1)

        def advance(alpha: Any, row: Any) -> Any:
            one = jnp.pad(alpha[:-1], (1, 0), constant_values=-1e9)
            two = jnp.where(skips, jnp.pad(alpha[:-2], (2, 0), constant_values=-1e9), -1e9)
            return jnp.logaddexp(jnp.logaddexp(alpha, one), two) + row, None

        start = jnp.where(jnp.arange(2 * letters + 1) < 2, scores[0], -1e9)
        last, _ = lax.scan(advance, start, scores[1:])
        return -jnp.logaddexp(last[-1], last[-2])

    def half_step(x: Any, w: Tree, norm: Any) -> Any:
        return x + 0.5 * nn.silu(layer_norm(x, norm) @ w["up"]) @ w["down"]

    def loss(params: Tree, sounds: Any, labels: Any) -> Any:
        x = nn.relu(conv(sounds[..., None], params["first"], 2))
        x = nn.relu(conv(x, params["second"], 2))
        x = x.reshape(batch, frames // 4, -1) @ params["in"]
        for p in params["blocks"]:
            x = half_step(x, p["before"], p["norms"][0])
            x = x + attend(heads, *jnp.split(layer_norm(x, p["norms"][1]) @ p["qkv"], 3, -1)) @ p["o"]
            h, gate = jnp.split(layer_norm(x, p["norms"][2]) @ p["wide"], 2, -1)
            h = conv((h * nn.sigmoid(gate))[:, :, None], p["taps"], groups=width)[:, :, 0]
            centered = h - h.mean((0, 1))
            h = nn.silu(centered * lax.rsqrt((centered**2).mean((0, 1)) + 1e-5) * p["norms"][3])
            x = half_step(x + h @ p["narrow"], p["after"], p["norms"][4])
        shares = nn.log_softmax(x @ params["head"])
        return jnp.mean(jax.vmap(alignments)(shares, labels))

    feed = {"up": of(width, 4 * width), "down": of(4 * width, width)}
    block = {"before": feed, "after": feed, "qkv": of(width, 3 * width), "o": of(width, width), "norms": of(5, width)}
    block |= {"wide": of(width, 2 * width), "taps": of(taps, 1, 1, width), "narrow": of(width, width)}
    params = {"first": of(3, 3, 1, 32), "second": of(3, 3, 32, 32), "in": of(bands // 4 * 32, width)}
    params |= {"blocks": [block] * 4, "head": of(width, words)}
    return adam(loss, params, of(batch, frames, bands), of(batch, letters, dtype=I32))


def raw_audio() -> tuple[Any, Types]:
    """Return a model of samples of sound: gated causal convolutions whose dilations double, and a sum of skips."""
    width, batch, samples, hop, bands = 64, 2, 8192, 256, 80

    def causal(x: Any, kernel: Any, dilation: int = 1) -> Any:
        return lax.conv_general_dilated(
            x,
            kernel,
            (1,),
            [((kernel.shape[0] - 1) * dilation, 0)],
            rhs_dilation=(dilation,),
            dimension_numbers=("NWC", "WIO", "NWC"),
        )

    def loss(params: Tree, sounds: Any, spectra: Any) -> Any:
        pressed = jnp.sign(sounds) * jnp.log1p(255 * jnp.abs(sounds)) / jnp.log(256.0)
        levels = jnp.clip((pressed + 1) * 127.5 + 0.5, 0, 255).astype(I32)
        x = params["levels"][levels[:, :-1]]
        condition = jnp.repeat(spectra, hop, 1)[:, 1:] @ params["condition"]
        total = jnp.zeros_like(x)
        for number, p in enumerate(params["layers"]):
            both = causal(x, p["kernel"], 2 ** (number % 8)) + condition @ p["condition"]
            filtered, gate = jnp.split(both, 2, -1)
            h = jnp.tanh(filtered) * nn.sigmoid(gate)
            total = total + h @ p["skip"]
            x = (x + h @ p["residual"]) * 0.5**0.5
        return cross_entropy(nn.relu(nn.relu(total) @ params["hidden"]) @ params["out"], levels[:, 1:])

    layer = {"kernel": of(2, width, 2 * width), "condition": of(width, 2 * width)}
    layer |= {"skip": of(width, width), "residual": of(width, width)}
    params = {"levels": of(256, width), "condition": of(bands, width), "layers": [layer] * 12}
    params |= {"hidden": of(width, 256), "out": of(256, 256)}
    return adam(loss, params, of(batch, samples), of(batch, samples // hop, bands))


def dense_connections() -> tuple[Any, Types]:
    """Return a net in which each convolution reads the results of all before it, in three blocks."""
    growth, layers, batch, size = 24, 4, 32, 32

    def norm(x: Any, p: Any) -> Any:
        centered = x - x.mean((0, 1, 2))
        return nn.relu(centered * lax.rsqrt((centered**2).mean((0, 1, 2)) + 1e-5) * p[0] + p[1])

    def loss(params: Tree, images: Any, labels: Any) -> Any:
        x = conv(images, params["in"])
        for block in params["blocks"]:
            for p in block["layers"]:
                h = conv(norm(x, p["n1"]), p["narrow"])
                x = jnp.concatenate([x, conv(norm(h, p["n2"]), p["kernel"])], -1)
            x = conv(norm(x, block["norm"]), block["out"])
            x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        return cross_entropy(x.mean((1, 2)) @ params["head"], labels)

    width, blocks = 2 * growth, []
    for _ in range(3):
        widths = [width + number * growth for number in range(layers)]
        rows = [
            {"n1": of(2, a), "narrow": of(1, 1, a, 4 * growth), "n2": of(2, 4 * growth)}
            | {"kernel": of(3, 3, 4 * growth, growth)}
            for a in widths
        ]
        end = width + layers * growth
        width = end // 2
        blocks.append({"layers": rows, "norm": of(2, end), "out": of(1, 1, end, width)})
    params = {"in": of(3, 3, 3, 2 * growth), "blocks": blocks, "head": of(width, 100)}
    return momentum(loss, params, of(batch, size, size, 3), of(batch, dtype=I32))


def detector() -> tuple[Any, Types]:
    """Return a detector of objects with a pyramid of features, whose targets are assigned in the step, in bf16."""
    batch, size, classes, objects, width = 4, 256, 20, 12, 96

    def enlarged(x: Any) -> Any:
        return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)

    def pyramid(params: Tree, images: Any) -> list[Any]:
        x, maps = images.astype(BF16), []
        for p in params["stages"]:
            x = nn.relu(conv(x, p["down"], 2))
            x = x + conv(nn.relu(conv(x, p["first"])), p["second"])
            maps.append(x)
        level, levels = conv(maps[-1], params["lateral"][-1]), []
        levels.append(level)
        for x, kernel in zip(maps[-2:-4:-1], params["lateral"][-2::-1], strict=True):
            level = conv(x, kernel) + enlarged(level)
            levels.append(level)
        return [conv(level, params["smooth"]) for level in levels]

    def assigned(places: Any, boxes: Any, kinds: Any) -> Any:
        sides = jnp.concatenate([places[:, None] - boxes[:, :2], boxes[:, 2:] - places[:, None]], -1)
        areas = jnp.prod(boxes[:, 2:] - boxes[:, :2], -1)
        chosen = jnp.argmin(jnp.where(sides.min(-1) > 0, areas, jnp.inf), -1)
        own = jnp.take_along_axis(sides, chosen[:, None, None], 1)[:, 0]
        return own, jnp.where(own.min(-1) > 0, kinds[chosen], classes)

    def level_loss(params: Tree, x: Any, boxes: Any, kinds: Any) -> Any:
        stride = size // x.shape[1]
        h = nn.relu(conv(nn.relu(conv(x, params["tower"][0])), params["tower"][1]))
        scores = conv(h, params["classes"]).astype(F32).reshape(batch, -1, classes)
        extents = jnp.exp(jnp.clip(conv(h, params["sides"]).astype(F32), -8, 8)).reshape(batch, -1, 4) * stride
        rows, columns = jnp.meshgrid(jnp.arange(x.shape[1]), jnp.arange(x.shape[2]), indexing="ij")
        places = (jnp.stack([rows, columns], -1).reshape(-1, 2) + 0.5) * stride
        sides, targets = jax.vmap(lambda boxes, kinds: assigned(places, boxes, kinds))(boxes, kinds)
        hot = nn.one_hot(targets, classes)
        shares = nn.sigmoid(scores)
        right = jnp.where(hot == 1, shares, 1 - shares)
        focal = -jnp.sum(jnp.where(hot == 1, 0.25, 0.75) * (1 - right) ** 2 * jnp.log(right + 1e-8))
        inside = targets < classes
        sides = jnp.maximum(sides, 1e-3)

        def area(s: Any) -> Any:
            return (s[..., 0] + s[..., 2]) * (s[..., 1] + s[..., 3])

        common = area(jnp.minimum(sides, extents))
        overlap = common / (area(sides) + area(extents) - common)
        return focal - jnp.sum(jnp.where(inside, jnp.log(overlap + 1e-6), 0)), inside.sum()

    def loss(params: Tree, images: Any, boxes: Any, kinds: Any) -> Any:
        corner, extent = jnp.split(jnp.abs(boxes), 2, -1)
        boxes = jnp.concatenate([corner, corner + extent + 8], -1)
        parts = [level_loss(params, x, boxes, kinds) for x in pyramid(params, images)]
        total, count = (sum(part[number] for part in parts) for number in range(2))
        return total / jnp.maximum(count, 1)

    widths = (3, 32, 64, 128, 192)
    stages = [{"down": of(3, 3, a, b), "first": of(3, 3, b, b), "second": of(3, 3, b, b)} for a, b in pairwise(widths)]
    params = {"stages": stages, "lateral": [of(1, 1, a, width) for a in widths[2:]], "smooth": of(3, 3, width, width)}
    params |= {"tower": [of(3, 3, width, width)] * 2, "classes": of(3, 3, width, classes), "sides": of(3, 3, width, 4)}
    types = (of(batch, size, size, 3), of(batch, objects, 4), of(batch, objects, dtype=I32))
    return momentum(loss, params, *types)


def optical_flow() -> tuple[Any, Types]:
    """Return an estimate of motion between images, refined by reading correlations of all pairs of places."""
    batch, rows, columns, width, state, radius, rounds = 2, 24, 32, 128, 96, 3, 6
    side = 2 * radius + 1

    def encode(kernels: Tree, x: Any) -> Any:
        for kernel in kernels[:-1]:
            x = nn.relu(conv(x, kernel, 2))
        return conv(x, kernels[-1])

    def sampled(table: Any, places: Any) -> Any:
        """Return the values of maps `[n, h, w]` between their places, which are `[n, k, 2]`."""
        low = jnp.floor(places)
        fraction, total = places - low, jnp.zeros(places.shape[:2])
        for down in range(2):
            for right in range(2):
                row, column = low[..., 0].astype(I32) + down, low[..., 1].astype(I32) + right
                inside = (row >= 0) & (row < table.shape[1]) & (column >= 0) & (column < table.shape[2])
                index = jnp.clip(row, 0, table.shape[1] - 1) * table.shape[2] + jnp.clip(column, 0, table.shape[2] - 1)
                values = jnp.take_along_axis(table.reshape(table.shape[0], -1), index, 1)
                share = jnp.abs(1 - down - fraction[..., 0]) * jnp.abs(1 - right - fraction[..., 1])
                total = total + jnp.where(inside, values * share, 0)
        return total

    def loss(params: Tree, first: Any, second: Any, truth: Any) -> Any:
        a, b = encode(params["features"], first), encode(params["features"], second)
        hidden, context = jnp.split(encode(params["context"], first), 2, -1)
        hidden, context = jnp.tanh(hidden), nn.relu(context)
        pairs = jnp.einsum("bhwc,bijc->bhwij", a, b) * width**-0.5
        levels = [pairs.reshape(-1, rows, columns, 1)]
        for _ in range(2):
            levels.append(lax.reduce_window(levels[-1], 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4)
        home = jnp.stack(jnp.meshgrid(jnp.arange(rows), jnp.arange(columns), indexing="ij"), -1).astype(F32)
        around = jnp.stack(jnp.meshgrid(*[jnp.arange(side) - radius] * 2, indexing="ij"), -1).reshape(-1, 2)

        def refine(carry: Any, _: Any) -> Any:
            hidden, flow = carry
            flow = lax.stop_gradient(flow)
            centers = (home + flow).reshape(-1, 1, 2)
            read = [sampled(level[..., 0], centers / 2**n + around) for n, level in enumerate(levels)]
            read = jnp.concatenate(read, -1).reshape(batch, rows, columns, -1)
            x = jnp.concatenate([nn.relu(conv(read, params["read"])), flow, context], -1)
            update = nn.sigmoid(conv(jnp.concatenate([hidden, x], -1), params["update"]))
            reset = nn.sigmoid(conv(jnp.concatenate([hidden, x], -1), params["reset"]))
            candidate = jnp.tanh(conv(jnp.concatenate([reset * hidden, x], -1), params["candidate"]))
            hidden = (1 - update) * hidden + update * candidate
            flow = flow + conv(nn.relu(conv(hidden, params["head"])), params["flow"])
            return (hidden, flow), flow

        start = (hidden, jnp.zeros((batch, rows, columns, 2)))
        _, flows = lax.scan(refine, start, None, length=rounds)
        shares = 0.8 ** jnp.arange(rounds - 1, -1, -1.0)
        errors = jnp.abs(jax.image.resize(flows, (rounds, *truth.shape), "linear") * 8 - truth)
        return jnp.sum(shares * errors.mean((1, 2, 3, 4)))

    def encoder(last: int) -> list[Any]:
        return [of(7, 7, 3, 32), of(3, 3, 32, 64), of(3, 3, 64, 96), of(1, 1, 96, last)]

    inner = state + 96 + 2 + state
    params = {"features": encoder(width), "context": encoder(2 * state), "read": of(1, 1, 3 * side**2, 96)}
    params |= dict.fromkeys(("update", "reset", "candidate"), of(3, 3, inner, state))
    params |= {"head": of(3, 3, state, 128), "flow": of(3, 3, 128, 2)}
    images = of(batch, 8 * rows, 8 * columns, 3)
    return adam(loss, params, images, images, of(batch, 8 * rows, 8 * columns, 2))


def point_cloud() -> tuple[Any, Types]:
    """Return a classifier of points in space: distant centers, their nearest neighbours, and maxima over these."""
    batch, points, neighbours = 16, 1024, 32

    def distant(places: Any, count: int) -> Any:
        """Return indices of points each of which is farthest from those before it."""

        def advance(number: Any, carry: Any) -> Any:
            indices, least = carry
            least = jnp.minimum(least, jnp.sum((places - places[indices[number - 1]]) ** 2, -1))
            return indices.at[number].set(jnp.argmax(least).astype(I32)), least

        start = (jnp.zeros(count, I32), jnp.full(places.shape[0], jnp.inf))
        return lax.fori_loop(1, count, advance, start)[0]

    def grouped(places: Any, features: Any, count: int) -> Any:
        centers = places[distant(places, count)]
        distances = jnp.sum((centers[:, None] - places[None]) ** 2, -1)
        _, nearest = lax.top_k(-distances, neighbours)
        return centers, jnp.concatenate([places[nearest] - centers[:, None], features[nearest]], -1)

    def loss(params: Tree, places: Any, normals: Any, labels: Any) -> Any:
        x = normals
        for kernels, count in zip(params["levels"], (256, 64), strict=True):
            places, x = jax.vmap(lambda p, f, count=count: grouped(p, f, count))(places, x)
            for w, norm in kernels:
                x = nn.relu(layer_norm(x @ w, norm))
            x = x.max(2)
        x = jnp.concatenate([places, x], -1)
        for w, norm in params["last"]:
            x = nn.relu(layer_norm(x @ w, norm))
        return cross_entropy(x.max(1) @ params["head"], labels)

    def stack(*widths: int) -> list[Any]:
        return [(of(a, b), of(b)) for a, b in pairwise(widths)]

    params = {"levels": [stack(6, 32, 32, 64), stack(67, 64, 128)], "last": stack(131, 256, 512), "head": of(512, 40)}
    return adam(loss, params, of(batch, points, 3), of(batch, points, 3), of(batch, dtype=I32))


def mesh_simulator() -> tuple[Any, Types]:
    """Return a simulator on a mesh of triangles, whose edges and nodes both have latent vectors, with noise."""
    nodes, edges, width, rounds = 4096, 16384, 96, 5

    def network(p: Tree, x: Any) -> Any:
        h = nn.relu(nn.relu(x @ p["first"] + p["b1"]) @ p["second"] + p["b2"]) @ p["third"]
        return layer_norm(h, p["norm"]) if "norm" in p else h

    def loss(params: Tree, places: Any, speeds: Any, kinds: Any, sender: Any, receiver: Any, seed: Any) -> Any:
        noise = 0.01 * random.normal(random.key(seed), speeds.shape[1:])
        noise = jnp.where((kinds == 0)[:, None], noise, 0)
        now, following = speeds[0] + noise, speeds[1]
        across = places[sender] - places[receiver]
        x = network(params["node"], jnp.concatenate([now, nn.one_hot(kinds, 8)], -1))
        length = jnp.sqrt(jnp.sum(across**2, -1, keepdims=True) + 1e-8)
        e = network(params["edge"], jnp.concatenate([across, length], -1))
        for p in params["rounds"]:
            e = e + network(p["edge"], jnp.concatenate([e, x[sender], x[receiver]], -1))
            gathered = jax.ops.segment_sum(e, receiver, nodes)
            x = x + network(p["node"], jnp.concatenate([x, gathered], -1))
        change = network(params["out"], x)
        error = jnp.sum((change - (following - now)) ** 2, -1)
        return jnp.sum(jnp.where(kinds == 0, error, 0)) / nodes

    def weights(inner: int, outer: int, norm: bool = True) -> Tree:
        sizes = {"first": of(inner, width), "b1": of(width), "second": of(width, width), "b2": of(width)}
        return {**sizes, "third": of(width, outer)} | ({"norm": of(outer)} if norm else {})

    rows = [{"edge": weights(3 * width, width), "node": weights(2 * width, width)}] * rounds
    params = {"node": weights(11, width), "edge": weights(4, width), "rounds": rows, "out": weights(width, 3, False)}
    numbers = of(edges, dtype=I32)
    types = (of(nodes, 3), of(2, nodes, 3), of(nodes, dtype=I32), numbers, numbers, of(dtype=U32))
    return adam(loss, params, *types)


def lattice_fluid() -> tuple[Any, Types]:
    """Return steps of a fluid on a lattice: densities collide, stream to nine neighbours, and bounce off a body."""
    height, length, steps = 384, 1024, 64
    moves = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1))
    opposite = (0, 2, 1, 4, 3, 6, 5, 8, 7)

    def simulate(densities: Any, body: Any, viscosity: Any) -> Any:
        directions = jnp.array(moves, F32)
        shares = jnp.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)
        rate = 1 / (3 * jnp.abs(viscosity) + 0.5)

        def equilibrium(density: Any, speed: Any) -> Any:
            along = jnp.einsum("qd,dyx->qyx", directions, speed)
            squares = jnp.sum(speed**2, 0)
            return shares[:, None, None] * density * (1 + 3 * along + 4.5 * along**2 - 1.5 * squares)

        def advance(f: Any, _: Any) -> Any:
            density = f.sum(0)
            speed = jnp.einsum("qd,qyx->dyx", directions, f) / density
            collided = f - rate * (f - equilibrium(density, speed))
            bounced = jnp.where(body, f[jnp.array(opposite)], collided)
            force = jnp.sum(jnp.where(body, f - bounced, 0) * directions[:, 1, None, None])
            moved = jnp.stack([jnp.roll(bounced[number], move, (0, 1)) for number, move in enumerate(moves)])
            inflow = equilibrium(jnp.ones((1, height, 1)), jnp.array([0.0, 0.05])[:, None, None])
            return moved.at[:, :, :1].set(inflow), force

        start = 0.1 * jnp.abs(densities) + shares[:, None, None]
        return lax.scan(advance, start, None, length=steps)

    types = (of(9, height, length), of(height, length, dtype=jnp.bool_), of())
    return jax.jit(simulate, donate_argnums=0), types


def spectral_flow() -> tuple[Any, Types]:
    """Return the start of a flow, improved along the gradient of its later error, by Fourier transforms."""
    batch, size, intervals, steps, pace = 2, 192, 4, 5, 5e-3

    def loss(start: Any, later: Any) -> Any:
        frequencies = jnp.fft.fftfreq(size, 1 / size)
        rows, columns = jnp.meshgrid(frequencies, jnp.arange(size // 2 + 1.0), indexing="ij")
        squares = rows**2 + columns**2
        inverse = jnp.where(squares > 0, 1 / jnp.maximum(squares, 1), 0)
        kept = (jnp.abs(rows) < size / 3) & (columns < size / 3)
        damping = jnp.exp(-1e-4 * squares * pace)

        def tendency(spectrum: Any) -> Any:
            stream = spectrum * inverse
            u, v, along, across = (
                jnp.fft.irfft2(x, (size, size))
                for x in (1j * columns * stream, -1j * rows * stream, 1j * rows * spectrum, 1j * columns * spectrum)
            )
            return -jnp.where(kept, jnp.fft.rfft2(u * along + v * across), 0)

        def advance(_: Any, spectrum: Any) -> Any:
            first = tendency(spectrum)
            half = spectrum + pace * first
            return damping * (spectrum + pace / 2 * (first + tendency(half)))

        @jax.checkpoint
        def interval(spectrum: Any, seen: Any) -> Any:
            spectrum = lax.fori_loop(0, steps, advance, spectrum)
            return spectrum, jnp.mean((jnp.fft.irfft2(spectrum, (size, size)) - seen) ** 2)

        return jnp.mean(lax.scan(interval, jnp.fft.rfft2(start), later)[1])

    def step(start: Any, later: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(start, later)
        return start - 10.0 * slope, value

    return jax.jit(step, donate_argnums=0), (of(batch, size, size), of(intervals, batch, size, size))


def quantum_circuit() -> tuple[Any, Types]:
    """Return angles of circuits after a step down in energy, by the gradient through states of complex numbers."""
    circuits, qubits, layers = 256, 10, 6

    def turned(state: Any, qubit: int, angle: Any, phase: Any) -> Any:
        parts = state.reshape(2**qubit, 2, -1)
        sine, cosine = jnp.sin(angle / 2), jnp.cos(angle / 2)
        turn = jnp.exp(0.5j * phase)
        zero = turn.conj() * (cosine * parts[:, 0] - sine * parts[:, 1])
        one = turn * (sine * parts[:, 0] + cosine * parts[:, 1])
        return jnp.stack([zero, one], 1).reshape(-1)

    def energy(angles: Any, field: Any) -> Any:
        numbers = jnp.arange(2**qubits, dtype=U32)
        neighbours = lax.population_count(numbers & (numbers >> 1)) & 1
        sign = jnp.where(neighbours == 1, -1.0, 1.0)

        def layer(state: Any, angles: Any) -> Any:
            for qubit in range(qubits):
                state = turned(state, qubit, angles[qubit, 0], angles[qubit, 1])
            return state * sign, None

        start = jnp.zeros(2**qubits, jnp.complex64).at[0].set(1)
        state, _ = lax.scan(layer, start, angles)
        shares = jnp.real(state * state.conj())
        different = lax.population_count((numbers ^ (numbers >> 1)) & jnp.uint32(2 ** (qubits - 1) - 1)).astype(F32)

        def flip(total: Any, qubit: Any) -> Any:
            flipped = state[(numbers ^ (jnp.uint32(1) << qubit)).astype(I32)]
            return total - field * jnp.sum(jnp.real(state.conj() * flipped)), None

        total = -jnp.sum(shares * (qubits - 1 - 2 * different))
        return lax.scan(flip, total, jnp.arange(qubits, dtype=U32))[0]

    def step(state: Any, fields: Any) -> Any:
        params, means = state
        value, slopes = jax.value_and_grad(lambda p: jnp.sum(jax.vmap(energy)(p, fields)))(params)
        means = 0.9 * means + slopes
        return (params - 0.01 * means, means), value

    angles = of(circuits, layers, qubits, 2)
    return jax.jit(step, donate_argnums=0), ((angles, angles), of(circuits))


def self_consistent_field() -> tuple[Any, Types]:
    """Return the density of electrons in a basis, iterated in f64 until its mean field agrees with it."""
    basis, pairs, mixing = 48, 10, 0.5

    def solve(density: Any, core: Any, overlap: Any, repulsion: Any) -> Any:
        with jax.enable_x64(True):
            density, core, overlap, repulsion = (x.astype(F64) for x in (density, core, overlap, repulsion))
            core, density = core + core.T, density + density.T
            values, vectors = jnp.linalg.eigh(jnp.eye(basis) + overlap @ overlap.T / basis)
            whitening = (vectors / jnp.sqrt(values)) @ vectors.T
            repulsion = repulsion + repulsion.transpose(1, 0, 2, 3)
            repulsion = repulsion + repulsion.transpose(2, 3, 0, 1)

            def field(density: Any) -> Any:
                direct = jnp.einsum("pqrs,rs->pq", repulsion, density)
                exchanged = jnp.einsum("prqs,rs->pq", repulsion, density)
                fock = core + direct - 0.5 * exchanged
                return (fock + fock.T) / 2

            def unfinished(carry: Any) -> Any:
                _, change, count = carry
                return (change > 1e-9) & (count < 40)

            def advance(carry: Any) -> Any:
                density, _, count = carry
                _, orbitals = jnp.linalg.eigh(whitening.T @ field(density) @ whitening)
                filled = (whitening @ orbitals)[:, :pairs]
                new = mixing * density + (1 - mixing) * 2 * filled @ filled.T
                return new, jnp.max(jnp.abs(new - density)), count + 1

            density, change, _ = lax.while_loop(unfinished, advance, (density, jnp.full((), jnp.inf, F64), 0))
            energy = 0.5 * jnp.sum(density * (core + field(density)))
            return density.astype(F32), energy, change

    matrix = of(basis, basis)
    return jax.jit(solve, donate_argnums=0), (matrix, matrix, matrix, of(*[basis] * 4))


def quasi_newton() -> tuple[Any, Types]:
    """Return a step of L-BFGS on all rows: a direction from past differences, and a line search that halves."""
    inputs, width, classes, rows, memory = 256, 384, 10, 8192, 8
    sizes = [(inputs, width), (width, width), (width, classes)]
    count = sum(a * b for a, b in sizes)

    def loss(flat: Any, x: Any, labels: Any) -> Any:
        start = 0
        for number, (a, b) in enumerate(sizes):
            x = x @ flat[start : start + a * b].reshape(a, b)
            x = jnp.tanh(x) if number < len(sizes) - 1 else x
            start += a * b
        return cross_entropy(x, labels) + 1e-4 * jnp.sum(flat**2)

    def step(state: Any, x: Any, labels: Any) -> Any:
        params, moves, changes = state
        value, slope = jax.value_and_grad(loss)(params, x, labels)
        products = jnp.sum(moves * changes, 1)
        scales = jnp.where(jnp.abs(products) > 1e-10, 1 / products, 0)

        def backward(number: Any, carry: Any) -> Any:
            direction, shares = carry
            index = memory - 1 - number
            share = scales[index] * jnp.dot(moves[index], direction)
            return direction - share * changes[index], shares.at[index].set(share)

        def forward(index: Any, direction: Any) -> Any:
            back = scales[index] * jnp.dot(changes[index], direction)
            return direction + (shares[index] - back) * moves[index]

        direction, shares = lax.fori_loop(0, memory, backward, (slope, jnp.zeros(memory)))
        curvature = jnp.sum(changes[-1] ** 2)
        direction = direction * jnp.where(curvature > 1e-10, jnp.abs(products[-1]) / curvature, 1.0)
        direction = -lax.fori_loop(0, memory, forward, direction)
        descent = jnp.dot(direction, slope)

        def too_long(carry: Any) -> Any:
            size, tried = carry
            return (loss(params + size * direction, x, labels) > value + 1e-4 * size * descent) & (tried < 12)

        size, _ = lax.while_loop(too_long, lambda carry: (carry[0] / 2, carry[1] + 1), (jnp.ones(()), 0))
        new = params + size * direction
        change = jax.grad(loss)(new, x, labels) - slope
        moves = jnp.concatenate([moves[1:], (new - params)[None]])
        return (new, moves, jnp.concatenate([changes[1:], change[None]])), value

    history = of(memory, count)
    return jax.jit(step, donate_argnums=0), ((of(count), history, history), of(rows, inputs), of(rows, dtype=I32))


def smoothed_states() -> tuple[Any, Types]:
    """Return the smoothed states of many linear models with noise, by two associative scans along time."""
    batch, length, states, seen = 128, 32, 16, 8

    def transposed(x: Any) -> Any:
        return jnp.swapaxes(x, -1, -2)

    def applied(matrix: Any, x: Any) -> Any:
        return jnp.einsum("...ij,...j->...i", matrix, x)

    def combine_filter(one: Any, two: Any) -> Any:
        a1, b1, c1, e1, j1 = one
        a2, b2, c2, e2, j2 = two
        eye = jnp.eye(states)
        left = transposed(jnp.linalg.solve(transposed(eye + c1 @ j2), transposed(a2)))
        right = transposed(jnp.linalg.solve(transposed(eye + j2 @ c1), a1))
        return (
            left @ a1,
            applied(left, b1 + applied(c1, e2)) + b2,
            left @ c1 @ transposed(a2) + c2,
            applied(right, e2 - applied(j2, b1)) + e1,
            right @ j2 @ a1 + j1,
        )

    def combine_smoother(later: Any, earlier: Any) -> Any:
        e1, g1, l1 = later
        e2, g2, l2 = earlier
        return e2 @ e1, applied(e2, g1) + g2, e2 @ l1 @ transposed(e2) + l2

    def smooth(rows: Any, motion: Any, look: Any) -> Any:
        motion = 0.9 * jnp.eye(states) + 0.1 * motion
        noise, blur = 0.1 * jnp.eye(states), 0.5 * jnp.eye(seen)
        spread = look @ noise @ look.T + blur
        gain = jnp.linalg.solve(spread, look @ noise).T
        seen_motion = look @ motion
        information = seen_motion.T @ jnp.linalg.solve(spread, jnp.eye(seen))
        first_gain = jnp.linalg.solve(look @ look.T + blur, look).T

        def stacked(first: Any, other: Any) -> Any:
            return jnp.concatenate([first[None], jnp.broadcast_to(other, (length - 1, *other.shape))])

        elements = (
            stacked(jnp.zeros_like(motion), motion - gain @ seen_motion),
            jnp.concatenate([(first_gain @ rows[0])[None], rows[1:] @ gain.T]),
            stacked(jnp.eye(states) - first_gain @ look, noise - gain @ look @ noise),
            rows @ information.T,
            jnp.broadcast_to(information @ seen_motion, (length, states, states)),
        )
        _, means, covariances, _, _ = lax.associative_scan(combine_filter, elements)
        ahead = motion @ covariances @ motion.T + noise
        back = transposed(jnp.linalg.solve(ahead, motion @ covariances))
        back = back.at[-1].set(0)
        gains = means - applied(back @ motion, means)
        rest = covariances - back @ motion @ covariances
        _, means, covariances = lax.associative_scan(combine_smoother, (back, gains, rest), reverse=True)
        return means, covariances

    types = (of(batch, length, seen), of(batch, states, states), of(batch, seen, states))
    return jax.jit(jax.vmap(smooth)), types


def boosted_trees() -> tuple[Any, Types]:
    """Return predictions after four more trees, grown level by level from histograms of features of eight bits."""
    rows, features, bins, depth, trees = 65536, 24, 64, 5, 4

    def grow(scores: Any, _: Any, table: Any, labels: Any) -> Any:
        shares = nn.sigmoid(scores)
        slopes, curves = shares - labels, shares * (1 - shares)
        home, splits = jnp.zeros(rows, I32), []
        for level in range(depth):
            nodes = 2**level

            def histogram(column: Any, home: Any = home, nodes: int = nodes) -> Any:
                place = home * bins + column.astype(I32) % bins
                both = jax.ops.segment_sum(jnp.stack([slopes, curves], -1), place, nodes * bins)
                return both.reshape(nodes, bins, 2)

            sums = jnp.cumsum(jax.vmap(histogram)(table), 2)
            left, total = sums, sums[:, :, -1:]
            right = total - left
            gain = left[..., 0] ** 2 / (left[..., 1] + 1) + right[..., 0] ** 2 / (right[..., 1] + 1)
            best = jnp.argmax(gain.transpose(1, 0, 2).reshape(nodes, -1), -1)
            feature, bound = best // bins, best % bins
            own = jnp.take_along_axis(table, feature[home][None], 0)[0].astype(I32) % bins
            home = 2 * home + (own > bound[home])
            splits.append((feature, bound))
        above = jax.ops.segment_sum(slopes, home, 2**depth)
        below = jax.ops.segment_sum(curves, home, 2**depth)
        leaves = -0.1 * above / (below + 1)
        return scores + leaves[home], (splits, leaves)

    def step(scores: Any, table: Any, labels: Any) -> Any:
        return lax.scan(lambda scores, x: grow(scores, x, table, labels), scores, None, length=trees)

    return jax.jit(step, donate_argnums=0), (of(rows), of(features, rows, dtype=U8), of(rows))


def clipped_policy() -> tuple[Any, Types]:
    """Return a step of PPO: episodes, advantages by a reverse scan, and epochs of shuffled minibatches of Adam."""
    games, steps, seen, actions, width, epochs, parts = 512, 32, 48, 6, 256, 2, 4

    def act(params: Tree, x: Any) -> Any:
        for w, b in params["layers"]:
            x = jnp.tanh(x @ w + b)
        return x @ params["mean"], (x @ params["value"])[..., 0]

    def likelihood(params: Tree, mean: Any, action: Any) -> Any:
        scaled = (action - mean) * jnp.exp(-params["spread"])
        return jnp.sum(-0.5 * scaled**2 - params["spread"], -1)

    def loss(params: Tree, batch: Tree) -> Any:
        mean, value = act(params, batch["seen"])
        ratio = jnp.exp(likelihood(params, mean, batch["action"]) - batch["likelihood"])
        gain = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-6)
        policy = -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
        return policy + 0.5 * jnp.mean((value - batch["return"]) ** 2) - 0.01 * jnp.sum(params["spread"])

    def step(state: Any, world: Any, dynamics: Tree, seed: Any) -> Any:
        params, means, squares = state
        keys = random.split(random.key(seed), steps + epochs)

        def play(world: Any, key: Any) -> Any:
            mean, value = act(params, world)
            action = mean + jnp.exp(params["spread"]) * random.normal(key, mean.shape)
            following = jnp.tanh(world @ dynamics["motion"] + action @ dynamics["push"])
            row = {"seen": world, "action": action, "likelihood": likelihood(params, mean, action), "value": value}
            return following, row | {"reward": jnp.cos(following).mean(-1) - 0.01 * jnp.sum(action**2, -1)}

        world, played = lax.scan(play, world, keys[:steps])
        _, last = act(params, world)

        def advantage(carry: Any, row: Any) -> Any:
            following, sum_ahead = carry
            reward, value = row
            sum_ahead = reward + 0.99 * following - value + 0.99 * 0.95 * sum_ahead
            return (value, sum_ahead), sum_ahead

        start = (last, jnp.zeros_like(last))
        _, advantages = lax.scan(advantage, start, (played["reward"], played["value"]), reverse=True)
        kept = {name: played[name] for name in ("seen", "action", "likelihood")}
        kept |= {"advantage": advantages, "return": advantages + played["value"]}
        flat = jax.tree.map(lambda x: x.reshape(games * steps, *x.shape[2:]), kept)

        def epoch(state: Any, key: Any) -> Any:
            order = random.permutation(key, games * steps).reshape(parts, -1)

            def minibatch(state: Any, rows: Any) -> Any:
                params, means, squares = state
                value, slopes = jax.value_and_grad(loss)(params, jax.tree.map(lambda x: x[rows], flat))
                means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, slopes)
                squares = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, squares, slopes)
                params = jax.tree.map(lambda p, m, s: p - 3e-4 * m / (jnp.sqrt(s) + 1e-5), params, means, squares)
                return (params, means, squares), value

            return lax.scan(minibatch, state, order)

        state, values = lax.scan(epoch, (params, means, squares), keys[steps:])
        return state, world, values.mean()

    layers = [(of(seen, width), of(width)), (of(width, width), of(width))]
    params = {"layers": layers, "mean": of(width, actions), "value": of(width, 1), "spread": of(actions)}
    dynamics = {"motion": of(seen, seen), "push": of(actions, seen)}
    return jax.jit(step, donate_argnums=0), ((params,) * 3, of(games, seen), dynamics, of(dtype=U32))


def product_codes() -> tuple[Any, Types]:
    """Return the best entries for queries, by sums over tables that codes of eight bits index, ranked again in f32."""
    entries, parts, width, queries, block, candidates, best = 262144, 16, 128, 64, 16384, 128, 10

    def search(queries: Any, codebooks: Any, codes: Any, vectors: Any) -> Any:
        split = queries.reshape(-1, parts, 1, width // parts)
        tables = -jnp.sum((split - codebooks[None]) ** 2, -1)

        def advance(carry: Any, row: Any) -> Any:
            scores, indices = carry
            number, block_codes = row
            places = jnp.broadcast_to(block_codes.T.astype(I32), (queries.shape[0], parts, block))
            sums = jnp.take_along_axis(tables, places, 2).sum(1)
            own = jnp.broadcast_to(number * block + jnp.arange(block, dtype=I32), sums.shape)
            scores, kept = lax.top_k(jnp.concatenate([scores, sums], 1), candidates)
            return (scores, jnp.take_along_axis(jnp.concatenate([indices, own], 1), kept, 1)), None

        start = (jnp.full((queries.shape[0], candidates), -1e30), jnp.zeros((queries.shape[0], candidates), I32))
        blocks = (jnp.arange(entries // block), codes.reshape(-1, block, parts))
        (_, indices), _ = lax.scan(advance, start, blocks)
        exact = jnp.sum(vectors[indices].astype(F32) * queries[:, None], -1)
        scores, kept = lax.top_k(exact, best)
        return jnp.take_along_axis(indices, kept, 1), scores

    types = (of(queries, width), of(parts, 256, width // parts), of(entries, parts, dtype=U8))
    return jax.jit(search), (*types, of(entries, width, dtype=jnp.float16))


def session_recommender() -> tuple[Any, Types]:
    """Return a model of the next item in a session, with bags of tags per item and sampled negatives."""
    items, tags, width, batch, length, bag, negatives = 60000, 20000, 96, 128, 48, 8, 2048

    def loss(params: Tree, sessions: Any, labels: Any, bags: Any, seed: Any) -> Any:
        own = params["tags"][jnp.maximum(bags, 0)]
        present = (bags >= 0)[..., None]
        described = jnp.sum(own * present, 2) / jnp.maximum(present.sum(2), 1)
        x = params["items"][sessions] + described + params["places"]
        mask = jnp.tril(jnp.ones((length, length), bool)) & (sessions >= 0)[:, None, None]
        for p in params["layers"]:
            h = layer_norm(x, p["n1"])
            x = x + attend(2, h @ p["q"], h @ p["k"], h @ p["v"], mask) @ p["o"]
            x = x + nn.relu(layer_norm(x, p["n2"]) @ p["up"]) @ p["down"]
        drawn = (random.uniform(random.key(seed), (negatives,)) ** 3 * items).astype(I32)
        rate = jnp.log((drawn + 1.0) ** (-2 / 3) / 3 * items ** (-1 / 3))
        right = jnp.sum(x * params["items"][labels], -1)
        wrong = jnp.einsum("bld,nd->bln", x, params["items"][drawn]) - rate
        wrong = jnp.where(labels[..., None] == drawn, -1e9, wrong)
        return jnp.mean(jnp.logaddexp(right, nn.logsumexp(wrong, -1)) - right)

    square = of(width, width)
    layer = {**dict.fromkeys("qkvo", square), "n1": of(width), "n2": of(width)}
    layer |= {"up": of(width, 4 * width), "down": of(4 * width, width)}
    params = {"items": of(items, width), "tags": of(tags, width), "places": of(length, width), "layers": [layer] * 2}
    numbers = of(batch, length, dtype=I32)
    return momentum(loss, params, numbers, numbers, of(batch, length, bag, dtype=I32), of(dtype=U32))


def sliding_queries(mesh: Mesh) -> tuple[Any, Types]:
    """Return a decoder with one head of keys, whose layers read a window or all tokens, with capped scores."""
    width, heads, head, window, pairs, length = 512, 8, 64, 128, 3, 512

    def loss(params: Tree, tokens: Any) -> Any:
        places = jnp.arange(length)
        causal = places[:, None] >= places
        near = causal & (places[:, None] - places < window)

        def layer(x: Any, w: Tree, mask: Any) -> Any:
            w = jax.tree.map(lambda leaf: leaf.astype(BF16), w)
            h = normalized(x)
            q = rotated((h @ w["q"]).reshape(*h.shape[:2], heads, head), places)
            k = rotated((h @ w["k"])[:, :, None], places)[:, :, 0]
            scores = jnp.einsum("bqhd,bkd->bhqk", q, k).astype(F32) * head**-0.5
            scores = jnp.where(mask, 50 * jnp.tanh(scores / 50), -1e9)
            out = jnp.einsum("bhqk,bkd->bqhd", nn.softmax(scores).astype(BF16), h @ w["v"])
            x = x + normalized(out.reshape(*h.shape[:2], -1) @ w["o"])
            gate, up = jnp.split(normalized(x) @ w["up"], 2, -1)
            return x + normalized((nn.gelu(gate) * up) @ w["down"])

        @jax.checkpoint
        def pair(x: Any, both: Any) -> Any:
            return layer(layer(x, both[0], near), both[1], causal), None

        words = params["words"].astype(BF16)
        x, _ = lax.scan(pair, words[tokens[:, :-1]] * width**0.5, params["layers"])
        logits = normalized(x) @ words.T
        return cross_entropy(30 * jnp.tanh(logits.astype(F32) / 30), tokens[:, 1:])

    layer = {"q": of(pairs, width, heads * head), "o": of(pairs, heads * head, width), "k": of(pairs, width, head)}
    layer |= {"v": of(pairs, width, head), "up": of(pairs, width, 4096), "down": of(pairs, 2048, width)}
    params = sharded(mesh, {"words": of(16000, width), "layers": (layer, layer)})
    return adam(loss, params, sharded(mesh, of(8, length + 1, dtype=I32), "data"))


def ring_attention(mesh: Mesh) -> tuple[Any, Types]:
    """Return layers whose sequences are sharded, and whose keys and values travel from device to device."""
    width, heads, layers, batch, length = 256, 4, 3, 2, 2048
    count, head = mesh.shape["sequence"], width // heads

    def around(q: Any, k: Any, v: Any) -> Any:
        here, own = lax.axis_index("sequence"), q.shape[1]
        places = here * own + jnp.arange(own)

        def advance(carry: Any, number: Any) -> Any:
            most, total, out, k, v = carry
            theirs = (here - number) % count * own + jnp.arange(own)
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * head**-0.5
            scores = jnp.where(places[:, None] >= theirs, scores, -1e9)
            new = jnp.maximum(most, scores.max(-1))
            shares, scale = jnp.exp(scores - new[..., None]), jnp.exp(most - new)
            out = out * scale[..., None] + jnp.einsum("bhqk,bkhd->bhqd", shares, v)
            ring = [(index, (index + 1) % count) for index in range(count)]
            k, v = lax.ppermute(k, "sequence", ring), lax.ppermute(v, "sequence", ring)
            return (new, total * scale + shares.sum(-1), out, k, v), None

        zeros = jnp.zeros_like(q).transpose(0, 2, 1, 3)
        start = (zeros[..., 0] - 1e9, zeros[..., 0], zeros, k, v)
        (_, total, out, *_), _ = lax.scan(jax.checkpoint(advance), start, jnp.arange(count))
        return (out / total[..., None]).transpose(0, 2, 1, 3)

    spec = jax.P(None, "sequence")
    attention = jax.shard_map(around, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec)

    def loss(params: Tree, x: Any, y: Any) -> Any:
        def layer(x: Any, w: Tree) -> Any:
            h = normalized(x)
            q, k, v = ((h @ w[name]).reshape(batch, length, heads, head) for name in "qkv")
            x = x + attention(q, k, v).reshape(x.shape) @ w["o"]
            return x + nn.gelu(normalized(x) @ w["up"]) @ w["down"], None

        x, _ = lax.scan(layer, x, params)
        return jnp.mean((x - y) ** 2)

    rows = sharded(mesh, of(batch, length, width), None, "sequence")
    return adam(loss, sharded(mesh, transformer_weights(width, layers)), rows, rows)


def stacked_stages(mesh: Mesh) -> tuple[Any, Types]:
    """Return a pipeline as one program: microbatches roll through a buffer of stages, which is sharded."""
    stages, deep, width, microbatches, rows, length = mesh.shape["stage"], 2, 384, 8, 4, 256

    def stage(x: Any, weights: Tree) -> Any:
        x, _ = lax.scan(lambda x, w: (transformer_layer(6, True, x, w), None), x, weights)
        return x

    def loss(params: Tree, tokens: Any) -> Any:
        where = jax.NamedSharding(mesh, jax.P("stage", "data"))
        words = params["words"].astype(BF16)
        entries = words[tokens[..., :-1]]
        entries = jnp.concatenate([entries, jnp.zeros((stages - 1, *entries.shape[1:]), BF16)])

        def tick(buffer: Any, entry: Any) -> Any:
            buffer = lax.with_sharding_constraint(jnp.roll(buffer, 1, 0).at[0].set(entry), where)
            buffer = jax.vmap(jax.checkpoint(stage))(buffer, params["layers"])
            return buffer, buffer[-1]

        start = lax.with_sharding_constraint(jnp.zeros((stages, rows, length, width), BF16), where)
        _, outs = lax.scan(tick, start, entries)
        logits = normalized(outs[stages - 1 :]) @ words.T
        return cross_entropy(logits, tokens[..., 1:])

    stack = jax.tree.map(lambda leaf: leaf.update(shape=(stages, *leaf.shape)), transformer_weights(width, deep))
    params = {"words": sharded(mesh, of(4096, width)), "layers": sharded(mesh, stack, "stage")}
    return momentum(loss, params, sharded(mesh, of(microbatches, rows, length + 1, dtype=I32), None, "data"))


def shallow_water(mesh: Mesh) -> tuple[Any, Types]:
    """Return steps of waves on a rotating plane, whose rows and columns are sharded, and their energies."""
    size, steps, pace = 2048, 24, 0.1

    def simulate(state: Any, depth: Any) -> Any:
        rotation = 0.05 * jnp.linspace(-1, 1, size)[:, None]

        def along(x: Any, dim: int) -> Any:
            return (jnp.roll(x, -1, dim) - jnp.roll(x, 1, dim)) / 2

        def tendency(state: Any) -> Any:
            height, u, v = state
            water = height + 10 + jnp.abs(depth)
            vorticity = along(v, 1) - along(u, 0) + rotation
            head = 0.5 * (u**2 + v**2) + 9.8 * 0.01 * height
            return (
                -along(water * u, 1) - along(water * v, 0),
                vorticity * v - along(head, 1),
                -vorticity * u - along(head, 0),
            )

        def advance(state: Any, _: Any) -> Any:
            half = jax.tree.map(lambda x, k: x + pace / 2 * k, state, tendency(state))
            state = jax.tree.map(lambda x, k: x + pace * k, state, tendency(half))
            height, u, v = state
            return state, jnp.mean(u**2 + v**2 + 0.1 * height**2)

        return lax.scan(advance, state, None, length=steps)

    field = sharded(mesh, of(size, size), "rows", "columns")
    return jax.jit(simulate, donate_argnums=0), ((field,) * 3, field)


def frozen_base(mesh: Mesh) -> tuple[Any, Types]:
    """Return a step on matrices of low rank beside frozen weights of eight bits, sharded by heads and units."""
    width, hidden, heads, rank, layers, length = 768, 2048, 12, 16, 4, 512

    def product(x: Any, base: Tree, delta: Tree) -> Any:
        weights = base["bytes"].astype(BF16) * base["scales"].astype(BF16)
        return x @ weights + 2.0 * ((x @ delta["a"].astype(BF16)) @ delta["b"].astype(BF16))

    def loss(params: Tree, base: Tree, tokens: Any, answered: Any) -> Any:
        mask = jnp.tril(jnp.ones((length, length), bool))

        @jax.checkpoint
        def layer(x: Any, both: Any) -> Any:
            w, delta = both
            h = normalized(x)
            q, k, v = (product(h, w[name], delta[name]) for name in "qkv")
            x = x + product(attend(heads, q, k, v, mask), w["o"], delta["o"])
            h = normalized(x)
            h = nn.silu(product(h, w["gate"], delta["gate"])) * product(h, w["up"], delta["up"])
            return x + product(h, w["down"], delta["down"]), None

        x, _ = lax.scan(layer, base["words"][tokens[:, :-1]], (base["layers"], params))
        logits = (normalized(x) @ base["words"].T).astype(F32)
        right = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        losses = (nn.logsumexp(logits, -1) - right) * answered
        return jnp.sum(losses) / jnp.maximum(jnp.sum(answered), 1)

    sizes = {**dict.fromkeys("qkvo", (width, width)), **dict.fromkeys(("gate", "up"), (width, hidden))}
    sizes["down"] = (hidden, width)
    base, deltas = {}, {}
    for name, (inner, outer) in sizes.items():
        rows, columns = ("model", None) if name in ("o", "down") else (None, "model")
        base[name] = {
            "bytes": sharded(mesh, of(layers, inner, outer, dtype=I8), None, rows, columns),
            "scales": sharded(mesh, of(layers, 1, outer), None, None, columns),
        }
        deltas[name] = {
            "a": sharded(mesh, of(layers, inner, rank), None, rows),
            "b": sharded(mesh, of(layers, rank, outer), None, None, columns),
        }
    frozen = {"words": sharded(mesh, of(16000, width, dtype=BF16), "model"), "layers": base}
    batch = sharded(mesh, (of(4, length + 1, dtype=I32), of(4, length)))
    return adam(loss, deltas, frozen, *batch)


def principal_directions(mesh: Mesh) -> tuple[Any, Types]:
    """Return the largest singular values of a tall matrix by random products, whose rows are sharded."""
    rows, columns, rank = 65536, 512, 96

    def orthonormal(x: Any) -> Any:
        for _ in range(2):
            factor = jnp.linalg.cholesky(x.T @ x + 1e-4 * jnp.eye(x.shape[1]))
            x = lax.linalg.triangular_solve(factor, x, left_side=False, lower=True, transpose_a=True)
        return x

    def factorize(matrix: Any, seed: Any) -> Any:
        centered = matrix - matrix.mean(0)
        sketch = centered @ random.normal(random.key(seed), (columns, rank))
        for _ in range(2):
            sketch = centered @ orthonormal(centered.T @ orthonormal(sketch))
        basis = orthonormal(sketch)
        u, values, directions = jnp.linalg.svd(basis.T @ centered, full_matrices=False)
        return (basis @ u) * values, directions, values**2 / rows

    types = (sharded(mesh, of(rows, columns), "rows"), sharded(mesh, of(dtype=U32)))
    return jax.jit(factorize), types


def paired_towers(mesh: Mesh) -> tuple[Any, Types]:
    """Return a step on pairs of images and texts with a sigmoid per pair, whose weights and batch are sharded."""
    width, out, batch, patches, words = 256, 256, 256, 64, 32

    def tower(x: Any, weights: Tree, w: Any) -> Any:
        layer = jax.checkpoint(lambda x, w: (transformer_layer(4, False, x, w), None))
        x, _ = lax.scan(layer, x, weights)
        x = normalized(x).mean(1).astype(F32) @ w
        return x * lax.rsqrt(jnp.sum(x**2, -1, keepdims=True) + 1e-6)

    def loss(params: Tree, images: Any, texts: Any) -> Any:
        x = images.astype(BF16) @ params["in"].astype(BF16)
        images = tower(x, params["image"], params["image_out"])
        texts = tower(params["words"].astype(BF16)[texts], params["text"], params["text_out"])
        logits = jnp.exp(params["scale"]) * images @ texts.T + params["bias"]
        signs = 2 * jnp.eye(batch) - 1
        return -jnp.sum(nn.log_sigmoid(signs * logits)) / batch

    matrices = {"in": of(768, width), "words": of(16384, width), "image_out": of(width, out)}
    params = sharded(mesh, {**matrices, "text_out": of(width, out)}, "data")
    stacks = {"image": transformer_weights(width, 4), "text": transformer_weights(width, 4)}
    params |= sharded(mesh, stacks, None, "data") | sharded(mesh, {"scale": of(), "bias": of()})
    batches = sharded(mesh, (of(batch, patches, 768), of(batch, words, dtype=I32)), "data")
    return adam(loss, params, *batches)


STEPS = by_name(
    selective_scan,
    weighted_recurrence,
    latent_attention,
    packed_weights,
    speech_recognition,
    raw_audio,
    dense_connections,
    detector,
    optical_flow,
    point_cloud,
    mesh_simulator,
    lattice_fluid,
    spectral_flow,
    quantum_circuit,
    smoothed_states,
    boosted_trees,
    clipped_policy,
    product_codes,
    session_recommender,
) | {"self-consistent field": self_consistent_field, "quasi-Newton": quasi_newton}

SHARDED = by_name(
    sliding_queries,
    ring_attention,
    stacked_stages,
    shallow_water,
    frozen_base,
    principal_directions,
    paired_towers,
)

MESHES = {
    "sliding queries": {"data": 2},
    "ring attention": {"sequence": 4},
    "stacked stages": {"stage": 4, "data": 2},
    "shallow water": {"rows": 4, "columns": 2},
    "frozen base": {"model": 2},
    "principal directions": {"rows": 4},
    "paired towers": {"data": 8},
}
