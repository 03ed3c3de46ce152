"""simplify_prologue: fewer ops, with the same results."""

import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.kernels.simplify_prologue import simplify_prologue
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.inline import inline

F32 = np.dtype(np.float32)


def gelu(x):
    return jax.nn.gelu(x)


def one_plus_tanh(x):
    return (1 + jnp.tanh(x)) * (jnp.tanh(0.5 * x) + 1.0)


def tanh_alone(x):
    y = jnp.tanh(x)
    return y * (1 - y * y) + (1 + y) + (2 + jnp.tanh(x))


def constants(x):
    return 4 * (0.3 * x) - 3.0 * (0.25 * x) + 2.0 * (0.5 * x)


def inexact_constants(x):
    return 3 * (0.3 * x)


def special_constants(x):
    return np.inf * (0.5 * x) + -0.0 * x + (jnp.float32(2) * jnp.float32(3)) * x


def result_is_scaled(x):
    return 2 * (0.5 * jnp.exp(x))


def identity(x):
    return 2 * (0.5 * x)


# The function, and the names of its ops afterwards, or None.
CASES = [
    (gelu, ["add", "integer_pow", "logistic", "mul", "mul", "mul"]),
    (one_plus_tanh, ["logistic", "logistic", "mul", "mul", "mul", "mul"]),
    (tanh_alone, None),
    (constants, ["add", "mul", "mul", "sub"]),
    (inexact_constants, ["mul", "mul"]),
    (special_constants, None),
    (result_is_scaled, ["exp"]),
    (identity, []),
]


@pytest.mark.parametrize(("function", "names"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_the_results_are_the_same(function, names):
    program = inline(build(lambda x: [function(x)], [ArrayType((), F32)], "test")[0])
    simplified = simplify_prologue(program)
    for x in (0.0, -0.0, 1e-30, 0.3, -0.7, 5.0, -5.0, 60.0, -60.0, np.inf, -np.inf, np.nan):
        ours, theirs = (evaluate(each, [np.array(x, F32)])[0] for each in (simplified, program))
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-7)
    if names is not None:
        read = {value for equation in simplified.equations for value in equation.inputs} | {*simplified.outputs}
        ops = [e.op for e in simplified.equations if not e.op.is_constant and not read.isdisjoint(e.outputs)]
        assert sorted(op.name for op in ops) == names


def test_one_plus_tanh_does_not_cancel():
    program = inline(build(lambda x: [1 + jnp.tanh(x)], [ArrayType((), F32)], "test")[0])
    x = np.array(-8, F32)
    exact = 1 + np.tanh(np.float64(x))
    assert abs(evaluate(program, [x])[0] / exact - 1) > 0.05
    np.testing.assert_allclose(evaluate(simplify_prologue(program), [x])[0], exact, rtol=1e-6)
