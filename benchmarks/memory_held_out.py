"""Steps for `benchmarks/memory_predictions.py` that were held out until the last rules of the memory model.

They differ from the steps of `memory_models.py` in structure: loops that are not over layers, policies of
checkpointing, sorts, Fourier transforms, scatters, integers, conditionals, functions with their own derivative,
factorizations, and steps on eight devices. `STEPS` has the steps on one device by name, `SHARDED` those on a mesh.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import shardwise as jax
import shardwise.numpy as jnp
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
from shardwise.ad_checkpoint import checkpoint_name
from shardwise.models import Decoder, train_state, train_step

Tree = Any
Mesh = Any
I8 = jnp.int8


def normalized(x: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(x.astype(F32) ** 2, -1, keepdims=True) + 1e-6).astype(x.dtype)


def transformer_layer(heads: int, causal: bool, x: Any, w: Tree) -> Any:
    """Return a layer of a transformer, with the dtype of `x`."""
    w = jax.tree.map(lambda leaf: leaf.astype(x.dtype), w)
    h = normalized(x)
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool)) if causal else None
    x = x + attend(heads, h @ w["q"], h @ w["k"], h @ w["v"], mask) @ w["o"]
    return x + nn.gelu(normalized(x) @ w["up"]) @ w["down"]


def transformer_weights(width: int, layers: int | None = None, dtype: Any = F32) -> Tree:
    """Return the types of a layer's weights, or of a stack of layers."""
    stack = () if layers is None else (layers,)
    weights = {name: of(*stack, width, width, dtype=dtype) for name in "qkvo"}
    return weights | {
        "up": of(*stack, width, 4 * width, dtype=dtype),
        "down": of(*stack, 4 * width, width, dtype=dtype),
    }


def chunked_vocabulary() -> tuple[Any, Types]:
    """Return a decoder whose logits are computed for chunks of tokens, again in the backward pass."""
    width, layers, chunks = 768, 6, 8

    def loss(params: Tree, tokens: Any) -> Any:
        x = params["words"].astype(BF16)[tokens[:, :-1]]
        x, _ = lax.scan(lambda x, w: (transformer_layer(12, True, x, w), None), x, params["layers"])
        rows, labels = x.reshape(chunks, -1, width), tokens[:, 1:].reshape(chunks, -1)

        @jax.checkpoint
        def chunk(total: Any, row: Any) -> Any:
            logits = row[0] @ params["head"].astype(BF16)
            return total + cross_entropy(logits, row[1]) / chunks, None

        return lax.scan(chunk, jnp.zeros(()), (rows, labels))[0]

    params = {"words": of(50304, width), "head": of(width, 50304), "layers": transformer_weights(width, layers)}
    return adam(loss, params, of(8, 513, dtype=I32))


def accumulated_gradients() -> tuple[Any, Types]:
    """Return a step of AdamW whose gradients are the sum of microbatches, of a net of convolutions."""

    def loss(params: Tree, images: Any, labels: Any) -> Any:
        x = images
        for kernels in params["stages"]:
            for kernel in kernels:
                x = nn.relu(conv(x, kernel))
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(x.shape[0], -1)
        return cross_entropy(nn.relu(x @ params["hidden"]) @ params["head"], labels)

    def step(state: Tree, images: Any, labels: Any) -> Any:
        params, means, squares, count = state

        def add(total: Any, batch: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(params, *batch)
            return (total[0] + value, jax.tree.map(jnp.add, total[1], gradients)), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        (value, gradients), _ = lax.scan(add, (jnp.zeros(()), zeros), (images, labels))
        count = count + 1
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
        squares = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, squares, gradients)

        def update(p: Any, m: Any, s: Any) -> Any:
            return p - 1e-3 * (m / (1 - 0.9**count) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-8) + 0.1 * p)

        return (jax.tree.map(update, params, means, squares), means, squares, count), value

    widths = (3, 64, 128, 256, 256)
    stages = [(of(3, 3, a, b), of(3, 3, b, b)) for a, b in pairwise(widths)]
    params = {"stages": stages, "hidden": of(4 * 4 * 256, 2048), "head": of(2048, 100)}
    state = (params, params, params, of())
    return jax.jit(step, donate_argnums=0), (state, of(8, 32, 64, 64, 3), of(8, 32, dtype=I32))


def saved_products() -> tuple[Any, Types]:
    """Return a decoder that saves its products with weights, by a policy."""
    width = 1024
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

    def loss(params: Tree, tokens: Any) -> Any:
        layer = jax.checkpoint(partial(transformer_layer, 16, True), policy=policy)
        x = params["words"].astype(BF16)[tokens[:, :-1]]
        x, _ = lax.scan(lambda x, w: (layer(x, w), None), x, params["layers"])
        return cross_entropy(x @ params["words"].astype(BF16).T, tokens[:, 1:])

    params = {"words": of(32000, width), "layers": transformer_weights(width, 6)}
    return adam(loss, params, of(4, 1025, dtype=I32))


def saved_names() -> tuple[Any, Types]:
    """Return an encoder of separate layers that saves only values with a name."""
    width = 512
    policy = jax.checkpoint_policies.save_only_these_names("attended")

    def layer(x: Any, w: Tree) -> Any:
        h = layer_norm(x, w["n1"])
        attended = attend(8, h @ w["q"], h @ w["k"], h @ w["v"]) @ w["o"]
        x = x + checkpoint_name(attended, "attended")
        return x + nn.silu(layer_norm(x, w["n2"]) @ w["up"]) @ w["down"]

    def loss(params: Tree, x: Any, y: Any) -> Any:
        for w in params:
            x = jax.checkpoint(layer, policy=policy)(x, w)
        return jnp.mean(jnp.abs(x - y))

    weights = {**transformer_weights(width), "n1": of(width), "n2": of(width)}
    return momentum(loss, [weights] * 6, of(8, 512, width), of(8, 512, width))


