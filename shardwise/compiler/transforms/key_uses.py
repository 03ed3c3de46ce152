"""key_uses: check that a program uses no PRNG key twice, for the setting `debug_key_reuse`.

A key is used when numbers are drawn from it or when it is split; the functions of `random` mark this by
`KeyData(uses=True)`. The check interprets a program on key ids: every element of an input gets its own id, ops that
move keys move their ids, and `WrapKeyData` creates new ids. If the moved element of an array is unknown, as with a
traced index, all its elements get one id. Two iterations of a loop represent all.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.control import Control
from shardwise.compiler.ir.op import NumpyArray, Op
from shardwise.compiler.ir.program import Equation, Program, Source, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.random.key_data import KeyData, WrapKeyData
from shardwise.errors import KeyReuseError

KNOWN_SIZE = 64  # the most elements of a value that is computed, if its operands are known


@final
class KeyUses:
    """The ids of the keys of a program, and the line where each key was used.

    `source` overrides the source lines of the equations: a program of a single op is cached for many lines.
    """

    def __init__(self, source: Source | None = None) -> None:
        self._source = source
        self._same_as: dict[int, int] = {}  # union-find
        self._used_at: dict[int, Source] = {}
        self._count = 0

    def new_keys(self, shape: tuple[int, ...]) -> NumpyArray:
        """Return the ids of new keys."""
        size = int(np.prod(shape))
        self._count += size
        return np.arange(self._count - size, self._count).reshape(shape)

    def use(self, keys: NumpyArray, source: Source) -> None:
        """Mark keys as used. Raises KeyReuseError if one was used before."""
        for key in set(map(self._root, keys.flat)):
            if (before := self._used_at.get(key)) is not None:
                raise KeyReuseError(
                    f"a PRNG key is used at {source}, but it was used already at {before}.\n"
                    "  Derive a new key for each use with `random.split` or `random.fold_in`. If the reuse is "
                    "intended, pass `random.clone(key)`."
                )
            self._used_at[key] = source

    def used_at(self, key: int) -> Source | None:
        """Return the line where a key was used, or None."""
        return self._used_at.get(self._root(key))

    def mark(self, key: int, source: Source) -> None:
        """Mark a key as used, without a check."""
        self._used_at.setdefault(self._root(key), source)

    def _root(self, key: int) -> int:
        while key in self._same_as:
            key = self._same_as[key]
        return int(key)

    def _unite(self, arrays: Sequence[NumpyArray]) -> int:
        """Merge these key ids into one (union-find) and return it; a new id if there are none."""
        roots = {self._root(key) for keys in arrays for key in keys.flat} or {int(self.new_keys(()))}
        first, *others = sorted(roots)
        for other in others:
            self._same_as[other] = first
            if (source := self._used_at.pop(other, None)) is not None:
                self._used_at.setdefault(first, source)
        return first

    def run(self, program: Program, inputs: Sequence[NumpyArray | None]) -> list[NumpyArray | None]:
        """Interpret a program on key ids and on known small arrays. All other values are None."""
        env: dict[Value, NumpyArray | None] = dict(zip(program.inputs, inputs, strict=True))
        for equation in program.equations:
            operands = [env[value] for value in equation.inputs]
            env.update(zip(equation.outputs, self._apply(equation, operands), strict=True))
        return [env[value] for value in program.outputs]

    def _apply(self, equation: Equation, operands: list[NumpyArray | None]) -> Sequence[NumpyArray | None]:
        op, types = equation.op, [value.type for value in equation.outputs]
        if isinstance(op, KeyData):
            if op.uses and operands[0] is not None:
                self.use(operands[0], self._source or equation.source)
            return [None]
        if isinstance(op, WrapKeyData):
            return [self.new_keys(types[0].shape)]
        if op.is_call:
            return self.run(op.programs[0], operands)
        if isinstance(op, Control) and (results := op.track_keys(self, operands, types)) is not None:
            return results
        if all(x is not None for x in operands) and not (op.programs or op.effect):
            return self._evaluate(op, equation, operands)
        return self._moved([x for x, v in zip(operands, equation.inputs, strict=True) if is_key(v.type.dtype)], types)

    def _evaluate(self, op: Op, equation: Equation, operands: list[Any]) -> Sequence[NumpyArray | None]:
        """Apply an op to key ids and to known values, unless the result is large and has no keys."""
        keys = [x for x, v in zip(operands, equation.inputs, strict=True) if is_key(v.type.dtype)]
        types = [value.type for value in equation.outputs]
        if not keys and any(type.size > KNOWN_SIZE for type in types):
            return [None] * len(types)
        results = op.reference(*operands)
        results = [results] if op.single else results
        return [x if bool(keys) == is_key(type.dtype) else None for x, type in zip(results, types, strict=True)]

    def _moved(self, keys: Sequence[Any], types: Sequence[ArrayType]) -> list[NumpyArray | None]:
        """Return results in which each key may be any of `keys`."""
        if not any(is_key(type.dtype) for type in types):
            return [None] * len(types)
        key = self._unite(keys)
        return [np.full(type.shape, key) if is_key(type.dtype) else None for type in types]

    def run_branches(
        self, branches: Sequence[Program], operands: Sequence[NumpyArray | None], types: Sequence[ArrayType]
    ) -> list[NumpyArray | None]:
        """Run all branches, of which one is selected at run time: a key that any branch uses counts as used."""
        before, after, results = dict(self._used_at), {}, []
        for branch in branches:
            self._used_at = dict(before)
            results.append(self.run(branch, operands))
            after.update(self._used_at)
        self._used_at = after
        columns = zip(types, zip(*results, strict=True), strict=True)
        return [self._moved(column, [type])[0] for type, column in columns]
