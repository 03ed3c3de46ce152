"""Flat: a function of trees of arrays as a function of their leaves, which is what transformations work on."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import tree
from shardwise.api.arguments import describe_function
from shardwise.compiler.arrays.methods import is_array_like
from shardwise.compiler.ir.dispatch import open_frames


class FlatFunction:
    """Takes the leaves of (arguments, keywords), returns the leaves of the result, and notes its structure."""

    def __init__(self, function: Callable[..., Any], in_tree: tree.Structure):
        self.function = function
        self.in_tree = in_tree
        self.out_tree: tree.Structure = None

    def __call__(self, *leaves: Any) -> list[Any]:
        args, keywords = self.in_tree.unflatten(leaves)
        outputs, self.out_tree = tree.flatten(self.function(*args, **keywords))
        check_outputs(self.function, outputs)
        return outputs


def check_outputs(function: Callable[..., Any], outputs: Sequence[Any]) -> None:
    """A traced function returns arrays and numbers; anything else is an error."""
    for number, output in enumerate(outputs):
        if not is_array_like(output):
            raise TypeError(
                f"{describe_function(function)} returned {output!r} of type {type(output).__name__} as result "
                f"{number}: "
                "a traced function returns arrays and numbers, in tuples, lists, dicts and None"
            )


def is_traced(leaves: Sequence[Any]) -> bool:
    """Whether a call with these arguments belongs to a trace: one that takes every op, or one that owns an argument."""
    return any(frame.stages_all or any(frame.owns(x) for x in leaves) for frame in open_frames())
