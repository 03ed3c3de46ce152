"""Weights in safetensors files: read shard by shard into sharded arrays, and written as transformers reads them."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import TorchModuleError
from shardwise.torch.fused_projections import NOT_FUSED, FusedProjections
from shardwise.torch.module_state import from_numpy, to_numpy
from shardwise.torch.stored_tensors import Bounds, StoredTensor
from shardwise.torch.weight_names import WeightReader, names_in_file

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FILE_BYTES = 5 * 10**9  # of the tensors of one file, as transformers writes them


def load_safetensors(
    path: str | PathLike[str],
    like: Mapping[str, Array | ShapeDtypeStruct],
    *,
    rename: Callable[[str], str] = lambda name: name,
    fused: FusedProjections = NOT_FUSED,
    ignore: str | None = None,
    cast: bool = False,
) -> dict[str, Array]:
    """Read weights into sharded arrays. Each shard is read alone: no process holds a whole tensor that is sharded.

    Args:
        path: a safetensors file; or a folder with `model.safetensors`, or with several files and
            `model.safetensors.index.json`, as transformers writes them.
        like: the parameters by name: arrays, or ShapeDtypeStructs with shardings. `functional` of a module on the
            `meta` device returns such types. Without a sharding, an array is on the default device.
        rename: returns the name in the file of a parameter's name, such as one without a prefix.
        fused: the fused projections of a function whose parts are stored apart: `function.fused`.
        ignore: a regular expression for names of tensors that are not parameters, and are not read.
        cast: whether dtypes may differ. Values then have the dtype of `like`.

    Returns:
        Arrays with the names, shapes, dtypes and shardings of `like`.

    Raises:
        FileNotFoundError: if there is no such file.
        TorchModuleError: if the file is damaged, lacks a parameter or has others, or if a shape or a dtype differs.
    """
    reader = WeightReader("load_safetensors", path, rename, fused, ignore, cast)
    with ExitStack() as opened:
        file_of = _files(Path(path))
        names = reader.check_names(like, file_of)
        files = {file: _open(file, opened) for file in dict.fromkeys(file_of.values())}
        return {
            name: reader.read(name, _stored_tensor(files[file_of[stored]], stored), like[name])
            for name, stored in names.items()
        }


def _files(path: Path) -> dict[str, Path]:
    """Return the file of each tensor."""
    if path.is_dir() and (path / _INDEX).exists():
        try:
            index = json.loads((path / _INDEX).read_text())["weight_map"]
            return {str(name): path / Path(file).name for name, file in index.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TorchModuleError(f"load_safetensors: {path / _INDEX} has no map of weights: {error!r}") from None
    file = path / _FILE if path.is_dir() else path
    if not file.exists():
        wanted = f"{_FILE} or {_INDEX} in {path}" if path.is_dir() else str(path)
        raise FileNotFoundError(f"load_safetensors: there is no {wanted}")
    with ExitStack() as opened:
        return dict.fromkeys(_open(file, opened).keys(), file)


def _open(file: Path, opened: ExitStack) -> safe_open:
    """Open a file, until the end of the stack's block."""
    try:
        return opened.enter_context(safe_open(file, framework="pt"))
    except FileNotFoundError:
        raise FileNotFoundError(f"load_safetensors: there is no {file}, which the index names") from None
    except (SafetensorError, OSError) as error:
        raise TorchModuleError(f"load_safetensors: {file} is not a complete safetensors file: {error}") from None


def _stored_tensor(file: safe_open, name: str) -> StoredTensor:
    view = file.get_slice(name)
    shape = tuple(view.get_shape())

    def read(bounds: Bounds) -> np.ndarray[Any, Any]:
        block = view[tuple(slice(*each) for each in bounds)] if shape else file.get_tensor(name)
        return to_numpy(block.contiguous())

    return StoredTensor(shape, read)


def save_safetensors(
    path: str | PathLike[str],
    params: Mapping[str, Array],
    *,
    rename: Callable[[str], str] = lambda name: name,
    fused: FusedProjections = NOT_FUSED,
    file_bytes: int = _FILE_BYTES,
) -> None:
    """Write weights to a folder, as transformers does: one file, or several with an index if they are larger.

    The tensors of one file are in host memory at a time. All values must be addressable: in several processes, save a
    checkpoint instead.

    Args:
        path: the folder, which is created.
        params: the arrays by name.
        rename: returns the name in the file of a parameter's name.
        fused: the fused projections of a function whose parts are stored apart: `function.fused`.
        file_bytes: the bytes of the tensors in one file.

    Raises:
        TorchModuleError: if an array has shards in other processes, if a part of a fused parameter is missing, or if
            two parameters have one name.
        OSError: if a file cannot be written.
    """
    leaves_of = names_in_file("save_safetensors", params, rename, fused)
    sizes = {name: sum(params[leaf].nbytes for leaf in leaves) for name, leaves in leaves_of.items()}
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    groups = list(_groups(sizes, file_bytes))
    files = [_FILE] if len(groups) == 1 else [_part_name(index, len(groups)) for index in range(len(groups))]
    for file, group in zip(files, groups, strict=True):
        tensors: dict[str, torch.Tensor] = {}
        for name in group:
            values = {leaf: np.array(params[leaf]) for leaf in leaves_of[name]}
            parameter = fused.parameter_of(leaves_of[name][0])
            tensors[name] = from_numpy(next(iter(values.values())) if parameter is None else parameter.join(values))
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if len(groups) > 1:
        weight_map = {name: file for file, group in zip(files, groups, strict=True) for name in group}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (folder / _INDEX).write_text(json.dumps(index, indent=2))


def _groups(sizes: Mapping[str, int], file_bytes: int) -> Iterator[list[str]]:
    """Yield the names of the tensors of each file, by their bytes."""
    group: list[str] = []
    used = 0
    for name, size in sizes.items():
        if group and used + size > file_bytes:
            yield group
            group, used = [], 0
        group.append(name)
        used += size
    yield group


def _part_name(index: int, count: int) -> str:
    return f"model-{index + 1:05d}-of-{count:05d}.safetensors"
