"""attention_calls: a context in which `dot_product_attention` runs in another way, such as over a sharded sequence.

Its value is a function of query, key, value and AttentionOptions. It returns the result, or None for a call that runs
as usual. The value is part of the cache key of jitted functions.
"""

from shardwise.api.user_context import UserContext

attention_calls = UserContext(None)
