"""Published runs of Megatron-LM with pipelines, and the times that `simulate` predicts for them.

    python -m benchmarks.megatron_runs

The runs are those of Megatron-LM on A100 GPUs (arXiv 2104.04473, table 1; micro-batches and model chunks are those of
the published scripts) and of Megatron-Turing NLG 530B (arXiv 2201.11990). Three figures of the chip, the fractions of
peak flops, memory and link bandwidth that it reaches, were fitted to the runs marked "fit". All others are predicted.

The programs below are one layer, and the output layer with its loss, of such a model, as the kernels of 2021 computed
them: attention scores pass through memory, and kernels are fused as Megatron-LM fused them by hand, which barriers
express. Tensor parallelism, recomputation and gradient accumulation are in the programs. A published run is composed of
them: its pipeline schedule, the reduction of gradients and the optimizer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, final

import shardwise as jax
import shardwise.numpy as jnp
from benchmarks.predictions import gelu
from shardwise import lax
from shardwise.compiler.plan.chip import Chip
from shardwise.compiler.plan.hardware import chip
from shardwise.compiler.traffic import all_gather, all_reduce, one_hop
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

F16 = jnp.float16
PARAMETER_BYTES = 16 + 16 + 6  # Adam reads and writes f32 weights, means and squares, reads gradients, writes weights
MAX_MEDIAN_ERROR, MAX_ERROR = 0.08, 0.15


@final
@dataclass(frozen=True)
class Run:
    """A published run: sizes of the model, parallelism, and what was measured.

    Attributes:
        name: a letter, or the name of the run.
        heads, hidden, layers: sizes of the model. The feed-forward layer has 4 × hidden features.
        tensor, pipeline: the degrees of tensor and pipeline parallelism.
        gpus: the number of GPUs.
        batch, micro: sequences per step and per micro-batch.
        chunks: the number of model chunks per device of the interleaved schedule.
        seconds: the measured time of a step.
        is_fit: whether the chip's figures were fitted to this run.
    """

    name: str
    heads: int
    hidden: int
    layers: int
    tensor: int
    pipeline: int
    gpus: int
    batch: int
    micro: int
    chunks: int
    seconds: float
    is_fit: bool
    words: int = 51200
    length: int = 2048

    @property
    def data(self) -> int:
        """The degree of data parallelism."""
        return self.gpus // self.tensor // self.pipeline

    @property
    def flops(self) -> float:
        """The flops of a step as the paper counts them, with recomputation."""
        per_layer = 96 * self.batch * self.length * self.hidden**2
        return per_layer * (self.layers * (1 + self.length / (6 * self.hidden)) + self.words / (16 * self.hidden))


def _megatron(
    name: str, sizes: Sequence[int], tensor: int, pipeline: int, rest: Sequence[int], tflops: float, use: str
) -> Run:
    """Return a row of the paper's table, which has TFLOP/s per GPU instead of seconds."""
    heads, hidden, layers = sizes
    gpus, batch, micro, chunks = rest
    run = Run(name, heads, hidden, layers, tensor, pipeline, gpus, batch, micro, chunks, 0.0, use == "fit")
    return replace(run, seconds=run.flops / (gpus * tflops * 1e12))


RUNS = (
    _megatron("a", (24, 2304, 24), 1, 1, (32, 512, 16, 1), 137, "fit"),
    _megatron("b", (32, 3072, 30), 2, 1, (64, 512, 16, 1), 138, "fit"),
    _megatron("c", (32, 4096, 36), 4, 1, (128, 512, 16, 1), 142, "predict"),
    _megatron("d", (48, 6144, 40), 8, 1, (256, 1024, 8, 1), 135, "fit"),
    _megatron("e", (64, 8192, 48), 8, 2, (512, 1536, 4, 1), 138, "predict"),
    _megatron("f", (80, 10240, 60), 8, 4, (1024, 1792, 2, 3), 140, "predict"),
    _megatron("g", (96, 12288, 80), 8, 8, (1536, 2304, 2, 2), 148, "predict"),
    _megatron("h", (128, 16384, 96), 8, 16, (1920, 2160, 1, 2), 155, "predict"),
    _megatron("i", (128, 20480, 105), 8, 35, (2520, 2520, 1, 3), 163, "predict"),
    _megatron("j", (160, 25600, 128), 8, 64, (3072, 3072, 1, 1), 163, "predict"),
)
NLG = tuple(
    Run(f"NLG {gpus}", 128, 20480, 105, 8, 35, gpus, 1920, 1, 1, seconds, False)
    for gpus, seconds in ((2240, 60.1), (2800, 50.2), (3360, 44.4))
)


