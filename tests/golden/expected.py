"""The collectives of an expert's plan, compared with those of the chosen plan."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

import shardwise as jax
from tests.golden.models import Leaf, Model

LARGE = 200_000  # bytes of a gradient that a scanned stack of layers reduce-scatters in every iteration
SHORT = {np.dtype(np.float32): "f32", np.dtype(np.int32): "i32"}


class ExpectedCollective(NamedTuple):
    """A collective of a plan: its kind, its axes, the shape of its operand on one device, and how often it runs."""

    kind: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    times: int = 1

    def wire_bytes(self, sizes: Mapping[str, int], halo: int = 0) -> float:
        """Return the bytes of f32 that one device sends, by the ring model. `halo`: the elements that a window
        sends."""
        count = int(np.prod([sizes[axis] for axis in self.axes]))
        operand = 4 * int(np.prod(self.shape))
        bytes_of_kind = {
            "all_reduce": 2 * operand * (count - 1) / count,
            "reduce_scatter": operand * (count - 1) / count,
            "all_to_all": operand * (count - 1) / count,
            "all_gather": operand * (count - 1),
            "rotate": operand,
            "take_window": 4 * halo,
        }
        return self.times * bytes_of_kind[self.kind]


def planned_collectives(plan: Any) -> Counter[ExpectedCollective]:
    """Return the collectives of a plan, all of f32."""
    actual: Counter[ExpectedCollective] = Counter()
    for row in plan.collectives:
        name, _, shape = row.type.partition("[")
        assert name == "f32"
        sizes = tuple(int(size) for size in shape.removesuffix("]").split(",") if size)
        actual[ExpectedCollective(row.kind, row.axes, sizes, row.times)] += 1
    return actual


def assert_planned(model: Model, plan: Any, expected: Iterable[ExpectedCollective], halo: int = 0) -> None:
    """Check that a training step has exactly these collectives, sends their bytes, and returns a state with the
    shardings of its arguments."""
    expected_list = list(expected)
    actual, expected_counts = planned_collectives(plan), Counter(expected_list)
    assert actual == expected_counts, f"unexpected: {actual - expected_counts}\nmissing: {expected_counts - actual}"
    wire_bytes = sum(collective.wire_bytes(model.axes, halo) for collective in expected_list)
    assert plan.wire_bytes == wire_bytes, f"{plan.wire_bytes} bytes are sent, expected {wire_bytes}"
    for index, (before, after) in enumerate(zip(plan.inputs, plan.outputs[:-1], strict=False)):
        assert before.layout == after.layout, f"result {index} has layout {after.layout}, its argument {before.layout}"


def parameters(model: Model) -> list[Leaf]:
    """Return all parameters."""
    return jax.tree.leaves(model.params)  # type: ignore[no-any-return]


def shard_shape(leaf: Leaf, model: Model, gathered_along: str = "") -> tuple[int, ...]:
    """Return the shape of a shard, or of a shard that was gathered along an axis."""
    shard_counts = [model.axes[axis] if axis and axis != gathered_along else 1 for axis in leaf.spec]
    return tuple(
        size // count for size, count in zip(leaf.shape, [*shard_counts, *[1] * len(leaf.shape)], strict=False)
    )


def all_reduced_gradients(model: Model, axis: str) -> Iterator[ExpectedCollective]:
    """Yield one all-reduce over an axis for every gradient and for the loss; that of a stack follows the loop."""
    yield ExpectedCollective("all_reduce", (axis,), ())
    for leaf in parameters(model):
        yield ExpectedCollective("all_reduce", (axis,), shard_shape(leaf, model))


def fsdp_collectives(model: Model, axis: str) -> Iterator[ExpectedCollective]:
    """Yield an all-gather for every parameter, a reduce-scatter for its gradient, and an all-reduce for the loss.

    The gathered parameter serves both passes, but the backward pass over scanned layers is a loop of its own, which
    gathers again. The loop reduce-scatters large gradients, because a stack of unreduced ones is larger by the number
    of devices, and writing it takes longer than the latencies. Small ones are reduce-scattered after the loop.
    """
    yield ExpectedCollective("all_reduce", (axis,), ())
    for stack in parameters(model):
        leaf = stack.layer
        for _ in range(1 if leaf.times == 1 else 2):
            yield ExpectedCollective("all_gather", (axis,), shard_shape(leaf, model), leaf.times)
        gradient = shard_shape(leaf, model, gathered_along=axis)
        if leaf.times > 1 and 4 * int(np.prod(gradient)) < LARGE:
            yield ExpectedCollective("reduce_scatter", (axis,), (leaf.times, *gradient))
        else:
            yield ExpectedCollective("reduce_scatter", (axis,), gradient, leaf.times)


def per_layer(
    collective: ExpectedCollective, count: int, scanned: bool, first: bool = True
) -> list[ExpectedCollective]:
    """Return a collective of every layer, without the first unless `first`. In a loop all iterations are the same."""
    return [collective._replace(times=count)] if scanned else [collective] * (count if first else count - 1)
