"""Elementwise functions and reductions like JAX: values, dtypes, weak types, gradients, special values."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from tests.layouts.call import functions_with

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

# Every function of one operand that JAX has too, and some that other modules define.
ELEMENTWISE = [name for name in functions_with(jnp, "shardwise.numpy.elementwise", 1) if hasattr(jax.numpy, name)]
UNARY = [
    *ELEMENTWISE,
    *("abs", "exp", "square", "negative", "round", "real", "imag", "conj"),
    *("max", "min", "sum", "prod", "mean", "var", "std", "all", "any", "argmax", "argmin"),
]
BINARY = [
    *("maximum", "minimum", "power", "arctan2", "hypot", "logaddexp", "floor_divide", "remainder", "fmod"),
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift"),
    *("right_shift", "nextafter", "equal", "less", "isclose", "logaddexp2", "gcd", "lcm"),
]
BITS = {"bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"}
SPECIALS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 300.0, 0.3], np.float32)
OPERANDS = {
    "f32": np.array([1.5, -2.0, 0.25], np.float32),
    "bf16": np.array([1.5, -2.0, 0.25], ml_dtypes.bfloat16),
    "f16": np.array([1.5, -2.0, 0.25], np.float16),
    "i32": np.array([3, -2, 1], np.int32),
    "i8": np.array([3, -2, 1], np.int8),
    "u8": np.array([3, 2, 1], np.uint8),
    "bool": np.array([True, False, True]),
    "c64": np.array([1 + 2j, 3, -1j], np.complex64),
    "2": 2,
    "2.5": 2.5,
    "True": True,
}
ONES_U4 = np.ones(3, ml_dtypes.uint4)


def assert_same(ours, theirs, note=""):
    assert (ours.dtype, ours.shape, ours.weak_type) == (theirs.dtype, theirs.shape, theirs.weak_type), note
    narrow = ours.dtype.itemsize < 4
    np.testing.assert_allclose(
        np.asarray(ours), np.asarray(theirs), rtol=2e-2 if narrow else 3e-6, atol=1e-2 if narrow else 1e-6, err_msg=note
    )


def accepts(name, args):
    """Return whether our function and JAX's accept the operands."""
    results = []
    for evaluate, namespace in ((sw.eval_shape, jnp), (jax.eval_shape, jax.numpy)):
        try:
            evaluate(getattr(namespace, name), *args)
            results.append(True)
        except (TypeError, ValueError):
            results.append(False)
    return results


def compare(names, *args):
    """Assert that each function agrees with JAX, or that both reject the operands."""
    accepted = []
    for name in names:
        ours, theirs = accepts(name, args)
        assert ours == theirs, f"{name} of {args}"
        accepted += [name] * ours
    ours, theirs = (
        wrap(lambda *args, space=space: [getattr(space, name)(*args) for name in accepted])(*args)
        for wrap, space in ((sw.jit, jnp), (jax.jit, jax.numpy))
    )
    for name, mine, other in zip(accepted, ours, theirs, strict=True):
        assert_same(mine, other, f"{name} of {args}")


@pytest.mark.table(default=1)
@pytest.mark.parametrize("operand", OPERANDS)
def test_unary_functions(operand):
    x = OPERANDS[operand]
    names = set(UNARY)
    if operand == "c64":
        names -= {"argmax", "argmin", "all"}  # JAX only compares the real parts of complex numbers
    if operand in ("bool", "True"):
        names -= {"round"}  # JAX rejects booleans here, but not in floor and ceil
    compare(sorted(names), x)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("left", ["f32", "bf16", "i32", "u8", "bool", "c64", "2.5"])
def test_binary_functions(left):
    for right in ("f32", "i32", "2"):
        x, y = OPERANDS[left], OPERANDS[right]
        names = set(BINARY)
        if left == "c64":
            # JAX accepts other dtypes, or orders complex numbers differently.
            names -= {"maximum", "minimum", "hypot", "logaddexp", "arctan2"}
        if right == "i32":
            names -= {"power"}  # negative powers of integers are undefined in JAX
        compare(sorted(names), x, y)


@pytest.mark.slow
def test_integer_powers():
    x, y = np.array([-3, -1, 0, 1, 2, 5], np.int32), np.array([0, 1, 2, 3, 9, 5], np.int32)
    compare(["power"], x, y)
    got = jnp.power(np.array([2, 1, -1, -1, 0], np.int32), np.array([-1, -5, -2, -3, -1], np.int32))
    assert got.tolist() == [0, 1, 1, -1, 0]
    # Overflowing powers wrap around, modulo 2**32.
    x, y = np.array([3, 5, 7, 2], np.uint32), np.array([2**31 + 5, 64, 2**32 - 1, 40], np.uint32)
    assert jnp.power(x, y).tolist() == [pow(int(a), int(b), 2**32) for a, b in zip(x, y, strict=True)]


