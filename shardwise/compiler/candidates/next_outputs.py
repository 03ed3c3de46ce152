"""next_outputs: the outputs of a step that are passed as arguments to the next call: its state.

The output has the same path in its tree; for an argument that is an array, the output is computed from it elementwise.
"""

from collections.abc import Sequence
from typing import Any

from shardwise import tree_util
from shardwise.compiler.candidates.output_layouts import infer_output_pins
from shardwise.compiler.ir.program import Program
from shardwise.compiler.shardings.layout import Layout, Pin


def next_outputs(
    traced: Program, program: Program, args: tuple[Any, ...], structure: Any, arguments: int
) -> dict[int, int]:
    """Return, for each argument that is state, the output that is passed as it to the next call.

    Args:
        traced: the program as traced, whose types are those of the arguments and results.
        program: the program without calls.
        args: the arguments.
        structure: the structure of the results.
        arguments: the number of leaves of the arguments, the first inputs of the program.
    """
    in_paths = [path[1:] for path, _ in tree_util.tree_flatten_with_path(args)[0]]
    positions = structure.unflatten(list(range(structure.num_leaves)))
    out_paths = [path for path, _ in tree_util.tree_flatten_with_path(positions)[0]]
    found: dict[int, int] = {}

    def match(number: int, output: int, free: set[int]) -> bool:
        same = traced.in_types[number].strong() == traced.out_types[output].strong()
        if same and output in free and number not in found:
            found[number] = output
            free.discard(output)
            return True
        return False

    free = set(range(structure.num_leaves))
    for number in range(arguments):
        path = in_paths[number]
        if path:
            any(match(number, output, free) for output, other in enumerate(out_paths) if _ends_with(other, path))
    for output, number in _elementwise_sources(program, arguments):
        if output < structure.num_leaves and not in_paths[number]:  # the argument is an array, not a tree
            match(number, output, free)
    return found


def _ends_with(path: Sequence[Any], end: Sequence[Any]) -> bool:
    """Return whether a path is `end`, after at most one key, such as the position in a tuple of results."""
    return len(path) - len(end) in (0, 1) and tuple(path[len(path) - len(end) :]) == tuple(end)


def _elementwise_sources(program: Program, arguments: int) -> list[tuple[int, int]]:
    """Return outputs with the nearest argument of the same type that each is computed from elementwise."""
    pins = [Pin(Layout.replicated(type.ndim), reason=str(number)) for number, type in enumerate(program.in_types)]
    names = [str(number) for number in range(len(program.outputs))]
    inferred = infer_output_pins(program, pins, [None] * len(names), names)
    pairs = []
    for output, pin in enumerate(inferred):
        if pin is not None:
            number = int(pin.reason.split("follows ")[1].rstrip(","))
            if number < arguments:
                pairs.append((output, number))
    return pairs
