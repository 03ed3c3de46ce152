"""check_row_mean: losses that are means over rows, and losses that are not."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.errors import StrategyError
from shardwise.models import Decoder
from shardwise.parallel.row_mean import Combination, check_row_mean, check_single_row

ROWS, WIDTH = 6, 4
RNG = np.random.default_rng(0)


def programs(loss, weight_shape, rows=ROWS):
    """The programs of a loss of weights, inputs and labels, and its constants, for ROWS and for twice as many.

    The loss may return a pair of it and an auxiliary result.
    """

    def program(count):
        types = [
            ArrayType(weight_shape, np.dtype("float32")),
            ArrayType((count, WIDTH), np.dtype("float32")),
            ArrayType((count,), np.dtype("int32")),
        ]
        program, captured = build(lambda *leaves: sw.tree_util.tree_leaves(loss(*leaves)), types, "loss")
        return dce(inline(program)), captured

    return zip(program(rows), program(2 * rows), strict=True)


def check(loss, weight_shape=(WIDTH, 8)):
    both, captured = programs(loss, weight_shape)
    return check_row_mean(*both, [1, 2], "the loss", captured)


def cross_entropy(w, x, labels):
    log_p = sw.nn.log_softmax(x @ w)
    return -jnp.take_along_axis(log_p, labels[:, None], 1)[:, 0]


def histogram(initial, w, x, labels):
    return (initial.at[labels].add((x @ w).sum(1)) * w[0]).sum() / len(x)


def scanned(w, x, labels):
    return sw.lax.scan(lambda x, w: (x + jnp.tanh(x * w), None), x, w)[0].mean()


MEANS = {
    "mean": lambda w, x, labels: ((x @ w) ** 2).mean(),
    "mean over rows, then over columns": lambda w, x, labels: ((x @ w) ** 2).mean(0).mean(),
    "sum over columns, mean over rows": lambda w, x, labels: ((x @ w) ** 2).sum(1).mean(0),
    "sum divided by the rows": lambda w, x, labels: (x @ w).sum() / x.shape[0],
    "sum times a reciprocal": lambda w, x, labels: 3.0 * (x @ w).sum() * (1.0 / len(x)),
    "cross entropy": lambda w, x, labels: cross_entropy(w, x, labels).mean(),
    "negative mean": lambda w, x, labels: -jnp.mean(-cross_entropy(w, x, labels)),
    "one-hot labels": lambda w, x, labels: (sw.nn.one_hot(labels, 8) * (x @ w)).sum(-1).mean(),
    "mapped": lambda w, x, labels: sw.vmap(lambda x, y: jnp.sum(x * y))(x, labels).mean(),
    "penalty": lambda w, x, labels: ((x @ w) ** 2).mean() + 0.1 * (w**2).sum(),
    "penalty alone": lambda w, x, labels: (w**2).sum() / w.shape[0],
    "two means": lambda w, x, labels: 0.5 * (x @ w).mean() - x.sum(1).mean() / 7,
    "jitted": lambda w, x, labels: sw.jit(lambda w, x: (x @ w).mean())(w, x),
    "recomputed": lambda w, x, labels: sw.checkpoint(lambda x: jnp.tanh(x @ w))(x).mean(),
    "product that sums rows": lambda w, x, labels: jnp.vdot(x, x) / len(x),
    "scan over layers": scanned,
    "flattened rows": lambda w, x, labels: ((x @ w).reshape(-1) ** 2).mean(),
    "converted": lambda w, x, labels: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).mean(dtype=jnp.float32),
    "rounded": lambda w, x, labels: (x @ w).mean().astype(jnp.bfloat16).astype(jnp.float32),
    "sums by label": lambda w, x, labels: histogram(jnp.zeros(8), w, x, labels),
    "constants": lambda w, x, labels: ((x @ w) * np.arange(8.0, dtype=np.float32)).mean(),
    "constants that are the number of rows": lambda w, x, labels: (
        (x @ w).sum(0) / np.full(8, len(x), np.float32)
    ).sum(),
    "weights of the batch": lambda w, x, labels: jnp.mean((x @ w).sum(1) * (labels > 0)),
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_the_mean_of_the_means_of_microbatches(name):
    shape = (3, WIDTH) if name == "scan over layers" else (WIDTH, 8)
    check(MEANS[name], shape)
    w, x = RNG.normal(size=shape).astype(np.float32), RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
    labels = RNG.integers(0, 8, ROWS).astype(np.int32)
    parts = [float(MEANS[name](w, x[k::3], labels[k::3])) for k in range(3)]
    np.testing.assert_allclose(
        np.mean(parts), MEANS[name](w, x, labels), rtol=2e-2 if name in ("converted", "rounded") else 1e-5
    )


OTHERS = {
    "sum": (lambda w, x, labels: (x @ w).sum(), "is a sum over the rows"),
    "square of a mean": (lambda w, x, labels: (x @ w).mean() ** 2, "is not linear in a sum over rows"),
    "masked mean": (
        lambda w, x, labels: ((x @ w).sum(1) * (labels > 0)).sum() / (labels > 0).sum(),
        "`div` at .*test_row_mean.py:[0-9]+ in the loss is not linear in a sum over rows",
    ),
    "normalized over the batch": (lambda w, x, labels: ((x - x.mean(0)) @ w).mean(), "depends on all rows"),
    "maximum": (lambda w, x, labels: (x @ w).max(), "does not compute each row from this row alone"),
    "sorted rows": (lambda w, x, labels: (jnp.sort(x, 0) @ w).mean(), "does not compute each row from this row"),
    "neighbours": (lambda w, x, labels: (x * jnp.roll(x, 1, 0)).mean(), "does not compute each row|is not the mean|is"),
    "first rows": (lambda w, x, labels: (x[:3] @ w).mean(), "does not compute each row from this row alone"),
    "one row": (lambda w, x, labels: (x[0] @ w).mean(), "does not compute each row from this row alone"),
    "products of rows": (lambda w, x, labels: (x @ x.T).mean(), "mean|rows"),
    "wrong count": (lambda w, x, labels: (x @ w).sum() / x.shape[0] ** 2, "is not the mean over the rows"),
    "constant count": (lambda w, x, labels: (x @ w).sum() / 8, "is a sum over the rows"),
    "mean and sum": (lambda w, x, labels: (x @ w).mean() + (x @ w).sum(), "means over the same rows"),
    "sums by label and a term": (lambda w, x, labels: histogram(w[0], w, x, labels), "does not compute each row"),
    "mean times an array of the number of rows": (
        lambda w, x, labels: ((x @ w).mean(0) * np.full(8, len(x), np.float32)).sum(),
        "is a sum over the rows",
    ),
    "constants for each row": (
        lambda w, x, labels: ((x @ w).sum(1) * np.arange(len(x))).mean(),
        r"closes over an array of type i32\[6\] for 6 rows, which has one element per row",
    ),
    "random constants": (
        lambda w, x, labels: ((x @ w).mean(0) * np.random.default_rng(len(x)).normal(size=8)).sum(),
        "depends on the number of rows",
    ),
    "random numbers without a row": (
        lambda w, x, labels: sw.random.normal(sw.random.key(0), (len(x),)).mean() * w.sum(),
        "depends on the number of rows",
    ),
    "sum in a loop over time": (
        lambda w, x, labels: sw.lax.scan(lambda h, t: (jnp.tanh(h + t.sum()), None), 0.0, x.T)[0],
        "`scan` at .* does not compute each row",
    ),
    "number of rows": (lambda w, x, labels: (w**2).sum() * x.shape[0], "depends on the number of rows"),
    "row times the number of rows": (lambda w, x, labels: (x * x.shape[0]).mean(), "depends on|or on their number"),
    "another function": (
        lambda w, x, labels: (x @ w).mean() if len(x) == ROWS else jnp.tanh(x @ w).mean(),
        "computes other values for 12 rows than for 6",
    ),
    "random numbers": (
        lambda w, x, labels: (x * sw.random.normal(sw.random.key(0), x.shape)).mean(),
        "does not compute each row from this row alone",
    ),
    "numbered rows": (lambda w, x, labels: (x * jnp.arange(len(x))[:, None]).mean(), "does not compute each row"),
    "product over rows": (lambda w, x, labels: jnp.prod(x) / len(x), "does not compute each row"),
    "mean in a branch": (
        lambda w, x, labels: sw.lax.cond(w[0, 0] > 0, x.mean, lambda: 2 * x.mean()),
        "cond",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_loss_is_rejected(name):
    loss, message = OTHERS[name]
    with pytest.raises(StrategyError, match=message):
        check(loss)


def test_the_loss_of_a_decoder_is_a_mean():
    decoder = Decoder(2, 16, 2, 1, 8, 32, 64)
    leaves, structure = sw.tree_util.tree_flatten(decoder.weights())

    def program(rows):
        types = [*(ArrayType(leaf.shape, leaf.dtype) for leaf in leaves), ArrayType((rows, 9), np.dtype("int32"))]

        def loss(*leaves):
            return [decoder.loss(sw.tree_util.tree_unflatten(structure, leaves[:-1]), leaves[-1])]

        return dce(inline(build(loss, types, "loss")[0]))

    check_row_mean(program(2), program(4), [len(leaves)], "the loss")


MEAN, SUM, SAME, ROWS_OF_ALL = Combination.MEAN, Combination.SUM, Combination.SAME, Combination.ROWS
AUXILIARY = {
    "mean": (lambda w, x, labels: (x @ w).mean(), MEAN),
    "mean of columns": (lambda w, x, labels: (x @ w).mean(0), MEAN),
    "accuracy": (lambda w, x, labels: ((x @ w).argmax(1) == labels).mean(), MEAN),
    "count divided by the rows": (lambda w, x, labels: ((x @ w).argmax(1) == labels).sum() / len(x), MEAN),
    "mean of integers": (lambda w, x, labels: labels.mean(), MEAN),
    "converted count": (lambda w, x, labels: (labels > 0).sum().astype(jnp.float32), SUM),
    "count in another integer dtype": (lambda w, x, labels: (labels > 0).sum().astype(jnp.int16), SUM),
    "mean of complex numbers": (lambda w, x, labels: (x * 1j).mean(), MEAN),
    "complex number of rows": (lambda w, x, labels: jnp.full((2,), 1j * len(x)), SUM),
    "converted to complex numbers": (lambda w, x, labels: x.mean().astype(jnp.complex64), MEAN),
    "correct predictions": (lambda w, x, labels: ((x @ w).argmax(1) == labels).sum(), SUM),
    "counts by label": (lambda w, x, labels: (labels[:, None] == np.arange(8)).sum(0), SUM),
    "number of rows": (lambda w, x, labels: jnp.float32(x.shape[0]), SUM),
    "number of elements": (lambda w, x, labels: jnp.full((2,), x.size), SUM),
    "norm of weights": (lambda w, x, labels: jnp.sqrt((w**2).sum()), SAME),
    "constant": (lambda w, x, labels: jnp.float32(3), SAME),
    "maximum": (lambda w, x, labels: jnp.abs(x @ w).max(), Combination.MAX),
    "maximum of columns": (lambda w, x, labels: (x @ w).max(0, keepdims=True), Combination.MAX),
    "smallest label": (lambda w, x, labels: labels.min(), Combination.MIN),
    "finite": (lambda w, x, labels: jnp.isfinite(x @ w).all(), Combination.MIN),
    "conjunction": (lambda w, x, labels: sw.lax.reduce_and(labels > 0, (0,)), Combination.MIN),
    "a large one": (lambda w, x, labels: (x > 1).any(0), Combination.MAX),
    "logits": (lambda w, x, labels: x @ w, ROWS_OF_ALL),
    "labels": (lambda w, x, labels: labels, ROWS_OF_ALL),
}


@pytest.mark.parametrize("name", AUXILIARY)
def test_auxiliary_results_of_microbatches_combine_to_those_of_the_batch(name):
    function, expected = AUXILIARY[name]
    assert check(lambda w, x, labels: ((x @ w).mean(), function(w, x, labels))) == (expected,)
    w, x = RNG.normal(size=(WIDTH, 8)).astype(np.float32), RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
    labels = RNG.integers(0, 8, ROWS).astype(np.int32)
    parts = np.stack([function(w, x[k::3], labels[k::3]) for k in range(3)])
    combine = {
        MEAN: lambda: parts.mean(0),
        SUM: lambda: parts.sum(0),
        SAME: lambda: parts[0],
        Combination.MAX: lambda: parts.max(0),
        Combination.MIN: lambda: parts.min(0),
        ROWS_OF_ALL: lambda: np.swapaxes(parts, 0, 1).reshape(-1, *parts.shape[2:]),
    }
    np.testing.assert_allclose(combine[expected](), function(w, x, labels), rtol=1e-5)


OTHER_AUXILIARY = {
    "perplexity": (lambda w, x, labels: jnp.exp((x @ w).mean()), "`exp` at .*test_row_mean.py.* not linear"),
    "standard deviation": (lambda w, x, labels: (x @ w).std(), "computes rows from a value that depends on all rows"),
    "product": (lambda w, x, labels: x.prod(), "nor the sum of all, and an auxiliary result depends on it"),
    "conjunction of bits": (lambda w, x, labels: jnp.bitwise_and.reduce(labels), "nor the sum of all"),
    "range": (lambda w, x, labels: x.max() - x.min(), "`sub` at .* reads the maximum over rows"),
    "negative maximum": (lambda w, x, labels: -x.max(), "reads the maximum over rows"),
    "scaled by the maximum": (lambda w, x, labels: x / x.max(), "computes rows from a value that depends on all rows"),
    "transposed rows": (lambda w, x, labels: (x @ w).T, r"f32\[8,6\] .*does not have them as dim 0"),
    "flattened rows": (lambda w, x, labels: (x @ w).ravel(), r"f32\[48\] .*does not have them as dim 0"),
    "root of the number of rows": (lambda w, x, labels: jnp.float32(len(x) ** 0.5), "neither a mean nor a sum"),
    "count times the number of rows": (lambda w, x, labels: (labels > 0).sum() * len(x), "neither a mean nor a sum"),
    "nearly a sum": (lambda w, x, labels: (x @ w).sum() * (1 + 1e-5 * len(x)), "neither a mean nor a sum"),
    "factors of which some are zero": (
        lambda w, x, labels: (x @ w).sum(0) * np.arange(8) / (len(x) * np.arange(8)),
        "depends on the number of rows",
    ),
    "integer mean": (lambda w, x, labels: labels.sum() * (12 // len(x)), "neither a mean nor a sum"),
    "integer quotient": (lambda w, x, labels: labels.sum() // len(x), "is not linear"),
    "truncated mean": (lambda w, x, labels: x.mean().astype(jnp.int32), "`convert` .*is not linear"),
    "sum over half of the rows": (lambda w, x, labels: (x @ w).sum() / len(x) ** 2, "neither a mean nor a sum"),
}


@pytest.mark.parametrize("name", OTHER_AUXILIARY)
def test_other_auxiliary_results_are_rejected(name):
    function, message = OTHER_AUXILIARY[name]
    with pytest.raises(StrategyError, match=f"{message}.*in the step after the gradients"):
        check(lambda w, x, labels: ((x @ w).mean(), function(w, x, labels)))


def test_an_error_in_the_loss_is_not_reported_as_one_of_an_auxiliary_result():
    with pytest.raises(StrategyError, match="For a weighted mean, divide the weights of the batch"):
        check(lambda w, x, labels: ((x @ w).max(), x.mean()))


def masked_attention(w, x, labels):
    """Masks with and without rows, and dims of size 1, which broadcast differently for one row."""
    scores = jnp.einsum("bi,bj->bij", x, x)[:, None] * w[0, :2, None, None]
    mask = (jnp.tri(WIDTH, dtype=bool)[None, None] & (x > 0)[:, None, None, :]) | jnp.eye(WIDTH, dtype=bool)
    return (sw.nn.softmax(jnp.where(mask, scores, -1e9)) @ x[:, None, :, None]).mean()


SINGLE = {
    **{
        name: MEANS[name] for name in ("mean", "cross entropy", "mapped", "penalty", "flattened rows", "one-hot labels")
    },
    "attention": masked_attention,
    "attention in a scan": lambda w, x, labels: sw.lax.scan(
        lambda x, w: (x + masked_attention(w, x, labels) * 0 + x @ w[:, :WIDTH], x.max(1)), x, w[None]
    )[0].mean(),
    "squeezed dim": lambda w, x, labels: (jnp.squeeze(x @ w[:, :1], 1) * labels).mean(),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_row_is_computed_like_several(name):
    two, one = (programs(SINGLE[name], (WIDTH, 8), rows=rows) for rows in (2, 1))
    check_single_row(next(two)[0], next(one)[0], [1, 2], "the loss")


SQUEEZED = {
    "rows": lambda w, x, labels: (x.mean(), jnp.squeeze(x @ w[:, :1])),
    "softmax over the rows": lambda w, x, labels: sw.nn.softmax(jnp.squeeze(x[:, None] @ w), 0).sum(0).mean(),
    "another function": lambda w, x, labels: x.mean() if len(x) > 1 else jnp.tanh(x).mean(),
    "in a scan": lambda w, x, labels: sw.lax.scan(lambda x, w: (x * sw.nn.softmax(jnp.squeeze(x)), None), x, w)[
        0
    ].mean(),
}


@pytest.mark.parametrize("name", SQUEEZED)
def test_a_single_row_that_is_computed_differently(name):
    two, one = (programs(SQUEEZED[name], (WIDTH, 8), rows=rows) for rows in (2, 1))
    with pytest.raises(
        StrategyError, match=r"computes a microbatch of one row in another way .*name the axes of size 1"
    ):
        check_single_row(next(two)[0], next(one)[0], [1, 2], "the loss")
