"""Modules that cannot be functions, such as those with hooks on gradients, or wrappers for several devices."""

import torch

from shardwise.errors import TorchModuleError

_EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)
_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
_WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


def check_module(module: torch.nn.Module) -> None:
    """Check that a module does nothing which a function of arrays would leave out.

    Raises:
        TorchModuleError: if a submodule or a parameter has a hook on its gradient, which would not be called; or if a
            submodule is a wrapper that places its inputs on devices of PyTorch, is quantized, is compiled by
            TorchScript, or is an embedding that changes its weight.
    """
    for path, submodule in module.named_modules():
        where = f"{path!r}" if path else "the module itself"
        if isinstance(submodule, _WRAPPERS):
            raise TorchModuleError(
                f"functional: {where} is {type(submodule).__name__}, which PyTorch runs on several devices. Pass the "
                "module inside, `wrapper.module`, and shard its parameters and batches: `strategies.data_parallel`"
            )
        if isinstance(submodule, _EMBEDDINGS) and submodule.max_norm is not None:
            raise TorchModuleError(
                f"functional: {where} has max_norm={submodule.max_norm}, with which a call changes the weight itself. "
                "Set `max_norm = None`, and bound the norms of its rows after each step of the optimizer"
            )
        if type(submodule).__module__.startswith(_QUANTIZED):
            raise TorchModuleError(
                f"functional: {where} is {type(submodule).__name__} of torch.ao, whose weights are packed for the CPU. "
                "Pass the module before it is quantized; `shardwise.nn` has products of 8-bit numbers"
            )
        if isinstance(submodule, torch.jit.ScriptModule):
            raise TorchModuleError(
                f"functional: {where} is compiled by TorchScript, which runs outside of Python. Pass the module before "
                "`torch.jit.script` or `torch.jit.trace`"
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
