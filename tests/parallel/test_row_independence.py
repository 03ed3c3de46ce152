"""Loop bodies whose rows are independent, and others."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.control.scan import Scan
from shardwise.models import PRESETS, Decoder
from shardwise.models.feed_forward import Experts
from shardwise.parallel.row_independence import has_independent_rows
from shardwise.sharding import PartitionSpec as P

ROWS, LENGTH, WIDTH, LAYERS = 4, 6, 8, 3
X = np.linspace(-1, 1, ROWS * LENGTH * WIDTH, dtype=np.float32).reshape(ROWS, LENGTH, WIDTH)
WEIGHTS = np.linspace(-0.5, 0.5, LAYERS * WIDTH * WIDTH, dtype=np.float32).reshape(LAYERS, WIDTH, WIDTH)
ANGLES = np.arange(LENGTH, dtype=np.float32)[:, None]


def attention(x, w):
    heads = (x @ w).reshape(x.shape[0], LENGTH, 2, WIDTH // 2)
    scores = jnp.einsum("bthe,bshe->bhts", heads, heads)
    return x + jnp.einsum("bhts,bshe->bthe", sw.nn.softmax(scores), heads).reshape(x.shape)


def merged(x, w):
    return jnp.tanh(x.reshape(-1, WIDTH) @ w).reshape(x.shape)


def looped(x, w):
    return lax.fori_loop(0, 2, lambda _, h: jnp.tanh(h @ w), x)


INDEPENDENT = {
    "a product": lambda x, w: jnp.tanh(x @ w),
    "attention": attention,
    "rows and positions merged": merged,
    "a nested loop": looped,
    "a checkpoint": sw.checkpoint(lambda x, w: jnp.sin(jnp.sin(x @ w))),
    "a captured table of positions": lambda x, w: x * jnp.cos(ANGLES) + x @ w,
    "positions": lambda x, w: x + jnp.arange(LENGTH, dtype=jnp.float32)[:, None] * (x @ w),
    "elements at indices of rows": lambda x, w: x @ w + w[0][jnp.argmax(x, -1)][..., None],
    "a column that is set": lambda x, w: jnp.matmul(x, w).at[:, 0].set(1.0),
    "a norm": lambda x, w: (x - x.mean(-1, keepdims=True)) @ w,
    "a call": lambda x, w: sw.jit(lambda x: x @ w)(x) + jnp.ones_like(x),
    "a custom gradient": lambda x, w: sw.nn.relu(x @ w),
}
DEPENDENT = {
    "a mean over rows": lambda x, w: x @ w - x.mean(0),
    "products of rows": lambda x, w: jnp.einsum("ab,bte->ate", jnp.einsum("ate,bte->ab", x, x), x @ w),
    "a sum that is added": lambda x, w: x @ w + x.sum(),
    "rows in reverse": lambda x, w: x[::-1] @ w,
    "rows rolled": lambda x, w: jnp.roll(x, 1, 0) @ w,
    "a running sum": lambda x, w: jnp.cumsum(x @ w, 0),
    "sorted rows": lambda x, w: jnp.sort(x @ w, 0),
    "indices of rows": lambda x, w: x @ w + jnp.arange(x.shape[0], dtype=jnp.float32)[:, None, None],
    "a captured array with rows": lambda x, w: x @ w + X[:, :1],
    "noise": lambda x, w: x @ w + sw.random.normal(sw.random.key(0), x.shape),
    "the first row": lambda x, w: x @ w + x[:1],
    "a row that is set": lambda x, w: (x @ w).at[0].set(1.0),
    "rows that are added to": lambda x, w: (x @ w).at[np.array([0, 2])].add(1.0),
    "a row at a traced index": lambda x, w: lax.dynamic_update_slice(
        x @ w, x[:1], (w[0, 0, None].astype(int)[0], 0, 0)
    ),
    "rows in groups": lambda x, w: (x.reshape(2, -1, WIDTH) @ w).cumsum(1).reshape(x.shape),
    "a norm of groups of rows": lambda x, w: (
        (x.reshape(2, -1, WIDTH) - x.reshape(2, -1, WIDTH).mean(1, keepdims=True)).reshape(x.shape) @ w
    ),
    "rows and positions in other groups": lambda x, w: x @ w + jnp.sort(x.reshape(2, -1, WIDTH), 1).reshape(x.shape),
    "a transposition": lambda x, w: x.reshape(LENGTH, ROWS, WIDTH).swapaxes(0, 1) @ w,
}


def scan_of(body):
    program = sw.jit(lambda weights, x: lax.scan(lambda x, w: (body(x, w), None), x, weights)).trace(WEIGHTS, X).program
    (op,) = [
        equation.op for equation in program.walk() if isinstance(equation.op, Scan) and equation.op.length == LAYERS
    ]
    return op


@pytest.mark.parametrize("name", INDEPENDENT)
def test_rows_are_independent(name):
    """The oracle is a run on half of the rows."""
    body = INDEPENDENT[name]
    assert has_independent_rows(scan_of(body))
    np.testing.assert_allclose(body(X, WEIGHTS[0])[::2], body(X[::2], WEIGHTS[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_are_dependent(name):
    assert not has_independent_rows(scan_of(DEPENDENT[name]))


def test_scans_with_other_results_or_carries_have_no_independent_rows():
    def scan(body, first=X):
        program = sw.jit(lambda weights, x: lax.scan(body, x, weights)).trace(WEIGHTS, first).program
        return next(equation.op for equation in program.walk() if isinstance(equation.op, Scan))

    assert not has_independent_rows(scan(lambda x, w: (x @ w, x.sum())))  # stacked results
    assert not has_independent_rows(scan(lambda c, w: ((c[0] @ w, c[1] + 1), None), (X, np.float32(0))))
    assert not has_independent_rows(scan(lambda c, w: ((c[0] @ w, c[1]), None), (X, X[:2])))
    assert has_independent_rows(scan(lambda c, w: ((c[0] @ w, c[1]), None), (X, X[:, 0])))
    mesh = sw.make_mesh((4,), ("data",))
    pinned = sw.NamedSharding(mesh, P("data"))
    assert not has_independent_rows(scan(lambda x, w: (lax.with_sharding_constraint(x @ w, pinned), None)))


@pytest.mark.parametrize("name", ["llama3-70b", "mixtral-8x7b"])
def test_layers_of_models(name):
    """In a mixture of experts, each sequence routes its own tokens, so the rows are independent too."""
    experts = PRESETS[name].experts and Experts(4, 2, 16)
    small = Decoder(LAYERS, 16, 4, 2, 4, 32, 64, experts=experts)
    tokens = sw.ShapeDtypeStruct((ROWS, 9), jnp.int32)
    program = sw.jit(small.loss).trace(small.weights(), tokens).program
    op = next(
        equation.op for equation in program.walk() if isinstance(equation.op, Scan) and equation.op.length == LAYERS
    )
    assert has_independent_rows(op)
