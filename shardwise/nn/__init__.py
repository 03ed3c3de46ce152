"""Neural-network functions: activations, softmax, attention, scaled matrix products, and initializers.

The public names are listed in `__init__.pyi`.
"""

from shardwise.base.lazy import lazy_namespace

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
