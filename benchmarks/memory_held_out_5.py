"""A fifth set of held-out steps for `benchmarks/memory_predictions.py`, at sizes where memory matters.

The author had read neither the code of the memory model nor any prediction of these steps. They are steps that people
train and serve, with 0.5 to 8 GB of arguments and temporaries on each device. `STEPS` has the steps on one device by
name, `SHARDED` those on a mesh, and `MESHES` the shapes of these meshes.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks.memory_held_out import Mesh, Tree, sharded
from benchmarks.memory_models import BF16, F32, I32, Types, adam, by_name, conv, cross_entropy, of
from shardwise import lax, nn, random

I8, U8, U32 = jnp.int8, jnp.uint8, jnp.uint32


def dropout(key: Any, x: Any, rate: float) -> Any:
    return jnp.where(random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def rms_norm(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def affine_norm(p: Tree, x: Any) -> Any:
    """Return a layer norm with a scale and an offset, computed in f32."""
    wide = x.astype(F32)
    mean = wide.mean(-1, keepdims=True)
    variance = wide.var(-1, keepdims=True)
    return ((wide - mean) * lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]).astype(x.dtype)


def dense(p: Tree, x: Any) -> Any:
    return x @ p["kernel"].astype(x.dtype) + p["bias"].astype(x.dtype)


def dense_types(inner: int, outer: int) -> Tree:
    return {"kernel": of(inner, outer), "bias": of(outer)}


def norm_types(width: int) -> Tree:
    return {"scale": of(width), "bias": of(width)}


def rotary(x: Any, positions: Any, base: float = 10000.0) -> Any:
    """Return heads [..., length, heads, head] with their halves rotated by the positions."""
    half = x.shape[-1] // 2
    angles = positions[..., None] * base ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[..., None, :], jnp.sin(angles)[..., None, :]
    left, right = jnp.split(x.astype(F32), 2, -1)
    return jnp.concatenate([left * cos - right * sin, left * sin + right * cos], -1).astype(x.dtype)


def clipped(gradients: Tree, limit: float = 1.0) -> Tree:
    """Return gradients whose global norm is at most `limit`."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(F32))) for g in jax.tree.leaves(gradients)))
    return jax.tree.map(lambda g: g * jnp.minimum(1.0, limit / (norm + 1e-6)), gradients)


def adamw(state: Tree, gradients: Tree, rate: Any, decay: Tree | float = 0.1, beta: float = 0.95) -> Tree:
    """Return a state of parameters, moments and a count after an update of AdamW.

    Args:
        state: a dict of `params`, `mu`, `nu` and `count`.
        gradients: the gradients of the parameters.
        rate: the learning rate.
        decay: the weight decay of all parameters, or of each.
        beta: the decay of the second moments.
    """
    count = state["count"] + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], gradients)
    nu = jax.tree.map(lambda n, g: beta * n + (1 - beta) * jnp.square(g), state["nu"], gradients)
    decays = jax.tree.map(lambda _: decay, mu) if isinstance(decay, float) else decay

    def update(p: Any, m: Any, n: Any, d: Any) -> Any:
        return p - rate * (m / (1 - 0.9**count) / (jnp.sqrt(n / (1 - beta**count)) + 1e-8) + d * p)

    return {"params": jax.tree.map(update, state["params"], mu, nu, decays), "mu": mu, "nu": nu, "count": count}


def adamw_state(params: Tree) -> Tree:
    return {"params": params, "mu": params, "nu": params, "count": of(dtype=I32)}


class DropoutDecoder:
    """GPT-2: layer norms with offsets, learned positions, dropout, and logits from the table of words."""

    def __init__(self, layers: int, width: int, heads: int, words: int, context: int, rate: float) -> None:
        self.layers, self.width, self.heads = layers, width, heads
        self.words, self.context, self.rate = words, context, rate

    def init(self, key: Any) -> Tree:
        keys = iter(random.split(key, 4 * self.layers + 2))
        width = self.width

        def linear(inner: int, outer: int) -> Tree:
            return {"kernel": 0.02 * random.normal(next(keys), (inner, outer)), "bias": jnp.zeros(outer)}

        def norm() -> Tree:
            return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

        blocks = {}
        for layer in range(self.layers):
            attention = {"c_attn": linear(width, 3 * width), "c_proj": linear(width, width)}
            mlp = {"c_fc": linear(width, 4 * width), "c_proj": linear(4 * width, width)}
            blocks[f"h_{layer}"] = {"ln_1": norm(), "attn": attention, "ln_2": norm(), "mlp": mlp}
        tables = {"wte": 0.02 * random.normal(next(keys), (self.words, width))}
        tables["wpe"] = 0.01 * random.normal(next(keys), (self.context, width))
        return tables | blocks | {"ln_f": norm()}

    def block(self, p: Tree, x: Any, key: Any) -> Any:
        batch, length, width = x.shape
        first, second, third = random.split(key, 3)
        q, k, v = jnp.split(dense(p["attn"]["c_attn"], affine_norm(p["ln_1"], x)), 3, axis=-1)
        q, k, v = (y.reshape(batch, length, self.heads, -1).transpose(0, 2, 1, 3) for y in (q, k, v))
        scores = (q @ k.swapaxes(-1, -2)) / math.sqrt(width // self.heads)
        causal = jnp.tril(jnp.ones((length, length), bool))
        scores = jnp.where(causal, scores.astype(F32), jnp.finfo(F32).min)
        shares = dropout(first, nn.softmax(scores).astype(x.dtype), self.rate)
        out = (shares @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
        x = x + dropout(second, dense(p["attn"]["c_proj"], out), self.rate)
        h = nn.gelu(dense(p["mlp"]["c_fc"], affine_norm(p["ln_2"], x)))
        return x + dropout(third, dense(p["mlp"]["c_proj"], h), self.rate)

    def __call__(self, params: Tree, tokens: Any, key: Any) -> Any:
        x = (params["wte"][tokens] + params["wpe"][: tokens.shape[1]]).astype(BF16)
        x = dropout(random.fold_in(key, self.layers), x, self.rate)
        for layer in range(self.layers):
            x = self.block(params[f"h_{layer}"], x, random.fold_in(key, layer))
        return affine_norm(params["ln_f"], x) @ params["wte"].astype(BF16).T


def decoder_with_dropout() -> tuple[Any, Types]:
    """Return a step of GPT-2 with a schedule of learning rates, and weight decay of matrices only."""
    model = DropoutDecoder(6, 768, 12, 50257, 512, 0.1)

    def rate_at(count: Any) -> Any:
        warm = count / 2000
        cosine = 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip((count - 2000) / 98000, 0, 1)))
        return 6e-4 * jnp.where(count < 2000, warm, 0.1 + 0.9 * cosine)

    def loss(params: Tree, tokens: Any, key: Any) -> Any:
        return cross_entropy(model(params, tokens[:, :-1], key), tokens[:, 1:])

    @partial(jax.jit, donate_argnums=0)
    def step(state: Tree, tokens: Any, seed: Any) -> Any:
        key = random.fold_in(random.key(seed), state["count"])
        value, gradients = jax.value_and_grad(loss)(state["params"], tokens, key)
        decay = jax.tree.map_with_path(
            lambda path, _: 0.1 if jax.tree_util.keystr(path).endswith("['kernel']") else 0.0, gradients
        )
        return adamw(state, clipped(gradients), rate_at(state["count"]), decay), value

    params = jax.eval_shape(model.init, random.key(0))
    params = jax.tree.map(lambda leaf: of(*leaf.shape), params)
    return step, (adamw_state(params), of(8, 513, dtype=I32), of(dtype=U32))


def stabilized_logits() -> tuple[Any, Types]:
    """Return a decoder with grouped heads and recomputed layers in a scan, and a loss of the logits' normalizers."""
    layers, width, heads, groups, head, hidden, words = 12, 1024, 16, 4, 64, 2816, 32000

    def layer(x: Any, w: Tree) -> tuple[Any, None]:
        w = jax.tree.map(lambda leaf: leaf.astype(BF16) if leaf.ndim > 1 else leaf, w)
        positions = jnp.arange(x.shape[1])
        h = rms_norm(x, w["attention_norm"])
        q = rotary(jnp.einsum("btd,dhk->bthk", h, w["q"]), positions)
        k = rotary(jnp.einsum("btd,dhk->bthk", h, w["k"]), positions)
        v = jnp.einsum("btd,dhk->bthk", h, w["v"])
        x = x + jnp.einsum("bthk,hkd->btd", nn.dot_product_attention(q, k, v, is_causal=True), w["o"])
        h = rms_norm(x, w["mlp_norm"])
        return x + (nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], None

    def loss(params: Tree, inputs: Any, targets: Any) -> Any:
        x = params["embedding"].astype(BF16)[inputs]
        x, _ = lax.scan(jax.checkpoint(layer), x, params["layers"])
        logits = (rms_norm(x, params["norm"]) @ params["output"].astype(BF16)).astype(F32)
        normalizer = nn.logsumexp(logits, -1)
        chosen = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[..., None], -1)[..., 0]
        kept = targets >= 0
        losses = normalizer - chosen + 1e-4 * normalizer**2
        return jnp.sum(losses * kept) / jnp.maximum(kept.sum(), 1)

    @partial(jax.jit, donate_argnums=0)
    def step(state: Tree, batch: Tree) -> Any:
        value, gradients = jax.value_and_grad(loss)(state["params"], batch["inputs"], batch["targets"])
        return adamw(state, clipped(gradients), 3e-4), {"loss": value}

    stack = {"q": of(layers, width, heads, head), "o": of(layers, heads, head, width)}
    stack |= dict.fromkeys("kv", of(layers, width, groups, head))
    stack |= dict.fromkeys(("gate", "up"), of(layers, width, hidden)) | {"down": of(layers, hidden, width)}
    stack |= dict.fromkeys(("attention_norm", "mlp_norm"), of(layers, width))
    params = {"embedding": of(words, width), "layers": stack, "norm": of(width), "output": of(width, words)}
    return step, (adamw_state(params), dict.fromkeys(("inputs", "targets"), of(8, 1024, dtype=I32)))


