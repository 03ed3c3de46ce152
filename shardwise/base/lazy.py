"""Lazy imports: modules, and public names of packages, that are loaded at their first use.

Modules of this package, and libraries that few programs need, are imported after start-up only through this module. Two
others import modules that somebody names at run time: `jax_modules/install.py`, for `import jax`, and
`launch/load_target.py`, for the user's file on a command line. Everything else is imported at the head of a file.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, final

from shardwise.base.call_site import calling_library, missing_name_error

_IMPORT = re.compile(r"^from ([\w.]+) import (?:\(([^)]*)\)|(.+))$", re.MULTILINE)
_ALIAS = re.compile(r"^(\w+) = (\w+)$", re.MULTILINE)


def lazy_namespace(module: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a module whose public names are loaded at their first use.

    The names are listed once, in the stub beside the module's `file`, which type checkers read too. A name that is also
    the name of a submodule must be imported at the head of the package: loading the submodule would hide it.
    """
    sources = stub_names(Path(file).with_suffix(".pyi").read_text())

    def get(name: str) -> Any:
        if name not in sources:
            raise missing_attribute_error(module, name, sources)
        home, attribute = sources[name]
        if home == module:
            return import_module(f"{module}.{name}")  # the import system sets the attribute of the package
        value = getattr(import_module(home), attribute)
        setattr(sys.modules[module], name, value)  # later accesses do not come here
        return value

    return sorted(sources), get, _names_function(module, sources)


class Deprecated(NamedTuple):
    """A deprecated name of a module: the module that defines it, and what to use instead."""

    home: str
    advice: str


def set_public_names(module: str, names: Sequence[str], deprecated: Mapping[str, Deprecated] | None = None) -> None:
    """Set `__getattr__` and `__dir__` of a module whose public names are `names`.

    `dir` lists only these: neither the modules and helpers that the module imports, nor its submodules. An access to a
    deprecated name warns. Other names raise an error with a hint. Type checkers do not see this call; they would accept
    any attribute of a module that defines `__getattr__`.
    """

    def get(name: str) -> Any:
        entry = deprecated.get(name) if deprecated else None
        if entry is None:
            raise missing_attribute_error(module, name, names)
        text = f"{module.replace('shardwise', 'jax')}.{name} is deprecated: {entry.advice}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(import_module(entry.home), name)

    namespace = vars(sys.modules[module])
    namespace["__getattr__"], namespace["__dir__"] = get, _names_function(module, names)


def publish(module: str, *imported: str, deprecated: Mapping[str, Deprecated] | None = None) -> None:
    """Make the functions and classes that a module defines its public names: `__all__`, and what `dir` lists.

    Names with a leading underscore are private. `imported` are public names that other modules define. `deprecated` are
    names that still exist, and are not listed.
    """
    namespace = vars(sys.modules[module])
    defined = [
        name
        for name, value in namespace.items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    ]
    namespace["__all__"] = names = sorted([*defined, *imported])
    set_public_names(module, names, deprecated)


def _names_function(module: str, names: Iterable[str]) -> Callable[[], list[str]]:
    """Return the `__dir__` of a module: its public names, and attributes such as `__doc__` and `__file__`."""
    return lambda: sorted({*names, *(name for name in vars(sys.modules[module]) if name.startswith("__"))})


def stub_names(text: str) -> dict[str, tuple[str, str]]:
    """Return the module and the attribute of each public name of a stub.

    A stub exports `from module import name as name` and `alias = name`. Names imported without `as` are private to it.
    """
    imported: dict[str, tuple[str, str]] = {}
    public: dict[str, tuple[str, str]] = {}
    for module, block, line in _IMPORT.findall(text):
        for entry in filter(None, map(str.strip, (block or line).split(","))):
            name, _, exported = entry.partition(" as ")
            imported[name] = (module, name)
            if exported:
                public[exported] = imported[name]
    for alias, name in _ALIAS.findall(text):
        public[alias] = imported[name]
    return public


@final
class lazy_module:
    """Proxy of a module that is imported at the first access to an attribute: `scipy = lazy_module("scipy")`."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)  # later accesses do not come here
        return value


def missing_attribute_error(module: str, name: str, names: Iterable[str]) -> AttributeError | ImportError:
    """Return the error for a public name that a module lacks, with the closest of `names` as a hint.

    JAX may have the name, so the message says that it may not be supported yet. It names the library that asks.
    """
    public = not name.startswith("_")  # tools look for many private names: no hint is worth the time for these
    near = get_close_matches(name, list(names), 1, cutoff=0.75) if public else []
    hint = f" Did you mean {near[0]!r}?" if near else ""
    library = calling_library()
    asks = f" {library} asks for it." if library else ""
    message = f"{module} has no attribute {name!r}: JAX has no such name, or it is not supported yet.{hint}{asks}"
    return missing_name_error(message, name)
