"""Random meshes and specs, as plain data: a mesh is a dict of axis sizes, a spec a tuple of entries."""

from collections.abc import Sequence
from random import Random
from typing import Any

from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import UNCONSTRAINED, PartitionSpec

Spec = tuple[Any, ...]

MESHES = ((8,), (4, 2), (2, 4), (2, 2, 2), (3, 2), (5,), (7,), (6,), (1, 4), (2,), (4,), (2, 3), (2, 1, 3))
NAMES = ("x", "a", "m")  # not sorted, so that nothing can depend on the order of names


def random_mesh(rng: Random) -> dict[str, int]:
    """Return a mesh of one to three axes and at most eight devices."""
    sizes = rng.choice(MESHES)
    return dict(zip(NAMES, sizes, strict=False))


def abstract(mesh: dict[str, int]) -> AbstractMesh:
    return AbstractMesh(tuple(mesh.values()), tuple(mesh))


def random_spec(rng: Random, shape: Sequence[int], mesh: dict[str, int], unconstrained: bool = False) -> Spec:
    """Return one entry per dim: None, an axis, a tuple of axes in any order, or (if allowed) UNCONSTRAINED."""
    entries: list[list[str]] = [[] for _ in shape]
    for axis in rng.sample(list(mesh), len(mesh)):
        if shape and rng.random() < 0.7:
            rng.choice(entries).append(axis)
    spec: list[Any] = [None if not e else e[0] if len(e) == 1 and rng.random() < 0.8 else tuple(e) for e in entries]
    if unconstrained:
        spec = [UNCONSTRAINED if entry is None and rng.random() < 0.4 else entry for entry in spec]
    return tuple(spec)


def partition_spec(spec: Spec) -> PartitionSpec:
    return PartitionSpec(*spec)


def spec_text(spec: Spec | None) -> str:
    return "None" if spec is None else repr(partition_spec(spec))
