"""Weights in files of `torch.save`: read shard by shard into sharded arrays, without executing what the pickle names.

The files are mapped into memory (`torch.load(..., weights_only=True, mmap=True)`): only the values of a shard are read.
"""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import TorchModuleError
from shardwise.torch.fused_projections import NOT_FUSED, FusedProjections
from shardwise.torch.module_state import numpy_dtype, to_numpy
from shardwise.torch.stored_tensors import Bounds, StoredTensor
from shardwise.torch.weight_names import WeightReader

_LOAD = "load_pickled_weights"
_FILE, _INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def load_pickled_weights(
    path: str | PathLike[str],
    like: Mapping[str, Array | ShapeDtypeStruct],
    *,
    rename: Callable[[str], str] = lambda name: name,
    fused: FusedProjections = NOT_FUSED,
    ignore: str | None = None,
    cast: bool = False,
) -> dict[str, Array]:
    """Read weights of files of `torch.save`, such as `model.pt`, into sharded arrays.

    Each shard is read alone: no process holds a whole tensor that is sharded. Only tensors and containers are unpickled
    (`weights_only=True`). Names of nested dicts and lists are joined by dots. Further names of a tied parameter, and
    values that are not tensors, are not read.

    Args:
        path: a file; or a folder with `pytorch_model.bin`, or with several files and `pytorch_model.bin.index.json`, as
            transformers wrote them.
        like: the parameters by name: arrays, or ShapeDtypeStructs with shardings. `functional` of a module on the
            `meta` device returns such types. Without a sharding, an array is on the default device.
        rename: returns the name in the file of a parameter's name, such as one with the prefix `state_dict.`.
        fused: the fused projections of a function whose parts are stored apart: `function.fused`.
        ignore: a regular expression for names of tensors that are not parameters, and are not read.
        cast: whether dtypes may differ. Values then have the dtype of `like`.

    Returns:
        Arrays with the names, shapes, dtypes and shardings of `like`.

    Raises:
        FileNotFoundError: if there is no such file.
        TorchModuleError: if the file is damaged or names other objects than tensors and containers; if it lacks a
            parameter or has others; or if a shape or a dtype differs.
    """
    reader = WeightReader(_LOAD, path, rename, fused, ignore, cast)
    values = {name: value for file in _files(Path(path)) for name, value in _flatten(_load(file), "")}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    wanted_names = {rename(fused.parameter_name(leaf)) for leaf in like}
    wanted = {_memory(tensors[name]) for name in wanted_names & tensors.keys()}
    tied = {name for name, tensor in tensors.items() if _memory(tensor) in wanted}
    names = reader.check_names(like, tensors, tied | (values.keys() - tensors.keys()))
    return {
        name: reader.read(name, _stored_tensor(stored, tensors[stored]), like[name]) for name, stored in names.items()
    }


def _files(path: Path) -> list[Path]:
    if path.is_dir() and (path / _INDEX).exists():
        try:
            files = json.loads((path / _INDEX).read_text())["weight_map"].values()
            return [path / Path(file).name for file in dict.fromkeys(files)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TorchModuleError(f"{_LOAD}: {path / _INDEX} has no map of weights: {error!r}") from None
    return [path / _FILE if path.is_dir() else path]


def _load(file: Path) -> Any:
    """Unpickle a file whose tensors are mapped into memory."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"{_LOAD}: there is no {file}") from None
    except pickle.UnpicklingError as error:
        raise TorchModuleError(
            f"{_LOAD}: {file} has more than tensors and containers, or is damaged: {str(error).splitlines()[0]} Load "
            "it with PyTorch where you trust it, and save its `state_dict()` again."
        ) from None
    except (RuntimeError, EOFError, ValueError, OSError) as error:
        raise TorchModuleError(
            f"{_LOAD}: {file} is not a complete file of torch.save in its format since PyTorch 1.6: "
            f"{str(error).splitlines()[0]}"
        ) from None


def _flatten(value: object, name: str) -> Iterator[tuple[str, object]]:
    """Yield the values of nested dicts and lists with their names."""
    if isinstance(value, Mapping):
        children: list[tuple[object, object]] = list(value.items())
    elif isinstance(value, (list, tuple)):
        children = list(enumerate(value))
    else:
        yield name, value
        return
    for key, child in children:
        yield from _flatten(child, f"{name}.{key}" if name else str(key))


def _memory(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what two names of a tied parameter have in common."""
    if tensor.layout is not torch.strided:
        return (id(tensor),)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _stored_tensor(name: str, tensor: torch.Tensor) -> StoredTensor:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TorchModuleError(f"{_LOAD}: {name!r} is {tensor.layout}; only dense tensors can be arrays")
    numpy_dtype(_LOAD, name, tensor.dtype)

    def read(bounds: Bounds) -> np.ndarray[Any, Any]:
        return to_numpy(
            tensor.detach()[tuple(slice(*each) for each in bounds)].clone(memory_format=torch.contiguous_format)
        )

    return StoredTensor(tuple(tensor.shape), read)
