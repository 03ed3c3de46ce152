"""Registry of the caches that can keep a user's objects alive: arrays, functions, rules, ops and programs.

`clear_all` empties every registered cache; `clear_caches` is its public form. Registration happens once, when a cache
is created: a hit stays a lookup in a plain `functools.lru_cache` or dict.

These tables are not registered. None of them refers to an array, a function or a program:

- `ArrayType._interned`, `TraceSettings._interned` and `array_signature` intern values that are compared by identity.
  Emptying them would make equal values differ. `Mesh._interned` and `PartitionSpec._interned` make equal meshes and
  specs one object.
- The caches of `_jaxlib` and of the compilation cache on disk hold facts about this machine.
- The coefficient tables of the special functions (`_fit`, `_temme`), the table of built-in chips and the list of JAX's
  names hold constants.
- `composed` keeps one set of parameter names for each function that it wraps, which lives as long as that function, and
  so do the forms of a function for each policy of `custom_remat`.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Clear = TypeVar("_Clear", bound=Callable[[], object])

_clear_functions: list[Callable[[], object]] = []


def registered_cache(maxsize: int) -> Callable[[_Function], _Function]:
    """`functools.lru_cache`, emptied by `clear_all`."""

    def decorate(function: _Function) -> _Function:
        cached = lru_cache(maxsize=maxsize)(function)
        register(cached.cache_clear)
        return cached  # type: ignore[return-value]

    return decorate


def register(clear: _Clear) -> _Clear:
    """Register `clear`, a function that empties a cache, and return it."""
    _clear_functions.append(clear)
    return clear


def clear_all() -> None:
    """Empty every registered cache."""
    for clear in _clear_functions:
        clear()
