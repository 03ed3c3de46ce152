"""The models of `gpu_losses` in PyTorch: `torch.compile`, its fused attention, and its fused Adam.

Parameters are float32, and cast to bfloat16 at the start of the loss, as on the other sides. Products are those of
`torch.nn.Linear`; products of experts are PyTorch's grouped products. With `float8`, torchao converts the linear layers
whose names it is given.
"""

from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu_losses import Decoder, Vit, parameters, random_numbers

NARROW = torch.bfloat16


class Weights(nn.Module):  # type: ignore[misc]
    """A dict of parameters. Matrices are linear layers, and those of experts parameters."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        super().__init__()
        for name, array in arrays.items():
            is_linear = array.ndim == 2 and "embed" not in name
            setattr(self, name, _linear(array) if is_linear else nn.Parameter(array))


def _linear(array: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(*array.shape, bias=False, device="meta")
    layer.weight = nn.Parameter(array.T.contiguous())
    return layer


class DecoderLoss(nn.Module):  # type: ignore[misc]
    """The loss of a Llama-like model, with experts or not."""

    def __init__(self, model: Decoder, params: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.layers = model, nn.ModuleList([Weights(layer) for layer in params.pop("layers")])
        self.ends = Weights(params)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        model = self.model
        x = F.embedding(tokens[:, :-1], self.ends.embed)
        half = model.head // 2
        frequencies = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * frequencies
        cos, sin = angle.cos(), angle.sin()

        def heads(x: torch.Tensor, count: int) -> torch.Tensor:
            return x.view(*x.shape[:2], count, model.head).transpose(1, 2)

        def rotate(x: torch.Tensor) -> torch.Tensor:
            a, b = x[..., :half].float(), x[..., half:].float()
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(NARROW)

        for w in self.layers:
            h = _rms_norm(x, w.norm1)
            q, k, v = heads(w.q(h), model.heads), heads(w.k(h), model.key_heads), heads(w.v(h), model.key_heads)
            attended = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
            x = x + w.out(attended.transpose(1, 2).reshape(x.shape))
            h = _rms_norm(x, w.norm2)
            if model.experts:
                x = x + _mixture(model, h.reshape(-1, model.width), w).view(x.shape)
            else:
                x = x + w.down(F.silu(w.gate(h)) * w.up(h))
        logits = self.ends.head(_rms_norm(x, self.ends.norm)).float()
        return F.cross_entropy(logits.view(-1, model.words), tokens[:, 1:].reshape(-1).long())


def _rms_norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6) * scale).to(NARROW)


def _mixture(model: Decoder, x: torch.Tensor, w: Weights) -> torch.Tensor:
    scores = w.router(x).float().softmax(-1)
    gates, chosen = scores.topk(model.chosen)
    order = chosen.reshape(-1).argsort(stable=True)
    counts = F.one_hot(chosen.reshape(-1), model.experts).sum(0)
    ends = counts.cumsum(0).to(torch.int32)
    product = getattr(F, "grouped_mm", None) or torch._grouped_mm
    rows = x[order // model.chosen]
    hidden = F.silu(product(rows, w.gate, offs=ends)) * product(rows, w.up, offs=ends)
    weighted = product(hidden, w.down, offs=ends) * gates.reshape(-1)[order, None].to(NARROW)
    return torch.zeros_like(x).index_add(0, order // model.chosen, weighted)


class VitLoss(nn.Module):  # type: ignore[misc]
    """The loss of a vision transformer."""

    def __init__(self, model: Vit, params: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.layers = model, nn.ModuleList([Weights(layer) for layer in params.pop("layers")])
        self.ends = Weights(params)

    def forward(self, patches: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        model = self.model
        x = patches.to(NARROW) @ self.ends.patch_embed + self.ends.position_embed

        def norm(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(x, (model.width,), scale, bias, 1e-5)

        def heads(x: torch.Tensor) -> torch.Tensor:
            return x.view(*x.shape[:2], model.heads, -1).transpose(1, 2)

        for w in self.layers:
            h = norm(x, w.scale1, w.bias1)
            attended = F.scaled_dot_product_attention(heads(w.q(h)), heads(w.k(h)), heads(w.v(h)))
            x = x + w.out(attended.transpose(1, 2).reshape(x.shape))
            h = F.gelu(w.up(norm(x, w.scale2, w.bias2)) + w.up_bias, approximate="tanh")
            x = x + w.down(h) + w.down_bias
        pooled = norm(x, self.ends.scale, self.ends.bias).float().mean(1).to(NARROW)
        return F.cross_entropy(self.ends.head(pooled).float(), classes.long())


def torch_parameters(model: Decoder | Vit, device: str) -> dict[str, Any]:
    """Return the parameters that the other libraries have too."""
    numbers = torch.from_numpy(random_numbers()).to(device)

    def matrix(shape: tuple[int, ...], start: int) -> torch.Tensor:
        count = int(np.prod(shape, dtype=np.int64))
        repeated = numbers.repeat(2 + count // len(numbers))
        return (repeated[start : start + count] / shape[-2] ** 0.5).view(shape)

    return parameters(model, lambda size, value: torch.full((size,), value, device=device), matrix)


def training(model: Decoder | Vit, float8: bool, rate: float, betas: tuple[float, float], epsilon: float) -> Any:
    """Return a function that makes a step and returns the loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    params = torch_parameters(model, device)
    module = DecoderLoss(model, params) if isinstance(model, Decoder) else VitLoss(model, params)
    if float8:
        convert = import_module("torchao.float8").convert_to_float8_training
        convert(module, module_filter_fn=lambda _, name: name.startswith("layers") and "router" not in name)
    batch = [torch.from_numpy(x).to(device) for x in model.data()]
    optimizer = torch.optim.Adam(module.parameters(), lr=rate, betas=betas, eps=epsilon, fused=True)

    @torch.compile  # type: ignore[untyped-decorator]
    def loss() -> torch.Tensor:
        narrow = {name: parameter.to(NARROW) for name, parameter in module.named_parameters()}
        return torch.func.functional_call(module, narrow, tuple(batch))

    def train() -> torch.Tensor:
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return train


def peak_gib() -> float:
    """Return the peak of memory of this process, 0 without a GPU."""
    return float(torch.cuda.max_memory_allocated() / 2**30) if torch.cuda.is_available() else 0.0
