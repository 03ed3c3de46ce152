"""Programs of real JAX, whose modules are read: a function and its arguments by name."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Program = tuple[Callable[..., Any], tuple[Any, ...]]

_RNG = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return _RNG.normal(size=shape).astype(np.float32)


X, Y, SQUARE = _normal(8, 4), _normal(8, 4), _normal(4, 4)
IMAGE, KERNEL = _normal(2, 8, 8, 3), _normal(3, 3, 3, 5)
TOKENS = _RNG.integers(0, 16, (4, 8)).astype(np.int32)
INTEGERS = _RNG.integers(-50, 50, (8, 4)).astype(np.int32)
WORDS = _RNG.integers(0, 2**32, (8, 4)).astype(np.uint32)


def _elementwise(x: Any, y: Any) -> Any:
    z = jnp.exp(x) + jnp.log1p(jnp.abs(y)) * jnp.tanh(x) - jnp.sqrt(jnp.abs(x)) / (1 + y**2)
    return jnp.where(x > y, z, jnp.maximum(x, y)) + jnp.sign(x) * lax.rsqrt(1 + x * x) + jnp.expm1(y) % 3.0


def _trigonometry(x: Any) -> Any:
    y = jnp.clip(x, -0.9, 0.9)
    return jnp.sin(x) + jnp.cos(x) + jnp.tan(y) + jnp.arcsin(y) + jnp.arccos(y) + jnp.arctan2(x, y) + jnp.arctanh(y)


def _rounding(x: Any) -> Any:
    return jnp.floor(x), jnp.ceil(x), jnp.round(x), lax.round(x), jnp.isfinite(x / jnp.round(x)), jnp.cbrt(x)


def _special(x: Any) -> Any:
    y = jnp.abs(x) + 0.5
    return lax.erf(x) + lax.erfc(x) + lax.lgamma(y) + lax.digamma(y) + lax.erf_inv(jnp.tanh(x)) + jnp.sinh(x)


def _integers(x: Any, w: Any) -> Any:
    return (
        x // 7 + x % 5,
        lax.shift_right_logical(w, np.uint32(3)) ^ (w << 2) & ~w,
        lax.population_count(w) + lax.clz(w),
        x.astype(jnp.int8),
        lax.shift_right_arithmetic(x, np.int32(1)),
        jnp.abs(x) ** 2,
    )


def _conversions(x: Any) -> Any:
    half = x.astype(jnp.bfloat16) * jnp.array([1.5, 2.5, -3.0, 1e-3], jnp.bfloat16)
    return half, x.astype(jnp.float16), x.astype(jnp.int32), x > 0, lax.bitcast_convert_type(x, jnp.uint32)


def _complex(x: Any, y: Any) -> Any:
    z = lax.complex(x, y) * jnp.array([1 + 2j, 3j, -1, 0.5 - 0.5j], jnp.complex64)
    return jnp.abs(z), z * jnp.conj(z), jnp.real(jnp.exp(z / 10)), jnp.imag(z)


def _shapes(x: Any) -> Any:
    padded = jnp.pad(x, ((1, 2), (0, 3)), constant_values=7.0)
    return (
        padded[::2, 1:5],
        jnp.concatenate([x, 2 * x], 1).reshape(16, 4).T,
        jnp.flip(x, 0),
        lax.pad(x, 0.0, [(0, 1, 2), (-1, 0, 0)]),
    )


def _constants(x: Any) -> Any:
    return x + np.array([[1.0, -0.0, np.inf, 1e-30]], np.float32), jnp.arange(300) * 3, np.eye(8, dtype=bool) & True


def _reductions(x: Any, i: Any) -> Any:
    return x.sum(0), x.max(1), x.min(), jnp.prod(x, 0), jnp.all(x > 0, 0), jnp.any(i > 3, 1), i.sum(0), jnp.mean(x, 1)


def _softmax(x: Any) -> Any:
    return jax.nn.softmax(x, -1), jax.nn.logsumexp(x, 0), jnp.var(x, 1), jax.nn.gelu(x)


def _arg_extrema(x: Any, i: Any) -> Any:
    return jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(i, 0), jnp.argmin(i)


def _cumulative(x: Any) -> Any:
    return jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 0), lax.cumsum(x, 0, reverse=True), lax.cumlogsumexp(x, 1)


def _windows(x: Any) -> Any:
    return (
        lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
        lax.reduce_window(x, 2.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    )


def _pool_gradient(x: Any) -> Any:
    return jax.grad(
        lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2).sum()
    )(x)


def _dots(x: Any, y: Any) -> Any:
    return x @ y.T, jnp.einsum("ij,ij->i", x, y), jnp.tensordot(x, y, 2), lax.dot(x, y.T, precision="highest")


def _mixed_dot(x: Any, y: Any) -> Any:
    x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    return lax.dot_general(x, y, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def _convolution(x: Any, k: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return (
        lax.conv_general_dilated(x, k, (2, 1), "SAME", dimension_numbers=numbers),
        lax.conv_general_dilated(x, k, (1, 1), [(1, 0), (2, 2)], (2, 1), (1, 2), dimension_numbers=numbers),
    )


def _convolution_gradient(x: Any, k: Any) -> Any:
    def loss(x: Any, k: Any) -> Any:
        return (lax.conv_general_dilated(x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2).sum()

    return jax.grad(loss, (0, 1))(x, k)


def _indexing(x: Any, i: Any) -> Any:
    rows = jnp.abs(i[:, 0]) % 8
    return (
        x[rows],
        x.at[rows].add(1.0),
        x.at[rows, 1].set(5.0),
        x.at[rows].max(0.0),
        x[rows, jnp.arange(8) % 4],
        x[:, 1],
    )


def _dynamic_slices(x: Any, i: Any) -> Any:
    start = i[0, 0] % 4
    return lax.dynamic_slice(x, (start, 1), (3, 2)), lax.dynamic_update_slice(x, x[:2] * 0, (start, 0)), x[start]


def _out_of_bounds(x: Any, i: Any) -> Any:
    return x[i[:, 0]], x.at[i[:, 0]].set(0.0), x.at[i[:, 0]].get(mode="clip"), jnp.take(x, i[:, 1], 0)


def _sorting(x: Any, i: Any) -> Any:
    return (
        jnp.sort(x, 0),
        jnp.argsort(i, 1),
        lax.sort((i % 3, x, i), num_keys=2),
        jnp.sort(x, descending=True),
        lax.top_k(x, 3),
        jnp.median(x, 1),
    )


def _scan(x: Any) -> Any:
    return lax.scan(lambda c, t: (c * 0.5 + t, c * t), x[0], x)


def _reverse_scan(x: Any) -> Any:
    return lax.scan(lambda c, t: (c * 0.5 + t[0], (c, t[1].sum())), x[0], (x, x * 2), reverse=True)


def _scan_gradient(x: Any) -> Any:
    def loss(x: Any) -> Any:
        carry, ys = lax.scan(lambda c, t: (jnp.tanh(c + t), c), x[0], x)
        return (carry * ys).sum()

    return jax.value_and_grad(loss)(x)


def _nested_scan(x: Any) -> Any:
    def outer(c: Any, row: Any) -> Any:
        total, parts = lax.scan(lambda a, b: (a + b, a * b), c, row)
        return total * 0.5, parts

    return lax.scan(outer, 0.0, x)


def _fori_loop(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, c: c * 0.9 + i + x[i], x)


def _while_loop(x: Any) -> Any:
    return lax.while_loop(lambda s: s[1].sum() < 100.0, lambda s: (s[0] + 1, s[1] * 1.5), (0, jnp.abs(x)))


def _nested_while(x: Any) -> Any:
    def body(state: Any) -> Any:
        i, total = state
        return i + 2, total + lax.while_loop(lambda s: s < 10.0 + i, lambda s: s * 2, jnp.abs(x).sum())

    return lax.while_loop(lambda s: s[0] < 7, body, (1, 0.0))


def _cond(x: Any, i: Any) -> Any:
    branches = [lambda x: x * 2, jnp.sin, lambda x: x.T.reshape(8, 4)]
    return lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, x), lax.switch(i[0, 0] % 5 - 1, branches, x)


def _map(x: Any) -> Any:
    return lax.map(lambda row: jnp.outer(row, row), x), jax.vmap(
        lambda r: lax.fori_loop(0, 3, lambda i, c: c + r[i], 0.0)
    )(x)


def _fft(x: Any) -> Any:
    z = jnp.fft.fft(x, axis=1)
    return jnp.abs(z), jnp.fft.irfft(jnp.fft.rfft(x, axis=0), axis=0), jnp.abs(jnp.fft.ifft2(z))


def _random_bits(seed: Any) -> Any:
    key = jax.random.key(seed)
    first, second = jax.random.split(key)
    return jax.random.bits(first, (3, 5)), jax.random.uniform(second, (4,)), jax.random.fold_in(key, 3)


def _random_normal(seed: Any) -> Any:
    key = jax.random.PRNGKey(seed)
    return (
        jax.random.normal(key, (5, 3)),
        jax.random.permutation(key, 9),
        jax.random.categorical(key, jnp.zeros((4, 3))),
    )


def _triangular_solve(a: Any, b: Any) -> Any:
    a = jnp.tril(a) + 4 * jnp.eye(4)
    return lax.linalg.triangular_solve(a, b.T, left_side=True, lower=True)


def _linalg(a: Any) -> Any:
    spd = a @ a.T + 4 * jnp.eye(4)
    q, r = jnp.linalg.qr(a)
    return jnp.linalg.cholesky(spd), jnp.linalg.solve(spd, a), jnp.linalg.det(a), q @ r, jnp.linalg.eigvalsh(spd)


def _remat(x: Any, w: Any) -> Any:
    layer = jax.checkpoint(lambda x: jnp.tanh(x @ w))
    return jax.grad(lambda x: (layer(layer(x)) ** 2).sum())(x)


def _composite(x: Any) -> Any:
    return lax.composite(lambda x: jnp.tanh(x) * 2, "my.tanh")(x)


def _reduce_precision(x: Any) -> Any:
    return lax.reduce_precision(x, 5, 4), lax.nextafter(x, x + 1), lax.clamp(-0.5, x, 0.5)


def _einsum_batched(x: Any) -> Any:
    y = x.reshape(2, 4, 4)
    return jnp.einsum("bij,bkj->bik", y, y), jnp.einsum("bij->ji", y), jnp.linalg.norm(y, axis=-1)


# Training steps, whose plans are compared with those of their jaxprs.
MLP = {"w1": _normal(16, 32) * 0.1, "w2": _normal(32, 16) * 0.1}
MLP_BATCH = (_normal(16, 16), _normal(16, 16))


def mlp_step(params: Any, x: Any, y: Any) -> Any:
    """Take one step of SGD on a multilayer perceptron."""

    def loss(params: Any) -> Any:
        return ((jax.nn.relu(x @ params["w1"]) @ params["w2"] - y) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def adam_step(params: Any, m: Any, v: Any, count: Any, x: Any, y: Any) -> Any:
    """Take one step of Adam on a multilayer perceptron."""

    def loss(params: Any) -> Any:
        return ((jax.nn.gelu(x @ params["w1"]) @ params["w2"] - y) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    count = count + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
    steps = count.astype(jnp.float32)
    scale = jnp.sqrt(1 - 0.999**steps) / (1 - 0.9**steps)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * scale * m / (jnp.sqrt(v) + 1e-8), params, m, v)
    return params, m, v, count, value


LAYERS, WIDTH, HEADS, VOCABULARY = 2, 16, 2, 16
TRANSFORMER = {
    "embed": _normal(VOCABULARY, WIDTH) * 0.1,
    "qkv": _normal(LAYERS, WIDTH, 3 * WIDTH) * 0.1,
    "out": _normal(LAYERS, WIDTH, WIDTH) * 0.1,
    "up": _normal(LAYERS, WIDTH, 4 * WIDTH) * 0.1,
    "down": _normal(LAYERS, 4 * WIDTH, WIDTH) * 0.1,
}


def attention(q: Any, k: Any, v: Any) -> Any:
    """Compute causal attention of (batch, length, heads, size)."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]).astype(np.float32)
    mask = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def transformer_step(params: Any, tokens: Any) -> Any:
    """Take one step of SGD on a transformer whose layers are a scan."""

    def normalize(x: Any) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        return centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5)

    def layer(x: Any, w: Any) -> Any:
        q, k, v = jnp.split(normalize(x) @ w["qkv"], 3, -1)
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        mixed = attention(q.reshape(shape), k.reshape(shape), v.reshape(shape)).reshape(x.shape)
        x = x + mixed @ w["out"]
        return x + jax.nn.gelu(normalize(x) @ w["up"]) @ w["down"], None

    def loss(params: Any) -> Any:
        x = params["embed"][tokens[:, :-1]]
        x, _ = lax.scan(layer, x, {name: params[name] for name in ("qkv", "out", "up", "down")})
        logits = jax.nn.log_softmax(x @ params["embed"].T)
        targets = jax.nn.one_hot(tokens[:, 1:], VOCABULARY)
        return -(logits * targets).sum(-1).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


