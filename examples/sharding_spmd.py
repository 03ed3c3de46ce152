"""Compare sharding strategies for one model: memory, communication and losses; then train with one of them.

    python examples/sharding_spmd.py                       all strategies on 8 devices, then trains with `hybrid`
    python examples/sharding_spmd.py --strategy fsdp       trains with another one

The steps: create a device mesh, choose shardings of parameters by a strategy, let `jit` propagate them, compile and
read the memory of each strategy, and train. The model and its training step are those of `gpt.py`, without a change.
"""

import adam
import gpt
import numpy as np
from training_run import Run

import shardwise as sw
from shardwise import random, strategies
from shardwise.errors import StrategyError

COMPARED_STEPS, TOLERANCE = 3, 1e-3  # of losses, relative
AXES = ("data", "model")


def data_parallel(params, mesh):
    return strategies.data_parallel(params, mesh)


def tensor_parallel(params, mesh):
    return strategies.tensor_parallel(params, mesh, gpt.RULES)


def fsdp(params, mesh):
    return strategies.fsdp(params, mesh, "data")


def hybrid(params, mesh):
    return strategies.fsdp(params, mesh, "data", base=tensor_parallel(params, mesh))


# The sharding of parameters, and the number of devices along `model`, of n devices.
STRATEGIES = {
    "data parallel": (data_parallel, lambda n: 1),
    "tensor parallel": (tensor_parallel, lambda n: min(n, gpt.HEADS)),
    "2D": (tensor_parallel, lambda n: min(n, 2)),
    "fsdp": (fsdp, lambda n: 1),
    "hybrid": (hybrid, lambda n: min(n, 2)),
}


def make_state(name, devices):
    """Return the mesh of a strategy and the sharded state, which is computed on the devices that hold it.

    Raises:
        StrategyError: if there is no such strategy, or if it does not divide the number of heads or devices.
    """
    if name not in STRATEGIES:
        raise StrategyError(f"there is no strategy {name!r}: choose one of {', '.join(map(repr, STRATEGIES))}")
    choose, model = STRATEGIES[name]
    size = model(devices)
    if devices % size:
        raise StrategyError(f"{name}: {devices} devices are not divisible by {size} along 'model'")
    mesh = sw.make_mesh((devices // size, size), AXES)

    def shardings(types):
        return strategies.like_parameters(types, types["params"], choose(types["params"], mesh))

    return mesh, strategies.initialize(lambda key: adam.init(gpt.init_params(key)), shardings)(random.key(0))


def analyze(name, devices):
    """Return the memory per device and the communication of a training step, and the losses of a few steps."""
    mesh, state = make_state(name, devices)
    batches = [tokens for _, tokens in zip(range(COMPARED_STEPS), gpt.batches(mesh), strict=False)]
    compiled = gpt.train_step.lower(state, batches[0]).compile()
    memory, plan = compiled.memory_analysis(), compiled.plan
    shardings = sw.tree.map(lambda x: x.sharding, state)
    losses = []
    for tokens in batches:
        state, loss = compiled(state, tokens)
        losses.append(float(loss))
    return {
        "mesh": str(mesh.abstract),
        "parameters": strategies.count_bytes(state["params"], shardings["params"]),
        "state": strategies.count_bytes(state, shardings),
        "temporary": memory.temp_size_in_bytes,
        "peak": memory.peak_memory_in_bytes,
        "sent": plan.wire_bytes,
        "collectives": ", ".join(f"{count} {kind}" for kind, count in sorted(plan.counts().items())),
        "losses": losses,
    }


def memory_table(analyses):
    """Return a table of all strategies, as text."""
    columns = ("parameters", "state", "temporary", "peak", "sent")
    lines = [f"{'kB per device':16} {'mesh':16}" + "".join(f"{column:>12}" for column in columns) + "  collectives"]
    for name, row in analyses.items():
        sizes = "".join(f"{row[column] / 1e3:12,.0f}" for column in columns)
        lines.append(f"{name:16} {row['mesh']:16}{sizes}  {row['collectives']}")
    return "\n".join(lines)


def main(arguments=None):
    run = Run.from_command_line(
        "sharding_spmd",
        __doc__,
        arguments,
        axes=AXES,
        steps=60,
        add_arguments=lambda parser: parser.add_argument("--strategy", default="hybrid", help="one of the table"),
    )
    devices = run.mesh.size
    analyses = {name: analyze(name, devices) for name in STRATEGIES}
    run.print(memory_table(analyses))
    for name, row in analyses.items():
        np.testing.assert_allclose(row["losses"], analyses["data parallel"]["losses"], rtol=TOLERANCE, err_msg=name)
    run.print(f"the losses of {COMPARED_STEPS} steps are equal under all strategies (relative tolerance {TOLERANCE})")

    run.mesh, state = make_state(run.options.strategy, devices)
    return run.train(gpt.train_step, state, gpt.batches(run.mesh), items=gpt.BATCH * gpt.LENGTH)


if __name__ == "__main__":
    main()
