"""Wire bytes: the bytes that one device sends in one run of an optimized HLO module.

The input is the text of the module, from any library. The result is every collective that runs, with the bytes that one
device sends. For a group of g devices and V bytes:

    all-reduce          2V(g−1)/g
    all-gather           V(g−1)/g    V is the result
    reduce-scatter       V(g−1)/g    V is the operand, g times the result
    all-to-all           V(g−1)/g
    collective-permute   V

A loop body counts once per iteration, or once if XLA does not know the trip count. Of the branches of a conditional,
the one that sends most counts. An asynchronous pair counts once, at its start. A collective without a formula is an
error.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from shardwise.compiler.traffic import (
    NOTHING_SENT,
    Traffic,
    all_gather,
    all_reduce,
    all_to_all,
    one_hop,
    reduce_scatter,
)
from shardwise.explain.hlo_groups import device_groups, device_pairs
from shardwise.runtime.hlo_text import HloInstruction, bare_name, elements, read_computations
from shardwise.runtime.hlo_types import bytes_of

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
WITHOUT_FORMULA = ("ragged-all-to-all", "collective-broadcast", "send")

_TRIP_COUNT = re.compile(r'\\?"known_trip_count\\?":\s*\{\\?"n\\?":\\?"(\d+)\\?"')
_BRANCHES = re.compile(r"\b(?:branch_computations=\{([^}]*)\}|true_computation=([^,\s]+), false_computation=([^,\s]+))")


@final
@dataclass(frozen=True)
class Collective:
    """One collective of a module.

    Attributes:
        kind: its opcode, without `-start`.
        name: the name of its instruction.
        devices: the positions of the devices of one group, which communicate with each other; of unequal groups, the
            largest; of a permute, the pair that is farthest apart.
        traffic: its bytes and hops per execution.
        times: how many times it is executed.
    """

    kind: str
    name: str
    devices: tuple[int, ...]
    traffic: Traffic
    times: int = 1

    @property
    def sent(self) -> float:
        """The bytes that one device sends per execution, by a ring."""
        return self.traffic[0].bytes_sent if self.traffic else 0.0


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
    module = _Module(text)
    return module.wire(module.entry)


@final
class _Module:
    """A module, parsed into computations."""

    def __init__(self, text: str):
        header, _, _ = text.partition("\n")
        self.replicas, self.partitions = _number(header, "replica_count"), _number(header, "num_partitions")
        self._computations = read_computations(text)
        self._cache: dict[str, Wire] = {}
        if self._computations.entry is None:
            raise ValueError(f"not an HLO module with an ENTRY computation: {header[:80]!r}")
        self.entry = self._computations.entry

    def wire(self, computation: str) -> Wire:
        """Return the collectives of one run of a computation, including those that it calls."""
        if computation not in self._cache:
            parts = [part for each in self._computations.by_name[computation] for part in self._parts(each)]
            collectives = tuple(each for part in parts for each in part.collectives)
            self._cache[computation] = Wire(collectives, sum(part.unknown_loops for part in parts))
        return self._cache[computation]

    def _parts(self, instruction: HloInstruction) -> Iterator[Wire]:
        opcode = instruction.opcode
        kind = opcode.removesuffix("-start")
        if kind in KINDS:
            collective = self._collective(kind, instruction)
            if collective.sent:
                yield Wire((collective,))
        elif kind in WITHOUT_FORMULA and "is_host_transfer=true" not in instruction.attributes:
            raise ValueError(f"no formula for the bytes of {kind}: {instruction.line.strip()}")
        elif opcode == "while":
            yield self._loop(instruction)
        elif opcode == "conditional":
            branches = _BRANCHES.search(instruction.attributes)
            if branches is None:
                raise ValueError(f"a conditional without branches: {instruction.line.strip()}")
            names = branches[1].split(",") if branches[1] else branches.group(2, 3)
            yield max((self.wire(bare_name(name)) for name in names), key=lambda branch: branch.sent)
        elif opcode not in ("async-update", "async-done"):
            for name in instruction.called:
                yield self.wire(name)

    def _loop(self, instruction: HloInstruction) -> Wire:
        body, condition = instruction.value("body"), instruction.value("condition")
        if body is None or condition is None:
            raise ValueError(f"a loop without a body or a condition: {instruction.line.strip()}")
        body_wire, condition_wire = self.wire(bare_name(body)), self.wire(bare_name(condition))
        trips = _TRIP_COUNT.search(instruction.line)
        trip_count = int(trips[1]) if trips else 1
        collectives = [replace(each, times=each.times * trip_count) for each in body_wire.collectives]
        collectives += [replace(each, times=each.times * (trip_count + 1)) for each in condition_wire.collectives]
        unknown = body_wire.unknown_loops + condition_wire.unknown_loops + (trips is None and bool(collectives))
        return Wire(tuple(each for each in collectives if each.times), unknown)

    def _collective(self, kind: str, instruction: HloInstruction) -> Collective:
        size = bytes_of(_result(kind, instruction))
        if kind == "collective-permute":
            pairs = device_pairs(instruction)
            farthest = max(pairs, key=lambda pair: abs(pair[0] - pair[1]), default=())
            return Collective(kind, instruction.name, farthest, one_hop(size) if pairs else NOTHING_SENT)
        devices = self._devices(kind, instruction)
        return Collective(kind, instruction.name, devices, _traffic(kind, size, len(devices)))

    def _devices(self, kind: str, instruction: HloInstruction) -> tuple[int, ...]:
        """Return the devices of the largest group."""
        channel = instruction.value("channel_id") is not None
        named_globally = "use_global_device_ids=true" in instruction.attributes
        all_devices = self.replicas * self.partitions if channel else self.replicas
        if channel and kind == "all-to-all":
            all_devices = self.partitions
        groups = device_groups(instruction)
        if not groups:
            return tuple(range(all_devices))
        group = max(groups, key=len)
        if not channel or named_globally or kind == "all-to-all":
            return group
        # Without global device ids, a group lists replicas, and includes all partitions of each.
        return tuple(replica * self.partitions + number for replica in group for number in range(self.partitions))


def _traffic(kind: str, size: int, group: int) -> Traffic:
    """Return the traffic of a collective whose result has `size` bytes."""
    match kind:
        case "all-reduce":
            return all_reduce(size, group)
        case "all-gather":
            return all_gather(size / group, group)
        case "reduce-scatter":
            return reduce_scatter(size * group, group)
        case _:
            return all_to_all(size, group)


def _result(kind: str, instruction: HloInstruction) -> str:
    """Return the result type of a collective; an asynchronous start, except all-reduce, lists its operands first."""
    if kind in (instruction.opcode, "all-reduce"):
        return instruction.type
    return elements(instruction.type)[1]


def _number(header: str, key: str) -> int:
    match = re.search(rf"\b{key}=(\d+)", header)
    return int(match[1]) if match else 1
