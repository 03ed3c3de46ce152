"""ffi_call: LAPACK's handlers, which need no compiler, and a library that is compiled here."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P, ffi
from shardwise.errors import UnsupportedError

ROOT = Path(__file__).parent.parent
POTRF = "lapack_spotrf_ffi"
RNG = np.random.default_rng(0)


def cholesky(x, **options):
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(x.shape[:-2], np.int32)]
    order = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)  # LAPACK's matrices are column-major
    call = ffi.ffi_call(POTRF, types, input_layouts=[order], output_layouts=[order, None], **options)
    return call(x, uplo=np.uint8(ord("L")))


def positive(*batch):
    x = RNG.standard_normal((*batch, 4, 4)).astype(np.float32)
    return x @ x.swapaxes(-1, -2) + 4 * np.eye(4, dtype=np.float32)


@pytest.fixture(scope="module", autouse=True)
def lapack():
    jnp.linalg.cholesky(jnp.eye(2))  # registers LAPACK's handlers


def test_a_handler_of_lapack():
    x = positive(3)
    factor, info = jax.jit(cholesky)(x)
    np.testing.assert_allclose(np.tril(factor), np.linalg.cholesky(x), rtol=1e-5, atol=1e-5)
    assert info.dtype == np.int32 and not np.any(info)
    eager, _ = cholesky(jnp.asarray(x), input_output_aliases={0: 0})
    np.testing.assert_array_equal(eager, factor)


@pytest.mark.parametrize("method", [None, "sequential", "expand_dims", "broadcast_all"])
def test_vmap(method):
    x = positive(3)
    factor, _ = jax.vmap(lambda x: cholesky(x, vmap_method=method))(x)
    np.testing.assert_allclose(np.tril(factor), np.linalg.cholesky(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_the_mapped_dim_can_be_sharded(method):
    plan, spec = sharded_factor(jax.vmap(lambda x: cholesky(x, vmap_method=method)))
    assert plan.counts() == {} and spec[0] == "data"


def sharded_factor(call):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    x = positive(8)
    step = jax.jit(lambda x: call(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data"))))[0])
    np.testing.assert_allclose(np.tril(step(x)), np.linalg.cholesky(x), rtol=1e-5, atol=1e-5)
    return step.lower(x).compile().plan, step(x).sharding.spec


def test_shardings():
    plan, _ = sharded_factor(cholesky)
    assert plan.counts() == {"all_gather": 1}  # every device calls the target with whole arrays
    rule = "b i j -> b i j, b", {"need_replication_factors": ("i", "j")}
    plan, spec = sharded_factor(lambda x: cholesky(x, sharding_rule=rule))
    assert plan.counts() == {} and spec[0] == "data"
    ffi.register_ffi_target_as_batch_partitionable(POTRF)
    try:
        plan, spec = sharded_factor(cholesky)
        assert plan.counts() == {} and spec[0] == "data"
    finally:
        ffi._batch_partitionable.clear()


def test_rows_of_a_batch_partitionable_target_are_not_sharded():
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    ffi.register_ffi_target_as_batch_partitionable("row_target")
    try:
        for spec, gathers in ((P("data"), 0), (P(None, "model"), 1), (P("data", "model"), 1)):
            x = jax.ShapeDtypeStruct((8, 6), np.float32, sharding=NamedSharding(mesh, spec))
            plan = jax.explain(ffi.ffi_call("row_target", x))(x)
            assert plan.counts().get("all_gather", 0) == gathers
    finally:
        ffi._batch_partitionable.clear()


def test_derivatives_are_the_users():
    @jax.custom_vjp
    def factor(x):
        return cholesky(x)[0]

    factor.defvjp(lambda x: (factor(x), None), lambda _, ct: (2 * ct,))
    np.testing.assert_array_equal(jax.grad(lambda x: factor(x).sum())(positive()), np.full((4, 4), 2))
    with pytest.raises(ValueError, match=r"cannot differentiate 'lapack_spotrf_ffi'.*Wrap the call in custom_jvp"):
        jax.grad(lambda x: cholesky(x)[0].sum())(positive())


def text_of(**attributes):
    call = ffi.ffi_call("some_target", jax.ShapeDtypeStruct((2,), np.float32), has_side_effect=True)
    return jax.jit(lambda x: call(x, **attributes)).trace(jnp.ones(2)).lower().as_text()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, "a = 3 : i64"),
        (np.int32(-3), "a = -3 : i32"),
        (np.uint8(3), "a = 3 : ui8"),
        (True, "a = true"),
        (1.5, "a = 0x3FF8000000000000 : f64"),
        (np.float32(np.inf), "a = 0x7F800000 : f32"),
        ('a"b\\\n', r'a = "a\22b\5C\0A"'),
        (np.array([1, 2]), "a = array<i64: 1, 2>"),
        (np.float32([1, 2]), "a = array<f32: 0x3F800000, 0x40000000>"),
        ({"b": 1, "c": "d"}, 'a = {b = 1 : i64, c = "d"}'),
        ({"b c": 1, "2": {"d=1, e": 2}}, 'a = {"2" = {"d=1, e" = 2 : i64}, "b c" = 1 : i64}'),
    ],
)
def test_attributes(value, shown):
    text = text_of(a=value)
    assert shown in text
    assert "has_side_effect = true" in text


def test_names_of_attributes_that_are_no_identifiers():
    assert '"b c" = 1 : i64' in text_of(**{"b c": 1})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: text_of(a=object()), TypeError, "attribute a must be a boolean, a number, a string"),
        (lambda: text_of(a=np.ones((2, 2))), TypeError, "attribute a must have at most one dim"),
        (lambda: cholesky(positive(), vmap_method="other"), ValueError, "vmap_method must be one of None"),
        (
            lambda: cholesky(positive(), input_output_aliases={0: 2}),
            ValueError,
            "alias 0: 2 names an operand or result",
        ),
        (lambda: cholesky(positive(), input_output_aliases={0: 1}), ValueError, "cannot share a buffer"),
        (lambda: cholesky(positive(), custom_call_api_version=2), UnsupportedError, "an older interface"),
        (lambda: ffi.ffi_call("t", jnp.ones(2), input_layouts=[])(1.0), ValueError, "0 layouts for 1 arrays"),
        (lambda: ffi.ffi_call("t", jnp.ones(2), input_layouts=[(1,)])(jnp.ones(2)), ValueError, "is not a layout of"),
        (lambda: text_of(a={1: 2}), TypeError, "has the key 1: keys must be strings"),
        (lambda: ffi.ffi_call(None, jnp.ones(2)), TypeError, "the name of a target must be a string, not None"),
        (lambda: ffi.ffi_call("t", None), TypeError, "result_shape_dtypes has None"),
        (lambda: ffi.ffi_call("t", {"a": jnp.ones(2)}), TypeError, "which has no shape and dtype"),
        (lambda: ffi.ffi_call("t", jnp.ones(2), input_output_aliases=[(0, 0)]), TypeError, "must be a dict"),
        (lambda: ffi.ffi_call("t", jnp.ones(2), input_output_aliases={"x": 0}), TypeError, "the index of an operand"),
        (lambda: ffi.ffi_call("t", jnp.ones(2), output_layouts=[(0,)])(1.0), TypeError, "pass its layout alone"),
        (lambda: ffi.ffi_call("t", jnp.ones(2), input_layouts=0)(1.0), TypeError, "must be a sequence"),
        (lambda: ffi.ffi_call("t", jnp.ones(2), sharding_rule=3)(1.0), TypeError, "sharding_rule must be a string"),
        (lambda: ffi.register_ffi_target("t", None), TypeError, "must be a capsule"),
        (lambda: ffi.register_ffi_target("t", ctypes.pythonapi.Py_IncRef), TypeError, "must be a capsule"),
        (lambda: ffi.register_ffi_target_as_batch_partitionable(1), TypeError, "must be a string, not 1"),
        (lambda: ffi.register_ffi_target(1, None), TypeError, "the name of a target must be a string, not 1"),
        (lambda: ffi.register_ffi_target("t", None, platform=None), ValueError, "platform must be 'cpu', 'cuda'"),
        (lambda: ffi.register_ffi_target("t", None, platform="abacus"), ValueError, "platform must be 'cpu', 'cuda'"),
        (lambda: ffi.register_ffi_target("t", None, api_version=0), UnsupportedError, "1 is supported"),
        (lambda: jax.jit(ffi.ffi_call("no_such_target", jnp.ones(2)))(1.0), Exception, "no_such_target"),
        (lambda: ffi.ffi_lowering("t"), UnsupportedError, "Call the target with `ffi_call`"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_wrong_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("address", [None, 0, 4096, "RmsNorm", b"RmsNorm"])
def test_a_capsule_is_made_of_a_loaded_function(address):
    with pytest.raises(TypeError, match="expected a function of a library that ctypes has loaded"):
        ffi.pycapsule(address)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_compiled_library(tmp_path):
    library = tmp_path / "librms.so"
    source = ROOT / "examples/rms_norm.cc"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", f"-I{ffi.include_dir()}"]
    subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True, timeout=120)
    handler = ctypes.cdll.LoadLibrary(str(library)).RmsNorm
    ffi.register_ffi_target("test_rms_norm", ffi.pycapsule(handler))
    x = RNG.standard_normal((8, 6)).astype(np.float32)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    rule = "b k -> b k", {"need_replication_factors": ("k",)}
    call = ffi.ffi_call("test_rms_norm", jax.ShapeDtypeStruct(x.shape, x.dtype), sharding_rule=rule)
    sharded = jax.device_put(x, NamedSharding(jax.make_mesh((4, 2), ("data", "model")), P("data", "model")))
    for operand in (x, sharded):
        result = jax.jit(lambda x: call(x, epsilon=np.float32(1e-5)))(operand)
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    with pytest.raises(jax.errors.JaxRuntimeError, match="expected F32 but got F64"):
        call(jnp.asarray(x), epsilon=1e-5)  # a double, where the handler reads a float
