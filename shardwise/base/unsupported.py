"""Placeholders for names of JAX that can be imported, and are not supported yet.

Libraries import whole modules such as `jax.experimental.pallas` and use them on some platforms only. A placeholder is
a class, so that libraries can name it in annotations. Calling it, deriving a class from it, using it in `isinstance`,
reading an attribute of it, comparing it and iterating over it raise `UnsupportedError`: no answer would be right.
"""

import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from shardwise.base.call_site import calling_library
from shardwise.base.lazy import set_public_names
from shardwise.errors import UnsupportedError

_used: set[str] = set()


class _PlaceholderType(type):
    """The class of placeholders, which raises the error for every use."""

    advice: str

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> "_PlaceholderType":
        for base in bases:
            if isinstance(base, _PlaceholderType):
                raise base.error()
        return super().__new__(cls, name, bases, namespace)

    def __call__(cls, *args: object, **keywords: object) -> NoReturn:
        raise cls.error()

    def __instancecheck__(cls, instance: object) -> NoReturn:
        raise cls.error()

    def __subclasscheck__(cls, subclass: type) -> NoReturn:
        raise cls.error()

    def __lt__(cls, other: object) -> NoReturn:
        raise cls.error()

    __gt__ = __le__ = __ge__ = __lt__  # the name may be a number, such as a version

    def __iter__(cls) -> NoReturn:
        raise cls.error()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):  # which the import system, pickle and inspect look for
            raise AttributeError(f"{cls.__module__}.{cls.__name__} has no attribute {name!r}", name=name)
        raise cls.error()

    def error(cls) -> UnsupportedError:
        """Return the error for a use of the name."""
        name = f"{cls.__module__}.{cls.__name__}".replace("shardwise.", "jax.", 1)
        _used.add(name)
        library = calling_library()
        uses = f" {library} uses it." if library else ""
        return UnsupportedError(f"{name} is not supported yet.{uses} {cls.advice}")


def is_placeholder(value: object) -> bool:
    """Return whether a value is a placeholder."""
    return isinstance(value, _PlaceholderType)


def used_placeholders() -> list[str]:
    """Return the names of the placeholders that this process has used, also where the error was caught."""
    return sorted(_used)


def placeholder(module: str, name: str, advice: str) -> type:
    """Return a placeholder for a name of a module. `advice` is the sentence of its error that says what to do."""
    doc = f"Not supported yet: using it raises `UnsupportedError`. {advice}"
    return _PlaceholderType(name, (), {"__module__": module, "__doc__": doc, "advice": advice})


def set_unsupported_names(module: str, names: Iterable[str], advice: str, supported: Iterable[str] = ()) -> None:
    """Define placeholders for `names` in a module, and make them and `supported` its public names.

    `advice` is the sentence of the error that says what to use instead.
    """
    namespace = vars(sys.modules[module])
    namespace.update({name: placeholder(module, name, advice) for name in names})
    namespace["__all__"] = public = sorted([*names, *supported])
    set_public_names(module, public)
