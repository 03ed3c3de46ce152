"""Cause: why a collective was put into a local program, as text for users and as data for reports."""

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
