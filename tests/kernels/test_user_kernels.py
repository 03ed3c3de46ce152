"""Triton kernels of users: modules that run and that do not, rules, and what each error says."""

import re

import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P
from shardwise.base._jaxlib import RuntimeFailure, parse_module
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.user_kernel import UserKernel
from shardwise.compiler.trace.build import build
from shardwise.errors import KernelError
from shardwise.runtime.kernel_failure import check_kernels
from tests.compiler.kernels.run_kernel import run_kernel

BLOCK = 16
RNG = np.random.default_rng(0)


def centred(x):
    return x - x.mean(-1, keepdims=True)


def module(x, result):
    rows, width = x.size // x.shape[-1], x.shape[-1]
    kernel = jax.kernels.TritonBuilder("centred", [x, result])
    source, target = kernel.pointers
    row = kernel.program_id() * BLOCK + kernel.range(BLOCK)
    columns = kernel.range(32)
    offsets = row.expand(1) * width + columns.expand(0)
    mask = (row.expand(1) < rows) & (columns.expand(0) < width)
    values = kernel.load(source, offsets, mask)
    kernel.store(target, offsets, values - (values.sum(1) / float(width)).expand(1), mask)
    return kernel.text()


def make(**options):
    arguments = {
        "ir": module,
        "grid": lambda x, result: -(-x.size // x.shape[-1] // BLOCK),
        "sharding_rule": ("... k -> ... k", {"need_replication_factors": ("k",)}),
        "gradient": lambda operands, results, cotangents: [centred(cotangents[0])],
        **options,
    }
    return jax.kernels.triton_kernel(centred, **arguments)


def lowered(function, *operands):
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    return jax.jit(function).trace(*types).lower(lowering_platforms=("cuda",)).as_text()


def kernel_ops(function, *operands):
    program, _ = build(lambda *xs: [function(*xs)], [ArrayType(x.shape, x.dtype) for x in operands], "test")
    return [equation.op for equation in program.walk() if isinstance(equation.op, UserKernel)]


def test_the_module_computes_the_meaning():
    x = RNG.standard_normal((3, 7, 24)).astype(np.float32)
    (op,) = kernel_ops(make(), x)
    np.testing.assert_allclose(run_kernel(op, x)[0], centred(x), atol=1e-6)


def test_results_are_those_of_the_meaning_on_uneven_shards_too():
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    x = RNG.standard_normal((10, 24)).astype(np.float32)
    sharded = jax.device_put(x, NamedSharding(mesh, P(None, "data")))
    function = make()
    np.testing.assert_allclose(function(x), centred(x), atol=1e-6)
    for spec in (P("data"), P("model", "data"), P(("data", "model"))):
        pinned = jax.jit(lambda x, spec=spec: function(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))))
        result = pinned(sharded)
        np.testing.assert_allclose(result, centred(x), atol=1e-6)
        assert result.sharding.spec == P(*spec[:1])


def test_gradient_and_vmap_use_the_kernel():
    x = RNG.standard_normal((3, 5, 24)).astype(np.float32)
    function = make()
    step = jax.grad(lambda x: (function(x) ** 3).sum())
    np.testing.assert_allclose(step(x), jax.grad(lambda x: (centred(x) ** 3).sum())(jnp.asarray(x)), atol=1e-4)
    assert lowered(step, x).count("__gpu$xla.gpu.triton") == 1
    second = jax.jvp(step, (x,), (np.cos(x),))[1]
    expected = jax.jvp(jax.grad(lambda x: (centred(x) ** 3).sum()), (x,), (np.cos(x),))[1]
    np.testing.assert_allclose(second, expected, atol=1e-4)
    mapped = jax.vmap(function, in_axes=1, out_axes=1)
    np.testing.assert_allclose(mapped(x), centred(x), atol=1e-6)
    assert [op.title for op in kernel_ops(mapped, x)] == ["centred"]
    unruly = jax.vmap(make(sharding_rule=None))
    np.testing.assert_allclose(unruly(x), centred(x), atol=1e-6)
    assert not kernel_ops(unruly, x)  # its meaning is batched
    plain = jax.grad(lambda x: (make(gradient=None)(x) ** 3).sum())
    np.testing.assert_allclose(plain(x), step(x), atol=1e-4)


