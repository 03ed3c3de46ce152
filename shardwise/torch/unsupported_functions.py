"""Functions that cannot be called inside a module: of PyTorch's autograd and compiler, and any under autocast."""

from collections.abc import Mapping
from typing import Any

import torch

from shardwise.errors import TorchModuleError

_AUTOGRAD = (torch.Tensor.register_hook, torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_AUTOCAST_DEVICES = ("cpu", "cuda")
_EMBEDDINGS = (torch.nn.functional.embedding, torch.nn.functional.embedding_bag)

CHECKPOINT_ADVICE = (
    "torch.utils.checkpoint is not supported. Switch it off (`gradient_checkpointing_disable()` for models of "
    "transformers), and wrap the function: `jax.checkpoint(function)`."
)


def check_function(func: Any, keywords: Mapping[str, object]) -> None:
    """Check that a function does what it does in PyTorch.

    Raises:
        TorchModuleError: if it is a function of PyTorch's autograd, an operator of functions or an embedding with
            `max_norm`, or if `torch.autocast` is on, which would cast nothing.
    """
    is_transform = torch._C._functorch.maybe_current_level() is not None  # `torch.func.grad` calls autograd
    if func in _AUTOGRAD and not is_transform:
        raise TorchModuleError(
            f"a module calls `{func.__name__}` of a tensor: gradients are those of `jax.grad`, not of PyTorch's "
            "autograd. Use `jax.custom_vjp` with `register_op`, or change the gradients that `jax.grad` returns"
        )
    if func in _EMBEDDINGS and keywords.get("max_norm") is not None:
        raise TorchModuleError(
            f"a module calls `{func.__name__}` with max_norm={keywords['max_norm']}, which changes the weight itself. "
            "Leave it out, and bound the norms of the weight's rows after each step of the optimizer"
        )
    if isinstance(func, torch._ops.HigherOrderOperator):
        raise TorchModuleError(
            f"a module calls `torch.{func.name()}`, whose functions PyTorch's compiler would trace. Write "
            "`torch.where`, or an op for which a function of arrays is registered, such as one with `jax.lax.cond`"
        )
    if any(torch.is_autocast_enabled(device) for device in _AUTOCAST_DEVICES):
        raise TorchModuleError(
            "a module runs under `torch.autocast`, which would cast nothing here. Leave it out, and cast the "
            "parameters: `strategies.mixed_precision`, or `jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)`"
        )


def function_advice(function: str) -> str:
    """Return what to write instead of a `torch.autograd.Function`."""
    if function == "CheckpointFunction":
        return CHECKPOINT_ADVICE
    return (
        f"the torch.autograd.Function {function} has a backward pass of its own, which gradients here would ignore. "
        "Write it with `jax.custom_vjp`, and register that for an op: `shardwise.torch.register_op(op, function)`"
    )
