"""meta_parameters: modules without the values of their parameters, but with those of their buffers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from shardwise.torch.module_state import without_values


@contextmanager
def meta_parameters() -> Iterator[None]:
    """Create modules with their parameters on the `meta` device inside a `with` block; their buffers have values.

    Files of weights lack buffers that are not persistent, such as the frequencies of rotary embeddings, which a module
    computes when it is created. Under `torch.device("meta")` they are lost. Each parameter is in memory until it is
    registered, one at a time.

    Example:
        >>> with meta_parameters():
        ...     module = torch.nn.BatchNorm1d(4)
        >>> module.weight.device, module.running_var.device
        (device(type='meta'), device(type='cpu'))
    """
    thread = threading.get_ident()  # hooks are global: other threads may create modules of their own

    def drop_values(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> object:
        if threading.get_ident() != thread or parameter is None or parameter.is_meta:
            return None
        if isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin):
            return None
        return without_values(parameter)

    handle = register_module_parameter_registration_hook(drop_values)
    try:
        yield
    finally:
        handle.remove()
