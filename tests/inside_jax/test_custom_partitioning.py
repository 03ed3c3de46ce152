"""jax.experimental.custom_partitioning in planned functions: rules and callbacks, with values like JAX's."""

import warnings
from functools import partial

import numpy as np
import pytest

from shardwise.errors import UnsupportedError
from tests.inside_jax.primitives.cases import NamedSharding, P, inside_jax, jax, jnp, mesh, place

of_jax = pytest.importorskip("jax.experimental.custom_partitioning")
custom_partitioning = of_jax.custom_partitioning

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
W = RNG.normal(size=(4, 6)).astype(np.float32)


def sine(x):
    return jnp.sin(x)


def put(x, *spec):
    return jax.device_put(x, NamedSharding(mesh(), P(*spec)))


def same_shardings(function):
    """Return a `partition` that keeps the suggested shardings, and runs a function on shards."""

    def partition(mesh, args, results):
        shardings = jax.tree.map(lambda x: x.sharding, (results, args))
        return mesh, function, *shardings

    return partition


def collectives(function, *args):
    """Return the number of collectives of each kind in a plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *_: None)
        return inside_jax.explain(function, advise=False)(*args).plan.counts()


def assert_like_jax(function, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, theirs = inside_jax.jit(function)(*args), jax.jit(function)(*args)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return ours


@pytest.mark.parametrize(
    "rule",
    [
        "i j -> i j",
        "... -> ...",
        of_jax.SdyShardingRule((of_jax.ArrayMapping("i", "j"),), (of_jax.ArrayMapping("i", "j"),)),
        lambda mesh, args, results: "i j -> i j",
        lambda mesh, args, results: (" ".join(f"i{n}" for n in range(args[0].rank)) + " -> i0 i1", {}),
    ],
    ids=["string", "ellipsis", "object", "function", "function with options"],
)
def test_partition_gives_the_function_of_shards(rule):
    """The function of shards differs from the function, to show which one runs."""
    function = custom_partitioning(lambda x: jnp.sin(x) * 2)
    function.def_partition(same_shardings(jnp.sin), sharding_rule=rule)
    result = assert_like_jax(lambda x: function(x) + 1, place(X))
    np.testing.assert_allclose(result, np.sin(X) + 1, rtol=1e-5)
    assert result.sharding.spec == P("data", "model")
    np.testing.assert_allclose(inside_jax.jit(partial(function))(X), 2 * np.sin(X), rtol=1e-5)  # one device


def test_partition_gets_jax_s_mesh_and_shardings():
    seen = []

    def partition(mesh, args, result):
        seen.append((mesh, args[0], result))
        return mesh, jnp.sin, result.sharding, (args[0].sharding,)

    function = custom_partitioning(sine)
    function.def_partition(partition, sharding_rule="i j -> i j")
    inside_jax.jit(partial(function))(place(X))
    of_mesh, arg, result = seen[-1]
    assert of_mesh is mesh()
    for struct in (arg, result):
        assert isinstance(struct, jax.ShapeDtypeStruct)
        assert (struct.shape, struct.dtype) == ((8, 4), np.float32)
        assert struct.sharding == NamedSharding(mesh(), P("data", "model"))


def fft():
    """Return the FFT along the last dim, which `partition` replicates."""

    def transform(x):
        return jnp.fft.fft(x)

    def replicate_last(x):
        parts = [*x.sharding.spec, *[None] * (len(x.shape) - len(x.sharding.spec))]
        return NamedSharding(x.sharding.mesh, P(*parts[:-1], None))

    def partition(mesh, args, result):
        return mesh, transform, replicate_last(result), (replicate_last(args[0]),)

    function = custom_partitioning(transform)
    function.def_partition(partition, sharding_rule="...i -> ...i")
    return function


def test_operands_are_resharded_as_partition_requires():
    function = fft()
    assert assert_like_jax(partial(function), put(X, "data")).sharding.spec == P("data")
    assert collectives(partial(function), put(X, "data")) == {}
    assert_like_jax(partial(function), place(X))
    assert_like_jax(partial(function), put(X, None, "data"))


def product():
    def partition(mesh, args, result):
        axis = args[0].sharding.spec[1] if len(args[0].sharding.spec) > 1 else None

        def lower_fn(x, w):
            return x @ w if axis is None else jax.lax.psum(x @ w, axis)

        return mesh, lower_fn, result.sharding, tuple(arg.sharding for arg in args)

    function = custom_partitioning(lambda x, w: x @ w)
    function.def_partition(partition, sharding_rule="m k, k n -> m n", reduction_factors=("k",))
    return function


@pytest.mark.parametrize(("left", "right"), [(P(None, "data"), P("data")), (P("data"), P(None, "model"))], ids=str)
def test_the_function_of_shards_reduces_its_sums(left, right):
    function = product()
    x, w = put(X, *left), put(W, *right)
    np.testing.assert_allclose(assert_like_jax(partial(function), x, w), X @ W, rtol=1e-5, atol=1e-5)
    assert collectives(partial(function), x, w) == ({"all_reduce": 1} if "data" in right else {})


def test_pytrees_and_static_arguments():
    def function(scale, tree):
        return {"sum": tree["a"] + tree["b"], "scaled": scale * tree["a"]}

    def partition(scale, mesh, args, results):
        (tree,) = args

        def lower_fn(tree):
            return function(scale, tree)

        shardings = jax.tree.map(lambda x: x.sharding, (results, tree))
        return mesh, lower_fn, shardings[0], (shardings[1],)

    partitioned = custom_partitioning(function, static_argnums=(0,))
    partitioned.def_partition(partition, sharding_rule="i j, i j -> i j, i j")
    results = assert_like_jax(lambda a, b: partitioned(3.0, {"a": a, "b": b}), place(X), place(2 * X))
    assert results["sum"].sharding.spec == P("data", "model")


def test_constants_of_the_function_of_shards():
    table = jnp.arange(4, dtype=np.float32)
    function = custom_partitioning(lambda x: x * jnp.arange(4, dtype=np.float32))
    function.def_partition(
        same_shardings(lambda x: x * table), sharding_rule="i j -> i j", need_replication_factors=("j",)
    )
    assert_like_jax(partial(function), put(X, "data"))


@pytest.mark.parametrize(
    "transformed",
    [
        lambda function: lambda x: jax.lax.scan(lambda c, _: (function(c), None), x, None, length=3)[0],
        lambda function: lambda x: jax.lax.cond(x[0, 0] > 0, function, lambda x: x, x),
        lambda function: lambda x: function(function(x)) @ x.T,
    ],
    ids=["scan", "cond", "twice"],
)
def test_inside_other_functions(transformed):
    function = custom_partitioning(jnp.tanh)
    function.def_partition(same_shardings(jnp.tanh), sharding_rule="... -> ...")
    assert_like_jax(transformed(function), place(X))


def test_inside_shard_map_the_function_itself_runs():
    function = custom_partitioning(lambda x: 2 * x)
    function.def_partition(same_shardings(jnp.sin), sharding_rule="... -> ...")
    mapped = jax.shard_map(function, mesh=mesh(), in_specs=P("data"), out_specs=P("data"), check_vma=False)
    assert_like_jax(mapped, put(X, "data"))


def test_without_a_rule_the_planner_partitions_the_function():
    function = custom_partitioning(lambda x: jnp.sin(x) * 2)
    function.def_partition(same_shardings(jnp.sin))
    warning = r"custom_partitioning of '<lambda>' at test_custom_partitioning.py:\d+ has no sharding rule"
    with pytest.warns(UserWarning, match=warning) as warned:
        result = inside_jax.jit(lambda x: function(x) + 1)(place(X))
    assert [each.filename for each in warned] == [__file__]
    assert result.sharding.spec == P("data", "model")
    np.testing.assert_allclose(result, 2 * np.sin(X) + 1, rtol=1e-5)


def test_on_one_device_no_rule_is_needed():
    function = custom_partitioning(lambda x: jnp.sin(x) * 2)
    function.def_partition(same_shardings(jnp.sin))
    assert_like_jax(partial(function), X)


def test_callbacks_without_a_rule():
    """JAX accepts them with its former partitioner only."""
    function = custom_partitioning(lambda x: jnp.sin(x) * 2)
    function.def_partition(
        same_shardings(jnp.sin), infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding
    )
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        with pytest.warns(UserWarning, match="has no sharding rule that Shardwise can read"):
            result = inside_jax.jit(partial(function))(place(X))
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    np.testing.assert_allclose(result, 2 * np.sin(X), rtol=1e-5)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("i j, i j -> i j", "the rule has 2 operands, but the function has 1"),
        ("i -> i", r"operand 0 has rank 1 in the rule, but its type is f32\[8,4\]"),
        ("i i -> i i", "dims of 'i' have the sizes 4 and 8"),
    ],
    ids=["operands", "rank", "sizes"],
)
def test_a_rule_that_does_not_fit_is_an_error(rule, message):
    function = custom_partitioning(sine)
    function.def_partition(same_shardings(jnp.sin), sharding_rule=rule)
    with pytest.raises(ValueError, match=f"custom_partitioning of `sine`.*{message}"):
        inside_jax.jit(partial(function))(place(X))


def test_other_shardings_are_an_error():
    function = custom_partitioning(sine)
    one_device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    function.def_partition(
        lambda mesh, args, result: (mesh, jnp.sin, one_device, (one_device,)), sharding_rule="i j -> i j"
    )
    with pytest.raises(UnsupportedError, match=r"test_custom_partitioning.py:\d+: `partition` returned SingleDevice"):
        inside_jax.jit(lambda x: function(x) + 1)(place(X))
