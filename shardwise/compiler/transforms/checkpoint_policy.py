"""Policies of `checkpoint`: whether a derivative may save a result, and in which memory."""

from collections.abc import Callable
from typing import final

from shardwise.compiler.ir.record import record


@final
@record
class Offload:
    """A policy's decision to save a value in this memory kind (`pinned_host`) until the backward pass."""

    kind: str


Policy = Callable[..., bool | Offload]  # an op and the types of its operands → whether its results may be saved
