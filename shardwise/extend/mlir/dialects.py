"""jax.extend.mlir.dialects: jaxlib's bindings of MLIR's dialects, such as `stablehlo` and `sdy`."""

from types import ModuleType

from shardwise.base._jaxlib import MLIR_DIALECTS, mlir_dialect
from shardwise.base.lazy import missing_attribute_error

__all__ = list(MLIR_DIALECTS)


def __getattr__(name: str) -> ModuleType:
    if name not in MLIR_DIALECTS:
        raise missing_attribute_error(__name__, name, MLIR_DIALECTS)
    return mlir_dialect(name)


def __dir__() -> list[str]:
    return sorted({*MLIR_DIALECTS, *(name for name in globals() if name.startswith("__"))})
