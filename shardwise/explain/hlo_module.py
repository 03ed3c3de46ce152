"""Read a module of optimized HLO: its collectives, loops and conditionals, from the text of any library.

For a group of g devices and V bytes, one device sends:

    all-reduce          2V(g−1)/g
    all-gather           V(g−1)/g    V is the result
    reduce-scatter       V(g−1)/g    V is the operand, g times the result
    all-to-all           V(g−1)/g
    collective-permute   V

A collective without a formula is an error.
"""

import re
from dataclasses import dataclass
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
class Loop:
    """A while loop: the names of its body and condition, and its trip count; None if XLA does not know it."""

    body: str
    condition: str
    trip_count: int | None


def loop_of(instruction: HloInstruction) -> Loop:
    """Return the loop that a `while` instruction is."""
    body, condition = instruction.value("body"), instruction.value("condition")
    if body is None or condition is None:
        raise ValueError(f"a loop without a body or a condition: {instruction.line.strip()}")
    trips = _TRIP_COUNT.search(instruction.line)
    return Loop(bare_name(body), bare_name(condition), int(trips[1]) if trips else None)


def branches_of(instruction: HloInstruction) -> list[str]:
    """Return the names of the branches of a `conditional` instruction."""
    branches = _BRANCHES.search(instruction.attributes)
    if branches is None:
        raise ValueError(f"a conditional without branches: {instruction.line.strip()}")
    return [bare_name(name) for name in (branches[1].split(",") if branches[1] else branches.group(2, 3))]


@final
class HloModule:
    """A module, parsed into computations.

    Attributes:
        computations: its computations.
        entry: the name of the computation that runs.
    """

    def __init__(self, text: str):
        header, _, _ = text.partition("\n")
        self._replicas, self._partitions = _number(header, "replica_count"), _number(header, "num_partitions")
        self.computations = read_computations(text)
        if self.computations.entry is None:
            raise ValueError(f"not an HLO module with an ENTRY computation: {header[:80]!r}")
        self.entry = self.computations.entry

    def collective(self, instruction: HloInstruction) -> Collective | None:
        """Return the collective that an instruction is or starts; None if it is none, or sends nothing.

        Raises:
            ValueError: if there is no formula for its bytes.
        """
        kind = instruction.opcode.removesuffix("-start")
        if kind in WITHOUT_FORMULA and "is_host_transfer=true" not in instruction.attributes:
            raise ValueError(f"no formula for the bytes of {kind}: {instruction.line.strip()}")
        if kind not in KINDS:
            return None
        collective = self._collective(kind, instruction)
        return collective if collective.sent else None

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
        all_devices = self._replicas * self._partitions if channel else self._replicas
        if channel and kind == "all-to-all":
            all_devices = self._partitions
        groups = device_groups(instruction)
        if not groups:
            return tuple(range(all_devices))
        group = max(groups, key=len)
        if not channel or named_globally or kind == "all-to-all":
            return group
        # Without global device ids, a group lists replicas, and includes all partitions of each.
        return tuple(replica * self._partitions + number for replica in group for number in range(self._partitions))


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
    """Return the result type of a collective. The type of an asynchronous start lists its operands first.

    The start of an all-reduce does so from jaxlib 0.11 on, where the operands are a tuple; before, it has the result.
    """
    if kind == instruction.opcode or (kind == "all-reduce" and not instruction.type.startswith("((")):
        return instruction.type
    return elements(instruction.type)[1]


def _number(header: str, key: str) -> int:
    match = re.search(rf"\b{key}=(\d+)", header)
    return int(match[1]) if match else 1
