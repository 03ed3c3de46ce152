"""jnp.fft and lax.fft: values against numpy and JAX, gradients against JAX, 8 devices against one."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from tests.agreement import (
    PARTS,
    Case,
    batch_name,
    batches,
    mesh_like_one_device,
    values_like,
    values_like_numpy,
    vmap_like_loop,
)

RNG = np.random.default_rng(0)


def real(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def complex_(*shape):
    return (RNG.normal(size=shape) + 1j * RNG.normal(size=shape)).astype(np.complex64)


def case(name, *args, **keywords):
    return Case(f"fft.{name}", args, keywords, rtol=2e-4, atol=2e-5)


NORMS = (None, "backward", "ortho", "forward")
CASES = [
    *(case(name, complex_(3, 8), norm=norm) for name in ("fft", "ifft", "irfft", "hfft") for norm in NORMS),
    *(case(name, real(3, 8), norm=norm) for name in ("rfft", "ihfft") for norm in NORMS),
    *(case(name, complex_(3, 7), n, axis) for name in ("fft", "irfft", "hfft") for n, axis in ((5, 1), (9, -2))),
    *(case(name, real(4, 7, 3), n, axis) for name in ("rfft", "ihfft", "ifft") for n, axis in ((6, 1), (11, 0))),
    *(case(name, complex_(3, 6, 8), norm=norm) for name in ("fft2", "ifft2", "irfft2") for norm in NORMS[2:]),
    *(case(name, complex_(5, 4, 6), (3, 8), (0, 2)) for name in ("fft2", "ifft2", "irfft2")),
    *(case("rfft2", real(3, 6, 8), **options) for options in ({}, {"s": (4, 9)}, {"axes": (2, 0)})),
    *(case(name, complex_(4, 3, 6)) for name in ("fftn", "ifftn", "irfftn")),
    *(case(name, complex_(2, 3, 2, 3, 4), norm="ortho") for name in ("fftn", "ifftn", "irfftn")),
    *(case("rfftn", real(2, 3, 2, 3, 5), **options) for options in ({}, {"axes": (3, 1, 0)})),
    *(case("fftn", real(3, 4), axes=axes) for axes in ((0,), (1, 0))),
    *(
        case(name, x, axes=axes)
        for name in ("fftshift", "ifftshift")
        for x in (real(5, 4),)
        for axes in (None, 0, (1,))
    ),
    *(case(name, n, d) for name in ("fftfreq", "rfftfreq") for n, d in ((8, 1.0), (7, 0.1), (1, 2))),
]
MIXED = [  # integers, booleans and narrow floats are promoted as in JAX
    *(case("fft", np.arange(6).astype(name)) for name in ("int32", "uint8", "bool", "float16")),
    *(case("rfft", np.arange(6).astype(name)) for name in ("int32", "uint8", "bool")),
    case("irfft", real(5)),
    case("fftn", real(3, 4), axes=()),
    case("rfftn", real(2, 3, 5), (4, 6)),  # `s` without `axes` means the last axes; numpy warns about it
    case("hfft", np.arange(4)),
    case("fftshift", np.arange(5)),
    case("fftfreq", 5, np.float32(0.5)),
]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches(CASES, 40), ids=batch_name)
def test_like_numpy(cases):
    values_like_numpy(jnp, cases)


@pytest.mark.table(default=1)
@pytest.mark.jax
@pytest.mark.parametrize("cases", batches([*CASES, *MIXED], 40), ids=batch_name)
def test_like_jax(cases):
    jax = pytest.importorskip("jax")
    values_like(jnp, jax.numpy, cases, jax)


GRADIENTS = {
    "fft": lambda fft, z: fft.fft(z, norm="ortho"),
    "ifft": lambda fft, z: fft.ifft(z, 5, 0),
    "rfft even": lambda fft, z: fft.rfft(z.real),
    "rfft odd": lambda fft, z: fft.rfft(z.real, 5),
    "irfft even": lambda fft, z: fft.irfft(z),
    "irfft odd": lambda fft, z: fft.irfft(z, 9),
    "hfft": lambda fft, z: fft.hfft(z),
    "ihfft": lambda fft, z: fft.ihfft(z.imag),
    "fftn": lambda fft, z: fft.fftn(z),
    "rfft2": lambda fft, z: fft.rfft2(z.real, norm="forward"),
    "irfftn": lambda fft, z: fft.irfftn(z, (4, 7)),
    "fftshift": lambda fft, z: fft.fftshift(z),
}


@pytest.mark.jax
def test_gradients_like_jax():
    jax = pytest.importorskip("jax")
    z = complex_(4, 6)

    def gradients(package, space):
        def gradient_of(function):
            def total(z):
                result = function(space.fft, z)
                weight = np.cos(np.arange(result.size)).reshape(result.shape).astype(np.float32)
                return (space.real(result) * weight).sum() + (space.imag(result) * weight[::-1]).sum()

            return package.grad(total)

        def second(z):
            return package.grad(lambda x: (space.fft.irfft(space.fft.rfft(x) ** 2) ** 2).sum())(z.real)

        return package.jit(lambda z: [*(gradient_of(function)(z) for function in GRADIENTS.values()), second(z)])

    for name, ours, theirs in zip(
        [*GRADIENTS, "second"], gradients(sw, jnp)(z), gradients(jax, jax.numpy)(z), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3, err_msg=name)


@pytest.mark.table(default=1)
@PARTS
def test_vmap(part):
    vmap_like_loop(jnp, [case for case in CASES if case.args and isinstance(case.args[0], np.ndarray)][::3][part])


MESH_CASES = [
    *(case(name, complex_(*shape)) for name in ("fft", "irfft", "fft2", "ifftn") for shape in ((16, 8), (13, 7))),
    *(case(name, real(*shape)) for name in ("rfft", "ihfft", "rfft2", "rfftn") for shape in ((16, 8, 8), (9, 13, 7))),
    *(case(name, complex_(16), **{"n": n}) for name in ("fft", "ifft") for n in (16, 13)),
    *(case(name, real(*shape)) for name in ("fftshift", "ifftshift") for shape in ((16, 8), (13, 7))),
]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_on_a_mesh(mesh, which, part):
    mesh_like_one_device(mesh, jnp, MESH_CASES[part], which)


@pytest.mark.table(default=1)
@pytest.mark.jax
@PARTS
def test_lax_like_jax(part):
    jax = pytest.importorskip("jax")
    cases = [
        Case("fft", (complex_(2, 3, 4), kind, lengths), rtol=1e-4, atol=1e-5)
        for kind, lengths in (("FFT", (4,)), ("ifft", (3, 4)), ("IFFT", (2, 3, 4)), ("IRFFT", (3, 6)), ("fft", ()))
    ]
    cases += [Case("fft", (real(2, 3, 5), "rfft", lengths), rtol=1e-4, atol=1e-5) for lengths in ((5,), (3, 5))]
    values_like(lax, jax.lax, cases[part], jax)
    assert [(kind.name, int(kind)) for kind in lax.FftType] == [(kind.name, int(kind)) for kind in jax.lax.FftType]
    np.testing.assert_allclose(lax.fft(real(4), lax.FftType.FFT, (4,)).shape, (4,))


def test_64_bit_dtypes():
    with sw.config.override("enable_x64", True):
        x = RNG.normal(size=(3, 9))
        spectrum = jnp.fft.rfft(x)
        assert spectrum.dtype == np.complex128
        np.testing.assert_allclose(spectrum, np.fft.rfft(x), rtol=1e-13, atol=1e-13)
        inverse = jnp.fft.irfft(spectrum, 9)
        assert inverse.dtype == np.float64
        np.testing.assert_allclose(inverse, x, rtol=1e-13, atol=1e-13)
        assert jnp.fft.fftfreq(4).dtype == np.float64


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: jnp.fft.fft(real(4), norm="both"),
            ValueError,
            "jnp.fft.fft: norm must be 'backward', 'ortho' or 'forward', not 'both'",
        ),
        (
            lambda: jnp.fft.fft(real(4), 0),
            ValueError,
            "jnp.fft.fft: the transform lengths must be at least 1, not (0,)",
        ),
        (lambda: jnp.fft.irfft(complex_(1)), ValueError, "jnp.fft.irfft: the transform lengths must be at least 1"),
        (lambda: jnp.fft.fft(real(4), axis=(0,)), ValueError, "jnp.fft.fft: `axis` must be one axis, not (0,)"),
        (lambda: jnp.fft.fft(real(4), axis=1), ValueError, "jnp.fft.fft: axis 1 does not exist in f32[4]"),
        (lambda: jnp.fft.fft2(real(4, 4), axes=(0,)), ValueError, "jnp.fft.fft2: `axes` must be two axes, not (0,)"),
        (lambda: jnp.fft.fftn(real(4, 4), (4,), (0, 1)), ValueError, "jnp.fft.fftn: `s` has 1 sizes for 2 axes"),
        (lambda: jnp.fft.fftn(real(4, 4), axes=(0, -2)), ValueError, "jnp.fft.fftn: an axis repeats in (0, -2)"),
        (lambda: jnp.fft.rfft(complex_(4)), ValueError, "jnp.fft.rfft: RFFT needs real numbers, not c64[4]"),
        (lambda: jnp.fft.fftfreq(0), ValueError, "jnp.fft.fftfreq: n must be 1 or more, not 0"),
        (lambda: jnp.fft.fftfreq((4,)), ValueError, "jnp.fft.fftfreq: n and d must be scalars, not (4,)"),
        (
            lambda: lax.fft(real(4), "DFT", (4,)),
            ValueError,
            "lax.fft: fft_type must be one of FFT, IFFT, RFFT, IRFFT, not 'DFT'",
        ),
        (
            lambda: lax.fft(real(4), "FFT", (5,)),
            ValueError,
            "lax.fft: FFT with fft_lengths (5,) needs last axes of sizes",
        ),
        (
            lambda: lax.fft(real(4), "FFT", (1, 4)),
            ValueError,
            "lax.fft: fft_lengths (1, 4) needs 2 axes, but c64[4] has 1",
        ),
        (lambda: jnp.fft.dct, AttributeError, "shardwise.numpy.fft has no attribute 'dct'"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_errors(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
