"""Keys of the implementations rbg and unsafe_rbg: JAX's bits, for every sharding."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import random
from shardwise.compiler.samplers.philox import PhiloxBits

IMPLS = ("rbg", "unsafe_rbg")
RATES = np.array([0.5, 3, 20], np.float32)

# Functions of a module `random` and a key.
SAMPLES = {
    "bits": lambda r, k: r.bits(k, (3, 5)),
    "bits8": lambda r, k: r.bits(k, (37,), "uint8"),
    "bits16": lambda r, k: r.bits(k, (37,), "uint16"),
    "split": lambda r, k: r.key_data(r.split(k, 3)),
    "split shape": lambda r, k: r.key_data(r.split(k, (2, 3))),
    "fold_in": lambda r, k: r.key_data(r.fold_in(k, 5)),
    "uniform": lambda r, k: r.uniform(k, (7,)),
    "normal": lambda r, k: r.normal(k, (7,), "bfloat16").astype("float32"),
    "randint": lambda r, k: r.randint(k, (9,), -5, 17),
    "permutation": lambda r, k: r.permutation(k, 10),
    "categorical": lambda r, k: r.categorical(k, RATES, shape=(9,)),
    "gumbel": lambda r, k: r.gumbel(k, (5,)),
    "gamma": lambda r, k: r.gamma(k, RATES, (4, 3)),
    "beta": lambda r, k: r.beta(k, RATES, 2.0),
    "orthogonal": lambda r, k: r.orthogonal(k, 3),
}

# Functions of a package and a key.
MAPPED = {
    "bits": lambda m, k: m.vmap(lambda k: m.random.bits(k, (5,)))(m.random.split(k, 3)),
    "nested": lambda m, k: m.vmap(m.vmap(lambda k: m.random.bits(k, (5,))))(m.random.split(k, (2, 3))),
    "split": lambda m, k: m.vmap(lambda k: m.random.key_data(m.random.split(k)))(m.random.split(k, 3)),
    "fold_in data": lambda m, k: m.vmap(lambda i: m.random.key_data(m.random.fold_in(k, i)))(np.arange(3)),
    "fold_in key": lambda m, k: m.vmap(lambda k: m.random.key_data(m.random.fold_in(k, 3)))(m.random.split(k, 3)),
    "gamma": lambda m, k: m.vmap(lambda k: m.random.gamma(k, 2.0, (3,)))(m.random.split(k, 3)),
    "scan": lambda m, k: m.lax.map(lambda k: m.random.normal(k, (3,)), m.random.split(k, 4)),
}


@pytest.mark.slow
@pytest.mark.jax
@pytest.mark.table(default=1)
@pytest.mark.parametrize("impl", IMPLS)
def test_samples_match_jax(impl):
    jax = pytest.importorskip("jax")
    ours, theirs = random.key(7, impl=impl), jax.random.key(7, impl=impl)
    assert repr(ours) == repr(theirs)
    for name, sample in SAMPLES.items():
        x, y = np.asarray(sample(random, ours)), np.asarray(sample(jax.random, theirs))
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize("impl", IMPLS)
def test_mapped_keys_match_jax(impl):
    """Under vmap the bits come from the first key."""
    jax = pytest.importorskip("jax")
    ours, theirs = random.key(7, impl=impl), jax.random.key(7, impl=impl)
    for name, sample in MAPPED.items():
        x, y = np.asarray(sample(sw, ours)), np.asarray(sample(jax, theirs))
        np.testing.assert_allclose(x, y, rtol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("impl", IMPLS)
def test_samples_do_not_depend_on_sharding(mesh, impl):
    key = random.key(3, impl=impl)

    def sample(key):
        return [
            random.bits(key, (13, 6)),
            random.bits(key, (13, 6), "uint8"),
            random.key_data(random.split(key, (13, 6)))[..., 1],
            random.gamma(key, 0.7, (13, 6)),
            random.poisson(key, 30.0, (13, 6)),
            random.binomial(key, 9, 0.3, (13, 6)),
        ]

    expected = sw.jit(sample)(key)
    for spec in (sw.P("data"), sw.P(None, "model"), sw.P("model", "data")):
        results = sw.jit(sample, out_shardings=sw.NamedSharding(mesh, spec))(key)
        for x, y in zip(results, expected, strict=True):
            assert x.sharding.spec == spec
            np.testing.assert_array_equal(x, y)


def test_a_sharded_result_is_generated_in_shards(mesh):
    sharding = sw.NamedSharding(mesh, sw.P("data", "model"))
    generate = sw.jit(lambda: random.bits(random.key(0, impl="rbg"), (1024, 512)), out_shardings=sharding)
    ops = [equation.op for equation in sw.explain(generate)().stages.local.program.equations]
    (shard,) = [op for op in ops if isinstance(op, PhiloxBits)]
    assert shard.shape == (1024 // mesh.shape["data"], 512 // mesh.shape["model"])


def test_numpy_reference_equals_the_device():
    words = np.array([[11, 22, 0xFFFFFFFE, 0xFFFFFFFF], [0xFFFFFFFF, 7, 0xFFFFFFFF, 0xFFFFFFFF]], np.uint32)
    first = np.array([0, 5], np.uint64)
    for width in (8, 16, 32, 64):
        op = PhiloxBits((3, 7), (7, 1), width, 21)
        with sw.enable_x64(True):
            np.testing.assert_array_equal(
                op(sw.numpy.asarray(words), sw.numpy.asarray(first)), op.reference(words, first)
            )


@pytest.mark.slow
def test_poisson_and_binomial_accept_rbg_keys():
    """JAX raises NotImplementedError for these."""
    key = random.key(0, impl="rbg")
    counts = np.asarray(random.poisson(key, RATES[:, None], (3, 4000)))
    np.testing.assert_allclose(counts.mean(1), RATES, rtol=0.1)
    np.testing.assert_allclose(np.asarray(random.binomial(key, 50, 0.3, (4000,))).mean(), 15, rtol=0.05)


def test_default_implementation():
    with sw.default_prng_impl("rbg"):
        raw = random.PRNGKey(5)
        assert raw.shape == (4,) and str(random.key(5).dtype) == "key<rbg>"
        assert random.key_impl(raw) == "rbg"
        np.testing.assert_array_equal(random.normal(raw, (3,)), random.normal(random.key(5), (3,)))
        assert random.split(raw).shape == (2, 4)
    assert random.PRNGKey(5).shape == (2,)
    np.testing.assert_array_equal(random.PRNGKey(5, impl="unsafe_rbg"), raw)
    with pytest.raises(TypeError, match="bits: key must be a PRNG key"):
        random.bits(raw)
    with pytest.raises(ValueError, match="'default_prng_impl' must be one of 'threefry2x32', 'rbg'"):
        sw.config.update("jax_default_prng_impl", "mersenne")


def test_keys_of_two_implementations_do_not_mix():
    with pytest.raises(sw.errors.TypePromotionError, match="key<rbg>"):
        sw.numpy.stack([random.key(0), random.key(0, impl="rbg")])
