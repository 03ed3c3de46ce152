"""Random numbers do not depend on how their array is laid out, nor on how many devices there are."""

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
    """The rank of arrays, a function that draws them, and what it draws on one device."""

    def draw(key):
        return numbers(key, request.param)

    return request.param, draw, sw.jit(draw)(random.PRNGKey(3))


def test_bits_are_those_of_one_device(mesh, on_one_device):
    """jax#40232: bits depended on the number of shards. Even dims and uneven ones, and nothing is exchanged."""
    rank, draw, here = on_one_device
    key = random.PRNGKey(3)
    for spec in ONE_DIM if rank == 1 else TWO_DIMS:
        there = sw.jit(draw, out_shardings=NamedSharding(mesh, PartitionSpec(*spec)))
        for wanted, found in zip(here, there(key), strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert found.sharding == NamedSharding(mesh, PartitionSpec(*spec))
        if spec != (("model", "data"),):  # one dim is cut first along the mesh's first axis, and then turned round
            assert collectives(local_of(there, key)) == []


def test_each_device_makes_its_own_piece_alone(mesh):
    """The local program draws an eighth, of 13 rows two each, and has no collective and no slice of a whole."""
    rows = NamedSharding(mesh, PartitionSpec(("data", "model")))
    local = local_of(sw.jit(lambda key: random.uniform(key, (13, 3)), out_shardings=rows), random.PRNGKey(0))
    drawn = [
        equation.outputs[0].type.shape for equation in local.program.equations if equation.op.name == "random_bits"
    ]
    assert drawn == [(2, 3)]
    assert collectives(local) == []


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_any_number_of_devices(count):
    mesh = sw.make_mesh((count,), ("x",), devices=sw.devices()[:count])
    draw = sw.jit(lambda key: random.bits(key, (11, 2)), out_shardings=NamedSharding(mesh, PartitionSpec("x")))
    np.testing.assert_array_equal(draw(random.PRNGKey(1)), random.bits(random.PRNGKey(1), (11, 2)))


def test_out_sharding(mesh):
    rows = NamedSharding(mesh, PartitionSpec("data", "model"))
    found = random.normal(random.key(0), (5, 6), out_sharding=rows)
    assert found.sharding == rows
    np.testing.assert_array_equal(found, random.normal(random.key(0), (5, 6)))


@pytest.mark.slow
def test_samplers_that_loop(mesh):
    """A device loops over its own elements: gamma draws exchange nothing, counts one number for the whole draw."""
    cut = NamedSharding(mesh, PartitionSpec(("data", "model")))
    key, size = random.PRNGKey(5), 1003

    def draw(key):
        return [
            random.gamma(key, 0.7, (size,)),
            random.poisson(key, 30.0, (size,)),
            random.binomial(key, 99, 0.4, (size,)),
        ]

    there = sw.jit(draw, out_shardings=cut)
    for wanted, found in zip(sw.jit(draw)(key), there(key), strict=True):
        np.testing.assert_array_equal(found, wanted)
    local = local_of(there, key)
    assert collectives(local) == ["all_reduce"] * 2
    assert {equation.outputs[0].type.size for equation in local.collectives()} == {1}
    assert all(equation in local.program.equations for equation in local.collectives())  # none in a loop


def test_permutation_and_choice(mesh):
    cut = NamedSharding(mesh, PartitionSpec("data"))
    key, x = random.PRNGKey(2), np.arange(26, dtype=np.float32).reshape(13, 2)

    def numbers(key, x):
        return [
            random.permutation(key, x),
            random.permutation(key, x, independent=True),
            random.choice(key, x, (5,)),
            random.categorical(key, x, shape=(13,)),
        ]

    run = sw.jit(numbers)
    for wanted, found in zip(run(key, x), run(key, sw.device_put(x, cut)), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_keys_on_many_devices(mesh):
    """A batch of keys that is cut: each device draws for its own, and splits its own."""
    cut = NamedSharding(mesh, PartitionSpec(("data", "model")))
    keys = random.split(random.key(0), 11)
    placed = sw.device_put(keys, cut)
    draw = sw.jit(sw.vmap(lambda key: random.normal(key, (3,))))
    np.testing.assert_array_equal(draw(placed), draw(keys))
    assert collectives(local_of(draw, placed)) == []
    split = sw.jit(sw.vmap(random.split))
    found = split(placed)
    assert found.shape == (11, 2)
    np.testing.assert_array_equal(random.key_data(found), random.key_data(split(keys)))
    parts = [random.key_data(shard.data) for shard in placed.addressable_shards if shard.data.size]
    np.testing.assert_array_equal(np.concatenate(parts), random.key_data(keys))


def test_dropout_under_remat(mesh):
    """jax#17982: with remat, the backward pass must see the random numbers of the forward pass, cut or not."""
    x = np.linspace(-1, 1, 13 * 6).astype(np.float32).reshape(13, 6)

    def layer(key, x):
        kept = random.bernoulli(key, 0.5, x.shape)
        return jnp.where(kept, jnp.sin(x) * x, 0.0)

    def loss(wrap):
        def total(x, key):
            for part in random.split(key, 3):
                x = wrap(layer)(part, x)
            return (x * x).sum()

        return sw.jit(sw.grad(total))

    key = random.key(4)
    plain = loss(lambda f: f)(x, key)
    assert 0 < math.prod(plain.shape) - np.count_nonzero(plain) < math.prod(plain.shape)
    np.testing.assert_allclose(loss(sw.remat)(x, key), plain, rtol=1e-6)
    rows = sw.device_put(x, NamedSharding(mesh, PartitionSpec("data", "model")))
    np.testing.assert_allclose(loss(sw.remat)(rows, key), plain, rtol=1e-6)


def test_loops_and_maps():
    """In scan and vmap a key gives what it gives alone."""
    key = random.PRNGKey(9)

    def step(key, _):
        key, here = random.split(key)
        return key, random.normal(here, (2,))

    def one(key, a):
        return random.uniform(key, (3,)), random.pareto(key, a, (2,))

    def alone(key, a):
        rows, batch = [], random.split(key, 3)
        for _ in range(3):
            key, row = step(key, None)
            rows.append(row)
        return [jnp.stack(rows), *map(jnp.stack, zip(*(one(k, x) for k, x in zip(batch, a, strict=True)), strict=True))]

    def together(key, a):
        return [sw.lax.scan(step, key, None, length=3)[1], *sw.vmap(one)(random.split(key, 3), a)]

    for found, wanted in zip(sw.jit(together)(key, A), sw.jit(alone)(key, A), strict=True):
        np.testing.assert_array_equal(found, wanted)