def test_a_fixed_module_runs_for_its_operands_only():
    x, y = np.ones((8, 24), np.float32), np.ones((9, 24), np.float32)
    type = jax.ShapeDtypeStruct(x.shape, x.dtype)
    text = module(type, type)
    function = make(ir=text, operand_types=[type], name="fixed")
    assert "triton" in lowered(function, x) and "triton" not in lowered(function, y)
    plan = str(jax.explain(lambda x, y: (function(x), function(y)), hardware="h100")(x, y))
    assert "own kernels: 1 fixed" in plan
    assert "is computed by plain ops: its module was made for (f32[8,24]), not for (f32[9,24])" in plan
    with pytest.raises(TypeError, match="pass operand_types, the types of the operands that it was made for"):
        make(ir=text)


def test_a_kernel_that_does_not_support_a_shape_runs_its_meaning():
    function = make(supports=lambda x, result: "" if x.shape[-1] <= 32 else "rows exceed 32 elements")
    narrow, wide = np.ones((2, 3), np.float32), np.ones((2, 33), np.float32)
    assert "triton" in lowered(function, narrow) and "triton" not in lowered(function, wide)
    assert "rows exceed 32 elements" in str(jax.explain(function, hardware="h100")(wide))


def message(function, *operands):
    with pytest.raises(KernelError) as failure:
        lowered(function, *operands)
    return str(failure.value)


