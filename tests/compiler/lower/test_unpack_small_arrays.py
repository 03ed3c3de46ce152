"""unpack_small_arrays: scalars of inputs, small outputs and maxima, and that the numbers stay the same."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ir.verify import verify
from shardwise.compiler.kernels.quantize import Quantize
from shardwise.compiler.kernels.unpack import MOST_RESULTS, Unpack
from shardwise.compiler.lower.unpack_small_arrays import unpack_small_arrays
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.inline import inline
from tests.compiler.kernels.run_kernel import run_kernel

E4M3, F32 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.float32)


def element(x, index):
    return x[index : index + 1].reshape(())


def scaled(*args):
    """Round the last argument with each scale of the others."""
    *scales, x = args
    results = [Quantize(E4M3)(x, element(scale, index)) for scale in scales for index in range(3)]
    return [jnp.stack([largest for _, largest in results]), *(numbers for numbers, _ in results)]


def in_a_loop(*args):
    *scales, x = args

    def body(total, _):
        return total + scaled(*scales, total)[0][:1] + element(scales[0], 1), None

    return [jax.lax.scan(body, x, None, length=2)[0]]


def pieces(*args):
    new = jnp.concatenate(args[:-1]) * 2
    return [new[3 * i : 3 * i + 3] for i in range(len(args) - 1)]


def pieces_of_a_piece(*args):
    new = jnp.concatenate(args[:-1]) * 2
    first = new[:16]
    return [first, *(new[i : i + 2] for i in range(16, 32, 2)), *(first[i : i + 2] for i in range(0, 16, 2))]


# The function, the number of inputs with scales, the kernels that unpack, and those that update maxima.
CASES = [
    (scaled, 3, 1, 9),
    (scaled, 2, 0, 0),
    (scaled, MOST_RESULTS // 3, 3, MOST_RESULTS - MOST_RESULTS % 3),
    (in_a_loop, 3, 1, 9),
    (pieces, 9, 1, 0),
    (pieces, 7, 0, 0),
    (pieces_of_a_piece, 11, 2, 0),
]


@pytest.mark.parametrize(("function", "count", "unpacks", "updates"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_programs(function, count, unpacks, updates):
    rng = np.random.default_rng(0)
    args = [np.exp2(rng.integers(-3, 3, 3)).astype(F32) for _ in range(count)] + [rng.standard_normal(4).astype(F32)]
    program, captured = build(function, [ArrayType(x.shape, F32) for x in args], "test")
    program = inline(program)
    result = verify(unpack_small_arrays(program))
    ops = [equation.op for equation in result.walk()]
    assert sum(isinstance(op, Unpack) for op in ops) == unpacks
    assert sum(isinstance(op, Quantize) and op.updates for op in ops) == updates
    assert (result is program) == (unpacks == 0)
    operands = [*args, *map(np.asarray, captured)]
    for ours, theirs in zip(evaluate(result, operands), evaluate(program, operands), strict=True):
        np.testing.assert_array_equal(np.asarray(ours, F32), np.asarray(theirs, F32))


@pytest.mark.parametrize("function", [scaled, pieces])
def test_without_own_kernels_arrays_are_sliced(function):
    program = inline(build(function, [ArrayType((3,), F32)] * 9 + [ArrayType((4,), F32)], "test")[0])
    with jax.config.override("own_kernels", False):
        assert unpack_small_arrays(program) is program


def test_the_ir_of_unpack_computes_the_meaning():
    x = np.arange(12, dtype=F32)
    results = run_kernel(Unpack(((), (3,), (), (2, 3))), x)
    for result, expected in zip(results, [0, [1, 2, 3], 4, [[5, 6, 7], [8, 9, 10]]], strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("start", [0.0, 100.0])
def test_the_ir_updates_the_largest_magnitude(start):
    x = np.random.default_rng(0).standard_normal((100, 70)).astype(F32)
    x[3, 4] = np.inf
    *_, largest = run_kernel(Quantize(E4M3, updates=True), x, np.array(0.5, F32), np.array(start, F32))
    assert largest == max(start, np.abs(x[np.isfinite(x)]).max())
