"""jax._src.cudnn.fused_attention_stablehlo: whether cuDNN's attention can be used, which is never the case here."""

from typing import NoReturn

from shardwise.base.missing_names import report_missing

__all__ = ["check_cudnn_version"]  # Keras, which selects its own attention if it raises


def check_cudnn_version() -> NoReturn:
    """Raise RuntimeError, as JAX does where there is no cuDNN."""
    raise RuntimeError("cuDNN's attention is not used: `nn.dot_product_attention` is compiled by XLA")


report_missing(__name__, __all__)
