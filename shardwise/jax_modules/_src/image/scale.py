"""jax._src.image.scale: the kernels of the methods of `jax.image.resize`."""

from shardwise.base.missing_names import report_missing
from shardwise.image import KERNELS as _kernels

__all__ = ["_kernels"]  # torchax

report_missing(__name__, __all__)
