from shardwise.api.callbacks.callback import io_callback as io_callback
from shardwise.api.config_contexts import disable_x64 as disable_x64, enable_x64 as enable_x64
from shardwise.experimental import (
    checkify as checkify,
    colocated_python as colocated_python,
    custom_partitioning as custom_partitioning,
    hijax as hijax,
    layout as layout,
    maps as maps,
    mesh_utils as mesh_utils,
    multihost_utils as multihost_utils,
    ops as ops,
    pjit as pjit,
    shard_map as shard_map,
    sparse as sparse,
)
