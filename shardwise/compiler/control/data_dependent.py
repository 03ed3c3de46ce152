"""DataDependentControl: the base class of `cond` and `while`, whose control flow depends on a scalar."""

from collections.abc import Sequence
from typing import Self

from shardwise.compiler.control.control_rules import ControlRules
from shardwise.compiler.ir.op import NumpyArray, Shards
from shardwise.errors import ProgramError


class DataDependentControl(ControlRules):
    """A control op whose control flow depends on a scalar that is computed at run time.

    `may_diverge` is whether devices may take different paths, which is allowed only in a manual region.
    """

    may_diverge: bool

    def allowing_divergence(self) -> Self:
        raise self.missing_rule("allowing_divergence")

    def choice_per_device(self, shards: Sequence[NumpyArray]) -> list[int]:
        """Return the scalar of each device, after checking that all are equal unless devices may diverge."""
        choices = [int(shard) for shard in shards]
        if not self.may_diverge and len(set(choices)) > 1:
            raise ProgramError(f"{self.name}: devices must take the same branch, but their predicates are {choices}")
        return choices


def select_per_device(
    choices: Sequence[int], choice: int, on_match: Sequence[Shards], otherwise: Sequence[Shards]
) -> list[Shards]:
    """Select `on_match` on devices with this choice, and `otherwise` on the others."""
    return [
        [x if own == choice else y for own, x, y in zip(choices, xs, ys, strict=True)]
        for xs, ys in zip(on_match, otherwise, strict=True)
    ]
