"""Fused projections, whose parts are stored apart: names and shapes of the leaves, and the way back to the module's.

A fused parameter, such as the weight [3 * d, in] of a projection to queries, keys and values, has its parts one after
the other along one dim. Sharded along that dim, the parts are across the borders of shards, and a plan moves data
between devices to separate them. Stored apart, each part is sharded alone:

    an int            parts of one size are one leaf: [3 * d, in] is [3, d, in], under the same name
    a dict of sizes   each part is a leaf: `qkv_proj.weight` is `qkv_proj.weight.q`, `qkv_proj.weight.k`, ...
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import TorchModuleError
from shardwise.lax import index_in_dim
from shardwise.torch.module_paths import columns_dim, match_paths, own_parameters
from shardwise.torch.stored_tensors import Bounds, StoredTensor

Parts = int | Mapping[str, int]


@final
@dataclass(frozen=True)
class FusedParameter:
    """A parameter of several parts.

    Attributes:
        name: its name in the module.
        shape: its shape in the module.
        dim: the dim along which its parts are.
        sizes: the size of each part.
        leaves: the names of the leaves: one for all parts, or one for each part.
    """

    name: str
    shape: tuple[int, ...]
    dim: int
    sizes: tuple[int, ...]
    leaves: tuple[str, ...]

    @property
    def is_stacked(self) -> bool:
        """Whether all parts are in one leaf, along a dim of their own."""
        return self.leaves == (self.name,)

    def leaf_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each leaf."""
        before, after = self.shape[: self.dim], self.shape[self.dim + 1 :]
        if self.is_stacked:
            return {self.name: (*before, len(self.sizes), self.sizes[0], *after)}
        return {leaf: (*before, size, *after) for leaf, size in zip(self.leaves, self.sizes, strict=True)}

    def split(self, array: Any) -> dict[str, Any]:
        """Return the leaves of the parameter: arrays, views of a numpy array, or ShapeDtypeStructs."""
        shapes = self.leaf_shapes()
        if isinstance(array, ShapeDtypeStruct):
            return {leaf: ShapeDtypeStruct(shape, array.dtype) for leaf, shape in shapes.items()}
        if self.is_stacked:
            return {self.name: array.reshape(shapes[self.name])}
        before = (slice(None),) * self.dim
        bounds = zip(self.leaves, self._starts(), self.sizes, strict=True)
        return {leaf: array[(*before, slice(start, start + size))] for leaf, start, size in bounds}

    def parts(self, leaves: Mapping[str, Array]) -> list[Array]:
        """Return the parts, each with the rank of the parameter."""
        if not self.is_stacked:
            return [leaves[leaf] for leaf in self.leaves]
        array = leaves[self.name]
        return [index_in_dim(array, index, self.dim, keepdims=False) for index in range(len(self.sizes))]

    def join(self, leaves: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Return the parameter in host memory."""
        if self.is_stacked:
            return leaves[self.name].reshape(self.shape)
        return np.concatenate([leaves[leaf] for leaf in self.leaves], self.dim)

    def spec(self, spec: PartitionSpec) -> PartitionSpec:
        """Return the spec of a leaf for that of the parameter: parts are not sharded, and their dim is as the fused."""
        if not self.is_stacked or len(spec) <= self.dim:
            return spec
        return PartitionSpec(*spec[: self.dim], None, *spec[self.dim :])

    def stored_leaf(self, leaf: str, stored: StoredTensor) -> StoredTensor:
        """Return a leaf, whose blocks are read from the parameter in a file."""
        start = self._starts()[self.leaves.index(leaf)]

        def read(bounds: Bounds) -> np.ndarray[Any, Any]:
            before, inside, after = bounds[: self.dim], bounds[self.dim], bounds[self.dim + 1 :]
            if not self.is_stacked:
                return stored.read((*before, (start + inside[0], start + inside[1]), *after))
            low, high = after[0]
            size = self.sizes[0]
            parts = [stored.read((*before, (i * size + low, i * size + high), *after[1:])) for i in range(*inside)]
            return np.stack(parts, self.dim)

        return StoredTensor(self.leaf_shapes()[leaf], read)

    def chunks(
        self, leaf: str, start: tuple[int, ...], values: Array
    ) -> Iterator[tuple[tuple[int, ...], tuple[slice | int, ...], tuple[int, ...]]]:
        """Yield the blocks of the parameter that a shard of a leaf has.

        Args:
            leaf: the name of the leaf.
            start: the position of the shard in the leaf.
            values: the shard.

        Yields:
            The position of a block in the parameter, its index in the shard, and its shape.
        """
        before, after = start[: self.dim], start[self.dim + 1 :]
        if not self.is_stacked:
            origin = self._starts()[self.leaves.index(leaf)]
            yield (*before, origin + start[self.dim], *after), (), tuple(values.shape)
            return
        shape = (*values.shape[: self.dim], *values.shape[self.dim + 1 :])
        for index in range(values.shape[self.dim]):
            position = (start[self.dim] + index) * self.sizes[0] + after[0]
            yield (*before, position, *after[1:]), (*[slice(None)] * self.dim, index), shape

    def _starts(self) -> list[int]:
        return [sum(self.sizes[:index]) for index in range(len(self.sizes))]


@final
@dataclass(frozen=True)
class FusedProjections:
    """The fused parameters of a module whose parts are stored apart.

    Attributes:
        parameters: the fused parameters, by their names in the module.
    """

    parameters: Mapping[str, FusedParameter]

    def parameter_of(self, leaf: str) -> FusedParameter | None:
        """Return the parameter to which a leaf belongs, or None if it is not fused."""
        if leaf in self.parameters:
            return self.parameters[leaf]
        parameter = self.parameters.get(leaf.rpartition(".")[0])
        return parameter if parameter is not None and leaf in parameter.leaves else None

    def parameter_name(self, leaf: str) -> str:
        """Return the name of the parameter to which a leaf belongs."""
        parameter = self.parameter_of(leaf)
        return leaf if parameter is None else parameter.name

    def leaf_names(self, name: str) -> tuple[str, ...]:
        """Return the names of the leaves of a parameter."""
        return self.parameters[name].leaves if name in self.parameters else (name,)


NOT_FUSED = FusedProjections({})


def find_fused_parameters(
    module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], split: Mapping[str, Parts]
) -> FusedProjections:
    """Return the fused parameters that `split` of `functional` names.

    Raises:
        TorchModuleError: if a path matches nothing, or if the parts do not add up to the size of the dim.
    """
    found: dict[str, FusedParameter] = {}
    for pattern, parts in split.items():
        names = [name for path in match_paths(module, tensors, pattern) for name in own_parameters(module, path)]
        if not names:
            raise TorchModuleError(f"functional: `split` has {pattern!r}, which matches no parameter of the module")
        for name in names:
            if name in tensors:  # otherwise it is tied to one that has another name
                found[name] = _fused_parameter(module, name, tensors[name], parts)
    return FusedProjections(found)


def _fused_parameter(module: torch.nn.Module, name: str, tensor: torch.Tensor, parts: Parts) -> FusedParameter:
    shape = tuple(tensor.shape)
    if not shape:
        raise TorchModuleError(f"functional: `split` names {name!r}, which is a scalar")
    dim = columns_dim(module, name, len(shape))
    if isinstance(parts, Mapping):
        sizes, leaves = tuple(parts.values()), tuple(f"{name}.{label}" for label in parts)
        if sum(sizes) != shape[dim]:
            raise TorchModuleError(
                f"functional: the parts {dict(parts)} of {name!r} have {sum(sizes)} elements together, and dim {dim} "
                f"of its shape {shape} has {shape[dim]}"
            )
        return FusedParameter(name, shape, dim, sizes, leaves)
    if not isinstance(parts, int) or parts < 1 or shape[dim] % parts:
        raise TorchModuleError(
            f"functional: {name!r} cannot be {parts!r} parts of one size: dim {dim} of its shape {shape} has "
            f"{shape[dim]} elements. Pass the sizes of its parts: {{'q': ..., 'k': ..., 'v': ...}}"
        )
    return FusedParameter(name, shape, dim, (shape[dim] // parts,) * parts, (name,))


def fused_projections(module: torch.nn.Module) -> dict[str, Parts]:
    """Return the fused projections of a module that are known, for `functional(module, split=...)`.

    These are the weights of `torch.nn.MultiheadAttention`, GPT-2's `c_attn`, and the `gate_up_proj` and `qkv_proj` of
    models of transformers, whose configuration has the sizes. A projection whose parts alternate, such as GPT-NeoX's
    `query_key_value`, is not among them: its heads are sharded as they are.

    Args:
        module: the module.

    Returns:
        The path of each module or parameter, and its number of parts, or their sizes.

    Example:
        >>> fused_projections(torch.nn.MultiheadAttention(8, 2))
        {'in_proj_weight': 3}
    """
    config = getattr(module, "config", None)
    config = getattr(config, "text_config", config)
    found: dict[str, Parts] = {}
    for path, submodule in module.named_modules():
        name = path.rpartition(".")[2]
        if isinstance(submodule, torch.nn.MultiheadAttention) and submodule.in_proj_weight is not None:
            found[f"{path}.in_proj_weight" if path else "in_proj_weight"] = 3
        elif name == "c_attn" and type(submodule).__name__ == "Conv1D":
            found[path] = submodule.weight.shape[1] // submodule.weight.shape[0]
        elif name == "gate_up_proj":
            found[path] = 2
        elif isinstance(getattr(submodule, "gate_up_proj", None), torch.nn.Parameter) and not getattr(
            submodule, "is_transposed", False
        ):
            found[f"{path}.gate_up_proj"] = 2
        elif name == "qkv_proj":
            sizes = _attention_sizes(config)
            if sum(sizes.values()) == submodule.weight.shape[0]:
                found[path] = 3 if len(set(sizes.values())) == 1 else sizes
    return found


def _attention_sizes(config: Any) -> dict[str, int]:
    """Return the sizes of queries, keys and values of a model of transformers, or nothing if they are unknown."""
    try:
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        keys = (getattr(config, "num_key_value_heads", None) or heads) * size
    except AttributeError:
        return {}
    return {"q": heads * size, "k": keys, "v": keys}
