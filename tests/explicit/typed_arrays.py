"""Arrays with shardings in their types, on the current mesh."""

import shardwise as sw
from shardwise.sharding import PartitionSpec as P


def put(x, *spec, **sums):
    """Put `x` on the current mesh; `sums` are the unreduced and reduced axes."""
    return sw.device_put(x, P(*spec, **sums))


def type_text(x):
    """Return the type of `x` as text: `f32[8@X,4]`."""
    return str(sw.typeof(x))
