"""Exchange host data between all processes: gather, broadcast, and check that they agree.

Data travels as 32-bit words, so that its bits do not change, whatever its dtype.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.api.jit import jit
from shardwise.base.caches import registered_cache
from shardwise.base.lazy import lazy_module
from shardwise.compiler.ops.reduce.sum import Sum
from shardwise.compiler.shardings.mesh import Mesh, mesh_context
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.execute.process_rows import WORD, NumpyArray, gather_words, process_mesh, row_of_each_process
from shardwise.runtime.client import devices, process_count

if TYPE_CHECKING:
    import hashlib
else:  # 4.5 ms
    hashlib = lazy_module("hashlib")


def gather_rows(x: NumpyArray) -> NumpyArray:
    """Return the arrays of all processes, stacked along a new first dim. They have one shape and dtype."""
    if process_count() == 1:
        return x[None]
    return np.stack([_from_words(row, x) for row in gather_words(_words(x), _all_processes())])


def broadcast_row(x: NumpyArray, is_source: bool) -> NumpyArray:
    """Return the array of the only process whose `is_source` is true.

    Raises:
        ValueError: if not exactly one process is the source.
    """
    words = _words(x)
    row = np.concatenate([np.array([is_source], WORD), words if is_source else np.zeros_like(words)])
    if process_count() > 1:
        with mesh_context.entered(None):
            row = _row_sum(_all_processes())(row_of_each_process(row, _all_processes())).numpy()
    if row[0] != 1:
        raise ValueError(f"broadcast_one_to_all: one process must be the source, not {row[0]}")
    return _from_words(row[1:], x)


def digest(*parts: bytes | NumpyArray) -> NumpyArray:
    """Return a digest of bytes and arrays, to compare data that is too large to send."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).view(np.uint8).data)
    return np.frombuffer(hasher.digest(), WORD)


def check_equal(x: NumpyArray, message: Callable[[], str], error: type[Exception]) -> None:
    """Raise an error on all processes if their arrays differ."""
    rows = gather_rows(x)
    if any(row.tobytes() != rows[0].tobytes() for row in rows):
        raise error(f"{message()}\n  {describe_groups(rows)}")


def describe_groups(rows: NumpyArray) -> str:
    """Return which processes have equal rows, as text."""
    groups: dict[bytes, list[str]] = {}
    for process, row in enumerate(rows):
        groups.setdefault(row.tobytes(), []).append(str(process))
    texts = [" and ".join(group) for group in groups.values()]
    return f"Processes with the same value: {'; '.join(texts)}."


def _all_processes() -> Mesh:
    """Return the mesh of the first device of each process."""
    return process_mesh(tuple(devices()))


@registered_cache(maxsize=1)
def _row_sum(mesh: Mesh) -> Any:
    return jit(Sum((0,)), out_shardings=NamedSharding(mesh, PartitionSpec()))


def _words(x: NumpyArray) -> NumpyArray:
    """Return the bytes of an array as words, with zeros at the end."""
    flat = np.frombuffer(x.tobytes(), np.uint8)
    return np.pad(flat, (0, -len(flat) % WORD.itemsize)).view(WORD)


def _from_words(words: NumpyArray, like: NumpyArray) -> NumpyArray:
    """Return the array whose words these are; it has the dtype and shape of `like`."""
    flat = np.ascontiguousarray(words).view(np.uint8)[: like.nbytes]
    return np.frombuffer(flat.tobytes(), like.dtype).reshape(like.shape)
