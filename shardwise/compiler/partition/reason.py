"""Why a collective is in a local program, as text for users and as data for reports: the planner put it there, for a
cause, or the user wrote it."""

from typing import final

from shardwise.compiler.ir.program import Value
from shardwise.compiler.shardings.layout import Layout


@final
class Cause(str):
    """The reason as text. `value`, of the whole program, lay as `before` and was needed as `after`."""

    __slots__ = ("after", "before", "value")
    value: Value
    before: Layout
    after: Layout

    @staticmethod
    def of(text: str, value: Value, before: Layout, after: Layout) -> "Cause":
        cause = Cause(text)
        cause.value, cause.before, cause.after = value, before, after
        return cause


@final
class ByHand(str):
    """The reason of a collective that the user wrote, in a manual region, or that is the derivative of one."""

    __slots__ = ()


def is_inserted(reason: str) -> bool:
    """Whether the planner put an equation there, by its reason."""
    return bool(reason) and not isinstance(reason, ByHand)
