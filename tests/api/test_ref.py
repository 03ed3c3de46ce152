"""Refs: reads and writes, types, and Refs as arguments and results of jit, compared with JAX's."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def programs(jax):
    """Return functions that use Refs, for a library with JAX's names."""
    jnp = jax.numpy

    @jax.jit
    def count(ref, x):
        ref[...] += 1
        ref[0] = x * 2
        return x + ref[1]

    def update():
        ref = jax.new_ref(jnp.arange(3.0))
        results = [count(ref, 5.0), count(ref, 7.0)]
        return [*results, ref[...]]

    @jax.jit
    def swap(tree):
        a, b = tree["a"], tree["b"]
        a[...], b[...] = b[...], a[...]

    def change_two():
        tree = {"a": jax.new_ref(jnp.zeros(2)), "b": jax.new_ref(jnp.ones(2)), "c": jnp.ones(2)}
        swap(tree)
        return [tree["a"][...], tree["b"][...]]

    def change_in_nested():
        @jax.jit
        def outer(x):
            ref = jax.new_ref(x)
            y = count(ref, x[2])
            return y + ref[0]

        return [outer(jnp.arange(3.0))]

    return [update, change_two, change_in_nested]


@pytest.mark.jax
@pytest.mark.parametrize("number", range(3))
def test_jit_changes_refs_like_jax(number):
    jax = pytest.importorskip("jax")
    for ours, expected in zip(programs(sw)[number](), programs(jax)[number](), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_results_may_be_refs():
    ref = sw.new_ref(jnp.float32(1.0))

    @sw.jit
    def f(ref):
        ref[...] += 1.0
        return ref, {"new": sw.new_ref(ref[...] * 10)}

    for step in (2.0, 3.0):
        same, new = f(ref)
        assert same is ref and ref[...] == step
        assert isinstance(new["new"], sw.Ref) and new["new"][...] == 10 * step


def test_a_compiled_function_of_refs_is_traced_once():
    traces = []

    @sw.jit
    def f(ref, x):
        traces.append(ref)
        ref[...] = ref[...] + x

    ref, other = sw.new_ref(jnp.zeros(4)), sw.new_ref(jnp.ones(4))
    f(ref, 1.0)
    f(other, 2.0)
    assert len(traces) == 1
    assert ref[...].tolist() == [1] * 4 and other[...].tolist() == [3] * 4


def test_a_ref_keeps_its_sharding(mesh):
    rows = NamedSharding(mesh, P("data"))
    ref = sw.new_ref(sw.device_put(jnp.zeros(8), rows))

    @sw.jit
    def f(ref):
        ref[...] += 1
        return ref[...].sum()

    assert f(ref) == 8
    assert ref[...].sharding.is_equivalent_to(rows, 1)


def test_shardings_and_static_arguments_with_refs(mesh):
    rows = NamedSharding(mesh, P("data"))
    f = sw.jit(lambda ref, n: ref[...] * n, static_argnums=1, out_shardings=rows)
    out = f(sw.new_ref(jnp.arange(8.0)), 3)
    assert out.sharding == rows and out.tolist() == (3 * np.arange(8.0)).tolist()


def test_types_of_refs():
    ref = sw.new_ref(jnp.zeros((2, 3)))
    type = sw.typeof(ref)
    assert str(type) == "Ref{f32[2,3]}" and type == sw.typeof(sw.new_ref(jnp.ones((2, 3))))
    assert (type.shape, type.dtype, type.inner_aval) == ((2, 3), np.float32, sw.typeof(jnp.zeros((2, 3))))


def test_errors():
    ref = sw.new_ref(jnp.zeros(2))
    with pytest.raises(ValueError, match="a Ref is passed twice"):
        sw.jit(lambda a, b: None)(ref, ref)

    @sw.jit
    def f(x):
        ref[...] = x

    with pytest.raises(NotImplementedError, match="Pass it to `jit` as an argument"):
        f(jnp.ones(2))