@pytest.mark.slow
def test_special_values():
    compare([name for name in UNARY if name not in ("sum", "prod", "mean", "var", "std")], SPECIALS)
    x, y = (grid.reshape(-1) for grid in np.meshgrid(SPECIALS, SPECIALS))
    compare([name for name in BINARY if name not in BITS], x, y)


SMOOTH = [
    *("exp", "expm1", "log", "log1p", "logistic", "sqrt", "rsqrt", "cbrt", "square", "abs", "neg", "sign"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("erf", "erfc", "erf_inv", "lgamma", "digamma", "floor", "ceil", "round"),
]


def value_and_gradients(names, *args):
    """Return (name, ours, JAX's) of the value and the gradients of the sum of each function's results."""
    argnums = tuple(range(len(args)))

    def all_of(differentiate, space):
        def total(name):
            return lambda *args: getattr(space, name)(*args).sum()

        return lambda *args: [differentiate(total(name), argnums)(*args) for name in names]

    return zip(
        names,
        sw.jit(all_of(sw.value_and_grad, lax))(*args),
        jax.jit(all_of(jax.value_and_grad, jax.lax))(*args),
        strict=True,
    )


@pytest.mark.slow
def test_values_and_gradients_of_unary_functions():
    x = np.array([0.3, 0.9, 1.5, 2.75, -0.4, 0.0, 1.0], np.float32)
    for name, (value, (gradient,)), (other_value, (other_gradient,)) in value_and_gradients(SMOOTH, x):
        np.testing.assert_allclose(value, other_value, rtol=1e-5, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(gradient, other_gradient, rtol=1e-5, atol=1e-5, err_msg=name)


def test_values_and_gradients_of_binary_functions():
    x, y = np.array([0.3, 2.0, 1.5, 2.75], np.float32), np.array([0.7, 2.0, 0.5, 1.0], np.float32)
    names = ["add", "sub", "mul", "div", "rem", "max", "min", "atan2", "pow"]
    for name, (value, gradients), (other_value, other_gradients) in value_and_gradients(names, x, y):
        np.testing.assert_allclose(value, other_value, rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(gradients, other_gradients, rtol=1e-5, atol=1e-6, err_msg=name)


def test_complex_arctan2_on_and_off_the_branch_cuts():
    y, x = np.meshgrid(*[np.array([0.25, 2j, -1j, 1 + 1j, -1, 0], np.complex64)] * 2)
    for ours, theirs in ((jnp.arctan2, jax.numpy.arctan2), (lax.atan2, jax.lax.atan2)):
        np.testing.assert_allclose(ours(y, x), theirs(y, x), rtol=1e-6, atol=1e-6)
    tangents = (np.full_like(y, 0.5j), np.full_like(x, 2))
    ours, theirs = sw.jvp(lax.atan2, (y, x), tangents), jax.jvp(jax.lax.atan2, (y, x), tangents)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_derivatives_of_complex_functions():
    z = np.array([1 + 2j, -0.5 + 0.25j, 3 - 1j], np.complex64)
    dz = np.array([1 - 1j, 2j, 0.5], np.complex64)
    for name in ("abs", "real", "imag", "conj", "sqrt", "log", "tanh", "square", "asin", "logistic"):
        ours, theirs = sw.vjp(getattr(lax, name), z), jax.vjp(getattr(jax.lax, name), z)
        cotangent = np.asarray([1.0, -2.0, 0.5], ours[0].dtype)
        np.testing.assert_allclose(ours[1](cotangent)[0], theirs[1](cotangent)[0], rtol=1e-5, atol=1e-6, err_msg=name)
        ours, theirs = sw.jvp(getattr(lax, name), (z,), (dz,)), jax.jvp(getattr(jax.lax, name), (z,), (dz,))
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 2), (2, 1, 0)], ids=str)
def test_values_and_gradients_of_reductions(axes):
    x = np.random.default_rng(0).integers(-2, 3, (3, 4, 2)).astype(np.float32)
    names = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")

    def all_of(differentiate, space):
        def total(name):
            return lambda x: (getattr(space, name)(x, axes) ** 2).sum()

        return lambda x: [differentiate(total(name))(x) for name in names]

    ours = sw.jit(all_of(sw.value_and_grad, lax))(x)
    theirs = jax.jit(all_of(jax.value_and_grad, jax.lax))(x)
    for name, mine, other in zip(names, ours, theirs, strict=True):
        np.testing.assert_allclose(mine[0], other[0], rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(mine[1], other[1], rtol=1e-5, atol=1e-6, err_msg=name)


CALLS = {
    "clamp": lambda lax: lax.clamp(-1.0, SPECIALS, 1.0),
    "round away": lambda lax: lax.round(np.array([0.5, -0.5, 1.5, 2.4], np.float32)),
    "round to even": lambda lax: lax.round(np.array([0.5, -0.5, 1.5], np.float32), lax.RoundingMethod.TO_NEAREST_EVEN),
    "integer_pow": lambda lax: lax.integer_pow(SPECIALS, -3),
    "pow by integers": lambda lax: lax.pow(SPECIALS, np.arange(9)),
    "complex": lambda lax: lax.complex(1.0, 2.0),
    "conj of real": lambda lax: lax.conj(SPECIALS),
    "reduce_precision": lambda lax: lax.reduce_precision(SPECIALS, 5, 2),
    "bits": lambda lax: lax.bitcast_convert_type(SPECIALS, np.int32),
    "bytes": lambda lax: lax.bitcast_convert_type(SPECIALS, np.uint8),
    "from bytes": lambda lax: lax.bitcast_convert_type(np.arange(8, dtype=np.uint8).reshape(2, 4), np.float32),
    "shift": lambda lax: lax.shift_right_logical(np.array([-1, 8]), np.array([1, 40])),
    "population_count": lambda lax: lax.population_count(np.array([-1, 8])),
    "clz": lambda lax: lax.clz(np.array([-1, 8])),
    "integer division": lambda lax: lax.div(np.array([-7, 7]), np.array([2, -2])),
    "integer remainder": lambda lax: lax.rem(np.array([-7, 7]), np.array([2, -2])),
    "argmax": lambda lax: lax.argmax(SPECIALS.reshape(3, 3), 1, np.int32),
    "argmin": lambda lax: lax.argmin(SPECIALS.reshape(3, 3), 0, np.uint8),
    "reduce_and": lambda lax: lax.reduce_and(np.array([[7, 5], [3, 1]]), (0,)),
    "reduce_or": lambda lax: lax.reduce_or(np.array([[True, False]]), (0,)),
    "reduce_xor": lambda lax: lax.reduce_xor(np.array([[7, 5], [3, 1]]), (1,)),
    "select by one": lambda lax: lax.select(True, SPECIALS, -SPECIALS),
    "weak": lambda lax: lax.max(1, 2),
    "nextafter": lambda lax: lax.nextafter(SPECIALS[:8], 1.0),
}


@pytest.mark.table(default=4)
@pytest.mark.parametrize("call", CALLS)
def test_lax_calls(call):
    assert_same(CALLS[call](lax), CALLS[call](jax.lax), call)


REJECTED = {
    "two dtypes": lambda lax: lax.add(SPECIALS, 1),
    "two ranks": lambda lax: lax.add(np.ones((2, 3), np.float32), np.ones(3, np.float32)),
    "integers": lambda lax: lax.exp(np.arange(3)),
    "real of real": lambda lax: lax.real(SPECIALS),
    "negative power": lambda lax: lax.integer_pow(np.arange(3), -1),
    "float bits": lambda lax: lax.bitwise_and(SPECIALS, SPECIALS),
    "unsigned abs": lambda lax: lax.abs(np.array([1], np.uint8)),
    "float index": lambda lax: lax.argmax(SPECIALS, 0, np.float32),
}


@pytest.mark.parametrize("call", REJECTED)
def test_lax_rejects_what_jax_rejects(call):
    for namespace in (lax, jax.lax):
        with pytest.raises(TypeError):
            REJECTED[call](namespace)


@pytest.mark.slow
def test_reduction_options():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    mask = np.array([True, False, True])
    calls = [
        lambda np: np.max(x, initial=9.0),
        lambda np: np.max(x[:0], initial=9.0),
        lambda np: np.min(x, axis=1, where=mask, initial=2.0),
        lambda np: np.sum(x, axis=1, where=mask, initial=1),
        lambda np: np.prod(x, axis=0, where=mask, keepdims=True),
        lambda np: np.mean(x, axis=1, where=mask),
        lambda np: np.all(x, axis=1, where=mask),
        lambda np: np.any(x, axis=0, keepdims=True, where=mask),
        lambda np: np.var(x, axis=0, ddof=1, keepdims=True),
        lambda np: np.std(x, dtype=np.float16),
        lambda np: np.argmax(x, keepdims=True),
        lambda np: np.argmin(x, axis=-1, keepdims=True),
        lambda np: np.round(x / 7, 2),
        lambda np: np.clip(x, max=2),
        lambda np: np.prod(x, dtype=np.int32),
    ]
    for call in calls:
        assert_same(call(jnp), call(jax.numpy))


@pytest.mark.slow
def test_operators():
    x, y = np.array([7, -7, 3], np.int32), np.array([2, 2, -2], np.int32)
    calls = [
        *(lambda a: a // y, lambda a: a % y, lambda a: a**2, lambda a: 2 ** abs(a), lambda a: a & y, lambda a: a | 1),
        *(lambda a: a ^ y, lambda a: ~a, lambda a: a << 2, lambda a: a >> 1, abs, lambda a: y // a),
        *(lambda a: divmod(a, y)[1], lambda a: 5 % a, lambda a: (a / 2.0) ** 2, lambda a: (a / 2.0) // 0.7),
        *(lambda a: round(a / 3, 1), lambda a: a.max(), lambda a: a.std(), lambda a: a.clip(0, 2)),
        *(lambda a: a.argmin(), lambda a: (a > 0).all(), lambda a: a.prod(), lambda a: a.conj(), lambda a: a.imag),
    ]
    for index, call in enumerate(calls):
        assert_same(call(jnp.asarray(x)), call(jax.numpy.asarray(x)), f"operator {index}")


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8])
def test_integers_divided_by_zero(dtype):
    x, zeros = np.array([-7, 0, 7, 1]).astype(dtype), np.zeros(4, dtype)
    for name in ("floor_divide", "remainder", "fmod"):
        assert_same(getattr(jnp, name)(x, zeros), getattr(jax.numpy, name)(x, zeros), name)


def test_powers_of_numpy_integers_keep_the_dtype_of_the_base():
    for base in (np.array([2, 3], np.int8), np.array([2, 3], np.uint32), np.array([0.5, 3], np.float16)):
        for exponent in (np.int64(2), np.array(2, np.int8), np.array([2, 1])):
            assert_same(jnp.power(base, exponent), jax.numpy.power(base, exponent), f"power of {base.dtype}")
    for module in (jnp, jax.numpy):
        with pytest.raises(TypeError, match="negative"):
            module.power(np.array([2, 3], np.int8), np.array(-1))


def test_boolean_and_complex_operands():
    integers = np.array([4, -6, 0], np.int32)
    for name, args in (
        ("gcd", (integers, True)),
        ("lcm", (integers, True)),
        ("ldexp", (OPERANDS["f32"], True)),
        ("fmod", (OPERANDS["bool"], True)),
        ("arctan2", (OPERANDS["c64"], 2.5)),
        ("arctan2", (OPERANDS["f32"], np.array([1 + 2j, 3, 2 - 1j], np.complex64))),
    ):
        assert_same(getattr(jnp, name)(*args), getattr(jax.numpy, name)(*args), name)


def test_operands_that_jax_rejects():
    calls = [
        *(lambda np: np.hypot(OPERANDS["c64"], 2), lambda np: np.gcd(OPERANDS["bool"], True)),
        *(lambda np: np.logical_and(ONES_U4, OPERANDS["f32"]), lambda np: np.logical_or(ONES_U4, 2.5)),
        *(lambda np: np.logical_xor(ONES_U4, OPERANDS["i8"]), lambda np: np.matmul(3, OPERANDS["f32"])),
        *(lambda np: np.array(None), lambda np: np.array([None, 1])),
    ]
    for call in calls:
        for module in (jnp, jax.numpy):
            with pytest.raises(ValueError):
                call(module)


def test_nested_lists_of_numbers_and_arrays():
    calls = [
        lambda np: np.array([1, 2.0, np.int8(3)]),
        lambda np: np.array([[1, np.int8(2)], [3, 4]]),
        lambda np: np.array([np.asarray(1), 2]),
        lambda np: np.array([np.asarray([1.0, 2.0]), [3, 4]]),
    ]
    for call in calls:
        assert_same(call(jnp), call(jax.numpy))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.int32, np.uint32, np.int64])
def test_integers_become_floats_of_the_width_of_jax(dtype):
    """With 64-bit dtypes, only 64-bit integers become 64-bit floats."""
    x = np.ones(3, dtype)
    for name in ("sin", "divide", "mean", "hypot", "convolve", "isclose"):
        args = (x, x) if name in ("divide", "hypot", "convolve", "isclose") else (x,)
        with sw.enable_x64(True), jax.enable_x64(True):
            ours, theirs = (getattr(space, name)(*args) for space in (jnp, jax.numpy))
        assert ours.dtype == theirs.dtype, name
