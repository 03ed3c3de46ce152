"""Groups of the inputs or outputs of a report: arrays with one layout, named by the patterns of their tree paths."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from shardwise.compiler.report.report import EndRow
from shardwise.compiler.shardings.layout import Layout

MAX_SINGLE = 12  # the most inputs or outputs to list individually
_MAX_PATTERNS = 3


@final
@dataclass(frozen=True)
class EndGroup:
    """Inputs or outputs with the same layout."""

    layout: Layout
    rows: tuple[EndRow, ...]

    @property
    def bytes(self) -> int:
        """The bytes of one device's shards, summed over all arrays."""
        return sum(row.bytes for row in self.rows)

    @property
    def names(self) -> str:
        """The patterns of the names, such as `` `params['layers'][*]['w']` ``; only the first if there are many."""
        return path_patterns([row.name for row in self.rows])


def path_patterns(names: Sequence[str]) -> str:
    """Return the patterns of tree paths, only the first if there are many. A path with a unique pattern is kept."""
    paths: dict[str, list[str]] = {}
    for name in names:
        paths.setdefault(path_pattern(name), []).append(name)
    shown = [same[0] if len(same) == 1 else pattern for pattern, same in paths.items()]
    more = len(shown) - _MAX_PATTERNS
    return ", ".join(shown[:_MAX_PATTERNS]) + (f" and {more} more" if more > 0 else "")


def path_pattern(name: str) -> str:
    """Return a tree path with `*` for indices, and for numbers in all keys but the last: `params['h_*'][*]['w1']`."""
    return re.sub(r"(?<=\[)\d+(?=\])|\d+(?='\][\[.])", "*", name)


def group_by_layout(rows: Sequence[EndRow]) -> list[EndGroup]:
    """Return the arrays grouped by layout, the group with the most bytes first."""
    groups: dict[Layout, list[EndRow]] = {}
    for row in rows:
        groups.setdefault(row.layout, []).append(row)
    return sorted((EndGroup(layout, tuple(group)) for layout, group in groups.items()), key=lambda group: -group.bytes)
