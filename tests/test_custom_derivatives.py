"""Zero tangents, and the primitives of functions with derivative rules."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import custom_derivatives


def test_zeros_have_the_types_of_the_values():
    zeros = custom_derivatives.zero_from_primal({"x": np.ones((2, 3), np.float32), "n": 1.0})
    assert zeros["x"].shape == (2, 3) and not zeros["x"].any()
    assert zeros["n"] == 0
    symbolic = custom_derivatives.zero_from_primal(np.ones(3, np.float32), symbolic_zeros=True)
    assert isinstance(symbolic, custom_derivatives.SymbolicZero) and symbolic.shape == (3,)


def test_jaxprs_have_the_primitives():
    @sw.custom_jvp
    def f(x):
        return x * 2

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 3))
    (equation,) = sw.make_jaxpr(f)(1.0).eqns
    assert equation.primitive is custom_derivatives.custom_jvp_call_p


def test_other_objects_are_errors():
    with pytest.raises(TypeError, match="zero_from_primal"):
        custom_derivatives.zero_from_primal("text")
