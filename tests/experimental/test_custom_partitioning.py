"""custom_partitioning: rules as strings and objects, with and without a `partition` callback, and errors.

Values are compared with numpy, and plans by the collectives that they need.
"""

import doctest
import re
from functools import partial

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.types import ArrayType, parse_type
from shardwise.compiler.reduction import SUM
from shardwise.compiler.trace.build import build
from shardwise.errors import ShardingError
from shardwise.experimental.custom_partitioning import (
    BATCHING,
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from shardwise.experimental.sharding_rule import factor_rule, parse_rule
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.compiler.ops.cases import Case
from tests.compiler.ops.laws import factors_like_shards, lowers_like_numpy, vmap_like_loop

RNG = np.random.default_rng(0)


def array(*shape):
    return RNG.uniform(0.5, 2.0, shape).astype(np.float32)


@pytest.fixture(scope="module")
def put(mesh):
    return lambda x, *spec: sw.device_put(x, NamedSharding(mesh, P(*spec)))


def collectives(function, *args):
    """Return the number of collectives of each kind."""
    lowered = sw.jit(function).lower(*args)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *_: None)
        return sw.explain(lowered, advise=False)().counts()


def cos_product():
    @custom_partitioning
    def product(x, w):
        return jnp.cos(x) @ w

    product.def_partition(sharding_rule="... m k, k n -> ... m n", reduction_factors=("k",))
    return product


def assert_close(out, expected):
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=1e-5)


def test_docstring_example():
    text = custom_partitioning.__doc__
    example = doctest.DocTestParser().get_doctest(text, {"jax": sw, "jnp": jnp}, "custom_partitioning", None, 0)
    assert doctest.DocTestRunner().run(example) == (0, 3)


# A rule without a `partition` callback.


@pytest.mark.parametrize(
    ("left", "right", "expected_spec"),
    [
        (P("data"), P(), P("data")),
        (P("data"), P(None, "model"), P("data", "model")),
        (P(None, "data"), P("data", "model"), P(None, "model")),
        (P("model", "data"), P("data"), P("model")),
    ],
    ids=str,
)
def test_each_device_runs_the_function_on_its_shards(mesh, left, right, expected_spec):
    product = cos_product()
    x, w = array(8, 16), array(16, 6)
    operands = [sw.device_put(a, NamedSharding(mesh, spec)) for a, spec in ((x, left), (w, right))]
    out = sw.jit(product)(*operands)
    assert_close(out, np.cos(x) @ w)
    assert out.sharding.spec == expected_spec
    reduced = len(left) > 1 and left[1] is not None
    assert collectives(product, *operands) == ({"all_reduce": 1} if reduced else {})


def test_reduction_factors_are_never_padded(put):
    """cos(0) is 1, so zeros in the padding would change the sum."""
    product = cos_product()
    for k, gather_count in ((14, 2), (7, 2), (6, 2), (8, 0)):
        x, w = array(4, k), array(k, 3)
        operands = put(x, None, "data"), put(w, "data")
        assert_close(sw.jit(product)(*operands), np.cos(x) @ w)
        assert collectives(product, *operands).get("all_gather", 0) == gather_count
    x, w = array(4, 12), array(12, 3)  # 12 is divisible by 4 and by 2, but not by 8
    assert_close(sw.jit(product)(put(x, None, ("data", "model")), put(w, ("data", "model"))), np.cos(x) @ w)


def test_uneven_dims_that_pass_through_are_sharded(put):
    @custom_partitioning
    def totals(x):
        return jnp.cumsum(x, -1)

    totals.def_partition(sharding_rule="...i -> ...i", need_replication_factors=("i",))
    x = array(7, 5, 4)
    sharded = put(x, "data", "model")
    assert_close(sw.jit(totals)(sharded), np.cumsum(x, -1))
    assert collectives(totals, sharded) == {}
    gathered = put(x, None, None, "data")
    assert_close(sw.jit(totals)(gathered), np.cumsum(x, -1))
    assert collectives(totals, gathered) == {"all_gather": 1}


