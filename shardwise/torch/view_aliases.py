"""Finds tensors that are used after their memory was changed through another view of it.

In PyTorch, `x.view(-1).add_(1)` changes `x`. torchax changes the tensors of slices, `x[:, 1:3].add_(1)`, and no others:
a later use of `x` would have the old values. Such a use is an error. Where only the changed view is used, as in most
models, nothing is wrong. torchax's `flatten()` and `detach()` are methods that no mode sees: their results are copies.
"""

from typing import Any, final

import torch
from torch.overrides import TorchFunctionMode

from shardwise.torch._torchax import Tensor, View

_NAMES = [
    "as_strided",
    "chunk",
    "diagonal",
    "dsplit",
    "expand",
    "expand_as",
    "hsplit",
    "movedim",
    "moveaxis",
    "narrow",
    "permute",
    "ravel",
    "reshape",
    "reshape_as",
    "select",
    "split",
    "split_with_sizes",
    "squeeze",
    "swapaxes",
    "swapdims",
    "t",
    "tensor_split",
    "transpose",
    "unbind",
    "unflatten",
    "unfold",
    "unsqueeze",
    "view",
    "view_as",
    "vsplit",
]
_VIEWS = {
    function for owner in (torch, torch.Tensor) for name in _NAMES if callable(function := getattr(owner, name, None))
} | {torch.Tensor.__getitem__, torch.Tensor.T.__get__, torch.Tensor.mT.__get__, torch.Tensor.H.__get__}


class StaleViewError(Exception):
    """A tensor is used after its memory was changed through another view."""


@final
class _Memory:
    """The memory of a tensor and of its views: how many times it was changed, and by what."""

    def __init__(self) -> None:
        self.version = 0
        self.changed_by = ""
        self._views: list[Any] = []

    def add(self, tensor: Any, version: int) -> None:
        """Let a tensor have this memory, with the values of a version."""
        tensor._memory, tensor._memory_version, tensor._memory_array = self, version, tensor._elem
        self._views.append(tensor)

    def record_changes(self, function: str) -> None:
        """Count a change of each tensor whose array was replaced."""
        for tensor in self._views:
            if tensor._elem is not tensor._memory_array:
                self.version, self.changed_by = self.version + 1, function
                tensor._memory_version, tensor._memory_array = self.version, tensor._elem


@final
class ViewAliases(TorchFunctionMode):  # type: ignore[misc]  # mypy does not follow PyTorch
    """Raises StaleViewError where a tensor is used whose memory was changed through another view."""

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        tensors = [_owner(value) for value in _flatten((*args, *kwargs.values()))]
        for tensor in tensors:
            check(tensor, f"`{name}`")
        results = func(*args, **kwargs)
        for tensor in tensors:
            if (memory := _memory(tensor)) is not None:
                memory.record_changes(name)
        if func in _VIEWS and tensors and _is_view(func, args):
            for result in _flatten([results]):
                if isinstance(result, Tensor) and result is not tensors[0] and _memory(result) is None:
                    _share(tensors[0], result)
        return results


def check(value: object, use: str) -> None:
    """Raise an error if the memory of a tensor was changed through another view of it.

    Args:
        value: the tensor; other values are not checked.
        use: the function that uses it, for the error.
    """
    memory = _memory(value)
    if memory is None:
        return
    memory.record_changes("__setitem__")  # a method of torchax, which no mode sees
    if value._memory_version != memory.version:  # type: ignore[attr-defined]
        raise StaleViewError(f"{use} needs a tensor whose memory `{memory.changed_by}` changed through another view")


def _memory(value: object) -> _Memory | None:
    memory: _Memory | None = getattr(value, "_memory", None)
    return memory


def _share(base: Any, view: Any) -> None:
    memory = _memory(base)
    if memory is None:
        memory = _Memory()
        memory.add(base, 0)
    memory.add(view, base._memory_version)


def _is_view(func: Any, args: Any) -> bool:
    """Return whether a function of a tensor returns views; indices that are tensors or lists copy."""
    if not args or not isinstance(args[0], (Tensor, View)):
        return False
    if func is not torch.Tensor.__getitem__:
        return True
    indices = args[1] if isinstance(args[1], tuple) else (args[1],)
    return all(index is None or index is Ellipsis or isinstance(index, (int, slice)) for index in indices)


def _flatten(values: Any) -> list[Any]:
    """Return the tensors among values, and in lists and tuples of these."""
    found = []
    for value in values:
        if isinstance(value, (Tensor, View)):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _flatten(value)
    return found


def _owner(tensor: Any) -> Any:
    """Return the tensor that has the memory of a slice of torchax."""
    while isinstance(tensor, View):
        tensor = tensor.parent
    return tensor
