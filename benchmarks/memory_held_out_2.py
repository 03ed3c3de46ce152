"""A second set of held-out steps for `benchmarks/memory_predictions.py`, written before its last rules.

They differ from the steps of `memory_models.py` and `memory_held_out.py` in structure: Jacobians, decompositions of
optimizer statistics, solvers that iterate until they converge, networks that train against each other, windows, pages
and interpolation by indices, and gradients of gradients. `STEPS` has the steps on one device by name, `SHARDED` those
on a mesh.
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
from shardwise.scipy.ndimage import map_coordinates

I8 = jnp.int8


def damped_least_squares() -> tuple[Any, Types]:
    """Return steps of Levenberg and Marquardt for a batch of small problems, with Jacobians in forward mode."""
    batch, unknowns, residuals = 256, 64, 128

    def residual(x: Any, a: Any, b: Any) -> Any:
        return jnp.tanh(a @ jnp.sin(x)) + 0.1 * (a @ x) ** 2 - b

    def solve(x: Any, a: Any, b: Any) -> Any:
        def advance(carry: Any, _: Any) -> Any:
            x, damping = carry
            jacobian, r = jax.jacfwd(residual)(x, a, b), residual(x, a, b)
            normal = jacobian.T @ jacobian
            moved = x - jnp.linalg.solve(normal + damping * jnp.eye(unknowns), jacobian.T @ r)
            better = jnp.sum(residual(moved, a, b) ** 2) < jnp.sum(r**2)
            return (jnp.where(better, moved, x), jnp.where(better, damping / 3, damping * 2)), None

        return lax.scan(advance, (x, jnp.ones(())), None, length=8)[0][0]

    types = (of(batch, unknowns), of(batch, residuals, unknowns), of(batch, residuals))
    return jax.jit(jax.vmap(solve), donate_argnums=0), types


def preconditioned_optimizer() -> tuple[Any, Types]:
    """Return a step of Shampoo, whose preconditioners are roots by eigenvalues, for two classes of matrices."""
    width, hidden = 512, 1024

    def loss(params: Tree, x: Any, y: Any) -> Any:
        for w in params:
            x = x + nn.relu(x @ w["up"]) @ w["down"]
        return jnp.mean((x - y) ** 2)

    def root(statistic: Any) -> Any:
        values, vectors = jnp.linalg.eigh(statistic)
        return (vectors * (jnp.maximum(values, 0) + 1e-6) ** -0.25) @ vectors.T

    def step(state: Tree, x: Any, y: Any) -> Any:
        params, statistics = state
        value, gradients = jax.value_and_grad(loss)(params, x, y)

        def update(p: Any, both: Any, g: Any) -> Any:
            left, right = 0.95 * both[0] + g @ g.T, 0.95 * both[1] + g.T @ g
            return p - 0.1 * root(left) @ g @ root(right), (left, right)

        new = [
            {name: update(p[name], both[name], g[name]) for name in p}
            for p, both, g in zip(params, statistics, gradients, strict=True)
        ]
        parts = [[{name: layer[name][part] for name in layer} for layer in new] for part in range(2)]
        return tuple(parts), value

    params = [{"up": of(width, hidden), "down": of(hidden, width)}] * 4
    sizes = {"up": (of(width, width), of(hidden, hidden)), "down": (of(hidden, hidden), of(width, width))}
    rows = of(4096, width)
    return jax.jit(step, donate_argnums=0), ((params, [sizes] * 4), rows, rows)


def continuous_flow() -> tuple[Any, Types]:
    """Return a neural ODE whose derivative solves the adjoint equation backward, without saved states."""
    width, steps = 512, 16

    def field(params: Tree, time: Any, x: Any) -> Any:
        for w, b in params[:-1]:
            x = jnp.tanh(x @ w + b + time)
        return x @ params[-1][0]

    def advance(f: Any, time: Any, x: Any, h: float) -> Any:
        def move(x: Any, k: Any, size: float) -> Any:
            return jax.tree.map(lambda a, b: a + size * b, x, k)

        one = f(time, x)
        two = f(time + h / 2, move(x, one, h / 2))
        three = f(time + h / 2, move(x, two, h / 2))
        four = f(time + h, move(x, three, h))
        return jax.tree.map(lambda x, a, b, c, d: x + h / 6 * (a + 2 * b + 2 * c + d), x, one, two, three, four)

    @jax.custom_vjp
    def flow(params: Tree, x: Any) -> Any:
        def body(number: Any, x: Any) -> Any:
            return advance(lambda time, x: field(params, time, x), number / steps, x, 1 / steps)

        return lax.fori_loop(0, steps, body, x)

    def forward(params: Tree, x: Any) -> Any:
        end = flow(params, x)
        return end, (params, end)

    def backward(saved: Any, cotangent: Any) -> Any:
        params, end = saved

        def augmented(time: Any, state: Any) -> Any:
            x, adjoint, _ = state
            value, pull = jax.vjp(lambda p, x: field(p, time, x), params, x)
            gradients, moved = pull(adjoint)
            return value, jax.tree.map(jnp.negative, moved), jax.tree.map(jnp.negative, gradients)

        def body(number: Any, state: Any) -> Any:
            return advance(augmented, 1 - number / steps, state, -1 / steps)

        state = (end, cotangent, jax.tree.map(jnp.zeros_like, params))
        _, adjoint, gradients = lax.fori_loop(0, steps, body, state)
        return gradients, adjoint

    flow.defvjp(forward, backward)

    def loss(params: Tree, x: Any, y: Any) -> Any:
        return jnp.mean((flow(params, x) - y) ** 2)

    params = [(of(64, width), of(width)), (of(width, width), of(width)), (of(width, 64),)]
    return adam(loss, params, of(16384, 64), of(16384, 64))


def adversarial_nets() -> tuple[Any, Types]:
    """Return a step of a critic with a penalty on its gradient, and of a generator."""

    def up(x: Any, kernel: Any) -> Any:
        return lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def generate(params: Tree, z: Any) -> Any:
        x = nn.relu(z @ params["in"]).reshape(-1, 4, 4, 256)
        for kernel in params["up"][:-1]:
            x = nn.relu(up(x, kernel))
        return jnp.tanh(up(x, params["up"][-1]))

    def criticize(params: Tree, x: Any) -> Any:
        for kernel in params["down"]:
            x = nn.leaky_relu(conv(x, kernel, 2), 0.2)
        return (x.reshape(x.shape[0], -1) @ params["out"])[:, 0]

    def critic_loss(critic: Tree, generator: Tree, images: Any, z: Any, mix: Any) -> Any:
        fakes = generate(generator, z)
        between = mix[:, None, None, None] * images + (1 - mix[:, None, None, None]) * fakes
        slopes = jax.grad(lambda x: jnp.sum(criticize(critic, x)))(between)
        norms = jnp.sqrt(jnp.sum(slopes**2, (1, 2, 3)) + 1e-12)
        difference = jnp.mean(criticize(critic, fakes)) - jnp.mean(criticize(critic, images))
        return difference + 10 * jnp.mean((norms - 1) ** 2)

    def generator_loss(generator: Tree, critic: Tree, z: Any) -> Any:
        return -jnp.mean(criticize(critic, generate(generator, z)))

    def step(state: Tree, images: Any, z: Any, mix: Any) -> Any:
        generator, critic, squares = state
        value, slopes = jax.value_and_grad(critic_loss)(critic, generator, images, z, mix)
        critic = jax.tree.map(lambda p, g: p - 1e-4 * g, critic, slopes)
        other, slopes = jax.value_and_grad(generator_loss)(generator, critic, z)
        squares = jax.tree.map(lambda s, g: 0.9 * s + 0.1 * g**2, squares, slopes)
        generator = jax.tree.map(lambda p, g, s: p - 1e-4 * g * lax.rsqrt(s + 1e-8), generator, slopes, squares)
        return (generator, critic, squares), (value, other)

    generator = {"in": of(128, 4 * 4 * 256), "up": [of(4, 4, a, b) for a, b in pairwise((256, 128, 64, 3))]}
    critic = {"down": [of(4, 4, a, b) for a, b in pairwise((3, 64, 128, 256))], "out": of(4 * 4 * 256, 1)}
    types = ((generator, critic, generator), of(256, 32, 32, 3), of(256, 128), of(256))
    return jax.jit(step, donate_argnums=0), types


def self_distillation() -> tuple[Any, Types]:
    """Return a student that learns from a moving average of itself, over views of several sizes."""
    width, heads, outputs = 384, 6, 8192

    def encode(params: Tree, x: Any) -> Any:
        x = x.astype(BF16) @ params["in"].astype(BF16)
        for w in params["layers"]:
            x = transformer_layer(heads, False, x, w)
        h = nn.gelu(x.mean(1).astype(F32) @ params["hidden"])
        h = h / jnp.linalg.norm(h, axis=-1, keepdims=True)
        return h @ params["out"]

    def loss(student: Tree, teacher: Tree, center: Any, large: Any, small: Any) -> Any:
        targets = encode(teacher, large.reshape(-1, *large.shape[2:])).reshape(2, -1, outputs)
        targets = lax.stop_gradient(nn.softmax((targets - center) / 0.04))
        views = encode(student, large.reshape(-1, *large.shape[2:])).reshape(2, -1, outputs)
        crops = encode(student, small.reshape(-1, *small.shape[2:])).reshape(small.shape[0], -1, outputs)
        total, count = jnp.zeros(()), 0
        for number in range(2):
            for other in [views[1 - number], *crops]:
                total -= jnp.mean(jnp.sum(targets[number] * nn.log_softmax(other / 0.1), -1))
                count += 1
        return total / count, targets.mean((0, 1))

    def step(state: Tree, large: Any, small: Any) -> Any:
        student, teacher, means, center = state
        (value, mean), slopes = jax.value_and_grad(loss, has_aux=True)(student, teacher, center, large, small)
        means = jax.tree.map(lambda m, g: 0.9 * m + g, means, slopes)
        student = jax.tree.map(lambda p, m: p - 1e-3 * m, student, means)
        teacher = jax.tree.map(lambda t, p: 0.996 * t + 0.004 * p, teacher, student)
        return (student, teacher, means, 0.9 * center + 0.1 * mean), value

    params = {"in": of(768, width), "layers": [transformer_weights(width)] * 6}
    params |= {"hidden": of(width, 256), "out": of(256, outputs)}
    state = (params, params, params, of(outputs))
    return jax.jit(step, donate_argnums=0), (state, of(2, 32, 196, 768), of(4, 32, 36, 768))


def speculative_decoding() -> tuple[Any, Types]:
    """Return a loop in which a small model proposes tokens, and a large model accepts a prefix of them."""
    batch, length, proposals, words, head = 8, 512, 4, 32000, 64

    def sizes(width: int, layers: int) -> Tree:
        weights = transformer_weights(width, layers, BF16)
        return {"words": of(words, width, dtype=BF16), "layers": weights}

    def cached(width: int, layers: int) -> Any:
        return (of(layers, batch, length, width // head, head, dtype=BF16),) * 2

    def forward(params: Tree, cache: Any, tokens: Any, place: Any) -> Any:
        """Return the logits of the tokens that start at a place, and the cache with their keys and values."""
        x, count = params["words"][tokens], tokens.shape[1]
        mask = jnp.arange(length)[None] <= place + jnp.arange(count)[:, None]

        def layer(x: Any, row: Any) -> Any:
            w, keys, values = row
            h = normalized(x)
            q, k, v = ((h @ w[name]).reshape(batch, count, -1, head) for name in "qkv")
            keys = lax.dynamic_update_slice_in_dim(keys, k, place, 1)
            values = lax.dynamic_update_slice_in_dim(values, v, place, 1)
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, keys).astype(F32) / 8
            weights = nn.softmax(jnp.where(mask, scores, -1e9)).astype(BF16)
            x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, values).reshape(x.shape) @ w["o"]
            return x + nn.gelu(normalized(x) @ w["up"]) @ w["down"], (keys, values)

        x, cache = lax.scan(layer, x, (params["layers"], *cache))
        return (x @ params["words"].T).astype(F32), cache

    def generate(state: Any, small: Tree, large: Tree, seed: Any) -> Any:
        def unfinished(carry: Any) -> Any:
            return carry[2] < length - proposals - 1

        def advance(carry: Any) -> Any:
            drafts, caches, place, tokens = carry

            def propose(number: Any, carry: Any) -> Any:
                drafts, tokens = carry
                last = lax.dynamic_slice_in_dim(tokens, place + number, 1, 1)
                logits, drafts = forward(small, drafts, last, place + number)
                key = random.fold_in(random.key(seed), place + number)
                token = random.categorical(key, logits[:, 0]).astype(I32)
                return drafts, lax.dynamic_update_slice_in_dim(tokens, token[:, None], place + number + 1, 1)

            drafts, tokens = lax.fori_loop(0, proposals, propose, (drafts, tokens))
            window = lax.dynamic_slice_in_dim(tokens, place, proposals + 1, 1)
            logits, caches = forward(large, caches, window, place)
            chosen = jnp.argmax(logits, -1).astype(I32)
            agree = jnp.cumprod(chosen[:, :-1] == window[:, 1:], 1).sum(1).min()
            tokens = lax.dynamic_update_slice_in_dim(tokens, chosen[:, agree][:, None], place + agree + 1, 1)
            return drafts, caches, place + agree + 1, tokens

        return lax.while_loop(unfinished, advance, state)

    state = (cached(256, 2), cached(1024, 8), of(dtype=I32), of(batch, length, dtype=I32))
    return jax.jit(generate, donate_argnums=0), (state, sizes(256, 2), sizes(1024, 8), of(dtype=jnp.uint32))


def guided_sampling() -> tuple[Any, Types]:
    """Return a sampler of a diffusion model with skips, which evaluates it with and without a condition."""
    widths = (64, 128, 256)

    def denoise(params: Tree, x: Any, time: Any, condition: Any) -> Any:
        phases = time * 1000.0 ** -jnp.linspace(0, 1, 64)
        signal = jnp.concatenate([jnp.sin(phases), jnp.cos(phases)]) @ params["time"] + condition @ params["condition"]
        x, skips = conv(x, params["in"]), []

        def block(x: Any, p: Tree) -> Any:
            h = nn.silu(layer_norm(x, p["norm"]))
            h = conv(h, p["first"]) + (signal @ p["signal"])[:, None, None]
            return conv(x, p["skip"]) + conv(nn.silu(h), p["second"])

        for p in params["down"]:
            x = block(x, p)
            skips.append(x)
            x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        flat = x.reshape(x.shape[0], -1, x.shape[-1])
        x = (flat + attend(4, *jnp.split(flat @ params["qkv"], 3, -1)) @ params["o"]).reshape(x.shape)
        for p, skip in zip(params["up"], reversed(skips), strict=True):
            x = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
            x = block(jnp.concatenate([x, skip], -1), p)
        return conv(nn.silu(x), params["out"])

    def sample(noise: Any, params: Tree, condition: Any) -> Any:
        both = jnp.concatenate([condition, jnp.zeros_like(condition)])

        def advance(x: Any, times: Any) -> Any:
            now, following = times
            with_condition, without = jnp.split(denoise(params, jnp.concatenate([x, x]), now, both), 2)
            direction = without + 4.0 * (with_condition - without)
            clean = jnp.clip((x - jnp.sqrt(1 - now) * direction) / jnp.sqrt(now), -1, 1)
            return jnp.sqrt(following) * clean + jnp.sqrt(1 - following) * direction, None

        schedule = jnp.linspace(0.01, 0.99, 21)
        return lax.scan(advance, noise, (schedule[:-1], schedule[1:]))[0]

    def block(inner: int, width: int) -> Tree:
        kernels = {"first": of(3, 3, inner, width), "second": of(3, 3, width, width), "skip": of(1, 1, inner, width)}
        return {**kernels, "norm": of(inner), "signal": of(256, width)}

    params: Tree = {"in": of(3, 3, 3, 64), "out": of(3, 3, 64, 3), "time": of(128, 256), "condition": of(128, 256)}
    params |= {"down": [block(a, b) for a, b in pairwise((64, *widths))], "qkv": of(256, 768), "o": of(256, 256)}
    params["up"] = [block(512, 128), block(256, 64), block(128, 64)]
    return jax.jit(sample, donate_argnums=0), (of(16, 64, 64, 3), params, of(16, 128))


def tensor_network() -> tuple[Any, Types]:
    """Return gradients of a classifier that contracts a chain of tensors with the pixels of an image."""
    sites, bond, batch, classes = 64, 32, 512, 10

    def loss(params: Tree, pixels: Any, labels: Any) -> Any:
        features = jnp.stack([jnp.cos(jnp.pi / 2 * pixels), jnp.sin(jnp.pi / 2 * pixels)], -1)
        matrices = jnp.einsum("bsf,sfij->bsij", features, params["chain"])
        while matrices.shape[1] > 1:  # neighbours are multiplied in pairs
            matrices = jnp.einsum("bsij,bsjk->bsik", matrices[:, ::2], matrices[:, 1::2])
            matrices = matrices / (jnp.linalg.norm(matrices, axis=(2, 3), keepdims=True) + 1e-6)
        return cross_entropy(jnp.einsum("bij,cij->bc", matrices[:, 0], params["classes"]), labels)

    params = {"chain": of(sites, 2, bond, bond), "classes": of(classes, bond, bond)}
    return adam(loss, params, of(batch, sites), of(batch, dtype=I32))


def rollout() -> tuple[Any, Types]:
    """Return policy gradients of a recurrent policy through episodes of many environments at once."""
    games, steps, width, actions = 1024, 64, 128, 8

    def act(params: Tree, hidden: Any, seen: Any) -> Any:
        x = nn.relu(seen @ params["in"])
        update, candidate = jnp.split(jnp.concatenate([x, hidden], -1) @ params["cell"], 2, -1)
        gate = nn.sigmoid(update)
        hidden = gate * hidden + (1 - gate) * jnp.tanh(candidate)
        return hidden, hidden @ params["policy"], (hidden @ params["value"])[:, 0]

    def loss(params: Tree, start: Any, seed: Any) -> Any:
        def advance(carry: Any, key: Any) -> Any:
            places, speeds, hidden = carry
            seen = jnp.concatenate([jnp.sin(places), jnp.cos(places), speeds], -1)
            hidden, logits, value = act(params, hidden, seen)
            action = lax.stop_gradient(random.categorical(key, logits))
            push = (action[:, None] - actions / 2) * params["push"]
            speeds = 0.99 * speeds + 0.05 * lax.stop_gradient(jnp.sin(places) + push)
            places = places + 0.05 * speeds
            reward = jnp.cos(places).sum(-1) - 0.01 * (speeds**2).sum(-1)
            chosen = jnp.take_along_axis(nn.log_softmax(logits), action[:, None], 1)[:, 0]
            return (places, speeds, hidden), (reward, value, chosen)

        keys = random.split(random.key(seed), steps)
        carry = (*start, jnp.zeros((games, width)))
        _, (rewards, values, chosen) = lax.scan(advance, carry, keys)
        returns = lax.associative_scan(lambda a, b: b + 0.99 * a, lax.stop_gradient(rewards), reverse=True)
        advantages = lax.stop_gradient(returns - values)
        return jnp.mean((returns - values) ** 2) - jnp.mean(chosen * advantages)

    params = {"in": of(48, width), "cell": of(2 * width, 2 * width), "policy": of(width, actions)}
    params |= {"value": of(width, 1), "push": of(16)}
    return adam(loss, params, (of(games, 16), of(games, 16)), of(dtype=jnp.uint32))


def paged_attention() -> tuple[Any, Types]:
    """Return one token for each sequence, from keys and values in pages, which a table assigns to sequences."""
    batch, pages, page, heads, groups, head, layers, width = 64, 2048, 16, 16, 4, 64, 4, 1024
    table = 32

    def step(cache: Any, weights: Tree, tokens: Any, tables: Any, lengths: Any) -> Any:
        x, cache = weights["words"][tokens], list(cache)
        homes = jnp.take_along_axis(tables, (lengths // page)[:, None], 1)[:, 0]
        for number, w in enumerate(weights["layers"]):
            keys, values = cache[number]
            h = normalized(x)
            q = (h @ w["q"]).reshape(batch, groups, heads // groups, head)
            keys = keys.at[homes, lengths % page].set((h @ w["k"]).reshape(batch, groups, head))
            values = values.at[homes, lengths % page].set((h @ w["v"]).reshape(batch, groups, head))
            own_keys = keys[tables].reshape(batch, table * page, groups, head)
            own_values = values[tables].reshape(batch, table * page, groups, head)
            scores = jnp.einsum("bgrd,btgd->bgrt", q, own_keys).astype(F32) / 8
            mask = jnp.arange(table * page) <= lengths[:, None]
            shares = nn.softmax(jnp.where(mask[:, None, None], scores, -1e9)).astype(BF16)
            x = x + jnp.einsum("bgrt,btgd->bgrd", shares, own_values).reshape(batch, width) @ w["o"]
            x = x + nn.silu(normalized(x) @ w["up"]) @ w["down"]
            cache[number] = keys, values
        logits = (x @ weights["words"].T).astype(F32)
        ordered = -jnp.sort(-logits, -1)  # nucleus sampling
        shares = jnp.cumsum(nn.softmax(ordered), -1)
        least = jnp.take_along_axis(ordered, jnp.sum(shares < 0.9, -1, keepdims=True), -1)
        return tuple(cache), jnp.argmax(jnp.where(logits >= least, logits, -jnp.inf), -1)

    layer = transformer_weights(width, dtype=BF16)
    layer |= dict.fromkeys("kv", of(width, groups * head, dtype=BF16))
    weights = {"words": of(32000, width, dtype=BF16), "layers": [layer] * layers}
    kept = of(pages, page, groups, head, dtype=BF16)
    numbers = of(batch, dtype=I32)
    types = (((kept, kept),) * layers, weights, numbers, of(batch, table, dtype=I32), numbers)
    return jax.jit(step, donate_argnums=0), types


def wave_inversion() -> tuple[Any, Types]:
    """Return the gradient of recorded waves with respect to the medium, with states saved at intervals only."""
    size, shots, outer, inner = 192, 8, 8, 32

    def loss(medium: Any, sources: Any, records: Any) -> Any:
        def laplacian(u: Any) -> Any:
            rows = jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1)
            padded = jnp.pad(u, ((0, 0), (0, 0), (1, 1)))
            return rows + padded[:, :, 2:] + padded[:, :, :-2] - 4 * u

        def advance(carry: Any, row: Any) -> Any:
            now, before = carry
            source, record = row
            following = 2 * now - before + nn.softplus(medium) * laplacian(now)
            following = following.at[:, size // 2, 4].add(source)
            return (following, now), jnp.sum((following[:, 4] - record) ** 2)

        @jax.checkpoint
        def interval(carry: Any, rows: Any) -> Any:
            return lax.scan(advance, carry, rows)

        zero = jnp.zeros((shots, size, size))
        return jnp.mean(lax.scan(interval, (zero, zero), (sources, records))[1])

    def step(medium: Any, sources: Any, records: Any) -> Any:
        value, slope = jax.value_and_grad(loss)(medium, sources, records)
        return medium - 0.1 * slope, value

    return jax.jit(step, donate_argnums=0), (of(size, size), of(outer, inner, shots), of(outer, inner, shots, size))


def optimal_transport() -> tuple[Any, Types]:
    """Return a step of encoders whose loss is the cost of transport between their clouds, by Sinkhorn's iterations."""
    count, width = 2048, 128

    def encode(params: Tree, x: Any) -> Any:
        for w in params[:-1]:
            x = nn.silu(x @ w)
        return x @ params[-1]

    def loss(params: Tree, xs: Any, ys: Any) -> Any:
        a, b = encode(params["x"], xs), encode(params["y"], ys)
        cost = jnp.sum((a[:, None] - b[None]) ** 2, -1) / width
        scores = -cost / 0.05

        def iterate(duals: Any, _: Any) -> Any:
            f, g = duals
            f = -nn.logsumexp(scores + g[None], 1)
            g = -nn.logsumexp(scores + f[:, None], 0)
            return (f, g), None

        zeros = (jnp.zeros(count), jnp.zeros(count))
        (f, g), _ = lax.scan(jax.checkpoint(iterate), zeros, None, length=20)
        return jnp.sum(jnp.exp(scores + f[:, None] + g[None]) * cost)

    layers = [of(64, 512), of(512, 512), of(512, width)]
    return adam(loss, {"x": layers, "y": layers}, of(count, 64), of(count, 64))


