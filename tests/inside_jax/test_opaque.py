"""Equations that JAX itself lowers: values like JAX's, with a warning on a mesh."""

import numpy as np
import pytest

from tests.inside_jax.primitives.cases import NamedSharding, P, inside_jax, jax, jnp, mesh, place

pytestmark = pytest.mark.jax

pallas = pytest.importorskip("jax.experimental.pallas")
mlir = pytest.importorskip("jax.interpreters.mlir")

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
SQUARE = (X.T @ X + 4 * np.eye(4)).astype(np.float32)
OPAQUE = r"'{}' of JAX at test_opaque.py:\d+ is opaque to the planner.*call it inside `jax.shard_map`"


jax.lax.linalg.cholesky(np.eye(2, dtype=np.float32))  # initializes LAPACK


def ffi_cholesky(a):
    """Return LAPACK's Cholesky factor by an FFI call."""
    types = (jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct((), np.int32))
    layouts = {"input_layouts": [(1, 0)], "output_layouts": [(1, 0), ()], "input_output_aliases": {0: 0}}
    factor, _ = jax.ffi.ffi_call("lapack_spotrf_ffi", types, **layouts)(a, uplo=np.uint8(ord("L")))
    return jnp.tril(factor)


def double(x):
    def kernel(x_ref, out_ref):
        out_ref[...] = 2 * x_ref[...]

    return pallas.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


triple_p = jax.extend.core.Primitive("test_triple")  # has a lowering, and neither an implementation nor other rules
triple_p.def_abstract_eval(lambda x, *, by: x)
mlir.register_lowering(triple_p, mlir.lower_fun(lambda x, *, by: by * x, multiple_results=False))


def triple(x):
    return triple_p.bind(x, by=3.0)


quadruple_p = jax.extend.core.Primitive("test_quadruple")  # its implementation is a function of other primitives
quadruple_p.def_abstract_eval(lambda x: x)
quadruple_p.def_impl(lambda x: 4 * x)


def test_an_ffi_call():
    function = inside_jax.jit(lambda a: ffi_cholesky(a) + 1)
    np.testing.assert_allclose(function(SQUARE), np.linalg.cholesky(SQUARE) + 1, rtol=1e-5)
    with pytest.warns(UserWarning, match=OPAQUE.format("ffi_call")):
        result = function(place(SQUARE))
    np.testing.assert_allclose(result, np.linalg.cholesky(SQUARE) + 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "factor", "primitive"),
    [(double, 2, "pallas_call"), (triple, 3, "test_triple")],
    ids=["pallas", "custom"],
)
def test_a_primitive_with_a_lowering(function, factor, primitive):
    ours = inside_jax.jit(lambda x: function(jnp.sin(x)) + 1)
    expected = factor * np.sin(X) + 1
    np.testing.assert_allclose(ours(X), expected, rtol=1e-5)
    with pytest.warns(UserWarning, match=OPAQUE.format(primitive)) as warned:
        result = ours(place(X))
    assert [each.filename for each in warned] == [__file__]
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_inside_shard_map_an_opaque_primitive_has_shards():
    mapped = jax.shard_map(triple, mesh=mesh(), in_specs=P("data"), out_specs=P("data"), check_vma=False)
    ours = inside_jax.jit(lambda x: mapped(x) + 1)
    x = jax.device_put(X, NamedSharding(mesh(), P("data")))
    np.testing.assert_allclose(ours(x), 3 * X + 1, rtol=1e-6)
    assert ours.lower(x).as_text().count("all_gather") == 0


def test_opaque_primitives_in_a_loop():
    def function(x):
        return jax.lax.scan(lambda c, _: (triple(c), triple(c)[0]), x, None, length=3)

    ours, theirs = inside_jax.jit(function)(X), jax.jit(function)(X)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("x", [X, place(X)], ids=["one device", "mesh"])
def test_a_primitive_with_a_python_implementation_is_planned(x):
    np.testing.assert_array_equal(inside_jax.jit(quadruple_p.bind)(x), 4 * X)


def test_sparse_arrays():
    sparse = pytest.importorskip("jax.experimental.sparse")
    matrix = np.where(np.abs(X) > 0.5, X, 0)

    def product(y):
        return sparse.BCOO.fromdense(matrix, nse=20) @ y

    with pytest.warns(UserWarning, match=OPAQUE.format("bcoo_dot_general")):  # others have implementations to plan
        result = inside_jax.jit(product)(place(SQUARE))
    np.testing.assert_allclose(result, matrix @ SQUARE, rtol=1e-5)


def test_a_primitive_without_a_lowering_is_an_error():
    unknown_p = jax.extend.core.Primitive("unknown")
    unknown_p.def_abstract_eval(lambda x: x)
    with pytest.raises(Exception, match=r"the primitive 'unknown' of JAX at test_opaque.py:\d+ is not supported"):
        inside_jax.jit(lambda x: unknown_p.bind(x) + 1)(X)
