"""Cases: MPMD pipelines whose stages are in different processes."""

import os
from pathlib import Path

import numpy as np

import shardwise as sw
from shardwise import P, checkpoints
from shardwise.errors import ProgramMismatch
from shardwise.parallel import StageRows, mpmd_pipeline, mpmd_step
from shardwise.sharding import Mesh, NamedSharding
from tests.parallel.mpmd import training_steps
from tests.parallel.mpmd.language_model import batch, on_one_device, stages_and_params

MICROBATCHES = 4
LAYERS = [2, 1, 3, 1]


def meshes(ranks):
    """Divide all devices into ranks, with two devices per process: a rank may have devices of several processes."""
    return [Mesh(part, ("data",)) for part in np.array_split(np.array(sw.devices()), ranks)]


def check(name, ranks, stage_count, steps=2):
    """Train for some steps of gradient descent, and compare every loss with one device."""
    stages, params = stages_and_params(LAYERS[:stage_count])
    grids = meshes(ranks)
    train = mpmd_pipeline(stages, grids, MICROBATCHES, name, spec=P("data"))
    homes = [train.schedule.rank_of[stage, 0] for stage in range(stage_count)]
    placed = [
        sw.tree_util.tree_map(lambda x, rank=rank: sw.device_put(x, NamedSharding(grids[rank], P())), each)
        for each, rank in zip(params, homes, strict=True)
    ]
    losses = []
    for step in range(steps):
        tokens, targets = batch(step)
        loss, gradients = train.value_and_grad(placed, tokens, targets)
        expected, expected_gradients = on_one_device(stages, params, tokens, targets)
        np.testing.assert_allclose(float(loss), expected, rtol=1e-5)
        for gradient, each in zip(
            sw.tree_util.tree_leaves(gradients), sw.tree_util.tree_leaves(expected_gradients), strict=True
        ):
            assert gradient.shape == each.shape
            for shard in gradient.addressable_shards:
                np.testing.assert_allclose(shard.data, each[shard.index], rtol=1e-5, atol=1e-5 * np.abs(each).max())
        params = sw.tree_util.tree_map(lambda x, dx: x - 0.1 * dx, params, expected_gradients)
        placed = [
            sw.jit(lambda x, dx: sw.tree_util.tree_map(lambda x, dx: x - 0.1 * dx, x, dx))(*pair)
            for pair in zip(placed, gradients, strict=True)
        ]
        losses.append(float(loss))
    return losses


def case_one_forward_one_backward():
    return check("1f1b", 2, 2)


def case_zero_bubble():
    """In four processes, each rank has the devices of two processes."""
    return check("zb-h1", 2, 2)


def case_ranks_per_process():
    """As many ranks as devices: each process has two of them, and some transfers stay inside a process."""
    return check("zb-h1", 4, 4)


def case_v():
    return check("zb-v", 2, 4)


def case_bidirectional():
    """Each process has a copy of both stages; gradients are summed."""
    return check("dualpipe", 2, 2)


def case_ordinary_step():
    """An ordinary step with an optimizer, a norm over all stages, and a table that two stages read."""
    losses = []
    for schedule, ranks in (("1f1b", 2), ("zb-v", 2), ("zb-h1", 4)):
        state = training_steps.tied_state()
        train = mpmd_step(
            training_steps.tied_momentum,
            state,
            *training_steps.batch(),
            meshes=meshes(ranks),
            microbatches=4,
            schedule=schedule,
        )
        expected = state
        for seed in range(3):
            rows = training_steps.batch(seed)
            state, (loss, norm) = train(state, *rows)
            expected, results = sw.jit(training_steps.tied_momentum)(expected, *rows)
            np.testing.assert_allclose([float(loss), float(norm)], list(map(float, results)), rtol=1e-4)
            losses.append(float(loss))
        flat, structure = sw.tree_util.tree_flatten(state, is_leaf=lambda leaf: isinstance(leaf, StageRows))
        for leaf, whole in zip(flat, structure.flatten_up_to(expected), strict=True):
            first = 0
            for part in leaf.parts if isinstance(leaf, StageRows) else [leaf]:
                rows = whole[first : first + part.shape[0]]
                first += part.shape[0]
                for shard in part.addressable_shards:
                    np.testing.assert_allclose(shard.data, rows[shard.index], rtol=1e-4, atol=1e-5)
    return losses


