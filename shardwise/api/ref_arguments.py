"""Refs as arguments and results of `jit` and `shard_map`.

The traced function is one of arrays: the arrays of the Refs are arguments, and those that they hold at the end are
further results.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, final

from shardwise import tree
from shardwise.api.ref import Ref
from shardwise.tree_util import register_dataclass


@final
@dataclass(frozen=True)
class _RefResult:
    """A Ref among the results: its array, and its number among the Refs of the arguments; -1 if it is new."""

    value: Any
    argument: int


register_dataclass(_RefResult, ["value"], ["argument"])


@final
class FunctionOfArrays:
    """A function whose leaves at `positions` are Refs, as a function of their arrays.

    It returns the result of the function, with Refs as `_RefResult`s, and the arrays that the Refs hold at the end.
    """

    def __init__(self, function: Callable[..., Any], positions: tuple[int, ...]):
        self._function = function
        self._positions = positions
        update_wrapper(self, function, updated=())

    def __call__(self, *args: object, **keywords: object) -> Any:
        leaves, structure = tree.flatten((args, keywords))
        refs = [Ref(leaves[position]) for position in self._positions]
        for position, ref in zip(self._positions, refs, strict=True):
            leaves[position] = ref
        args, keywords = structure.unflatten(leaves)
        result = self._function(*args, **keywords)
        numbers = {id(ref): index for index, ref in enumerate(refs)}

        def without_refs(leaf: object) -> Any:
            return _RefResult(leaf[...], numbers.get(id(leaf), -1)) if isinstance(leaf, Ref) else leaf

        return tree.map(without_refs, result), [ref[...] for ref in refs]


def find_refs(label: str, leaves: Sequence[Any]) -> dict[int, Ref]:
    """Return the Refs among the leaves of the arguments of a function, by position; `label` is for the error.

    Raises:
        ValueError: if a Ref occurs twice: an update of one argument would have to change the other.
    """
    refs = {position: leaf for position, leaf in enumerate(leaves) if isinstance(leaf, Ref)}
    if len({id(ref) for ref in refs.values()}) < len(refs):
        raise ValueError(f"{label}: a Ref is passed twice. Pass it once, and use it in both places.")
    return refs


@contextmanager
def refs_as_arguments(refs: Iterable[Ref]) -> Iterator[None]:
    """Mark Refs as arguments of a call in a `with` block: the function must not use them by other ways."""
    marked = list(refs)
    for ref in marked:
        ref.is_argument = True
    try:
        yield
    finally:
        for ref in marked:
            ref.is_argument = False


def update_refs(refs: Sequence[Ref], result: object, arrays: Sequence[Any]) -> Any:
    """Set the Refs to the arrays that they hold after a call, and return the result of the call with its Refs."""
    for ref, array in zip(refs, arrays, strict=True):
        ref[...] = array

    def with_refs(leaf: object) -> Any:
        if not isinstance(leaf, _RefResult):
            return leaf
        return refs[leaf.argument] if leaf.argument >= 0 else Ref(leaf.value)

    return tree.map(with_refs, result, is_leaf=lambda x: isinstance(x, _RefResult))
