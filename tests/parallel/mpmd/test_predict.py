"""predict: the predicted time and memory of MPMD pipelines."""

import json

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import HardwareError, StrategyError
from shardwise.models import Decoder
from shardwise.parallel import mpmd_pipeline, simulate_schedule, split_stages
from shardwise.parallel.mpmd.simulate import TaskTimes
from shardwise.sharding import AbstractMesh
from shardwise.sharding import PartitionSpec as P

SIZES = Decoder(8, 1024, 8, 8, 128, 4096, 8192)
TOKENS = sw.ShapeDtypeStruct((32, 513), np.int32)
RANKS, MICROBATCHES = 4, 8


def predict(schedule, remat=None):
    staged = split_stages(
        lambda w, x: SIZES.loss(w, x, remat), SIZES.weights(), TOKENS, microbatches=MICROBATCHES, stages=RANKS
    )
    meshes = [AbstractMesh((2,), ("data",))] * RANKS
    train = mpmd_pipeline(staged.stages, meshes, MICROBATCHES, schedule, spec=P("data"))
    return train.simulate("h100")(staged.split(SIZES.weights()), TOKENS)


@pytest.fixture(scope="module")
def one_f_one_b():
    return predict("1f1b")


def test_stages_compute_what_the_whole_model_computes(one_f_one_b):
    mesh = AbstractMesh((2 * RANKS,), ("data",))
    tokens = sw.ShapeDtypeStruct(TOKENS.shape, TOKENS.dtype, sharding=sw.NamedSharding(mesh, P("data")))
    whole = sw.simulate(sw.value_and_grad(SIZES.loss), hardware="h100")(SIZES.weights(), tokens)
    np.testing.assert_allclose(one_f_one_b.flops, whole.flops, rtol=1e-3)


def test_the_time_is_that_of_the_schedule(one_f_one_b):
    times = [[stage.programs[kind].seconds for stage in one_f_one_b.stages] for kind in "FB"]
    alone = simulate_schedule(one_f_one_b.run.schedule, TaskTimes(times[0], times[1], 0.0))
    assert alone.total <= one_f_one_b.seconds < 1.2 * alone.total  # transfers are not free
    slowest = max(map(sum, zip(*times, strict=True)))
    assert one_f_one_b.seconds > MICROBATCHES * slowest
    assert 0 < one_f_one_b.bubble < 0.5 and 0 < one_f_one_b.utilization < 1


def test_memory_is_that_of_weights_gradients_and_live_activations(one_f_one_b):
    stage = one_f_one_b.stages[1]
    weights = 4 * 2 * (4 * SIZES.width * 8 * 128 + 3 * SIZES.width * SIZES.hidden + 2 * SIZES.width)
    assert stage.param_bytes == stage.gradient_bytes == weights
    with_adam = one_f_one_b.peak_bytes_with(optimizer_copies=2)
    assert with_adam[1] - one_f_one_b.peak_bytes[1] == 2 * weights
    peaks = one_f_one_b.peak_bytes
    assert one_f_one_b.run.schedule.peak_activations == (4, 3, 2, 1)
    assert peaks[1] - peaks[2] == stage.activation_bytes
    assert one_f_one_b.fits
    recomputed = predict("1f1b", sw.checkpoint)
    assert recomputed.stages[1].activation_bytes < 0.3 * stage.activation_bytes
    assert recomputed.flops > 1.2 * one_f_one_b.flops


def test_split_backward_passes():
    run = predict("zb-h1")
    assert [list(stage.programs) for stage in run.stages] == [["F", "I", "W"]] * RANKS
    assert "zb-h1 of 4 stages on 4 ranks of h100" in str(run)


def test_one_track_per_rank(one_f_one_b, tmp_path):
    one_f_one_b.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["tid"] for event in events if event["ph"] == "X"} == set(range(RANKS))


def test_abstract_meshes_cannot_run():
    train = mpmd_pipeline([lambda w, x: (x * w).mean()], [AbstractMesh((2,), ("data",))], 2)
    with pytest.raises(StrategyError, match="an abstract mesh has no devices"):
        train.value_and_grad([np.float32(1)], np.ones(4, np.float32))
    with pytest.raises(HardwareError):
        train.simulate("nothing")
