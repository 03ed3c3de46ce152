"""Checkpoints: save and restore pytrees of sharded arrays, on any mesh and any number of processes.

The name is plural because `shardwise.checkpoint` is JAX's function for rematerialization.

The public names are listed in `__init__.pyi`.
"""

from shardwise.base.lazy import lazy_namespace
from shardwise.checkpoints.recover import recover as recover  # its module has the same name
from shardwise.checkpoints.restore import restore as restore  # its module has the same name
from shardwise.checkpoints.save import save as save  # its module has the same name
from shardwise.checkpoints.verify import verify as verify  # its module has the same name

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
