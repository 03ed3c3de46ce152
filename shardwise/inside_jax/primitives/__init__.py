"""The primitives of JAX that are no single op of Shardwise, or whose parameters differ: functions of arrays.

A function takes the operands of the equation and its parameters. Jaxprs among them are functions that return lists, and
meshes, shardings, enums and dimension numbers are Shardwise's. One that JAX's own types already checked is not checked
again.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shardwise.inside_jax.primitives import (
    callbacks,
    collectives,
    control,
    elementwise,
    indexing,
    linalg,
    placement,
    random,
    reductions,
    shape,
)

PRIMITIVES: Mapping[str, Callable[..., Any]] = {
    **elementwise.PRIMITIVES,
    **shape.PRIMITIVES,
    **reductions.PRIMITIVES,
    **indexing.PRIMITIVES,
    **linalg.PRIMITIVES,
    **random.PRIMITIVES,
    **control.PRIMITIVES,
    **callbacks.PRIMITIVES,
    **placement.PRIMITIVES,
    **collectives.PRIMITIVES,
}