BROKEN = {
    "math.rsqrtt": ("line 3: custom op 'math.rsqrtt' is unknown", "    %1 = math.rsqrtt %x : f32"),
    "tt.make_range {end = 1 : i32, start = 5 : i32} : tensor<1xi32>": ("line 3: 'tt.make_range' op", "start = 5"),
    "arith.constant 1.0 : f32 }": ("line 5: expected operation name",),
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_module_that_is_not_valid_is_an_error_with_its_line(text):
    operands = " %x : f32" if text == "math.rsqrtt" else ""
    broken = (
        "module {\n  tt.func public @f(%p: !tt.ptr<f32>, %q: !tt.ptr<f32>, %x: f32) {\n"
        f"    %1 = {text}{operands}\n    tt.return\n  }}\n}}"
    )
    error = message(make(ir=lambda *types: broken), np.ones((2, 3), np.float32))
    assert re.match(r"the kernel 'centred' at test_user_kernels.py:\d+ cannot be compiled: its Triton IR", error), error
    assert all(part in error for part in BROKEN[text]), error
    with pytest.raises(KernelError, match="'centred' cannot be compiled: its Triton IR is not valid"):
        make(ir=broken, operand_types=[jax.ShapeDtypeStruct((2, 3), np.float32)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("module {}", "must have one public `tt.func`, the one to launch, but it has 0"),
        ("module { tt.func @f() { tt.return } tt.func @g() { tt.return } }", "but it has 2: @f, @g"),
        ("module { tt.func @f(%p: !tt.ptr<f32>, %n: i32) { tt.return } }", "parameter 1 of @f is i32, but result 0"),
        ("module { tt.func @f(%p: !tt.ptr<bf16>, %n: !tt.ptr<f32>) { tt.return } }", "but operand 0 is f32[2,3]"),
        (
            "module { tt.func @f(%p: !tt.ptr<f32>) { tt.return } }",
            "has 1 parameters, but the call has 1 operands and 1 r",
        ),
    ],
    ids=["no function", "two functions", "number", "dtype", "parameters"],
)
def test_a_module_with_other_parameters_is_an_error(text, expected):
    assert expected in message(make(ir=lambda *types: text), np.ones((2, 3), np.float32))


def test_a_failure_of_xla_names_the_kernel_and_the_line():
    """XLA's CPU compiler knows no Triton, so a module for GPUs fails there as a kernel that XLA rejects does."""
    x = np.ones((2, 3), np.float32)
    text = lowered(lambda x: make()(x) + make()(2 * x), x)
    with pytest.raises(KernelError) as failure:
        check_kernels(RuntimeFailure("INTERNAL: no"), text, jax.devices(), ())
    expected = r"the kernel 'centred' at test_user_kernels.py:\d+ cannot be compiled: XLA says: "
    assert re.match(expected, str(failure.value)), failure.value
    check_kernels(RuntimeFailure("INTERNAL: no"), "module {}", jax.devices(), ())


def test_a_failure_of_something_else_than_a_kernel(monkeypatch):
    """Each kernel is compiled alone, also one of a result of an op with several, and none of them fails."""
    x = np.ones((2, 3), np.float32)
    parsed = []

    def compile_text(text, *args, **options):
        parsed.append(parse_module(text))

    monkeypatch.setattr("shardwise.runtime.kernel_failure.compile_text", compile_text)
    text = lowered(lambda x: make()(make()(jax.kernels.rms_norm(x, x[0], residual=x)[1])), x)
    check_kernels(RuntimeFailure("INTERNAL: no"), text, jax.devices(), ())
    assert len(parsed) == 3


@pytest.mark.parametrize(
    ("options", "error", "expected"),
    [
        ({"ir": 3}, TypeError, "ir must be a module or a function of types, not 3"),
        ({"sharding_rule": "i j"}, ValueError, "must have one `->`"),
        ({"sharding_rule": "i -> i"}, ValueError, "operand 0 has rank 1 in the rule"),
        ({"input_output_aliases": {0: 1}}, ValueError, "has 0: 1, and there are 1 operands and 1 results"),
        ({"name": 3}, TypeError, "name must be a string, not 3"),
        ({"gradient": 3}, TypeError, "gradient of 'centred' must be a function"),
        ({"supports": 3}, TypeError, "supports of 'centred' must be a function"),
        ({"grid": 0}, ValueError, "must be one to three positive integers"),
        ({"num_warps": "4"}, ValueError, "must be 1, 2, 4, 8, 16 or 32"),
        ({"num_stages": 0}, ValueError, "must be a positive integer"),
        ({"sharding_rule": 3}, TypeError, "sharding_rule must be a string"),
        ({"operand_types": [3]}, TypeError, "must be a sequence of `ShapeDtypeStruct`s"),
        ({"input_output_aliases": {"x": 0}}, TypeError, "has 'x': 0; write the index of the operand"),
        ({"gradient": lambda *_: None}, TypeError, "returns None: return one cotangent"),
        ({"gradient": lambda *_: ["a"]}, TypeError, "needs an array or a number, not 'a'"),
        ({"gradient": lambda *_: []}, TypeError, "returns 0 cotangents for 1 operands"),
        ({"gradient": lambda x, *_: [x[0][0]]}, TypeError, "returns f32[3] for operand 0, f32[2,3]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_definitions_are_errors(options, error, expected):
    with pytest.raises(error, match=re.escape(expected)):
        jax.grad(lambda x: make(**options)(x).sum())(jnp.ones((2, 3)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"grid": (1, 2, 3, 4)}, "must be one to three positive integers"),
        ({"num_warps": 3}, "must be 1, 2, 4, 8, 16 or 32"),
    ],
    ids=["grid", "warps"],
)
def test_wrong_launches_are_errors(options, expected):
    with pytest.raises(ValueError, match=expected):
        lowered(make(**options), np.ones((2, 3), np.float32))


@pytest.mark.parametrize("kind", ["jax", "numpy", "traced"])
def test_arrays_that_are_not_operands_are_errors(kind):
    x, array = jnp.ones((2, 3)), np.arange(3, dtype=np.float32)

    def call(array):
        return jax.kernels.triton_kernel(lambda x: x + array, ir=lambda *_: "", grid=1)(x)

    with pytest.raises(TypeError, match="uses an array that is not an operand: pass it as one"):
        jax.jit(call)(array) if kind == "traced" else call(jnp.asarray(array) if kind == "jax" else array)


def test_supports_may_return_none():
    function = make(supports=lambda *_: None)
    assert "own kernels: 1" in str(jax.explain(function, hardware="h100")(jnp.ones((2, 3))))


def on_host(x):
    return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_a_gradient_without_derivatives_is_an_error_of_second_derivatives():
    function = make(gradient=lambda operands, results, cotangents: [on_host(centred(cotangents[0] * operands[0]))])
    step = jax.grad(lambda x: function(x).sum())
    x = RNG.standard_normal((3, 8)).astype(np.float32)
    np.testing.assert_allclose(step(x), centred(x), atol=1e-6)
    expected = (
        r"second_derivative_of_centred at test_user_kernels.py:\d+ needs the derivative of `centred_gradient`, and an "
        "op of it has none. pure_callback: cannot differentiate"
    )
    for second in (jax.grad(lambda x: step(x).sum()), lambda x: jax.jvp(step, (x,), (x,))):
        with pytest.raises(NotImplementedError, match=expected):
            second(x)


def test_a_meaning_without_derivatives_is_an_error_of_derivatives():
    function = jax.kernels.triton_kernel(
        on_host,
        ir=module,
        grid=1,
        sharding_rule="... -> ...",
        gradient=lambda operands, results, cotangents: cotangents,
    )
    expected = r"the derivative of the kernel 'on_host' at test_user_kernels.py:\d+ needs that of the plain ops"
    with pytest.raises(NotImplementedError, match=expected):
        jax.grad(lambda x: function(x).sum())(np.ones((3, 8), np.float32))