def hash_grid() -> tuple[Any, Types]:
    """Return a field whose features are interpolated between entries of hashed tables of several resolutions."""
    levels, entries, channels, points = 8, 2**17, 2, 65536

    def features(table: Any, places: Any, resolution: int) -> Any:
        scaled = places * resolution
        corner = jnp.floor(scaled).astype(jnp.uint32)
        fraction, total = scaled - jnp.floor(scaled), 0.0
        for number in range(8):
            offset = [(number >> axis) & 1 for axis in range(3)]
            place = corner + jnp.array(offset, jnp.uint32)
            index = place[:, 0] ^ (place[:, 1] * jnp.uint32(2654435761)) ^ (place[:, 2] * jnp.uint32(805459861))
            weight = jnp.prod(jnp.where(jnp.array(offset) == 1, fraction, 1 - fraction), -1)
            total = total + weight[:, None] * table[(index % entries).astype(I32)]
        return total

    def loss(params: Tree, places: Any, colors: Any) -> Any:
        rows = [features(table, places, 16 * 2**level) for level, table in enumerate(params["tables"])]
        x = jnp.concatenate(rows, -1)
        x = nn.relu(nn.relu(x @ params["first"]) @ params["second"])
        return jnp.mean((nn.sigmoid(x @ params["out"]) - colors) ** 2)

    params = {"tables": [of(entries, channels)] * levels, "first": of(levels * channels, 64)}
    params |= {"second": of(64, 64), "out": of(64, 3)}
    return adam(loss, params, of(points, 3), of(points, 3))


