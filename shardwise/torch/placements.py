"""DTensor placements as specs, and specs as placements and plans of `parallelize_module`.

PyTorch places a tensor by one placement per dim of a DeviceMesh, JAX by the mesh axes of each dim of the array:

    mesh dims ("data", "model"), [Shard(0), Shard(1)]       P("data", "model")
    [Shard(0), Shard(0)]                                    P(("data", "model"))
    [Replicate(), Shard(1)]                                 P(None, "model")
    [Partial(), Replicate()]                                P(unreduced={"data"})
    [_StridedShard(0, split_factor=2), Shard(0)]            P(("model", "data"))

The last is FSDP of a dim that tensor parallelism has sharded before. If several mesh dims shard a dim that they do not
divide, the borders of the shards differ: DTensor splits 6 rows over 2 × 2 into 2, 1, 2, 1, and a spec into 2, 2, 2, 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.placement_types import _StridedShard

from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import StrategyError
from shardwise.torch.module_paths import columns_dim, rows_dim


def placements_to_spec(placements: Sequence[Placement], mesh_dim_names: Sequence[str], ndim: int) -> PartitionSpec:
    """Return the spec of a DTensor.

    Args:
        placements: the placement along each dim of the DeviceMesh: `tensor.placements`.
        mesh_dim_names: the names of these dims, which are mesh axes here: `tensor.device_mesh.mesh_dim_names`.
        ndim: the rank of the tensor.

    Returns:
        The spec. A dim that is sharded along several mesh dims has their names in order, those of a strided shard, such
        as FSDP's of a tensor-parallel dim, last. A sum that is `Partial()` is unreduced.

    Raises:
        StrategyError: if the numbers differ, if a dim does not exist, or if a placement has no spec.

    Example:
        >>> placements_to_spec([Shard(0), Replicate()], ("data", "model"), 2)
        P('data', None)
    """
    if len(placements) != len(mesh_dim_names):
        raise StrategyError(
            f"placements_to_spec: {len(placements)} placements for the mesh dims {tuple(mesh_dim_names)}: pass one each"
        )
    axes: list[list[tuple[int, str]]] = [[] for _ in range(ndim)]  # by dim: the shards before each, and the name
    unreduced = set()
    for placement, name in zip(placements, mesh_dim_names, strict=True):
        if isinstance(placement, (Shard, _StridedShard)) and -ndim <= placement.dim < ndim:
            axes[placement.dim].append((getattr(placement, "split_factor", 1), name))
        elif isinstance(placement, Partial) and placement.reduce_op == "sum":
            unreduced.add(name)
        elif not isinstance(placement, Replicate):
            raise StrategyError(
                f"placements_to_spec: {placement} along {name!r} has no spec for a tensor of rank {ndim}; these have: "
                "Shard of one of its dims, also strided, Replicate, and Partial of a sum"
            )
    if strided := [names for names in axes if names and min(names)[0] > 1]:
        raise StrategyError(
            f"placements_to_spec: {list(placements)} has a strided shard along {strided[0][0][1]!r} of a dim that no "
            "other mesh dim shards, which no spec has: redistribute the tensor to `Shard` first"
        )
    ordered = [[name for _, name in sorted(names, key=lambda each: each[0])] for names in axes]
    dims = [None if not names else names[0] if len(names) == 1 else tuple(names) for names in ordered]
    return PartitionSpec(*dims, unreduced=unreduced) if unreduced else PartitionSpec(*dims)


def spec_to_placements(spec: PartitionSpec, mesh_dim_names: Sequence[str]) -> list[Placement]:
    """Return the placements of a spec, for `distribute_tensor`.

    Args:
        spec: the spec.
        mesh_dim_names: the names of the dims of the DeviceMesh, in their order.

    Raises:
        StrategyError: if the spec has an axis that the mesh lacks, or an order of axes that placements cannot have:
            along one dim, those of the mesh.

    Example:
        >>> spec_to_placements(P(None, "model"), ("data", "model"))
        [Replicate(), Shard(dim=1)]
    """
    found: dict[str, Placement] = {name: Partial() for name in spec.unreduced}
    for dim, entry in enumerate(spec):
        names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        if list(names) != sorted(names, key=lambda name: _position(name, mesh_dim_names, spec)):
            raise StrategyError(
                f"spec_to_placements: dim {dim} of {spec} has its axes in another order than the mesh dims "
                f"{tuple(mesh_dim_names)}, which placements cannot have"
            )
        found |= {name: Shard(dim) for name in names}
    return [found.get(name, Replicate()) for name in mesh_dim_names]


def _position(name: str, mesh_dim_names: Sequence[str], spec: PartitionSpec) -> int:
    if name not in mesh_dim_names:
        raise StrategyError(f"spec_to_placements: {spec} has the axis {name!r}, and the mesh {tuple(mesh_dim_names)}")
    return list(mesh_dim_names).index(name)


def parallelize_plan(
    module: torch.nn.Module, specs: Mapping[str, PartitionSpec], *, axis: str = "model"
) -> dict[str, Any]:
    """Return the plan of PyTorch's `parallelize_module` for specs of parameters: the reverse of `plan_rules`.

    Args:
        module: the module.
        specs: the spec of each parameter by its name. Other axes than `axis` are left out: they are FSDP's.
        axis: the mesh axis of tensor parallelism.

    Returns:
        `ColwiseParallel()` or `RowwiseParallel()` for each linear layer and embedding that is sharded along `axis`.

    Raises:
        StrategyError: if a parameter is sharded as no style does.
    """
    plan: dict[str, Any] = {}
    for path, submodule in module.named_modules():
        weight = getattr(submodule, "weight", None)
        name = f"{path}.weight" if path else "weight"
        dims = _sharded_dims(specs.get(name), axis)
        for other, _ in submodule.named_parameters(recurse=False):
            full = f"{path}.{other}" if path else other
            if other not in ("weight", "bias") and _sharded_dims(specs.get(full), axis):
                raise StrategyError(f"parallelize_plan: {full!r} is sharded, which no style of PyTorch does")
        if not dims:
            continue
        if not isinstance(submodule, (torch.nn.Linear, torch.nn.Embedding)) or weight is None:
            raise StrategyError(
                f"parallelize_plan: {name!r} of {type(submodule).__name__} is sharded, and styles of PyTorch are for "
                "Linear and Embedding"
            )
        is_columns = dims == [columns_dim(module, name, weight.ndim)]
        if not is_columns and dims != [rows_dim(module, name, weight.ndim)]:
            raise StrategyError(f"parallelize_plan: {name!r} with {specs[name]} is neither columnwise nor rowwise")
        plan[path] = ColwiseParallel() if is_columns else RowwiseParallel()
    return plan


def _sharded_dims(spec: PartitionSpec | None, axis: str) -> list[int]:
    """Return the dims of a spec that are sharded along an axis."""
    entries = () if spec is None else tuple(spec)
    return [dim for dim, entry in enumerate(entries) if entry is not None and (entry == axis or axis in entry)]
