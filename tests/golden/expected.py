"""What an expert's plan sends, said collective by collective, and compared with what was planned."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

import shardwise as jax
from tests.golden.models import Leaf, Model

SHORT = {np.dtype(np.float32): "f32", np.dtype(np.int32): "i32"}


class Move(NamedTuple):
    """A collective: of which kind, over which axes, of a piece of this shape, how often."""

    kind: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    turns: int = 1

    def sent(self, sizes: Mapping[str, int], halo: int = 0) -> float:
        """What one device sends, in bytes of f32, by the ring model. `halo`: the elements that a window sends."""
        count = int(np.prod([sizes[axis] for axis in self.axes]))
        piece = 4 * int(np.prod(self.shape))
        share = {
            "all_reduce": 2 * piece * (count - 1) / count,
            "reduce_scatter": piece * (count - 1) / count,
            "all_to_all": piece * (count - 1) / count,
            "all_gather": piece * (count - 1),
            "rotate": piece,
            "take_window": 4 * halo,
        }
        return self.turns * share[self.kind]


def planned_moves(plan: Any) -> Counter[Move]:
    """The collectives of a plan, all of f32."""
    found: Counter[Move] = Counter()
    for row in plan.collectives:
        name, _, shape = row.type.partition("[")
        assert name == "f32"
        sizes = tuple(int(size) for size in shape.removesuffix("]").split(",") if size)
        found[Move(row.kind, row.axes, sizes, row.times)] += 1
    return found


def assert_planned(model: Model, plan: Any, expected: Iterable[Move], halo: int = 0) -> None:
    """The plan of a training step has these collectives and no others, sends their bytes, and lays its results out as
    its arguments are."""
    listed = list(expected)
    found, wanted = planned_moves(plan), Counter(listed)
    assert found == wanted, f"too much: {found - wanted}\nmissing: {wanted - found}"
    sent = sum(move.sent(model.axes, halo) for move in listed)
    assert plan.wire_bytes == sent, f"{plan.wire_bytes} bytes are sent instead of {sent}"
    for number, (before, after) in enumerate(zip(plan.inputs, plan.outputs[:-1], strict=False)):
        assert before.layout == after.layout, f"result {number} lies as {after.layout}, argument as {before.layout}"


def weights(model: Model) -> list[Leaf]:
    """Every parameter; of a stack, what one turn takes."""
    return [leaf.layer for leaf in jax.tree.leaves(model.params)]


def piece(leaf: Leaf, model: Model, whole_over: str = "") -> tuple[int, ...]:
    """The shape of a device's piece; of one that was gathered along an axis."""
    cuts = [model.axes[axis] if axis and axis != whole_over else 1 for axis in leaf.spec]
    return tuple(size // cut for size, cut in zip(leaf.shape, [*cuts, *[1] * len(leaf.shape)], strict=False))


def reduced(model: Model, axis: str) -> Iterator[Move]:
    """Every gradient is summed over an axis, once; and so is the loss."""
    yield Move("all_reduce", (axis,), ())
    for leaf in weights(model):
        yield Move("all_reduce", (axis,), piece(leaf, model), leaf.turns)


def gathered_and_scattered(model: Model, axis: str) -> Iterator[Move]:
    """Every parameter is gathered along an axis, and its gradient scattered; the loss is summed.

    One copy serves both passes; but the backward pass over scanned layers is a loop of its own, which gathers again.
    """
    yield Move("all_reduce", (axis,), ())
    for leaf in weights(model):
        for _ in range(1 if leaf.turns == 1 else 2):
            yield Move("all_gather", (axis,), piece(leaf, model), leaf.turns)
        yield Move("reduce_scatter", (axis,), piece(leaf, model, whole_over=axis), leaf.turns)


def in_layers(move: Move, count: int, scanned: bool, first: bool = True) -> list[Move]:
    """A collective of every layer; of the first too, if `first`. A loop does not tell its last turn from the others."""
    return [move._replace(turns=count)] if scanned else [move] * (count if first else count - 1)