def molecular_forces() -> tuple[Any, Types]:
    """Return a step on forces: gradients of an energy that messages between neighbours compute."""
    atoms, edges, width, radial = 4096, 65536, 64, 16

    def energy(params: Tree, places: Any, kinds: Any, source: Any, target: Any) -> Any:
        difference = places[target] - places[source]
        distance = jnp.sqrt(jnp.sum(difference**2, -1) + 1e-9)
        basis = jnp.exp(-((distance[:, None] - jnp.linspace(0, 5, radial)) ** 2))
        x = params["kinds"][kinds]
        for p in params["layers"]:
            filters = nn.silu(basis @ p["first"]) @ p["second"]
            messages = jax.ops.segment_sum(x[source] * filters, target, atoms)
            x = x + nn.silu(messages @ p["in"]) @ p["out"]
        return jnp.sum(nn.silu(x @ params["hidden"]) @ params["energy"])

    def loss(params: Tree, places: Any, kinds: Any, source: Any, target: Any, forces: Any) -> Any:
        slopes = jax.grad(energy, 1)(params, places, kinds, source, target)
        return jnp.mean((slopes + forces) ** 2)

    square = of(width, width)
    layer = {"first": of(radial, width), "second": square, "in": square, "out": square}
    params = {"kinds": of(100, width), "layers": [layer] * 3, "hidden": square, "energy": of(width, 1)}
    numbers = of(edges, dtype=I32)
    return adam(loss, params, of(atoms, 3), of(atoms, dtype=I32), numbers, numbers, of(atoms, 3))


