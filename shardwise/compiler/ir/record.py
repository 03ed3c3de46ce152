"""record: a frozen dataclass whose methods are written when the first one is made.

There are some two hundred classes of ops, and a program uses thirty. To write and compile the methods of all of them
would be a third of what it takes to import this package. Those without fields need no methods of their own: there is
nothing in which two of them could differ, so that all share one set.
"""

import threading
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, TypeVar, dataclass_transform

Class = TypeVar("Class", bound=type)

_lock = threading.RLock()  # completing a class completes those that it inherits from


@dataclass_transform(frozen_default=True)
def record(cls: Class) -> Class:
    """`dataclass(frozen=True)`, later. Fields are those of the class and of the records that it inherits from."""
    cls.__new__ = _first  # type: ignore[assignment]
    return cls


def complete(cls: type) -> type:
    """The record with all its methods; those that it inherits from have theirs first."""
    with _lock:
        for base in reversed(cls.__mro__):
            if vars(base).get("__new__") is _first:
                _write_methods(base)
                base.__new__ = _next  # type: ignore[assignment]
    return cls


def _write_methods(cls: type) -> None:
    if vars(cls).get("__annotations__") or getattr(cls, "__dataclass_fields__", None):
        dataclass(frozen=True)(cls)
        return
    for name, shared in _SHARED.items():
        if name not in vars(cls):
            setattr(cls, name, shared)


@dataclass(frozen=True)
class _Fieldless:
    """What a dataclass without fields has."""


def _frozen(self: Any, name: str, *value: Any) -> None:
    raise FrozenInstanceError(f"cannot change {name!r} of {type(self).__name__}")


_NAMES = ["dataclass_fields", "dataclass_params", "match_args", "init", "repr", "eq", "hash"]
_SHARED = {
    **{f"__{name}__": vars(_Fieldless)[f"__{name}__"] for name in _NAMES},
    "__setattr__": _frozen,
    "__delattr__": _frozen,
}


def _first(cls: type, *args: Any, **keywords: Any) -> Any:
    """Makes the first one: when this returns the class has the `__init__` that is called then."""
    return object.__new__(complete(cls))


def _next(cls: type, *args: Any, **keywords: Any) -> Any:
    # A class that had a `__new__` cannot be without one again.
    return object.__new__(cls)