def test_a_call_is_one_op_everywhere(put):
    product = cos_product()
    x, w = array(8, 16), array(16, 6)
    assert_close(product(x, w), np.cos(x) @ w)  # outside of jit
    assert_close(product(put(x, "data"), w), np.cos(x) @ w)
    assert "f32[8,6] = custom_partitioning[" in str(sw.make_jaxpr(product)(x, w))

    @sw.jit
    def loop(x, w):
        return lax.scan(lambda c, _: (product(c, w), None), x, None, length=2)[0]

    square = array(16, 16)
    assert_close(loop(put(x, "data"), put(square, None, "model")), np.cos(np.cos(x) @ square) @ square)


def test_derivatives_are_those_of_the_function(put):
    product = cos_product()
    x, w, dx = array(8, 16), array(16, 6), array(8, 16)
    sharded = put(x, "data", "model")

    @sw.jit
    def derivatives(x, w):
        gradients = sw.grad(lambda x, w: product(x, w).sum(), (0, 1))(x, w)
        return gradients, sw.jvp(lambda x: product(x, w), (x,), (dx,))[1]

    (grad_x, grad_w), tangent = derivatives(sharded, put(w, "model"))
    assert_close(grad_x, -np.sin(x) * w.sum(1))
    assert_close(grad_w, np.broadcast_to(np.cos(x).sum(0)[:, None], w.shape))
    assert_close(tangent, (-np.sin(x) * dx) @ w)


def test_custom_vjp_replaces_the_derivative(put):
    product = cos_product()
    ours = sw.custom_vjp(product)
    ours.defvjp(lambda x, w: (product(x, w), (x, w)), lambda saved, ct: (3 * saved[0], None))
    x, w = array(8, 16), array(16, 6)
    value, gradient = sw.jit(sw.value_and_grad(lambda x, w: ours(x, w).sum()))(put(x, "data", "model"), w)
    assert_close(gradient, 3 * x)
    np.testing.assert_allclose(value, (np.cos(x) @ w).sum(), rtol=1e-3, atol=1e-3)


def test_vmap_adds_a_factor(put):
    product = cos_product()
    x, w, many = array(8, 5, 16), array(16, 6), array(8, 16, 6)
    mapped = sw.vmap(product, (0, None))
    assert_close(sw.jit(mapped)(put(x, "data"), w), np.cos(x) @ w)
    assert collectives(mapped, put(x, "data"), w) == {}
    both = sw.vmap(product, (1, None), 1)
    assert_close(sw.jit(both)(put(x, "data", None, "model"), put(w, "model")), np.cos(x) @ w)
    assert collectives(both, put(x, "data", None, "model"), put(w, "model")) == {"all_reduce": 1}
    twice = sw.vmap(sw.vmap(product, (0, None)), (None, 0))  # for all weights, over all rows
    assert_close(sw.jit(twice)(x, put(many, "data")), np.einsum("bmk,zkn->zbmn", np.cos(x), many))
    assert collectives(twice, x, put(many, "data")) == {}


def test_pytrees_static_arguments_and_multiple_results(put):
    @partial(custom_partitioning, static_argnums=(1,))
    def scaled(tree, options, shift=2.0):
        return {"all": tree["u"] * options["by"] + shift, "rows": (tree["v"].sum(1),)}

    scaled.def_partition(sharding_rule="i j, i k, -> i j, i", need_replication_factors=("k",))
    u, v = array(8, 4), array(8, 3)
    tree = {"u": put(u, "data", "model"), "v": put(v, "data")}
    out = sw.jit(lambda tree: scaled(tree, {"by": 3.0}))(tree)
    assert_close(out["all"], u * 3 + 2)
    assert_close(out["rows"][0], v.sum(1))
    assert out["all"].sharding.spec == P("data", "model")
    assert collectives(lambda tree: scaled(tree, {"by": 3.0}, shift=1.0), tree) == {}


