"""Products of 16-bit floats that are padded for NVIDIA GPUs. Padded modules run on the CPU too."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import stablehlo
from shardwise.compiler.ops.contract import aligned_dot

BF16 = np.dtype(ml_dtypes.bfloat16)


def module(subscripts, *shapes, dtype=BF16, platform="cuda"):
    types = [sw.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return (
        sw.jit(lambda x, y: jnp.einsum(subscripts, x, y)).trace(*types).lower(lowering_platforms=(platform,)).as_text()
    )


def test_the_dims_of_rows_are_padded():
    text = module("ij,kj->ik", (1024, 768), (50257, 768))
    assert "tensor<50264x768xbf16>" in text and "-> tensor<1024x50264xbf16>" in text
    text = module("ij,jk->ik", (1024, 50257), (50257, 768))  # the contracted dim is a row of one operand
    assert "tensor<1024x50264xbf16>" in text and "tensor<50264x768xbf16>" in text
    text = module("ji,jk->ik", (1023, 768), (1023, 640))  # no row has 1023 elements
    assert "stablehlo.pad" not in text


@pytest.mark.parametrize(
    ("shapes", "keywords"),
    [
        (((1024, 768), (768, 50257)), {"platform": "cpu"}),
        (((1024, 768), (768, 50257)), {"platform": "rocm"}),
        (((1024, 768), (768, 50257)), {"dtype": np.float32}),
        (((1024, 768), (768, 50257)), {"dtype": np.int16}),
        (((1024, 768), (768, 50256)), {}),
        (((1024, 768), (768, 257)), {}),
        (((1024, 8), (8, 50257)), {}),
    ],
    ids=["cpu", "rocm", "float32", "int16", "aligned", "few columns", "few contracted elements"],
)
def test_other_products_are_not_padded(shapes, keywords):
    assert "stablehlo.pad" not in module("ij,jk->ik", *shapes, **keywords)


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", ((9, 13), (13, 11))),
        ("ji,kj->ik", ((13, 9), (11, 13))),
        ("bij,bjk->bik", ((3, 9, 13), (3, 13, 11))),
        ("ibj,jkb->bik", ((9, 3, 13), (13, 11, 3))),
        ("iabj,abkj->ik", ((9, 2, 3, 13), (2, 3, 11, 13))),
    ],
)
def test_padded_products_are_equal(monkeypatch, subscripts, shapes):
    monkeypatch.setattr(aligned_dot, "MIN_EXTENT", 1)
    text = module(subscripts, *shapes)
    assert "stablehlo.pad" in text
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-4, 5, shape).astype(BF16) for shape in shapes)
    result = sw.jit(stablehlo.load(text))(x, y)
    expected = np.einsum(subscripts, x.astype(np.float32), y.astype(np.float32))
    np.testing.assert_array_equal(np.asarray(result, np.float32), expected)  # sums of small integers are exact