def case_auxiliary_results():
    """Metrics of an ordinary step, which every process can read, and rows on the mesh of the last stage."""
    found = []
    for schedule, ranks in (("1f1b", 2), ("dualpipe", 2), ("zb-h1", 4)):
        params, rows = training_steps.initial_params(), training_steps.batch()
        train = mpmd_step(
            training_steps.with_metrics, params, *rows, meshes=meshes(ranks), microbatches=4, schedule=schedule
        )
        _, metrics = train(params, *rows)
        _, expected = sw.jit(training_steps.with_metrics)(params, *rows)
        for name in ("correct", "embedded", "head", "losses", "nll", "loss", "perplexity"):
            np.testing.assert_allclose(metrics[name], expected[name], rtol=1e-4, err_msg=name)
        found.append(float(metrics["nll"]))
    return found


def case_auxiliary_results_of_layers():
    """Rates of layers, which the last stage computes, are sent to the stages of the layers."""
    found = []
    for schedule, ranks in (("1f1b", 2), ("zb-h1", 4)):
        args = training_steps.biased_state(), *training_steps.batch()
        step = training_steps.with_rates_of_layers
        train = mpmd_step(step, *args, meshes=meshes(ranks), microbatches=4, schedule=schedule)
        state, (loss, _) = train(*args)
        expected, _ = sw.jit(step)(*args)
        for leaf, whole in (
            (state["bias"], expected["bias"]),
            (state["params"]["layers"]["up"], expected["params"]["layers"]["up"]),
        ):
            first = 0
            for part in leaf.parts:
                rows = whole[first : first + part.shape[0]]
                first += part.shape[0]
                for shard in part.addressable_shards:
                    np.testing.assert_allclose(shard.data, rows[shard.index], rtol=1e-4, atol=1e-5)
        found.append(float(loss))
    return found


def case_agreement():
    """Processes with different schedules get an error before a task runs."""
    stages, params = stages_and_params(LAYERS[:2])
    name = "1f1b" if sw.process_index() == 0 else "zb-h1"
    try:
        mpmd_pipeline(stages, meshes(2), MICROBATCHES, name).value_and_grad(params, *batch())
    except ProgramMismatch as error:
        return str(error)
    return ""


def case_other_update():
    """Processes with different optimizers get an error before a task runs."""
    rate = 0.1 * (1 + sw.process_index())

    def step(params, tokens, targets):
        loss, gradients = sw.value_and_grad(training_steps.loss_of)(params, tokens, targets)
        return sw.tree_util.tree_map(lambda p, g: p - rate * g, params, gradients), loss

    args = (training_steps.initial_params(), *training_steps.batch())
    try:
        mpmd_step(step, *args, meshes=meshes(2), microbatches=4)(*args)
    except ProgramMismatch as error:
        return str(error)
    return ""


def case_checkpoint():
    """Parameters on the meshes of their stages are saved and restored, also for a pipeline with other ranks."""
    stages, params = stages_and_params(LAYERS[:4])
    tokens, targets = batch()
    folder = Path(os.environ["CHECKPOINT_FOLDER"]) / "pipeline"
    losses = []
    for name, ranks in (("zb-v", 2), ("1f1b", 4)):
        grids = meshes(ranks)
        train = mpmd_pipeline(stages, grids, MICROBATCHES, name, spec=P("data"))
        shardings = [NamedSharding(grids[train.schedule.rank_of[stage, 0]], P()) for stage in range(4)]
        if name == "zb-v":
            state = [sw.device_put(each, sharding) for each, sharding in zip(params, shardings, strict=True)]
            checkpoints.save(folder, state).wait()
        else:
            like = [
                sw.tree_util.tree_map(lambda x, s=sharding: sw.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), each)
                for each, sharding in zip(params, shardings, strict=True)
            ]
            state = checkpoints.restore(folder, like)
        losses.append(float(train.value_and_grad(state, tokens, targets)[0]))
    np.testing.assert_allclose(losses, on_one_device(stages, params, tokens, targets)[0], rtol=1e-5)
    return losses
