"""Host time of one call, until the result is ready, for programs that compute almost nothing: library overhead."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import ours, peer
from benchmarks.measure import Effort, interleaved
from benchmarks.row import Case, Row

TREE = 100  # leaves
VALUE = np.ones(8, np.float32)


def cases(quick: bool) -> list[Case]:
    effort = Effort(rounds=2, seconds=0.01) if quick else Effort(rounds=15, seconds=0.1)
    table: list[tuple[str, Callable[[Any], Callable[[], Any]], float | None]] = [
        ("jit call, x+1, 1 device", partial(increment, devices=1), 1.5),
        ("jit call, x+1, 8 devices", partial(increment, devices=8), 1.15),
        (f"jit call, pytree of {TREE}, 1 device", partial(increment_tree, devices=1), 1.0),
        (f"jit call, pytree of {TREE}, 8 devices", partial(increment_tree, devices=8), 1.15),
        ("eager x+1.0, 1 device", eager, 1.5),
        ("device_put of f32[8] over 8 devices", device_put, None),
    ]
    return [Case(name, partial(rows, name, call, effort, bar)) for name, call, bar in table]


def rows(name: str, call: Callable[[Any], Callable[[], Any]], effort: Effort, bar: float | None) -> list[Row]:
    return [Row.timed(name, interleaved(call(ours), call(peer), effort), bar)]


def put_value(side: Any, devices: int) -> Any:
    return side.put(VALUE) if devices == 1 else side.put(VALUE, side.mesh((devices,), ("x",)), ("x",))


def increment(side: Any, devices: int) -> Callable[[], Any]:
    x, call, wait = put_value(side, devices), side.library.jit(lambda x: x + 1), side.wait_one
    return lambda: wait(call(x))


def increment_tree(side: Any, devices: int) -> Callable[[], Any]:
    tree = {f"x{index:03}": put_value(side, devices) for index in range(TREE)}
    call, wait = side.library.jit(lambda tree: {key: x + 1 for key, x in tree.items()}), side.wait
    return lambda: wait(call(tree))


def eager(side: Any) -> Callable[[], Any]:
    x, wait = put_value(side, 1), side.wait_one
    return lambda: wait(x + 1.0)


def device_put(side: Any) -> Callable[[], Any]:
    mesh, wait, put = side.mesh((8,), ("x",)), side.wait_one, side.library.device_put
    sharding = side.put(VALUE, mesh, ("x",)).sharding
    return lambda: wait(put(VALUE, sharding))
