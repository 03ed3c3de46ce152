"""The same calls on one device and on a mesh, whose arrays are cut along their first dim, then along their last."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import shardwise as sw
from shardwise import lax
from tests.agreement import layouts_of
from tests.layouts.call import Call


def on_many_devices_as_on_one(mesh: Any, calls: Sequence[Call], compiled: bool = True) -> None:
    """All calls are one program on one device, and one for each of two layouts."""
    run = sw.jit if compiled else (lambda function: function)
    here = [[sw.device_put(x) for x in one.arrays] for one in calls]
    wanted = run(lambda arrays: _results(calls, arrays))(here)
    wrong = []
    for which in ("first", "last"):
        placed = [[sw.device_put(x, layouts_of(mesh, x.ndim, which)) for x in one.arrays] for one in calls]

        def cut(x: Any, which: str = which) -> Any:
            return lax.with_sharding_constraint(x, layouts_of(mesh, x.ndim, which))

        found = run(lambda arrays, cut=cut: _results(calls, arrays, cut))(placed)
        for row in zip(calls, found, wanted, strict=True):
            wrong += [f"{row[0]}, {which} dim cut: {text}" for text in _differences(*row)]
    assert not wrong, "\n".join(wrong)


def _results(calls: Sequence[Call], arrays: Any, cut: Callable[[Any], Any] | None = None) -> list[Any]:
    """What each call gives; what it makes of no array is cut."""
    found = [one.function(*mine) for one, mine in zip(calls, arrays, strict=True)]
    return [sw.tree.map(cut, tree) if cut and not one.arrays else tree for one, tree in zip(calls, found, strict=True)]


def _differences(one: Call, found: Any, wanted: Any) -> Iterator[str]:
    mine, others = sw.tree.leaves(found), sw.tree.leaves(wanted)
    if len(mine) != len(others):
        yield f"{len(mine)} results, and {len(others)} on one device"
    for number, (x, y) in enumerate(zip(mine, others, strict=False)):
        got, want = np.asarray(x), np.asarray(y)
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            yield f"result {number} is {got.dtype}{got.shape}, and {want.dtype}{want.shape} on one device"
        elif one.exact or got.dtype.kind in "iubSU":
            if got.tobytes() != want.tobytes():
                yield f"result {number} differs:\n{got}\nand on one device\n{want}"
        else:
            wide = complex if got.dtype.kind == "c" else float
            try:
                np.testing.assert_allclose(got.astype(wide), want.astype(wide), one.rtol, one.atol)
            except AssertionError as error:
                yield f"result {number}: {error}"
