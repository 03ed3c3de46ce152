"""TokenFile: a file of tokens that is read at any position.

Files are read and not mapped. A mapped file that shrinks ends the process by SIGBUS; a read is then
short, which is an error.
"""

import os
import weakref
from pathlib import Path
from typing import Any, final

import numpy as np

from shardwise.base.regular_file import NotRegularFileError, open_regular_file
from shardwise.errors import DataError

_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

NumpyArray = np.ndarray[Any, Any]


@final
class TokenFile:
    """Tokens in a file.

    Args:
        path: the file. One with the suffix `.npy` has a header, others are tokens alone.
        dtype: the dtype of the tokens. Files without a header need it.

    Attributes:
        path: the file.

    Raises:
        DataError: if there is no such file, or if it does not hold tokens of `dtype`.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any] | None):
        self.path, self._given_dtype = path, dtype
        try:
            self._file = open_regular_file(path)
            self._size = os.fstat(self._file.fileno()).st_size
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"TokenSource: there is no file {path}") from None
        except NotRegularFileError as error:
            raise DataError(f"TokenSource: {error}") from None
        except OSError as error:
            raise DataError(f"TokenSource: {path} cannot be read: {error.strerror}") from error
        weakref.finalize(self, self._file.close)
        self._dtype, self._start, self._count = self._layout(dtype)

    def __len__(self) -> int:
        return self._count

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenFile, (self.path, self._given_dtype)

    def read(self, first: int, count: int) -> NumpyArray:
        """Return `count` tokens from number `first` on.

        Raises:
            DataError: if the file has shrunk or cannot be read.
        """
        nbytes = count * self._dtype.itemsize
        try:
            content = self._read_bytes(self._start + first * self._dtype.itemsize, nbytes)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}") from error
        if len(content) < nbytes:
            raise DataError(
                f"{self.path} has shrunk: it had {self._size:,} bytes when it was opened, and has "
                f"{os.fstat(self._file.fileno()).st_size:,} now. Do not change the files of a source while it is read"
            )
        return np.frombuffer(content, self._dtype)

    def _layout(self, dtype: np.dtype[Any] | None) -> tuple[np.dtype[Any], int, int]:
        """Return the dtype, the position of the first token and the number of tokens."""
        if self.path.suffix == ".npy":
            return self._npy_layout(dtype)
        if dtype is None:
            raise DataError(f"TokenSource: {self.path} has no header: pass the dtype of its tokens, such as np.uint16")
        if dtype.kind not in "iu":
            raise DataError(f"TokenSource: tokens are integers, not {dtype}")
        if self._size % dtype.itemsize:
            raise DataError(
                f"{self.path} has {self._size} bytes, which is not a multiple of the {dtype.itemsize} bytes of a token "
                f"of dtype {dtype}: it has another dtype, or it is truncated"
            )
        if not self._size:
            raise DataError(f"{self.path} is empty")
        return dtype.newbyteorder("<"), 0, self._size // dtype.itemsize

    def _npy_layout(self, dtype: np.dtype[Any] | None) -> tuple[np.dtype[Any], int, int]:
        """Return the layout that the header of a `.npy` file describes."""
        try:
            with os.fdopen(os.dup(self._file.fileno()), "rb") as file:
                version = np.lib.format.read_magic(file)
                if version not in _READ_HEADER:
                    raise ValueError(f"its version {version} of the format is unknown")
                shape, _, stored = _READ_HEADER[version](file)
                start = file.tell()
        except Exception as error:  # numpy evaluates the header as Python text, which fails in many ways
            raise DataError(f"{self.path} is not a .npy file of tokens: {error}") from error
        if len(shape) != 1 or stored.kind not in "iu":
            raise DataError(
                f"{self.path} is an array of shape {shape} and dtype {stored}; tokens are a one-dimensional array of "
                "integers"
            )
        if dtype is not None and dtype != stored:
            raise DataError(f"{self.path} has tokens of dtype {stored}, not {dtype}: pass that dtype, or none")
        if shape[0] < 0 or start + shape[0] * stored.itemsize > self._size:
            raise DataError(
                f"{self.path} has {self._size:,} bytes, too few for the {shape[0]:,} tokens of its header: it is "
                "truncated"
            )
        return stored, start, shape[0]

    def _read_bytes(self, offset: int, size: int) -> bytes:
        """Return bytes of the file, fewer at its end. Threads may call it at the same time."""
        if not hasattr(os, "pread"):  # on Windows
            with open_regular_file(self.path) as file:
                file.seek(offset)
                return file.read(size)
        content = os.pread(self._file.fileno(), size, offset)
        while len(content) < size and (
            more := os.pread(self._file.fileno(), size - len(content), offset + len(content))
        ):
            content += more
        return content
