"""jax.tools: command-line tools of JAX. The module `jax_to_ir` exists for imports."""

from shardwise.base.lazy import set_public_names
from shardwise.tools import jax_to_ir

__all__ = ["jax_to_ir"]

set_public_names(__name__, __all__)
