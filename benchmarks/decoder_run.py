"""A published training run of a decoder, and the throughput that `simulate` predicts for it.

The program of a run is the training step of `shardwise.models` with the sharding of the run. Its microbatches are
equal, so the step is composed of two simulated programs: the step of one microbatch, and for each further microbatch
its gradient. That gathers the weights and reduces the gradients in every microbatch, as PyTorch's FSDP does, or, with
`gathers_once`, has no communication but that of tensor parallelism.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.contract.fused_attention import Attention
from shardwise.compiler.ops.elementwise.convert import Convert
from shardwise.compiler.plan.chip import Chip, Link
from shardwise.compiler.plan.hardware import chip
from shardwise.models import Decoder, train_state, train_step
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

FITTED, DEVELOPED, HELD_OUT = "fitted", "developed on", "held out"
# Kinds of recomputation in the backward pass, which gathers the weights again, except with KEPT.
KEPT, NOTHING, ELEMENTWISE, ATTENTION, FEED_FORWARD, HALF, LAYERS = (
    "nothing, and gathers no weights",
    "nothing",
    "elementwise kernels",
    "attention",
    "feed-forward layers",
    "every second product",
    "layers",
)
_NO_LIMIT, _CHIP_MEMORY = -1, 0  # values of the setting `memory_limit`
_LAYER_SPECS = {
    "query": ("data", "model", None),
    "key": ("data", "model", None),
    "value": ("data", "model", None),
    "out": ("model", None, "data"),
    "gate": ("data", "model"),
    "up": ("data", "model"),
    "down": ("model", "data"),
}
_SPECS = {"embedding": ("model", "data"), "head": ("data", "model")}


@final
@dataclass(frozen=True)
class DecoderRun:
    """A published run of a decoder.

    Attributes:
        chip: the chip, with the profile of the software and the power that the source states.
        name: the model, the length of its sequences, and what distinguishes the run from others.
        sizes: the sizes of the model.
        length: the tokens of a sequence.
        devices: the number of devices.
        sequences: the sequences of a microbatch, divided by the number of devices.
        published: the tokens per second per device that the source states, or that follow from its flops.
        source: where the run is published.
        split: whether figures of the chip were fitted to the run, or the cost model was developed on it, or neither.
        microbatches: the number of microbatches whose gradients are accumulated.
        gathers_once: whether weights are gathered and gradients are reduced once per step, not in every microbatch.
        recomputed: the values that the backward pass recomputes.
        recomputed_share: the share of the layers that recompute it. Others recompute nothing.
        tensor: the degree of tensor parallelism.
        shards_width: whether tensor parallelism shards the width of the residual stream.
        shards_sequence: whether it shards the sequences of the residual stream (sequence parallelism). Without either,
            the residual stream is replicated.
        replicas: the number of replicas of the sharded weights, such as one per slice.
        node: the number of devices that fast links connect, if other than the chip's.
        specs: pairs of a spec of the chip and its value, where the source states another than the chip's.
            `slow_bandwidth` is that of the slow link.
        unlike: how the simulated program differs from the run.
    """

    chip: str
    name: str
    sizes: Decoder
    length: int
    devices: int
    sequences: float
    published: float
    source: str
    split: str = HELD_OUT
    microbatches: int = 1
    gathers_once: bool = False
    recomputed: str = NOTHING
    recomputed_share: float = 1.0
    tensor: int = 1
    shards_width: bool = False
    shards_sequence: bool = False
    replicas: int = 1
    node: int | None = None
    specs: tuple[tuple[str, float], ...] = ()
    unlike: str = ""

    @property
    def target(self) -> Chip:
        """The chip of the run."""
        known, specs = chip(self.chip), dict[str, Any](self.specs)
        if self.node is not None:
            specs["fast_domain_size"] = self.node
        if (bandwidth := specs.pop("slow_bandwidth", None)) is not None:
            specs["slow_link"] = Link(bandwidth, known.slow_link.latency)
        return replace(known, **specs)


@final
@dataclass(frozen=True)
class Prediction:
    """The predicted tokens per second per device, and their range if assumed figures of the chip are wrong."""

    tokens: float
    least: float
    most: float

    def error(self, run: DecoderRun) -> float:
        """Return the error of the throughput, as a fraction of the published one."""
        return self.tokens / run.published - 1


def tokens_per_second(tflops: float, sizes: Decoder, length: int, attention: float) -> float:
    """Return the tokens per second of a rate in teraflops per second.

    The rate counts 6 flops per weight, and the flops of attention for this share of all pairs of tokens.
    """
    scores = 12 * sizes.layers * sizes.heads * sizes.head_width * length * attention
    return tflops * 1e12 / (6 * sizes.parameters + scores)


def predict(run: DecoderRun) -> Prediction:
    """Return the predicted throughput of a run."""
    # To fit a memory limit, the planner may shard sequences instead of features, which no tensor-parallel run did.
    with jax.config.override("memory_limit", _NO_LIMIT if run.tensor > 1 else _CHIP_MEMORY):
        seconds = run.recomputed_share * _step_seconds(run, run.recomputed)
        if run.recomputed_share < 1:
            seconds += (1 - run.recomputed_share) * _step_seconds(run, NOTHING)
    expected, most, least = run.sequences * run.length * run.microbatches / seconds
    return Prediction(float(expected), float(least), float(most))


def _step_seconds(run: DecoderRun, recomputed: str) -> Any:
    """Return the seconds of a step with all microbatches: the expected, the shortest and the longest time."""
    step = jax.jit(train_step(run.sizes, remat=_layer_transform(run, recomputed)), donate_argnums=0)
    seconds = _seconds(jax.simulate(step, hardware=run.target)(*_arguments(run)))
    if run.microbatches > 1:
        further = replace(run, devices=run.tensor, replicas=1) if run.gathers_once else run
        gradient = jax.value_and_grad(partial(run.sizes.loss, remat=_layer_transform(further, recomputed)))
        state, tokens = _arguments(further)
        simulation = jax.simulate(jax.jit(gradient), hardware=run.target)(state["weights"], tokens)
        seconds += (run.microbatches - 1) * _seconds(simulation)
    return seconds


def _mesh(run: DecoderRun) -> AbstractMesh:
    shards = run.devices // run.tensor // run.replicas
    return AbstractMesh((run.replicas, shards, run.tensor), ("replica", "data", "model"))


def _arguments(run: DecoderRun) -> tuple[Any, Any]:
    """Return the sharded state and the tokens of a microbatch."""
    mesh = _mesh(run)
    rows = NamedSharding(mesh, P(("replica", "data")))
    tokens = jax.ShapeDtypeStruct((round(run.sequences * run.devices), run.length + 1), jnp.int32, sharding=rows)
    return _placed(train_state(run.sizes), run.sizes, mesh), tokens


def _seconds(simulation: Any) -> Any:
    return np.array([simulation.seconds, *simulation.interval])


def _placed(state: Any, sizes: Decoder, mesh: AbstractMesh) -> Any:
    """Return a state with the shardings of FSDP and tensor parallelism; vectors are replicated."""

    def placed(path: Any, leaf: Any) -> Any:
        name = path[-1].key
        spec = (None, *_LAYER_SPECS[name]) if name in _LAYER_SPECS else _SPECS.get(name, ())
        if name in ("key", "value") and sizes.key_heads % mesh.shape["model"]:
            spec = (None, "data")
        return leaf.update(sharding=NamedSharding(mesh, P(*spec)))

    return jax.tree_util.tree_map_with_path(placed, state)


def _layer_transform(run: DecoderRun, recomputed: str) -> Callable[[Any], Any]:
    """Return the transformation of a layer that recomputes this, and shards the residual stream as the run did."""
    sequence, width = ("model" if shards else None for shards in (run.shards_sequence, run.shards_width))
    sharding = NamedSharding(_mesh(run), P(("replica", "data"), sequence, width))

    def transform(layer: Any) -> Any:
        recomputing = _recomputing(layer, recomputed, run.sizes)
        return lambda weights, x: lax.with_sharding_constraint(recomputing(weights, x), sharding)

    return transform


def _recomputing(layer: Any, recomputed: str, sizes: Decoder) -> Any:
    if recomputed == KEPT:
        return layer
    policies: dict[str, Callable[..., bool] | None] = {
        NOTHING: _saves_all,
        ELEMENTWISE: _saves_attention_and_products,
        ATTENTION: _is_weight_product,
        FEED_FORWARD: partial(_saves_other_products, sizes.hidden),
        HALF: _EverySecondProduct(),
        LAYERS: None,
    }
    return jax.checkpoint(layer, policy=policies[recomputed])


def _saves_all(op: Op, *types: ArrayType) -> bool:
    """Save all values, except casts, so that the weights are not saved but gathered again."""
    return not isinstance(op, Convert)


def _is_weight_product(op: Op, *types: ArrayType) -> bool:
    return isinstance(op, Dot) and not op.batch[0]


def _saves_attention_and_products(op: Op, *types: ArrayType) -> bool:
    return isinstance(op, Attention) or _is_weight_product(op, *types)


def _saves_other_products(hidden: int, op: Op, *types: ArrayType) -> bool:
    return _saves_attention_and_products(op) and not any(hidden in type.shape for type in types)


class _EverySecondProduct:
    """The policy of torchtitan's selective recomputation by op: save attention, and every second product."""

    def __init__(self) -> None:
        self._products = 0

    def __call__(self, op: Op, *types: ArrayType) -> bool:
        if _is_weight_product(op):
            self._products += 1
            return self._products % 2 == 1
        return isinstance(op, Attention)