def test_factors_of_compound_dims(put):
    @custom_partitioning
    def heads(x):
        return x.reshape(x.shape[0], -1, 4) * 2

    heads.def_partition(sharding_rule="b (h d) -> b h d")
    x = array(6, 16)
    for spec in (("data", "model"), (None, "data"), (None, ("data", "model"))):
        assert_close(sw.jit(heads)(put(x, *spec)), 2 * x.reshape(6, 4, 4))
    assert collectives(heads, put(x, "model", "data")) == {}

    @custom_partitioning
    def transposed(x):
        return x.T.reshape(-1)

    transposed.def_partition(sharding_rule="i j -> (j i)")
    x = array(8, 4)
    for spec in (("data", "model"), ("model", "data"), ("data",), (None, "data")):
        assert_close(sw.jit(transposed)(put(x, *spec)), x.T.reshape(-1))
    assert sw.jit(transposed)(put(x, "model", "data")).sharding.spec == P(("data", "model"))


def test_rules_as_objects_and_functions(put):
    x = array(8, 4)
    last = SdyShardingRule(((BATCHING, "i"),), ((BATCHING, "i"),), need_replication_factors=("i",))

    def make_rule(mesh, operands, results):
        names = " ".join("abc"[: operands[0].ndim])
        return f"{names} -> {names}", {"need_replication_factors": ("b",)}

    for rule in (last, make_rule, lambda *_: "... k -> ... k", lambda *_: last):
        ours = custom_partitioning(lambda x: jnp.sort(x, 1))
        ours.def_partition(sharding_rule=rule)
        assert_close(sw.jit(ours)(put(x, "data")), np.sort(x, 1))
        assert collectives(ours, put(x, "data")) == {}


def test_a_reduction_factor_that_a_result_has_is_replicated(put):
    @custom_partitioning
    def both(x):
        return x * 2, x.sum(1)

    both.def_partition(sharding_rule="i j -> i j, i", reduction_factors=("j",))
    x = array(8, 4)
    doubled, rows = sw.jit(both)(put(x, "data", "model"))
    assert_close(doubled, 2 * x)
    assert_close(rows, x.sum(1))


