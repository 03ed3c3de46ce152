"""The libraries that the suite `checkpoints` compares: each creates arrays, saves and restores them.

Only the library that a process measures is imported there.
"""

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

Arrays = dict[str, Any]
Spec = tuple[str | None, ...]


class Library(ABC):
    """A library that saves and restores arrays by name."""

    @abstractmethod
    def arrays(self, count: int, shape: tuple[int, ...], spec: Spec) -> Arrays:
        """Return arrays of random float32 numbers."""

    @abstractmethod
    def save(self, path: Path, arrays: Arrays) -> Callable[[], object]:
        """Start to save; return a function that waits until everything is on the disk."""

    @abstractmethod
    def restore(self, path: Path, like: Arrays) -> Arrays:
        """Restore arrays of the same types and shardings, and wait until they are there."""

    @abstractmethod
    def nbytes(self, array: Any) -> int:
        """Return the host memory of an array, with its replicas."""


class _Sharded(Library):
    """Arrays of JAX or Shardwise on a mesh of 8 devices."""

    def __init__(self, module: str = "jax"):
        self.jax = importlib.import_module(module)

    def arrays(self, count: int, shape: tuple[int, ...], spec: Spec) -> Arrays:
        sharding = self.jax.NamedSharding(self.jax.make_mesh((8,), ("data",)), self.jax.P(*spec))
        host = _random(shape)
        arrays = {f"array{number}": self.jax.device_put(host, sharding) for number in range(count)}
        return self.jax.block_until_ready(arrays)  # type: ignore[no-any-return]

    def types(self, arrays: Arrays) -> Arrays:
        return {name: self.jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in arrays.items()}

    def nbytes(self, array: Any) -> int:
        return sum(shard.data.nbytes for shard in array.addressable_shards)


@final
class Shardwise(_Sharded):
    def __init__(self) -> None:
        super().__init__("shardwise")
        self._checkpoints = importlib.import_module("shardwise.checkpoints")

    def save(self, path: Path, arrays: Arrays) -> Callable[[], object]:
        return self._checkpoints.save(path, arrays).wait  # type: ignore[no-any-return]

    def restore(self, path: Path, like: Arrays) -> Arrays:
        return self.jax.block_until_ready(  # type: ignore[no-any-return]
            self._checkpoints.restore(path, self.types(like))
        )


@final
class Orbax(_Sharded):
    def __init__(self) -> None:
        super().__init__()
        self._orbax = importlib.import_module("orbax.checkpoint")

    def save(self, path: Path, arrays: Arrays) -> Callable[[], object]:
        checkpointer = self._orbax.StandardCheckpointer()
        checkpointer.save(path, arrays)
        return checkpointer.wait_until_finished  # type: ignore[no-any-return]

    def restore(self, path: Path, like: Arrays) -> Arrays:
        restored = self._orbax.StandardCheckpointer().restore(path, self.types(like))
        return self.jax.block_until_ready(restored)  # type: ignore[no-any-return]


@final
class Numpy(_Sharded):
    """The same bytes, one file for each array, without checksums."""

    def save(self, path: Path, arrays: Arrays) -> Callable[[], object]:
        path.mkdir()
        for name, array in arrays.items():
            with open(path / f"{name}.npy", "wb") as file:
                np.save(file, np.asarray(array))
                file.flush()
                os.fsync(file.fileno())
        return lambda: None

    def restore(self, path: Path, like: Arrays) -> Arrays:
        arrays = {name: self.jax.device_put(np.load(path / f"{name}.npy"), x.sharding) for name, x in like.items()}
        return self.jax.block_until_ready(arrays)  # type: ignore[no-any-return]


@final
class TorchDcp(Library):
    """PyTorch's distributed checkpoint: one process has no shards, so each array is one tensor.

    Args:
        replicas: the number of tensors to restore of each array; all but the first are copies of it.
    """

    def __init__(self, replicas: int = 1) -> None:
        self._replicas = replicas
        self._torch = importlib.import_module("torch")
        self._dcp = importlib.import_module("torch.distributed.checkpoint")

    def arrays(self, count: int, shape: tuple[int, ...], spec: Spec) -> Arrays:
        host = self._torch.from_numpy(_random(shape))
        return {f"array{number}": host.clone() for number in range(count)}

    def save(self, path: Path, arrays: Arrays) -> Callable[[], object]:
        writer = self._dcp.FileSystemWriter(path, thread_count=os.cpu_count() or 1)
        return self._dcp.async_save(arrays, storage_writer=writer).result  # type: ignore[no-any-return]

    def restore(self, path: Path, like: Arrays) -> Arrays:
        arrays = {name: self._torch.empty_like(x) for name, x in like.items()}
        self._dcp.load(arrays, storage_reader=self._dcp.FileSystemReader(path))
        replicas = {
            f"{name}, replica {number}": x.clone() for name, x in arrays.items() for number in range(1, self._replicas)
        }
        return arrays | replicas

    def nbytes(self, array: Any) -> int:
        return int(array.nbytes) * self._replicas


LIBRARIES: dict[str, Callable[[], Library]] = {
    "shardwise": Shardwise,
    "orbax": Orbax,
    "torch": TorchDcp,
    "torch-replicas": partial(TorchDcp, 8),
    "numpy": Numpy,
}


def _random(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).random(shape, np.float32)
