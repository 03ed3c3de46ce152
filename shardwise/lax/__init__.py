"""Functions close to the ops of a program. The public names are listed in `__init__.pyi`."""

from shardwise.lax.fft import fft as fft  # its module has the same name
from shardwise.lazy import lazy_namespace

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
