"""Lazy imports: modules, and names of packages, that are loaded at their first use.

This is the only module that imports after start-up. Everything else is imported at the head of a file.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, final


def lazy_names(
    package: str, names: Sequence[str], modules: Sequence[str] = (), homes: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

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
    """Proxy of a module that is imported at the first access to an attribute: `scipy = lazy_module("scipy")`."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)  # later accesses do not come here
        return value


def missing_attribute_error(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a public name that a module lacks, with the closest of `names` as a hint.

    JAX may have the name, so the message says that it may not be supported yet.
    """
    near = get_close_matches(name, list(names), 1, cutoff=0.75)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return AttributeError(
        f"{module} has no attribute {name!r}: JAX has no such name, or it is not supported yet.{hint}", name=name
    )
