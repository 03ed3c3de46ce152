"""Placeholders for names of JAX that can be imported, and are not supported yet.

Libraries import whole modules such as `jax.experimental.pallas` and use them on some platforms only. A placeholder is
a class, so that libraries can name it in annotations, in `isinstance` and as a base class. Creating an instance, which
is what a call does, and reading an attribute of it raise `UnsupportedError`.
"""

import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from shardwise.base.lazy import set_public_names
from shardwise.errors import UnsupportedError


class _PlaceholderType(type):
    """The class of placeholders, which raises the error for calls and attributes."""

    advice: str

    def __call__(cls, *args: object, **keywords: object) -> NoReturn:
        raise cls.error()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):  # which the import system, pickle and inspect look for
            raise AttributeError(f"{cls.__module__}.{cls.__name__} has no attribute {name!r}", name=name)
        raise cls.error()

    def error(cls) -> UnsupportedError:
        """Return the error for a use of the name."""
        name = f"{cls.__module__}.{cls.__name__}".replace("shardwise.", "jax.", 1)
        return UnsupportedError(f"{name} is not supported yet. {cls.advice}")


def is_placeholder(value: object) -> bool:
    """Return whether a value is a placeholder."""
    return isinstance(value, _PlaceholderType)


def set_unsupported_names(module: str, names: Iterable[str], advice: str, supported: Iterable[str] = ()) -> None:
    """Define placeholders for `names` in a module, and make them and `supported` its public names.

    `advice` is the sentence of the error that says what to use instead.
    """
    namespace = vars(sys.modules[module])
    for name in names:
        doc = f"Not supported yet: using it raises `UnsupportedError`. {advice}"
        namespace[name] = _PlaceholderType(name, (), {"__module__": module, "__doc__": doc, "advice": advice})
    namespace["__all__"] = public = sorted([*names, *supported])
    set_public_names(module, public)
