"""register_sharding_rule: ops that the planner cannot read run on shards, with values like JAX's."""

import warnings
from functools import partial

import numpy as np
import pytest

from shardwise.errors import ShardingError, UnsupportedError
from shardwise.experimental.custom_partitioning import SdyShardingRule
from tests.inside_jax.primitives.cases import NamedSharding, P, inside_jax, jax, jnp, mesh, place

sharding_rules = pytest.importorskip("shardwise.inside_jax.sharding_rules")
pallas = pytest.importorskip("jax.experimental.pallas")
mlir = pytest.importorskip("jax.interpreters.mlir")
of_jax = pytest.importorskip("jax.experimental.custom_partitioning")

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
W = RNG.normal(size=(4, 6)).astype(np.float32)
MATRICES = np.stack([x.T @ x + 4 * np.eye(4) for x in RNG.normal(size=(8, 8, 4))]).astype(np.float32)

jax.lax.linalg.cholesky(np.eye(2, dtype=np.float32))  # initializes LAPACK


@pytest.fixture(autouse=True)
def rules(monkeypatch):
    """Forget the rules of a test after it."""
    monkeypatch.setattr(sharding_rules, "_rules", {})


@pytest.fixture(autouse=True)
def no_warnings():
    """An op with a rule is not replicated, and there is no warning that it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def ffi_cholesky(a):
    """Return LAPACK's Cholesky factors of a batch of matrices by an FFI call."""
    types = (jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct(a.shape[:-2], np.int32))
    leading = tuple(range(a.ndim - 2))
    column_major = (*leading, a.ndim - 1, a.ndim - 2)
    layouts = {"input_layouts": [column_major], "output_layouts": [column_major, leading]}
    call = jax.ffi.ffi_call("lapack_spotrf_ffi", types, **layouts, vmap_method="broadcast_all")
    return jnp.tril(call(a, uplo=np.uint8(ord("L")))[0])


CHOLESKY = ("lapack_spotrf_ffi", "... i j -> ... i j, ...")
MATRIX_DIMS = {"need_replication_factors": ("i", "j")}


def primitive(name, abstract, function):
    """Return the function of a primitive that has a lowering, and neither an implementation nor other rules."""
    op = jax.extend.core.Primitive(name)
    op.def_abstract_eval(abstract)
    mlir.register_lowering(op, mlir.lower_fun(function, multiple_results=False))
    return op


triple_p = primitive("test_rule_triple", lambda x, *, by: x, lambda x, *, by: by * x)
product_p = primitive(
    "test_rule_product", lambda x, w: jax.core.ShapedArray((x.shape[0], w.shape[1]), x.dtype), lambda x, w: x @ w
)
reshape_p = primitive(  # its parameter is a global shape
    "test_rule_reshape", lambda x, *, shape: jax.core.ShapedArray(shape, x.dtype), lambda x, *, shape: x.reshape(shape)
)


def product(x, w):
    return product_p.bind(x, w)


def double_kernel(x_ref, out_ref):
    out_ref[...] = 2 * x_ref[...]