def equilibrium() -> tuple[Any, Types]:
    """Return a layer that is iterated until it converges, with derivatives by the implicit function theorem."""
    width, rows = 768, 8192

    def layer(w: Tree, x: Any, z: Any) -> Any:
        return layer_norm(nn.relu(z @ w["z"] + x @ w["x"] + w["b"]) @ w["out"] + x, w["norm"])

    def fixed_point(f: Any, start: Any) -> Any:
        def unfinished(carry: Any) -> Any:
            before, now, count = carry
            return (count < 30) & (jnp.max(jnp.abs(now - before)) > 1e-4)

        def advance(carry: Any) -> Any:
            _, now, count = carry
            return now, f(now), count + 1

        return lax.while_loop(unfinished, advance, (start, f(start), 0))[1]

    @jax.custom_vjp
    def solve(w: Tree, x: Any) -> Any:
        return fixed_point(lambda z: layer(w, x, z), jnp.zeros_like(x))

    def forward(w: Tree, x: Any) -> Any:
        z = solve(w, x)
        return z, (w, x, z)

    def backward(saved: Any, cotangent: Any) -> Any:
        w, x, z = saved
        _, pull_z = jax.vjp(lambda z: layer(w, x, z), z)
        adjoint = fixed_point(lambda u: cotangent + 0.9 * pull_z(u)[0], cotangent)
        _, pull = jax.vjp(lambda w, x: layer(w, x, z), w, x)
        return pull(adjoint)

    solve.defvjp(forward, backward)

    def loss(params: Tree, x: Any, labels: Any) -> Any:
        return cross_entropy(solve(params["layer"], x @ params["in"]) @ params["head"], labels)

    square = of(width, width)
    params: Tree = {"layer": {"z": square, "x": square, "out": square, "b": of(width), "norm": of(width)}}
    params |= {"in": of(256, width), "head": of(width, 1000)}
    return adam(loss, params, of(rows, 256), of(rows, dtype=I32))


