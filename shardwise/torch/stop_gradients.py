"""Stops gradients through the results of functions under `torch.no_grad()`, which torchax does not do."""

from typing import Any, final

import torch
from torch.overrides import TorchFunctionMode

from shardwise.errors import TorchModuleError
from shardwise.lax.gradient import stop_gradient
from shardwise.torch._torchax import Tensor
from shardwise.torch.running_module import running_autograd_function
from shardwise.torch.unsupported_functions import check_function, function_advice


@final
class StopGradients(TorchFunctionMode):  # type: ignore[misc]  # mypy does not follow PyTorch
    """Stops gradients through the results of functions under `torch.no_grad()`.

    A `torch.autograd.Function` also runs without gradients, and has a backward pass of its own, which is not called: it
    is an error, and so are functions of PyTorch's autograd.
    """

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        keywords = kwargs or {}
        check_function(func, keywords)
        results = func(*args, **keywords)
        if torch.is_grad_enabled():
            return results
        if (function := running_autograd_function()) is not None:
            raise TorchModuleError(function_advice(function))
        stopped = results if isinstance(results, (tuple, list)) else [results]
        for result in stopped:
            if isinstance(result, Tensor) and not any(result is argument for argument in args):
                result._elem = stop_gradient(result._elem)
        return results
