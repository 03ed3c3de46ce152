"""numpy's functions on arrays that may be sharded over many devices.

Semantics follow JAX's: dtype promotion, weak types, 32-bit defaults. The public names are listed in `__init__.pyi`.
"""

from shardwise.base.lazy import lazy_namespace
from shardwise.numpy.einsum import einsum as einsum  # its module has the same name

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
