"""The program that XLA compiles on CPU computes what the program does. `test_liveness.py` compares the memory."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.partition.cpu_program import cpu_program

X = np.linspace(-2, 3, 11 * 6, dtype=np.float32).reshape(11, 6)
NARROW = X.astype(jnp.bfloat16)
INDEX = np.array([3, 0, 3, 7], np.int32)

PROGRAMS = {
    "a quotient of rows and their sums": (lambda x: x / jnp.sum(x, 1, keepdims=True), [X], ["div"]),
    "a quotient and a constant": (lambda x: x / 3, [X], None),
    "a rolled array": (lambda x: jnp.roll(x, 4, 0), [X], ["concatenate"]),
    "cumulative sums": (lambda x: jnp.cumsum(x, 0), [X], ["cumulative", "cumulative"]),
    "cumulative products of narrow floats from the end": (
        lambda x: lax.cumprod(x, 0, reverse=True),
        [NARROW],
        ["cumulative", "cumulative"],
    ),
    "sorted narrow floats": (lambda x: jnp.sort(x, 0), [NARROW], ["convert", "sort", "convert"]),
    "narrow rows that are added": (
        lambda x, i: x.at[i].add(x[:4]),
        [NARROW, INDEX],
        ["convert", "convert", "scatter", "convert"],
    ),
    "a narrow product": (lambda x: x @ x.T, [NARROW], ["dot", "convert"]),
    "a narrow product that is only converted": (lambda x: (x @ x.T).astype(np.float32), [NARROW], ["dot"]),
    "one narrow row that is replaced": (lambda x: x.at[3].set(x[0]), [NARROW], None),
    "a body of a loop": (
        lambda x: lax.fori_loop(0, 3, lambda i, x: x / (1 + jnp.sum(x * x, 1, keepdims=True)), x),
        [X],
        ["div"],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_on_cpu_computes_the_same(name):
    function, args, ops = PROGRAMS[name]
    program = sw.jit(function).lower(*args)._prepared.stages.local.program
    rewritten = cpu_program(program)
    for actual, expected in zip(evaluate(rewritten, args), evaluate(program, args), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual.astype(np.float32), expected.astype(np.float32), rtol=1e-2)
    names, before = ([equation.op.name for equation in p.walk()] for p in (rewritten, program))
    if ops is None:
        assert set(names) == set(before)
    else:
        assert [name for name in names if name in ops] == ops
