"""Shardwise: run a program that is written for one device on many. `import shardwise as jax` runs JAX programs.

The public names are listed in `__init__.pyi`.
"""

from shardwise import numpy as numpy  # the namespace of array methods
from shardwise.base.lazy import lazy_namespace
from shardwise.explain.plan import explain as explain  # its package has the same name

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
