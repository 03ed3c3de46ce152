"""Batches in host memory: samples stacked along a new first dim, the checks of their leaves, and digests."""

import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from shardwise import tree
from shardwise.api.process_data import digest
from shardwise.errors import DataError
from shardwise.tree_util import KeyPath

NumpyArray = np.ndarray[Any, Any]
_DIGEST_BYTES = 2**16  # of each leaf: samples in another order differ in the first rows


def stack_samples(samples: Sequence[Any], names: Sequence[str]) -> Any:
    """Return the batch of samples with equal structures, shapes and dtypes. `names` says which they are, for errors.

    Raises:
        DataError: if a sample differs from the first one, or a leaf is not numeric.
    """
    paths, structure = tree.flatten_with_path(samples[0])
    columns: list[list[NumpyArray]] = [[] for _ in paths]
    for sample, name in zip(samples, names, strict=True):
        leaves, other = tree.flatten(sample)
        if other != structure:
            raise DataError(
                f"{name} has the structure {other}, but {names[0]} has {structure}: the samples of a batch must agree"
            )
        for (path, _), leaf, column in zip(paths, leaves, columns, strict=True):
            array = as_numeric(leaf, name, path)
            first = column[0] if column else array
            if (array.shape, array.dtype) != (first.shape, first.dtype):
                raise DataError(
                    f"{name}: the leaf {leaf_name(path)} has shape {array.shape} and dtype {array.dtype}, but that of "
                    f"{names[0]} has shape {first.shape} and dtype {first.dtype}: a batch needs samples of one type. "
                    "Pad or pack them (`data.pack`)"
                )
            column.append(array)
    return structure.unflatten([np.stack(column) for column in columns])


def check_batch(batch: object, name: str) -> tuple[Any, int]:
    """Return a batch with numpy arrays as leaves, and the number of its rows.

    Raises:
        DataError: if there is no leaf, if a leaf is not numeric or has no dims, or if leaves differ in their first dim.
    """
    paths, structure = tree.flatten_with_path(batch)
    arrays = [as_numeric(leaf, name, path) for path, leaf in paths]
    if not arrays:
        raise DataError(f"{name} has no arrays: {batch!r}")
    for (path, _), array in zip(paths, arrays, strict=True):
        if array.ndim == 0:
            raise DataError(
                f"{name}: the leaf {leaf_name(path)} has no dims: a batch has rows along the first dim. Pass "
                "batch_size, if the source yields single samples"
            )
        if len(array) != len(arrays[0]):
            raise DataError(
                f"{name} is ragged: the leaf {leaf_name(path)} has {len(array)} rows, but {leaf_name(paths[0][0])} has "
                f"{len(arrays[0])}"
            )
    return structure.unflatten(arrays), len(arrays[0])


def batch_digest(batch: object) -> str:
    """Return a digest of the types and of the first bytes of the leaves, which are numpy arrays."""
    leaves, structure = tree.flatten(batch)
    types = [(leaf.shape, str(leaf.dtype)) for leaf in leaves]
    rows = [leaf[: 1 + _DIGEST_BYTES * len(leaf) // max(1, leaf.nbytes)] for leaf in leaves]
    return digest(f"{structure} {types}".encode(), *(part.tobytes()[:_DIGEST_BYTES] for part in rows)).tobytes().hex()


def as_numeric(leaf: object, name: str, path: KeyPath) -> NumpyArray:
    """Return a leaf, such as a number, a numpy array or a tensor of another library, as a numpy array."""
    try:
        array = _as_numpy(leaf)
    except Exception as error:
        raise DataError(f"{name}: the leaf {leaf_name(path)} cannot be converted to a numpy array: {error}") from error
    if array.dtype.kind in "OSUMm":  # objects, texts and times; the floats of ml_dtypes have the kind V
        raise DataError(
            f"{name}: the leaf {leaf_name(path)} is {leaf!r:.80}, with dtype {array.dtype}: arrays on devices hold "
            "numbers and booleans. Remove the leaf, or convert it in the source"
        )
    return array


def _as_numpy(leaf: Any) -> NumpyArray:
    try:
        return np.asarray(leaf)
    except TypeError:
        kind, _, name = str(getattr(leaf, "dtype", "")).partition(".")
        if kind != "torch" or not hasattr(ml_dtypes, name):
            raise
        # A torch tensor in bfloat16 or a float of 8 bits, which torch does not convert.
        dtype = np.dtype(getattr(ml_dtypes, name))
        integer = getattr(sys.modules["torch"], {1: "uint8", 2: "int16"}[dtype.itemsize])
        return np.asarray(leaf.view(integer)).view(dtype)


def leaf_name(path: KeyPath) -> str:
    """Return the path of a leaf for errors."""
    return repr(tree.keystr(path, simple=True, separator="/")) if path else "of the batch"
