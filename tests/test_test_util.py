"""check_grads, check_jvp and check_vjp accept right derivatives and reject wrong ones, in the same cases as JAX."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.test_util import check_grads, check_jvp, check_vjp

try:
    import jax
    import jax.test_util
except ImportError:  # one of the oracles
    jax = None

X = np.array([[0.3, -0.7, 1.1], [0.2, 0.9, -0.4]], np.float32)


def _wrong_jvp(package):
    """sin, whose JVP has a factor of 1.5."""

    @package.custom_jvp
    def function(x):
        return package.numpy.sin(x)

    function.defjvp(lambda x, t: (package.numpy.sin(x[0]), 1.5 * package.numpy.cos(x[0]) * t[0]))
    return function


def _wrong_vjp(package):
    """sin, whose VJP has the wrong sign."""

    @package.custom_vjp
    def function(x):
        return package.numpy.sin(x)

    function.defvjp(lambda x: (package.numpy.sin(x), x), lambda x, ct: (-package.numpy.cos(x) * ct,))
    return function


def _wrong_second_order(package):
    """x³ whose first derivative is right and whose second is not."""

    @package.custom_jvp
    def derivative(x):
        return 3 * x**2

    derivative.defjvp(lambda x, t: (3 * x[0] ** 2, t[0]))

    @package.custom_jvp
    def function(x):
        return x**3

    function.defjvp(lambda x, t: (x[0] ** 3, derivative(x[0]) * t[0]))
    return function


# (name, function of a package, arguments, order, modes, whether the check passes)
CASES = [
    ("sin", lambda package: package.numpy.sin, (X,), 2, ("fwd", "rev"), True),
    ("scalar", lambda package: lambda x: x**3, (0.5,), 2, ("fwd", "rev"), True),
    ("matmul", lambda package: lambda x, y: x @ y, (X, X.T.copy()), 2, ("fwd", "rev"), True),
    (
        "pytree",
        lambda package: lambda p: {"y": p["a"] * p["b"], "z": p["a"]},
        ({"a": X, "b": X + 1},),
        2,
        ("rev",),
        True,
    ),
    ("complex", lambda package: package.numpy.exp, ((X + 1j * X[::-1]).astype(np.complex64),), 1, ("fwd", "rev"), True),
    ("conj", lambda package: lambda x: package.numpy.conj(x) * x, (np.complex64(0.2 - 0.9j),), 1, ("fwd", "rev"), True),
    ("abs of complex", lambda package: package.numpy.abs, (np.complex64([1 + 2j, -1j]),), 1, ("fwd", "rev"), True),
    ("jvp", _wrong_jvp, (X,), 1, ("fwd",), False),
    ("jvp in reverse", _wrong_jvp, (X,), 1, ("rev",), False),
    ("vjp", _wrong_vjp, (X,), 1, ("rev",), False),
    ("order 1 is right", _wrong_second_order, (X,), 1, ("fwd", "rev"), True),
    ("order 2 is wrong", _wrong_second_order, (X,), 2, ("fwd",), False),
    ("order 2 is wrong in reverse", _wrong_second_order, (X,), 2, ("rev",), False),
]


@pytest.mark.parametrize(
    ("build", "args", "order", "modes", "passes"), [row[1:] for row in CASES], ids=[c[0] for c in CASES]
)
def test_accepts_and_rejects_like_jax(build, args, order, modes, passes):
    for package in (sw, jax) if jax else (sw,):
        check = partial(
            package.test_util.check_grads, build(package), args, order, modes, atol=0.02, rtol=0.02, eps=1e-2
        )
        if passes:
            check()
        else:
            with pytest.raises(AssertionError):
                check()


def test_default_tolerances():
    check_grads(jnp.sin, (X,), 1)
    with pytest.raises(AssertionError, match="JVP: the tangent differs"):
        check_grads(_wrong_jvp(sw), (np.float32(0.3),), 1)
    check_grads(_wrong_jvp(sw), (np.float32(0.3),), 1, atol={np.float32: 0.2}, rtol={np.float32: 0.2})
    check_grads(jnp.sin, (jnp.asarray(X, jnp.bfloat16),), 1, eps=0.1)


def test_messages_name_mode_and_order():
    with pytest.raises(AssertionError, match=r"JVP of JVP: the tangent \[0\] differs"):
        check_grads(_wrong_second_order(sw), (X,), 2, ("fwd",), eps=1e-2)
    with pytest.raises(AssertionError, match="mine: the pairing of cotangents differs"):
        check_vjp(jnp.sin, partial(sw.vjp, _wrong_vjp(sw)), (X,), err_msg="mine")


def test_values_structures_shapes_and_dtypes_are_compared():
    def jvp_of(function):
        return partial(sw.jvp, function)

    with pytest.raises(AssertionError, match="the value differs"):
        check_jvp(jnp.sin, jvp_of(lambda x: jnp.sin(x) + 1), (X,))
    with pytest.raises(AssertionError, match="the value is of float16, and the function returns float32"):
        check_jvp(jnp.sin, jvp_of(lambda x: jnp.sin(x).astype(np.float16)), (X,))
    with pytest.raises(AssertionError, match="the function returns"):
        check_jvp(jnp.sin, jvp_of(lambda x: [jnp.sin(x)]), (X,))
    with pytest.raises(AssertionError, match=r"the value has shape \(2,\), not \(2, 3\)"):
        check_jvp(jnp.sin, jvp_of(lambda x: jnp.sin(x)[:, 0]), (X,))


def test_integers_and_keys_are_not_perturbed():
    def scaled(n, x, key, y):
        return {"n": n + 1, "y": n * x * y + sw.random.normal(key, x.shape)}

    args = (3, X, sw.random.key(0), 0.5)
    check_grads(scaled, args, 2, atol=0.02, rtol=0.02, eps=1e-2)


def test_infinities_that_do_not_change_have_the_difference_zero():
    check_grads(lambda x: jnp.where(x > 0, x, jnp.inf), (X,), 1)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="order must be at least 1, not 0"):
        check_grads(jnp.sin, (X,), 0)
    with pytest.raises(ValueError, match="modes are 'fwd' and 'rev', not 'both'"):
        check_grads(jnp.sin, (X,), 1, modes=("both",))
    with pytest.raises(TypeError, match="needs an array or a number, not 'a'"):
        check_grads(lambda x: x, ("a",), 1)


def test_sharded_arguments_keep_their_sharding(mesh):
    sharding = sw.NamedSharding(mesh, sw.P("data", "model"))
    x = sw.device_put(np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4), sharding)
    seen = []

    def function(x):
        if isinstance(x, sw.Array) and hasattr(x, "addressable_shards"):
            seen.append(x.sharding)
        return jnp.sin(x) @ x.T

    check_grads(function, (x,), 2, atol=0.02, rtol=0.02, eps=1e-2)
    assert seen and all(s.is_equivalent_to(sharding, 2) for s in seen)


@pytest.mark.slow
@settings(max_examples=20)
@given(
    coefficients=st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=4),
    points=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=5),
    factor=st.sampled_from([1.0, 0.8, 1.25]),
)
def test_random_polynomials(coefficients, points, factor):
    """The derivative of a polynomial passes, and one with a wrong factor does not unless it is small."""
    x = np.array(points, np.float32)
    derivative = np.polyder(np.array(coefficients, np.float32)) if len(coefficients) > 1 else np.zeros(1)

    @sw.custom_jvp
    def polynomial(x):
        return jnp.polyval(jnp.array(coefficients), x)

    polynomial.defjvp(lambda x, t: (polynomial(x[0]), factor * jnp.polyval(jnp.array(derivative), x[0]) * t[0]))
    check = partial(check_jvp, polynomial, partial(sw.jvp, polynomial), (x,), atol=2e-3, rtol=2e-3, eps=1e-2)
    tangent = np.random.default_rng(0).normal(size=x.shape)
    error = np.abs((factor - 1) * np.polyval(derivative, x) * tangent)
    size = x.size
    limit = 2e-3 * size * (1 + np.abs(np.polyval(derivative, x) * tangent))
    if factor == 1:
        check()
    elif (error > 2 * limit).any():
        with pytest.raises(AssertionError):
            check()
