"""Random numbers from PRNG keys: the same bits as in JAX for the same key, whatever the sharding of the result.

The public names are listed in `__init__.pyi`.
"""

from shardwise.base.lazy import lazy_namespace
from shardwise.random.choice import choice as choice  # its module has the same name
from shardwise.random.gamma import gamma as gamma  # its module has the same name
from shardwise.random.normal import normal as normal  # its module has the same name
from shardwise.random.uniform import uniform as uniform  # its module has the same name

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
