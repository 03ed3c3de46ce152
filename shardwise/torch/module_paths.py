"""Paths of modules and parameters: patterns that match them, and the dims of weights by the class of their module."""

import re
from collections.abc import Iterable, Mapping

import torch


def match_paths(module: torch.nn.Module, names: Iterable[str], pattern: str) -> list[str]:
    """Return the paths of submodules, and the names, that a pattern matches.

    Args:
        module: the module.
        names: the names of its tensors.
        pattern: a path in which `*` stands for one name, and `**` for any path.
    """
    parts = re.split(r"(\*\*|\*)", pattern)
    expression = re.compile("".join({"**": ".*", "*": "[^.]*"}.get(part, re.escape(part)) for part in parts))
    paths = dict.fromkeys([*(path for path, _ in module.named_modules()), *names])
    return [path for path in paths if expression.fullmatch(path)]


def own_parameters(module: torch.nn.Module, path: str) -> list[str]:
    """Return the names of the parameters of the submodule at a path, or the path if it is a parameter's."""
    submodules: Mapping[str, torch.nn.Module] = dict(module.named_modules())
    if path not in submodules:
        return [path]
    prefix = f"{path}." if path else ""
    return [f"{prefix}{name}" for name, _ in submodules[path].named_parameters(recurse=False)]


def columns_dim(module: torch.nn.Module, name: str, rank: int) -> int:
    """Return the dim of the outputs of a parameter.

    Weights are [out, in], also of experts ([experts, out, in]) and of convolutions ([out, in, ...]). Embeddings are
    [rows, columns], and so are the weights [in, out] of `Conv1D`, a layer of transformers. A bias has the dim of the
    outputs.
    """
    owner = module.get_submodule(name.rpartition(".")[0])
    if rank == 1 or isinstance(owner, torch.nn.modules.conv._ConvNd):
        return 0
    if has_columns_last(owner):
        return rank - 1
    return rank - 2


def rows_dim(module: torch.nn.Module, name: str, rank: int) -> int:
    """Return the dim of the inputs of a weight; see `columns_dim`."""
    owner = module.get_submodule(name.rpartition(".")[0])
    if isinstance(owner, torch.nn.modules.conv._ConvNd):
        return 1
    return rank - 2 if has_columns_last(owner) else rank - 1


def has_columns_last(owner: torch.nn.Module) -> bool:
    return isinstance(owner, (torch.nn.Embedding, torch.nn.EmbeddingBag)) or type(owner).__name__ == "Conv1D"