def test_named_axes_and_manual_regions(mesh, put):
    """A function with collectives along a named axis is an ordinary program to the transformation that binds it."""

    @custom_partitioning
    def centred(x):
        return x - lax.pmean(x, "data")

    centred.def_partition(sharding_rule="... -> ...")
    x = array(4, 6)
    assert_close(sw.vmap(centred, axis_name="data")(x), x - x.mean(0))
    region = sw.shard_map(centred, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    assert_close(sw.jit(region)(x), x - x.mean(0))
    product = cos_product()
    region = sw.shard_map(product, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"), axis_names={"data"})
    a, w = array(8, 16), array(16, 6)
    assert_close(sw.jit(region)(a, put(w, None, "model")), np.cos(a) @ w)
    assert collectives(region, put(a, "data"), put(w, None, "model")) == {}


def test_a_rule_is_not_read_in_a_region_over_all_mesh_axes(mesh):
    @custom_partitioning
    def double(x):
        return 2 * x

    double.def_partition(sharding_rule="i -> i")
    x = array(8, 4)
    region = sw.shard_map(double, mesh=mesh, in_specs=P("data", "model"), out_specs=P("data", "model"))
    assert_close(sw.jit(region)(x), 2 * x)
    with pytest.raises(ValueError, match="operand 0 has rank 1 in the rule"):
        sw.jit(double)(x)


def test_lowering_for_an_abstract_mesh():
    product = cos_product()
    mesh = AbstractMesh((64,), ("x",))
    x, w = (sw.ShapeDtypeStruct((128, 128), np.float32, sharding=NamedSharding(mesh, P("x"))) for _ in range(2))
    assert "stablehlo.all_gather" in sw.jit(product).lower(x, w).as_text()


# With a `partition` callback.


def without_last_dim(x):
    """Return the sharding of `x` with the last dim replicated."""
    rank = len(x.shape)
    entries = (*x.sharding.spec, *[None] * rank)[: rank - 1]
    return NamedSharding(x.sharding.mesh, P(*entries))


def test_fft_example_of_the_jax_documentation(mesh, put):
    seen = []

    def partition(mesh, arg_shapes, result_shape):
        seen.append((arg_shapes[0].sharding.spec, result_shape.sharding.spec, result_shape.dtype, arg_shapes[0].shape))
        sharding = without_last_dim(arg_shapes[0])
        return mesh, jnp.fft.fft, sharding, (sharding,)

    @custom_partitioning
    def transform(x):
        return jnp.fft.fft(x)

    transform.def_partition(
        infer_sharding_from_operands=lambda *_: None, partition=partition, sharding_rule="...i -> ...i"
    )
    x = array(8, 12).astype(np.complex64)
    with mesh:
        assert_close(sw.jit(transform)(put(x, "data")), np.fft.fft(x))
        assert seen == [(P("data"), P("data"), np.complex64, (8, 12))]
        assert collectives(transform, put(x, "data")) == {}
        assert_close(sw.jit(transform)(put(x, None, "data")), np.fft.fft(x))
    assert collectives(transform, put(x, "data", "model")) == {"all_gather": 1}
    assert_close(transform(x), np.fft.fft(x))  # on one device, the function itself
    assert_close(sw.vmap(transform)(x), np.fft.fft(x))


def ring_total():
    """Return a function that broadcasts the sum over rows; sharded rows are summed around a ring of permutes."""

    @custom_partitioning
    def total(x):
        return jnp.broadcast_to(x.sum(0), x.shape)

    def partition(mesh, arg_shapes, result_shape):
        (sharding,) = [shape.sharding for shape in arg_shapes]
        rows = sharding.spec[0] if sharding.spec else None
        if rows is None:
            return mesh, total.fun, sharding, (sharding,)
        count = mesh.shape[rows]

        def step(carry, _):
            passed = lax.ppermute(carry[1], rows, [(k, (k + 1) % count) for k in range(count)])
            return (carry[0] + passed, passed), None

        def lower_fn(shard):
            local = shard.sum(0)
            (result, _), _ = lax.scan(step, (local, local), None, length=count - 1)
            return jnp.broadcast_to(result, shard.shape)

        return mesh, lower_fn, sharding, (sharding,)

    total.def_partition(partition, sharding_rule="i j -> i j", permutation_factors=("i",))
    return total


def test_lower_fn_may_communicate(mesh, put):
    total = ring_total()
    x = array(8, 4)
    expected = np.broadcast_to(x.sum(0), x.shape)
    sharded = put(x, "data", "model")
    out = sw.jit(total)(sharded)
    assert_close(out, expected)
    assert out.sharding.spec == P("data", "model")
    assert collectives(total, sharded) == {"ppermute": 1}
    assert_close(sw.jit(sw.grad(lambda x: (total(x) ** 2).sum()))(sharded), 16 * expected)
    assert_close(sw.jit(sw.vmap(total))(put(np.stack([x, 2 * x]), None, "data")), [expected, 2 * expected])
    uneven = array(7, 4)  # the shards of lower_fn have one size, so an uneven dim is replicated
    assert_close(sw.jit(total)(put(uneven, "data")), np.broadcast_to(uneven.sum(0), uneven.shape))
    half = sw.shard_map(total, mesh=mesh, in_specs=P(None, "model"), out_specs=P(None, "model"), axis_names={"model"})
    assert_close(sw.jit(half)(sharded), expected)
    assert collectives(half, sharded) == {"ppermute": 1}
    manual = sw.shard_map(total, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    assert_close(sw.jit(manual)(x), np.repeat(x.reshape(4, 2, 4).sum(1), 2, 0))


def test_lower_fn_sums_its_results_along_reduction_factors_itself(put):
    """As in JAX 0.10.2 and 0.12, which add no sum."""

    @custom_partitioning
    def product(x, w):
        return x @ w

    def partition(mesh, arg_shapes, result_shape):
        shardings = tuple(shape.sharding for shape in arg_shapes)
        return mesh, lambda x, w: lax.psum(x @ w, "model"), result_shape.sharding, shardings

    product.def_partition(partition, sharding_rule="m k, k n -> m n", reduction_factors=("k",))
    x, w = array(8, 16), array(16, 6)
    operands = put(x, "data", "model"), put(w, "model")
    assert_close(sw.jit(product)(*operands), x @ w)
    assert list(collectives(product, *operands).values()) == [1]


def test_callbacks_get_the_users_mesh_axes(put):
    """A reshape elsewhere splits the mesh axis internally; the callback still gets the axis of the user's mesh."""
    seen = []

    def partition(mesh, arg_shapes, result_shape):
        seen.append((mesh.axis_names, arg_shapes[0].sharding.spec))
        return mesh, jnp.sin, result_shape.sharding, (arg_shapes[0].sharding,)

    sine = custom_partitioning(jnp.sin)
    sine.def_partition(partition, sharding_rule="... -> ...")
    mesh = sw.make_mesh((8,), ("d",))
    x = array(32, 3)
    with mesh:
        out = sw.jit(lambda x: sine(x.reshape(4, 8, 3)).reshape(32, 3))(sw.device_put(x, NamedSharding(mesh, P("d"))))
    assert_close(out, np.sin(x))
    assert seen == [(("d",), P())]


# Resolved rules.


def rule_of(text, operands, results, has_partition=False, **options):
    """Resolve a rule for operands and results of these shapes; all results depend on all operands."""

    def mixed(*xs):
        return [sum(x.sum() for x in xs) + jnp.zeros(shape) for shape in results]

    program, _ = build(mixed, [ArrayType(shape, np.float32) for shape in operands], "mixed")
    return factor_rule(parse_rule(text, **options), program, has_partition)


def test_an_evenly_sharded_factor_follows_a_factor_of_size_1():
    rule = rule_of("i j -> i", [(6, 4)], [(6,)], reduction_factors=("j",))
    assert rule.sizes == (6, 1, 4)
    assert rule.operands == (((0,), (1, 2)),)
    assert rule.reduce == {1: SUM, 2: SUM}
    assert rule.allows_sharding({2: 2}) and not rule.allows_sharding({2: 3})
    assert rule.assign_axes((1, 2), ("x",), {"x": 2}) == [(), ("x",)]
    with_partition = rule_of("i j -> i j", [(6, 4)], [(6, 4)], has_partition=True, permutation_factors=("i",))
    assert with_partition.exchange == {0, 1} and with_partition.minor == {1, 3}


def test_equal_ellipses_are_equal_dims():
    rule = rule_of("... i, j -> ... i", [(2, 3, 4), (5,)], [(2, 3, 4)], need_replication_factors=("j",))
    assert rule.operands[0] == rule.results[0] == ((0,), (1,), (2,))
    assert rule.sizes == (2, 3, 4, 5) and rule.need_replication == {3}
    rule = rule_of("..., ...1 -> ..., ...1", [(2, 3), (5,)], [(2, 3), (5,)], has_partition=True)
    assert rule.operands == rule.results and rule.exchange == set(range(6))


def test_dims_of_a_replicated_factor_may_differ_in_size():
    rule = rule_of("i -> i", [(8,)], [(5,)], need_replication_factors=("i",))
    assert rule.need_replication == {0, 1} and rule.sizes == (8, 5)


def test_factors_in_cyclic_order_are_replicated():
    rule = rule_of("(i j) -> (j i)", [(6,)], [(6,)], has_partition=True, i=2, j=3)
    assert rule.need_replication == set(range(len(rule.sizes)))


FUNCTIONS = {
    "product": (lambda x, w: jnp.cos(x) @ w, ("m k, k n -> m n", {"reduction_factors": ("k",)}), "f32[6,12] f32[12,5]"),
    "rows": (lambda x: jnp.cumsum(x, -1), ("... i -> ... i", {"need_replication_factors": ("i",)}), "f32[7,2,3]"),
    "heads": (lambda x: x.reshape(-1, 3, x.shape[1]), ("(h d) b -> h d b", {}), "f32[12,5]"),
    "transposed": (lambda x: x.T.reshape(-1), ("i j -> (j i)", {}), "f32[6,4]"),
    "two": (
        lambda x, y: (x.sum(0), (x * y).sum(0)),
        ("i j, i j -> j, j", {"reduction_factors": ("i",)}),
        "f32[8,3] " * 2,
    ),
}


@pytest.mark.parametrize("law", [factors_like_shards, lowers_like_numpy, vmap_like_loop], ids=lambda law: law.__name__)
@pytest.mark.parametrize("which", FUNCTIONS)
def test_it_obeys_the_laws_of_ops(which, law):
    """Sharded along each factor in 2, 3, 4 and 2×3 shards, evenly or not, it equals the unsharded function."""
    function, (text, options), types = FUNCTIONS[which]
    ours = custom_partitioning(function)
    ours.def_partition(sharding_rule=text, **options)
    named = [parse_type(word) for word in types.split()]
    program, _ = build(lambda *xs: sw.tree.leaves(ours(*xs)), named, which)
    (equation,) = program.equations
    law(Case(equation.op, tuple(named)))


# Errors.


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("i j", {}, "sharding_rule 'i j': must have one `->`"),
        ("i -> j -> k", {}, "must have one `->`"),
        ("i) -> i", {}, "sharding_rule 'i) -> i': unexpected ')'"),
        ("(i j -> i", {}, "a parenthesis is not closed"),
        ("(i) -> i", {}, "CompoundFactor: ('i',) must be at least two factors"),
        ("i ... -> i", {}, "`...` must be the first dim"),
        ("i+ -> i", {}, "unexpected '+'"),
        ("2i -> i", {}, "unexpected '2i'"),
        ("(i j) -> i", {}, "the size of 'j' is unknown, because it is in compound dims only: pass `j=…`"),
        ("(i j) -> i", {"i": 2, "j": 2}, "the size of 'i' is known, because it is a dim of its own: do not pass it"),
        ("i -> i", {"k": 2}, "a size is passed for 'k', which is not a factor of the rule"),
        ("i -> i", {"reduction_factors": ("k",)}, "reduction_factors has 'k', which is not a factor of the rule"),
        ("i -> i", {"reduction_factors": ["i"]}, "reduction_factors must be a tuple of names, not ['i']"),
        (
            "i -> i",
            {"reduction_factors": ("i",), "permutation_factors": ("i",)},
            "'i' is in both reduction_factors and permutation_factors; it can be in one only",
        ),
    ],
)
def test_invalid_rule_strings_raise(text, options, message):
    ours = custom_partitioning(lambda x: x)
    with pytest.raises((ValueError, TypeError)) as caught:
        ours.def_partition(sharding_rule=text, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("i, j -> i", {}, "the rule has 2 operands, but the function has 1"),
        ("i j -> i, j", {}, "the rule has 2 results, but the function has 1"),
        ("i -> i", {}, "operand 0 has rank 1 in the rule, but its type is f32[4,6]"),
        ("... i j k -> ... i", {}, "operand 0 has rank 3 in the rule"),
        ("i j -> i i", {}, "result 0 has rank 2 in the rule, but its type is f32[4]"),
        ("i j -> j", {}, "dims of 'j' have the sizes 4 and 6. A factor must have one size"),
        ("i j -> i", {}, "operands have 'j', but result 0, which depends on them, does not"),
        ("(i k) j -> i", {"k": 3}, "(i k) has size 12, but the dim of f32[4,6] has size 4"),
        ("... -> ...", {}, "`...` has rank 1 in result 0, f32[4], but rank 2 elsewhere"),
    ],
)
def test_rules_that_do_not_match_the_function_raise(text, options, message):
    ours = custom_partitioning(lambda x: x.sum(1))
    ours.def_partition(sharding_rule=text, **options)
    with pytest.raises(ValueError, match=r"custom_partitioning of `<lambda>` \(test_custom_partitioning.py") as caught:
        ours(array(4, 6))
    assert message in str(caught.value)


