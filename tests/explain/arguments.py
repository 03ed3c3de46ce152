"""Types of sharded arguments."""

import numpy as np

import shardwise as sw
from shardwise.sharding import NamedSharding


def shaped(mesh, spec, *shape):
    return sw.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, spec))
