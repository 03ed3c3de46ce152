"""The Fourier transform on a mesh: its collectives, and its errors."""

import numpy as np
import pytest

import shardwise.numpy as jnp
from shardwise.compiler.ir.evaluate import evaluate
from shardwise.compiler.ir.types import ArrayType, parse_type
from shardwise.compiler.ops.linalg.fft import Fft
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build
from shardwise.sharding import PartitionSpec as P

MESH = AbstractMesh((4, 2), ("data", "model"))


def on_mesh(function, shape, spec, dtype=np.complex64, out=None):
    program, _ = build(lambda x: [function(x)], [ArrayType(shape, dtype)], "transformed")
    pins = [None if out is None else pin_of(out, program.out_types[0].shape, MESH)]
    return program, run_stages(program, MESH, [pin_of(spec, shape, MESH)], pins).local


def assert_same(local, program):
    rng = np.random.default_rng(0)
    args = [rng.normal(size=type.shape) + 1j * rng.normal(size=type.shape) for type in program.in_types]
    args = [
        (arg if type.dtype.kind == "c" else arg.real).astype(type.dtype)
        for arg, type in zip(args, program.in_types, strict=True)
    ]
    for got, want in zip(evaluate_shards(local, args), evaluate(program, args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def collective_names(local):
    return [step.op.name for step in local.collectives()]


@pytest.mark.parametrize("rows", [16, 13], ids=["even", "uneven"])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_a_sharded_batch_needs_no_collectives(name, rows):
    """XLA gathers a batch of transforms, although no row is sharded (jax#15680, jax#13081)."""
    dtype = np.float32 if name == "rfft" else np.complex64
    for spec in (P("data"), P(("data", "model")), P("data", None, "model")):
        function, shape = (getattr(jnp.fft, name), (rows, 12)) if len(spec) == 1 else (_fft_along_dim_1, (rows, 12, 6))
        program, local = on_mesh(function, shape, spec, dtype if len(spec) == 1 else np.complex64)
        assert local.collectives() == []
        assert local.outputs[0].layout.dims[0] == ("data",) or spec[0] == ("data", "model")
        assert_same(local, program)


def _fft_along_dim_1(x):
    return jnp.fft.fft(x, axis=1)


@pytest.mark.parametrize("columns", [256, 250], ids=["even", "uneven"])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_a_sharded_dim_needs_two_all_to_alls(name, columns):
    dtype = np.float32 if name == "rfft" else np.complex64
    program, local = on_mesh(getattr(jnp.fft, name), (64, columns), P(None, "data"), dtype)
    assert collective_names(local) == ["all_to_all"] * 2
    assert local.outputs[0].layout.dims == ((), ("data",))
    in_bytes = 64 * 256 * np.dtype(dtype).itemsize
    out_bytes = 64 * (-(-program.out_types[0].shape[1] // 4) * 4) * program.out_types[0].dtype.itemsize
    assert sum(map(local.bytes_sent, local.collectives())) <= (in_bytes + out_bytes) * 3 / 16
    assert_same(local, program)


@pytest.mark.parametrize("shape", [(64, 128), (63, 126)], ids=["even", "uneven"])
@pytest.mark.parametrize("spec", [P("data"), P(None, "data"), P(("data", "model"))], ids=str)
def test_a_sharded_image_is_not_gathered(shape, spec):
    program, local = on_mesh(jnp.fft.fft2, shape, spec)
    assert set(collective_names(local)) == {"all_to_all"}
    assert local.outputs[0].layout.dims == tuple(() if axes is None else axes for axes in _as_dims(spec))
    assert_same(local, program)


def _as_dims(spec):
    axes = [*spec, None][:2]
    return [(axis,) if isinstance(axis, str) else axis for axis in axes]


@pytest.mark.parametrize("shape", [(32, 16, 32), (30, 18, 27)], ids=["even", "uneven"])
def test_a_volume_sharded_in_pencils_is_not_gathered(shape):
    program, local = on_mesh(jnp.fft.fftn, shape, P("data", "model"), out=P("data", "model"))
    assert set(collective_names(local)) == {"all_to_all"}
    assert local.outputs[0].layout.dims == (("data",), ("model",), ())
    assert_same(local, program)


def test_a_single_row_is_gathered():
    program, local = on_mesh(jnp.fft.fft, (250,), P("data"))
    assert collective_names(local) == ["all_gather"]
    assert_same(local, program)


@pytest.mark.parametrize(
    ("op", "type", "message"),
    [
        (Fft("DCT", 0, 4), "c64[4]", "fft: kind must be one of FFT, IFFT, RFFT, IRFFT, not 'DCT'"),
        (Fft("FFT", 1, 4), "c64[4]", "fft: dim 1 does not exist in c64[4]"),
        (Fft("FFT", 0, 4), "f32[4]", "fft: FFT needs complex numbers, not f32[4]"),
        (Fft("RFFT", 0, 4), "bf16[4]", "fft: RFFT needs f32 or f64, not bf16[4]"),
        (
            Fft("FFT", 0, 5),
            "c64[4]",
            "fft: FFT of length 5 needs 5 elements along dim 0, and at least one, not c64[4]",
        ),
        (
            Fft("IRFFT", 0, 8),
            "c64[4]",
            "fft: IRFFT of length 8 needs 5 elements along dim 0, and at least one, not c64[4]",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Fft) else "",
)
def test_wrong_operands_raise_type_error(op, type, message):
    with pytest.raises(TypeError) as caught:
        op.out_type(parse_type(type))
    assert str(caught.value) == message
