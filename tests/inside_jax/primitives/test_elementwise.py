"""Elementwise primitives and products."""

import numpy as np
import pytest

from tests.inside_jax.primitives.cases import case, jax, jnp, like_jax

lax = jax.lax
_lax = pytest.importorskip("jax._src.lax.lax")

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)
X = RNG.uniform(0.1, 0.9, (8, 6)).astype(np.float32)
Y = RNG.uniform(1.1, 1.9, (8, 6)).astype(np.float32)
SIGNED = RNG.uniform(-2, 2, (8, 6)).astype(np.float32)
Z = (X + 1j * Y).astype(np.complex64)
INTS = RNG.integers(1, 30, (8, 6)).astype(np.int32)
J = RNG.integers(1, 5, (8, 6)).astype(np.int32)
NEGATIVE_ZEROS = np.where(SIGNED > 0.5, -0.0, np.where(SIGNED < -1, np.nan, SIGNED)).astype(np.float32)
INTEGERS = "integers have no gradient"
STEPS = "the gradient is zero or JAX has none"

SMOOTH = [
    *("acos", "asin", "asinh", "atan", "atanh", "bessel_i0e", "bessel_i1e", "cbrt", "cos", "cosh", "digamma", "erf"),
    *("erf_inv", "erfc", "exp", "exp2", "expm1", "lgamma", "log", "log1p", "logistic", "reciprocal", "rsqrt", "sin"),
    *("sinh", "sqrt", "square", "tan", "tanh"),
]
INTEGER_PAIRS = [
    *("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right_arithmetic", "shift_right_logical"),
    *("mulhi", "rem"),
]

CASES = [
    *(case(name, getattr(lax, name), X) for name in SMOOTH),
    *(
        case(f"complex_{name}", getattr(lax, name), Z)
        for name in ("exp", "log", "sqrt", "tanh", "real", "imag", "conj")
    ),
    *(case(name, getattr(lax, name), SIGNED) for name in ("abs", "neg")),
    *(case(name, getattr(lax, name), SIGNED, no_grad=STEPS) for name in ("ceil", "floor", "sign", "is_finite")),
    *(
        case(name, getattr(lax, name), X, Y)
        for name in ("add", "sub", "mul", "div", "max", "min", "atan2", "pow", "rem")
    ),
    *(
        case(name, getattr(lax, name), X, Y, no_grad=STEPS)
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "nextafter")
    ),
    *(case(f"integer_{name}", getattr(lax, name), INTS, J, no_grad=INTEGERS) for name in INTEGER_PAIRS),
    *(case(name, getattr(lax, name), INTS, no_grad=INTEGERS) for name in ("bitwise_not", "clz", "population_count")),
    case("acosh", lax.acosh, Y),
    case("betainc", lax.betainc, X, Y, X, no_grad="JAX computes an approximation for the parameters"),
    case("betainc_x", lambda x: lax.betainc(2.0, 3.0, x), X),
    case("bitcast_convert_type", lambda x: lax.bitcast_convert_type(x, jnp.int32), X, no_grad=INTEGERS),
    *(
        case(name, getattr(_lax, f"{name}_p").bind, NEGATIVE_ZEROS, -NEGATIVE_ZEROS, no_grad=STEPS)
        for name in ("eq_to", "le_to", "lt_to")
    ),
    case("clamp", lambda x: lax.clamp(0.3, x, 0.7), X),
    case("complex", lax.complex, X, Y),
    case("convert_element_type", lambda x: lax.convert_element_type(x, jnp.bfloat16), X, tolerance=1e-2),
    case("copy", jnp.copy, X),
    case("erf_of_int", jax.scipy.special.erf, INTS, no_grad=INTEGERS),
    case("igamma", lax.igamma, Y, X, tolerance=2e-4),
    case("igamma_grad_a", lax.igamma_grad_a, Y, X, no_grad=STEPS, tolerance=2e-4),
    case("igammac", lax.igammac, Y, X, tolerance=2e-4),
    case("integer_pow", lambda x: lax.integer_pow(x, -3), X),
    case("polygamma", lambda x: lax.polygamma(1.0, x), Y, tolerance=1e-4),
    case("zeta", lambda x: lax.zeta(2.5, x), Y, no_grad="JAX has none", tolerance=1e-4),
    case("random_gamma_grad", lax.random_gamma_grad, Y, X, no_grad=STEPS, tolerance=1e-3),
    case("reduce_precision", lambda x: lax.reduce_precision(x, 5, 4), X),
    case("round_away", lambda x: lax.round(x * 10), SIGNED, no_grad=STEPS),
    case("round_even", lambda x: lax.round(INTS / 2 + 0 * x, lax.RoundingMethod.TO_NEAREST_EVEN), X, no_grad=STEPS),
    case("select_n", lambda x, y: lax.select_n(x > 0.5, x, y), X, Y),
    case("select_n_of_int", lambda i, x, y: lax.select_n(i % 3, x, y, x * y), INTS, X, Y),
    case("stop_gradient", lambda x: x * lax.stop_gradient(x), X),
    case(
        "scaled_dot",
        lambda x, y: lax.scaled_dot(x, y.T, preferred_element_type=jnp.float32),
        X,
        Y,
        no_grad="JAX has none",
        tolerance=2e-2,
    ),
    case("dot_general", lambda x, y: lax.dot_general(x, y, (((1,), (1,)), ((), ()))), X, Y),
    case(
        "dot_general_preferred",
        lambda i, j: lax.dot_general(i, j, (((1,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32),
        INTS,
        J,
        no_grad=INTEGERS,
    ),
    case("matmul_batched", lambda x: jnp.einsum("bij,bkj->bik", x, x), RNG.normal(size=(4, 6, 8)).astype(np.float32)),
    case(
        "conv_general_dilated",
        lambda x, k: lax.conv_general_dilated(x, k, (2, 1), "SAME", rhs_dilation=(1, 2)),
        RNG.normal(size=(4, 2, 8, 8)).astype(np.float32),
        RNG.normal(size=(6, 2, 3, 3)).astype(np.float32),
        tolerance=1e-4,
    ),
    case(
        "conv_depthwise",
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "VALID", feature_group_count=4),
        RNG.normal(size=(4, 4, 8)).astype(np.float32),
        RNG.normal(size=(8, 1, 3)).astype(np.float32),
        tolerance=1e-4,
    ),
    case(
        "ragged_dot",
        lambda x, w: lax.ragged_dot(x, w, jnp.array([3, 5, 0], jnp.int32)),
        X,
        RNG.normal(size=(3, 6, 4)).astype(np.float32),
    ),
]


@like_jax(CASES)
def test_like_jax(check, case):
    check(case)
