"""Cumulative reductions beyond the laws: errors, special values, communication, derivatives."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.candidates.candidate import factor_candidate
from shardwise.compiler.candidates.layout_problem import layout_problem
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.op import factor_rule, result_types
from shardwise.compiler.ir.types import ArrayType, parse_type
from shardwise.compiler.ops.elementwise.arithmetic import Neg
from shardwise.compiler.ops.reduce.cumulative import COMBINERS, Cumulative, Recurrence
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.partition.spmd import partition
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.plan.choose import choose
from shardwise.compiler.reduction import AND, LOGSUMEXP, MAX, MIN, SUM
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import rewrite
from shardwise.sharding import NamedSharding


@pytest.mark.parametrize(
    ("op", "types", "message"),
    [
        (Cumulative(1, SUM), "f32[3]", "cumulative: dim 1 does not exist in f32[3]"),
        (Cumulative(-1, SUM), "f32[3]", "cumulative: dim -1 does not exist in f32[3]"),
        (Cumulative(0, SUM), "bool[3]", "cumulative: sum needs numbers, not bool[3]"),
        (Cumulative(0, LOGSUMEXP), "c64[3]", "cumulative: logsumexp needs floats, not c64[3]"),
        (
            Cumulative(0, AND),
            "f32[3]",
            "cumulative: no cumulative and; supported: sum, prod, max, min, logsumexp",
        ),
        (
            Recurrence(0),
            "f32[3] f32[4]",
            "recurrence: operands must have one shape and one dtype, not f32[3] and f32[4]",
        ),
        (Recurrence(1), "f32[3] f32[3]", "recurrence: dim 1 does not exist in f32[3]"),
        (Recurrence(0), "i32[3] i32[3]", "recurrence: needs floats or complex numbers, not i32[3]"),
    ],
    ids=str,
)
def test_wrong_operands(op, types, message):
    with pytest.raises(TypeError) as caught:
        result_types(op, tuple(parse_type(text) for text in types.split()))
    assert str(caught.value) == message


@pytest.mark.parametrize(("size", "levels"), [(1, 0), (8, 1), (9, 2), (128, 2), (129, 3), (1024, 3), (1025, 4)])
def test_scan_has_few_levels_of_blocks(size, levels):
    """Each level adds kernels to compile. Blocks have 8 elements; up to 16 totals are one block."""
    lowered = sw.jit(jnp.cumsum).lower(np.zeros(size, np.float32)).as_text()
    assert lowered.count("stablehlo.reduce_window") == levels


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_accumulate_in_f32(mesh, dtype):
    """Rounded after each addition, a sum of ones would stop at 2048 or 256."""
    x = np.ones(3000, dtype)
    put = sw.device_put(x, NamedSharding(mesh, P("data")))
    for array in (x, put):
        np.testing.assert_array_equal(sw.jit(jnp.cumsum)(array), np.arange(1, 3001, dtype=np.float32).astype(dtype))


def test_nan_and_infinities_propagate():
    inf, nan = np.inf, np.nan
    x = jnp.array([1.0, inf, 2.0, -inf, 3.0])
    np.testing.assert_array_equal(lax.cumsum(x), [1, inf, inf, nan, nan])
    np.testing.assert_array_equal(lax.cumsum(x, reverse=True), [nan, nan, -inf, -inf, 3])
    np.testing.assert_array_equal(lax.cummax(jnp.array([1.0, nan, 3.0])), [1, nan, nan])
    np.testing.assert_array_equal(lax.cummin(jnp.array([1.0, nan, 3.0]), reverse=True), [nan, nan, 3])
    np.testing.assert_array_equal(lax.cumlogsumexp(jnp.array([-inf, -inf, 2.0, inf, inf])), [-inf, -inf, 2, inf, inf])


def test_cumlogsumexp_does_not_overflow():
    np.testing.assert_allclose(lax.cumlogsumexp(jnp.array([1000.0, 1000.0])), [1000, 1000 + np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(lax.cumlogsumexp(jnp.array([-1000.0, -1000.0])), [-1000, np.log(2) - 1000], rtol=1e-6)


MESH = AbstractMesh((8,), ("x",))


def stages(op, shape, dtype=np.float32):
    program = rewrite("program", [ArrayType(shape, dtype)], lambda x: [op(x)])
    return program, run_stages(program, MESH, [pin_of(P("x"), shape, MESH)], [None])


@pytest.mark.parametrize("reduction", COMBINERS, ids=str)
@pytest.mark.parametrize("rows", [4096, 4095], ids=["even", "uneven"])
def test_a_sharded_dim_needs_one_all_gather_of_totals(reduction, rows):
    """XLA gathers the whole operand of a cumulative sum along a sharded dim."""
    program, result = stages(Cumulative(0, reduction), (rows, 64))
    (step,) = result.local.collectives()
    assert step.op.name == "all_gather"
    assert result.local.bytes_sent(step) == 7 * 64 * 4
    assert [placement.layout.dims for placement in result.local.outputs] == [(("x",), ())]
    x = np.random.default_rng(0).uniform(0.9, 1.1, (rows, 64)).astype(np.float32)
    np.testing.assert_allclose(evaluate_shards(result.local, [x])[0], evaluate(program, [x])[0], rtol=1e-4)


def test_operands_and_result_with_different_padded_sizes():
    """An operand of size 10 is sharded over 4 devices elsewhere and padded to 12; sharded over 2 it is not padded."""
    mesh = AbstractMesh((2, 2), ("a", "b"))

    def body(x, y):
        return [Cumulative(0, MAX, reverse=True)(x), Recurrence(0)(x, y), Recurrence(0, reverse=True)(y, x), Neg()(x)]

    program = rewrite("program", [ArrayType((10,), np.float32)] * 2, body)
    pins = [pin_of(spec, (10,), mesh) for spec in (P("a"), P(("a", "b")))]
    problem = layout_problem(program, mesh, pins[:1] * 2, [*pins[:1] * 3, pins[1]])
    options: dict[str, dict[Any, Any]] = {"a": {}, "b": {}}
    for equation in program.equations:
        sharded_candidate = factor_candidate(
            factor_rule(equation.op, tuple(value.type for value in equation.inputs)), 0
        )
        options["a"][equation] = (sharded_candidate,)
        options["b"][equation] = (
            (sharded_candidate,) if equation.op.name == "neg" else problem.candidates["b"][equation][:1]
        )
    problem = replace(problem, candidates=options)
    local = partition(problem, choose(problem))
    assert {"take_window", "cumulative", "recurrence", "all_gather"} <= {
        step.op.name for step in local.program.equations
    }
    args = [np.arange(10, dtype=np.float32) % 3, np.ones(10, np.float32)]
    for actual, expected in zip(evaluate_shards(local, args), evaluate(program, args), strict=True):
        np.testing.assert_array_equal(actual, expected)


SHARDED_ROWS = [(13, P("data")), (3, P("data")), (24, P(("model", "data")))]


@pytest.mark.table(default=3)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("reduction", COMBINERS, ids=str)
def test_sharded_like_one_device(mesh, reduction, reverse):
    """Integers are equal, floats and derivatives equal up to rounding."""
    rng = np.random.default_rng(0)
    for rows, spec in SHARDED_ROWS:
        for dtype in (np.float32, np.int32)[: 1 + (reduction is not LOGSUMEXP)]:
            x = rng.integers(-3, 4, (rows, 3)).astype(dtype)
            put = sw.device_put(x, NamedSharding(mesh, spec))
            total = sw.jit(Cumulative(0, reduction, reverse))
            exact = dtype == np.int32 or reduction in (MAX, MIN)
            close = np.testing.assert_array_equal if exact else np.testing.assert_allclose
            close(total(put), total(x), **({} if exact else {"rtol": 1e-5, "atol": 1e-5}))
    x = rng.uniform(0.5, 1.5, (13, 3)).astype(np.float32)
    slope = sw.jit(sw.grad(lambda x: (Cumulative(0, reduction, reverse)(x) ** 2).sum()))
    np.testing.assert_allclose(slope(sw.device_put(x, NamedSharding(mesh, P("data")))), slope(x), rtol=1e-4)


@pytest.mark.slow
def test_derivatives_along_a_sharded_dim_exchange_only_totals(mesh):
    x = sw.device_put(np.ones((4096, 64), np.float32), NamedSharding(mesh, P(("data", "model"))))
    for reduction in COMBINERS:
        total = Cumulative(0, reduction)
        report = sw.explain(sw.grad(lambda x, total=total: (total(x) ** 2).sum()), advise=False)(x)
        # The operand has 1 MB. Maxima and minima are combined in JAX's order, which determines the weights of ties: the
        # pairs of each level are exchanged, but no array is gathered.
        assert report.wire_bytes < (300_000 if reduction in (MAX, MIN) else 20_000), report


def test_jacobian_of_cumprod_with_a_zero():
    jacobian = sw.jacrev(lax.cumprod)(jnp.array([2.0, 0.0, 3.0]))
    np.testing.assert_array_equal(jacobian, [[1, 0, 0], [0, 2, 0], [0, 6, 0]])


def test_ties_share_the_derivative_of_cummax():
    np.testing.assert_array_equal(sw.jacrev(lax.cummax)(jnp.array([1.0, 1.0])), [[1, 0], [0.5, 0.5]])
    np.testing.assert_array_equal(sw.jacrev(lax.cummax)(jnp.array([1.0, 3.0, 2.0])), [[1, 0, 0], [0, 1, 0], [0, 1, 0]])


def test_second_derivatives():
    x = np.array([0.5, -1.5, 2.0, 0.25], np.float32)
    for function in (lax.cumprod, lax.cumlogsumexp):
        hessian = sw.hessian(lambda x, function=function: (function(x) ** 2).sum())(x)
        step = 1e-2
        slope = sw.grad(lambda x, function=function: (function(x) ** 2).sum())
        for i in range(4):
            along = np.eye(4, dtype=np.float32)[i] * step
            np.testing.assert_allclose(
                hessian[i], (slope(x + along) - slope(x - along)) / (2 * step), rtol=2e-2, atol=2e-2
            )
