"""predict: the predicted time and memory of MPMD pipelines."""

import json

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import HardwareError, StrategyError
from shardwise.execute.launch_hooks import launch_hooks
from shardwise.models import Decoder
from shardwise.parallel import mpmd_pipeline, simulate_schedule, split_stages
from shardwise.parallel.mpmd.simulate import TaskTimes
from shardwise.sharding import AbstractMesh, Mesh
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


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_memory_is_close_to_that_of_a_run(schedule):
    """Compare with the bytes of live arrays and XLA's temporaries at every launch of a run on CPU devices."""
    small, rng = Decoder(4, 128, 4, 4, 32, 512, 512), np.random.default_rng(0)
    weights = sw.tree_util.tree_map(
        lambda leaf: np.asarray(rng.normal(size=leaf.shape) * 0.05, leaf.dtype), small.weights()
    )
    tokens = rng.integers(0, 512, (32, 65)).astype(np.int32)
    staged = split_stages(small.loss, weights, tokens, microbatches=8, stages=4)
    devices = np.array(sw.devices())
    meshes = [Mesh(devices[start : start + 2], ("data",)) for start in range(0, 8, 2)]
    train = mpmd_pipeline(staged.stages, meshes, 8, schedule, spec=P("data"), optimizer_copies=0)
    params = [
        [sw.device_put(leaf, sw.NamedSharding(mesh, P())) for leaf in part]
        for part, mesh in zip(staged.split(weights), meshes, strict=True)
    ]
    predicted = train.simulate("cpu")(params, tokens).peak_bytes
    train.value_and_grad(params, tokens)
    peaks = [0] * 4

    def record(launch, runs):
        stats, used = launch.memory_stats(), {x for each in launch.request.signatures for x in each.sharding.devices}
        needed = stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
        for rank, mesh in enumerate(meshes):
            if runs and mesh.flat_devices[0] in used:
                held = [x for array in sw.live_arrays() for x in array.addressable_shards]
                bytes_of_rank = sum(x.data.nbytes for x in held if x.device == mesh.flat_devices[0])
                peaks[rank] = max(peaks[rank], bytes_of_rank - others[rank] + needed)

    others = [
        sum(x.data.nbytes for a in sw.live_arrays() for x in a.addressable_shards if x.device == mesh.flat_devices[0])
        - sum(leaf.nbytes for leaf in part)
        for mesh, part in zip(meshes, params, strict=True)
    ]
    launch_hooks.add(record)
    try:
        train.value_and_grad(params, tokens)
    finally:
        launch_hooks.remove(record)
    np.testing.assert_allclose(predicted, peaks, rtol=0.1)


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
