"""checkify: checks of the user and of floats, in loops, branches, derivatives and batches, compared with Python."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.errors import MissingRuleError
from shardwise.experimental import checkify


def program(x):
    checkify.check(x > 0, "x is {}, n is {n}", x, n=3)

    def body(carry, row):
        checkify.check(row < 5, "row {} after {}", row, carry)
        return carry + row, carry

    total, _ = lax.scan(body, 0.0, jnp.arange(8.0) * x)

    def double(total):
        checkify.check(total < 100, "total is {}", total)
        return total * 2

    total = lax.while_loop(lambda total: (total < 50) & (total > 0), double, total)

    def check_large(total):
        checkify.check(total < 70, "large: {}", total)
        return total

    return lax.cond(total > 60, check_large, lambda total: total, total)


@pytest.mark.parametrize("transform", [lambda f: f, sw.jit])
@pytest.mark.parametrize(
    ("x", "message"),
    [(-1.0, "x is -1.0, n is 3"), (1.0, "row 5.0 after 10.0"), (0.1, "large: 89.5999984741211"), (0.5, None)],
)
def test_first_failure_in_control_flow(transform, x, message):
    error, result = transform(checkify.checkify(program))(x)
    assert error.get() == message
    total = 28 * np.float32(x)
    while 0 < total < 50:
        total *= 2
    np.testing.assert_allclose(result, total, rtol=1e-6)
    if message is None:
        error.throw()
    else:
        with pytest.raises(checkify.JaxRuntimeError, match="^" + message.replace(".", r"\.")):
            error.throw()


def test_outside_of_traced_functions_a_check_raises_at_once():
    with pytest.raises(checkify.JaxRuntimeError, match=r"x is -2\.0"):
        program(-2.0)


def test_in_a_compiled_function_without_checkify_it_is_an_error():
    with pytest.raises(MissingRuleError, match="used in a compiled function without `checkify`"):
        sw.jit(program)(1.0)


def test_transformations():
    def square(x):
        checkify.check(x < 3, "{} is too large", x)
        return x * x

    assert checkify.checkify(sw.vmap(square))(jnp.arange(6.0))[0].get() == "3.0 is too large"
    error, gradient = sw.jit(checkify.checkify(sw.grad(square)))(4.0)
    assert error.get() == "4.0 is too large" and gradient == 8
    inner = checkify.checkify(square)

    def outer(x):
        error, y = inner(x)
        checkify.check_error(error)
        return y

    assert sw.jit(checkify.checkify(outer))(5.0)[0].get() == "5.0 is too large"


def test_checks_of_floats():
    def f(x, y):
        return jnp.log(x) / y

    nan = checkify.checkify(f, checkify.nan_checks)(-1.0, 1.0)[0].get()
    assert nan.startswith("nan generated (log at test_checkify.py:")
    zero = sw.jit(checkify.checkify(f, checkify.float_checks))(1.0, 0.0)[0].get()
    assert zero.startswith("divided by zero (div at test_checkify.py:")
    assert checkify.checkify(f, checkify.all_checks)(2.0, 1.0)[0].get() is None
    assert checkify.checkify(program)(-1.0)[0].get_exception().args == ("x is -1.0, n is 3",)


def test_invalid_arguments():
    with pytest.raises(TypeError, match=r"checkify\.check needs a boolean, not i32"):
        checkify.check(1, "text")
    with pytest.raises(TypeError, match="checkify needs a function"):
        checkify.checkify(3)
