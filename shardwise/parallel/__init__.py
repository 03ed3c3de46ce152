"""Building blocks of parallel models: differentiable functions that communicate over a named mesh axis."""

from shardwise.lazy import set_public_names

__all__: list[str] = []

set_public_names(__name__, __all__)