def generation() -> tuple[Any, Types]:
    """Return a loop that samples tokens, whose carry is a cache of all layers."""
    layers, width, heads, length, batch, count = 6, 512, 8, 512, 16, 64

    def generate(cache: Tree, weights: Tree, tokens: Any, seed: Any) -> Any:
        def token(place: Any, carry: Any) -> Any:
            (keys, values), last, tokens = carry
            x = weights["words"][last]
            for number in range(layers):
                w = jax.tree.map(lambda leaf, number=number: leaf[number], weights["layers"])
                h = normalized(x)
                keys = keys.at[number, :, place].set((h @ w["k"]).reshape(batch, heads, -1))
                values = values.at[number, :, place].set((h @ w["v"]).reshape(batch, heads, -1))
                scores = jnp.einsum("bhd,bthd->bht", (h @ w["q"]).reshape(batch, heads, -1), keys[number])
                scores = jnp.where(jnp.arange(length) <= place, scores.astype(F32), -jnp.inf)
                out = jnp.einsum("bht,bthd->bhd", nn.softmax(scores).astype(x.dtype), values[number])
                x = x + out.reshape(batch, width) @ w["o"]
                x = x + nn.gelu(normalized(x) @ w["up"]) @ w["down"]
            logits = (x @ weights["words"].T).astype(F32)
            last = random.categorical(random.fold_in(random.key(seed), place), logits).astype(I32)
            return (keys, values), last, tokens.at[:, place].set(last)

        cache, _, tokens = lax.fori_loop(length - count, length, token, (cache, tokens[:, -1], tokens))
        return cache, tokens

    kept = of(layers, batch, length, heads, width // heads, dtype=BF16)
    weights = {"words": of(32000, width, dtype=BF16), "layers": transformer_weights(width, layers, BF16)}
    types = ((kept, kept), weights, of(batch, length, dtype=I32), of(dtype=jnp.uint32))
    return jax.jit(generate, donate_argnums=0), types


def beam_search() -> tuple[Any, Types]:
    """Return a search that reorders the states of its beams, until all have ended."""
    batch, beams, width, words, length = 32, 8, 512, 16000, 32

    def search(weights: Tree, start: Any) -> Any:
        def ends(carry: Any) -> Any:
            place, _, tokens, _ = carry
            return (place < length) & jnp.any(tokens[:, 0, place - 1] != 0)

        def advance(carry: Any) -> Any:
            place, hidden, tokens, scores = carry
            x = weights["words"][tokens[:, :, place - 1]]
            gates = nn.sigmoid(x @ weights["xz"] + hidden @ weights["hz"])
            hidden = gates * hidden + (1 - gates) * jnp.tanh(x @ weights["xh"] + hidden @ weights["hh"])
            logits = scores[..., None] + nn.log_softmax(hidden @ weights["words"].T)
            scores, chosen = lax.top_k(logits.reshape(batch, -1), beams)
            parents = chosen // words
            hidden = jnp.take_along_axis(hidden, parents[..., None], 1)
            tokens = jnp.take_along_axis(tokens, parents[..., None], 1).at[:, :, place].set(chosen % words)
            return place + 1, hidden, tokens, scores

        tokens = jnp.zeros((batch, beams, length), I32).at[:, :, 0].set(1)
        carry = (jnp.int32(1), start, tokens, jnp.zeros((batch, beams)))
        _, _, tokens, scores = lax.while_loop(ends, advance, carry)
        return tokens, scores

    weights = {"words": of(words, width), **dict.fromkeys(("xz", "hz", "xh", "hh"), of(width, width))}
    return jax.jit(search), (weights, of(batch, beams, width))


def sorted_experts() -> tuple[Any, Types]:
    """Return experts with a capacity: assignments are sorted, scattered to slots, and gathered again."""
    width, hidden, count, chosen, tokens = 512, 2048, 8, 2, 8192
    capacity = tokens * chosen // count

    def mixture(x: Any, p: Tree) -> Any:
        weights, experts = lax.top_k(nn.softmax(x @ p["router"]), chosen)
        flat = experts.reshape(-1)
        order = jnp.argsort(flat)
        starts = jnp.cumsum(jnp.bincount(flat, length=count)) - jnp.bincount(flat, length=count)
        ranks = jnp.zeros_like(flat).at[order].set(jnp.arange(flat.size) - starts[flat[order]])
        slots = jnp.where(ranks < capacity, flat * capacity + ranks, count * capacity)
        inputs = jnp.zeros((count * capacity, width)).at[slots].set(jnp.repeat(x, chosen, 0), mode="drop")
        inner = nn.silu(jnp.einsum("ecd,edf->ecf", inputs.reshape(count, capacity, width), p["up"]))
        outputs = jnp.einsum("ecf,efd->ecd", inner, p["down"]).reshape(-1, width)
        gathered = outputs.at[slots].get(mode="fill", fill_value=0.0).reshape(tokens, chosen, width)
        return x + jnp.einsum("tc,tcd->td", weights, gathered)

    def loss(params: Tree, x: Any, y: Any) -> Any:
        for p in params:
            x = mixture(x, p)
        return jnp.mean((x - y) ** 2)

    layer = {"router": of(width, count), "up": of(count, width, hidden), "down": of(count, hidden, width)}
    return momentum(loss, [layer] * 3, of(tokens, width), of(tokens, width))


def fourier_operator() -> tuple[Any, Types]:
    """Return a Fourier neural operator in two dims."""
    width, modes, size = 32, 16, 64

    def loss(params: Tree, x: Any, y: Any) -> Any:
        x = x @ params["in"]
        for p in params["layers"]:
            spectrum = jnp.fft.rfft2(x, axes=(1, 2))[:, :modes, :modes]
            mixed = jnp.einsum("bxyi,xyio->bxyo", spectrum, lax.complex(p["real"], p["imaginary"]))
            padded = jnp.pad(mixed, ((0, 0), (0, size - modes), (0, size // 2 + 1 - modes), (0, 0)))
            x = nn.gelu(jnp.fft.irfft2(padded, s=(size, size), axes=(1, 2)) + x @ p["skip"])
        return jnp.mean((x @ params["out"] - y) ** 2)

    kernel = of(modes, modes, width, width)
    layer = {"real": kernel, "imaginary": kernel, "skip": of(width, width)}
    params = {"in": of(3, width), "layers": [layer] * 4, "out": of(width, 1)}
    return adam(loss, params, of(64, size, size, 3), of(64, size, size, 1))


def long_convolution() -> tuple[Any, Types]:
    """Return layers that convolve sequences with filters of the same length, by Fourier transforms."""
    width, length = 256, 2048

    def loss(params: Tree, x: Any, y: Any) -> Any:
        for p in params:
            gate, value = jnp.split(x @ p["in"], 2, -1)
            decay = jnp.exp(-jnp.arange(length)[:, None] * nn.softplus(p["decay"]))
            product = jnp.fft.rfft(value, 2 * length, 1) * jnp.fft.rfft(p["filter"] * decay, 2 * length, 0)
            x = x + (gate * jnp.fft.irfft(product, 2 * length, 1)[:, :length]) @ p["out"]
        return jnp.mean((x - y) ** 2)

    layer = {"in": of(width, 2 * width), "out": of(width, width), "filter": of(length, width), "decay": of(width)}
    return momentum(loss, [layer] * 3, of(8, length, width), of(8, length, width))


def sparse_updates() -> tuple[Any, Types]:
    """Return a step of Adagrad that updates only the rows of the tables that a batch has."""
    tables, rows, width, batch = 4, 200000, 64, 8192

    def step(state: Tree, indices: Any, clicked: Any) -> Any:
        def loss(vectors: Any, dense: Tree) -> Any:
            h = nn.relu(vectors.reshape(batch, -1) @ dense["hidden"])
            logits = (h @ dense["out"])[:, 0]
            return jnp.mean(nn.softplus(logits) - clicked * logits)

        vectors = jnp.stack([table[indices[:, k]] for k, table in enumerate(state["tables"])], 1)
        value, (sparse, dense) = jax.value_and_grad(loss, (0, 1))(vectors, state["dense"])
        tables, squares = [], []
        for k, (table, before) in enumerate(zip(state["tables"], state["squares"], strict=True)):
            square = before.at[indices[:, k]].add(jnp.mean(sparse[:, k] ** 2, -1))
            scale = lax.rsqrt(square[indices[:, k]] + 1e-8)[:, None]
            tables.append(table.at[indices[:, k]].add(-0.01 * sparse[:, k] * scale))
            squares.append(square)
        dense = jax.tree.map(lambda p, g: p - 0.01 * g, state["dense"], dense)
        return {"tables": tables, "squares": squares, "dense": dense}, value

    state: Tree = {"tables": [of(rows, width)] * tables, "squares": [of(rows)] * tables}
    state["dense"] = {"hidden": of(tables * width, 1024), "out": of(1024, 1)}
    return jax.jit(step, donate_argnums=0), (state, of(batch, tables, dtype=I32), of(batch))


def scaled_loss() -> tuple[Any, Types]:
    """Return a step in float16 with a scaled loss, which is skipped if a gradient is not finite."""
    width, half = 1024, jnp.float16

    def loss(params: Tree, x: Any, y: Any) -> Any:
        x = x.astype(half)
        for w, b in params:
            x = x + nn.relu(x @ w.astype(half) + b.astype(half))
        return jnp.mean((x.astype(F32) - y) ** 2)

    def step(state: Tree, x: Any, y: Any) -> Any:
        params, means, scale = state
        value, gradients = jax.value_and_grad(lambda p: loss(p, x, y) * scale)(params)
        gradients = jax.tree.map(lambda g: g / scale, gradients)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradients)]))

        def update(_: Any) -> Any:
            new = jax.tree.map(lambda m, g: 0.9 * m + g, means, gradients)
            return jax.tree.map(lambda p, m: p - 0.01 * m, params, new), new, jnp.minimum(2 * scale, 65536.0)

        return lax.cond(finite, update, lambda _: (params, means, scale / 2), None), value

    params = [(of(width, width), of(width))] * 8
    return jax.jit(step, donate_argnums=0), ((params, params, of()), of(8192, width), of(8192, width))


