"""Random numbers depend neither on the sharding of their array nor on the number of devices."""

import math

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import random
from shardwise.sharding import NamedSharding, PartitionSpec

A = np.array([0.3, 1.0, 40.0], np.float32)

ONE_DIM = [(), ("data",), ("model",), (("data", "model"),), (("model", "data"),)]
TWO_DIMS = [
    *((rows, columns) for rows in (None, "data") for columns in (None, "model")),
    ("model", "data"),
    (("data", "model"), None),
    (None, ("data", "model")),
]


def local_of(function, *args):
    return sw.explain(function)(*args).stages.local


def collectives(local):
    return [equation.op.name for equation in local.collectives()]


def numbers(key, rank):
    even, uneven = ((16,), (13,)) if rank == 1 else ((8, 6), (5, 7))
    return [random.bits(key, even), random.bits(key, uneven), random.uniform(key, uneven), random.normal(key, uneven)]


@pytest.fixture(scope="module", params=[1, 2], ids=["vector", "matrix"])
def on_one_device(request):
    """The rank of the samples, the function that samples them, and its results on one device."""

    def sample(key):
        return numbers(key, request.param)

    return request.param, sample, sw.jit(sample)(random.PRNGKey(3))


@pytest.mark.table(default=1)
def test_sharded_samples_match_one_device(mesh, on_one_device):
    """Sampling with a sharding, even or uneven, needs no collective. In jax#40232, bits depended on the shard count."""
    rank, sample, expected_samples = on_one_device
    key = random.PRNGKey(3)
    for spec in ONE_DIM if rank == 1 else TWO_DIMS:
        sharded = sw.jit(sample, out_shardings=NamedSharding(mesh, PartitionSpec(*spec)))
        for expected, samples in zip(expected_samples, sharded(key), strict=True):
            np.testing.assert_array_equal(samples, expected)
            assert samples.sharding == NamedSharding(mesh, PartitionSpec(*spec))
        if spec != (("model", "data"),):  # samples are sharded in the order of the mesh axes, then resharded
            assert collectives(local_of(sharded, key)) == []


def test_a_sharded_batch_of_keys_needs_no_communication(mesh):
    """Each device samples from the keys of its own shard, and splits them."""
    sharding = NamedSharding(mesh, PartitionSpec(("data", "model")))
    keys = random.split(random.key(0), 11)
    placed = sw.device_put(keys, sharding)
    sample = sw.jit(sw.vmap(lambda key: random.normal(key, (3,))))
    np.testing.assert_array_equal(sample(placed), sample(keys))
    assert collectives(local_of(sample, placed)) == []
    split = sw.jit(sw.vmap(random.split))
    new_keys = split(placed)
    assert new_keys.shape == (11, 2)
    np.testing.assert_array_equal(random.key_data(new_keys), random.key_data(split(keys)))
    shards = [random.key_data(shard.data) for shard in placed.addressable_shards if shard.data.size]
    np.testing.assert_array_equal(np.concatenate(shards), random.key_data(keys))


def test_dropout_under_remat_uses_equal_masks_in_both_passes(mesh):
    """jax#17982: with remat, the backward pass must use the random numbers of the forward pass, sharded or not."""
    x = np.linspace(-1, 1, 13 * 6).astype(np.float32).reshape(13, 6)

    def layer(key, x):
        kept = random.bernoulli(key, 0.5, x.shape)
        return jnp.where(kept, jnp.sin(x) * x, 0.0)

    def gradient(wrap):
        def total(x, key):
            for subkey in random.split(key, 3):
                x = wrap(layer)(subkey, x)
            return (x * x).sum()

        return sw.jit(sw.grad(total))

    key = random.key(4)
    expected = gradient(lambda f: f)(x, key)
    assert 0 < math.prod(expected.shape) - np.count_nonzero(expected) < math.prod(expected.shape)
    np.testing.assert_allclose(gradient(sw.remat)(x, key), expected, rtol=1e-6)
    sharded = sw.device_put(x, NamedSharding(mesh, PartitionSpec("data", "model")))
    np.testing.assert_allclose(gradient(sw.remat)(sharded, key), expected, rtol=1e-6)


@pytest.mark.slow
def test_samples_in_scan_and_vmap_match_single_calls():
    key = random.PRNGKey(9)

    def step(key, _):
        key, subkey = random.split(key)
        return key, random.normal(subkey, (2,))

    def one(key, a):
        return random.uniform(key, (3,)), random.pareto(key, a, (2,))

    def unrolled(key, a):
        rows, batch = [], random.split(key, 3)
        for _ in range(3):
            key, row = step(key, None)
            rows.append(row)
        return [jnp.stack(rows), *map(jnp.stack, zip(*(one(k, x) for k, x in zip(batch, a, strict=True)), strict=True))]

    def transformed(key, a):
        return [sw.lax.scan(step, key, None, length=3)[1], *sw.vmap(one)(random.split(key, 3), a)]

    for samples, expected in zip(sw.jit(transformed)(key, A), sw.jit(unrolled)(key, A), strict=True):
        np.testing.assert_array_equal(samples, expected)
