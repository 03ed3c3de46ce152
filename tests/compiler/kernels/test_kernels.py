"""Kernels: their numpy meaning against formulas, their Triton IR against that meaning, and their derivatives."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels import norm
from shardwise.compiler.kernels.cross_entropy import CrossEntropy, CrossEntropyGrad
from shardwise.compiler.kernels.norm import Norm, NormFactors, NormGrad
from tests.compiler.kernels.run_kernel import run_kernel

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
RNG = np.random.default_rng(0)


def random(*shape, dtype=F32):
    return RNG.standard_normal(shape).astype(dtype)


def norm_cases():
    # rows, width: odd sizes, and several rows per block
    shapes = [((3, 5), 24), ((7,), 100), ((2, 1), 2048), ((), 33), ((1037,), 3)]
    for (rows, width), (centred, adds, dtype) in zip(
        shapes,
        [(False, False, F32), (True, True, BF16), (False, True, BF16), (True, False, F32), (True, True, F32)],
        strict=True,
    ):
        x, delta = random(*rows, width, dtype=dtype), random(*rows, width, dtype=dtype)
        parameters = [random(width), *([random(width)] if centred else [])]
        yield Norm(centred, 1e-5, adds, centred), [x, *([delta] if adds else []), *parameters]
        yield NormFactors(centred, 1e-5, adds), [x, *([delta] if adds else [])]
        ct, ct_rows = random(*rows, width, dtype=dtype), random(*rows, width, dtype=dtype)
        yield NormGrad(centred, 1e-5, adds, centred), [ct, x, parameters[0], *([ct_rows] if adds else [])]


def cross_entropy_cases():
    for rows, width, dtype in (((3, 2), 37, F32), ((5,), 8192, BF16), ((4,), 20001, F32), ((2,), 1, F32)):
        logits = (3 * random(*rows, width)).astype(dtype)
        targets = RNG.integers(-1, width + 1, rows).astype(np.int32)  # some are not in the vocabulary
        yield CrossEntropy(), [logits, targets]
        logsumexp = CrossEntropy().reference(logits, targets)[1]
        yield CrossEntropyGrad(), [logits, targets, logsumexp, random(*rows), random(*rows)]


CASES = [*norm_cases(), *cross_entropy_cases()]


@pytest.mark.parametrize(("op", "operands"), CASES, ids=lambda value: getattr(value, "name", ""))
def test_the_ir_computes_the_meaning(op, operands):
    results = run_kernel(op, *operands)
    if isinstance(op, NormGrad):
        results = [results[0], *(parts.sum(0) for parts in results[1:])]
    for result, expected in zip(results, op.reference(*operands), strict=True):
        assert result.dtype == expected.dtype and result.shape == expected.shape
        tolerance = 2e-2 if result.dtype == BF16 else 2e-4
        np.testing.assert_allclose(result.astype(F32), np.asarray(expected, F32), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rows", "width"), [(1030, 3), (5, 1100), (6, 1024)], ids=str)
@pytest.mark.parametrize("adds", [False, True])
def test_a_program_of_the_gradient_has_several_blocks(monkeypatch, rows, width, adds):
    """It loads the next block while it computes one. The last program has fewer, or none."""
    monkeypatch.setattr(norm, "_GRADIENT_PROGRAMS", 2 if width == 1024 else 4)
    op = NormGrad(True, 1e-4, adds, True)  # no other test has this epsilon: the IR is cached
    operands = [random(rows, width, dtype=BF16) for _ in range(2)] + [random(width)]
    operands += [random(rows, width, dtype=BF16)] * adds
    result, *parts = run_kernel(op, *operands)
    expected, *sums = op.reference(*operands)
    np.testing.assert_allclose(result.astype(F32), np.asarray(expected, F32), rtol=2e-2, atol=2e-2)
    for part, total in zip(parts, sums, strict=True):
        assert len(part) < rows
        np.testing.assert_allclose(part.sum(0), total, rtol=2e-4, atol=2e-3)


def formula(op, operands):
    """The results of a kernel by functions that do not use it."""
    if isinstance(op, CrossEntropy):
        logits, targets = operands
        return jnp.take_along_axis(logits, targets[..., None], -1)[..., 0], jax.nn.logsumexp(logits, -1)
    x, *rest = operands
    x = x + rest.pop(0) if op.adds else x
    centred = x - x.mean(-1, keepdims=True) if op.centred else x
    y = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + op.epsilon) * rest[0]
    y = y + rest[1] if op.biased else y
    return (x, y) if op.adds else (y,)


DIFFERENTIABLE = [
    (Norm(centred, 1e-6, adds, centred), [random(5, 6, 24) for _ in range(1 + adds)] + [random(24)] * (1 + centred))
    for centred, adds in product((False, True), repeat=2)
] + [(CrossEntropy(), [random(5, 6, 37), RNG.integers(0, 37, (5, 6)).astype(np.int32)])]


def derivatives(function, operands):
    """Return results, tangents and cotangents along fixed directions."""
    floats = [index for index, x in enumerate(operands) if x.dtype.kind == "f"]

    def of_floats(*values):
        arguments = list(operands)
        for index, value in zip(floats, values, strict=True):
            arguments[index] = value
        return tuple(function(*map(jnp.asarray, arguments)))

    values = [operands[index] for index in floats]
    results, tangents = jax.jvp(of_floats, tuple(values), tuple(jnp.cos(x) for x in values))
    _, vjp = jax.vjp(of_floats, *values)
    return results, tangents, vjp(tuple(jnp.sin(3 * x) for x in results))


@pytest.mark.parametrize(("op", "operands"), DIFFERENTIABLE[:-1], ids=lambda value: getattr(value, "name", ""))
def test_a_split_norm_has_the_same_results(op, operands):
    split = jax.jit(op.split)(*operands)
    for ours, theirs in zip(split, formula(op, operands), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("op", "operands"), DIFFERENTIABLE, ids=lambda value: getattr(value, "name", ""))
def test_derivatives(op, operands):
    ours = derivatives(op, operands)
    theirs = derivatives(lambda *operands: formula(op, operands), operands)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5), ours, theirs)


def second_derivatives(function, operands):
    """Return a Hessian-vector product in both orders of modes, and third derivatives."""
    floats = [index for index, x in enumerate(operands) if x.dtype.kind == "f"]
    values = [operands[index] for index in floats]
    directions = [jnp.cos(3 * x) for x in values]

    def scalar(*values):
        arguments = list(operands)
        for index, value in zip(floats, values, strict=True):
            arguments[index] = value
        return sum(jnp.sum(jnp.sin(x)) for x in function(*map(jnp.asarray, arguments)))

    def slope(*values):
        grads = jax.grad(scalar, tuple(range(len(values))))(*values)
        return sum(jnp.vdot(ct, direction) for ct, direction in zip(grads, directions, strict=True))

    forward = jax.jvp(lambda *xs: jax.jvp(scalar, xs, tuple(directions))[1], tuple(values), tuple(directions))[1]
    third = jax.jvp(lambda *xs: jax.jvp(slope, xs, tuple(directions))[1], tuple(values), tuple(directions))[1]
    return jax.grad(slope, tuple(range(len(values))))(*values), forward, third


@pytest.mark.parametrize(("op", "operands"), DIFFERENTIABLE[-2:], ids=lambda value: getattr(value, "name", ""))
def test_second_and_third_derivatives(op, operands):
    ours = jax.jit(lambda *operands: second_derivatives(op, operands))(*operands)
    theirs = jax.jit(lambda *operands: second_derivatives(lambda *xs: formula(op, xs), operands))(*operands)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-3), ours, theirs)


def test_the_gradient_of_some_operands_is_the_kernel():
    """Without a tangent of x, that of x + delta is zero; the gradient of the scale is computed by the kernel still."""
    x, scale = random(4, 24), random(24)

    def loss(x, scale, delta):
        return sum(jax.kernels.rms_norm(x, scale, residual=delta)).sum()

    for operand in range(3):
        assert "norm_grad" in str(jax.make_jaxpr(jax.grad(loss, operand))(x, scale, x))


@pytest.mark.parametrize("target", [np.int64(2**32 + 1), np.uint32(2**32 - 1), np.int64(-(2**40))])
def test_wide_targets_do_not_wrap(target):
    logits = random(1, 5)
    with jax.enable_x64(True):
        loss = jax.kernels.cross_entropy(logits, np.array([target]))
    np.testing.assert_allclose(loss, np.log(np.exp(logits).sum(-1)), rtol=1e-6)  # the logit of such a target is 0


def test_errors_of_norms_name_the_function():
    x = jnp.ones((3, 4))
    for call, expected in (
        (lambda: jax.kernels.rms_norm(x, jnp.ones(3)), "rms_norm: scale and bias of"),
        (lambda: jax.kernels.layer_norm(1.0, x, x), "layer_norm: needs rows of floats"),
        (lambda: jax.kernels.rms_norm(x, x[0], residual=x[0]), "rms_norm: x and the residual must have one type"),
    ):
        with pytest.raises(TypeError, match=expected):
            call()


def test_explain_says_that_second_derivatives_are_plain_ops():
    def loss(scale, x):
        return jnp.sum(jax.kernels.rms_norm(x, scale) ** 3)

    types = jax.ShapeDtypeStruct((24,), F32), jax.ShapeDtypeStruct((8, 24), F32)
    first, second = (
        str(jax.explain(function, hardware="h100", advise=False)(*types))
        for function in (jax.grad(loss), jax.grad(lambda scale, x: jnp.sum(jax.grad(loss)(scale, x) ** 2)))
    )
    assert "own kernels: 1 norm, 1 norm_grad" in first and "second derivative" not in first
    line = "the second derivative of norm at test_kernels.py:"
    assert second.count(line) == 1
    assert "is computed by plain ops: kernels have rules for first derivatives only" in second


@pytest.mark.table(default=6)
@pytest.mark.parametrize("spec", [P("data", "model"), P(None, "data"), P("model", None, "data")], ids=str)
@pytest.mark.parametrize(("op", "operands"), DIFFERENTIABLE, ids=lambda value: getattr(value, "name", ""))
def test_uneven_shards(op, operands, spec):
    mesh = jax.make_mesh((4, 2), ("data", "model"))

    def sharded(*operands):
        pinned = jax.lax.with_sharding_constraint(operands[0], NamedSharding(mesh, spec))
        return op(pinned, *operands[1:])

    ours = jax.jit(lambda *operands: derivatives(sharded, operands))(*operands)
    theirs = derivatives(lambda *operands: formula(op, operands), operands)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5), ours, theirs)


@pytest.mark.parametrize(("op", "operands"), DIFFERENTIABLE, ids=lambda value: getattr(value, "name", ""))
def test_vmap(op, operands):
    batched = [np.stack([x, x[::-1]]) for x in operands]
    for dims in {(0,) * len(operands), (0, *(None,) * (len(operands) - 1))}:
        arguments = [two if dim == 0 else x for two, x, dim in zip(batched, operands, dims, strict=True)]
        results = jax.vmap(lambda *operands: op(*map(jnp.asarray, operands)), in_axes=dims)(*arguments)
        for index in range(2):
            expected = op(*(jnp.asarray(x[index] if dim == 0 else x) for x, dim in zip(arguments, dims, strict=True)))
            for x, y in zip(results, expected, strict=True):
                np.testing.assert_allclose(x[index], y, rtol=1e-5, atol=1e-5)


def lowered(op, operands, platform="cuda"):
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    return jax.jit(op).trace(*types).lower(lowering_platforms=(platform,)).as_text()


def test_a_kernel_is_one_call_on_gpus():
    op, operands = Norm(False, 1e-6), [random(4, 24), random(24)]
    assert lowered(op, operands).count("__gpu$xla.gpu.triton") == 1
    assert "triton" not in lowered(op, operands, "cpu")
    with jax.config.override("own_kernels", False):
        assert "triton" not in lowered(op, operands)


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        ([((2, 2**15 + 1), F32), ((2**15 + 1,), F32)], "rows of 32769 elements do not fit"),
        ([((2, 3), np.float64), ((3,), F32)], "a dtype that the kernel does not support"),
        ([((0, 3), F32), ((3,), F32)], "is empty"),
    ],
    ids=["wide", "float64", "empty"],
)
def test_what_a_kernel_does_not_support_is_lowered_as_plain_ops(types, reason):
    op = Norm(False, 1e-6)
    assert reason in op.obstacle(*(ArrayType(shape, dtype) for shape, dtype in types))
    with jax.enable_x64(True):
        assert "triton" not in lowered(op, [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in types])


def test_explain_says_which_kernels_were_chosen_and_why():
    def loss(x, wide, scale, wide_scale):
        narrow, rest = jax.kernels.rms_norm(x, scale), jax.kernels.rms_norm(wide, wide_scale)
        return narrow.sum() + rest.sum()

    width = 2**15 + 1
    arguments = [jax.ShapeDtypeStruct(shape, F32) for shape in ((4, 24), (4, width), (24,), (width,))]
    text = str(jax.explain(loss, hardware="h100")(*arguments))
    assert "own kernels: 1 norm" in text
    assert "is computed by plain ops: rows of 32769 elements do not fit a program, which holds at most 32768" in text
    assert "norm" not in str(jax.explain(loss)(*arguments)).split("peak memory")[0]