def integer_inference() -> tuple[Any, Types]:
    """Return a forward pass with weights and activations of eight bits."""
    width, layers = 2048, 6

    def quantized(x: Any) -> tuple[Any, Any]:
        scale = jnp.max(jnp.abs(x), -1, keepdims=True) / 127
        return jnp.round(x / scale).astype(I8), scale

    def product(x: Any, w: Any) -> Any:
        rows, scale = quantized(x)
        numbers, dims = w["numbers"], (((x.ndim - 1,), (0,)), ((), ()))
        return lax.dot_general(rows, numbers, dims, preferred_element_type=I32).astype(F32) * scale * w["scale"]

    def forward(weights: Tree, x: Any) -> Any:
        def layer(x: Any, w: Tree) -> Any:
            h = nn.gelu(product(normalized(x), w["up"]))
            return x + product(h, w["down"]), None

        return lax.scan(layer, x, weights)[0]

    def matrix(rows: int, columns: int) -> Tree:
        return {"numbers": of(layers, rows, columns, dtype=I8), "scale": of(layers, columns)}

    weights = {"up": matrix(width, 4 * width), "down": matrix(4 * width, width)}
    return jax.jit(forward), (weights, of(4096, width))


def chosen_branches() -> tuple[Any, Types]:
    """Return layers that each run one of three branches, which differ in width."""
    width, layers = 512, 4

    def loss(params: Tree, x: Any, y: Any, choices: Any) -> Any:
        def narrow(x: Any, w: Tree) -> Any:
            return x + nn.relu(x @ w["first"]) @ w["second"]

        def wide(x: Any, w: Tree) -> Any:
            return x + nn.gelu(x @ w["up"]) @ w["down"]

        def layer(x: Any, both: Any) -> Any:
            w, choice = both
            return lax.switch(choice, [lambda x, w: x, narrow, wide], normalized(x), w), None

        x, _ = lax.scan(layer, x, (params, choices))
        return jnp.mean((x - y) ** 2)

    params = {"first": of(layers, width, width), "second": of(layers, width, width)}
    params |= {"up": of(layers, width, 8 * width), "down": of(layers, 8 * width, width)}
    return momentum(loss, params, of(8192, width), of(8192, width), of(layers, dtype=I32))