def double(x):
    return pallas.pallas_call(double_kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def collectives(function, *args):
    """Return the number of collectives of each kind in a plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *_: None)
        return inside_jax.explain(function, advise=False)(*args).plan.counts()


def test_an_ffi_call_runs_on_shards():
    inside_jax.register_sharding_rule(*CHOLESKY, **MATRIX_DIMS)
    x = jax.device_put(MATRICES, NamedSharding(mesh(), P(("data", "model"))))
    result = inside_jax.jit(ffi_cholesky)(x)
    assert result.sharding.spec == P(("data", "model"))
    np.testing.assert_allclose(result, jax.jit(ffi_cholesky)(MATRICES), rtol=1e-5, atol=1e-6)
    assert collectives(ffi_cholesky, x) == {}


def test_an_ffi_call_replicates_the_dims_that_need_it():
    inside_jax.register_sharding_rule(*CHOLESKY, **MATRIX_DIMS)
    x = jax.device_put(MATRICES, NamedSharding(mesh(), P("model", "data")))
    np.testing.assert_allclose(inside_jax.jit(ffi_cholesky)(x), jax.jit(ffi_cholesky)(MATRICES), rtol=1e-5, atol=1e-6)


def test_a_dim_that_the_devices_do_not_divide():
    inside_jax.register_sharding_rule(*CHOLESKY, **MATRIX_DIMS)

    def function(a):
        return ffi_cholesky(a[:7]).sum(0)

    np.testing.assert_allclose(
        inside_jax.jit(function)(place(MATRICES)), jax.jit(function)(MATRICES), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "transformed",
    [
        jax.vmap(ffi_cholesky),
        lambda a: jax.lax.scan(lambda c, x: (c, ffi_cholesky(x) + c), jnp.float32(1), a[None])[1],
        lambda a: jax.lax.cond(a[0, 0, 0] > 0, ffi_cholesky, lambda a: a, a),
    ],
    ids=["vmap", "scan", "cond"],
)
def test_under_transformations(transformed):
    inside_jax.register_sharding_rule(*CHOLESKY, **MATRIX_DIMS)
    np.testing.assert_allclose(
        inside_jax.jit(transformed)(place(MATRICES)), jax.jit(transformed)(MATRICES), rtol=1e-5, atol=1e-6
    )


def test_the_gradient_of_a_custom_vjp():
    inside_jax.register_sharding_rule(triple_p, "... -> ...")

    @jax.custom_vjp
    def triple(x):
        return triple_p.bind(x, by=3.0)

    triple.defvjp(lambda x: (triple(x), None), lambda _, ct: (triple_p.bind(ct, by=3.0),))

    def loss(x):
        return jnp.sum(triple(x) ** 2)

    gradient = jax.grad(inside_jax.jit(loss))(place(X))
    assert gradient.sharding.spec == P("data", "model")
    np.testing.assert_allclose(gradient, jax.jit(jax.grad(loss))(X), rtol=1e-5)


@pytest.mark.parametrize("op", [triple_p, triple_p.name], ids=["primitive", "name"])
@pytest.mark.parametrize(
    "rule",
    [
        "... -> ...",
        of_jax.SdyShardingRule((of_jax.ArrayMapping("i", "j"),), (of_jax.ArrayMapping("i", "j"),)),
        SdyShardingRule([("i", "j")], [("i", "j")]),
    ],
    ids=["string", "JAX", "Shardwise"],
)
def test_a_primitive_runs_on_shards(op, rule):
    inside_jax.register_sharding_rule(op, rule)
    function = partial(triple_p.bind, by=3.0)
    result = inside_jax.jit(function)(place(X))
    assert result.sharding.spec == P("data", "model")
    np.testing.assert_allclose(result, 3 * X, rtol=1e-6)
    assert collectives(function, place(X)) == {}


def test_partial_sums_are_reduced():
    inside_jax.register_sharding_rule(product_p, "m k, k n -> m n", reduction_factors=("k",))
    x = jax.device_put(X, NamedSharding(mesh(), P(None, "data")))
    w = jax.device_put(W, NamedSharding(mesh(), P("data")))
    np.testing.assert_allclose(inside_jax.jit(product)(x, w), X @ W, rtol=1e-5, atol=1e-5)
    assert collectives(product, x, w) == {"all_reduce": 1}


def test_a_pallas_kernel_runs_on_shards():
    shapes = []

    def lower_fn(x):
        shapes.append(x.shape)
        return double(x)

    inside_jax.register_sharding_rule("double_kernel", "... -> ...", lower_fn)
    result = inside_jax.jit(lambda x: double(x) + 1)(place(X))
    assert result.sharding.spec == P("data", "model")
    assert set(shapes) == {(2, 2)}
    np.testing.assert_allclose(result, 2 * X + 1, rtol=1e-6)
    shapes.clear()
    np.testing.assert_allclose(inside_jax.jit(lambda x: double(x) + 2)(X), 2 * X + 2, rtol=1e-6)
    assert not shapes  # nothing is sharded on one device


def test_a_pallas_kernel_without_a_function_of_shards_is_an_error():
    inside_jax.register_sharding_rule("double_kernel", "... -> ...")
    with pytest.raises(UnsupportedError, match=r"'double_kernel' has a sharding rule, but its grid.*Pass `lower_fn`"):
        inside_jax.jit(double)(place(X))


def test_a_new_rule_replaces_the_plans_without_it():
    function = partial(triple_p.bind, by=3.0)
    x = jax.device_put(X, NamedSharding(mesh(), P("data")))
    with pytest.warns(UserWarning, match="opaque to the planner.*`inside_jax.register_sharding_rule`"):
        inside_jax.jit(function)(x)
    inside_jax.register_sharding_rule(triple_p, "... -> ...")
    assert inside_jax.jit(function)(x).sharding.spec == P("data")


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("m k -> m", {}, r"the rule has 1 operands, but the function has 2"),
        ("m k, k n -> m n, m", {}, r"the rule has 2 results, but the function has 1"),
        ("m, k n -> m n", {}, r"operand 0 has rank 1 in the rule, but its type is f32\[8,4\]"),
        ("m k, m n -> m n", {}, r"dims of 'm' have the sizes 4 and 8"),
        ("m k, k n -> m n", {}, r"operands have 'k', but result 0.*pass `reduction_factors=\('k',\)`"),
        ("(a b) k, k n -> (a b) n", {"a": 3, "b": 2, "reduction_factors": ("k",)}, r"\(a b\) has size 6"),
    ],
    ids=["operands", "results", "rank", "sizes", "reduction", "compound"],
)
def test_a_rule_that_does_not_fit_the_op_is_an_error(rule, options, message):
    inside_jax.register_sharding_rule(product_p, rule, **options)
    with pytest.raises(
        ShardingError, match=rf"the sharding rule of 'test_rule_product' at test_sharding_rules.py:\d+: .*{message}"
    ):
        inside_jax.jit(product)(place(X), W)


def test_a_function_of_shards_with_other_results_is_an_error():
    inside_jax.register_sharding_rule(triple_p, "... -> ...", lambda x: x[:1])
    with pytest.raises(
        ShardingError, match=r"'test_rule_triple' at .* for shards f32\[2,2\] it returns float32\[1, 2\]"
    ):
        inside_jax.jit(lambda x: triple_p.bind(x, by=3.0))(place(X))


def test_parameters_that_hold_global_shapes_are_an_error():
    inside_jax.register_sharding_rule(reshape_p, "i j -> i j")
    with pytest.raises(ShardingError, match=r"it returns float32\[8, 4\].* hold shapes of unsharded arrays"):
        inside_jax.jit(lambda x: reshape_p.bind(x, shape=(8, 4)))(place(X))


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        (("sin", "i -> i"), {}, ValueError, "the planner has a rule for 'sin' already"),
        (("scan", "i -> i"), {}, ValueError, "the planner has a rule for 'scan' already"),
        ((triple_p, "i j"), {}, ValueError, "must have one `->`"),
        ((triple_p, "i -> i"), {"reduction_factors": ("k",)}, ValueError, "'k', which is not a factor of the rule"),
        ((triple_p, 3), {}, TypeError, "must be a string or an SdyShardingRule, not 3"),
        ((3, "i -> i"), {}, TypeError, "the op must be a name or a primitive of JAX, not 3"),
        (
            (triple_p, SdyShardingRule([("i",)], [("i",)])),
            {"need_replication_factors": ("i",)},
            ValueError,
            "need_replication_factors is an option of a sharding_rule that is a string",
        ),
    ],
    ids=["known", "loop", "arrow", "factor", "rule", "op", "options"],
)
def test_invalid_registrations(args, options, error, message):
    with pytest.raises(error, match=message):
        inside_jax.register_sharding_rule(*args, **options)
