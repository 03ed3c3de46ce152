"""Bad input to `pipeline` is a StrategyError that names the sizes and what to write instead."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P
from shardwise.errors import StrategyError
from shardwise.parallel import pipeline


def stage(w, x):
    return jnp.tanh(x @ w)


@pytest.fixture(scope="module")
def line():
    return sw.make_mesh((4,), ("stage",), devices=sw.devices()[:4])


def call(mesh, stage=stage, microbatches=4, axis="stage", schedule="gpipe", stages=(4,), rows=16, **options):
    run = pipeline(stage, microbatches, axis, schedule, mesh=mesh, **options)
    return sw.jit(run)(np.ones((*stages, 8, 8), np.float32), np.ones((rows, 8), np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "zb"}, "unknown schedule 'zb': use 'gpipe', '1f1b', 'interleaved'"),
        ({"microbatches": 3}, "the batch, of shape (16, 8), is not divisible into 3 microbatches along dim 0"),
        ({"microbatches": 2.5}, "microbatches must be a positive integer, not 2.5"),
        ({"axis": "stages"}, "the mesh has no axis 'stages'; it has 'stage'"),
        (
            {"stages": (8,)},
            "stage_params has shape (8, 8, 8), but 4 devices with one stage each need leading dims (4,)",
        ),
        (
            {"schedule": "interleaved", "chunks": 2, "stages": (8,)},
            "4 devices × 2 chunks need leading dims (2, 4): pass stage_params.reshape(2, 4, …), so that [c, d] is "
            "stage c·4 + d.",
        ),
        (
            {"schedule": "interleaved", "chunks": 2, "stages": (3, 4)},
            "stage_params has shape (3, 4, 8, 8), but 4 devices × 2 chunks need leading dims (2, 4)",
        ),
        (
            {"schedule": "interleaved", "chunks": 2, "stages": (2, 4), "microbatches": 2},
            "groups of 4, the number of devices, which does not divide 2 microbatches: use 4 microbatches",
        ),
        ({"schedule": "1f1b", "chunks": 2}, "schedule '1f1b' has one stage on each device, not chunks=2"),
        ({"schedule": "1f1b", "remat": False}, "schedule '1f1b' stores the inputs of stages only"),
        ({"stage": 3}, "stage must be a function of parameters and a microbatch, not 3"),
        ({"stage": lambda w, x: x @ w[:, :4]}, "it changes the input: float32[4, 8] → float32[4, 4]"),
        ({"stage": lambda w, x: stage(w, x).astype(jnp.float16)}, "float32[4, 8] → float16[4, 8]"),
        ({"stage": lambda w, x: {"h": x}}, "the input: float32[4, 8] → nothing; ['h']: nothing → float32[4, 8]"),
    ],
)
def test_bad_input(line, options, message):
    with pytest.raises(StrategyError) as error:
        call(line, **options)
    assert message in str(error.value)


def test_without_a_mesh():
    with pytest.raises(StrategyError, match="there is no mesh with an axis 'stage' here: pass `mesh`"):
        call(None)


def test_current_mesh(line):
    with sw.set_mesh(line):
        np.testing.assert_allclose(call(None), call(line))


def test_targets_that_do_not_divide(line):
    mean_loss = pipeline(stage, 4, "stage", mesh=line).with_loss(lambda out, y: ((out - y["a"]) ** 2).mean())
    with pytest.raises(StrategyError, match=r"\['a'\] of the targets, of shape \(6, 8\), is not divisible into 4"):
        mean_loss(np.ones((4, 8, 8), np.float32), np.ones((16, 8), np.float32), {"a": np.ones((6, 8), np.float32)})


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_targets_with_fewer_rows_than_the_batch(line, schedule):
    mean_loss = pipeline(stage, 4, "stage", schedule, mesh=line).with_loss(lambda out, y: ((out - y["a"]) ** 2).mean())
    x, targets = np.ones((16, 8), np.float32), {"a": np.ones((4, 8), np.float32)}  # they would broadcast
    with pytest.raises(StrategyError, match=r"equally many rows, but batch has 16, targets\['a'\] has 4"):
        mean_loss(np.ones((4, 8, 8), np.float32), x, targets)


def test_error_of_a_stage_has_no_other_error_before_it(line):
    with pytest.raises(TypeError, match="matmul") as info:
        call(line, lambda w, x: x @ w[:5])
    assert info.value.__context__ is None


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_loss_that_is_not_a_scalar(line, schedule):
    mean_loss = pipeline(stage, 4, "stage", schedule, mesh=line).with_loss(lambda out, y: ((out - y) ** 2).mean(0))
    x = np.ones((16, 8), np.float32)
    with pytest.raises(StrategyError, match=r"must be a scalar, not an array of shape \(8,\): reduce it"):
        sw.jit(sw.grad(mean_loss))(np.ones((4, 8, 8), np.float32), x, x)


def test_explicit_axes():
    mesh = sw.make_mesh(
        (4, 2), ("stage", "data"), axis_types=(sw.sharding.AxisType.Auto, sw.sharding.AxisType.Explicit)
    )
    with pytest.raises(StrategyError, match="the mesh has Explicit axes, 'data', which a pipeline does not support"):
        call(mesh)


def test_no_parameters(line):
    with pytest.raises(StrategyError, match="stage_params has no leaves"):
        pipeline(lambda _, x: x, 4, "stage", mesh=line)({}, np.ones((16, 8), np.float32))


@pytest.mark.parametrize("spec", [P(), P(None, "stage")])
def test_stages_that_are_not_sharded_in_a_region(line, spec):
    run = sw.shard_map(pipeline(stage, 4, "stage"), mesh=line, in_specs=(spec, P()), out_specs=P())
    with pytest.raises(StrategyError, match=r"need leading dims \(1,\) on each device: shard the dim of stages"):
        run(np.ones((4, 8, 8), np.float32), np.ones((16, 8), np.float32))


def test_region_whose_types_do_not_track_varying_values(line):
    run = pipeline(stage, 4, "stage")
    specs = {"mesh": line, "in_specs": (P("stage"), P()), "out_specs": P(), "check_vma": False}
    with pytest.raises(StrategyError, match="check_vma=False binds: use a shard_map with check_vma=True"):
        sw.shard_map(run, **specs)(np.ones((4, 8, 8), np.float32), np.ones((16, 8), np.float32))


def test_repr_names_the_schedule(line):
    assert (
        repr(pipeline(stage, 4, "stage", "1f1b", mesh=line)) == "<pipeline of stage over 'stage', 1f1b, 4 microbatches>"
    )
