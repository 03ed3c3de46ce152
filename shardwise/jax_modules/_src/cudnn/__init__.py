"""jax._src.cudnn."""

from shardwise.base.missing_names import report_missing
from shardwise.jax_modules._src.cudnn import fused_attention_stablehlo

__all__ = ["fused_attention_stablehlo"]

report_missing(__name__, __all__)
