"""Computes with the parts of fused weights apart, so that no data moves between devices to separate their results.

A module multiplies by a fused weight and splits the product. In this mode, each part is multiplied alone, and the split
returns the parts of the product. The fused tensors exist too, for functions without a rule here; what nobody uses is
eliminated from a compiled program.

    y = linear(x, w)           parts of w along the outputs: y has parts along its last dim
    y.view(..., 3 * d)         each part is reshaped
    q, k, v = y.split(d, -1)   the parts themselves
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, final

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from shardwise.torch._torchax import Tensor

Rule = Callable[..., Any]


@final
@dataclass
class SplitTensor:
    """A fused tensor and its parts.

    Attributes:
        whole: the fused tensor.
        dim: the dim along which its parts are.
        tensors: the parts.
    """

    whole: Any
    dim: int
    tensors: tuple[Any, ...]

    def __post_init__(self) -> None:
        self._record()

    def _record(self) -> None:
        self._arrays = [tensor._elem for tensor in (self.whole, *self.tensors)]

    def update(self) -> None:
        """Assign the values of parts that were changed in place to the fused tensor, or the other way round."""
        whole, *parts = self._arrays
        if self.whole._elem is not whole:
            values = self.whole.split(self.sizes, self.dim)
            for tensor, value in zip(self.tensors, values, strict=True):
                tensor._elem = value.jax()
        elif any(tensor._elem is not part for tensor, part in zip(self.tensors, parts, strict=True)):
            self.whole._elem = torch.cat(self.tensors, self.dim).jax()
        else:
            return
        self._record()

    @property
    def sizes(self) -> list[int]:
        """The sizes of the parts."""
        return [tensor.shape[self.dim] for tensor in self.tensors]


@final
class SeparateParts(TorchFunctionMode):  # type: ignore[misc]  # mypy does not follow PyTorch
    """Applies the rules of this module to functions of fused tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[int, SplitTensor] = {}  # by the id of the fused tensor, which each entry keeps alive

    def add(self, parts: SplitTensor) -> Any:
        """Return the fused tensor, and know its parts from now on."""
        self._parts[id(parts.whole)] = parts
        return parts.whole

    def find(self, value: object) -> SplitTensor | None:
        """Return the parts of a fused tensor, or None."""
        return self._parts.get(id(value))

    def update(self) -> None:
        """Make fused tensors and their parts agree, where one of them was changed in place."""
        for parts in self._parts.values():
            parts.update()

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        fused = [parts for value in (*args, *kwargs.values()) if (parts := self.find(value)) is not None]
        if not fused:
            return func(*args, **kwargs)
        for parts in fused:
            parts.update()
        result = self._apply_rule(func, args, kwargs)
        if result is NotImplemented:
            result = func(*args, **kwargs)
            for parts in fused:
                parts.update()
        return self.add(result) if isinstance(result, SplitTensor) else result

    def _apply_rule(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a rule, or NotImplemented if none has these arguments."""
        rule = _RULES.get(func)
        if rule is None:
            return NotImplemented
        try:
            inspect.signature(rule).bind(self, func, *args, **kwargs)
        except TypeError:
            return NotImplemented
        return rule(self, func, *args, **kwargs)


def join(tensors: Sequence[Any], dim: int) -> SplitTensor:
    """Return parts and their concatenation."""
    return SplitTensor(torch.cat(list(tensors), dim), dim, tuple(tensors))


def _linear(
    mode: SeparateParts, func: Rule, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> Any:
    parts = mode.find(weight)
    if parts is None or parts.dim != 0:
        return NotImplemented
    biases = _bias_parts(mode, bias, parts)
    outputs = [func(input, tensor, each) for tensor, each in zip(parts.tensors, biases, strict=True)]
    return join(outputs, outputs[0].ndim - 1)


def _addmm(
    mode: SeparateParts, func: Rule, bias: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, **factors: object
) -> Any:
    parts = mode.find(weight)
    if parts is None or parts.dim != 1 or bias.ndim != 1:
        return NotImplemented
    biases = _bias_parts(mode, bias, parts)
    return join([func(each, input, tensor, **factors) for tensor, each in zip(parts.tensors, biases, strict=True)], 1)


def _matmul(
    mode: SeparateParts, func: Rule, input: torch.Tensor, weight: torch.Tensor, *others: object, **options: object
) -> Any:
    parts = mode.find(weight)
    if parts is None or weight.ndim < 2 or parts.dim != weight.ndim - 1 or options.get("bias") is not None:
        return NotImplemented
    outputs = [func(input, tensor, *others, **options) for tensor in parts.tensors]
    return join(outputs, outputs[0].ndim - 1)


def _add(mode: SeparateParts, func: Rule, left: torch.Tensor, right: torch.Tensor, **factors: object) -> Any:
    """Add a bias to a product."""
    parts = mode.find(left)
    if parts is None or parts.dim != left.ndim - 1 or not isinstance(right, Tensor) or right.ndim != 1:
        return NotImplemented
    if right.shape[0] != left.shape[-1]:
        return NotImplemented
    biases = _bias_parts(mode, right, parts)
    return join([func(each, bias, **factors) for each, bias in zip(parts.tensors, biases, strict=True)], parts.dim)


def _bias_parts(mode: SeparateParts, bias: torch.Tensor, parts: SplitTensor) -> Sequence[Any]:
    if bias is None:
        return [None] * len(parts.tensors)
    fused = mode.find(bias)
    if fused is not None and fused.sizes == parts.sizes:
        return fused.tensors
    pieces: Sequence[Any] = bias.split(parts.sizes)
    return pieces


def _elementwise(mode: SeparateParts, func: Rule, input: torch.Tensor, *others: object, **options: object) -> Any:
    parts = mode.find(input)
    if parts is None or any(isinstance(value, torch.Tensor) for value in (*others, *options.values())):
        return NotImplemented
    return join([func(tensor, *others, **options) for tensor in parts.tensors], parts.dim)


def _transpose(mode: SeparateParts, func: Rule, input: torch.Tensor, first: int, second: int) -> Any:
    parts = mode.find(input)
    if parts is None:
        return NotImplemented
    one, two = first % input.ndim, second % input.ndim
    dim = {one: two, two: one}.get(parts.dim, parts.dim)
    return join([func(tensor, first, second) for tensor in parts.tensors], dim)


def _matrix_transpose(mode: SeparateParts, func: Rule, input: torch.Tensor) -> Any:
    if input.ndim != 2:
        return NotImplemented
    return _transpose(mode, torch.Tensor.transpose, input, 0, 1)


def _reshape(mode: SeparateParts, func: Rule, input: torch.Tensor, *shape: object) -> Any:
    """Reshape each part if the last dim stays, and stack the parts if they become a dim of their own."""
    parts = mode.find(input)
    if parts is None or parts.dim != input.ndim - 1:
        return NotImplemented
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if not isinstance(sizes, (tuple, list)) or not all(isinstance(size, int) for size in sizes):
        return NotImplemented  # a dtype
    known = prod(size for size in sizes if size != -1)
    sizes = [size if size != -1 else prod(input.shape) // known for size in sizes]
    rows = prod(input.shape[:-1])
    leading = next((index for index in range(len(sizes) + 1) if prod(sizes[:index]) == rows), None)
    while leading is not None and leading < len(sizes) - 1 and sizes[leading] == 1:
        leading += 1
    if leading is None or leading >= len(sizes):
        return NotImplemented
    before, inner = sizes[:leading], sizes[leading:]
    if inner == [input.shape[-1]]:
        return join([func(each, [*before, each.shape[-1]]) for each in parts.tensors], leading)
    if inner[0] == len(parts.tensors) and len(set(parts.sizes)) == 1:
        return torch.stack([func(each, [*before, *inner[1:]]) for each in parts.tensors], leading)
    return NotImplemented


def _unflatten(mode: SeparateParts, func: Rule, input: torch.Tensor, dim: int, sizes: Sequence[int]) -> Any:
    if dim % input.ndim != input.ndim - 1:
        return NotImplemented
    return _reshape(mode, torch.Tensor.reshape, input, [*input.shape[:-1], *sizes])


def _split(mode: SeparateParts, func: Rule, input: torch.Tensor, split_size: int | Sequence[int], dim: int = 0) -> Any:
    parts = mode.find(input)
    if parts is None or dim % input.ndim != parts.dim:
        return NotImplemented
    sizes = [split_size] * len(parts.tensors) if isinstance(split_size, int) else list(split_size)
    return parts.tensors if sizes == parts.sizes else NotImplemented


def _chunk(mode: SeparateParts, func: Rule, input: torch.Tensor, chunks: int, dim: int = 0) -> Any:
    parts = mode.find(input)
    if parts is None or dim % input.ndim != parts.dim or chunks != len(parts.tensors):
        return NotImplemented
    return parts.tensors if len(set(parts.sizes)) == 1 else NotImplemented


def _narrow(mode: SeparateParts, func: Rule, input: torch.Tensor, dim: int, start: int, length: int) -> Any:
    parts = mode.find(input)
    if parts is None or dim % input.ndim != parts.dim:
        return NotImplemented
    return _part_at(parts, start, start + length)


def _getitem(mode: SeparateParts, func: Rule, input: torch.Tensor, index: object) -> Any:
    """Return a part for `y[..., start:stop]`."""
    parts = mode.find(input)
    indices = index if isinstance(index, tuple) else (index,)
    if parts is None or not all(each is Ellipsis or isinstance(each, slice) for each in indices):
        return NotImplemented
    if Ellipsis in indices:
        at = indices.index(Ellipsis)
        missing = input.ndim - (len(indices) - 1)
        indices = (*indices[:at], *[slice(None)] * missing, *indices[at + 1 :])
    indices = (*indices, *[slice(None)] * (input.ndim - len(indices)))
    bounds = [each.indices(size) for each, size in zip(indices, input.shape, strict=True)]
    start, stop, step = bounds.pop(parts.dim)
    others = [size for dim, size in enumerate(input.shape) if dim != parts.dim]
    if step != 1 or any(each != (0, size, 1) for each, size in zip(bounds, others, strict=True)):
        return NotImplemented
    return _part_at(parts, start, stop)


def _part_at(parts: SplitTensor, start: int, stop: int) -> Any:
    position = 0
    for tensor, size in zip(parts.tensors, parts.sizes, strict=True):
        if (position, position + size) == (start, stop):
            return tensor
        position += size
    return NotImplemented


def _attention(mode: SeparateParts, func: Rule, *args: object, **kwargs: object) -> Any:
    """Pass the parts of the weight of `torch.nn.MultiheadAttention` as three weights."""
    bound = _ATTENTION.bind(*args, **kwargs)
    parts = mode.find(bound.arguments["in_proj_weight"])
    if parts is None or parts.dim != 0 or len(parts.tensors) != 3:
        return NotImplemented
    query, key, value = parts.tensors
    weights = {"q_proj_weight": query, "k_proj_weight": key, "v_proj_weight": value}
    bound.arguments.update(weights, in_proj_weight=None, use_separate_proj_weight=True)
    return func(*bound.args, **bound.kwargs)


_ATTENTION = inspect.signature(F.multi_head_attention_forward)
_RULES: dict[Any, Rule] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    **dict.fromkeys((torch.matmul, torch.mm, torch.bmm, torch._grouped_mm), _matmul),
    **dict.fromkeys((torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.mm, torch.Tensor.bmm), _matmul),
    **dict.fromkeys((torch.add, torch.Tensor.add, torch.Tensor.__add__), _add),
    **dict.fromkeys((torch.transpose, torch.Tensor.transpose, torch.Tensor.swapaxes), _transpose),
    **dict.fromkeys((torch.t, torch.Tensor.t, torch.Tensor.T.__get__, torch.Tensor.mT.__get__), _matrix_transpose),
    **dict.fromkeys((torch.reshape, torch.Tensor.reshape, torch.Tensor.view), _reshape),
    **dict.fromkeys((torch.unflatten, torch.Tensor.unflatten), _unflatten),
    **dict.fromkeys((torch.Tensor.to, torch.Tensor.float, torch.Tensor.bfloat16, torch.Tensor.half), _elementwise),
    **dict.fromkeys((torch.Tensor.contiguous, torch.clone, torch.Tensor.clone), _elementwise),
    **dict.fromkeys((torch.split, torch.Tensor.split, torch.Tensor.split_with_sizes), _split),
    **dict.fromkeys((torch.chunk, torch.Tensor.chunk, torch.Tensor.tensor_split), _chunk),
    **dict.fromkeys((torch.narrow, torch.Tensor.narrow), _narrow),
    torch.Tensor.__getitem__: _getitem,
    F.multi_head_attention_forward: _attention,
}
