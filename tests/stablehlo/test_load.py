"""load: modules of real JAX and of Shardwise, and modules that no framework writes."""

import io

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax, stablehlo
from shardwise.errors import ProgramError, UnsupportedError
from tests.stablehlo.xla import run_module

jax = pytest.importorskip("jax")
programs = pytest.importorskip("tests.stablehlo.programs")

pytestmark = pytest.mark.jax


def as_list(results):
    return list(results) if isinstance(results, (tuple, list)) else [results]


def assert_equal(ours, theirs):
    for x, y in zip(as_list(ours), theirs, strict=True):
        is_key = jax.dtypes.issubdtype(y.dtype, jax.dtypes.prng_key)
        expected = np.asarray(jax.random.key_data(y) if is_key else y)  # keys are their words in a module
        assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
        wide = np.complex128 if x.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(np.asarray(x).astype(wide), expected.astype(wide), rtol=2e-4, atol=2e-4)


def lowered(name):
    function, arguments = programs.PROGRAMS[name]
    return jax.jit(function, keep_unused=True).lower(*arguments), jax.tree.leaves(arguments)


@pytest.mark.table(default=20)
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_modules_of_jax_compute_the_same(name):
    function, arguments = programs.PROGRAMS[name]
    module, leaves = lowered(name)
    assert_equal(stablehlo.load(module.as_text())(*leaves), jax.tree.leaves(jax.jit(function)(*arguments)))


