"""Show arrays on many devices, and look into running programs. The public names are listed in `debug.pyi`."""

from shardwise.base.lazy import lazy_namespace

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
