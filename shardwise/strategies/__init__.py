"""Strategies: functions from a tree of parameters and a mesh to shardings, to pass to `device_put` and `jit`."""

from shardwise.lazy import set_public_names
from shardwise.strategies.initialize import initialize as initialize
from shardwise.strategies.parameters import count_bytes as count_bytes
from shardwise.strategies.parameters import data_parallel as data_parallel
from shardwise.strategies.parameters import expert_parallel as expert_parallel
from shardwise.strategies.parameters import fsdp as fsdp
from shardwise.strategies.parameters import like_parameters as like_parameters
from shardwise.strategies.parameters import logical_axes as logical_axes
from shardwise.strategies.parameters import tensor_parallel as tensor_parallel
from shardwise.strategies.zero import Zero as Zero
from shardwise.strategies.zero import zero as zero

__all__ = [
    "Zero",
    "count_bytes",
    "data_parallel",
    "expert_parallel",
    "fsdp",
    "initialize",
    "like_parameters",
    "logical_axes",
    "tensor_parallel",
    "zero",
]

set_public_names(__name__, __all__)
