"""Programs with the content of the code blocks of JAX 0.4's xmap tutorial, in its order, with results from NumPy.

Blocks that only import or annotate types are left out.
"""

from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.experimental.maps import xmap
from shardwise.nn import one_hot, relu
from shardwise.scipy.linalg import expm_frechet
from shardwise.scipy.special import logsumexp
from shardwise.sharding import Mesh

RANDOM = np.random.default_rng(0)
W1, W2 = (RANDOM.normal(size=shape).astype(np.float32) / 8 for shape in ((24, 16), (16, 10)))
IMAGES = RANDOM.normal(size=(8, 24)).astype(np.float32)
LABELS = RANDOM.integers(0, 10, 8)
LOSS_AXES = [["inputs", "hidden", ...], ["hidden", "classes", ...], ["batch", "inputs", ...], ["batch", ...]]


def positional_loss(w1, w2, images, labels):
    logits = jnp.dot(relu(jnp.dot(images, w1)), w2)
    log_probabilities = logits - logsumexp(logits, axis=1, keepdims=True)
    return -(one_hot(labels, 10) * log_probabilities).sum(axis=1).mean(axis=0)


def named_loss(w1, w2, image, label):
    logits = lax.pdot(relu(lax.pdot(image, w1, "inputs")), w2, "hidden")
    log_probabilities = logits - logsumexp(logits, "classes")
    targets = one_hot(label, lax.psum(1, "classes"), axis="classes")
    return -lax.pmean(lax.psum(targets * log_probabilities, "classes"), "batch")


@pytest.mark.parametrize(
    "resources",
    [{}, {"batch": "x"}, {"hidden": "x"}, {"batch": "x", "hidden": "y"}],
    ids=["none", "data", "model", "both"],
)
def test_loss_of_a_classifier(resources):
    """The loss with named axes equals that with positional axes, however it is parallelized."""
    expected = positional_loss(W1, W2, IMAGES, LABELS)
    loss = xmap(named_loss, in_axes=LOSS_AXES, out_axes=[...], axis_resources=resources)
    with Mesh(np.array(sw.local_devices()).reshape((4, 2)), ("x", "y")):
        result = loss(W1, W2, IMAGES, LABELS)
        gradient = sw.grad(loss)(W1, W2, IMAGES, LABELS)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, sw.grad(positional_loss)(W1, W2, IMAGES, LABELS), rtol=1e-4, atol=1e-6)


def test_names_disappear_from_the_shape():
    def check(x):
        assert x.shape == (5,)
        return x

    x = np.arange(100.0).reshape(20, 5)
    np.testing.assert_array_equal(xmap(check, in_axes={0: "batch"}, out_axes={1: "batch"})(x), x.T)


def test_a_name_has_one_size():
    product = xmap(lambda x, y: x * y, in_axes=(["i", ...], ["i", ...]), out_axes=["i", ...])
    with pytest.raises(ValueError, match=r"all dims with the name 'i' must have the same size:\n.* has 5\n.* has 7"):
        product(jnp.arange(5), jnp.arange(7))


@pytest.mark.slow
def test_functions_without_names_are_mapped():
    derivative = partial(expm_frechet, compute_expm=False)
    a, e = (RANDOM.normal(size=(count, 3, 3)).astype(np.float32) / 4 for count in (4, 2))
    pairs = xmap(derivative, in_axes=(["a", ...], ["a", ...]), out_axes=["a", ...])(a[:2], e)
    all_pairs = xmap(derivative, in_axes=(["a", ...], ["e", ...]), out_axes=["a", "e", ...])(a, e)
    for i in range(2):
        np.testing.assert_allclose(pairs[i], derivative(a[i], e[i]), rtol=1e-4, atol=1e-5)
        for j in range(2):
            np.testing.assert_allclose(all_pairs[i, j], derivative(a[i], e[j]), rtol=1e-4, atol=1e-5)


def test_names_broadcast():
    x, y, z = (RANDOM.normal(size=shape) for shape in ((2, 2, 1, 1), (3, 1, 3, 1), (5, 1, 1, 5)))

    def add(x, y, z):
        total = (x + y) + (y + z)
        assert total.shape == (2, 3, 5)
        return total

    result = xmap(add, in_axes=(["a", ...], ["b", ...], ["c", ...]), out_axes=["a", "b", "c", ...])(x, y, z)
    expected = x[:, None, None] + 2 * y[None, :, None] + z[None, None]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_reductions_over_names_and_positions():
    x, y = np.arange(2.0, dtype=np.float32), np.arange(20.0, dtype=np.float32).reshape(5, 4)
    at_once = xmap(lambda x, y: jnp.sum(x + y, axis=(0, "x", "y")), in_axes=({0: "x"}, {1: "y"}), out_axes={})
    in_steps = xmap(
        lambda x, y: jnp.sum(jnp.sum(jnp.sum(x + y, 0), "x"), "y"), in_axes=({0: "x"}, {1: "y"}), out_axes={}
    )
    expected = (x[:, None, None] + y).sum()
    np.testing.assert_allclose(at_once(x, y), expected)
    np.testing.assert_allclose(in_steps(x, y), expected)


def test_einsum_with_names():
    x, y = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((20, 5, 7), (7, 11)))
    product = xmap(
        lambda x, y: jnp.einsum("n{b,k},{k,m}->n{b,m}", x, y),
        in_axes=[{0: "b", 2: "k"}, ["k", "m", ...]],
        out_axes={0: "b", 2: "m"},
    )
    np.testing.assert_allclose(product(x, y), np.einsum("bnk,km->bnm", x, y), rtol=1e-4, atol=1e-5)


def test_collectives():
    reverse = xmap(lambda x: lax.pshuffle(x, "i", list(reversed(range(8)))), in_axes=["i", ...], out_axes=["i", ...])
    np.testing.assert_array_equal(reverse(jnp.arange(8)), np.arange(8)[::-1])


def test_matrix_product_on_a_mesh():
    x = RANDOM.normal(size=(64, 64)).astype(np.float32)
    axes = {"in_axes": ({0: "left"}, {1: "right"}), "out_axes": ["left", "right", ...]}
    local = xmap(jnp.vdot, **axes)(x, x)
    distributed = xmap(jnp.vdot, **axes, axis_resources={"left": "x", "right": "y"})
    with pytest.raises(sw.errors.ShardingError, match="maps 'left' to the mesh axis 'x', but no mesh is in force"):
        distributed(x, x)
    with Mesh(np.array(sw.devices()).reshape((2, 4)), ("x", "y")):
        result = distributed(x, x)
    assert {shard.data.shape for shard in result.addressable_shards} == {(32, 16)}
    np.testing.assert_allclose(result, x @ x, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(local, x @ x, rtol=1e-4, atol=1e-4)


def test_two_names_share_a_mesh_axis_in_different_arrays():
    total = xmap(
        lambda x, y: jnp.sum(x, axis="a") + jnp.sum(y, axis="b"),
        in_axes=(["a", ...], ["b", ...]),
        out_axes=[...],
        axis_resources={"a": "x", "b": "x"},
    )
    with Mesh(np.array(sw.devices()[:4]), ("x",)):
        assert float(total(jnp.ones(4), jnp.ones(12))) == 16
