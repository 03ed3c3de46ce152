"""Arrays from files, buffers and strings."""

from os import PathLike
from typing import Any, BinaryIO, NoReturn

import ml_dtypes
import numpy as np

from shardwise.base.docstrings import Family, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.numpy.creation import array
from shardwise.typing import DTypeLike

_UNSUPPORTED = Family({"*args": "ignored.", "**kwargs": "ignored."}, returns="Never.")


def load(file: str | PathLike[str] | BinaryIO, *args: Any, **kwargs: Any) -> Array:
    """Load an array from a file that `save` or `numpy.save` wrote.

    Args:
        file: a path or a binary file object.
        *args: further arguments of `numpy.load`.
        **kwargs: further arguments of `numpy.load`.

    Returns:
        The array. A file of several arrays, written by `savez`, gives numpy's `NpzFile`.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the file holds pickled objects and `allow_pickle` is not set.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> jnp.save(file, jnp.arange(3))
        >>> _ = file.seek(0)
        >>> jnp.load(file)
        Array([0, 1, 2], dtype=int32)
    """
    loaded = np.load(file, *args, **kwargs)
    if not isinstance(loaded, np.ndarray):
        return loaded
    # numpy saves bfloat16 as raw data of 2 bytes, dtype V2.
    return array(loaded.view(ml_dtypes.bfloat16) if loaded.dtype == np.dtype("V2") else loaded)


def frombuffer(buffer: Any, dtype: DTypeLike = float, count: int = -1, offset: int = 0) -> Array:
    """Create a 1-D array from the bytes of a buffer.

    Args:
        buffer: an object with the buffer interface, such as `bytes`.
        dtype: the dtype of the elements in the buffer.
        count: the number of elements to read; all if -1.
        offset: the position of the first byte.

    Returns:
        A 1-D array.

    Raises:
        ValueError: if the buffer is too small, or its size is not a multiple of the element size.

    Example:
        >>> jnp.frombuffer(b"abc", dtype=jnp.uint8)
        Array([97, 98, 99], dtype=uint8)
    """
    return array(np.frombuffer(buffer, dtype, count, offset))


def fromstring(string: str, dtype: DTypeLike = float, count: int = -1, *, sep: str) -> Array:
    """Create a 1-D array from numbers in a string.

    Args:
        string: the text.
        dtype: the dtype of the numbers.
        count: the number of elements to read; all if -1.
        sep: the separator between numbers.

    Returns:
        A 1-D array.

    Raises:
        ValueError: if the text holds anything but numbers and separators, or if `sep` is empty.

    Example:
        >>> jnp.fromstring("1 2 3", dtype=int, sep=" ")
        Array([1, 2, 3], dtype=int32)
    """
    return array(np.fromstring(string, dtype, count, sep=sep))


@documented(_UNSUPPORTED)
def fromfile(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise NotImplementedError: reading a file is not a pure function.

    Under `jit` the file would be read only once, when the function is traced.

    Raises:
        NotImplementedError: always. Use `jnp.asarray(np.fromfile(...))`.

    Example:
        >>> jnp.fromfile("numbers")
        Traceback (most recent call last):
        NotImplementedError: fromfile: ...
    """
    raise NotImplementedError("fromfile: not supported; use `jnp.asarray(np.fromfile(...))`")


@documented(_UNSUPPORTED)
def fromiter(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise NotImplementedError: consuming an iterator is not a pure function.

    Under `jit` the iterator would be consumed only once, when the function is traced.

    Raises:
        NotImplementedError: always. Use `jnp.asarray(np.fromiter(...))`.

    Example:
        >>> jnp.fromiter(iter([1]), int)
        Traceback (most recent call last):
        NotImplementedError: fromiter: ...
    """
    raise NotImplementedError("fromiter: not supported; use `jnp.asarray(np.fromiter(...))`")
