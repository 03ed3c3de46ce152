"""Functions on the representation of floats: against numpy and JAX, at special values and in all dtypes."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from tests.agreement import (
    PARTS,
    Case,
    gradients_like,
    mesh_like_one_device,
    values_like_both,
    vmap_like_loop,
)

SPECIALS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 2.5, 300.0, -0.3, 1e-30, 3e38], np.float32)
OTHERS = np.array([0.5, -0.0, np.nan, 2.0, -3.0, np.inf, -np.inf, -2.5, 7.0, 1.0, -1e-30, 1.0], np.float32)
SMOOTH = np.array([[0.7, -1.3, 2.2], [-0.4, 5.1, 0.9]], np.float32)
COMPLEX = np.array([1 + 2j, -1.5, 2j, 0, -1 - 1j], np.complex64)
INTEGERS = np.array([3, -2, 0, 127, -128], np.int8)
UNARY = ["positive", "reciprocal", "fabs", "rint", "signbit", "deg2rad", "rad2deg", "degrees", "radians", "angle"]
UNARY += ["sinc", "isposinf", "isneginf", "nan_to_num"]
BINARY = ["fmax", "fmin", "heaviside", "copysign", "logaddexp2", "float_power"]
NARROW = [np.array([1.5, -2.0, 0.25], dtype) for dtype in (ml_dtypes.bfloat16, np.float16)]
CASES = [
    *(Case(name, (SPECIALS,), smooth=False) for name in [*UNARY, "frexp"]),
    *(Case(name, (SMOOTH,), smooth=name not in ("signbit", "rint")) for name in [*UNARY, "frexp", "modf"]),
    *(Case(name, (SPECIALS, OTHERS), smooth=False) for name in BINARY if name != "float_power"),
    *(Case(name, (SMOOTH, SMOOTH[:1] + 0.25)) for name in BINARY if name != "float_power"),
    Case("float_power", (np.abs(SMOOTH), SMOOTH[:, :1]), rtol=1e-4),
    Case("ldexp", (SMOOTH, np.array([3, -2, 0], np.int32))),
    Case(
        "ldexp",
        (np.array([1e-30, 1.0, np.inf, 0.0, np.nan], np.float32), np.array([140, 3, 3, 99, 1], np.int32)),
        smooth=False,
    ),
    Case("angle", (COMPLEX,), {"deg": True}),
    Case("nan_to_num", (SPECIALS,), {"nan": 7.0, "posinf": 1.0, "neginf": -2.0}, smooth=False),
    Case("nan_to_num", (np.array([complex(np.nan, np.inf), 1j], np.complex64),), {"posinf": 3.0}),
    Case("sort_complex", (np.array([[3, 1, 2], [2, 1, 3]], np.float32),)),
    Case("sort_complex", (COMPLEX,)),
    Case("spacing", (np.array([1.0, -1024.0, 0.0, np.nan, np.inf], np.float32),), smooth=False),
    Case("modf", (np.array([2.5, -0.25, -0.0, 3.0], np.float32),), smooth=False),
]
LIKE_JAX = [  # numpy promotes these to wider dtypes
    *(Case(name, (INTEGERS,)) for name in ["positive", "fabs", "rint", "signbit", "deg2rad", "angle", "sinc", "frexp"]),
    *(Case(name, (x,), smooth=False) for name in [*UNARY, "frexp", "modf", "spacing"] for x in NARROW),
    *(Case(name, (x, 2), smooth=False) for name in BINARY for x in (NARROW[0], INTEGERS, 1.5)),
    *(Case(name, (x,)) for name in ("fabs", "reciprocal", "rint", "sinc", "deg2rad", "angle") for x in (2, 0.5, True)),
    *(Case(name, (COMPLEX + 1,)) for name in ("positive", "reciprocal", "rint", "deg2rad", "angle", "sinc")),
    Case("logaddexp2", (COMPLEX, COMPLEX[::-1].copy())),
    Case("float_power", (COMPLEX, 2), atol=1e-5),
    Case("ldexp", (NARROW[1], np.array([1, 2, -3], np.int8))),
    Case("ldexp", (3, 2)),
]


@pytest.mark.table(default=1)
@PARTS
def test_like_numpy_and_jax(part):
    values_like_both(jnp, CASES[part], LIKE_JAX[part])


@pytest.mark.table(default=1)
@pytest.mark.jax
@PARTS
def test_gradients_like_jax(part):
    jax = pytest.importorskip("jax")
    gradients_like(jnp, jax.numpy, [case for case in CASES if case.name not in ("modf", "spacing")][part], jax)


@pytest.mark.table(default=1)
@PARTS
def test_vmap(part):
    vmap_like_loop(jnp, CASES[::2][part])


@pytest.mark.jax
def test_extrema_of_complex_numbers_like_jax():
    jax = pytest.importorskip("jax")
    numbers = np.array([1 + 2j, 1 + 3j, 2 - 1j, 1j, complex(np.nan, 0)], np.complex64)
    x, y = np.meshgrid(numbers, numbers)
    np.testing.assert_array_equal(jnp.fmax(x, y), jax.numpy.fmax(x, y))
    np.testing.assert_array_equal(jnp.fmin(x, y), jax.numpy.fmin(x, y))


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_on_a_mesh(mesh, which, part):
    shapes = ((16, 8), (13, 7))
    arrays = [np.linspace(-4, 4, rows * columns).astype(np.float32).reshape(rows, columns) for rows, columns in shapes]
    cases = [Case(name, (x,)) for name in ("fabs", "signbit", "sinc", "frexp", "modf", "spacing") for x in arrays]
    cases += [Case(name, (x, x[:1])) for name in ("copysign", "heaviside", "fmax", "logaddexp2") for x in arrays]
    mesh_like_one_device(mesh, jnp, cases[part], which)


def test_elementwise_functions_need_no_communication(mesh):
    x = sw.device_put(np.ones((16, 8), np.float32), sw.sharding.NamedSharding(mesh, sw.sharding.PartitionSpec("data")))

    def all_of(x):
        results = [jnp.sinc(x), jnp.signbit(x), jnp.spacing(x), jnp.nan_to_num(x), jnp.angle(x), jnp.copysign(x, -1.0)]
        return [*results, *jnp.frexp(x), *jnp.modf(x), jnp.ldexp(x, 3), jnp.heaviside(x, 0.5), jnp.logaddexp2(x, x)]

    assert sw.explain(all_of)(x).counts() == {}


def test_modf_of_infinities_has_fraction_zero():
    """numpy agrees; JAX returns NaN."""
    for ours, theirs in zip(jnp.modf(SPECIALS[1:3]), np.modf(SPECIALS[1:3]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_sinc_is_smooth_at_zero():
    function = sw.grad(sw.grad(jnp.sinc))
    np.testing.assert_allclose(function(0.0), -(np.pi**2) / 3, rtol=1e-5)
    np.testing.assert_allclose(sw.grad(sw.grad(function))(0.0), np.pi**4 / 5, rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: jnp.fabs(1j), TypeError, r"fabs: not defined for complex numbers: c64\[\]"),
        (lambda: jnp.copysign(1j, 2), TypeError, "copysign: not defined for complex numbers"),
        (lambda: jnp.signbit(1j), ValueError, "signbit: not defined for complex numbers"),
        (lambda: jnp.spacing(1j), ValueError, "spacing: not defined for complex numbers"),
        (lambda: jnp.isposinf(1j), ValueError, "isposinf: not defined for complex numbers"),
        (
            lambda: jnp.ldexp(1.0, 2.0),
            ValueError,
            r"ldexp: needs floats and integer exponents, not f32\[\]~ and f32\[\]~",
        ),
        (lambda: jnp.modf(1.0, out=1), NotImplementedError, "modf: arrays are immutable"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