def reversible_layers() -> tuple[Any, Types]:
    """Return layers whose derivative computes their inputs from their outputs."""
    width, layers = 512, 8

    def residual(w: Tree, x: Any) -> Any:
        return nn.gelu(normalized(x) @ w["up"]) @ w["down"]

    def forward(params: Tree, a: Any, b: Any) -> Any:
        def layer(both: Any, w: Tree) -> Any:
            a, b = both
            a = a + residual(w["first"], b)
            return (a, b + residual(w["second"], a)), None

        return lax.scan(layer, (a, b), params)[0]

    stack = jax.custom_vjp(forward)

    def save(params: Tree, a: Any, b: Any) -> Any:
        outputs = forward(params, a, b)
        return outputs, (params, *outputs)

    def backward(saved: Any, cotangents: Any) -> Any:
        params, a, b = saved

        def layer(carry: Any, w: Tree) -> Any:
            a, b, da, db = carry
            moved, pull = jax.vjp(residual, w["second"], a)
            second, more = pull(db)
            b, da = b - moved, da + more
            moved, pull = jax.vjp(residual, w["first"], b)
            first, more = pull(da)
            return (a - moved, b, da, db + more), {"first": first, "second": second}

        (_, _, da, db), gradients = lax.scan(layer, (a, b, *cotangents), params, reverse=True)
        return gradients, da, db

    stack.defvjp(save, backward)

    def loss(params: Tree, x: Any, y: Any) -> Any:
        a, b = stack(params, x, x)
        return jnp.mean((a + b - y) ** 2)

    block = {"up": of(layers, width, 4 * width), "down": of(layers, 4 * width, width)}
    return adam(loss, {"first": block, "second": block}, of(16, 512, width), of(16, 512, width))


def vector_quantization() -> tuple[Any, Types]:
    """Return an autoencoder with the nearest entries of a codebook, which is a moving average."""
    width, entries = 64, 4096

    def loss(params: Tree, codebook: Any, images: Any) -> Any:
        x = nn.relu(conv(nn.relu(conv(images, params["down1"], 2)), params["down2"], 2))
        flat = x.reshape(-1, width)
        distances = jnp.sum(flat**2, 1, keepdims=True) - 2 * flat @ codebook.T + jnp.sum(codebook**2, 1)
        nearest = jnp.argmin(distances, 1)
        chosen = codebook[nearest]
        passed = flat + lax.stop_gradient(chosen - flat)
        h = nn.relu(conv(passed.reshape(x.shape), params["middle"]))
        h = jnp.repeat(jnp.repeat(h, 2, 1), 2, 2)
        h = nn.relu(conv(h, params["up"]))
        out = conv(jnp.repeat(jnp.repeat(h, 2, 1), 2, 2), params["out"])
        return jnp.mean((out - images) ** 2) + 0.25 * jnp.mean((flat - chosen) ** 2), (flat, nearest)

    def step(state: Tree, images: Any) -> Any:
        params, sums, counts = state
        codebook = sums / counts[:, None]
        (value, (flat, nearest)), gradients = jax.value_and_grad(loss, has_aux=True)(params, codebook, images)
        chosen = nn.one_hot(nearest, entries)
        sums, counts = 0.99 * sums + 0.01 * chosen.T @ flat, 0.99 * counts + 0.01 * chosen.sum(0)
        return (jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), sums, counts), value

    params = {"down1": of(4, 4, 3, width), "down2": of(4, 4, width, width), "middle": of(3, 3, width, width)}
    params |= {"up": of(3, 3, width, width), "out": of(3, 3, width, 3)}
    state = (params, of(entries, width), of(entries))
    return jax.jit(step, donate_argnums=0), (state, of(32, 64, 64, 3))


def orthogonalized_updates() -> tuple[Any, Types]:
    """Return a step of an optimizer that orthogonalizes the momentum of matrices, in bf16."""
    width = 1024

    def loss(params: Tree, tokens: Any) -> Any:
        x = params["words"].astype(BF16)[tokens[:, :-1]]
        for w in params["layers"]:
            x = transformer_layer(16, True, x, w)
        return cross_entropy(x @ params["words"].astype(BF16).T, tokens[:, 1:])

    def orthogonal(m: Any) -> Any:
        x = (m.T if m.shape[0] > m.shape[1] else m).astype(BF16)
        x = x / jnp.linalg.norm(x)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        return (x.T if m.shape[0] > m.shape[1] else x).astype(F32)

    def step(state: Tree, tokens: Any) -> Any:
        params, means = state
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        means = jax.tree.map(lambda m, g: 0.95 * m + g, means, gradients)
        layers = jax.tree.map(lambda p, m: p - 0.02 * orthogonal(m), params["layers"], means["layers"])
        words = params["words"] - 1e-3 * jnp.sign(means["words"])
        return ({"words": words, "layers": layers}, means), value

    params = {"words": of(16000, width), "layers": [transformer_weights(width)] * 3}
    return jax.jit(step, donate_argnums=0), ((params, params), of(4, 513, dtype=I32))


def gaussian_process() -> tuple[Any, Types]:
    """Return a step of the marginal likelihood of a Gaussian process: a Cholesky factor and triangular solves."""
    count, features = 2048, 16

    def loss(params: Tree, x: Any, y: Any) -> Any:
        scaled = x * jnp.exp(params["scales"])
        squares = jnp.sum(scaled**2, 1)
        kernel = jnp.exp(-0.5 * (squares[:, None] + squares[None] - 2 * scaled @ scaled.T))
        factor = jnp.linalg.cholesky(kernel + jnp.exp(params["noise"]) * jnp.eye(count))
        white = lax.linalg.triangular_solve(factor, y[:, None], left_side=True, lower=True)
        return 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diagonal(factor)))

    return adam(loss, {"scales": of(features), "noise": of()}, of(count, features), of(count))