def sampled_posterior() -> tuple[Any, Types]:
    """Return samples of Hamiltonian Monte Carlo, for many chains of a regression."""
    chains, rows, width = 128, 16384, 256

    def density(weights: Any, x: Any, y: Any) -> Any:
        logits = x @ weights
        return jnp.sum(y * logits - nn.softplus(logits)) - 0.5 * jnp.sum(weights**2)

    def sample(weights: Any, x: Any, y: Any, seed: Any) -> Any:
        def chain(weights: Any, key: Any) -> Any:
            def transition(weights: Any, key: Any) -> Any:
                first, second = random.split(key)
                speed = random.normal(first, weights.shape)

                def leap(_: Any, carry: Any) -> Any:
                    weights, speed = carry
                    speed = speed + 0.005 * jax.grad(density)(weights, x, y)
                    weights = weights + 0.01 * speed
                    return weights, speed + 0.005 * jax.grad(density)(weights, x, y)

                moved, end = lax.fori_loop(0, 8, leap, (weights, speed))
                before = density(weights, x, y) - 0.5 * jnp.sum(speed**2)
                after = density(moved, x, y) - 0.5 * jnp.sum(end**2)
                weights = jnp.where(jnp.log(random.uniform(second)) < after - before, moved, weights)
                return weights, weights

            return lax.scan(transition, weights, random.split(key, 10))

        return jax.vmap(chain)(weights, random.split(random.key(seed), chains))

    types = (of(chains, width), of(rows, width), of(rows), of(dtype=jnp.uint32))
    return jax.jit(sample, donate_argnums=0), types


