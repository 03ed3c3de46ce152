"""check_linear_cotangents: backward rules that may run for each microbatch, and rules that may not."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import nn, parallel
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import build
from shardwise.errors import StrategyError
from shardwise.models import Decoder
from shardwise.parallel.linear_cotangents import check_linear_cotangents


def with_backward(rule):
    """The identity, with a backward rule of the operand and the cotangent."""
    function = sw.custom_vjp(lambda x: x)
    function.defvjp(lambda x: (x, x), lambda x, ct: (rule(x, ct),))
    return function


def check(function, *shapes):
    types = [ArrayType(shape, np.dtype("float32")) for shape in shapes]
    check_linear_cotangents(build(lambda *args: [function(*args)], types, "loss")[0], "the loss")


def accumulated(x, ct):
    return sw.lax.fori_loop(0, 3, lambda _, total: total + jnp.sin(x) * ct, jnp.zeros_like(x))


LINEAR = {
    "identity": lambda x, ct: ct,
    "scaled": lambda x, ct: -0.5 * ct * jnp.tanh(x),
    "masked": lambda x, ct: jnp.where(x > 0, ct, 0.0),
    "transposed": lambda x, ct: (ct.T @ x).T,
    "reversed": lambda x, ct: ct[::-1],
    "lower precision": lambda x, ct: ct.astype(jnp.bfloat16).astype(jnp.float32),
    "zeros": lambda x, ct: jnp.zeros_like(x),
    "summed in a loop": accumulated,
    "of a branch": lambda x, ct: sw.lax.cond(x[0, 0] > 0, lambda: ct, lambda: 2 * ct),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_rules(name):
    check(lambda x: with_backward(LINEAR[name])(x).mean(), (4, 4))


OTHERS = {
    "clipped": (lambda x, ct: jnp.clip(ct, -1, 1), "max|min|clip|clamp"),
    "normalized": (lambda x, ct: ct / jnp.linalg.norm(ct), "mul|square|dot|pow"),
    "sign": (lambda x, ct: jnp.sign(ct), "sign"),
    "shifted": (lambda x, ct: ct + x, "add"),
    "rounded": (lambda x, ct: ct.astype(jnp.int32).astype(jnp.float32), "convert"),
    "in a loop": (lambda x, ct: sw.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y), ct), "tanh"),
    "of a branch": (lambda x, ct: sw.lax.cond(x[0, 0] > 0, lambda: ct, lambda: jnp.tanh(ct)), "tanh"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_rules_are_rejected(name):
    rule, op = OTHERS[name]
    with pytest.raises(StrategyError, match=rf"the loss calls at .*, is not linear: `.*({op})"):
        check(lambda x: with_backward(rule)(x).mean(), (4, 4))


LIBRARY = {
    "attention": (lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True), [(2, 16, 2, 8)] * 3),
    "layer norm": (nn.standardize, [(4, 8)]),
    "cross entropy": (
        lambda hidden, table: parallel.cross_entropy(hidden, table, jnp.arange(4)),
        [(4, 8), (32, 8)],
    ),
    "logsumexp": (lambda x: nn.logsumexp(x, 1), [(4, 8)]),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_functions_of_the_library(name):
    function, shapes = LIBRARY[name]
    check(lambda *args: function(*args).mean(), *shapes)


def test_a_decoder():
    decoder = Decoder(2, 16, 2, 1, 8, 32, 64)
    leaves, structure = sw.tree_util.tree_flatten(decoder.weights())
    types = [*(ArrayType(leaf.shape, leaf.dtype) for leaf in leaves), ArrayType((2, 9), np.dtype("int32"))]

    def loss(*leaves):
        return [decoder.loss(sw.tree_util.tree_unflatten(structure, leaves[:-1]), leaves[-1])]

    check_linear_cotangents(build(loss, types, "loss")[0], "the loss")
