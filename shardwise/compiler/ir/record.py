"""record: a frozen dataclass whose methods are generated on first use.

There are about two hundred op classes, and a program uses about thirty of them. Generating the methods of all classes
would take a third of the package's import time. `dataclass(frozen=True)` is applied to a record when it is first
instantiated, or when its fields are first read (`dataclasses.fields`, `is_dataclass`, `replace`), so a record behaves
as a dataclass at all times. Records without fields share one set of methods.
"""

import inspect
import threading
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, TypeVar, dataclass_transform

Class = TypeVar("Class", bound=type)

_lock = threading.RLock()  # reentrant, because completing a class completes its bases


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: Class) -> Class:
    """Make a class a frozen dataclass, lazily. Fields are inherited from base records."""
    cls.__init__ = _complete_and_init  # type: ignore[misc]
    cls.__dataclass_fields__ = _LazyFields()  # type: ignore[attr-defined]
    cls.__signature__ = _LazySignature()  # type: ignore[attr-defined]
    return cls


class _LazyFields:
    """A stand-in for the `__dataclass_fields__` of a record whose methods have not been generated."""

    def __get__(self, instance: object, owner: type) -> Any:
        _complete(owner)
        return owner.__dataclass_fields__  # type: ignore[attr-defined]


class _LazySignature:
    """Stands for the signature of a record whose `__init__` is not generated yet: `inspect.signature` reads it."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        _complete(owner)
        signature = inspect.signature(owner.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def _complete_and_init(self: Any, *args: Any, **keywords: Any) -> None:
    _complete(type(self))
    type(self).__init__(self, *args, **keywords)


def _complete(cls: type) -> None:
    """Generate the methods of a record, and of its bases first."""
    with _lock:
        for base in reversed(cls.__mro__):
            if vars(base).get("__init__") is _complete_and_init:
                _generate_methods(base)


def _generate_methods(cls: type) -> None:
    """Generate the methods of one class. `__init__` is replaced last, because other threads wait in the old one."""
    if vars(cls).get("__annotations__") or any(getattr(base, "__dataclass_fields__", ()) for base in cls.__mro__[1:]):
        cls.__doc__ = cls.__doc__ or cls.__name__
        dataclass(frozen=True, init=False)(cls)
        # The docstring keeps `dataclass` from writing one, for which it would read the signature and come here again.
        subclass = type(cls)(cls.__name__, (cls,), {"__doc__": cls.__name__})
        same_fields: type = dataclass(frozen=True, repr=False, eq=False)(subclass)
        cls.__init__ = vars(same_fields)["__init__"]  # type: ignore[misc]
        return
    for name, shared in _SHARED.items():
        if name not in vars(cls):
            setattr(cls, name, shared)
    cls.__dataclass_fields__ = _SHARED["__dataclass_fields__"]  # type: ignore[attr-defined]
    cls.__init__ = _SHARED["__init__"]  # type: ignore[misc]


@dataclass(frozen=True)
class _Fieldless:
    """The source of the methods that records without fields share."""


def _raise_frozen(self: object, name: str, *value: object) -> None:
    raise FrozenInstanceError(f"cannot change {name!r} of {type(self).__name__}")


_NAMES = ["dataclass_fields", "dataclass_params", "match_args", "init", "repr", "eq", "hash"]
_SHARED = {
    **{f"__{name}__": vars(_Fieldless)[f"__{name}__"] for name in _NAMES},
    "__setattr__": _raise_frozen,
    "__delattr__": _raise_frozen,
}
