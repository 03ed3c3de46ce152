"""Compare image with JAX: all methods, sizes, derivatives, and 8 devices with one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise import image
from tests.agreement import Case, gradients_like, mesh_like_one_device, values_like

try:
    import jax
    import jax.image
except ImportError:  # the oracle
    jax = None

X = np.random.default_rng(0).normal(size=(8, 6, 2)).astype(np.float32)
SCALE, SHIFT = np.array([1.5, 0.7], np.float32), np.array([0.3, -1.2], np.float32)
METHODS = ("nearest", "linear", "cubic", "lanczos3", "lanczos5")
CASES = [
    *(Case("resize", (X, (16, 4, 2), method), {"antialias": a}) for method in METHODS for a in (True, False)),
    *(
        Case("resize", (X, (3, 6, 2), method))
        for method in ("bilinear", "bicubic", "triangle", "tricubic", "trilinear")
    ),
    Case("resize", ((X * 10).astype(np.int32), (16, 6, 2), "linear")),
    Case("resize", ((X * 10).astype(np.int32), (16, 3, 2), "nearest")),
    *(
        Case("scale_and_translate", (X, (8, 7, 2), (0, 1), SCALE, SHIFT, method), rtol=1e-4, atol=2e-5)
        for method in METHODS[1:]
    ),
    Case("scale_and_translate", (X, (8, 7, 2), (-2,), SCALE[1:], SHIFT[1:], "cubic"), {"antialias": False}, atol=1e-5),
]


@pytest.mark.jax
def test_like_jax():
    pytest.importorskip("jax")
    values_like(image, jax.image, CASES, jax)


@pytest.mark.slow
@pytest.mark.jax
def test_gradients_like_jax():
    pytest.importorskip("jax")
    smooth = [Case(c.name, c.args, c.keywords, rtol=1e-3, atol=1e-3) for c in CASES[2::3]]
    gradients_like(image, jax.image, smooth, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("sharded_dim", ["first", "last"])
def test_sharded(mesh, sharded_dim):
    mesh_like_one_device(mesh, image, CASES[::3], sharded_dim)


@pytest.mark.slow
@pytest.mark.jax
@settings(max_examples=10, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3),
    method=st.sampled_from(METHODS),
    antialias=st.booleans(),
)
def test_random_shapes_like_jax(sizes, method, antialias):
    pytest.importorskip("jax")
    old, new = zip(*sizes, strict=True)
    x = np.random.default_rng(sum(old)).normal(size=old).astype(np.float32)
    expected = jax.image.resize(x, new, method, antialias)
    np.testing.assert_allclose(image.resize(x, new, method, antialias), expected, atol=1e-5)


@pytest.mark.slow
def test_constant_images_stay_constant():
    for method in METHODS:
        np.testing.assert_allclose(
            image.resize(np.ones((5, 7), np.float32), (9, 3), method), np.ones((9, 3)), rtol=1e-5
        )
    batch = sw.vmap(lambda x: image.resize(x, (4, 2), image.ResizeMethod.LINEAR))(X)
    np.testing.assert_allclose(batch[3], image.resize(X[3], (4, 2), "linear"), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: image.resize(X, (2, 2), "linear"), "shape must have the rank of the image, 3, not 2"),
        (lambda: image.resize(X, (2, 2, 2), "sharp"), "'sharp' is not a method of resize; the methods are nearest"),
        (lambda: image.scale_and_translate(X, X.shape, (0,), SCALE, SHIFT, "linear"), "scale must have one number"),
        (
            lambda: image.scale_and_translate(X, (8, 9, 2), (0,), SCALE[:1], SHIFT[:1], "linear"),
            "dim 1 changes its size",
        ),
        (lambda: image.scale_and_translate(X, X.shape, (0, 1), SCALE, SHIFT, "nearest"), "'nearest' is not supported"),
        (lambda: image.scale_and_translate(X, X.shape, (0, 0), SCALE, SHIFT, "linear"), "repeats"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("method", METHODS)
def test_images_of_size_zero(method):
    for before, after in (((0, 4, 3), (0, 8, 3)), ((5, 4, 3), (0, 8, 3)), ((5, 4, 0), (3, 8, 0))):
        assert image.resize(np.zeros(before, np.float32), after, method).shape == after
    with pytest.raises(ValueError, match=r"dim 0 of f32\[0,4\] is empty, and cannot be resized to 2 pixels"):
        image.resize(np.zeros((0, 4), np.float32), (2, 8), method)
    moved = image.scale_and_translate(np.zeros((0, 4), np.float32), (0, 8), (1,), np.ones(1), np.ones(1), "linear")
    assert moved.shape == (0, 8)
