"""The libraries that the suite `checkpoints` compares: each creates arrays, saves and restores them.

Only the library that a process measures is imported there.
"""

import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

Arrays = dict[str, Any]


@final
@dataclass(frozen=True)
class Tree:
    """Arrays of float32 numbers: how many, their shape, and their spec on a mesh with the axis `data` of 8 devices."""

    count: int
    shape: tuple[int, ...]
    spec: tuple[str | None, ...]

    @property
    def names(self) -> list[str]:
        return [f"array{index}" for index in range(self.count)]

    def elements(self) -> np.ndarray[Any, Any]:
        """Return the elements of each array: random numbers, always the same."""
        return np.random.default_rng(0).random(self.shape, np.float32)


class Library(ABC):
    """A library that saves and restores arrays by name."""

    @abstractmethod
    def arrays(self, tree: Tree) -> Arrays:
        """Create the arrays."""

    @abstractmethod
    def save(self, path: Path, arrays: Arrays) -> Callable[[], object]:
        """Start to save; return a function that waits until everything is on the disk."""

    @abstractmethod
    def restore(self, path: Path, tree: Tree) -> Arrays:
        """Restore the arrays, and wait until they are there."""

    @abstractmethod
    def nbytes(self, array: Any) -> int:
        """Return the host memory of an array, with its replicas."""


class _Sharded(Library):
    """Arrays of JAX or Shardwise on a mesh of 8 devices."""

    def __init__(self, module: str = "jax"):
        self.jax = importlib.import_module(module)

    def sharding(self, tree: Tree) -> Any:
        return self.jax.NamedSharding(self.jax.make_mesh((8,), ("data",)), self.jax.P(*tree.spec))

    def arrays(self, tree: Tree) -> Arrays:
        host, sharding = tree.elements(), self.sharding(tree)
        arrays = {name: self.jax.device_put(host, sharding) for name in tree.names}
        return self.jax.block_until_ready(arrays)  # type: ignore[no-any-return]

    def types(self, tree: Tree) -> Arrays:
        type = self.jax.ShapeDtypeStruct(tree.shape, np.float32, sharding=self.sharding(tree))
        return dict.fromkeys(tree.names, type)

    def nbytes(self, array: Any) -> int:
        return sum(shard.data.nbytes for shard in array.addressable_shards)


@final
class Shardwise(_Sharded):
    def __init__(self) -> None:
        super().__init__("shardwise")
        self._checkpoints = importlib.import_module("shardwise.checkpoints")

    def save(self, path: Path, arrays: Arrays) -> Callable[[], object]:
        return self._checkpoints.save(path, arrays).wait  # type: ignore[no-any-return]

    def restore(self, path: Path, tree: Tree) -> Arrays:
        return self.jax.block_until_ready(  # type: ignore[no-any-return]
            self._checkpoints.restore(path, self.types(tree))
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

    def restore(self, path: Path, tree: Tree) -> Arrays:
        restored = self._orbax.StandardCheckpointer().restore(path, self.types(tree))
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

    def restore(self, path: Path, tree: Tree) -> Arrays:
        sharding = self.sharding(tree)
        arrays = {name: self.jax.device_put(np.load(path / f"{name}.npy"), sharding) for name in tree.names}
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

    def arrays(self, tree: Tree) -> Arrays:
        host = self._torch.from_numpy(tree.elements())
        return {name: host.clone() for name in tree.names}

    def save(self, path: Path, arrays: Arrays) -> Callable[[], object]:
        writer = self._dcp.FileSystemWriter(path, thread_count=os.cpu_count() or 1)
        return self._dcp.async_save(arrays, storage_writer=writer).result  # type: ignore[no-any-return]

    def restore(self, path: Path, tree: Tree) -> Arrays:
        arrays = {name: self._torch.empty(tree.shape) for name in tree.names}
        self._dcp.load(arrays, storage_reader=self._dcp.FileSystemReader(path))
        replicas = {
            f"{name}, replica {index}": x.clone() for name, x in arrays.items() for index in range(1, self._replicas)
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
