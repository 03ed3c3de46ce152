"""Shardwise: run a program that is written for one device on many. `import shardwise as jax` runs JAX programs.

The public names are listed in `__init__.pyi`.
"""

from shardwise.base.lazy import lazy_namespace
from shardwise.explain.plan import explain as explain  # its package has the same name
from shardwise.numpy.array_methods import attach_array_methods

attach_array_methods()

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
