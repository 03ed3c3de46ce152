"""Compare calls on one device with the same calls on a mesh, with arrays sharded along the first or the last dim."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import shardwise as sw
from shardwise import lax
from tests.agreement import sharding_along
from tests.layouts.call import Call


def check_layouts(mesh: Any, calls: Sequence[Call], compiled: bool = True) -> None:
    """Check that the calls return the same on one device and with both shardings; all calls are one program."""
    run = sw.jit if compiled else (lambda function: function)
    on_one_device = [[sw.device_put(x) for x in call.arrays] for call in calls]
    expected = run(lambda arrays: _results(calls, arrays))(on_one_device)
    failures = []
    for sharded_dim in ("first", "last"):
        sharded = [[sw.device_put(x, sharding_along(mesh, x.ndim, sharded_dim)) for x in call.arrays] for call in calls]

        def constrain(x: Any, sharded_dim: str = sharded_dim) -> Any:
            return lax.with_sharding_constraint(x, sharding_along(mesh, x.ndim, sharded_dim))

        results = run(lambda arrays, constrain=constrain: _results(calls, arrays, constrain))(sharded)
        for row in zip(calls, results, expected, strict=True):
            failures += [f"{row[0]}, {sharded_dim} dim sharded: {text}" for text in _differences(*row)]
    assert not failures, "\n".join(failures)


def _results(calls: Sequence[Call], arrays: Any, constrain: Callable[[Any], Any] | None = None) -> list[Any]:
    """Return the results of all calls; those of calls without arrays are constrained by `constrain`."""
    results = [call.function(*leaves) for call, leaves in zip(calls, arrays, strict=True)]
    return [
        sw.tree.map(constrain, tree) if constrain and not call.arrays else tree
        for call, tree in zip(calls, results, strict=True)
    ]


def _differences(call: Call, results: Any, expected: Any) -> Iterator[str]:
    leaves, expected_leaves = sw.tree.leaves(results), sw.tree.leaves(expected)
    if len(leaves) != len(expected_leaves):
        yield f"{len(leaves)} results, and {len(expected_leaves)} on one device"
    for index, (x, y) in enumerate(zip(leaves, expected_leaves, strict=False)):
        actual, reference = np.asarray(x), np.asarray(y)
        if (actual.shape, actual.dtype) != (reference.shape, reference.dtype):
            types = [f"{array.dtype}{array.shape}" for array in (actual, reference)]
            yield f"result {index} is {types[0]}, and {types[1]} on one device"
        elif call.exact or actual.dtype.kind in "iubSU":
            if actual.tobytes() != reference.tobytes():
                yield f"result {index} differs:\n{actual}\nand on one device\n{reference}"
        else:
            wide = complex if actual.dtype.kind == "c" else float
            try:
                np.testing.assert_allclose(actual.astype(wide), reference.astype(wide), call.rtol, call.atol)
            except AssertionError as error:
                yield f"result {index}: {error}"
