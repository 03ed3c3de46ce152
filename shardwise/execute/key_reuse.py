"""check_key_reuse: raise an error if a launch uses a PRNG key that was used before (`debug_key_reuse`).

Each Array records which of its keys were used. Indexing an array outside `jit` marks the selected keys of the indexed
array as used; the keys of the result are new.
"""

from collections.abc import Sequence
from typing import Any, final
from weakref import ref

import numpy as np

from shardwise.compiler.dtypes import is_integer, is_key
from shardwise.compiler.ir.program import Program
from shardwise.compiler.trace.provenance import user_source
from shardwise.compiler.transforms.key_uses import KNOWN_SIZE, KeyUses
from shardwise.runtime.array import ArrayImpl

_used: dict[int, tuple[Any, list[Any]]] = {}  # array id → the array, and the line where each of its keys was used


def check_key_reuse(program: Program, arguments: Sequence[ArrayImpl]) -> "KeyLaunch | None":
    """Check a program with the keys among its arguments; None if it has no keys.

    Raises:
        KeyReuseError: if the program uses a key twice, or a key that was used before.
    """
    values = (value for equation in program.walk() for value in (*equation.inputs, *equation.outputs))
    return KeyLaunch(program, arguments) if any(is_key(value.type.dtype) for value in values) else None


@final
class KeyLaunch:
    """A checked launch of a program; `finish` records the keys that it used."""

    def __init__(self, program: Program, arguments: Sequence[ArrayImpl]):
        source = user_source()
        self.uses = KeyUses(source if len(program.equations) == 1 else None)
        self.keys: dict[int, tuple[ArrayImpl, Any]] = {}
        inputs = [self._input(array) for array in arguments]
        self.outputs = self.uses.run(program, inputs)
        for output in self.outputs:
            for _, keys in self.keys.values():
                if output is not None and 0 < np.isin(keys, output).sum() < keys.size:  # a selection
                    self.uses.use(keys[np.isin(keys, output)], source)

    def _input(self, array: ArrayImpl) -> Any:
        if is_key(array.type.dtype):
            if id(array) not in self.keys:
                keys = self.uses.new_keys(array.type.shape)
                self.keys[id(array)] = (array, keys)
                for key, source in zip(keys.flat, _uses_of(array), strict=True):
                    if source is not None:
                        self.uses.mark(key, source)
            return self.keys[id(array)][1]
        readable = array.is_fully_addressable and is_integer(array.type.dtype) and array.type.size <= KNOWN_SIZE
        return array.numpy() if readable and not array.is_deleted() else None

    def finish(self, results: Sequence[ArrayImpl]) -> None:
        """Record the keys that the program used, and the keys in its results that it has already used."""
        for array, keys in self.keys.values():
            _record(array, [self.uses.used_at(key) for key in keys.flat])
        for result, keys in zip(results, self.outputs, strict=True):
            if is_key(result.type.dtype) and keys is not None:
                selected = any(0 < np.isin(own, keys).sum() < own.size for _, own in self.keys.values())
                _record(result, [None if selected else self.uses.used_at(key) for key in keys.flat])


def _uses_of(array: ArrayImpl) -> list[Any]:
    entry = _used.get(id(array))
    return [None] * array.type.size if entry is None else entry[1]


def _record(array: ArrayImpl, uses: list[Any]) -> None:
    if any(use is not None for use in uses):
        number = id(array)
        _used[number] = (ref(array, lambda _: _used.pop(number, None)), uses)