@jax.custom_vjp
def softmax(scores: Any) -> Any:
    """The fused softmax kernel, which keeps its f16 result for the backward pass."""
    return jax.nn.softmax(scores.astype(jnp.float32), -1).astype(F16)


def _softmax_forward(scores: Any) -> tuple[Any, Any]:
    weights = softmax(scores)
    return weights, weights


def _softmax_backward(weights: Any, cotangent: Any) -> tuple[Any]:
    wide = weights.astype(jnp.float32)
    product = cotangent.astype(jnp.float32) * wide
    return ((product - wide * jnp.sum(product, -1, keepdims=True)).astype(F16),)


softmax.defvjp(_softmax_forward, _softmax_backward)
kernel = lax.optimization_barrier  # the end of a kernel


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    wide = x.astype(jnp.float32)
    centered = wide - jnp.mean(wide, -1, keepdims=True)
    variance = jnp.mean(centered * centered, -1, keepdims=True)
    return kernel((centered * lax.rsqrt(variance + 1e-5) * scale + bias).astype(F16))


def dropout(x: Any, keep: Any) -> Any:
    return jnp.where(keep, x * 1.1, 0)


def layer(x: Any, weights: Any, keep_scores: Any, keep: Any) -> Any:
    """A transformer layer, kernel by kernel."""
    h = layer_norm(x, weights["scale1"], weights["bias1"])
    qkv = kernel(jnp.einsum("bth,hcnd->btcnd", h, weights["qkv"]) + weights["qkv_bias"])
    q, k, v = (kernel(lax.squeeze(part, (2,)).transpose(0, 2, 1, 3)) for part in jnp.split(qkv, 3, 2))
    scores = kernel(jnp.einsum("bntd,bnsd->bnts", q, k))
    length = x.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    attention = kernel(softmax(jnp.where(causal, scores * F16(1 / math.sqrt(q.shape[-1])), F16(-1e4))))
    attention = kernel(dropout(attention, keep_scores))
    mixed = kernel(jnp.einsum("bnts,bnsd->bntd", attention, v).transpose(0, 2, 1, 3))
    out = kernel(jnp.einsum("btnd,ndh->bth", mixed, weights["out"]))
    x = kernel(x + dropout(out + weights["out_bias"], keep))
    h = layer_norm(x, weights["scale2"], weights["bias2"])
    up = kernel(jnp.einsum("bth,hf->btf", h, weights["up"]))
    active = kernel(gelu(up + weights["up_bias"]))
    down = kernel(jnp.einsum("btf,fh->bth", active, weights["down"]))
    return kernel(x + dropout(down + weights["down_bias"], keep))


def layer_gradient(x: Any, weights: Any, keep_scores: Any, keep: Any, cotangent: Any, sums: Any) -> Any:
    """The backward pass of a layer, which recomputes its forward pass, and the accumulation of gradients."""
    _, pullback = jax.vjp(lambda x, weights: layer(x, weights, keep_scores, keep), x, weights)
    dx, gradients = pullback(cotangent)
    return dx, jax.tree.map(jnp.add, sums, gradients)


def head_gradient(x: Any, embedding: Any, scale: Any, bias: Any, labels: Any, sums: Any) -> Any:
    """The output layer and the loss, forward and backward, with logits sharded over the vocabulary."""

    dx, gradient = jax.grad(head_loss, (0, 2))(x, labels, embedding, scale, bias)
    return dx, sums + gradient


def head_loss(x: Any, labels: Any, embedding: Any, scale: Any, bias: Any) -> Any:
    """The output layer and the loss."""
    h = layer_norm(x, scale, bias)
    logits = kernel(jnp.einsum("bth,vh->btv", h, embedding)).astype(jnp.float32)
    largest = lax.stop_gradient(jnp.max(logits, -1, keepdims=True))
    total = jnp.sum(jnp.exp(logits - largest), -1)
    is_label = lax.broadcasted_iota(jnp.int32, logits.shape, 2) == labels[..., None]
    return jnp.mean(jnp.log(total) + largest[..., 0] - jnp.sum(jnp.where(is_label, logits, 0), -1))


