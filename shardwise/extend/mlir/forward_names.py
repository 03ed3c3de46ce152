"""Modules with the names of one of jaxlib's modules, which is loaded when a name is first used."""

import sys
from typing import Any

from shardwise.base.lazy import missing_attribute_error, set_public_names


def forward_names(module: str, source: Any) -> None:
    """Set `__getattr__` and `__dir__` of a module whose names are those of `source`. `dir` does not list them."""
    set_public_names(module, [])

    def get(name: str) -> Any:
        try:
            return getattr(source, name)
        except AttributeError:
            raise missing_attribute_error(module, name, []) from None

    vars(sys.modules[module])["__getattr__"] = get
