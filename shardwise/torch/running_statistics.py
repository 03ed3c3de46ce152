"""BatchNorm and InstanceNorm with running statistics, which torchax 0.0.13 leaves unchanged."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from torch.nn.modules.batchnorm import _BatchNorm


@final
@dataclass(frozen=True)
class CumulativeMomentum:
    """The momentum of a layer whose statistics are averages of all batches: 1 / the number of batches.

    Attributes:
        layer: the layer.
    """

    layer: torch.nn.Module

    def value(self) -> torch.Tensor:
        """Return the momentum of the current batch."""
        return 1 / self.layer.num_batches_tracked.to(torch.float32)


@contextmanager
def cumulative_momenta(module: torch.nn.Module) -> Iterator[None]:
    """Let BatchNorm layers with `momentum=None` compute their momentum as a tensor inside a `with` block.

    PyTorch computes it in Python, which needs the value of the number of batches.
    """
    layers = [
        layer
        for layer in module.modules()
        if isinstance(layer, _BatchNorm) and layer.momentum is None and layer.training
    ]
    try:
        for layer in layers:
            layer.momentum = CumulativeMomentum(layer)
        yield
    finally:
        for layer in layers:
            layer.momentum = None


def batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float | CumulativeMomentum = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Normalize each channel as torchax does, and update the running statistics."""
    normalized = torch.native_batch_norm(input, weight, bias, running_mean, running_var, training, 0.0, eps)[0]
    if training and running_mean is not None and running_var is not None:
        values = input.detach()
        dims = [dim for dim in range(values.ndim) if dim != 1]
        variance, mean = torch.var_mean(values, dims, correction=1)
        _update(running_mean, running_var, mean, variance, momentum)
    return normalized


def instance_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Normalize each channel of each sample as torchax does, and update the running statistics."""
    statistics = (None, None) if use_input_stats else (running_mean, running_var)
    normalized = torch.instance_norm(input, weight, bias, *statistics, use_input_stats, 0.0, eps, False)
    if use_input_stats and running_mean is not None and running_var is not None:
        sample_variance, sample_mean = torch.var_mean(input.detach(), list(range(2, input.ndim)), correction=1)
        _update(running_mean, running_var, sample_mean.mean(0), sample_variance.mean(0), momentum)
    return normalized


def _update(
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    momentum: float | CumulativeMomentum,
) -> None:
    share = momentum.value() if isinstance(momentum, CumulativeMomentum) else momentum
    running_mean.copy_((1 - share) * running_mean + share * mean)
    running_var.copy_((1 - share) * running_var + share * variance)
