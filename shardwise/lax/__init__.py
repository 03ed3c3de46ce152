"""Functions close to the ops of a program. The public names are listed in `__init__.pyi`.

Names such as `exp_p` are the primitives of jaxprs.
"""

from typing import Any

from shardwise.base.lazy import lazy_module, lazy_namespace
from shardwise.lax.fft import fft as fft  # its module has the same name

__all__, _get_public, __dir__ = lazy_namespace(__name__, __file__)
_forms = lazy_module("shardwise.api.jaxprs.jaxpr_forms")  # 66 ms


def __getattr__(name: str) -> Any:
    if name.endswith("_p") and (primitive := _forms.find_primitive(name.removesuffix("_p"))) is not None:
        return primitive
    return _get_public(name)
