"""jax._src.state.types: the type of mutable references, which do not exist yet."""

from shardwise.jax_modules.missing import report_missing

__all__ = ["AbstractRef"]  # Flax asks whether a type is one


class AbstractRef:
    """The type of a mutable reference. No value has it: references are not supported yet."""


report_missing(__name__, __all__)
