"""Meshes, PartitionSpecs and shardings: the layout of arrays on devices.

The public names are listed in `sharding.pyi`.
"""

from shardwise.base.lazy import lazy_namespace

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
