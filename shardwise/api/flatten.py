"""FlatFunction: a function of pytrees as a function of their leaves, which all transformations work on."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise import tree
from shardwise.api.arguments import describe_function
from shardwise.api.ref import Ref
from shardwise.api.transformations.float0 import flatten_hiding_float0
from shardwise.compiler.arrays.methods import is_array_like
from shardwise.compiler.ir.dispatch import recording_frame


class FlatFunction:
    """A function from the leaves of (args, kwargs) to the leaves of its result.

    Every call stores the pytree structure of the result as `out_tree`.
    """

    def __init__(self, function: Callable[..., Any], in_tree: tree.Structure):
        self.function = function
        self.in_tree = in_tree
        self.out_tree: tree.Structure = None

    def __call__(self, *leaves: object) -> list[Any]:
        args, keywords = self.in_tree.unflatten(leaves)
        outputs, self.out_tree = flatten_hiding_float0(self.function(*args, **keywords))
        check_outputs(self.function, outputs)
        return outputs


def check_outputs(function: Callable[..., Any], outputs: Sequence[Any]) -> None:
    """Raise an error unless all leaves of a traced function's result are arrays or numbers.

    It is a TypeError, and a ValueError for a Ref, as in JAX.
    """
    for index, output in enumerate(outputs):
        if isinstance(output, Ref):
            raise ValueError(
                f"{describe_function(function)} returned a Ref of type {output.type} as result {index}: Refs cannot be "
                "returned here, because a Ref must not have two names. Return its array, `ref[...]`."
            )
        if not is_array_like(output):
            raise TypeError(
                f"{describe_function(function)} returned {output!r} of type {type(output).__name__} as result "
                f"{index}: a traced function must return a pytree of arrays and numbers"
            )


def is_traced(leaves: Sequence[Any]) -> bool:
    """Return whether an open frame records a call with these leaves: it records every op, or it owns a leaf."""
    return recording_frame(leaves) is not None
