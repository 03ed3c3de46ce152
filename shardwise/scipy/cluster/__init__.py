"""scipy.cluster: vector quantization."""

from shardwise.base.lazy import set_public_names
from shardwise.scipy.cluster import vq

__all__ = ["vq"]

set_public_names(__name__, __all__)
