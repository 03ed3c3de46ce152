"""Formulas of `Expr`, against numpy."""

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.ops.elementwise.expr import Expr
from shardwise.compiler.ops.elementwise.formula import maximum, minimum, polynomial

X = np.linspace(-2, 2, 9, dtype=np.float32)


def test_polynomials_have_the_lowest_power_first():
    coefficients = (0.5, -1.0, 0.0, 2.0)
    found = polynomial(Expr(jnp.asarray(X)), coefficients).array
    np.testing.assert_allclose(found, np.polynomial.polynomial.polyval(X, coefficients), rtol=1e-6)


def test_extrema_of_numbers_and_of_other_expressions():
    x = Expr(jnp.asarray(X))
    np.testing.assert_array_equal(minimum(x, 0.5).array, np.minimum(X, 0.5))
    np.testing.assert_array_equal(maximum(x, Expr(jnp.asarray(-X))).array, np.abs(X))
