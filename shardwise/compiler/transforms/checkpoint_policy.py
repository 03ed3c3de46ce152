"""Policies of `checkpoint`: whether a derivative may save a result, and in which memory."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple, final


class Offloadable(NamedTuple):
    """The decision of a policy to save a value in another memory until the backward pass.

    Attributes:
        src: the memory of the value, "device".
        dst: the kind of memory in which it is saved, "pinned_host" or "unpinned_host".

    Example:
        >>> jax.ad_checkpoint.Offloadable("device", "pinned_host").dst
        'pinned_host'
    """

    src: str
    dst: str


@final
class SaveableType:
    """The class of `Saveable`, the decision of a policy to save a value; True means the same."""


@final
class RecomputeType:
    """The class of `Recompute`, the decision of a policy to recompute a value; False means the same."""

    def __bool__(self) -> bool:
        return False


Saveable = SaveableType()
Recompute = RecomputeType()
Decision = bool | Offloadable | SaveableType | RecomputeType
Policy = Callable[..., Decision]  # an op and the types of its operands → whether its results may be saved

# The policy of the `checkpoint` whose function is being traced; None outside of `checkpoint`.
current_policy: ContextVar[Policy | None] = ContextVar("current_policy", default=None)
