"""check_independent_rules: derivative rules that may run for each microbatch, and rules that may not."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, nn, parallel
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import build
from shardwise.errors import StrategyError
from shardwise.models import Decoder
from shardwise.parallel.independent_rules import check_independent_rules

ROWS = 4, 12


def check(function, *shapes):
    """Check a function of arrays whose shapes have None for the rows."""

    def program(count):
        types = [
            ArrayType(tuple(count if size is None else size for size in shape), np.dtype("float32")) for shape in shapes
        ]
        return build(lambda *args: [function(*args)], types, "loss")[0]

    check_independent_rules(*map(program, ROWS), ROWS, "the loss")


def with_backward(rule):
    """A product with a backward rule of the operands and the cotangent."""
    function = sw.custom_vjp(lambda x, w: x @ w)
    function.defvjp(lambda x, w: (x @ w, (x, w)), lambda residuals, ct: rule(*residuals, ct))
    return lambda x, w: function(x, w).mean()


def with_tangent(rule):
    """The identity, with a rule of the operand and its tangent."""
    function = sw.custom_jvp(lambda x: x)
    function.defjvp(lambda primals, tangents: (primals[0], rule(*primals, *tangents)))
    return lambda x, w: (function(x) @ w).mean()


INDEPENDENT = {
    "product": with_backward(lambda x, w, ct: (ct @ w.T, x.T @ ct)),
    "scaled rows": with_backward(lambda x, w, ct: (ct @ w.T * x.max(1, keepdims=True), x.T @ ct / 8)),
    "weight gradient from a normalized weight": with_backward(
        lambda x, w, ct: (ct @ w.T / w.max(), x.T @ ct * w.max())
    ),
    "loop over columns": with_backward(
        lambda x, w, ct: (lax.fori_loop(0, 3, lambda _, y: jnp.tanh(x) * y, ct @ w.T), x.T @ ct)
    ),
    "tangent": with_tangent(lambda x, t: t * jnp.cos(x)),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_rules(name):
    check(INDEPENDENT[name], (None, 8), (8, 8))


OTHERS = {
    "mean of the rows": (with_backward(lambda x, w, ct: (ct @ w.T * x.mean(), x.T @ ct)), "mixes rows|number of rows"),
    "sum of the rows": (
        with_backward(lambda x, w, ct: (ct @ w.T * x.sum(), x.T @ ct)),
        "mixes rows in `(reduce_)?sum`",
    ),
    "number of rows": (with_backward(lambda x, w, ct: (ct @ w.T * len(x), x.T @ ct)), "depends on the number of rows"),
    "divided weight gradient": (
        with_backward(lambda x, w, ct: (ct @ w.T, x.T @ ct / len(x))),
        "depends on the number of rows",
    ),
    "centred cotangent": (
        with_backward(lambda x, w, ct: (ct @ w.T - (ct @ w.T).sum(0), x.T @ ct)),
        "computes rows from a sum over rows",
    ),
    "reversed rows": (with_backward(lambda x, w, ct: (ct[::-1] @ w.T, x.T @ ct)), "mixes rows"),
    "largest row": (with_backward(lambda x, w, ct: (ct @ w.T, x.T @ ct * x.max())), "mixes rows"),
    "tangent of all rows": (with_tangent(lambda x, t: t * x.sum()), "mixes rows"),
    "tangent of the number of rows": (with_tangent(lambda x, t: t * len(x)), "depends on the number of rows"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_rules_are_rejected(name):
    function, message = OTHERS[name]
    with pytest.raises(StrategyError, match=rf"the derivative rule of .*, which the loss calls at .*, .*({message})"):
        check(function, (None, 8), (8, 8))


LIBRARY = {
    "attention": (
        lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True).mean(),
        [(None, 16, 2, 8)] * 3,
    ),
    "layer norm": (lambda x: nn.standardize(x).mean(), [(None, 8)]),
    "cross entropy": (
        lambda hidden, table: parallel.cross_entropy(hidden, table, jnp.zeros(len(hidden), jnp.int32)).mean(),
        [(None, 8), (32, 8)],
    ),
    "logsumexp": (lambda x: nn.logsumexp(x, 1).mean(), [(None, 8)]),
    "activations": (lambda x: nn.relu6(nn.silu(nn.gelu(nn.relu(x)))).mean(), [(None, 8)]),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_functions_of_the_library(name):
    function, shapes = LIBRARY[name]
    check(function, *shapes)


def test_a_decoder():
    decoder = Decoder(2, 16, 2, 1, 8, 32, 64)
    leaves, structure = sw.tree_util.tree_flatten(decoder.weights())

    def program(count):
        types = [*(ArrayType(leaf.shape, leaf.dtype) for leaf in leaves), ArrayType((count, 9), np.dtype("int32"))]

        def loss(*leaves):
            return [decoder.loss(sw.tree_util.tree_unflatten(structure, leaves[:-1]), leaves[-1])]

        return build(loss, types, "loss")[0]

    check_independent_rules(*map(program, ROWS), ROWS, "the loss")
