"""platform_dependent and composite."""

import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax


def test_platform_dependent_and_composite():
    x = jnp.arange(3.0)
    assert lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x).tolist() == [1.0, 2.0, 3.0]
    assert lax.platform_dependent(x, tpu=lambda x: x + 1, default=lambda x: x).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(
        NotImplementedError, match="no function for the platform 'cpu' and no default; functions were given for: tpu"
    ):
        lax.platform_dependent(x, tpu=lambda x: x + 1)
    times = lax.composite(lambda x, *, by: x * by, "mine.times")
    assert times(x, by=2).tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(sw.errors.UnexpectedTracerError, match="attribute 'by' is a traced value"):
        sw.jit(lambda by: times(x, by=by))(2.0)