def test_invalid_mappings_raise():
    with pytest.raises(TypeError, match="ArrayMapping: a factor must be a string, not 3"):
        ArrayMapping(3)
    with pytest.raises(ValueError, match="CompoundFactor: 'i j' is not a valid factor name"):
        CompoundFactor("i j", "k")
    assert repr(parse_rule("... (i j), k -> i", j=2)) == "SdyShardingRule('... (i j), k -> i')"


def test_invalid_definitions_raise():
    ours = custom_partitioning(lambda x: x)
    with pytest.raises(
        AttributeError, match=re.escape("has no sharding rule: define one with `.def_partition(sharding_rule=…)`")
    ):
        ours(1.0)
    with pytest.raises(NotImplementedError, match="needs a sharding_rule"):
        ours.def_partition(lambda *_: None, infer_sharding_from_operands=lambda *_: None)
    with pytest.raises(NotImplementedError, match="needs a sharding_rule"):
        ours.def_partition()
    with pytest.raises(
        TypeError, match="sharding_rule must be a string, an SdyShardingRule, or a function that returns one"
    ):
        ours.def_partition(sharding_rule=3)
    with pytest.raises(ValueError, match="reduction_factors is an option of a sharding_rule that is a string"):
        ours.def_partition(sharding_rule=lambda *_: "i -> i", reduction_factors=("i",))
    with pytest.raises(TypeError, match="custom_partitioning needs a function, not 3"):
        custom_partitioning(3)
    assert ours.def_partition(partition := lambda *_: None) is partition  # without a rule, all factors are replicated


