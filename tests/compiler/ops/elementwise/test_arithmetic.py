"""Arithmetic on integers where XLA's constant folding and its runtime disagree, or end the process."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ops.elementwise.arithmetic import Rem
from tests.compiler.ops.elementwise.tangents import tangent_of

NUMBERS = (np.iinfo(np.int32).min, -7, 0, 5, np.iinfo(np.int32).max)


@pytest.mark.parametrize("function", [lax.rem, lax.div, jnp.mod, jnp.floor_divide])
def test_integers_by_constants_are_divided_as_at_run_time(function):
    for divisor in (0, -1, 3):
        folded = sw.jit(lambda d=divisor: [function(jnp.int32(x), jnp.int32(d)) for x in NUMBERS])()
        at_run_time = sw.jit(function)(np.array(NUMBERS, np.int32), np.full(len(NUMBERS), divisor, np.int32))
        np.testing.assert_array_equal(np.array(folded), at_run_time)


def test_the_derivative_of_rem_along_the_divisor():
    tangent = tangent_of(Rem(), ([7.5, -7.5], [2.0, 2.0]), ([0.0, 0.0], [1.0, 1.0]))
    np.testing.assert_array_equal(tangent, [-3.0, 3.0])


def test_a_loop_captures_the_remainder_of_a_weakly_typed_number():
    def f(x, n):
        remainder = lax.rem(n, jnp.int32(3))
        return lax.scan(lambda carry, v: (carry + v * remainder, None), 0.0, x)[0]

    assert sw.jit(f)(jnp.arange(4.0), 5) == 12
