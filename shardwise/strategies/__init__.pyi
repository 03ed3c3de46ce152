from shardwise.strategies.accumulate import accumulate_gradients as accumulate_gradients
from shardwise.strategies.activations import (
    context_parallel as context_parallel,
    sequence_parallel as sequence_parallel,
)
from shardwise.strategies.fp8 import FP8Policy as FP8Policy, ProductRow as ProductRow
from shardwise.strategies.fp8_scales import FP8Scales as FP8Scales
from shardwise.strategies.initialize import initialize as initialize
from shardwise.strategies.diloco import (
    LocalState as LocalState,
    LocalUpdates as LocalUpdates,
    local_updates as local_updates,
)
from shardwise.strategies.loss_scale import LossScale as LossScale, all_finite as all_finite, select as select
from shardwise.strategies.memory import offload as offload, remat as remat
from shardwise.strategies.metadata import partition_metadata as partition_metadata
from shardwise.strategies.outer_exchange import OuterExchange as OuterExchange
from shardwise.strategies.outer_server import OuterServer as OuterServer
from shardwise.strategies.outer_momentum import OuterMomentum as OuterMomentum
from shardwise.strategies.parameters import (
    count_bytes as count_bytes,
    data_parallel as data_parallel,
    expert_parallel as expert_parallel,
    fsdp as fsdp,
    like_parameters as like_parameters,
    logical_axes as logical_axes,
    tensor_parallel as tensor_parallel,
)
from shardwise.strategies.precision import PrecisionPolicy as PrecisionPolicy, mixed_precision as mixed_precision
from shardwise.strategies.zero import Zero as Zero, zero as zero
