"""jit(inline=...): whether the caller's program has the ops of the function, or one op for the call."""

import pytest

import shardwise as sw
from shardwise import Inline


def names(inline):
    function = sw.jit(lambda x: -x, inline=inline)
    return [eqn.primitive.name for eqn in sw.make_jaxpr(function)(1.0).eqns]


def test_early_inlining_stages_the_ops():
    assert names(True) == names(Inline.JAX_EARLY) == ["neg"]


@pytest.mark.parametrize("inline", [False, Inline.AUTO, Inline.JAX_LATE, Inline.XLA_EARLY, Inline.XLA_LATE])
def test_other_values_keep_the_call(inline):
    assert names(inline) == ["jit"]
    assert sw.jit(sw.jit(lambda x: -x, inline=inline))(1.0) == -1


def test_other_values_are_errors():
    with pytest.raises(ValueError, match=r"a bool or a member of Inline, such as .*, not 'early'"):
        sw.jit(lambda x: x, inline="early")
