"""numpy.linalg for arrays that may be sharded.

The last two dims of an operand hold matrices, the dims before them are batch dims. If batch dims are sharded, each
device decomposes the matrices of its own shard.

The public names are listed in `__init__.pyi`.
"""

from shardwise.base.lazy import lazy_namespace

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