def narrow_optimizer() -> tuple[Any, Types]:
    """Return a step of Adam whose means and squares have eight bits, with a scale per block."""
    width, block = 2048, 256

    def loss(params: Tree, x: Any, y: Any) -> Any:
        for w in params:
            x = x + jnp.tanh(x @ w["up"]) @ w["down"]
        return jnp.mean((x - y) ** 2)

    def wide(numbers: Any, scales: Any) -> Any:
        return (numbers.astype(F32).reshape(-1, block) * scales[:, None] / 127).reshape(numbers.shape)

    def narrow(x: Any) -> tuple[Any, Any]:
        blocks = x.reshape(-1, block)
        scales = jnp.max(jnp.abs(blocks), 1)
        return jnp.round(127 * blocks / (scales[:, None] + 1e-12)).astype(I8).reshape(x.shape), scales

    def step(state: Tree, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state["params"], x, y)

        def update(p: Any, m: Any, s: Any, g: Any) -> Any:
            mean = 0.9 * wide(*m) + 0.1 * g
            square = 0.99 * wide(*s) + 0.01 * g**2
            return p - 1e-3 * mean / (jnp.sqrt(square) + 1e-8), narrow(mean), narrow(square)

        trees = zip(state["params"], state["means"], state["squares"], gradients, strict=True)
        layers = [{name: update(p[name], m[name], s[name], g[name]) for name in p} for p, m, s, g in trees]
        return {
            part: [{name: new[index] for name, new in layer.items()} for layer in layers]
            for index, part in enumerate(("params", "means", "squares"))
        }, value

    def small(*shape: int) -> Any:
        return of(*shape, dtype=I8), of(shape[0] * shape[1] // block)

    params = [{"up": of(width, 4 * width), "down": of(4 * width, width)}] * 2
    narrow_state = [{"up": small(width, 4 * width), "down": small(4 * width, width)}] * 2
    state = {"params": params, "means": narrow_state, "squares": narrow_state}
    return jax.jit(step, donate_argnums=0), (state, of(2048, width), of(2048, width))


def nearest_neighbours() -> tuple[Any, Types]:
    """Return the nearest entries of a large table, which is read in blocks, and a vote of their labels."""
    rows, width, queries, count, blocks = 262144, 128, 1024, 16, 16

    def search(table: Any, labels: Any, points: Any) -> Any:
        def block(best: Any, part: Any) -> Any:
            vectors, number = part
            distances = jnp.sum(vectors**2, 1) - 2 * points @ vectors.T
            indices = jnp.broadcast_to(jnp.arange(vectors.shape[0]) + number * vectors.shape[0], distances.shape)
            joined = jnp.concatenate([best[0], -distances], 1), jnp.concatenate([best[1], indices], 1)
            values, chosen = lax.top_k(joined[0], count)
            return (values, jnp.take_along_axis(joined[1], chosen, 1)), None

        best = jnp.full((queries, count), -jnp.inf), jnp.zeros((queries, count), I32)
        parts = table.reshape(blocks, -1, width), jnp.arange(blocks)
        (_, indices), _ = lax.scan(block, best, parts)
        votes = nn.one_hot(labels[indices], 1000).sum(1)
        return jnp.argmax(votes, -1)

    return jax.jit(search), (of(rows, width), of(rows, dtype=I32), of(queries, width))


def particles() -> tuple[Any, Types]:
    """Return the gradient of a simulation with respect to its start: particles are sorted by cell in each step."""
    count, cells = 65536, 4096

    def loss(start: Any, wanted: Any) -> Any:
        def advance(carry: Any, _: Any) -> Any:
            places, speeds = carry
            cell = jnp.clip((places[:, 0] * cells).astype(I32), 0, cells - 1)
            cell, order = lax.stop_gradient(lax.sort((cell, jnp.arange(count)), num_keys=1))
            places, speeds = places[order], speeds[order]
            mass = jax.ops.segment_sum(jnp.ones(count), cell, cells)
            means = jax.ops.segment_sum(places, cell, cells) / jnp.maximum(mass, 1)[:, None]
            forces = jnp.sin(means[cell] - places)
            speeds = 0.99 * speeds + 0.01 * forces
            return (places + 0.01 * speeds, speeds), None

        (places, _), _ = lax.scan(advance, start, None, length=20)
        return jnp.mean((places - wanted) ** 2)

    def step(start: Any, wanted: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(start, wanted)
        return jax.tree.map(lambda x, g: x - g, start, gradients), value

    return jax.jit(step, donate_argnums=0), ((of(count, 3), of(count, 3)), of(count, 3))


def meta_learning() -> tuple[Any, Types]:
    """Return gradients through inner steps of descent, for a batch of tasks."""
    width, tasks, shots = 256, 32, 64

    def forward(params: Tree, x: Any) -> Any:
        for w, b in params[:-1]:
            x = nn.relu(x @ w + b)
        return x @ params[-1][0] + params[-1][1]

    def inner(params: Tree, x: Any, y: Any) -> Any:
        return jnp.mean((forward(params, x) - y) ** 2)

    def loss(params: Tree, x: Any, y: Any, unseen: Any, truth: Any) -> Any:
        def task(x: Any, y: Any, unseen: Any, truth: Any) -> Any:
            def descend(params: Tree, _: Any) -> Any:
                return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(inner)(params, x, y)), None

            adapted, _ = lax.scan(descend, params, None, length=3)
            return inner(adapted, unseen, truth)

        return jnp.mean(jax.vmap(task)(x, y, unseen, truth))

    params = [(of(32, width), of(width)), (of(width, width), of(width)), (of(width, 8), of(8))]
    x, y = of(tasks, shots, 32), of(tasks, shots, 8)
    return adam(loss, params, x, y, x, y)


def video_net() -> tuple[Any, Types]:
    """Return a net of convolutions in three dims, with running statistics of its batch norms."""

    def conv3(x: Any, kernel: Any, stride: int) -> Any:
        return lax.conv_general_dilated(x, kernel, (stride,) * 3, "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))

    def loss(params: Tree, running: Any, videos: Any, labels: Any) -> Any:
        x, new = videos, []
        for number, (p, (mean, variance)) in enumerate(zip(params["layers"], running, strict=True)):
            x = conv3(x, p["kernel"], 2 if number % 2 else 1)
            m, v = x.mean((0, 1, 2, 3)), x.var((0, 1, 2, 3))
            x = nn.relu((x - m) * lax.rsqrt(v + 1e-5) * p["scale"] + p["shift"])
            new.append((0.9 * mean + 0.1 * m, 0.9 * variance + 0.1 * v))
        return cross_entropy(x.mean((1, 2, 3)) @ params["head"], labels), new

    def step(state: Tree, videos: Any, labels: Any) -> Any:
        params, means, running = state
        (value, running), gradients = jax.value_and_grad(loss, has_aux=True)(params, running, videos, labels)
        means = jax.tree.map(lambda m, g: 0.9 * m + g, means, gradients)
        return (jax.tree.map(lambda p, m: p - 0.01 * m, params, means), means, lax.stop_gradient(running)), value

    widths = (3, 32, 64, 64, 128)
    layers = [{"kernel": of(3, 3, 3, a, b), "scale": of(b), "shift": of(b)} for a, b in pairwise(widths)]
    params = {"layers": layers, "head": of(128, 400)}
    running = [(of(b), of(b)) for b in widths[1:]]
    return jax.jit(step, donate_argnums=0), ((params, params, running), of(8, 16, 64, 64, 3), of(8, dtype=I32))


def local_attention() -> tuple[Any, Types]:
    """Return attention to the same and the previous window of a long sequence."""
    width, heads, window = 512, 8, 256

    def layer(x: Any, w: Tree) -> Any:
        batch, length, _ = x.shape
        h = normalized(x)
        q, k, v = ((h @ w[name]).reshape(batch, -1, window, heads, width // heads) for name in "qkv")

        def with_previous(y: Any) -> Any:
            return jnp.concatenate([jnp.pad(y, ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))[:, :-1], y], 2)

        scores = jnp.einsum("bnqhd,bnkhd->bnhqk", q, with_previous(k)) * (width // heads) ** -0.5
        places = jnp.arange(2 * window)[None] - window - jnp.arange(window)[:, None]
        scores = jnp.where((places <= 0) & (places > -window), scores, -1e9)
        out = jnp.einsum("bnhqk,bnkhd->bnqhd", nn.softmax(scores), with_previous(v))
        x = x + out.reshape(batch, length, width) @ w["o"]
        return x + nn.relu(normalized(x) @ w["up"]) @ w["down"], None

    def loss(params: Tree, x: Any, labels: Any) -> Any:
        x, _ = lax.scan(jax.checkpoint(layer), x, params["layers"])
        return cross_entropy(x @ params["head"], labels)

    params = {"layers": transformer_weights(width, 4), "head": of(width, 256)}
    return adam(loss, params, of(2, 8192, width), of(2, 8192, dtype=I32))


def linear_attention() -> tuple[Any, Types]:
    """Return attention whose state is a matrix per head, which a scan over chunks carries."""
    width, heads, chunk, batch, length = 512, 8, 128, 8, 2048

    def mix(x: Any, w: Tree) -> Any:
        def chunks(y: Any) -> Any:
            return y.reshape(batch, length // chunk, chunk, heads, -1).transpose(1, 0, 3, 2, 4)

        q, k, v = chunks(nn.elu(x @ w["q"]) + 1), chunks(nn.elu(x @ w["k"]) + 1), chunks(x @ w["v"])
        mask = jnp.tril(jnp.ones((chunk, chunk)))

        def advance(state: Any, row: Any) -> Any:
            q, k, v = row
            inside = jnp.einsum("bhqd,bhkd->bhqk", q, k) * mask
            out = jnp.einsum("bhqk,bhkd->bhqd", inside, v) + jnp.einsum("bhqd,bhde->bhqe", q, state)
            return state + jnp.einsum("bhkd,bhke->bhde", k, v), out

        size = width // heads
        _, out = lax.scan(advance, jnp.zeros((batch, heads, size, size)), (q, k, v))
        return out.transpose(1, 0, 3, 2, 4).reshape(batch, length, width) @ w["o"]

    def loss(params: Tree, x: Any, y: Any) -> Any:
        for w in params:
            x = x + mix(normalized(x), w)
            x = x + nn.gelu(normalized(x) @ w["up"]) @ w["down"]
        return jnp.mean((x - y) ** 2)

    x = of(batch, length, width)
    return momentum(loss, [transformer_weights(width)] * 3, x, x)


def preferences() -> tuple[Any, Types]:
    """Return a step that compares the likelihoods of two answers with those of a reference model."""
    width = 512

    def likelihood(params: Tree, tokens: Any) -> Any:
        x = params["words"][tokens[:, :-1]]
        x, _ = lax.scan(lambda x, w: (transformer_layer(8, True, x, w), None), x, params["layers"])
        scores = nn.log_softmax((x @ params["words"].T).astype(F32))
        return jnp.sum(jnp.take_along_axis(scores, tokens[:, 1:, None], -1), (1, 2))

    def loss(params: Tree, reference: Tree, good: Any, bad: Any) -> Any:
        better = likelihood(params, good) - likelihood(reference, good)
        worse = likelihood(params, bad) - likelihood(reference, bad)
        return -jnp.mean(nn.log_sigmoid(0.1 * (better - worse)))

    def step(state: Tree, reference: Tree, good: Any, bad: Any) -> Any:
        params, wide, means = state
        value, gradients = jax.value_and_grad(loss)(params, reference, good, bad)
        means = jax.tree.map(lambda m, g: 0.9 * m + g.astype(F32), means, gradients)
        wide = jax.tree.map(lambda p, m: p - 1e-4 * m, wide, means)
        return (jax.tree.map(lambda p: p.astype(BF16), wide), wide, means), value

    def weights(dtype: Any) -> Tree:
        return {"words": of(16000, width, dtype=dtype), "layers": transformer_weights(width, 6, dtype)}

    state, answers = (weights(BF16), weights(F32), weights(F32)), of(8, 257, dtype=I32)
    return jax.jit(step, donate_argnums=0), (state, weights(BF16), answers, answers)


def private_gradients() -> tuple[Any, Types]:
    """Return a step whose gradients are clipped per example, in groups of examples, with noise."""
    width, group = 512, 32

    def loss(params: Tree, x: Any, label: Any) -> Any:
        for w in params[:-1]:
            x = jnp.tanh(x @ w)
        return cross_entropy(x @ params[-1], label)

    def step(params: Tree, xs: Any, labels: Any, seed: Any) -> Any:
        def add(total: Tree, batch: Any) -> Any:
            gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, *batch)
            squares = sum(jnp.sum(g**2, (1, 2)) for g in jax.tree.leaves(gradients))
            scale = jnp.minimum(1.0, lax.rsqrt(squares))
            return jax.tree.map(lambda t, g: t + jnp.einsum("b,bij->ij", scale, g), total, gradients), None

        total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, params), (xs, labels))
        keys = random.split(random.key(seed), len(params))
        return [p - 0.1 * (g + random.normal(key, p.shape)) for p, g, key in zip(params, total, keys, strict=True)]

    params = [of(784, width), of(width, width), of(width, 10)]
    batch = (of(16, group, 784), of(16, group, dtype=I32), of(dtype=jnp.uint32))
    return jax.jit(step, donate_argnums=0), (params, *batch)


def random_field() -> tuple[Any, Types]:
    """Return a tagger whose loss sums over all paths, in log space, over recurrent features in two directions."""
    width, tags, length, batch = 256, 64, 128, 64

    def loss(params: Tree, tokens: Any, labels: Any) -> Any:
        x = jnp.swapaxes(params["words"][tokens], 0, 1)

        def read(p: Tree, reverse: bool) -> Any:
            def cell(h: Any, x: Any) -> Any:
                h = jnp.tanh(x @ p["x"] + h @ p["h"])
                return h, h

            return lax.scan(cell, jnp.zeros((batch, width)), x, reverse=reverse)[1]

        both = jnp.concatenate([read(params["left"], False), read(params["right"], True)], -1)
        scores = both @ params["tags"]

        def forward(total: Any, row: Any) -> Any:
            return nn.logsumexp(total[:, :, None] + params["moves"], 1) + row, None

        total, _ = lax.scan(forward, scores[0], scores[1:])
        labels = labels.T
        path = jnp.take_along_axis(scores, labels[..., None], -1).sum((0, 2))
        path = path + params["moves"][labels[:-1], labels[1:]].sum(0)
        return jnp.mean(nn.logsumexp(total, -1) - path)

    direction = {"x": of(width, width), "h": of(width, width)}
    params = {"words": of(30000, width), "left": direction, "right": direction}
    params |= {"tags": of(2 * width, tags), "moves": of(tags, tags)}
    return adam(loss, params, of(batch, length, dtype=I32), of(batch, length, dtype=I32))


def sharded(mesh: Mesh, tree: Tree, *axes: Any) -> Tree:
    """Return types with a spec, as far as they have that many dims."""
    return jax.tree.map(
        lambda leaf: leaf.update(sharding=jax.NamedSharding(mesh, jax.P(*axes[: len(leaf.shape)]))), tree
    )


def fully_sharded(mesh: Mesh) -> tuple[Any, Types]:
    """Return a decoder with sharded weights and optimizer states, microbatches and recomputed layers."""
    sizes = Decoder(8, 1024, 16, 4, 64, 2816, 32000)
    step = jax.jit(train_step(sizes, 2, jax.checkpoint), donate_argnums=0)
    state = jax.tree.map(
        lambda leaf: sharded(mesh, leaf, *[None] * (len(leaf.shape) - 2), ("data", "model")), train_state(sizes)
    )
    return step, (state, sharded(mesh, of(2, 16, 1025, dtype=I32), None, ("data", "model")))


def tensor_parallel(mesh: Mesh) -> tuple[Any, Types]:
    """Return a decoder whose heads, hidden units and vocabulary are sharded."""
    width = 1024

    def loss(params: Tree, tokens: Any) -> Any:
        x = params["words"].astype(BF16)[tokens[:, :-1]]
        for w in params["layers"]:
            x = transformer_layer(16, True, x, w)
        return cross_entropy(x @ params["words"].astype(BF16).T, tokens[:, 1:])

    layer = {name: sharded(mesh, of(width, width), None, "model") for name in "qkv"}
    layer |= {"o": sharded(mesh, of(width, width), "model"), "up": sharded(mesh, of(width, 4 * width), None, "model")}
    layer["down"] = sharded(mesh, of(4 * width, width), "model")
    params = {"words": sharded(mesh, of(32000, width), "model"), "layers": [layer] * 4}
    return adam(loss, params, sharded(mesh, of(16, 513, dtype=I32), "data"))


def expert_parallel(mesh: Mesh) -> tuple[Any, Types]:
    """Return experts that are sharded, with slots for the tokens of each sequence."""
    width, hidden, experts, capacity = 512, 2048, 8, 160

    def loss(params: Tree, x: Any, y: Any) -> Any:
        for p in params:
            gates = nn.softmax(x @ p["router"])
            chosen = nn.one_hot(jnp.argmax(gates, -1), experts)
            places = jnp.cumsum(chosen, 1) * chosen - 1
            dispatch = nn.one_hot(places.astype(I32), capacity) * chosen[..., None]
            inputs = jnp.einsum("btec,btd->ebcd", dispatch, x)
            inner = nn.gelu(jnp.einsum("ebcd,edf->ebcf", inputs, p["up"]))
            outputs = jnp.einsum("ebcf,efd->ebcd", inner, p["down"])
            combine = dispatch * jnp.sum(gates * chosen, -1)[..., None, None]
            x = x + jnp.einsum("btec,ebcd->btd", combine, outputs)
        return jnp.mean((x - y) ** 2)

    layer = {"router": sharded(mesh, of(width, experts))}
    layer |= {"up": sharded(mesh, of(experts, width, hidden), "data", None, "model")}
    layer["down"] = sharded(mesh, of(experts, hidden, width), "data", "model")
    x = sharded(mesh, of(16, 1024, width), "data")
    return momentum(loss, [layer] * 2, x, x)


def data_parallel(mesh: Mesh) -> tuple[Any, Types]:
    """Return a net of convolutions with statistics of the whole batch, on a sharded batch."""

    def loss(params: Tree, images: Any, labels: Any) -> Any:
        x = images
        for number, p in enumerate(params["layers"]):
            h = conv(x, p["kernel"], 2 if number % 2 else 1)
            h = (h - h.mean((0, 1, 2))) * lax.rsqrt(h.var((0, 1, 2)) + 1e-5) * p["scale"]
            x = nn.silu(h)
        return cross_entropy(x.mean((1, 2)) @ params["head"], labels)

    widths = (3, 64, 64, 128, 128, 256)
    layers = [{"kernel": of(3, 3, a, b), "scale": of(b)} for a, b in pairwise(widths)]
    params = sharded(mesh, {"layers": layers, "head": of(256, 1000)})
    rows = ("data", "model")
    images, labels = sharded(mesh, of(256, 64, 64, 3), rows), sharded(mesh, of(256, dtype=I32), rows)
    return momentum(loss, params, images, labels)


def sharded_states(mesh: Mesh) -> tuple[Any, Types]:
    """Return a step of Adam whose states are sharded, and whose weights are replicated."""
    width, layers = 1024, 6

    def loss(params: Tree, x: Any, y: Any) -> Any:
        for w in params:
            x = x + nn.gelu(x @ w["up"].astype(BF16)) @ w["down"].astype(BF16)
        return jnp.mean((x.astype(F32) - y) ** 2)

    def step(state: Tree, x: Any, y: Any) -> Any:
        params, means, squares = state
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        rows, full = jax.NamedSharding(mesh, jax.P(("data", "model"))), jax.NamedSharding(mesh, jax.P())
        gradients = lax.with_sharding_constraint(gradients, rows)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
        squares = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, squares, gradients)
        updates = jax.tree.map(lambda m, s: 1e-3 * m / (jnp.sqrt(s) + 1e-8), means, squares)
        params = jax.tree.map(lambda p, u: p - u, params, lax.with_sharding_constraint(updates, full))
        return (params, means, squares), value

    weights = [{"up": of(width, 4 * width), "down": of(4 * width, width)}] * layers
    states, rows = sharded(mesh, weights, ("data", "model")), ("data", "model")
    batch = sharded(mesh, of(8192, width, dtype=BF16), rows), sharded(mesh, of(8192, width), rows)
    return jax.jit(step, donate_argnums=0), ((sharded(mesh, weights), states, states), *batch)


def sharded_decoding(mesh: Mesh) -> tuple[Any, Types]:
    """Return one token for each sequence, from caches whose sequences and heads are sharded."""
    layers, width, heads, length, batch = 6, 1024, 16, 2048, 32

    def step(cache: Tree, weights: Tree, tokens: Any, places: Any) -> Any:
        x = weights["words"][tokens]

        def layer(x: Any, both: Any) -> Any:
            w, keys, values = both
            h = normalized(x)
            q, k, v = (jnp.einsum("bd,dhe->bhe", h, w[name]) for name in "qkv")
            rows = jnp.arange(batch)
            keys, values = keys.at[rows, places].set(k), values.at[rows, places].set(v)
            scores = jnp.einsum("bhe,bthe->bht", q, keys).astype(F32) / 8
            scores = jnp.where(jnp.arange(length) <= places[:, None, None], scores, -1e9)
            out = jnp.einsum("bht,bthe->bhe", nn.softmax(scores).astype(BF16), values)
            x = x + jnp.einsum("bhe,hed->bd", out, w["o"])
            return x + nn.silu(normalized(x) @ w["up"]) @ w["down"], (keys, values)

        x, cache = lax.scan(layer, x, (weights["layers"], *cache))
        logits, indices = lax.top_k((x @ weights["words"].T).astype(F32), 50)
        return cache, indices, nn.softmax(logits)

    def weight(axes: tuple[Any, ...], *shape: int) -> Any:
        return sharded(mesh, of(layers, *shape, dtype=BF16), None, *axes)

    stack = {name: weight((None, "model"), width, heads, 64) for name in "qkv"}
    stack |= {"o": weight(("model",), heads, 64, width), "up": weight((None, "model"), width, 4 * width)}
    stack["down"] = weight(("model",), 4 * width, width)
    weights = {"words": sharded(mesh, of(32000, width, dtype=BF16), "model"), "layers": stack}
    kept = weight(("data", None, "model"), batch, length, heads, 64)
    tokens = sharded(mesh, of(batch, dtype=I32), "data")
    return jax.jit(step, donate_argnums=0), ((kept, kept), weights, tokens, tokens)


STEPS = by_name(
    chunked_vocabulary,
    accumulated_gradients,
    saved_products,
    saved_names,
    generation,
    beam_search,
    sorted_experts,
    long_convolution,
    sparse_updates,
    scaled_loss,
    integer_inference,
    chosen_branches,
    reversible_layers,
    vector_quantization,
    orthogonalized_updates,
    narrow_optimizer,
    nearest_neighbours,
    particles,
    video_net,
    local_attention,
    linear_attention,
    preferences,
    private_gradients,
    random_field,
) | {"Fourier operator": fourier_operator, "Gaussian process": gaussian_process, "meta-learning": meta_learning}

SHARDED = by_name(
    fully_sharded,
    tensor_parallel,
    expert_parallel,
    data_parallel,
    sharded_states,
    sharded_decoding,
)