def test_functions_that_cannot_run_on_shards_raise(mesh, put):
    ours = custom_partitioning(lambda x: x.reshape(2, 4))
    ours.def_partition(sharding_rule="(i j) -> i j")
    with pytest.raises(TypeError) as caught:
        sw.jit(ours)(put(array(8), "model"))
    assert "runs on shards, here f32[4], by its sharding_rule" in "".join(caught.value.__notes__)
    held = jnp.ones(8)
    ours = custom_partitioning(lambda x: x + held)
    ours.def_partition(sharding_rule="i -> i")
    with pytest.raises(TypeError, match=re.escape("closes over an array that is not one of its arguments, f32[8]")):
        ours(array(8))
    ours = custom_partitioning(lambda x: jnp.concatenate([x, x]))
    ours.def_partition(sharding_rule="i -> k")
    with pytest.raises(ValueError, match="operands have 'i', but result 0, which depends on them, does not"):
        ours(array(8))
    ours = custom_partitioning(lambda x: jnp.arange(8.0) + x[0])
    ours.def_partition(sharding_rule="i -> i")
    with pytest.raises(TypeError, match=r"for shards f32\[2\] it returns f32\[8\], but by its sharding_rule"):
        sw.jit(ours)(put(array(8), "data"))
    pinned = custom_partitioning(lambda x: lax.with_sharding_constraint(x, NamedSharding(mesh, P("data"))))
    pinned.def_partition(sharding_rule="i -> i")
    with pytest.raises(TypeError, match="it contains a constrain"):
        sw.jit(pinned)(array(8))


