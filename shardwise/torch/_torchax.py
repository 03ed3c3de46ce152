"""torchax: the only module that imports it, with the private names of torchax and PyTorch that the package needs.

torchax imports jax, which is Shardwise here: the package imports `_installed` before this module.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from os import sep
from pathlib import Path
from typing import Any

import torch
import torchax
from torch.nn.utils.stateless import _reparametrize_module
from torchax.ops import mappings
from torchax.ops.ops_registry import Operator
from torchax.tensor import OperatorNotFound, Tensor
from torchax.view import View

from shardwise.base.call_site import skip_folder

__all__ = ["Operator", "OperatorNotFound", "Tensor", "View", "environment", "mappings", "run_on_arrays", "swap_tensors"]

# An installation in development mode is outside of site-packages.
for _package in (torch, torchax):
    skip_folder(str(Path(str(_package.__file__)).parent) + sep)


def environment() -> Any:
    """Return torchax's table of ops with its settings and its random key."""
    return torchax.default_env()


@contextmanager
def run_on_arrays(key: object) -> Iterator[None]:
    """Let PyTorch's functions compute with arrays of Shardwise inside a `with` block.

    PyTorch's default integers have 64 bits. Without x64, they have 32 bits here, and no warning says so.

    Args:
        key: the PRNG key from which ops such as dropout derive theirs.
    """
    env = environment()
    with warnings.catch_warnings(), env.override_property(prng=key), torch.device("jax:0"), env:
        warnings.filterwarnings("ignore", "Explicitly requested dtype int64")
        yield


def swap_tensors(module: Any, tensors: dict[str, Any]) -> Any:
    """Return a context in which a module has other tensors as its parameters, buffers and attributes.

    On exit, `tensors` has those that the module has then.
    """
    return _reparametrize_module(module, tensors)
