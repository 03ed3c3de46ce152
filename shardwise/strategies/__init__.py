"""Strategies: functions from a tree of parameters and a mesh to shardings, and transformations of training steps.

The public names are listed in `__init__.pyi`.
"""

from shardwise.base.lazy import lazy_namespace
from shardwise.strategies.initialize import initialize as initialize  # its module has the same name
from shardwise.strategies.zero import zero as zero  # its module has the same name

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
