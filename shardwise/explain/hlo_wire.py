"""Wire bytes: the bytes that one device sends in one run of an optimized HLO module, from any library.

A loop body counts once per iteration, or once if XLA does not know the trip count. Of the branches of a conditional,
the one that sends most counts. An asynchronous pair counts once, at its start.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from shardwise.explain.hlo_module import Collective, HloModule, branches_of, loop_of
from shardwise.runtime.hlo_text import HloInstruction


@final
@dataclass(frozen=True)
class Wire:
    """The collectives of a module. `unknown_loops`: loops with collectives and an unknown trip count."""

    collectives: tuple[Collective, ...]
    unknown_loops: int = 0

    @property
    def sent(self) -> float:
        """The bytes that one device sends in one run."""
        return sum(each.sent * each.times for each in self.collectives)

    @property
    def count(self) -> int:
        """The number of collectives that run; those that XLA combined count as one."""
        return sum(each.times for each in self.collectives)

    def kinds(self) -> dict[str, int]:
        """Return the number of collectives of each kind."""
        counter: Counter[str] = Counter()
        for each in self.collectives:
            counter[each.kind] += each.times
        return dict(counter)


def wire(text: str) -> Wire:
    """Return the collectives of an optimized HLO module, given as text."""
    module = HloModule(text)
    return _Count(module, {}).of(module.entry)


@final
@dataclass(frozen=True)
class _Count:
    """Counts the collectives of a module. `found` has those of the computations that are counted already."""

    module: HloModule
    found: dict[str, Wire]

    def of(self, computation: str) -> Wire:
        """Return the collectives of one run of a computation, including those that it calls."""
        if computation not in self.found:
            body = self.module.computations.by_name[computation]
            parts = [part for each in body for part in self._parts(each)]
            collectives = tuple(each for part in parts for each in part.collectives)
            self.found[computation] = Wire(collectives, sum(part.unknown_loops for part in parts))
        return self.found[computation]

    def _parts(self, instruction: HloInstruction) -> Iterator[Wire]:
        if collective := self.module.collective(instruction):
            yield Wire((collective,))
            return
        match instruction.opcode:
            case "while":
                yield self._loop(instruction)
            case "conditional":
                yield max(map(self.of, branches_of(instruction)), key=lambda branch: branch.sent)
            case "async-update" | "async-done":
                pass
            case _:
                yield from map(self.of, instruction.called)

    def _loop(self, instruction: HloInstruction) -> Wire:
        loop = loop_of(instruction)
        body, condition = self.of(loop.body), self.of(loop.condition)
        trip_count = 1 if loop.trip_count is None else loop.trip_count
        collectives = [replace(each, times=each.times * trip_count) for each in body.collectives]
        collectives += [replace(each, times=each.times * (trip_count + 1)) for each in condition.collectives]
        unknown = body.unknown_loops + condition.unknown_loops + (loop.trip_count is None and bool(collectives))
        return Wire(tuple(each for each in collectives if each.times), unknown)
