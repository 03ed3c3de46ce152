"""Conversions of arrays and tracers to Python scalars, as in JAX."""

import operator

import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import TracerBoolConversionError, TracerIntegerConversionError


@pytest.mark.parametrize("run", [lambda f: f, sw.jit], ids=["eager", "jit"])
def test_only_scalars_are_converted(run):
    for function in (int, float, complex):
        with pytest.raises(TypeError, match="only arrays of rank 0 can be converted to Python scalars"):
            run(function)(jnp.ones(1))
    for function in (operator.index, hex, oct):
        for x in (jnp.arange(3), jnp.float32(0)):
            with pytest.raises(TypeError, match="only integer arrays of rank 0"):
                run(function)(x)
    for x, kind in ((jnp.arange(3), "an array with more than one element"), (jnp.arange(0), "an empty array")):
        with pytest.raises(ValueError, match=f"the truth value of {kind}"):
            run(bool)(x)


def test_scalars_are_converted():
    assert (int(jnp.int32(3)), float(jnp.float32(2)), operator.index(jnp.uint8(4))) == (3, 2.0, 4)
    assert bool(jnp.ones(1))
    with pytest.raises(TracerBoolConversionError):
        sw.jit(bool)(1)
    with pytest.raises(TracerIntegerConversionError):
        sw.jit(operator.index)(1)