def filtered_states() -> tuple[Any, Types]:
    """Return gradients of the likelihood of a linear model with hidden states, by a Kalman filter per sequence."""
    batch, length, states, seen = 512, 128, 32, 16

    def likelihood(params: Tree, rows: Any) -> Any:
        motion, noise = params["motion"], params["noise"] @ params["noise"].T + 0.1 * jnp.eye(states)
        look, blur = params["look"], jnp.diag(jnp.exp(params["blur"]))

        def advance(carry: Any, row: Any) -> Any:
            mean, covariance = carry
            mean, covariance = motion @ mean, motion @ covariance @ motion.T + noise
            error, spread = row - look @ mean, look @ covariance @ look.T + blur
            factor = jnp.linalg.cholesky(spread)
            white = lax.linalg.triangular_solve(factor, error[:, None], left_side=True, lower=True)[:, 0]
            gain = jnp.linalg.solve(spread, look @ covariance).T
            mean, covariance = mean + gain @ error, covariance - gain @ spread @ gain.T
            return (mean, covariance), -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diagonal(factor)))

        return jnp.sum(lax.scan(advance, (jnp.zeros(states), jnp.eye(states)), rows)[1])

    def loss(params: Tree, rows: Any) -> Any:
        return -jnp.mean(jax.vmap(likelihood, (None, 0))(params, rows))

    params = {"motion": of(states, states), "noise": of(states, states), "look": of(seen, states), "blur": of(seen)}
    return adam(loss, params, of(batch, length, seen))


