"""layer_scans: a context in which scans over layers run in another way, such as as a pipeline over a mesh axis.

Its value is a function of a scan's body, op, captured values, first carry and stacked arrays. It returns the last
carry, or None for a scan that runs as usual. The value is part of the cache key of jitted functions.
"""

from shardwise.api.user_context import UserContext

layer_scans = UserContext(None)
