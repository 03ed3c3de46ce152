"""explain names fused projections whose parts are across the borders of shards, and what they cost."""

import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import PartitionSpec as P
from tests.explain.arguments import shaped

ROWS, SIZE, HEADS = 64, 512, 8


def attention(q, k, v):
    q, k, v = (part.reshape(ROWS, HEADS, -1).transpose(1, 0, 2) for part in (q, k, v))
    return (sw.nn.softmax(q @ k.transpose(0, 2, 1)) @ v).transpose(1, 0, 2).reshape(ROWS, SIZE)


def fused(params, x):
    product = x @ params["qkv"] + params["bias"]
    return attention(*jnp.split(product, 3, -1)) @ params["out"]


def apart(params, x):
    parts = [x @ params["qkv"][:, part] + params["bias"][part] for part in range(3)]
    return attention(*parts) @ params["out"]


@pytest.fixture
def eight():
    return sw.make_mesh((8,), ("model",))


def explained(function, mesh, weight, bias, **options):
    params = {"qkv": weight, "bias": bias, "out": shaped(mesh, P("model"), SIZE, SIZE)}
    return sw.explain(function, hardware="h100", **options)(params, shaped(mesh, P(), ROWS, SIZE))


def test_a_fused_projection_is_named_with_the_line_and_the_bytes(eight):
    weight, bias = shaped(eight, P(None, "model"), SIZE, 3 * SIZE), shaped(eight, P("model"), 3 * SIZE)
    found = explained(fused, eight, weight, bias)
    (parts,) = found.fused_parts
    assert parts.names == ("`params['qkv']`",) and parts.dim == 1 and parts.sizes == (SIZE,) * 3
    line = found.fused_parts[0].source
    at_line = [row for row in found.plan.collectives if (row.source.file, row.source.line) == (line.file, line.line)]
    assert parts.sent == pytest.approx(sum(row.sent for row in at_line if "reduce" not in row.kind))
    text = str(found)
    assert "`params['qkv']` is a fused projection of 3 parts along dim 1" in text
    assert "Store the parts as [..., 3, 512, ...], sharded along the last of these dims" in text
    assert not explained(fused, eight, weight, bias, advise=False).fused_parts


def test_parts_that_are_stored_apart_are_not_named_and_send_less(eight):
    weight, bias = shaped(eight, P(None, None, "model"), SIZE, 3, SIZE), shaped(eight, P(None, "model"), 3, SIZE)
    found = explained(apart, eight, weight, bias)
    assert not found.fused_parts
    whole = explained(fused, eight, shaped(eight, P(None, "model"), SIZE, 3 * SIZE), shaped(eight, P(), 3 * SIZE))
    assert found.wire_bytes < whole.wire_bytes


def test_other_slices_are_not_named(eight):
    def halves(x):  # an argument, not a product
        return x[:, : SIZE // 2] * x[:, SIZE // 2 :]

    def some(w, x):  # not all of the product
        return (x @ w)[:, :SIZE].sum()

    weight, x = shaped(eight, P(None, "model"), SIZE, 3 * SIZE), shaped(eight, P(None, "model"), ROWS, SIZE)
    assert not sw.explain(halves)(x).fused_parts
    assert not sw.explain(some)(weight, x).fused_parts
    assert not sw.explain(fused)(
        {
            "qkv": shaped(eight, P(), SIZE, 3 * SIZE),
            "bias": shaped(eight, P(), 3 * SIZE),
            "out": shaped(eight, P(), SIZE, SIZE),
        },
        shaped(eight, P("model"), ROWS, SIZE),
    ).fused_parts