def packed_documents() -> tuple[Any, Types]:
    """Return a decoder like Gemma on packed documents: soft caps, windows in every second layer, and Lion."""
    pairs, width, heads, groups, head, hidden, words, window = 3, 1024, 8, 4, 128, 4096, 64000, 256

    def attention(w: Tree, x: Any, mask: Any, positions: Any) -> Any:
        q = rotary(jnp.einsum("td,dhk->thk", x, w["q"]), positions).reshape(-1, groups, heads // groups, head)
        k = rotary(jnp.einsum("td,dhk->thk", x, w["k"]), positions)
        v = jnp.einsum("td,dhk->thk", x, w["v"])
        scores = jnp.einsum("tghk,sgk->ghts", q, k).astype(F32) * head**-0.5
        scores = jnp.where(mask, 50 * jnp.tanh(scores / 50), -2.3e38)
        out = jnp.einsum("ghts,sgk->tghk", nn.softmax(scores).astype(BF16), v)
        return jnp.einsum("thk,hkd->td", out.reshape(-1, heads, head), w["o"])

    def layer(w: Tree, x: Any, mask: Any, positions: Any) -> Any:
        h = attention(w, rms_norm(x, 1 + w["n1"]), mask, positions)
        x = x + rms_norm(h, 1 + w["n2"])
        h = rms_norm(x, 1 + w["n3"])
        h = (nn.gelu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
        return x + rms_norm(h, 1 + w["n4"])

    def document_loss(params: Tree, tokens: Any, segments: Any, positions: Any) -> Any:
        """Return the sum of the losses of one row, and how many tokens have one."""
        length = tokens.shape[0] - 1
        inputs, own, positions = tokens[:-1], segments[:-1], positions[:-1]
        distance = jnp.arange(length)[:, None] - jnp.arange(length)
        everywhere = (distance >= 0) & (own[:, None] == own)
        x = params["words"].astype(BF16)[inputs] * jnp.sqrt(width).astype(BF16)

        def pair(x: Any, w: Tree) -> Any:
            w = jax.tree.map(lambda leaf: leaf.astype(BF16) if leaf.ndim > 1 else leaf, w)
            x = layer(w["local"], x, everywhere & (distance < window), positions)
            return layer(w["global"], x, everywhere, positions), None

        x, _ = lax.scan(pair, x, params["layers"])
        logits = (rms_norm(x, 1 + params["norm"]) @ params["words"].astype(BF16).T).astype(F32)
        shares = nn.log_softmax(30 * jnp.tanh(logits / 30))
        kept = (own == segments[1:]) & (own > 0)
        losses = -jnp.take_along_axis(shares, tokens[1:, None], -1)[:, 0]
        return jnp.sum(jnp.where(kept, losses, 0)), kept.sum()

    def loss(params: Tree, *batch: Any) -> Any:
        sums, counts = jax.vmap(document_loss, (None, 0, 0, 0))(params, *batch)
        return sums.sum() / jnp.maximum(counts.sum(), 1)

    def step(state: Tree, *batch: Any) -> Any:
        params, momentum = state
        value, gradients = jax.value_and_grad(loss)(params, *batch)

        def update(p: Any, m: Any, g: Any) -> tuple[Any, Any]:
            wide = m.astype(F32)
            p = p - 1e-4 * (jnp.sign(0.95 * wide + 0.05 * g) + 0.1 * p)
            return p, (0.98 * wide + 0.02 * g).astype(BF16)

        both = jax.tree.map(update, params, momentum, gradients)
        return jax.tree.transpose(jax.tree.structure(params), jax.tree.structure((0, 0)), both), value

    weights = {"q": of(pairs, width, heads, head), "o": of(pairs, heads, head, width), "gate": of(pairs, width, hidden)}
    weights |= dict.fromkeys("kv", of(pairs, width, groups, head))
    weights |= {"up": of(pairs, width, hidden), "down": of(pairs, hidden, width)}
    weights |= {f"n{number}": of(pairs, width) for number in range(1, 5)}
    params = {"words": of(words, width), "norm": of(width), "layers": {"local": weights, "global": weights}}
    means = jax.tree.map(lambda leaf: leaf.update(dtype=BF16), params)
    rows = of(2, 1025, dtype=I32)
    return jax.jit(step, donate_argnums=0), ((params, means), rows, rows, rows)


def span_corruption() -> tuple[Any, Types]:
    """Return T5 in f32 with biases by relative position, dropout, and Adafactor without first moments."""
    width, heads, head, hidden, layers, words, kinds = 512, 8, 64, 1024, 6, 32128, 32

    def buckets(queries: int, keys: int, both_ways: bool) -> Any:
        """Return the buckets of relative positions: exact ones, and wider ones for longer distances."""
        relative = jnp.arange(keys) - jnp.arange(queries)[:, None]
        count = kinds // 2 if both_ways else kinds
        start = (relative > 0) * count if both_ways else 0
        distance = jnp.abs(relative) if both_ways else jnp.maximum(-relative, 0)
        exact = count // 2
        scale = (count - exact) / math.log(128 / exact)
        far = exact + (jnp.log(jnp.maximum(distance, 1) / exact) * scale).astype(I32)
        return start + jnp.where(distance < exact, distance, jnp.minimum(far, count - 1))

    def attention(p: Tree, x: Any, memory: Any, bias: Any, key: Any) -> Any:
        q, k, v = (jnp.einsum("bld,dhk->bhlk", y, p[name]) for name, y in zip("qkv", (x, memory, memory), strict=True))
        shares = nn.softmax(jnp.einsum("bhqk,bhsk->bhqs", q, k) + bias)
        return jnp.einsum("bhqs,bhsk,hkd->bqd", dropout(key, shares, 0.1), v, p["o"])

    def feed_forward(p: Tree, x: Any, key: Any) -> Any:
        h = nn.gelu(x @ p["wi_0"]) * (x @ p["wi_1"])
        return dropout(key, h, 0.1) @ p["wo"]

    def encode(params: Tree, tokens: Any, key: Any) -> Any:
        length = tokens.shape[1]
        bias = params["relative"][buckets(length, length, True)].transpose(2, 0, 1)
        bias = bias + jnp.where(tokens > 0, 0, -1e9)[:, None, None]
        x = params["shared"][tokens]
        for p in params["encoder"]:
            key, one, two = random.split(key, 3)
            h = rms_norm(x, p["n1"])
            x = x + attention(p["self"], h, h, bias, one)
            x = x + feed_forward(p, rms_norm(x, p["n2"]), two)
        return rms_norm(x, params["encoder_norm"])

    def decode(params: Tree, tokens: Any, memory: Any, hidden_bias: Any, key: Any) -> Any:
        length = tokens.shape[1]
        bias = params["decoder_relative"][buckets(length, length, False)].transpose(2, 0, 1)
        bias = jnp.where(jnp.tril(jnp.ones((length, length), bool)), bias, -1e9)
        x = params["shared"][tokens]
        for p in params["decoder"]:
            key, one, two, three = random.split(key, 4)
            h = rms_norm(x, p["n1"])
            x = x + attention(p["self"], h, h, bias, one)
            x = x + attention(p["cross"], rms_norm(x, p["n3"]), memory, hidden_bias, two)
            x = x + feed_forward(p, rms_norm(x, p["n2"]), three)
        return rms_norm(x, params["decoder_norm"]) @ params["head"]

    def loss(params: Tree, source: Any, target: Any, key: Any) -> Any:
        one, two = random.split(key)
        memory = encode(params, source, one)
        shifted = jnp.pad(target[:, :-1], ((0, 0), (1, 0)))
        logits = decode(params, shifted, memory, jnp.where(source > 0, 0, -1e9)[:, None, None], two)
        shares = nn.log_softmax(logits)
        losses = -jnp.take_along_axis(shares, target[..., None], -1)[..., 0]
        return jnp.sum(losses * (target > 0)) / jnp.maximum(jnp.sum(target > 0), 1)

    def factored(shape: tuple[int, ...]) -> bool:
        return len(shape) >= 2 and min(shape[-2:]) >= 64

    def second_moments(leaf: Any) -> Tree:
        if factored(leaf.shape):
            return {"rows": of(*leaf.shape[:-1]), "columns": of(*leaf.shape[:-2], leaf.shape[-1])}
        return {"all": of(*leaf.shape)}

    def update(p: Any, g: Any, moments: Tree, decay: Any, rate: Any) -> tuple[Any, Tree]:
        square = g * g + 1e-30
        if "all" in moments:
            moments = {"all": decay * moments["all"] + (1 - decay) * square}
            change = g * lax.rsqrt(moments["all"])
        else:
            rows = decay * moments["rows"] + (1 - decay) * square.mean(-1)
            columns = decay * moments["columns"] + (1 - decay) * square.mean(-2)
            moments = {"rows": rows, "columns": columns}
            change = g * lax.rsqrt(rows / rows.mean(-1, keepdims=True))[..., None] * lax.rsqrt(columns)[..., None, :]
        change = change / jnp.maximum(1.0, jnp.sqrt(jnp.mean(change**2)))
        return p - rate * jnp.maximum(1e-3, jnp.sqrt(jnp.mean(p**2))) * change, moments

    def step(state: Tree, source: Any, target: Any, seed: Any) -> Any:
        params, moments, count = state
        key = random.fold_in(random.key(seed), count)
        value, gradients = jax.value_and_grad(loss)(params, source, target, key)
        count = count + 1
        decay, rate = 1 - count ** (-0.8), jnp.minimum(1e-2, lax.rsqrt(count.astype(F32)))
        leaves, structure = jax.tree.flatten(params)
        updated = [
            update(p, g, m, decay, rate) for p, g, m in zip(leaves, jax.tree.leaves(gradients), moments, strict=True)
        ]
        return (jax.tree.unflatten(structure, [p for p, _ in updated]), [m for _, m in updated], count), value

    projections = dict.fromkeys("qkv", of(width, heads, head)) | {"o": of(heads, head, width)}
    block = {"self": projections, "wi_0": of(width, hidden), "wi_1": of(width, hidden), "wo": of(hidden, width)}
    block |= {"n1": of(width), "n2": of(width)}
    params = {"shared": of(words, width), "head": of(width, words), "encoder": [block] * layers}
    params |= {"decoder": [block | {"cross": projections, "n3": of(width)}] * layers, "relative": of(kinds, heads)}
    params |= {"decoder_relative": of(kinds, heads), "encoder_norm": of(width), "decoder_norm": of(width)}
    state = (params, [second_moments(leaf) for leaf in jax.tree.leaves(params)], of(dtype=I32))
    return jax.jit(step, donate_argnums=0), (state, of(16, 512, dtype=I32), of(16, 114, dtype=I32), of(dtype=U32))


def sentence_pairs() -> tuple[Any, Types]:
    """Return BERT on pairs of sentences with predicted words at gathered places, and LAMB."""
    width, heads, layers, words, length, batch, masked = 768, 12, 8, 30522, 256, 32, 40

    def attention(p: Tree, x: Any, mask: Any, key: Any) -> Any:
        split = [dense(p[name], x).reshape(batch, length, heads, -1) for name in ("query", "key", "value")]
        scores = jnp.einsum("bqhd,bkhd->bhqk", split[0], split[1]) / 8
        shares = nn.softmax(scores + mask)
        out = jnp.einsum("bhqk,bkhd->bqhd", dropout(key, shares, 0.1), split[2])
        return dense(p["output"], out.reshape(batch, length, width))

    def encoder(params: Tree, batch: Tree, key: Any) -> Any:
        tables = params["embeddings"]
        x = tables["words"][batch["tokens"]] + tables["places"] + tables["kinds"][batch["kinds"]]
        x = affine_norm(tables["norm"], x).astype(BF16)
        mask = jnp.where(batch["present"], 0, -30000).astype(BF16)[:, None, None]
        for number, p in enumerate(params["layers"]):
            one, two, three = random.split(random.fold_in(key, number), 3)
            x = affine_norm(p["n1"], x + dropout(two, attention(p["attention"], x, mask, one), 0.1))
            h = dense(p["down"], nn.gelu(dense(p["up"], x), approximate=False))
            x = affine_norm(p["n2"], x + dropout(three, h, 0.1))
        return x

    def loss(params: Tree, batch: Tree, key: Any) -> Any:
        x = encoder(params, batch, key)
        rows = jnp.take_along_axis(x, batch["places"][..., None], 1)
        h = affine_norm(params["transform"]["norm"], nn.gelu(dense(params["transform"], rows)))
        logits = (h @ params["embeddings"]["words"].astype(BF16).T).astype(F32) + params["bias"]
        shares = jnp.take_along_axis(nn.log_softmax(logits), batch["labels"][..., None], -1)[..., 0]
        words_loss = -jnp.sum(shares * batch["weights"]) / (jnp.sum(batch["weights"]) + 1e-5)
        pooled = jnp.tanh(dense(params["pooler"], x[:, 0]))
        pair_loss = cross_entropy(dense(params["follows"], pooled), batch["follows"])
        return words_loss + pair_loss, {"words": words_loss, "pairs": pair_loss}

    def lamb(p: Any, m: Any, v: Any, count: Any) -> Any:
        change = m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-6)
        if p.ndim > 1:
            change = change + 0.01 * p
        size, change_size = jnp.linalg.norm(p.ravel()), jnp.linalg.norm(change.ravel())
        trust = jnp.where((size > 0) & (change_size > 0), size / change_size, 1.0)
        return p - 1e-3 * trust * change

    def step(state: Tree, batch: Tree, seed: Any) -> Any:
        params, means, squares, count = state
        key = random.fold_in(random.key(seed), count)
        (_, losses), gradients = jax.value_and_grad(loss, has_aux=True)(params, batch, key)
        gradients, count = clipped(gradients), count + 1
        means = jax.tree.map(lambda m, g: m + 0.1 * (g - m), means, gradients)
        squares = jax.tree.map(lambda v, g: v + 0.001 * (g * g - v), squares, gradients)
        params = jax.tree.map(lambda p, m, v: lamb(p, m, v, count), params, means, squares)
        return (params, means, squares, count), losses

    square = dense_types(width, width)
    layer = {"attention": dict.fromkeys(("query", "key", "value", "output"), square), "n1": norm_types(width)}
    layer |= {"up": dense_types(width, 4 * width), "down": dense_types(4 * width, width), "n2": norm_types(width)}
    tables = {"words": of(words, width), "places": of(length, width), "kinds": of(2, width), "norm": norm_types(width)}
    params = {"embeddings": tables, "layers": [layer] * layers, "bias": of(words), "pooler": square}
    params |= {"transform": square | {"norm": norm_types(width)}, "follows": dense_types(width, 2)}
    data = dict.fromkeys(("tokens", "kinds"), of(batch, length, dtype=I32)) | {"present": of(batch, length, dtype=bool)}
    data |= dict.fromkeys(("places", "labels"), of(batch, masked, dtype=I32)) | {"weights": of(batch, masked)}
    data["follows"] = of(batch, dtype=I32)
    return jax.jit(step, donate_argnums=0), ((params,) * 3 + (of(dtype=I32),), data, of(dtype=U32))


def mixed_images() -> tuple[Any, Types]:
    """Return a vision transformer on mixed pairs of images, which also learns the answers of a frozen net."""
    width, heads, layers, patch, size, batch, classes = 384, 6, 12, 16, 224, 48, 1000
    tokens = (size // patch) ** 2 + 2

    def augment(key: Any, images: Any, labels: Any) -> tuple[Any, Any]:
        flip, mix, order = random.split(key, 3)
        x = images.astype(F32) / 127.5 - 1
        x = jnp.where(random.bernoulli(flip, 0.5, (batch, 1, 1, 1)), x[:, :, ::-1], x)
        share = random.beta(mix, 0.8, 0.8)
        other = random.permutation(order, batch)
        marks = nn.one_hot(labels, classes) * 0.9 + 0.1 / classes
        return share * x + (1 - share) * x[other], share * marks + (1 - share) * marks[other]

    def teach(teacher: list[Tree], images: Any) -> Any:
        x = images.astype(BF16)
        for p in teacher[:-1]:
            x = nn.relu(conv(x, p["down"], 2) + p["bias"])
            x = nn.relu(x + conv(nn.relu(conv(x, p["one"], groups=8)), p["two"]))
        return (x.mean((1, 2)) @ teacher[-1]["head"]).astype(F32)

    def block(p: Tree, x: Any, key: Any, drop: float) -> Any:
        def thinned(key: Any, branch: Any) -> Any:
            return branch * (random.bernoulli(key, 1 - drop, (batch, 1, 1)) / (1 - drop)).astype(branch.dtype)

        one, two = random.split(key)
        qkv = dense(p["qkv"], affine_norm(p["n1"], x)).reshape(batch, tokens, 3, heads, width // heads)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        shares = nn.softmax(q @ k.swapaxes(-1, -2) * (width // heads) ** -0.5, axis=-1)
        h = dense(p["out"], (shares @ v).swapaxes(1, 2).reshape(batch, tokens, width))
        x = x + thinned(one, h * p["gamma_1"].astype(BF16))
        h = dense(p["down"], nn.gelu(dense(p["up"], affine_norm(p["n2"], x))))
        return x + thinned(two, h * p["gamma_2"].astype(BF16))

    def loss(params: Tree, teacher: Tree, images: Any, labels: Any, key: Any) -> Any:
        augment_key, key = random.split(key)
        images, soft = augment(augment_key, images, labels)
        x = conv(images.astype(BF16), params["patches"], patch).reshape(batch, -1, width)
        x = jnp.concatenate([jnp.broadcast_to(params["marks"].astype(BF16), (batch, 2, width)), x], 1)
        x = x + params["places"].astype(BF16)
        for number, p in enumerate(params["blocks"]):
            x = block(p, x, random.fold_in(key, number), 0.1 * number / layers)
        x = affine_norm(params["norm"], x)
        own, taught = (dense(params[name], x[:, place]).astype(F32) for place, name in enumerate(("head", "taught")))
        hard = jnp.argmax(teach(teacher, images), -1)
        return -0.5 * jnp.mean(jnp.sum(soft * nn.log_softmax(own), -1)) + 0.5 * cross_entropy(taught, hard)

    @partial(jax.jit, donate_argnums=0)
    def step(state: Tree, teacher: Tree, images: Any, labels: Any, seed: Any) -> Any:
        key = random.fold_in(random.key(seed), state["optimizer"]["count"])
        value, gradients = jax.value_and_grad(loss)(state["optimizer"]["params"], teacher, images, labels, key)
        decay = jax.tree.map(lambda g: 0.05 if g.ndim > 1 else 0.0, gradients)
        new = adamw(state["optimizer"], gradients, 5e-4, decay, 0.999)
        average = jax.tree.map(lambda a, p: a + 1e-4 * (p - a), state["average"], new["params"])
        return {"optimizer": new, "average": average}, value

    layer = {
        "qkv": dense_types(width, 3 * width),
        "out": dense_types(width, width),
        "up": dense_types(width, 4 * width),
    }
    layer |= {"down": dense_types(4 * width, width), "n1": norm_types(width), "n2": norm_types(width)}
    layer |= {"gamma_1": of(width), "gamma_2": of(width)}
    params: Tree = {"patches": of(patch, patch, 3, width), "marks": of(2, width), "places": of(tokens, width)}
    params |= {"blocks": [layer] * layers, "norm": norm_types(width)}
    params |= {"head": dense_types(width, classes), "taught": dense_types(width, classes)}
    teacher: list[Tree] = []
    for inner, outer in pairwise((3, 64, 128, 320, 768)):
        kernels = {"down": of(3, 3, inner, outer, dtype=BF16), "bias": of(outer, dtype=BF16)}
        kernels |= {"one": of(3, 3, outer // 8, outer, dtype=BF16), "two": of(1, 1, outer, outer, dtype=BF16)}
        teacher.append(kernels)
    teacher.append({"head": of(768, classes, dtype=BF16)})
    state = {"optimizer": adamw_state(params), "average": params}
    return step, (state, teacher, of(batch, size, size, 3, dtype=U8), of(batch, dtype=I32), of(dtype=U32))


def convolution_stages() -> tuple[Any, Types]:
    """Return a step of ConvNeXt on the sum of the gradients of microbatches, with dropped blocks."""
    widths, depths, classes, parts, batch, size = (96, 192, 384, 768), (3, 3, 9, 3), 1000, 4, 32, 224

    def block(p: Tree, x: Any, keep: Any) -> Any:
        h = conv(x, p["depthwise"], groups=x.shape[-1]) + p["offset"].astype(x.dtype)
        h = dense(p["down"], nn.gelu(dense(p["up"], affine_norm(p["norm"], h)), approximate=False))
        return x + keep[:, None, None, None].astype(x.dtype) * p["gamma"].astype(x.dtype) * h

    def loss(params: Tree, images: Any, labels: Any, key: Any) -> Any:
        rates = jnp.linspace(0, 0.2, sum(depths))
        keep = random.bernoulli(key, 1 - rates, (batch, sum(depths))) / (1 - rates)
        x, number = images.astype(BF16), 0
        for stage in params["stages"]:
            if "stem" in stage:
                x = affine_norm(stage["norm"], conv(x, stage["stem"], 4))
            else:
                x = conv(affine_norm(stage["norm"], x), stage["downsample"], 2)
            for p in stage["blocks"]:
                x = block(p, x, keep[:, number])
                number += 1
        logits = dense(params["head"], affine_norm(params["norm"], x.mean((1, 2)))).astype(F32)
        soft = 0.9 * nn.one_hot(labels, classes) + 0.1 / classes
        return -jnp.mean(jnp.sum(soft * nn.log_softmax(logits), -1))

    def step(state: Tree, images: Any, labels: Any, seed: Any) -> Any:
        keys = random.split(random.fold_in(random.key(seed), state["count"]), parts)

        def accumulate(sums: Tree, part: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(state["params"], *part)
            return jax.tree.map(lambda s, g: s + g / parts, sums, gradients), value

        zeros = jax.tree.map(jnp.zeros_like, state["params"])
        gradients, values = lax.scan(accumulate, zeros, (images, labels, keys))
        return adamw(state, gradients, 4e-3, 0.05, 0.999), values.mean()

    stages: list[Tree] = []
    inner = 3
    for width, depth in zip(widths, depths, strict=True):
        one = {"depthwise": of(7, 7, 1, width), "offset": of(width), "norm": norm_types(width), "gamma": of(width)}
        one |= {"up": dense_types(width, 4 * width), "down": dense_types(4 * width, width)}
        stage: Tree = {"blocks": [one] * depth}
        if inner == 3:
            stage |= {"stem": of(4, 4, 3, width), "norm": norm_types(width)}
        else:
            stage |= {"downsample": of(2, 2, inner, width), "norm": norm_types(inner)}
        stages.append(stage)
        inner = width
    params = {"stages": stages, "norm": norm_types(inner), "head": dense_types(inner, classes)}
    data = (of(parts, batch, size, size, 3), of(parts, batch, dtype=I32), of(dtype=U32))
    return jax.jit(step, donate_argnums=0), (adamw_state(params), *data)


def running_statistics() -> tuple[Any, Types]:
    """Return a step of ResNet-50 with running means and variances in the state, and momentum of Nesterov."""
    depths, batch, size, classes = (3, 4, 6, 3), 48, 176, 1000

    class Normalizer:
        """Batch norms that collect their new running statistics by name."""

        def __init__(self, params: Tree, statistics: Tree) -> None:
            self.params, self.old, self.new = params, statistics, dict(statistics)

        def __call__(self, name: str, x: Any) -> Any:
            wide = x.astype(F32)
            mean, variance = jnp.mean(wide, (0, 1, 2)), jnp.var(wide, (0, 1, 2))
            old, p = self.old[name], self.params[name]
            self.new[name] = {
                "mean": 0.9 * old["mean"] + 0.1 * lax.stop_gradient(mean),
                "variance": 0.9 * old["variance"] + 0.1 * lax.stop_gradient(variance),
            }
            return ((wide - mean) * lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]).astype(x.dtype)

    def loss(params: Tree, statistics: Tree, images: Any, labels: Any) -> Any:
        norm = Normalizer(params["norms"], statistics)
        kernels = params["kernels"]
        x = nn.relu(norm("stem", conv(images.astype(BF16), kernels["stem"], 2)))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for stage, depth in enumerate(depths):
            for number in range(depth):
                name = f"{stage}.{number}"
                stride = 2 if number == 0 and stage > 0 else 1
                h = nn.relu(norm(f"{name}.1", conv(x, kernels[f"{name}.1"])))
                h = nn.relu(norm(f"{name}.2", conv(h, kernels[f"{name}.2"], stride)))
                h = norm(f"{name}.3", conv(h, kernels[f"{name}.3"]))
                if number == 0:
                    x = norm(f"{name}.skip", conv(x, kernels[f"{name}.skip"], stride))
                x = nn.relu(x + h)
        logits = x.mean((1, 2)).astype(F32) @ params["head"]["kernel"] + params["head"]["bias"]
        soft = nn.one_hot(labels, classes) * 0.9 + 0.1 / classes
        value = -jnp.mean(jnp.sum(soft * nn.log_softmax(logits), -1))
        return value, (norm.new, jnp.mean(jnp.argmax(logits, -1) == labels))

    def step(state: Tree, images: Any, labels: Any, rate: Any) -> Any:
        gradient = jax.grad(loss, has_aux=True)
        gradients, (statistics, accuracy) = gradient(state["params"], state["statistics"], images, labels)
        gradients = jax.tree.map(lambda g, p: g + 5e-5 * p, gradients, state["params"])
        trace = jax.tree.map(lambda t, g: 0.9 * t + g, state["trace"], gradients)
        params = jax.tree.map(lambda p, t, g: p - rate * (0.9 * t + g), state["params"], trace, gradients)
        return {"params": params, "trace": trace, "statistics": statistics}, accuracy

    kernels, inner = {"stem": of(7, 7, 3, 64)}, 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for number in range(depth):
            name = f"{stage}.{number}"
            kernels |= {f"{name}.1": of(1, 1, inner, width), f"{name}.2": of(3, 3, width, width)}
            kernels[f"{name}.3"] = of(1, 1, width, 4 * width)
            if number == 0:
                kernels[f"{name}.skip"] = of(1, 1, inner, 4 * width)
            inner = 4 * width
    norms = {name: norm_types(kernel.shape[-1]) for name, kernel in kernels.items()}
    statistics = {
        name: {"mean": of(kernel.shape[-1]), "variance": of(kernel.shape[-1])} for name, kernel in kernels.items()
    }
    params = {"kernels": kernels, "norms": norms, "head": dense_types(inner, classes)}
    state = {"params": params, "trace": params, "statistics": statistics}
    return jax.jit(step, donate_argnums=0), (state, of(batch, size, size, 3), of(batch, dtype=I32), of())


def noise_prediction() -> tuple[Any, Types]:
    """Return a step of a U-Net that predicts noise: attention at low resolutions, dropout, and averaged weights."""
    base, multiples, depth, classes, batch, size, steps = 128, (1, 2, 4), 2, 1000, 16, 64, 1000
    time_width = 4 * base

    def group_norm(p: Tree, x: Any) -> Any:
        grouped = x.reshape(batch, -1, 32, x.shape[-1] // 32)
        mean, variance = grouped.mean((1, 3), keepdims=True), grouped.var((1, 3), keepdims=True)
        return ((grouped - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * p["scale"] + p["bias"]

    def residual(p: Tree, x: Any, time: Any, key: Any) -> Any:
        h = conv(nn.silu(group_norm(p["n1"], x)), p["one"])
        scale, shift = jnp.split(dense(p["time"], time)[:, None, None], 2, -1)
        h = nn.silu(group_norm(p["n2"], h) * (1 + scale) + shift)
        h = conv(dropout(key, h, 0.1), p["two"])
        return h + (x @ p["skip"] if "skip" in p else x)

    def attention(p: Tree, x: Any) -> Any:
        channels = x.shape[-1]
        h = dense(p["qkv"], group_norm(p["norm"], x)).reshape(batch, -1, 3, channels // 64, 64)
        q, k, v = h[:, :, 0], h[:, :, 1], h[:, :, 2]
        shares = nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8, axis=-1)
        out = jnp.einsum("bhqk,bkhd->bqhd", shares, v)
        return x + dense(p["out"], out.reshape(x.shape))

    def predict(params: Tree, x: Any, times: Any, labels: Any, key: Any) -> Any:
        keys: Iterator[Any] = iter(random.split(key, 32))
        waves = times[:, None] * jnp.exp(-math.log(10000) * jnp.arange(base // 2) / (base // 2))
        waves = jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1)
        time = nn.silu(dense(params["time_2"], nn.silu(dense(params["time_1"], waves))) + params["labels"][labels])
        x = conv(x, params["in"])
        skips = [x]
        for level in params["down"]:
            for p in level["blocks"]:
                x = residual(p, x, time, next(keys))
                x = attention(p["attention"], x) if "attention" in p else x
                skips.append(x)
            if "sample" in level:
                x = conv(x, level["sample"], 2)
                skips.append(x)
        x = residual(params["middle"][0], x, time, next(keys))
        x = residual(params["middle"][2], attention(params["middle"][1], x), time, next(keys))
        for level in params["up"]:
            for p in level["blocks"]:
                x = residual(p, jnp.concatenate([x, skips.pop()], -1), time, next(keys))
                x = attention(p["attention"], x) if "attention" in p else x
            if "sample" in level:
                x = jax.image.resize(x, (batch, 2 * x.shape[1], 2 * x.shape[2], x.shape[3]), "nearest")
                x = conv(x, level["sample"])
        return conv(nn.silu(group_norm(params["norm"], x)), params["out"])

    def loss(params: Tree, images: Any, labels: Any, key: Any) -> Any:
        time_key, noise_key, label_key, key = random.split(key, 4)
        times = random.randint(time_key, (batch,), 0, steps)
        noise = random.normal(noise_key, images.shape)
        kept = jnp.cos((times / steps + 0.008) / 1.008 * jnp.pi / 2)[:, None, None, None] ** 2
        noisy = jnp.sqrt(kept) * images + jnp.sqrt(1 - kept) * noise
        labels = jnp.where(random.bernoulli(label_key, 0.1, (batch,)), classes, labels)
        return jnp.mean((predict(params, noisy, times, labels, key) - noise) ** 2)

    def step(state: Tree, images: Any, labels: Any, seed: Any) -> Any:
        key = random.fold_in(random.key(seed), state["optimizer"]["count"])
        value, gradients = jax.value_and_grad(loss)(state["optimizer"]["params"], images, labels, key)
        optimizer = adamw(state["optimizer"], clipped(gradients), 1e-4, 0.0, 0.999)
        average = jax.tree.map(lambda a, p: 0.9999 * a + 0.0001 * p, state["average"], optimizer["params"])
        return {"optimizer": optimizer, "average": average}, value

    def block(inner: int, outer: int, attends: bool) -> Tree:
        p = {"n1": norm_types(inner), "one": of(3, 3, inner, outer), "time": dense_types(time_width, 2 * outer)}
        p |= {"n2": norm_types(outer), "two": of(3, 3, outer, outer)}
        p |= {"skip": of(inner, outer)} if inner != outer else {}
        return p | ({"attention": attention_types(outer)} if attends else {})

    def attention_types(width: int) -> Tree:
        return {"norm": norm_types(width), "qkv": dense_types(width, 3 * width), "out": dense_types(width, width)}

    last = len(multiples) - 1
    down, up, channels, width = [], [], [base], base
    for number, multiple in enumerate(multiples):
        blocks = []
        for _ in range(depth):
            blocks.append(block(width, base * multiple, number >= 2))
            width = base * multiple
            channels.append(width)
        level: Tree = {"blocks": blocks}
        if number < last:
            level["sample"] = of(3, 3, width, width)
            channels.append(width)
        down.append(level)
    middle = [block(width, width, False), attention_types(width), block(width, width, False)]
    for number, multiple in reversed(list(enumerate(multiples))):
        blocks = []
        for _ in range(depth + 1):
            blocks.append(block(width + channels.pop(), base * multiple, number >= 2))
            width = base * multiple
        up.append({"blocks": blocks} | ({"sample": of(3, 3, width, width)} if number else {}))
    params = {"in": of(3, 3, 3, base), "down": down, "middle": middle, "up": up, "norm": norm_types(width)}
    params |= {
        "out": of(3, 3, width, 3),
        "time_1": dense_types(base, time_width),
        "labels": of(classes + 1, time_width),
    }
    params["time_2"] = dense_types(time_width, time_width)
    state = {"optimizer": adamw_state(params), "average": params}
    return jax.jit(step, donate_argnums=0), (state, of(batch, size, size, 3), of(batch, dtype=I32), of(dtype=U32))


def joint_streams() -> tuple[Any, Types]:
    """Return flow matching by Muon: images and texts have weights of their own, and attend to each other."""
    layers, width, heads, batch, side, channels, length, text = 6, 1024, 16, 16, 32, 16, 77, 2048
    patches = (side // 2) ** 2

    def modulated(x: Any, shift: Any, scale: Any) -> Any:
        wide = x.astype(F32)
        wide = (wide - wide.mean(-1, keepdims=True)) * lax.rsqrt(wide.var(-1, keepdims=True) + 1e-6)
        return (wide * (1 + scale[:, None]) + shift[:, None]).astype(x.dtype)

    def project(w: Tree, x: Any) -> list[Any]:
        q, k, v = jnp.split(x @ w["qkv"].astype(BF16), 3, -1)
        q, k, v = (y.reshape(batch, -1, heads, width // heads) for y in (q, k, v))
        return [rms_norm(q, w["q_scale"]), rms_norm(k, w["k_scale"]), v]

    def layer(streams: dict[str, Any], w: Tree, condition: Any) -> dict[str, Any]:
        changes = {name: jnp.split(dense(w[name]["modulation"], nn.silu(condition)), 6, -1) for name in streams}
        parts = [project(w[name], modulated(x, *changes[name][:2])) for name, x in streams.items()]
        q, k, v = (jnp.concatenate(both, 1) for both in zip(*parts, strict=True))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=F32) * (width // heads) ** -0.5
        out = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores).astype(BF16), v).reshape(batch, -1, width)
        split = dict(zip(streams, jnp.split(out, [length], 1), strict=True))
        new = {}
        for name, x in streams.items():
            own, (gate, shift, scale, last) = w[name], changes[name][2:]
            y = x + gate[:, None].astype(BF16) * (split[name] @ own["out"].astype(BF16))
            h = nn.gelu(modulated(y, shift, scale) @ own["up"].astype(BF16)) @ own["down"].astype(BF16)
            new[name] = y + last[:, None].astype(BF16) * h
        return new

    def velocity(params: Tree, x: Any, time: Any, words: Any, pooled: Any) -> Any:
        x = x.reshape(batch, side // 2, 2, side // 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
        image = x.reshape(batch, patches, 4 * channels).astype(BF16) @ params["in"].astype(BF16)
        image = image + params["places"].astype(BF16)
        waves = 1000 * time[:, None] * 10000.0 ** (-jnp.arange(128) / 128)
        waves = jnp.concatenate([jnp.cos(waves), jnp.sin(waves)], -1)
        condition = dense(params["time"], waves) + dense(params["pooled"], pooled)
        streams = {"text": words @ params["words"].astype(BF16), "image": image}
        for w in params["layers"]:
            streams = layer(streams, w, condition)
        shift, scale = jnp.split(dense(params["last"], nn.silu(condition)), 2, -1)
        out = modulated(streams["image"], shift, scale).astype(F32) @ params["out"]
        out = out.reshape(batch, side // 2, side // 2, 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
        return out.reshape(batch, side, side, channels)

    def loss(params: Tree, latents: Any, words: Any, pooled: Any, key: Any) -> Any:
        noise_key, time_key = random.split(key)
        noise, time = random.normal(noise_key, latents.shape), nn.sigmoid(random.normal(time_key, (batch,)))
        weight = time[:, None, None, None]
        out = velocity(params, (1 - weight) * latents + weight * noise, time, words, pooled)
        return jnp.mean((out - (noise - latents)) ** 2)

    def orthogonal(g: Any) -> Any:
        """Return an approximation of the nearest orthogonal matrix, by iterations of Newton and Schulz in bf16."""
        x = g.T if g.shape[0] > g.shape[1] else g
        x = (x / (jnp.linalg.norm(x) + 1e-7)).astype(BF16)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        return (x.T if g.shape[0] > g.shape[1] else x).astype(F32)

    def step(state: Tree, latents: Any, words: Any, pooled: Any, seed: Any) -> Any:
        params, trace, count = state
        key = random.fold_in(random.key(seed), count)
        value, gradients = jax.value_and_grad(loss)(params, latents, words, pooled, key)
        trace = jax.tree.map(lambda t, g: 0.95 * t + g, trace, gradients)

        def update(path: Any, p: Any, t: Any, g: Any) -> Any:
            change = g + 0.95 * t
            if "layers" in jax.tree_util.keystr(path) and p.ndim == 2:
                return p * (1 - 0.02 * 0.1) - 0.02 * max(1.0, p.shape[0] / p.shape[1]) ** 0.5 * orthogonal(change)
            return p - 1e-3 * jnp.sign(change)

        return (jax.tree.map_with_path(update, params, trace, gradients), trace, count + 1), value

    stream = {"qkv": of(width, 3 * width), "out": of(width, width), "up": of(width, 4 * width)}
    stream |= {"down": of(4 * width, width), "modulation": dense_types(width, 6 * width)}
    stream |= {"q_scale": of(width // heads), "k_scale": of(width // heads)}
    params: Tree = {"in": of(4 * channels, width), "places": of(patches, width), "words": of(text, width)}
    params |= {"time": dense_types(256, width), "pooled": dense_types(768, width)}
    params |= {"last": dense_types(width, 2 * width), "out": of(width, 4 * channels)}
    params["layers"] = [{"text": stream, "image": stream}] * layers
    data = (of(batch, side, side, channels), of(batch, length, text, dtype=BF16), of(batch, 768), of(dtype=U32))
    return jax.jit(step, donate_argnums=0), ((params, params, of(dtype=I32)), *data)


def perceptual_autoencoder() -> tuple[Any, Types]:
    """Return a variational autoencoder of images, whose loss compares features of a frozen net at four depths."""
    batch, size, widths, latent = 8, 128, (64, 128, 256), 8
    frozen_widths = ((64, 64), (128, 128), (256, 256), (512, 512))

    def unit(x: Any, p: Tree) -> Any:
        h = conv(nn.silu(normalize(x)), p["one"])
        h = conv(nn.silu(normalize(h)), p["two"])
        return h + (conv(x, p["skip"]) if "skip" in p else x)

    def normalize(x: Any) -> Any:
        grouped = x.reshape(*x.shape[:3], 16, -1)
        grouped = grouped - grouped.mean((1, 2, 4), keepdims=True)
        return (grouped * lax.rsqrt(jnp.square(grouped).mean((1, 2, 4), keepdims=True) + 1e-6)).reshape(x.shape)

    def features(frozen: Tree, x: Any) -> list[Any]:
        found = []
        for number, kernels in enumerate(frozen):
            if number:
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            for kernel in kernels:
                x = nn.relu(conv(x, kernel))
            found.append(x * lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-6))
        return found

    def loss(params: Tree, frozen: Tree, images: Any, seed: Any) -> Any:
        x = conv(images, params["in"])
        for p in params["encoder"]:
            x = unit(unit(x, p["a"]), p["b"])
            x = conv(x, p["sample"], 2)
        mean, log_variance = jnp.split(conv(nn.silu(normalize(x)), params["moments"]), 2, -1)
        log_variance = jnp.clip(log_variance, -30, 20)
        z = mean + jnp.exp(0.5 * log_variance) * random.normal(random.key(seed), mean.shape)
        x = conv(z, params["latent"])
        for p in params["decoder"]:
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = unit(unit(conv(x, p["sample"]), p["a"]), p["b"])
        out = conv(nn.silu(normalize(x)), params["out"])
        pairs = zip(features(frozen, out), features(frozen, images), params["shares"], strict=True)
        perceived = sum(jnp.mean(jnp.sum((a - b) ** 2 * nn.softplus(w), -1)) for a, b, w in pairs)
        divergence = 0.5 * jnp.mean(jnp.sum(mean**2 + jnp.exp(log_variance) - 1 - log_variance, (1, 2, 3)))
        return jnp.mean(jnp.abs(out - images)) + perceived + 1e-6 * divergence

    def unit_types(inner: int, outer: int) -> Tree:
        p = {"one": of(3, 3, inner, outer), "two": of(3, 3, outer, outer)}
        return p | ({"skip": of(1, 1, inner, outer)} if inner != outer else {})

    levels = list(zip((widths[0], *widths), widths, strict=False))
    encoder = [{"a": unit_types(a, b), "b": unit_types(b, b), "sample": of(3, 3, b, b)} for a, b in levels]
    decoder = [{"a": unit_types(b, a), "b": unit_types(a, a), "sample": of(3, 3, b, b)} for a, b in reversed(levels)]
    params = {"in": of(3, 3, 3, widths[0]), "encoder": encoder, "moments": of(3, 3, widths[-1], 2 * latent)}
    params |= {"latent": of(3, 3, latent, widths[-1]), "decoder": decoder, "out": of(3, 3, widths[0], 3)}
    params["shares"] = [of(two) for _, two in frozen_widths]
    frozen, inner = [], 3
    for one, two in frozen_widths:
        frozen.append((of(3, 3, inner, one), of(3, 3, one, two)))
        inner = two
    return adam(loss, params, frozen, of(batch, size, size, 3), of(dtype=U32))


def image_captions() -> tuple[Any, Types]:
    """Return CLIP with a large batch of bytes and captions, and towers whose layers are recomputed."""
    batch, size, patch, length, words, out = 768, 224, 32, 48, 49408, 512
    image_width, text_width, layers = 768, 512, 6

    def tower(heads: int, causal: bool, x: Any, stack: Tree) -> Any:
        length, width = x.shape[1:]
        mask = jnp.tril(jnp.ones((length, length), bool)) if causal else jnp.ones((), bool)

        @jax.checkpoint
        def layer(x: Any, p: Tree) -> Any:
            h = dense(p["qkv"], affine_norm(p["n1"], x))
            q, k, v = jnp.moveaxis(h.reshape(-1, length, 3, heads, width // heads), 2, 0)
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
            shares = nn.softmax(scores.astype(F32), where=mask, axis=-1).astype(x.dtype)
            x = x + dense(p["out"], jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape))
            h = dense(p["up"], affine_norm(p["n2"], x))
            return x + dense(p["down"], h * nn.sigmoid(1.702 * h)), None

        return lax.scan(layer, x, stack)[0]

    def encode_images(p: Tree, images: Any) -> Any:
        pixels = (images.astype(BF16) / 255 - 0.45) / 0.27
        x = conv(pixels, p["patches"], patch).reshape(batch, -1, image_width)
        first = jnp.broadcast_to(p["class"].astype(BF16), (batch, 1, image_width))
        x = affine_norm(p["before"], jnp.concatenate([first, x], 1) + p["places"].astype(BF16))
        return affine_norm(p["after"], tower(12, False, x, p["layers"])[:, 0]) @ p["project"].astype(BF16)

    def encode_texts(p: Tree, tokens: Any) -> Any:
        x = p["words"].astype(BF16)[tokens] + p["places"].astype(BF16)
        x = affine_norm(p["after"], tower(8, True, x, p["layers"]))
        return x[jnp.arange(batch), jnp.argmax(tokens, -1)] @ p["project"].astype(BF16)

    def loss(params: Tree, images: Any, tokens: Any) -> Any:
        x, y = encode_images(params["image"], images), encode_texts(params["text"], tokens)
        x, y = (z.astype(F32) / (jnp.linalg.norm(z.astype(F32), axis=-1, keepdims=True) + 1e-8) for z in (x, y))
        logits = jnp.minimum(jnp.exp(params["temperature"]), 100) * x @ y.T
        labels = jnp.arange(batch)
        return 0.5 * (cross_entropy(logits, labels) + cross_entropy(logits.T, labels))

    def step(state: Tree, images: Any, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state["params"], images, tokens)
        decay = jax.tree.map(lambda g: 0.2 if g.ndim > 1 else 0.0, gradients)
        return adamw(state, clipped(gradients), 5e-4, decay, 0.98), value

    def stack(width: int) -> Tree:
        p = {
            "qkv": dense_types(width, 3 * width),
            "out": dense_types(width, width),
            "up": dense_types(width, 4 * width),
        }
        p |= {"down": dense_types(4 * width, width), "n1": norm_types(width), "n2": norm_types(width)}
        return jax.tree.map(lambda leaf: of(layers, *leaf.shape), p)

    image = {"patches": of(patch, patch, 3, image_width), "class": of(image_width), "layers": stack(image_width)}
    image |= {"places": of((size // patch) ** 2 + 1, image_width), "project": of(image_width, out)}
    image |= {"before": norm_types(image_width), "after": norm_types(image_width)}
    text = {"words": of(words, text_width), "places": of(length, text_width), "layers": stack(text_width)}
    text |= {"after": norm_types(text_width), "project": of(text_width, out)}
    params = {"image": image, "text": text, "temperature": of()}
    data = (of(batch, size, size, 3, dtype=U8), of(batch, length, dtype=I32))
    return jax.jit(step, donate_argnums=0), (adamw_state(params), *data)


def pooled_features() -> tuple[Any, Types]:
    """Return a recommender with bags of features: only drawn rows of its tables have gradients, and Adagrad by row."""
    tables, rows, width, bag, batch, numbers = 26, 120_000, 64, 4, 8192, 13

    def network(layers: list[Tree], x: Any) -> Any:
        for p in layers[:-1]:
            x = nn.relu(dense(p, x))
        return dense(layers[-1], x)

    def loss(net: Tree, drawn: Any, present: Any, continuous: Any, clicks: Any) -> Any:
        bottom = nn.relu(network(net["bottom"], jnp.log1p(continuous)))
        pooled = jnp.sum(drawn * present[..., None], 2) / jnp.maximum(present.sum(2), 1)[..., None]
        vectors = jnp.concatenate([bottom[:, None], pooled], 1)
        products = jnp.einsum("bid,bjd->bij", vectors, vectors)
        first, second = jnp.tril_indices(tables + 1, -1)
        x = jnp.concatenate([bottom, products[:, first, second]], -1)
        logits = network(net["top"], x)[:, 0]
        return jnp.mean(nn.softplus(logits) - clicks * logits)

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(net: Tree, table: Any, sums: Any, ids: Any, present: Any, continuous: Any, clicks: Any) -> Any:
        places = ids + rows * jnp.arange(tables)[:, None]
        drawn = table[places]
        value, (slopes, row_slopes) = jax.value_and_grad(loss, (0, 1))(net, drawn, present, continuous, clicks)
        net = jax.tree.map(lambda p, g: p - 0.1 * g, net, slopes)
        flat, row_slopes = places.reshape(-1), row_slopes.reshape(-1, width)
        sums = sums.at[flat].add(jnp.mean(row_slopes**2, -1))
        changes = row_slopes * lax.rsqrt(sums[flat] + 1e-10)[:, None]
        return net, table.at[flat].add(-0.02 * changes), sums, value

    def layers(*widths: int) -> list[Tree]:
        return [dense_types(a, b) for a, b in pairwise(widths)]

    pairs = tables * (tables + 1) // 2
    net = {"bottom": layers(numbers, 512, 256, width), "top": layers(pairs + width, 1024, 1024, 512, 256, 1)}
    data = (of(batch, tables, bag, dtype=I32), of(batch, tables, bag), of(batch, numbers), of(batch))
    return step, (net, of(tables * rows, width), of(tables * rows), *data)


def chunked_decays() -> tuple[Any, Types]:
    """Return a decoder like Mamba-2: scalar decays per head, products within chunks, and states between chunks."""
    width, heads, head, states, layers, chunk, batch, length, words = 768, 24, 64, 64, 6, 128, 4, 1024, 32000
    inner, chunks = heads * head, length // chunk

    def mix(x: Any, steps: Any, rates: Any, write: Any, read: Any) -> Any:
        """Return the outputs of the recurrence of all heads, [batch, length, heads, head]."""
        x = (x * steps[..., None]).reshape(batch, chunks, chunk, heads, head)
        decays = jnp.cumsum((steps * rates).reshape(batch, chunks, chunk, heads), 2)
        write, read = (y.reshape(batch, chunks, chunk, states) for y in (write, read))
        causal = jnp.tril(jnp.ones((chunk, chunk), bool))[:, :, None]
        between = jnp.exp(jnp.where(causal, decays[:, :, :, None] - decays[:, :, None], -jnp.inf))
        scores = jnp.einsum("bcln,bcsn->bcls", read, write)
        near = jnp.einsum("bclsh,bcshp->bclhp", scores[..., None] * between, x)
        left = jnp.exp(decays[:, :, -1:] - decays)
        sums = jnp.einsum("bcsn,bcshp->cbhpn", write, x * left[..., None])

        def carry_over(state: Any, row: Any) -> Any:
            new, decay = row
            return state * decay[..., None, None] + new, state

        start = jnp.zeros((batch, heads, head, states))
        _, before = lax.scan(carry_over, start, (sums, jnp.exp(decays[:, :, -1]).swapaxes(0, 1)))
        far = jnp.einsum("bcln,cbhpn->bclhp", read, before) * jnp.exp(decays)[..., None]
        return (near + far).reshape(batch, length, heads, head)

    def layer(x: Any, p: Tree) -> Any:
        h = rms_norm(x, p["norm"]).astype(BF16) @ p["in"].astype(BF16)
        gate, mixed, steps = jnp.split(h, [inner, 2 * inner + 2 * states], -1)
        padded = jnp.pad(mixed, ((0, 0), (3, 0), (0, 0)))
        mixed = sum(padded[:, shift : shift + length] * p["short"][shift].astype(BF16) for shift in range(4))
        mixed = nn.silu(mixed).astype(F32)
        values, write, read = jnp.split(mixed, [inner, inner + states], -1)
        values = values.reshape(batch, length, heads, head)
        steps = nn.softplus(steps.astype(F32) + p["step_bias"])
        out = mix(values, steps, -jnp.exp(p["rates"]), write, read) + p["through"][:, None] * values
        out = out.reshape(batch, length, inner).astype(BF16)
        return x + (rms_norm(out * nn.silu(gate), p["inner_norm"]) @ p["out"].astype(BF16)).astype(F32), None

    def loss(params: Tree, tokens: Any) -> Any:
        x, _ = lax.scan(layer, params["words"][tokens[:, :-1]], params["layers"])
        logits = rms_norm(x, params["norm"]).astype(BF16) @ params["words"].astype(BF16).T
        return cross_entropy(logits, tokens[:, 1:])

    stack = {"in": of(layers, width, 2 * inner + 2 * states + heads), "out": of(layers, inner, width)}
    stack |= {"short": of(layers, 4, inner + 2 * states), "norm": of(layers, width), "inner_norm": of(layers, inner)}
    stack |= dict.fromkeys(("step_bias", "rates", "through"), of(layers, heads))
    params = {"words": of(words, width), "norm": of(width), "layers": stack}
    return adam(loss, params, of(batch, length + 1, dtype=I32))


def phoneme_alignment() -> tuple[Any, Types]:
    """Return a recognizer of layers of LSTMs in both directions, on masked spectra, with a CTC loss."""
    batch, frames, bands, stacked, width, layers, labels, kinds = 32, 1200, 80, 3, 640, 4, 100, 512
    length = frames // stacked

    def mask(key: Any, x: Any) -> Any:
        """Return spectra with a masked range of bands, and two masked ranges of frames."""
        for place, (axis, most) in enumerate(((2, 20), (1, 80), (1, 80))):
            one, two = random.split(random.fold_in(key, place))
            size = x.shape[axis]
            start = random.randint(one, (batch, 1), 0, size - most)
            masked = (jnp.arange(size) >= start) & (jnp.arange(size) < start + random.randint(two, (batch, 1), 0, most))
            x = jnp.where(jnp.expand_dims(masked, 3 - axis), 0, x)
        return x

    def lstm(p: Tree, x: Any, backward: bool) -> Any:
        rows = (x @ p["input"] + p["bias"]).swapaxes(0, 1)

        def cell(carry: Any, row: Any) -> Any:
            h, memory = carry
            gates = row + h @ p["recurrent"]
            i, f, o, g = jnp.split(gates, 4, -1)
            memory = nn.sigmoid(f) * memory + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(memory)
            return (h, memory), h

        zeros = jnp.zeros((batch, width))
        _, out = lax.scan(cell, (zeros, zeros), rows, reverse=backward)
        return out.swapaxes(0, 1)

    def ctc(shares: Any, lengths: Any, targets: Any, target_lengths: Any) -> Any:
        extended = jnp.zeros((batch, 2 * labels + 1), I32).at[:, 1::2].set(targets)
        before = jnp.pad(extended[:, :-2], ((0, 0), (2, 0)))
        jumps = (extended > 0) & (extended != before)
        emitted = jnp.take_along_axis(shares, extended[:, None], -1).swapaxes(0, 1)

        def advance(alpha: Any, row: Any) -> Any:
            number, now = row
            one = jnp.pad(alpha[:, :-1], ((0, 0), (1, 0)), constant_values=-1e30)
            two = jnp.pad(alpha[:, :-2], ((0, 0), (2, 0)), constant_values=-1e30)
            new = jnp.logaddexp(jnp.logaddexp(alpha, one), jnp.where(jumps, two, -1e30)) + now
            return jnp.where((number < lengths)[:, None], new, alpha), None

        start = jnp.full(extended.shape, -1e30).at[:, :2].set(emitted[0, :, :2])
        alpha, _ = lax.scan(advance, start, (jnp.arange(1, length), emitted[1:]))
        ends = 2 * target_lengths[:, None] - jnp.arange(2)
        return -nn.logsumexp(jnp.take_along_axis(alpha, jnp.maximum(ends, 0), 1), -1)

    def loss(params: Tree, batch_: Tree, key: Any) -> Any:
        x = mask(key, batch_["spectra"]).reshape(batch, length, stacked * bands)
        for p in params["layers"]:
            x = jnp.concatenate([lstm(p["forward"], x, False), lstm(p["backward"], x, True)], -1)
            key = random.fold_in(key, 7)
            x = dropout(key, x, 0.2)
        shares = nn.log_softmax(dense(params["head"], x))
        losses = ctc(shares, batch_["lengths"] // stacked, batch_["targets"], batch_["target_lengths"])
        return jnp.mean(losses / jnp.maximum(batch_["target_lengths"], 1))

    def step(state: Tree, batch_: Tree, seed: Any) -> Any:
        params, trace = state
        value, gradients = jax.value_and_grad(loss)(params, batch_, random.key(seed))
        trace = jax.tree.map(lambda t, g: 0.9 * t + g, trace, clipped(gradients, 400.0))
        return (jax.tree.map(lambda p, t: p - 3e-4 * t, params, trace), trace), value

    def direction(inner: int) -> Tree:
        return {"input": of(inner, 4 * width), "recurrent": of(width, 4 * width), "bias": of(4 * width)}

    sizes = [stacked * bands] + [2 * width] * (layers - 1)
    stack = [{"forward": direction(inner), "backward": direction(inner)} for inner in sizes]
    params = {"layers": stack, "head": dense_types(2 * width, kinds)}
    data = {"spectra": of(batch, frames, bands), "targets": of(batch, labels, dtype=I32)}
    data |= dict.fromkeys(("lengths", "target_lengths"), of(batch, dtype=I32))
    return jax.jit(step, donate_argnums=0), ((params, params), data, of(dtype=U32))


def adapter_preferences() -> tuple[Any, Types]:
    """Return DPO on adapters of a frozen decoder in bf16; the reference model is the decoder without adapters."""
    layers, width, heads, groups, head, hidden, words, rank = 12, 1536, 12, 4, 128, 4096, 32000, 16
    pairs, length = 4, 513

    def linear(x: Any, w: Any, adapter: Tree | None, key: Any = None) -> Any:
        y = x @ w
        if adapter is None:
            return y
        low = (dropout(key, x, 0.05) if key is not None else x) @ adapter["a"].astype(BF16)
        return y + 2.0 * low @ adapter["b"].astype(BF16)

    def forward(base: Tree, adapters: Tree | None, tokens: Any, key: Any) -> Any:
        count, length = tokens.shape
        causal = jnp.tril(jnp.ones((length, length), bool))

        def layer(x: Any, row: Any) -> Any:
            w, adapter, key = row
            own = adapter or dict.fromkeys(("q", "v", "up"))
            keys = [None] * 3 if adapter is None else list(random.split(key, 3))
            h = rms_norm(x, w["n1"])
            q = linear(h, w["q"], own["q"], keys[0]).reshape(count, length, heads, head)
            k = (h @ w["k"]).reshape(count, length, groups, head)
            v = linear(h, w["v"], own["v"], keys[1]).reshape(count, length, groups, head)
            q, k = rotary(q, jnp.arange(length)), rotary(k, jnp.arange(length))
            k, v = (jnp.repeat(y, heads // groups, 2) for y in (k, v))
            scores = jnp.where(causal, jnp.einsum("bqhd,bkhd->bhqk", q, k) * head**-0.5, -1e9)
            out = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores.astype(F32)).astype(BF16), v)
            x = x + out.reshape(count, length, -1) @ w["o"]
            h = rms_norm(x, w["n2"])
            return x + (nn.silu(h @ w["gate"]) * linear(h, w["up"], own["up"], keys[2])) @ w["down"], None

        rows = (base["layers"], adapters, random.split(key, layers))
        x, _ = lax.scan(jax.checkpoint(layer), base["words"][tokens], rows)
        return rms_norm(x, base["norm"]) @ base["head"]

    def likelihood(logits: Any, tokens: Any, answer: Any) -> Any:
        logits = logits.astype(F32)
        chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0] - nn.logsumexp(logits, -1)
        return jnp.sum(chosen * answer[:, 1:], -1)

    def loss(adapters: Tree, base: Tree, batch: Tree, key: Any) -> Any:
        tokens = jnp.concatenate([batch["chosen"], batch["rejected"]])
        answer = jnp.concatenate([batch["chosen_answer"], batch["rejected_answer"]])
        policy = likelihood(forward(base, adapters, tokens[:, :-1], key), tokens, answer)
        reference = lax.stop_gradient(likelihood(forward(base, None, tokens[:, :-1], key), tokens, answer))
        chosen, rejected = jnp.split(policy - reference, 2)
        margin = 0.1 * (chosen - rejected)
        return -jnp.mean(0.9 * nn.log_sigmoid(margin) + 0.1 * nn.log_sigmoid(-margin)), jnp.mean(margin > 0)

    @partial(jax.jit, donate_argnums=0)
    def step(state: Tree, base: Tree, batch: Tree, seed: Any) -> Any:
        adapters, squares = state
        (value, right), gradients = jax.value_and_grad(loss, has_aux=True)(adapters, base, batch, random.key(seed))
        squares = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, squares, clipped(gradients, 10.0))
        adapters = jax.tree.map(lambda a, g, s: a - 5e-6 * g / (jnp.sqrt(s) + 1e-8), adapters, gradients, squares)
        return (adapters, squares), {"loss": value, "accuracy": right}

    sizes = {"q": (width, heads * head), "k": (width, groups * head), "v": (width, groups * head)}
    sizes |= {"o": (heads * head, width), "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    stack = {name: of(layers, *shape, dtype=BF16) for name, shape in sizes.items()}
    stack |= dict.fromkeys(("n1", "n2"), of(layers, width))
    base: Tree = {"words": of(words, width, dtype=BF16), "head": of(width, words, dtype=BF16), "norm": of(width)}
    base["layers"] = stack
    adapters = {
        name: {"a": of(layers, sizes[name][0], rank), "b": of(layers, rank, sizes[name][1])}
        for name in ("q", "v", "up")
    }
    batch = dict.fromkeys(("chosen", "rejected"), of(pairs, length, dtype=I32))
    batch |= dict.fromkeys(("chosen_answer", "rejected_answer"), of(pairs, length, dtype=bool))
    return step, ((adapters, adapters), base, batch, of(dtype=U32))


def group_advantages() -> tuple[Any, Types]:
    """Return GRPO: rewards relative to those of the same prompt, clipped ratios, and distance to a frozen model."""
    layers, width, heads, words, prompts, group, length = 8, 1024, 16, 32000, 2, 8, 256
    rows = prompts * group

    def hidden_states(params: Tree, tokens: Any) -> Any:
        count, length = tokens.shape
        x = params["embed"].astype(BF16)[tokens] + params["place"][:length].astype(BF16)

        @jax.checkpoint
        def block(w: Tree, x: Any) -> Any:
            h = affine_norm(w["ln1"], x)
            q, k, v = (dense(w[name], h).reshape(count, length, heads, -1) for name in ("wq", "wk", "wv"))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) / math.sqrt(width // heads)
            later = jnp.triu(jnp.full((length, length), -1e9), 1)
            out = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores + later).astype(BF16), v)
            x = x + dense(w["wo"], out.reshape(count, length, width))
            return x + dense(w["w2"], nn.gelu(dense(w["w1"], affine_norm(w["ln2"], x))))

        for w in params["blocks"]:
            x = block(w, x)
        return affine_norm(params["ln"], x)

    def likelihoods(params: Tree, tokens: Any) -> Any:
        """Return the log-likelihood of each next token; logits exist for four sequences at a time."""
        x = hidden_states(params, tokens[:, :-1])

        @jax.checkpoint
        def chunk(row: Any) -> Any:
            h, labels = row
            logits = jnp.matmul(h, params["unembed"].astype(BF16), preferred_element_type=F32)
            return jnp.take_along_axis(logits, labels[..., None], -1)[..., 0] - nn.logsumexp(logits, -1)

        labels = tokens[:, 1:]
        out = lax.map(chunk, (x.reshape(rows // 4, 4, length, width), labels.reshape(rows // 4, 4, length)))
        return out.reshape(rows, length)

    def loss(params: Tree, reference: Any, batch: Tree) -> Any:
        own = likelihoods(params, batch["tokens"])
        rewards = batch["rewards"].reshape(prompts, group)
        gains = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-4)
        gains = gains.reshape(rows, 1)
        ratio = jnp.exp(own - batch["old"])
        policy = -jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.28) * gains)
        distance = jnp.exp(reference - own) - (reference - own) - 1
        losses = (policy + 0.04 * distance) * batch["mask"]
        return jnp.sum(losses) / jnp.maximum(batch["mask"].sum(), 1)

    @partial(jax.jit, donate_argnames="state")
    def step(state: Tree, frozen: Tree, batch: Tree) -> Any:
        reference = likelihoods(frozen, batch["tokens"])
        value, gradients = jax.value_and_grad(loss)(state["params"], reference, batch)
        return adamw(state, clipped(gradients, 0.5), 1e-6, 0.0, 0.999), value

    square = dense_types(width, width)
    block = dict.fromkeys(("wq", "wk", "wv", "wo"), square) | {"ln1": norm_types(width), "ln2": norm_types(width)}
    block |= {"w1": dense_types(width, 4 * width), "w2": dense_types(4 * width, width)}
    params = {"embed": of(words, width), "place": of(length, width), "blocks": [block] * layers}
    params |= {"ln": norm_types(width), "unembed": of(width, words)}
    frozen = jax.tree.map(lambda leaf: leaf.update(dtype=BF16), params)
    batch = {"tokens": of(rows, length + 1, dtype=I32), "rewards": of(rows)}
    batch |= dict.fromkeys(("old", "mask"), of(rows, length))
    return step, (adamw_state(params), frozen, batch)


def slot_decoding() -> tuple[Any, Types]:
    """Return one token for each slot of a server, each at a place of its own, with weights of 8 bits and a cache."""
    layers, width, heads, groups, head, hidden, words, slots, room = 16, 2048, 16, 4, 128, 5632, 32000, 32, 1024

    def linear(x: Any, w: Tree) -> Any:
        return (x @ w["q"].astype(BF16)) * w["scale"].astype(BF16)

    def attention(w: Tree, x: Any, cache: Tree, lengths: Any) -> tuple[Any, Tree]:
        slot = jnp.arange(slots)
        q = rotary(linear(x, w["wq"]).reshape(slots, heads, head), lengths)
        k = rotary(linear(x, w["wk"]).reshape(slots, groups, head), lengths)
        v = linear(x, w["wv"]).reshape(slots, groups, head)
        cache = {"k": cache["k"].at[slot, lengths].set(k), "v": cache["v"].at[slot, lengths].set(v)}
        q = q.reshape(slots, groups, heads // groups, head)
        scores = jnp.einsum("sghd,stgd->sght", q, cache["k"], preferred_element_type=F32) * head**-0.5
        visible = jnp.arange(room) <= lengths[:, None]
        shares = nn.softmax(jnp.where(visible[:, None, None], scores, -1e9)).astype(BF16)
        return linear(jnp.einsum("sght,stgd->sghd", shares, cache["v"]).reshape(slots, -1), w["wo"]), cache

    @partial(jax.jit, donate_argnums=1)
    def step(weights: Tree, server: Tree, temperatures: Any) -> Any:
        lengths = server["lengths"]
        x = weights["embed"][server["tokens"]]
        caches = []
        for w, old in zip(weights["layers"], server["caches"], strict=True):
            h, cache = attention(w, rms_norm(x, w["n1"]), old, lengths)
            caches.append(cache)
            x = x + h
            h = rms_norm(x, w["n2"])
            x = x + linear(nn.silu(linear(h, w["gate"])) * linear(h, w["up"]), w["down"])
        logits = linear(rms_norm(x, weights["norm"]), weights["head"]).astype(F32)
        key, sample_key = random.split(random.wrap_key_data(server["key"]))
        ordered = -jnp.sort(-logits, -1)
        total = jnp.cumsum(nn.softmax(ordered / temperatures[:, None]), -1)
        least = jnp.take_along_axis(ordered, jnp.argmax(total >= 0.95, -1)[:, None], -1)
        noise = random.gumbel(sample_key, logits.shape) * temperatures[:, None]
        drawn = jnp.argmax(jnp.where(logits >= least, logits + noise, -jnp.inf), -1).astype(I32)
        done = server["done"] | (drawn == 2) | (lengths + 1 >= room - 1)
        server = {"caches": caches, "done": done, "key": random.key_data(key)}
        return server | {"tokens": jnp.where(done, 0, drawn), "lengths": lengths + ~done}

    def packed(inner: int, outer: int) -> Tree:
        return {"q": of(inner, outer, dtype=I8), "scale": of(outer)}

    layer = {"wq": packed(width, heads * head), "wk": packed(width, groups * head), "wv": packed(width, groups * head)}
    layer |= {"wo": packed(heads * head, width), "gate": packed(width, hidden), "up": packed(width, hidden)}
    layer |= {"down": packed(hidden, width), "n1": of(width), "n2": of(width)}
    weights = {"embed": of(words, width, dtype=BF16), "layers": [layer] * layers, "norm": of(width)}
    weights["head"] = packed(width, words)
    cache = dict.fromkeys("kv", of(slots, room, groups, head, dtype=BF16))
    server = {"caches": [cache] * layers, "done": of(slots, dtype=bool), "key": of(2, dtype=U32)}
    server |= dict.fromkeys(("tokens", "lengths"), of(slots, dtype=I32))
    return step, (weights, server, of(slots))


def edge_messages() -> tuple[Any, Types]:
    """Return a net on a batch of graphs with features of edges, which sums messages in several ways, recomputed."""
    nodes, edges, graphs, width, layers, kinds, targets = 81_920, 240_000, 2560, 96, 4, 120, 12

    def perceptron(p: Tree, x: Any) -> Any:
        return dense(p["second"], nn.silu(dense(p["first"], x)))

    @jax.checkpoint
    def layer(p: Tree, x: Any, e: Any, graph: Tree) -> tuple[Any, Any]:
        joined = jnp.concatenate([x[graph["senders"]], x[graph["receivers"]], e], -1)
        messages = perceptron(p["message"], joined) * graph["edge_mask"][:, None]
        segment = partial(jax.ops.segment_sum, segment_ids=graph["receivers"], num_segments=nodes)
        degree = jnp.maximum(segment(graph["edge_mask"]), 1)[:, None]
        mean = segment(messages) / degree
        spread = jnp.sqrt(nn.relu(segment(messages**2) / degree - mean**2) + 1e-5)
        most = jax.ops.segment_max(messages, graph["receivers"], nodes)
        most = jnp.where(jnp.isfinite(most), most, 0)
        size = jnp.log1p(degree)
        gathered = jnp.concatenate([mean, most, spread, mean * size, mean / size], -1)
        x = x + perceptron(p["update"], jnp.concatenate([x, gathered], -1))
        return affine_norm(p["norm"], x), e + messages

    def loss(params: Tree, graph: Tree) -> Any:
        x = params["atoms"][graph["atoms"]]
        e = dense(params["bonds"], graph["bonds"])
        for p in params["layers"]:
            x, e = layer(p, x, e, graph)
        gates = nn.sigmoid(dense(params["gate"], x))
        pooled = jax.ops.segment_sum(gates * x, graph["owners"], graphs, indices_are_sorted=True)
        out = perceptron(params["head"], pooled)
        wrong = jnp.where(graph["present"], jnp.abs(out - graph["targets"]), 0)
        return wrong.sum() / jnp.maximum(graph["present"].sum(), 1)

    def two(inner: int, middle: int, outer: int) -> Tree:
        return {"first": dense_types(inner, middle), "second": dense_types(middle, outer)}

    one = {"message": two(3 * width, 2 * width, width), "update": two(6 * width, 2 * width, width)}
    one["norm"] = norm_types(width)
    params = {"atoms": of(kinds, width), "bonds": dense_types(16, width), "layers": [one] * layers}
    params |= {"gate": dense_types(width, width), "head": two(width, width, targets)}
    graph = {"atoms": of(nodes, dtype=I32), "owners": of(nodes, dtype=I32), "bonds": of(edges, 16)}
    graph |= dict.fromkeys(("senders", "receivers"), of(edges, dtype=I32)) | {"edge_mask": of(edges)}
    graph |= {"targets": of(graphs, targets), "present": of(graphs, targets, dtype=bool)}
    return adam(loss, params, graph)


def audio_units() -> tuple[Any, Types]:
    """Return a step like wav2vec 2.0: convolutions of raw sound, masked spans, drawn codes, and sampled negatives."""
    batch, samples, width, layers, heads = 6, 80_000, 512, 6, 8
    kernels, strides = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
    books, codes, out, negatives, span = 2, 320, 256, 100, 10

    def stem(params: list[Tree], sound: Any) -> Any:
        x = sound[..., None]
        for number, (p, stride) in enumerate(zip(params, strides, strict=True)):
            x = lax.conv_general_dilated(x, p["kernel"], (stride,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
            if number == 0:
                x = (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1, keepdims=True) + 1e-5)
                x = x * p["scale"] + p["bias"]
            x = nn.gelu(x, approximate=False)
        return x

    def encoder(params: Tree, x: Any, key: Any) -> Any:
        near = lax.conv_general_dilated(
            x, params["position"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=16
        )
        x = affine_norm(params["norm"], x + nn.gelu(near))
        for number, p in enumerate(params["layers"]):
            one, two = random.split(random.fold_in(key, number))
            q, k, v = (dense(p[name], x).reshape(batch, -1, heads, width // heads) for name in ("q", "k", "v"))
            h = nn.dot_product_attention(q, k, v).reshape(x.shape)
            x = affine_norm(p["n1"], x + dropout(one, dense(p["o"], h), 0.1))
            h = dense(p["down"], nn.gelu(dense(p["up"], x), approximate=False))
            x = affine_norm(p["n2"], x + dropout(two, h, 0.1))
        return x

    def quantize(params: Tree, x: Any, key: Any, warmth: Any) -> tuple[Any, Any]:
        logits = dense(params["codes"], x).reshape(batch, -1, books, codes)
        soft = nn.softmax((logits + random.gumbel(key, logits.shape)) / warmth)
        hard = nn.one_hot(jnp.argmax(soft, -1), codes)
        marks = hard + soft - lax.stop_gradient(soft)
        average = nn.softmax(logits).mean((0, 1))
        diversity = jnp.sum(average * jnp.log(average + 1e-7)) / books
        return jnp.einsum("btgc,gcd->btgd", marks, params["entries"]).reshape(batch, -1, out), diversity

    def loss(params: Tree, sound: Any, warmth: Any, key: Any) -> Any:
        mask_key, code_key, negative_key, key = random.split(key, 4)
        features = stem(params["stem"], sound)
        frames = features.shape[1]
        x = affine_norm(params["before"], features)
        starts = random.bernoulli(mask_key, 0.065, (batch, frames))
        masked = jnp.cumsum(starts, 1) - jnp.pad(jnp.cumsum(starts, 1), ((0, 0), (span, 0)))[:, :frames] > 0
        h = jnp.where(masked[..., None], params["mask"], dense(params["project"], x))
        context = dense(params["final"], encoder(params["encoder"], h, key))
        target, diversity = quantize(params["quantizer"], x, code_key, warmth)
        shift = random.randint(negative_key, (batch, frames, negatives), 1, frames)
        others = (jnp.arange(frames)[:, None] + shift) % frames
        false = jax.vmap(lambda rows, index: rows[index])(target, others)
        candidates = jnp.concatenate([target[:, :, None], false], 2)
        products = jnp.einsum("btd,btnd->btn", context, candidates)
        sizes = jnp.linalg.norm(context, axis=-1)[..., None] * jnp.linalg.norm(candidates, axis=-1)
        shares = nn.log_softmax(products / (0.1 * sizes + 1e-6))[..., 0]
        value = -jnp.sum(shares * masked) / jnp.maximum(masked.sum(), 1)
        return value + 0.1 * diversity + 10 * jnp.mean(features**2)

    def step(state: Tree, sound: Any, warmth: Any, seed: Any) -> Any:
        key = random.fold_in(random.key(seed), state["count"])
        value, gradients = jax.value_and_grad(loss)(state["params"], sound, warmth, key)
        gradients["stem"] = jax.tree.map(lambda g: 0.1 * g, gradients["stem"])
        return adamw(state, gradients, 5e-4, 0.01, 0.98), value

    stem_types: list[Tree] = [
        {"kernel": of(size, inner, width)} for size, inner in zip(kernels, (1,) + (width,) * 6, strict=True)
    ]
    stem_types[0] |= norm_types(width)
    layer = dict.fromkeys("qkvo", dense_types(width, width)) | {"n1": norm_types(width), "n2": norm_types(width)}
    layer |= {"up": dense_types(width, 4 * width), "down": dense_types(4 * width, width)}
    params = {"stem": stem_types, "before": norm_types(width), "mask": of(width), "project": dense_types(width, width)}
    params["encoder"] = {"position": of(128, width // 16, width), "norm": norm_types(width), "layers": [layer] * layers}
    params |= {"final": dense_types(width, out)}
    params["quantizer"] = {"codes": dense_types(width, books * codes), "entries": of(books, codes, out // books)}
    return jax.jit(step, donate_argnums=0), (adamw_state(params), of(batch, samples), of(), of(dtype=U32))


def two_way_decoder(mesh: Mesh) -> tuple[Any, Types]:
    """Return a decoder whose weights are sharded over data and model, with recomputed layers in a scan."""
    layers, width, heads, head, hidden, words, batch, length = 12, 2048, 16, 128, 5632, 32000, 16, 1024

    def constrain(x: Any, *axes: Any) -> Any:
        return lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P(*axes)))

    def layer(x: Any, w: Tree) -> tuple[Any, None]:
        w = jax.tree.map(lambda leaf: leaf.astype(BF16), w)
        h = rms_norm(x, w["n1"])
        q, k, v = (constrain(jnp.einsum("btd,dhe->bthe", h, w[name]), "data", None, "model") for name in "qkv")
        q, k = (rotary(y, jnp.arange(length)) for y in (q, k))
        scores = jnp.einsum("bthe,bshe->bhts", q, k).astype(F32) * head**-0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        out = jnp.einsum("bhts,bshe->bthe", nn.softmax(scores).astype(BF16), v)
        x = constrain(x + jnp.einsum("bthe,hed->btd", out, w["o"]), "data")
        h = rms_norm(x, w["n2"])
        h = constrain(nn.silu(h @ w["gate"]) * (h @ w["up"]), "data", None, "model")
        return constrain(x + h @ w["down"], "data"), None

    def loss(params: Tree, tokens: Any) -> Any:
        x = constrain(params["words"].astype(BF16)[tokens[:, :-1]], "data")
        x, _ = lax.scan(jax.checkpoint(layer), x, params["layers"])
        logits = constrain(rms_norm(x, params["norm"]) @ params["head"].astype(BF16), "data", None, "model")
        return cross_entropy(logits, tokens[:, 1:])

    def step(state: Tree, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state["params"], tokens)
        return adamw(state, clipped(gradients), 3e-4), value

    def weight(axes: tuple[Any, ...], *shape: int) -> Any:
        return sharded(mesh, of(layers, *shape), None, *axes)

    stack = {name: weight(("data", "model"), width, heads, head) for name in "qkv"}
    stack |= {
        "o": weight(("model", None, "data"), heads, head, width),
        "n1": weight((), width),
        "n2": weight((), width),
    }
    stack |= {name: weight(("data", "model"), width, hidden) for name in ("gate", "up")}
    stack["down"] = weight(("model", "data"), hidden, width)
    params = {"words": sharded(mesh, of(words, width), "model", "data"), "layers": stack}
    params |= {"head": sharded(mesh, of(width, words), "data", "model"), "norm": sharded(mesh, of(width))}
    state = {"params": params, "mu": params, "nu": params, "count": sharded(mesh, of(dtype=I32))}
    return jax.jit(step, donate_argnums=0), (state, sharded(mesh, of(batch, length + 1, dtype=I32), "data"))


def dispatched_experts(mesh: Mesh) -> tuple[Any, Types]:
    """Return a decoder with two experts per token and a capacity, to which products with one-hot arrays send tokens."""
    layers, width, heads, hidden, experts, words, groups, size = 4, 1024, 16, 4096, 16, 32000, 32, 512
    capacity = 2 * size * 5 // 4 // experts

    def constrain(x: Any, *axes: Any) -> Any:
        return lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P(*axes)))

    def route(shares: Any) -> tuple[Any, Any]:
        """Return the weights [groups, size, experts, capacity] of the tokens in the experts' slots, and a loss."""
        first = nn.one_hot(jnp.argmax(shares, -1), experts)
        second = nn.one_hot(jnp.argmax(shares * (1 - first), -1), experts)
        balance = experts * jnp.mean(first.mean(1) * shares.mean(1)) * experts
        place_first = jnp.cumsum(first, 1) * first - first
        used = first.sum(1, keepdims=True)
        place_second = (jnp.cumsum(second, 1) + used) * second - second
        weights = []
        for chosen, places in ((first, place_first), (second, place_second)):
            marks = chosen * (places < capacity)
            weights.append((jnp.sum(shares * marks, -1), marks, jnp.sum(places * marks, -1).astype(I32)))
        total = weights[0][0] + weights[1][0] + 1e-9
        combined = sum(
            (share / total)[..., None, None] * marks[..., None] * nn.one_hot(place, capacity)[:, :, None]
            for share, marks, place in weights
        )
        return combined, balance

    def experts_of(w: Tree, x: Any) -> tuple[Any, Any]:
        logits = x.astype(F32) @ w["router"]
        combined, balance = route(nn.softmax(logits))
        dispatch = (combined > 0).astype(BF16)
        sent = constrain(jnp.einsum("gsec,gsd->egcd", dispatch, x), "expert", "data")
        h = nn.relu(jnp.einsum("egcd,edh->egch", sent, w["up"].astype(BF16)))
        back = constrain(jnp.einsum("egch,ehd->egcd", h, w["down"].astype(BF16)), "expert", "data")
        out = jnp.einsum("gsec,egcd->gsd", combined.astype(BF16), back)
        return constrain(out, ("data", "expert")), balance + 1e-3 * jnp.mean(nn.logsumexp(logits, -1) ** 2)

    def loss(params: Tree, tokens: Any) -> Any:
        x = params["words"].astype(BF16)[tokens[:, :-1]]
        extra = jnp.zeros(())
        mask = jnp.tril(jnp.ones((size, size), bool))
        for w in params["layers"]:
            h = rms_norm(x, w["n1"])
            q, k, v = jnp.split(h @ w["qkv"].astype(BF16), 3, -1)
            q, k, v = (y.reshape(groups, size, heads, -1) for y in (q, k, v))
            out = nn.dot_product_attention(q, k, v, mask=mask[None, None]).reshape(x.shape)
            x = x + out @ w["o"].astype(BF16)
            out, more = experts_of(w, rms_norm(x, w["n2"]))
            x, extra = x + out, extra + more
        logits = rms_norm(x, params["norm"]) @ params["words"].astype(BF16).T
        return cross_entropy(logits, tokens[:, 1:]) + 0.01 * extra

    def step(state: Tree, tokens: Any) -> Any:
        params, means = state
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        means = jax.tree.map(lambda m, g: (0.9 * m.astype(F32) + 0.1 * g).astype(BF16), means, clipped(gradients))
        params = jax.tree.map(lambda p, m: p - 1e-3 * (m.astype(F32) + 0.01 * p), params, means)
        return lax.with_sharding_constraint((params, means), shardings), value

    layer = {"qkv": of(width, 3 * width), "o": of(width, width), "router": of(width, experts)}
    layer = sharded(mesh, layer | {"n1": of(width), "n2": of(width)})
    layer |= sharded(mesh, {"up": of(experts, width, hidden), "down": of(experts, hidden, width)}, "expert")
    params = {"words": sharded(mesh, of(words, width)), "norm": sharded(mesh, of(width)), "layers": [layer] * layers}
    means = jax.tree.map(lambda leaf: leaf.update(dtype=BF16), params)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, (params, means))
    tokens = sharded(mesh, of(groups, size + 1, dtype=I32), ("data", "expert"))
    return jax.jit(step, donate_argnums=0), ((params, means), tokens)


def prompt_prefill(mesh: Mesh) -> tuple[Any, Types]:
    """Return the first token of prompts and the filled caches, with heads and hidden units on four devices."""
    layers, width, heads, groups, head, hidden, words = 16, 4096, 32, 8, 128, 11008, 32000
    batch, length, room = 4, 1024, 2048

    def constrain(x: Any, *axes: Any) -> Any:
        return lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P(*axes)))

    def step(cache: Tree, weights: Tree, prompts: Any, lengths: Any, seed: Any) -> Any:
        positions = jnp.arange(length)
        visible = (positions[:, None] >= positions) & (positions < lengths[:, None, None])

        def layer(x: Any, row: Any) -> Any:
            w, keys, values = row
            h = rms_norm(x, w["n1"])
            q = rotary((h @ w["q"]).reshape(batch, length, groups, heads // groups, head), positions[:, None])
            k = rotary((h @ w["k"]).reshape(batch, length, groups, head), positions)
            v = (h @ w["v"]).reshape(batch, length, groups, head)
            keys, values = (
                constrain(lax.dynamic_update_slice(old, new, (0, 0, 0, 0)), None, None, "model")
                for old, new in ((keys, k), (values, v))
            )
            scores = jnp.einsum("btghd,bsgd->bghts", q, k).astype(F32) / math.sqrt(head)
            shares = nn.softmax(jnp.where(visible[:, None, None], scores, -1e9)).astype(BF16)
            out = jnp.einsum("bghts,bsgd->btghd", shares, v).reshape(batch, length, -1)
            x = x + constrain(out @ w["o"])
            h = rms_norm(x, w["n2"])
            return x + constrain((nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]), (keys, values)

        x, cache = lax.scan(layer, weights["words"][prompts], (weights["layers"], *cache))
        last = jnp.take_along_axis(x, (lengths - 1)[:, None, None], 1)[:, 0]
        logits = (rms_norm(last, weights["norm"]) @ weights["head"]).astype(F32)
        return cache, random.categorical(random.key(seed), logits / 0.7)

    def weight(axes: tuple[Any, ...], *shape: int) -> Any:
        return sharded(mesh, of(layers, *shape, dtype=BF16), None, *axes)

    into, from_ = (None, "model"), ("model",)
    stack = {"q": weight(into, width, heads * head), "o": weight(from_, heads * head, width)}
    stack |= {name: weight(into, width, groups * head) for name in "kv"} | {"n1": weight((), width)}
    stack |= {name: weight(into, width, hidden) for name in ("gate", "up")} | {"n2": weight((), width)}
    stack["down"] = weight(from_, hidden, width)
    weights = {"words": sharded(mesh, of(words, width, dtype=BF16), None, "model"), "layers": stack}
    weights |= {"head": sharded(mesh, of(width, words, dtype=BF16), *into), "norm": sharded(mesh, of(width))}
    kept = weight((None, None, "model"), batch, room, groups, head)
    data = sharded(mesh, (of(batch, length, dtype=I32), of(batch, dtype=I32), of(dtype=U32)))
    return jax.jit(step, donate_argnums=0), ((kept, kept), weights, *data)


def synchronized_statistics(mesh: Mesh) -> tuple[Any, Types]:
    """Return EfficientNet on eight devices with batch norms over all, running statistics, and RMSProp with averages."""
    axis, size, classes, batch = "data", 128, 1000, 48 * mesh.shape["data"]
    stages = [(16, 1, 1, 1, 3), (24, 6, 2, 2, 3), (40, 6, 2, 2, 5)]  # width, expansion, depth, stride, window
    stages += [(80, 6, 3, 2, 3), (112, 6, 3, 1, 5), (192, 6, 3, 2, 5)]

    def norm(name: str, p: Tree, x: Any, old: Tree, new: dict[str, Tree]) -> Any:
        mean = lax.pmean(x.mean((0, 1, 2)), axis)
        variance = lax.pmean((x * x).mean((0, 1, 2)), axis) - mean * mean
        moved = {"mean": mean, "variance": variance}
        new[name] = jax.tree.map(lambda o, n: 0.99 * o + 0.01 * lax.stop_gradient(n), old[name], moved)
        return (x - mean) * (lax.rsqrt(variance + 1e-3) * p["scale"]) + p["bias"]

    def local_loss(params: Tree, statistics: Tree, images: Any, labels: Any) -> Any:
        new: dict[str, Tree] = {}

        def unit(name: str, x: Any, stride: int = 1, groups: int = 1) -> Any:
            return norm(name, params[name], conv(x, params[name]["kernel"], stride, groups), statistics, new)

        x = nn.silu(unit("stem", images, 2))
        for number, (width, _, depth, first_stride, _) in enumerate(stages):
            for place in range(depth):
                name, h = f"{number}.{place}", x
                stride = first_stride if place == 0 else 1
                if f"{name}.expand" in params:
                    h = nn.silu(unit(f"{name}.expand", h))
                h = nn.silu(unit(f"{name}.depth", h, stride, h.shape[-1]))
                p = params[f"{name}.squeeze"]
                gate = nn.sigmoid(dense(p["up"], nn.silu(dense(p["down"], h.mean((1, 2))))))
                h = unit(f"{name}.project", h * gate[:, None, None])
                x = x + h if x.shape[-1] == width and stride == 1 else h
        x = nn.silu(unit("last", x)).mean((1, 2))
        return lax.pmean(cross_entropy(dense(params["head"], x), labels), axis), new

    own = jax.P(axis)
    loss = jax.shard_map(local_loss, mesh=mesh, in_specs=(jax.P(), jax.P(), own, own), out_specs=(jax.P(), jax.P()))

    def step(state: Tree, images: Any, labels: Any) -> Any:
        params = state["params"]
        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(
            params, state["statistics"], images, labels
        )
        gradients = jax.tree.map(lambda g, p: g + 1e-5 * p, gradients, params)
        squares = jax.tree.map(lambda s, g: 0.9 * s + 0.1 * g * g, state["squares"], gradients)
        trace = jax.tree.map(lambda t, g, s: 0.9 * t + g * lax.rsqrt(s + 1e-3), state["trace"], gradients, squares)
        params = jax.tree.map(lambda p, t: p - 0.016 * t, params, trace)
        average = jax.tree.map(lambda a, p: 0.9999 * a + 0.0001 * p, state["average"], params)
        new = {"params": params, "squares": squares, "trace": trace, "average": average, "statistics": statistics}
        return new, value

    def unit_types(*kernel: int) -> Tree:
        return {"kernel": of(*kernel), **norm_types(kernel[-1])}

    params: dict[str, Tree] = {"stem": unit_types(3, 3, 3, 32)}
    inner = 32
    for number, (width, expansion, depth, _, window) in enumerate(stages):
        for place in range(depth):
            name, middle = f"{number}.{place}", inner * expansion
            if expansion > 1:
                params[f"{name}.expand"] = unit_types(1, 1, inner, middle)
            params[f"{name}.depth"] = unit_types(window, window, 1, middle)
            narrow = max(1, inner // 4)
            params[f"{name}.squeeze"] = {"down": dense_types(middle, narrow), "up": dense_types(narrow, middle)}
            params[f"{name}.project"] = unit_types(1, 1, middle, width)
            inner = width
    params["last"] = unit_types(1, 1, inner, 1280)
    params["head"] = dense_types(1280, classes)
    statistics = {
        name: {"mean": p["scale"], "variance": p["scale"]}
        for name, p in params.items()
        if "kernel" in p and "scale" in p
    }
    state = dict.fromkeys(("params", "squares", "trace", "average"), params) | {"statistics": statistics}
    data = sharded(mesh, (of(batch, size, size, 3), of(batch, dtype=I32)), axis)
    return jax.jit(step, donate_argnums=0), (sharded(mesh, state), *data)


STEPS = by_name(
    decoder_with_dropout,
    stabilized_logits,
    packed_documents,
    span_corruption,
    sentence_pairs,
    mixed_images,
    convolution_stages,
    running_statistics,
    noise_prediction,
    joint_streams,
    perceptual_autoencoder,
    image_captions,
    pooled_features,
    chunked_decays,
    phoneme_alignment,
    adapter_preferences,
    group_advantages,
    slot_decoding,
    edge_messages,
    audio_units,
)

SHARDED = by_name(two_way_decoder, dispatched_experts, prompt_prefill, synchronized_statistics)

MESHES = {
    "two way decoder": {"data": 4, "model": 2},
    "dispatched experts": {"data": 2, "expert": 4},
    "prompt prefill": {"model": 4},
    "synchronized statistics": {"data": 8},
}
