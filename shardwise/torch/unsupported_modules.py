"""Modules that cannot be functions: with hooks on gradients, or wrapped for several devices by PyTorch."""

import torch

from shardwise.errors import TorchModuleError

_WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


def check_module(module: torch.nn.Module) -> None:
    """Check that a module does nothing which a function of arrays would leave out.

    Raises:
        TorchModuleError: if a submodule or a parameter has a hook on its gradient, which would not be called; or if a
            submodule is a wrapper that places its inputs on devices of PyTorch.
    """
    for path, submodule in module.named_modules():
        where = f"{path!r}" if path else "the module itself"
        if isinstance(submodule, _WRAPPERS):
            raise TorchModuleError(
                f"functional: {where} is {type(submodule).__name__}, which PyTorch runs on several devices. Pass the "
                "module inside, `wrapper.module`, and shard its parameters and batches: `strategies.data_parallel`"
            )
        if submodule._backward_hooks or submodule._backward_pre_hooks:
            raise TorchModuleError(f"functional: {where} has a backward hook{_ADVICE}")
        for name, parameter in submodule.named_parameters(recurse=False):
            if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
                full = f"{path}.{name}" if path else name
                raise TorchModuleError(f"functional: {full!r} has a hook on its gradient{_ADVICE}")


_ADVICE = (
    ", which would not be called: gradients are those of `jax.grad`, not of PyTorch's autograd. Remove the hook, and "
    "change the gradients that `jax.grad` returns"
)
