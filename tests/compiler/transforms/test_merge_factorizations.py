"""merge_factorizations: equal factorizations of equal matrices run once."""

from collections import Counter

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import build
from shardwise.compiler.transforms.dce import dce
from shardwise.compiler.transforms.inline import inline
from shardwise.compiler.transforms.merge_factorizations import merge_factorizations
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

SHAPE = (5, 4, 4)


def matrices():
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    return x @ x.swapaxes(1, 2) + np.eye(4, dtype=np.float32)


def in_a_loop(x):
    return lax.fori_loop(0, 2, lambda _, y: jnp.linalg.det(x)[:, None, None] * jnp.linalg.inv(x) + y, x)


def recomputed(x):
    values = lax.optimization_barrier(x)
    return jnp.linalg.cholesky(x) + jnp.linalg.cholesky(values)


MERGED = {  # the function, the op, and how often it occurs
    "values and vectors": (lambda x: (jnp.linalg.eigh(x)[1], jnp.linalg.eigvalsh(x), jnp.linalg.eigh(x)[0]), "eigh", 3),
    "determinant and solution": (lambda x: (jnp.linalg.det(x), jnp.linalg.solve(x, x[..., 0:1])), "lu", 2),
    "two factors": (lambda x: jnp.linalg.cholesky(2 * x) + jnp.linalg.cholesky(2 * x), "cholesky", 2),
    "in a loop": (in_a_loop, "lu", 2),
}
KEPT = {
    "one factorization": jnp.linalg.cholesky,
    "other matrices": lambda x: jnp.linalg.cholesky(x) + jnp.linalg.cholesky(x + 1),
    "another factorization": lambda x: jnp.linalg.cholesky(x) + jnp.linalg.qr(x)[0],
    "behind a barrier": recomputed,
}


def simplified(function):
    def flat(x):
        results = function(x)
        return list(results) if isinstance(results, tuple) else [results]

    program, _ = build(flat, [ArrayType(SHAPE, np.float32)], "f")
    return dce(inline(program))


def counts(program):
    return Counter(equation.op.name for equation in program.walk())


@pytest.mark.parametrize("name", MERGED)
def test_equal_factorizations_run_once(name):
    function, op, count = MERGED[name]
    program = simplified(function)
    merged = merge_factorizations(program)
    assert (counts(program)[op], counts(merged)[op]) == (count, 1)
    for result, expected in zip(evaluate(merged, [matrices()]), evaluate(program, [matrices()]), strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    program = simplified(KEPT[name])
    assert merge_factorizations(program) is program


def test_the_rest_of_a_program_is_not_merged():
    """XLA merges cheap ops; here, a pass over all of them would only take time."""
    program = simplified(lambda x: jnp.linalg.cholesky(x) + jnp.linalg.cholesky(x) + (jnp.sin(x) + jnp.sin(x)))
    assert counts(merge_factorizations(program))["sin"] == 2


def test_a_compiled_program_factors_once():
    mesh = sw.make_mesh((8,), ("x",))
    x = np.tile(matrices(), (64, 1, 1))[:256]
    sharded = sw.device_put(x, NamedSharding(mesh, P("x")))
    for operand in (x, sharded):
        function = sw.jit(lambda x: (jnp.linalg.eigh(x)[1], jnp.linalg.eigvalsh(x)))
        assert function.lower(operand).as_text().count("lapack_ssyevd_ffi") == 1
        np.testing.assert_allclose(function(operand)[1], np.linalg.eigvalsh(x), rtol=1e-4)
