from shardwise.api.callbacks.callback import io_callback as io_callback
from shardwise.api.config_contexts import disable_x64 as disable_x64, enable_x64 as enable_x64
from shardwise.experimental import (
    checkify as checkify,
    colocated_python as colocated_python,
    custom_partitioning as custom_partitioning,
    hijax as hijax,
    jet as jet,
    key_reuse as key_reuse,
    layout as layout,
    maps as maps,
    mesh_utils as mesh_utils,
    mosaic as mosaic,
    multihost_utils as multihost_utils,
    ode as ode,
    ops as ops,
    pallas as pallas,
    pjit as pjit,
    random as random,
    rnn as rnn,
    shard_map as shard_map,
    sparse as sparse,
)