ZEROS = {name: np.zeros_like(value) for name, value in MLP.items()}
HEADS_OF = _normal(2, 6, HEADS, 8)

PROGRAMS: dict[str, Program] = {
    "elementwise": (_elementwise, (X, Y)),
    "trigonometry": (_trigonometry, (X,)),
    "rounding": (_rounding, (X,)),
    "special": (_special, (X,)),
    "integers": (_integers, (INTEGERS, WORDS)),
    "conversions": (_conversions, (X,)),
    "complex": (_complex, (X, Y)),
    "shapes": (_shapes, (X,)),
    "constants": (_constants, (X,)),
    "reductions": (_reductions, (X, INTEGERS)),
    "softmax": (_softmax, (X,)),
    "arg_extrema": (_arg_extrema, (X, INTEGERS)),
    "cumulative": (_cumulative, (X,)),
    "windows": (_windows, (IMAGE,)),
    "pool_gradient": (_pool_gradient, (np.round(IMAGE),)),
    "dots": (_dots, (X, Y)),
    "mixed_dot": (_mixed_dot, (X, Y)),
    "convolution": (_convolution, (IMAGE, KERNEL)),
    "convolution_gradient": (_convolution_gradient, (IMAGE, KERNEL)),
    "indexing": (_indexing, (X, INTEGERS)),
    "dynamic_slices": (_dynamic_slices, (X, INTEGERS)),
    "out_of_bounds": (_out_of_bounds, (X, INTEGERS)),
    "sorting": (_sorting, (X, INTEGERS)),
    "scan": (_scan, (X,)),
    "reverse_scan": (_reverse_scan, (X,)),
    "scan_gradient": (_scan_gradient, (X,)),
    "nested_scan": (_nested_scan, (X,)),
    "fori_loop": (_fori_loop, (X,)),
    "while_loop": (_while_loop, (X,)),
    "nested_while": (_nested_while, (X,)),
    "cond": (_cond, (X, INTEGERS)),
    "map": (_map, (X,)),
    "fft": (_fft, (X,)),
    "random_bits": (_random_bits, (np.int32(7),)),
    "random_normal": (_random_normal, (np.int32(7),)),
    "triangular_solve": (_triangular_solve, (SQUARE, Y)),
    "linalg": (_linalg, (SQUARE,)),
    "remat": (_remat, (X, SQUARE)),
    "composite": (_composite, (X,)),
    "reduce_precision": (_reduce_precision, (X,)),
    "einsum_batched": (_einsum_batched, (X,)),
    "attention": (attention, (HEADS_OF, HEADS_OF, HEADS_OF)),
    "attention_gradient": (jax.grad(lambda q, k, v: attention(q, k, v).sum() ** 2, (0, 1, 2)), (HEADS_OF,) * 3),
    "mlp_step": (mlp_step, (MLP, *MLP_BATCH)),
    "adam_step": (adam_step, (MLP, ZEROS, ZEROS, np.int32(0), *MLP_BATCH)),
    "transformer_step": (transformer_step, (TRANSFORMER, TOKENS)),
}
