"""Published runs with pipeline parallelism as one program each, simulated with all their axes.

    python -m benchmarks.pipelined_runs [RUN ...]

`megatron_runs.py` composes such a run by the formula of its schedule. Here the whole step, from tokens to gradients,
is a function that could run: `parallel.pipeline` over the stages, tensor and data parallelism by shardings. Stages are
recomputed as a whole, where Megatron-LM recomputes layers, so the program has some more flops. Nothing is fitted.
"""

import sys
from typing import Any

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks.megatron_runs import F16, RUNS, Run, head_loss, layer, layer_weights, predict
from shardwise import lax, parallel
from shardwise.explain.simulate import Simulation
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P


def simulate_run(run: Run, hardware: str = "a100") -> Simulation:
    """Simulate the forward and backward pass of a step as one program, without the optimizer."""
    mesh = AbstractMesh((run.pipeline, run.data, run.tensor), ("pipeline", "data", "tensor"))
    per_stage = run.layers // run.pipeline // run.chunks
    stages = (run.chunks, run.pipeline) if run.chunks > 1 else (run.pipeline,)
    stage_axes = (None, "pipeline") if run.chunks > 1 else ("pipeline",)

    def argument(shape: tuple[int, ...], dtype: Any, *axes: str | None) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))

    def stacked(shape: tuple[int, ...], dtype: Any, *axes: str | None) -> Any:
        return argument((*stages, per_stage, *shape), dtype, *stage_axes, None, *axes)

    def stage(weights: Any, x: Any) -> Any:
        keep = jnp.ones(x.shape, bool)
        keep_scores = jnp.ones((x.shape[0], run.heads, run.length, run.length), bool)
        return lax.scan(lambda x, weights: (layer(x, weights, keep_scores, keep), None), x, weights)[0]

    def embed(tokens: Any, embedding: Any, scale: Any, bias: Any) -> Any:
        return embedding[tokens]

    schedule = "interleaved" if run.chunks > 1 else "1f1b"
    pipeline = parallel.pipeline(stage, micro_batches(run), "pipeline", schedule, mesh=mesh, chunks=run.chunks)
    loss = pipeline.with_loss(head_loss, embed)

    def step(weights: Any, shared: Any, tokens: Any, labels: Any) -> Any:
        return jax.value_and_grad(lambda weights, shared: loss(weights, tokens, labels, *shared), (0, 1))(
            weights, shared
        )

    vector = argument((run.hidden,), F16)
    shared = (argument((run.words, run.hidden), F16, "tensor"), vector, vector)
    tokens = argument((run.batch, run.length), jnp.int32, "data")
    return jax.simulate(step, hardware=hardware, overlap=False)(layer_weights(run, stacked), shared, tokens, tokens)


def micro_batches(run: Run) -> int:
    """Return the number of micro-batches of each pipeline."""
    return run.batch // run.data // run.micro


def bubble(run: Run) -> float:
    """Return the share of the time in which a device is idle, by the formula of the schedule."""
    return (run.pipeline - 1) / (run.chunks * micro_batches(run) + run.pipeline - 1)


def main() -> None:
    names = sys.argv[1:] or ["e", "f", "g"]
    print(f"{'run':4} {'GPUs':>5} {'measured':>9} {'composed':>9} {'program':>9} {'bubble':>7} {'formula':>7}")
    for run in (run for run in RUNS if run.name in names):
        simulation = simulate_run(run)
        (row,) = simulation.plan.timeline.idle
        print(
            f"{run.name:4} {run.gpus:5} {run.seconds:7.2f} s {predict(run):7.2f} s {simulation.seconds:7.2f} s "
            f"{100 * row.share:6.1f}% {100 * bubble(run):6.1f}%",
            flush=True,
        )


if __name__ == "__main__":
    main()