def layer_weights(run: Run, argument: Callable[..., Any]) -> dict[str, Any]:
    """Return the weights of a layer. `argument` is called with shape, dtype and the axes of the spec."""
    hidden, heads, size = run.hidden, run.heads, run.hidden // run.heads
    return {
        "qkv": argument((hidden, 3, heads, size), F16, None, None, "tensor"),
        "qkv_bias": argument((3, heads, size), F16, None, "tensor"),
        "out": argument((heads, size, hidden), F16, "tensor"),
        "up": argument((hidden, 4 * hidden), F16, None, "tensor"),
        "up_bias": argument((4 * hidden,), F16, "tensor"),
        "down": argument((4 * hidden, hidden), F16, "tensor"),
        **{name: argument((hidden,), F16) for name in ("out_bias", "down_bias", "scale1", "bias1", "scale2", "bias2")},
    }


@final
@dataclass(frozen=True)
class Parts:
    """The predicted seconds of one micro-batch on one device: a layer forward and backward, and the output layer."""

    forward: float
    backward: float
    head: float


def predict_parts(run: Run, target: Chip) -> Parts:
    """Predict the parts of a run by simulating their programs. Nothing overlapped with compute in these runs."""
    mesh = AbstractMesh((run.tensor,), ("tensor",))

    def argument(shape: tuple[int, ...], dtype: Any, *spec: str | None) -> Any:
        used = P(*spec) if run.tensor > 1 else P()
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, used))

    hidden, heads = run.hidden, run.heads
    vector, weights = argument((hidden,), F16), layer_weights(run, argument)
    x = argument((run.micro, run.length, hidden), F16)
    keep = argument((run.micro, run.length, hidden), jnp.bool_)
    keep_scores = argument((run.micro, heads, run.length, run.length), jnp.bool_, None, "tensor")
    embedding = argument((run.words, hidden), F16, "tensor")
    labels = argument((run.micro, run.length), jnp.int32)

    def seconds(function: Any, *args: Any) -> float:
        return float(jax.simulate(function, hardware=target, overlap=False)(*args).seconds)

    return Parts(
        seconds(layer, x, weights, keep_scores, keep),
        seconds(layer_gradient, x, weights, keep_scores, keep, x, weights),
        seconds(head_gradient, x, embedding, vector, vector, labels, embedding),
    )


def predict_step(run: Run, parts: Parts, target: Chip) -> float:
    """Return the seconds of a step: the pipeline schedule, then the reduction of gradients, then the optimizer."""
    mesh = AbstractMesh((run.pipeline, run.data, run.tensor), ("pipeline", "data", "tensor"))
    layers = run.layers / run.pipeline
    layer_seconds = parts.forward + parts.backward
    stage = layers * layer_seconds + 2 * run.chunks * _send_seconds(run, target, mesh)
    slowest = stage + parts.head
    mean = stage + parts.head / run.pipeline
    micro_batches = run.batch // run.data // run.micro
    steady = micro_batches * slowest + (run.pipeline - 1) / run.chunks * mean
    parameters = (layers * 12 * run.hidden**2 + run.words * run.hidden) / run.tensor
    reduction = target.collective_time(all_reduce(2 * parameters, run.data), mesh, ("data",))
    return steady + reduction + target.memory_time(parameters * PARAMETER_BYTES)


def _send_seconds(run: Run, target: Chip, mesh: AbstractMesh) -> float:
    """Return the seconds in which a stage sends activations to the next one.

    Each tensor-parallel device sends its part to the next node, which gathers the parts.
    """
    if run.pipeline == 1:
        return 0.0
    activations = run.micro * run.length * run.hidden * 2
    send = target.collective_time(one_hop(activations / run.tensor), mesh, ("pipeline",))
    return send + target.collective_time(all_gather(activations / run.tensor, run.tensor), mesh, ("tensor",))


def predict(run: Run, target: Chip | None = None) -> float:
    """Return the predicted seconds of a step of a published run."""
    a100 = target or chip("a100")
    return predict_step(run, predict_parts(run, a100), a100)


def main() -> None:
    print(f"{'run':10} {'use':8} {'GPUs':>5} {'measured':>10} {'predicted':>10} {'error':>7}")
    errors = []
    for run in (*RUNS, *NLG):
        predicted = predict(run)
        error = predicted / run.seconds - 1
        use = "fit" if run.is_fit else "predict"
        print(
            f"{run.name:10} {use:8} {run.gpus:5} {run.seconds:8.2f} s {predicted:8.2f} s {100 * error:+6.1f}%",
            flush=True,
        )
        if run in RUNS and not run.is_fit:
            errors.append(abs(error))
    print(f"predicted runs a to j: median error {100 * median(errors):.1f}%, largest {100 * max(errors):.1f}%")


if __name__ == "__main__":
    main()
