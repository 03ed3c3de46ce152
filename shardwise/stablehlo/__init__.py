"""Reading StableHLO: `load` returns a function of arrays for a module that any framework wrote.

from shardwise import stablehlo

step = stablehlo.load(text)      # jax.jit(f).lower(...).as_text(), or bytecode
"""

from shardwise.base.lazy import set_public_names
from shardwise.stablehlo.load import LoadedModule, load

__all__ = ["LoadedModule", "load"]

set_public_names(__name__, __all__)
