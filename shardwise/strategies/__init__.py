"""Strategies: functions from a tree of parameters and a mesh to shardings, and transformations of training steps."""

from shardwise.base.lazy import set_public_names
from shardwise.strategies.accumulate import accumulate_gradients as accumulate_gradients
from shardwise.strategies.activations import context_parallel as context_parallel
from shardwise.strategies.activations import sequence_parallel as sequence_parallel
from shardwise.strategies.initialize import initialize as initialize
from shardwise.strategies.loss_scale import LossScale as LossScale
from shardwise.strategies.loss_scale import all_finite as all_finite
from shardwise.strategies.loss_scale import select as select
from shardwise.strategies.memory import offload as offload
from shardwise.strategies.memory import remat as remat
from shardwise.strategies.metadata import partition_metadata as partition_metadata
from shardwise.strategies.parameters import count_bytes as count_bytes
from shardwise.strategies.parameters import data_parallel as data_parallel
from shardwise.strategies.parameters import expert_parallel as expert_parallel
from shardwise.strategies.parameters import fsdp as fsdp
from shardwise.strategies.parameters import like_parameters as like_parameters
from shardwise.strategies.parameters import logical_axes as logical_axes
from shardwise.strategies.parameters import tensor_parallel as tensor_parallel
from shardwise.strategies.precision import PrecisionPolicy as PrecisionPolicy
from shardwise.strategies.precision import mixed_precision as mixed_precision
from shardwise.strategies.zero import Zero as Zero
from shardwise.strategies.zero import zero as zero

__all__ = [
    "LossScale",
    "PrecisionPolicy",
    "Zero",
    "accumulate_gradients",
    "all_finite",
    "context_parallel",
    "count_bytes",
    "data_parallel",
    "expert_parallel",
    "fsdp",
    "initialize",
    "like_parameters",
    "logical_axes",
    "mixed_precision",
    "offload",
    "partition_metadata",
    "remat",
    "select",
    "sequence_parallel",
    "tensor_parallel",
    "zero",
]

set_public_names(__name__, __all__)
