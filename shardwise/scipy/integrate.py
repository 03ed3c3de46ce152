"""scipy.integrate: numerical integration of sampled values."""

from shardwise.base.lazy import set_public_names
from shardwise.numpy.calculus import trapezoid

__all__ = ["trapezoid"]

set_public_names(__name__, __all__)
