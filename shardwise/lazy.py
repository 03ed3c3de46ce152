"""Modules, and names of modules, that are loaded when they are first asked for: what a program does not use costs it
nothing. Nothing else here imports later than at the head of a file.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, final

from shardwise.errors import missing_attribute_error


def lazy_names(
    package: str, names: Sequence[str], modules: Sequence[str] = (), homes: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`. `modules` are parts of it; its other `names` are looked for in `homes`.

    These are other modules, of which one after the other is loaded until one has the name, and has not only imported it
    (an alias of types is nobody's own: the last that has it will do). For type checkers the package imports each name
    from its home; tests compare.
    """

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")  # which makes it an attribute of the package
        found = None
        for home in homes if name in names else ():
            found = getattr(import_module(home), name, found)
            if getattr(found, "__module__", None) == home:
                break
        if found is None:
            raise missing_attribute_error(package, name, names)
        setattr(sys.modules[package], name, found)
        return found

    def known() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return get, known


@final
class lazy_module:
    """Stands for a module, which is loaded once something of it is asked for: `scipy = module("scipy")`."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self.__name__), name)
        setattr(self, name, found)  # not asked for again
        return found