def test_invalid_results_of_partition_raise(mesh, put):
    sharded = put(array(8), "data")

    def called(partition):
        ours = custom_partitioning(lambda x: x * 2)
        ours.def_partition(partition, sharding_rule="i -> i")
        return sw.jit(ours)(sharded)

    with pytest.raises(TypeError, match=re.escape("must return (mesh, lower_fn, result_shardings, arg_shardings)")):
        called(lambda mesh, args, result: mesh)
    with pytest.raises(TypeError, match="the arg_shardings that partition returned contain None, not a NamedSharding"):
        called(lambda mesh, args, result: (mesh, jnp.sin, result.sharding, None))
    with pytest.raises(ValueError, match="the arg_shardings that partition returned do not match"):
        called(lambda mesh, args, result: (mesh, jnp.sin, result.sharding, (result.sharding,) * 2))
    other = NamedSharding(sw.make_mesh((8,), ("z",)), P("z"))
    with pytest.raises(
        ShardingError, match="are on the mesh z=8, but the mesh that it was passed is data=4, model=2: use that one"
    ):
        called(lambda mesh, args, result: (mesh, jnp.sin, other, (other,)))
    with pytest.raises(
        TypeError, match=re.escape("lower_fn returns shards of (f32[16],), but the results are (f32[8],)")
    ):
        called(lambda mesh, args, result: (mesh, lambda x: jnp.tile(x, 2), result.sharding, (result.sharding,)))
