"""Training steps of a PyTorch module, GPT-2 with 124M parameters, on a GPU: `shardwise.torch` beside `torch.compile`.

    python -m benchmarks.torch_gpt2 [--batch 16] [--repeats 20] [--rounds 2] [--json FILE]

Float32 parameters and Adam moments, computed in bfloat16, the loss in float32. Shardwise casts by `mixed_precision`.
PyTorch is measured in both ways that it has: parameters that are cast before the call, and `autocast`, which keeps
norms and the residual stream in float32. Each side runs in a process of its own, in turns. `--small` tries the program
on a CPU.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

RATE, BETAS, EPSILON = 1e-4, (0.9, 0.95), 1e-8
SIDES = ("shardwise", "torch, cast", "torch, autocast")


@final
@dataclass(frozen=True)
class Sizes:
    """The sizes of the model."""

    words: int = 50257
    length: int = 1024
    width: int = 768
    heads: int = 12
    layers: int = 12


SMALL = Sizes(words=96, length=32, width=32, heads=2, layers=2)


class Block(nn.Module):  # type: ignore[misc]
    """A layer: attention and a hidden layer of four times the width."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.qkv, self.out = nn.Linear(sizes.width, 3 * sizes.width), nn.Linear(sizes.width, sizes.width)
        self.up, self.down = nn.Linear(sizes.width, 4 * sizes.width), nn.Linear(4 * sizes.width, sizes.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT2(nn.Module):  # type: ignore[misc]
    """GPT-2 with tied embeddings; it returns the loss."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(sizes.words, sizes.width), nn.Embedding(sizes.length, sizes.width)
        self.blocks = nn.ModuleList([Block(sizes) for _ in range(sizes.layers)])
        self.norm = nn.LayerNorm(sizes.width)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.words(inputs) + self.positions(torch.arange(inputs.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.words.weight).float()
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1).long())


def torch_training(model: GPT2, tokens: np.ndarray[Any, Any], side: str) -> Callable[[], Any]:
    """Return a function that makes a step and returns the loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    batch = torch.tensor(tokens, device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, betas=BETAS, eps=EPSILON, fused=True)

    def loss_of_cast() -> torch.Tensor:
        narrow = {name: parameter.to(torch.bfloat16) for name, parameter in model.named_parameters()}
        return torch.func.functional_call(model, narrow, (batch,))

    def loss_of_autocast() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return model(batch)

    loss = torch.compile(loss_of_cast if side == "torch, cast" else loss_of_autocast)

    def train() -> torch.Tensor:
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return train


def shardwise_training(model: GPT2, tokens: np.ndarray[Any, Any]) -> Callable[[], Any]:
    """Return a function that makes a step and returns the loss."""
    jax, jnp = import_module("shardwise"), import_module("shardwise.numpy")
    functional = import_module("shardwise.torch").functional
    function, params, buffers = functional(model)
    loss = jax.strategies.mixed_precision(lambda params, tokens: function(params, buffers, tokens)[0])

    def step(params: Any, means: Any, squares: Any, count: Any, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        count = count + 1
        means = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, means, grads)
        squares = jax.tree.map(lambda s, g: BETAS[1] * s + (1 - BETAS[1]) * g * g, squares, grads)
        mean_scale, square_scale = 1 / (1 - BETAS[0] ** count), 1 / (1 - BETAS[1] ** count)
        params = jax.tree.map(
            lambda p, m, s: p - RATE * (m * mean_scale) / (jnp.sqrt(s * square_scale) + EPSILON), params, means, squares
        )
        return params, means, squares, count, value

    compiled = jax.jit(step, donate_argnums=(0, 1, 2))
    means, squares = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    state = [params, means, squares, jnp.float32(0)]
    batch = jnp.asarray(tokens)

    def train() -> Any:
        *state[:], value = compiled(*state, batch)
        return value

    return train


@final
@dataclass(frozen=True)
class Row:
    """The measurements of one process. The losses are those of the first, the second and the last step."""

    side: str
    first_s: float
    step_ms: float
    losses: tuple[float, float, float]


def measure(side: str, sizes: Sizes, batch: int, repeats: int) -> Row:
    """Measure one side in this process."""
    torch.manual_seed(0)
    model = GPT2(sizes).train()
    tokens = np.random.default_rng(0).integers(0, sizes.words, (batch, sizes.length + 1)).astype(np.int32)
    start = time.perf_counter()
    train = shardwise_training(model, tokens) if side == "shardwise" else torch_training(model, tokens, side)
    first = float(train())
    first_s = time.perf_counter() - start
    second = float(train())
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(repeats):
            loss = train()
        last = float(loss)
        times.append((time.perf_counter() - start) / repeats)
    return Row(side, first_s, min(times) * 1e3, (first, second, last))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--side", choices=SIDES, help="measure one side in this process")
    parser.add_argument("--small", action="store_true", help="run a tiny model")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.side:
        row = measure(options.side, SMALL if options.small else Sizes(), options.batch, options.repeats)
        print(json.dumps(asdict(row)))
        return
    rows = []
    for side in SIDES * options.rounds:  # a GPU has one client at a time
        arguments = ["--side", side, "--batch", str(options.batch), "--repeats", str(options.repeats)]
        command = [sys.executable, "-m", "benchmarks.torch_gpt2", *arguments, *["--small"] * options.small]
        report = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        row = Row(**json.loads(report.splitlines()[-1]))
        rows.append(row)
        losses = ", ".join(f"{loss:.4f}" for loss in row.losses)
        print(f"{row.side:16} first {row.first_s:6.1f} s  step {row.step_ms:8.2f} ms  losses {losses}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
