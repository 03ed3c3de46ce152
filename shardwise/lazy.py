"""Names that a package has and loads when they are first asked for: what a program does not use costs it nothing."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from shardwise.errors import not_here


def later(
    package: str, names: Sequence[str], modules: Sequence[str] = (), members: Mapping[str, Sequence[str]] | None = None
) -> Callable[[str], Any]:
    """A package's `__getattr__`. `modules` are parts of it; `members` are names that are defined in other modules.

    Any other name is one that is not here; `names` are those that are.
    """
    homes = {name: home for home, given in (members or {}).items() for name in given}

    def get(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")  # which makes it an attribute of the package
        if name not in homes:
            raise not_here(package, name, names)
        found = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return get
