"""Policies of `checkpoint`: which results a derivative may save, and in which memory."""

from collections.abc import Callable
from typing import final

from shardwise.compiler.ir.record import record


@final
@record
class Offload:
    """The decision of a policy to save a value in a memory of this kind (`pinned_host`) until the backward pass."""

    kind: str


Policy = Callable[..., bool | Offload]  # an op and the types of its operands → whether its results may be saved
