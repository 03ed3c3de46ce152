"""jax.experimental.compilation_cache: the folder of the persistent compilation cache."""

from shardwise.base.lazy import lazy_namespace

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
