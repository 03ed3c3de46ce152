"""Levanter's training step on eight CPU devices: `inside_jax.jit` against `jax.jit`, in Haliax's `named_jit`.

Prints the table of Levanter's steps in docs/inside-jax.md: the bytes that each device sends per step, counted in JAX's
executables, and the difference of the losses. It needs Levanter, and packages that Levanter imports without requiring:

    pip install --pre levanter gitpython chex
    JAX_NUM_CPU_DEVICES=8 python -m benchmarks.levanter_step
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

import haliax
import jax
import jmp
import numpy as np
from haliax import partitioning
from levanter.checkpoint import CheckpointerConfig
from levanter.distributed import RayConfig
from levanter.models.gpt2 import Gpt2Config
from levanter.models.llama import LlamaConfig
from levanter.models.lm_model import LmExample, compute_next_token_loss
from levanter.optim import AdamConfig
from levanter.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig

from shardwise import inside_jax
from shardwise.explain.hlo_wire import wire

STEPS, BATCH, VOCAB = 4, 16, 256
SIZES = {"num_layers": 2, "num_heads": 4, "seq_len": 64, "hidden_dim": 64}
LLAMA = LlamaConfig(**SIZES, num_kv_heads=4, intermediate_dim=128)
TENSOR = {"model_axis_size": 2, "tensor_parallel_axes": ["mlp", "heads", "kv_head"]}
# The model and the options of Levanter's trainer. FSDP over all devices is its default.
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Llama, FSDP": (LLAMA, {}),
    "Llama, FSDP × tensor": (LLAMA, TENSOR),
    "Llama, FSDP, microbatches": (LLAMA, {"per_device_parallelism": 1}),
    "Llama, FSDP, bfloat16": (LLAMA, {"mp": jmp.get_policy("p=f32,c=bf16")}),
    "GPT-2, FSDP": (Gpt2Config(**SIZES), {}),
}


class Steps(NamedTuple):
    """The losses of the steps of a run, and the bytes that each device sends in one."""

    losses: list[float]
    sent: float


def masked_mean(array: Any, where: Any, axis: Any) -> Any:
    """Return the mean of unmasked elements. Levanter's mask is of floats, which JAX 0.10 rejects."""
    return haliax.mean(array, where=where.astype(bool), axis=axis)


@contextmanager
def named_jit_of(jit: Callable[..., Any]) -> Iterator[None]:
    """Make Haliax's `named_jit` call `jit` instead of `jax.jit`."""
    partitioning.jax = SimpleNamespace(**{**vars(jax), "jit": jit})
    try:
        yield
    finally:
        partitioning.jax = jax


def run_steps(model: Any, options: dict[str, Any], jit: Callable[..., Any], folder: str) -> Steps:
    """Train a model with Levanter's trainer, whose step is compiled by `jit`."""
    config = TrainerConfig(
        id="steps",
        num_train_steps=STEPS,
        train_batch_size=BATCH,
        tracker=NoopConfig(),
        require_accelerator=False,
        ray=RayConfig(auto_start_cluster=False),
        log_jaxprs=False,
        log_xla_hlo=False,
        checkpointer=CheckpointerConfig(base_path=folder),
        load_checkpoint=False,
        **options,
    )
    config.initialize()
    optimizer = AdamConfig(learning_rate=1e-2, warmup=0).build(STEPS)
    loss, rng = partial(compute_next_token_loss, reduction=masked_mean), np.random.default_rng(0)
    with Trainer(config, optimizer, loss, add_default_hooks=False) as trainer:
        key, vocab, batch = jax.random.PRNGKey(0), haliax.Axis("vocab", VOCAB), trainer.TrainBatch
        state = trainer.initial_state(key, model_init=lambda: model.build(vocab, key=key))

        @partial(haliax.named_jit, axis_resources=trainer.compute_axis_mapping)
        def examples(tokens: Any) -> Any:
            return haliax.vmap(LmExample.causal, batch)(haliax.named(tokens, (batch, model.Pos)))

        losses = []
        for _ in range(STEPS):
            example = examples(rng.integers(0, VOCAB, (BATCH, model.Pos.size)).astype(np.int32))
            with named_jit_of(jit):
                info = trainer.train_step(state, example)
            state = info.state
            losses.append(float(info.loss))
        with named_jit_of(jit):
            executable = trainer._jit_train_step_fn_no_hook.lower(state, (example,), {}).compile()
    return Steps(losses, wire(executable.as_text()).sent)


def table_rows(names: list[str]) -> Iterator[str]:
    yield "| step of Levanter | `jax.jit` | `inside_jax.jit` | ratio | largest difference of losses |"
    yield "|---|---|---|---|---|"
    for name in names:
        with TemporaryDirectory() as folder:
            theirs, ours = (run_steps(*RUNS[name], jit, folder) for jit in (jax.jit, inside_jax.jit))
        difference = max(abs(a - b) for a, b in zip(ours.losses, theirs.losses, strict=True))
        ratio = f"{ours.sent / theirs.sent:.2f}"
        yield f"| {name} | {theirs.sent:,.0f} | {ours.sent:,.0f} | {ratio} | {difference:.1g} |"


if __name__ == "__main__":
    for line in table_rows(sys.argv[1:] or list(RUNS)):
        print(line, flush=True)
