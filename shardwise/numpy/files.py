"""Arrays from files, buffers and text, and to files."""

from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from shardwise.numpy.creation import array


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """The array in a file that `save` wrote; arguments are those of numpy's. Of a file of `savez`, numpy's arrays.

    >>> import io
    >>> file = io.BytesIO()
    >>> jnp.save(file, jnp.arange(3))
    >>> _ = file.seek(0)
    >>> jnp.load(file)
    Array([0, 1, 2], dtype=int32)
    """
    found = np.load(file, *args, **kwargs)
    if not isinstance(found, np.ndarray):
        return found
    # numpy does not know bfloat16, and writes its two bytes.
    return array(found.view(ml_dtypes.bfloat16) if found.dtype == np.dtype("V2") else found)


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Any:
    """The elements whose bytes lie in a buffer, from byte `offset` on: `count` of them, or all.

    >>> jnp.frombuffer(b"abc", dtype=jnp.uint8)
    Array([97, 98, 99], dtype=uint8)
    """
    return array(np.frombuffer(buffer, dtype, count, offset))


def fromstring(string: str, dtype: Any = float, count: int = -1, *, sep: str) -> Any:
    """The numbers in a text, with `sep` between them: `count` of them, or all.

    >>> jnp.fromstring("1 2 3", dtype=int, sep=" ")
    Array([1, 2, 3], dtype=int32)
    """
    return array(np.fromstring(string, dtype, count, sep=sep))


def fromfile(*args: Any, **kwargs: Any) -> NoReturn:
    """Not here: reading a file is no function of arrays, and would be done once, while a program is traced.

    >>> jnp.fromfile("numbers")
    Traceback (most recent call last):
    NotImplementedError: fromfile: ...
    """
    raise NotImplementedError("fromfile: read with numpy, and make an array of that: `asarray(np.fromfile(...))`")


def fromiter(*args: Any, **kwargs: Any) -> NoReturn:
    """Not here: an iterator gives its elements once, while a program may be traced often.

    >>> jnp.fromiter(iter([1]), int)
    Traceback (most recent call last):
    NotImplementedError: fromiter: ...
    """
    raise NotImplementedError("fromiter: read with numpy, and make an array of that: `asarray(np.fromiter(...))`")
