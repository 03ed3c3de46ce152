"""jax.ref: mutable references to arrays. The public names are listed in `ref.pyi`."""

from shardwise.base.lazy import lazy_namespace

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