@pytest.mark.parametrize("name", ["mlp_step", "scan_gradient", "sorting", "conversions", "complex"])
def test_bytecode_is_the_same_program(name):
    module, leaves = lowered(name)
    bytecode = io.BytesIO()
    module.compiler_ir().operation.write_bytecode(bytecode)
    structs = [sw.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    text, binary = (
        sw.jit(stablehlo.load(source)).trace(*structs).program for source in (module.as_text(), bytecode.getvalue())
    )
    assert text == binary


@pytest.mark.parametrize("name", ["mlp_step", "scan_gradient", "sorting", "conversions", "complex"])
def test_portable_artifacts_of_jax_export(name):
    function, arguments = programs.PROGRAMS[name]
    exported = jax.export.export(jax.jit(function, keep_unused=True))(*arguments)
    results = stablehlo.load(bytes(exported.mlir_module_serialized))(*jax.tree.leaves(arguments))
    assert_equal(results, jax.tree.leaves(jax.jit(function)(*arguments)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: jnp.tanh(x @ y).sum(0),
        lambda x, y: (jnp.sort(x, 0), jnp.argsort(-x), lax.top_k(x, 2)[1]),
        lambda x, y: lax.scan(lambda c, t: (c * 0.5 + t, c), x[0], x),
        lambda x, y: lax.while_loop(lambda s: s.sum() < 50, lambda s: s + 1, jnp.abs(x)),
        lambda x, y: (jnp.linalg.cholesky(y @ y.T + 4 * jnp.eye(4)), x @ jnp.linalg.qr(y)[1]),
        lambda x, y: (jnp.cumsum(x, 1), jnp.argmax(x, 1), x[jnp.abs(y[0]).astype(int)], jnp.median(x, 0)),
        lambda x, y: sw.random.normal(sw.random.key(3), (4,)) * x,
        sw.grad(lambda x, y: jnp.sum(jnp.exp(x @ y) ** 2), (0, 1)),
    ],
    ids=["dot", "sort", "scan", "while", "linalg", "indexing", "random", "gradient"],
)
def test_modules_of_shardwise_round_trip(function):
    jitted = sw.jit(function)
    text = jitted.lower(programs.X, programs.SQUARE).as_text()
    function = stablehlo.load(text)
    results = function(*(programs.X, programs.SQUARE)[: len(function.in_types)])  # unused arguments are dropped
    assert_equal(results, sw.tree.leaves(jitted(programs.X, programs.SQUARE)))


def module(body, arguments="%x: tensor<4xf32>", results="tensor<4xf32>", functions=""):
    return f"func.func @main({arguments}) -> ({results}) {{\n{body}\n}}\n{functions}"


# Ops in forms that JAX does not write. XLA is the oracle.
FORMS = {
    "boolean arithmetic": (
        module(
            "%0 = stablehlo.add %x, %y : tensor<4xi1>\n%1 = stablehlo.multiply %0, %x : tensor<4xi1>\n"
            "%2 = stablehlo.maximum %1, %y : tensor<4xi1>\nreturn %2 : tensor<4xi1>",
            "%x: tensor<4xi1>, %y: tensor<4xi1>",
            "tensor<4xi1>",
        ),
        (np.array([True, True, False, False]), np.array([True, False, True, False])),
    ),
    "total order": (
        module(
            "%0 = stablehlo.compare LT, %x, %y, TOTALORDER : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>\n"
            "return %0 : tensor<4xi1>",
            "%x: tensor<4xf32>, %y: tensor<4xf32>",
            "tensor<4xi1>",
        ),
        (np.array([-0.0, 0.0, 1.0, -np.inf], np.float32), np.array([0.0, -0.0, np.nan, np.inf], np.float32)),
    ),
    "case out of bounds": (
        module(
            '%0 = "stablehlo.case"(%i) ({ stablehlo.return %x : tensor<4xf32> }, '
            "{ %1 = stablehlo.negate %x : tensor<4xf32>\nstablehlo.return %1 : tensor<4xf32> }) "
            ": (tensor<i32>) -> tensor<4xf32>\nreturn %0 : tensor<4xf32>",
            "%x: tensor<4xf32>, %i: tensor<i32>",
        ),
        (np.arange(4, dtype=np.float32), np.int32(-3)),
    ),
    "if": (
        module(
            '%0 = "stablehlo.if"(%p) ({ stablehlo.return %x : tensor<4xf32> }, '
            "{ %1 = stablehlo.negate %x : tensor<4xf32>\nstablehlo.return %1 : tensor<4xf32> }) "
            ": (tensor<i1>) -> tensor<4xf32>\nreturn %0 : tensor<4xf32>",
            "%x: tensor<4xf32>, %p: tensor<i1>",
        ),
        (np.arange(4, dtype=np.float32), np.array(False)),
    ),
    "reductions of two operands with initial values": (
        module(
            "%a = stablehlo.constant dense<2.0> : tensor<f32>\n%b = stablehlo.constant dense<5.0> : tensor<f32>\n"
            '%0:2 = "stablehlo.reduce"(%x, %x, %a, %b) <{dimensions = array<i64: 0>}> ({\n'
            "^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<f32>, %s: tensor<f32>):\n"
            "%1 = stablehlo.add %p, %r : tensor<f32>\n%2 = stablehlo.maximum %s, %q : tensor<f32>\n"
            "stablehlo.return %1, %2 : tensor<f32>, tensor<f32> }) : "
            "(tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)\n"
            "return %0#0, %0#1 : tensor<f32>, tensor<f32>",
            results="tensor<f32>, tensor<f32>",
        ),
        (np.array([1, 2, 3, 4], np.float32),),
    ),
    "a reduction by another function": (
        module(
            "%a = stablehlo.constant dense<0.0> : tensor<f32>\n"
            '%0 = "stablehlo.reduce"(%x, %a) <{dimensions = array<i64: 0>}> ({\n'
            "^bb0(%p: tensor<f32>, %q: tensor<f32>):\n%1 = stablehlo.multiply %p, %p : tensor<f32>\n"
            "%2 = stablehlo.multiply %q, %q : tensor<f32>\n%3 = stablehlo.add %1, %2 : tensor<f32>\n"
            "%4 = stablehlo.sqrt %3 : tensor<f32>\nstablehlo.return %4 : tensor<f32> }) : "
            "(tensor<4xf32>, tensor<f32>) -> tensor<f32>\nreturn %0 : tensor<f32>",
            results="tensor<f32>",
        ),
        (np.array([1, 2, 3, 4], np.float32),),
    ),
    "index vectors along the first dim": (
        module(
            '%0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [], '
            "collapsed_slice_dims = [0, 1], start_index_map = [1, 0], index_vector_dim = 0>, "
            "slice_sizes = array<i64: 1, 1>}> : (tensor<4x3xf32>, tensor<2x5xi32>) -> tensor<5xf32>\n"
            "return %0 : tensor<5xf32>",
            "%x: tensor<4x3xf32>, %i: tensor<2x5xi32>",
            "tensor<5xf32>",
        ),
        (np.arange(12, dtype=np.float32).reshape(4, 3), np.array([[0, 1, 2, 9, -1], [3, 2, 1, 0, 9]], np.int32)),
    ),
    "chlo with broadcasting": (
        module(
            "%0 = chlo.broadcast_add %x, %y : (tensor<4x1xf32>, tensor<4xf32>) -> tensor<4x4xf32>\n"
            "%1 = chlo.broadcast_compare %0, %x {comparison_direction = #chlo<comparison_direction GT>} : "
            "(tensor<4x4xf32>, tensor<4x1xf32>) -> tensor<4x4xi1>\nreturn %0, %1 : tensor<4x4xf32>, tensor<4x4xi1>",
            "%x: tensor<4x1xf32>, %y: tensor<4xf32>",
            "tensor<4x4xf32>, tensor<4x4xi1>",
        ),
        (np.arange(4, dtype=np.float32).reshape(4, 1), np.array([-1, 0, 1, 2], np.float32)),
    ),
    "64 bits inside": (
        module(
            "%0 = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xf64>\n"
            "%1 = stablehlo.constant dense<1.0e-12> : tensor<4xf64>\n%2 = stablehlo.add %0, %1 : tensor<4xf64>\n"
            "%3 = stablehlo.subtract %2, %0 : tensor<4xf64>\n"
            "%4 = stablehlo.convert %3 : (tensor<4xf64>) -> tensor<4xf32>\nreturn %4 : tensor<4xf32>"
        ),
        (np.ones(4, np.float32),),
    ),
    "a reversed kernel": (
        module(
            '%0 = "stablehlo.convolution"(%x, %k) <{batch_group_count = 1 : i64, feature_group_count = 1 : i64, '
            "dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, "
            "window_reversal = array<i1: true>, padding = dense<[[1, 2]]> : tensor<1x2xi64>}> : "
            "(tensor<2x1x6xf32>, tensor<3x1x4xf32>) -> tensor<2x3x6xf32>\nreturn %0 : tensor<2x3x6xf32>",
            "%x: tensor<2x1x6xf32>, %k: tensor<3x1x4xf32>",
            "tensor<2x3x6xf32>",
        ),
        (np.arange(12, dtype=np.float32).reshape(2, 1, 6), np.arange(12, dtype=np.float32).reshape(3, 1, 4)),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_jax_does_not_write(name):
    text, arguments = FORMS[name]
    function = stablehlo.load(text)
    assert_equal(function(*arguments), run_module(text, arguments, function.out_types))


def test_transformations():
    text = jax.jit(lambda x: jax.numpy.sin(x).sum()).lower(programs.X).as_text()
    function = stablehlo.load(text)
    np.testing.assert_allclose(sw.grad(function)(programs.X), np.cos(programs.X), rtol=1e-5)
    np.testing.assert_allclose(
        sw.vmap(function)(np.stack([programs.X, 2 * programs.X]))[1], np.sin(2 * programs.X).sum(), rtol=1e-4
    )


def test_names_types_and_arguments():
    function = stablehlo.load(jax.jit(programs.mlp_step).lower(programs.MLP, *programs.MLP_BATCH).as_text())
    assert function.__name__ == "mlp_step"
    assert [str(type) for type in function.in_types] == ["f32[16,32]", "f32[32,16]", "f32[16,16]", "f32[16,16]"]
    assert repr(function).startswith("<StableHLO module mlp_step: (f32[16,32],")
    with pytest.raises(TypeError, match="mlp_step takes 4 arguments, not 1"):
        function(programs.X)
    with pytest.raises(TypeError, match=r"mlp_step: argument 0 must be f32\[16,32\], not f32\[8,4\]"):
        function(*[programs.X] * 4)


def test_an_argument_of_64_bits_needs_the_setting():
    function = stablehlo.load(module("return %x : tensor<4xf64>", "%x: tensor<4xf64>", "tensor<4xf64>"))
    with pytest.raises(TypeError, match="Set `jax_enable_x64`"):
        function(np.ones(4))
    with sw.enable_x64(True):
        assert function(np.ones(4)).dtype == np.float64


def test_an_op_that_is_not_supported():
    text = module(
        '%0 = "stablehlo.rng"(%a, %b, %s) <{rng_distribution = #stablehlo<rng_distribution UNIFORM>}> : '
        '(tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32> loc("model.py":12:3)\nreturn %0 : tensor<4xf32>',
        "%a: tensor<f32>, %b: tensor<f32>, %s: tensor<1xi64>",
    )
    with (
        sw.enable_x64(True),
        pytest.raises(UnsupportedError, match=r"the op stablehlo.rng at model.py:12 is not supported"),
    ):
        stablehlo.load(text)(np.float32(0), np.float32(1), np.array([4]))


def test_a_reduction_whose_result_depends_on_the_order():
    text = module(
        "%a = stablehlo.constant dense<0.0> : tensor<f32>\n"
        '%0 = "stablehlo.reduce"(%x, %a) <{dimensions = array<i64: 0>}> ({\n^bb0(%p: tensor<f32>, %q: tensor<f32>):\n'
        "%1 = stablehlo.subtract %p, %q : tensor<f32>\nstablehlo.return %1 : tensor<f32> }) : "
        "(tensor<4xf32>, tensor<f32>) -> tensor<f32>\nreturn %0 : tensor<f32>",
        results="tensor<f32>",
    )
    with pytest.raises(UnsupportedError, match=r"stablehlo.reduce at <stablehlo>:3: the region is not associative"):
        stablehlo.load(text)(np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("diag = 78", "diag = 79"), "the option 'diag' must be one of N, U, not 'O'"),
        (("diag = 78 : ui8, ", ""), "has no option 'diag'"),
        (("result_layouts = [dense<[0, 1]>", "result_layouts = [dense<[1, 0]>"), "matrices must be column-major"),
    ],
)
def test_calls_of_lapack_that_are_not_supported(changed, message):
    module, leaves = lowered("triangular_solve")
    with pytest.raises(UnsupportedError, match=message):
        stablehlo.load(module.as_text().replace(*changed))(*leaves)


def test_a_custom_call_that_is_not_supported():
    text = module(
        "%0 = stablehlo.custom_call @mystery(%x) : (tensor<4xf32>) -> tensor<4xf32>\nreturn %0 : tensor<4xf32>"
    )
    with pytest.raises(UnsupportedError, match=r"stablehlo.custom_call at <stablehlo>:2: the target 'mystery' is not"):
        stablehlo.load(text)(np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("body", "arguments", "message"),
    [
        ("return %x : tensor<?xf32>", "%x: tensor<?xf32>", "has a dynamic dim"),
        ("return %x : !stablehlo.token", "%x: !stablehlo.token", "only tensors with static shapes"),
        ("return %x : tensor<4xi3>", "%x: tensor<4xi3>", "elements of the type i3 are not supported"),
    ],
)
def test_types_that_are_not_supported(body, arguments, message):
    with pytest.raises((UnsupportedError, ProgramError), match=message):
        stablehlo.load(module(body, arguments, arguments.removeprefix("%x: ")))


def test_functions_that_call_themselves():
    text = module("%0 = call @main(%x) : (tensor<4xf32>) -> tensor<4xf32>\nreturn %0 : tensor<4xf32>")
    with pytest.raises(ProgramError, match="nested"):
        stablehlo.load(text)(np.ones(4, np.float32))


def test_calls_that_multiply(monkeypatch):
    monkeypatch.setattr("shardwise.stablehlo.read.MAX_OPS", 1000)
    functions = [
        f"func.func private @f{n}(%x: tensor<4xf32>) -> tensor<4xf32> {{\n"
        f"%0 = call @f{n + 1}(%x) : (tensor<4xf32>) -> tensor<4xf32>\n"
        f"%1 = call @f{n + 1}(%0) : (tensor<4xf32>) -> tensor<4xf32>\nreturn %1 : tensor<4xf32> }}"
        for n in range(30)
    ]
    functions.append("func.func private @f30(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    body = "%0 = call @f0(%x) : (tensor<4xf32>) -> tensor<4xf32>\nreturn %0 : tensor<4xf32>"
    with pytest.raises(UnsupportedError, match="more than 1,000 ops"):
        stablehlo.load(module(body, functions="\n".join(functions)))(np.ones(4, np.float32))


def test_a_module_is_text_or_bytes():
    with pytest.raises(ProgramError, match="must be text or bytes, not Lowered"):
        stablehlo.load(jax.jit(lambda x: x).lower(1.0))


def test_autoshard_chooses_shardings():
    text = FORMS["a reversed kernel"][0]
    structs = [sw.ShapeDtypeStruct(x.shape, x.dtype) for x in FORMS["a reversed kernel"][1]]
    plan = sw.autoshard(stablehlo.load(text), mesh=sw.make_mesh((2,), ("data",)), hardware="h100")(*structs)
    assert len(sw.tree.leaves(plan.in_shardings)) == 2
