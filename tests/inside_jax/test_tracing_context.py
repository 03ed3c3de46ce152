"""tracing_context: functions of JAX are planned without clients of Shardwise on accelerators."""

import numpy as np
import pytest

from shardwise.base.config import config
from shardwise.runtime import client
from shardwise.runtime.client import default_backend
from tests.inside_jax.primitives.cases import inside_jax, jax, jnp, place

tracing_context = pytest.importorskip("shardwise.inside_jax.tracing_context").tracing_context

pytestmark = pytest.mark.jax

X = np.arange(32, dtype=np.float32).reshape(8, 4)
TABLE = np.arange(4, dtype=np.float32)

add_table_p = jax.extend.core.Primitive("test_add_table")  # its implementation closes over an array
add_table_p.def_abstract_eval(lambda x: x)
add_table_p.def_impl(lambda x: x + jnp.asarray(TABLE))


@pytest.fixture
def used_platforms(monkeypatch):
    """The platforms whose clients are asked for; None is the default platform, which would be the GPU."""
    platforms = set()
    get = client.clients.get

    def record(platform=None):
        platforms.add(platform)
        return get(platform)

    monkeypatch.setattr(client.clients, "get", record)
    return platforms


FUNCTIONS = {
    "a captured array": lambda x: x + TABLE,
    "a captured array in a loop": lambda x: jax.lax.scan(lambda c, _: (c * TABLE, None), x, None, length=2)[0],
    "a captured array in a Python implementation": add_table_p.bind,
    "linear algebra": lambda x: jnp.linalg.svd(x, compute_uv=False),
    "random numbers": lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    "cumulative sums": lambda x: jnp.cumsum(x, 0),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_planning_asks_for_no_client_but_that_of_the_cpu(used_platforms, function):
    expected = function(X)
    for x in (X, place(X)):
        np.testing.assert_allclose(inside_jax.jit(function)(x), expected, rtol=1e-5, atol=1e-5)
    assert used_platforms <= {"cpu"}


def test_autoshard_reads_without_other_clients(used_platforms):
    traced = inside_jax.autoshard(FUNCTIONS["a captured array in a Python implementation"])
    traced(place(X))
    assert used_platforms <= {"cpu"}


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_functions_are_traced_for_the_platform_of_jax(used_platforms, platform):
    with tracing_context(jax.make_jaxpr(jnp.sin)(X), platform):
        assert default_backend() == platform
        assert config.default_device == "cpu"
    assert not used_platforms


@pytest.mark.parametrize("inner", [False, True], ids=["argument", "inside a loop"])
def test_64_bit_dtypes_of_jax(inner):
    """They depend on JAX's setting, and not on that of Shardwise, which is off here."""

    def function(x):
        wide = jax.lax.scan(lambda c, _: (jnp.float64(c) * 2, None), jnp.float64(x), None, length=2)[0]
        return (jnp.sum(wide).astype(np.float32) if inner else wide @ wide.T), jnp.arange(3), x + 1

    with jax.enable_x64(True):
        x = place(X if inner else X.astype(np.float64) / 3)
        ours, theirs = inside_jax.jit(function)(x), jax.jit(function)(x)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-12 if a.dtype == np.float64 else 1e-6)


@pytest.mark.parametrize("platform", [None, "neuron"])
def test_an_unknown_platform_leaves_the_target_as_it_is(platform):
    before = config.target_platform
    with tracing_context(jax.make_jaxpr(jnp.sin)(X), platform):
        assert config.target_platform == before
