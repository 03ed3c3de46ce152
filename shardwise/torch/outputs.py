"""Values that enter and leave a module: arrays become tensors, and results become pytrees of arrays.

PyTorch has its own registry of pytrees. A class that is registered there, such as the dataclasses that the models of
transformers return, becomes a pytree of Shardwise when a module returns it for the first time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch.utils import _pytree as torch_pytree

import shardwise.numpy as jnp
from shardwise import tree_util
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import TorchModuleError
from shardwise.torch._torchax import Tensor, View, environment
from shardwise.torch.module_state import to_array


def to_tensors(values: object) -> Any:
    """Return values whose arrays, also those of numpy and PyTorch, are tensors of torchax. Others stay as they are."""
    env = environment()

    def convert(leaf: object) -> object:
        if isinstance(leaf, (Tensor, View)):
            return leaf
        if isinstance(leaf, torch.Tensor):
            return Tensor(to_array(leaf), env)
        if isinstance(leaf, Array):
            return Tensor(leaf, env)
        if isinstance(leaf, (np.ndarray, np.generic)):
            return Tensor(jnp.asarray(np.asarray(leaf)), env)
        return leaf

    return torch_pytree.tree_map(convert, values)


def to_arrays(values: object) -> Any:
    """Return values whose tensors are arrays.

    Raises:
        TorchModuleError: if a value is neither a tensor, a number, a string nor None, nor a pytree of these.
    """
    _register_nodes(values)

    def convert(leaf: object) -> object:
        if isinstance(leaf, (Tensor, View)):
            return leaf.jax()
        if isinstance(leaf, torch.Tensor):
            return to_array(leaf)
        if leaf is None or isinstance(leaf, (Array, np.ndarray, np.generic, int, float, complex, bool)):
            return leaf
        raise TorchModuleError(
            f"the module returns an object of class {type(leaf).__name__}, which is no pytree. Leave it out (for the "
            "cache of a model of transformers: `use_cache=False`), or register the class with "
            "`torch.utils._pytree.register_pytree_node`"
        )

    return torch_pytree.tree_map(convert, values)


def _register_nodes(node: object) -> None:
    cls = torch_pytree._get_node_type(node)
    entry = torch_pytree.SUPPORTED_NODES.get(cls)
    if entry is None:
        return
    children, _ = entry.flatten_fn(node)
    for child in children:
        _register_nodes(child)
    if tree_util.all_leaves([node]) and children:  # unknown to Shardwise

        def flatten(value: object) -> tuple[Sequence[Any], _Context]:
            values, context = entry.flatten_fn(value)
            return values, _Context(context)

        def unflatten(context: _Context, values: Sequence[Any]) -> Any:
            return entry.unflatten_fn(list(values), context.value)

        tree_util.register_pytree_node(cls, flatten, unflatten)


@final
@dataclass(frozen=True)
class _Context:
    """The static part of a node of PyTorch's, which need not be hashable."""

    value: Any

    def __hash__(self) -> int:
        return hash(repr(self.value))