def blocked_attention() -> tuple[Any, Types]:
    """Return layers whose attention scans over blocks of keys, with running maxima and sums."""
    width, heads, block, batch, length = 512, 8, 256, 4, 2048

    def attention(q: Any, k: Any, v: Any) -> Any:
        def blocks(x: Any) -> Any:
            return x.reshape(batch, -1, block, heads, width // heads).transpose(1, 0, 3, 2, 4)

        q = q.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3) * (width // heads) ** -0.5
        places = jnp.arange(length)

        @jax.checkpoint
        def advance(carry: Any, row: Any) -> Any:
            most, total, out = carry
            k, v, number = row
            scores = jnp.einsum("bhqd,bhkd->bhqk", q, k).astype(F32)
            scores = jnp.where(places[:, None] >= number * block + jnp.arange(block), scores, -1e9)
            new = jnp.maximum(most, scores.max(-1))
            shares, scale = jnp.exp(scores - new[..., None]), jnp.exp(most - new)
            out = out * scale[..., None] + jnp.einsum("bhqk,bhkd->bhqd", shares.astype(BF16), v).astype(F32)
            return (new, total * scale + shares.sum(-1), out), None

        zeros = jnp.zeros((batch, heads, length))
        start = (zeros - 1e9, zeros, jnp.zeros((batch, heads, length, width // heads)))
        (_, total, out), _ = lax.scan(advance, start, (blocks(k), blocks(v), jnp.arange(length // block)))
        return (out / total[..., None]).transpose(0, 2, 1, 3).reshape(batch, length, width).astype(BF16)

    def loss(params: Tree, tokens: Any) -> Any:
        x = params["words"].astype(BF16)[tokens[:, :-1]]
        for p in params["layers"]:
            w = jax.tree.map(lambda leaf: leaf.astype(BF16), p)
            h = normalized(x)
            x = x + attention(h @ w["q"], h @ w["k"], h @ w["v"]) @ w["o"]
            x = x + nn.silu(normalized(x) @ w["up"]) @ w["down"]
        return cross_entropy(x @ params["words"].astype(BF16).T, tokens[:, 1:])

    params = {"words": of(16000, width), "layers": [transformer_weights(width)] * 3}
    return adam(loss, params, of(batch, length + 1, dtype=I32))


def pair_representation() -> tuple[Any, Types]:
    """Return blocks that update all pairs of residues by triangles, and by attention along rows with a bias."""
    length, width, heads = 96, 64, 4

    def triangle(x: Any, w: Tree) -> Any:
        h = layer_norm(x, w["n1"])
        left, right = (nn.sigmoid(h @ w[f"{side}_gate"]) * (h @ w[side]) for side in ("left", "right"))
        return x + nn.sigmoid(h @ w["gate"]) * (jnp.einsum("bikc,bjkc->bijc", left, right) @ w["out"])

    def along_rows(x: Any, w: Tree) -> Any:
        h = layer_norm(x, w["n2"])
        q, k, v = ((h @ w[name]).reshape(*h.shape[:3], heads, -1) for name in "qkv")
        bias = jnp.einsum("bqkc,ch->bhqk", h, w["bias"])
        scores = jnp.einsum("brqhd,brkhd->brhqk", q, k) * (width // heads) ** -0.5 + bias[:, None]
        out = jnp.einsum("brhqk,brkhd->brqhd", nn.softmax(scores), v)
        return x + out.reshape(h.shape) @ w["o"]

    def loss(params: Tree, x: Any, distances: Any) -> Any:
        def block(x: Any, w: Tree) -> Any:
            x = along_rows(triangle(x, w), w)
            return x + nn.relu(layer_norm(x, w["n3"]) @ w["up"]) @ w["down"], None

        x, _ = lax.scan(jax.checkpoint(block), x, params["blocks"])
        symmetric = x + jnp.swapaxes(x, 1, 2)
        return cross_entropy(symmetric @ params["head"], distances)

    blocks, square = 4, of(4, width, width)
    stack = dict.fromkeys(("left", "right", "left_gate", "right_gate", "gate", "out", *"qkvo"), square)
    stack |= dict.fromkeys(("n1", "n2", "n3"), of(blocks, width)) | {"bias": of(blocks, width, heads)}
    stack |= {"up": of(blocks, width, 4 * width), "down": of(blocks, 4 * width, width)}
    params = {"blocks": stack, "head": of(width, 64)}
    return adam(loss, params, of(2, length, length, width), of(2, length, length, dtype=I32))


def shifted_windows() -> tuple[Any, Types]:
    """Return attention inside windows of images, which every other layer shifts, with a bias per distance."""
    width, heads, window, size, batch = 192, 6, 8, 32, 16

    def layer(x: Any, w: Tree, shift: int) -> Any:
        h = jnp.roll(layer_norm(x, w["n1"]), (-shift, -shift), (1, 2))
        h = h.reshape(batch, size // window, window, size // window, window, width)
        h = h.transpose(0, 1, 3, 2, 4, 5).reshape(-1, window * window, width)
        q, k, v = (y.reshape(*y.shape[:2], heads, -1) for y in jnp.split(h @ w["qkv"], 3, -1))
        rows, columns = jnp.divmod(jnp.arange(window * window), window)
        distances = (rows[:, None] - rows + window - 1) * (2 * window - 1) + columns[:, None] - columns + window - 1
        scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) * (width // heads) ** -0.5 + w["bias"][:, distances]
        h = jnp.einsum("nhqk,nkhd->nqhd", nn.softmax(scores), v).reshape(h.shape) @ w["o"]
        h = h.reshape(batch, size // window, size // window, window, window, width)
        h = h.transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)
        x = x + jnp.roll(h, (shift, shift), (1, 2))
        return x + nn.gelu(layer_norm(x, w["n2"]) @ w["up"]) @ w["down"]

    def loss(params: Tree, images: Any, labels: Any) -> Any:
        patches = images.reshape(batch, size, 4, size, 4, 3).transpose(0, 1, 3, 2, 4, 5)
        x = patches.reshape(batch, size, size, 48) @ params["in"]
        for number, w in enumerate(params["layers"]):
            x = layer(x, w, window // 2 if number % 2 else 0)
        return cross_entropy(x.mean((1, 2)) @ params["head"], labels)

    weights = {"qkv": of(width, 3 * width), "o": of(width, width), "n1": of(width), "n2": of(width)}
    weights |= {"up": of(width, 4 * width), "down": of(4 * width, width), "bias": of(heads, (2 * window - 1) ** 2)}
    params = {"in": of(48, width), "layers": [weights] * 4, "head": of(width, 1000)}
    return adam(loss, params, of(batch, 4 * size, 4 * size, 3), of(batch, dtype=I32))


def augmented_images() -> tuple[Any, Types]:
    """Return a step whose images are cropped, rotated, resized and recolored at random in the step itself."""
    batch, size = 64, 128

    def augment(image: Any, key: Any) -> Any:
        keys = random.split(key, 4)
        corner = random.randint(keys[0], (2,), 0, 32)
        image = lax.dynamic_slice(image, (corner[0], corner[1], 0), (size - 32, size - 32, 3)).astype(F32) / 255
        angle = random.uniform(keys[1], minval=-0.3, maxval=0.3)
        rows, columns = jnp.meshgrid(jnp.arange(64.0) * 1.5 - 48, jnp.arange(64.0) * 1.5 - 48, indexing="ij")
        places = [
            48 + jnp.cos(angle) * rows - jnp.sin(angle) * columns,
            48 + jnp.sin(angle) * rows + jnp.cos(angle) * columns,
        ]
        image = jnp.stack([map_coordinates(image[..., c], places, 1, mode="nearest") for c in range(3)], -1)
        image = jnp.where(random.bernoulli(keys[2]), image[:, ::-1], image)
        return (image - image.mean((0, 1))) * random.uniform(keys[3], (3,), minval=0.6, maxval=1.4)

    def loss(params: Tree, images: Any, labels: Any) -> Any:
        x = jax.image.resize(images, (batch, 56, 56, 3), "linear")
        for number, p in enumerate(params["layers"]):
            h = conv(nn.silu(conv(x, p["in"], 2 if number else 1)), p["depth"], groups=p["depth"].shape[-1])
            gate = nn.sigmoid(nn.silu(h.mean((1, 2)) @ p["squeeze"]) @ p["excite"])
            x = conv(nn.silu(h) * gate[:, None, None], p["out"])
        return cross_entropy(x.mean((1, 2)) @ params["head"], labels)

    def augmented_loss(params: Tree, images: Any, labels: Any, seed: Any) -> Any:
        keys = random.split(random.key(seed), batch)
        return loss(params, jax.vmap(augment)(images, keys), labels)

    layers = [
        {
            "in": of(1, 1, a, 4 * b),
            "depth": of(5, 5, 1, 4 * b),
            "squeeze": of(4 * b, b),
            "excite": of(b, 4 * b),
            "out": of(1, 1, 4 * b, b),
        }
        for a, b in pairwise((3, 24, 48, 96))
    ]
    types = (of(batch, size, size, 3, dtype=jnp.uint8), of(batch, dtype=I32), of(dtype=jnp.uint32))
    return adam(augmented_loss, {"layers": layers, "head": of(96, 1000)}, *types)


def natural_gradient() -> tuple[Any, Types]:
    """Return a step along the natural gradient: conjugate gradients with products of curvature and vectors."""
    width = 512

    def forward(params: Tree, x: Any) -> Any:
        for w, b in params[:-1]:
            x = jnp.tanh(x @ w + b)
        return x @ params[-1][0] + params[-1][1]

    def step(params: Tree, x: Any, labels: Any) -> Any:
        value, slopes = jax.value_and_grad(lambda p: cross_entropy(forward(p, x), labels))(params)

        def curvature(direction: Tree) -> Tree:
            logits, moved = jax.jvp(lambda p: forward(p, x), (params,), (direction,))
            shares = nn.softmax(logits)
            moved = shares * (moved - jnp.sum(shares * moved, -1, keepdims=True)) / x.shape[0]
            (product,) = jax.vjp(lambda p: forward(p, x), params)[1](moved)
            return jax.tree.map(lambda a, d: a + 1e-2 * d, product, direction)

        direction, _ = jax.scipy.sparse.linalg.cg(curvature, slopes, maxiter=10)
        length = sum(jnp.sum(d * g) for d, g in zip(jax.tree.leaves(direction), jax.tree.leaves(slopes), strict=True))
        size = jnp.sqrt(0.02 / (jnp.abs(length) + 1e-8))
        return jax.tree.map(lambda p, d: p - size * d, params, direction), value

    params = [(of(784, width), of(width)), (of(width, width), of(width)), (of(width, 10), of(10))]
    return jax.jit(step, donate_argnums=0), (params, of(8192, 784), of(8192, dtype=I32))


def population() -> tuple[Any, Types]:
    """Return a step of an evolution strategy: the losses of perturbed networks, two of each, and their ranks."""
    members, batch, width = 64, 256, 256

    def loss(params: Tree, x: Any, labels: Any) -> Any:
        for w in params[:-1]:
            x = nn.relu(x @ w)
        return cross_entropy(x @ params[-1], labels)

    def step(params: Tree, x: Any, labels: Any, seed: Any) -> Any:
        def noise(key: Any) -> Tree:
            keys = random.split(key, len(params))
            return [random.normal(key, p.shape) for key, p in zip(keys, params, strict=True)]

        moves = jax.vmap(noise)(random.split(random.key(seed), members))

        def shifted(move: Tree, size: float) -> Any:
            return loss(jax.tree.map(lambda p, n: p + size * n, params, move), x, labels)

        values = jnp.stack([jax.vmap(lambda move, size=size: shifted(move, size))(moves) for size in (0.02, -0.02)])
        ranks = jnp.argsort(jnp.argsort(values.reshape(-1))).reshape(2, members) / (2 * members) - 0.5
        shares = ranks[0] - ranks[1]
        return [p - 0.1 * jnp.einsum("m,mij->ij", shares, m) for p, m in zip(params, moves, strict=True)], values.mean()

    params = [of(784, width), of(width, width), of(width, 10)]
    return jax.jit(step, donate_argnums=0), (params, of(batch, 784), of(batch, dtype=I32), of(dtype=jnp.uint32))


def sequence_parallel(mesh: Mesh) -> tuple[Any, Types]:
    """Return a decoder whose activations are sharded along the sequence, recomputed, with replicated weights."""
    width = 512

    def loss(params: Tree, tokens: Any) -> Any:
        x = params["words"].astype(BF16)[tokens[:, :-1]]
        x = lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P("data", "model")))
        layer = jax.checkpoint(lambda x, w: (transformer_layer(8, True, x, w), None))
        x, _ = lax.scan(layer, x, params["layers"])
        return cross_entropy(x @ params["words"].astype(BF16).T, tokens[:, 1:])

    params = sharded(mesh, {"words": of(16000, width), "layers": transformer_weights(width, 6)})
    return adam(loss, params, sharded(mesh, of(8, 2049, dtype=I32), "data"))


def sharded_tables(mesh: Mesh) -> tuple[Any, Types]:
    """Return a model of clicks whose tables are sharded by rows, and whose batch is sharded over all devices."""
    tables, rows, width, batch = 6, 131072, 64, 16384

    def loss(params: Tree, dense: Any, sparse: Any, clicked: Any) -> Any:
        x = nn.relu(dense @ params["bottom"])
        vectors = [table[sparse[:, number]].mean(1) for number, table in enumerate(params["tables"])]
        h = nn.relu(jnp.concatenate([x, *vectors], -1) @ params["top"])
        logits = (h @ params["out"])[:, 0]
        return jnp.mean(nn.softplus(logits) - clicked * logits)

    params = {"tables": sharded(mesh, [of(rows, width)] * tables, ("data", "model"))}
    dense = {"bottom": of(13, width), "top": of((tables + 1) * width, 1024), "out": of(1024, 1)}
    params |= sharded(mesh, dense)
    axes = ("data", "model")
    batches = sharded(mesh, (of(batch, 13), of(batch, tables, 4, dtype=I32), of(batch)), axes)
    return momentum(loss, params, *batches)


STEPS = by_name(
    damped_least_squares,
    preconditioned_optimizer,
    continuous_flow,
    adversarial_nets,
    speculative_decoding,
    guided_sampling,
    tensor_network,
    rollout,
    paged_attention,
    wave_inversion,
    optimal_transport,
    hash_grid,
    molecular_forces,
    equilibrium,
    sampled_posterior,
    filtered_states,
    blocked_attention,
    pair_representation,
    shifted_windows,
    augmented_images,
    natural_gradient,
    population,
) | {"self-distillation": self_distillation}

SHARDED = by_name(
    sequence_parallel,
    sharded_tables,
)
