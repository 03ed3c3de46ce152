"""A rank of torch.distributed that writes its local shards of DTensors, for tests/torch/test_placements.py."""

import itertools
import sys

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, _StridedShard

# Shapes, the shape of the mesh, and placements.
CASES: list[tuple[tuple[int, int], tuple[int, ...], list[Placement]]] = [
    *(((6, 8), (2, 2), list(each)) for each in itertools.product([Shard(0), Shard(1), Replicate()], repeat=2)),
    ((8, 3), (2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
    *(((5, 7), (2, 2), list(each)) for each in [(Shard(0), Shard(1)), (Replicate(), Shard(1)), (Shard(1), Shard(0))]),
    *((shape, (4,), [Shard(dim)]) for shape in [(5, 7), (1, 9), (3, 2)] for dim in (0, 1)),  # some shards are empty
]
CASES.remove(((6, 8), (2, 2), [Shard(0), Shard(0)]))  # 6 rows over 4 devices: DTensor has 2, 1, 2, 1, a spec 2, 2, 2, 0
CASES.append(((8, 6), (2, 2), [Shard(0), Shard(0)]))


def main() -> None:
    """Write the local shards of all cases to the folder that the command line names."""
    distributed.init_process_group("gloo")
    meshes = {shape: init_device_mesh("cpu", shape) for shape in ((2, 2), (4,))}
    shards = []
    for shape, mesh_shape, placements in CASES:
        tensor, mesh = torch.arange(shape[0] * shape[1]).reshape(shape), meshes[mesh_shape]
        if isinstance(placements[0], _StridedShard):  # as FSDP2 does: shards of tensor parallelism are sharded again
            shards.append(tensor.chunk(2)[mesh.get_local_rank(1)].chunk(2)[mesh.get_local_rank(0)])
            strided = DTensor.from_local(shards[-1], mesh, placements, shape=tensor.shape, stride=tensor.stride())
            assert torch.equal(strided.full_tensor(), tensor)
        else:
            shards.append(distribute_tensor(tensor, mesh, placements).to_local())
    torch.save(shards, f"{sys.argv[1]}/{distributed.get_rank()}.pt")
    distributed.destroy_process_group()
