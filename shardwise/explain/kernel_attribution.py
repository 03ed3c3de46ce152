"""Attribute the kernels of a profile to the HLO instructions that launched them.

Most events name their instruction. Those of a CUDA graph name the graph only (`command_buffer_1`), so they are aligned:
the instructions are in the order of the schedule, the kernels in the order of their starts. XLA names a kernel that it
has generated after the instruction, or after an instruction with an equal computation, with another number. Kernels of
libraries have names of their own: an instruction that calls a library may launch several.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardwise.explain.device_trace import DeviceEvent
from shardwise.explain.hlo_kernels import FREE
from shardwise.explain.hlo_module import KINDS, HloModule, branches_of, loop_of
from shardwise.runtime.hlo_text import HloInstruction

_SAME_NAME, _SAME_STEM, _SAME_LIBRARY, _ANY_LIBRARY = 3.5, 3.0, 2.0, 1.0
# The score of a kernel that is the first of its instruction. A library clears its workspace before its kernels.
_FIRST_KERNEL, _FIRST_MEMSET = 1.0, 1.5
_NUMBERS = re.compile(r"(_+\d+)+$")
_LIBRARIES = (  # the names of kernels of libraries, and the instructions that call them
    (re.compile(r"sdpa|flash|fmha|attention|cudnn::fusion"), re.compile(r"__cudnn\$fmha")),
    (re.compile(r"conv|fprop|dgrad|wgrad|cudnn"), re.compile(r"__cudnn\$conv|\bconvolution\(")),
    (re.compile(r"nvjet|gemm|cutlass|cublas|splitK|gemv"), re.compile(r"__cublas|\bdot\(")),
    (re.compile(r"nccl"), re.compile("|".join(KINDS))),
    (re.compile(r"Memcpy"), re.compile(r"\bcopy(-start)?\(|dynamic-update-slice|dynamic-slice|\bslice\(")),
)
_LIBRARY_CALLS = (
    "custom-call",
    "dot",
    "convolution",
    "fft",
    "sort",
    "copy",
    "copy-start",
    "cholesky",
    "triangular-solve",
)
_NO_STEM = re.compile(r"Mem(set|cpy)|.*[^\w]")  # `Memset 0`, `void cudnn::f<true>(...)`


@final
@dataclass(frozen=True)
class Launch:
    """An instruction of a module that launches kernels.

    Attributes:
        instruction: the instruction.
        scope: the computation that contains it.
        root: the name of the instruction that it computes, if it is a fusion; else its own.
    """

    instruction: HloInstruction
    scope: str
    root: str


def launches(module: HloModule) -> list[Launch]:
    """Return the instructions that may launch kernels, in the order of the schedule; the body of a loop once."""
    return list(_launches(module, module.entry))


def attribute(events: Sequence[DeviceEvent], module: HloModule) -> list[Launch | None]:
    """Return the instruction of each event of one run; None if it is unknown.

    Args:
        events: the events, by start.
        module: the optimized HLO of the program.
    """
    all_launches = launches(module)
    by_name = {launch.instruction.name: launch for launch in all_launches}
    nodes: dict[tuple[str, int, str], DeviceEvent] = {}
    for event in events:
        if event.instruction not in by_name:
            nodes.setdefault(_key(event), event)
    named = {event.instruction for event in events}
    unnamed = [launch for launch in all_launches if launch.instruction.name not in named]
    aligned = dict(zip(nodes, _align(list(nodes.values()), unnamed), strict=True))
    return [by_name.get(event.instruction) or aligned[_key(event)] for event in events]


def _key(event: DeviceEvent) -> tuple[str, int, str]:
    """Return the identity of a node of a graph, which a loop runs several times."""
    return event.instruction, event.node, event.kernel


def _launches(module: HloModule, computation: str) -> Iterator[Launch]:
    for instruction in module.computations.by_name[computation]:
        match instruction.opcode:
            case "while":
                loop = loop_of(instruction)
                yield from _launches(module, loop.condition)
                yield from _launches(module, loop.body)
            case "conditional":
                for branch in branches_of(instruction):
                    yield from _launches(module, branch)
            case "call" | "async-start":
                for called in instruction.called:
                    yield from _launches(module, called)
            case opcode if opcode not in FREE:
                yield Launch(instruction, computation, _root(module, instruction))


def _root(module: HloModule, instruction: HloInstruction) -> str:
    if instruction.opcode.removesuffix("-start") != "fusion" or not instruction.called:
        return instruction.name
    return module.computations.by_name[instruction.called[0]][-1].name


def _align(events: Sequence[DeviceEvent], candidates: Sequence[Launch]) -> list[Launch | None]:
    """Align kernels with instructions, both in their order, for the highest sum of scores."""
    if not candidates:
        return [None] * len(events)
    stems = [_stems(launch) for launch in candidates]
    scores: dict[str, Any] = {}
    best = np.zeros(len(candidates))
    origins = []  # for each event, the instruction of the event before that is best for each instruction
    skipped = []
    for event in events:
        if event.kernel not in scores:
            scores[event.kernel] = _scores(event.kernel, candidates, stems)
        # The best earlier instruction, and the event begins the next one; or the event continues its instruction.
        ends = np.maximum.accumulate(best)
        firsts = np.maximum.accumulate(np.where(best == ends, np.arange(len(best)), 0))
        begins = np.concatenate([[0.0], ends[:-1]]) + (
            _FIRST_MEMSET if event.kernel.startswith("Memset") else _FIRST_KERNEL
        )
        before = np.concatenate([[0], firsts[:-1]])
        continues = best >= begins
        total = np.where(continues, best, begins) + scores[event.kernel]
        skips = total < best
        origins.append(np.where(continues | skips, np.arange(len(best)), before))
        skipped.append(skips)
        best = np.where(skips, best, total)
    index = int(np.argmax(best))
    found: list[Launch | None] = []
    for event, origin, skips in zip(reversed(events), reversed(origins), reversed(skipped), strict=True):
        found.append(_with_stem(event, candidates, stems) if skips[index] else candidates[index])
        index = int(origin[index])
    return found[::-1]


def _scores(kernel: str, candidates: Sequence[Launch], stems: Sequence[frozenset[str]]) -> Any:
    """Return how well a kernel fits each instruction; -inf if the instruction cannot have launched it."""
    stem = _stem(kernel)
    if any(stem in each for each in stems):
        named = np.array([_sanitized(launch.instruction.name) == kernel for launch in candidates])
        same = np.array([stem in each for each in stems])
        return np.where(named, _SAME_NAME, np.where(same, _SAME_STEM, -np.inf))
    callers = [caller for names_of_kernels, caller in _LIBRARIES if names_of_kernels.search(kernel)][:1]
    return np.array([_library_score(launch.instruction, callers) for launch in candidates])


def _library_score(instruction: HloInstruction, callers: Sequence[re.Pattern[str]]) -> float:
    if callers and callers[0].search(instruction.line):
        return _SAME_LIBRARY
    calls = instruction.opcode in _LIBRARY_CALLS or instruction.opcode.removesuffix("-start") in KINDS
    return _ANY_LIBRARY if calls else -np.inf


def _with_stem(event: DeviceEvent, candidates: Sequence[Launch], stems: Sequence[frozenset[str]]) -> Launch | None:
    """Return an instruction with the name of a kernel that is out of order, as on another stream."""
    stem = _stem(event.kernel)
    return next((launch for launch, each in zip(candidates, stems, strict=True) if stem in each), None)


def _stems(launch: Launch) -> frozenset[str]:
    """Return the names without numbers that kernels of an instruction may have."""
    return frozenset(_NUMBERS.sub("", _sanitized(name)) for name in (launch.instruction.name, launch.root))


def _stem(kernel: str) -> str:
    """Return the name of a kernel without numbers."""
    return "" if _NO_STEM.match(kernel) else _NUMBERS.sub("", kernel)


def _sanitized(name: str) -> str:
    """Return the name that XLA gives to the kernel of an instruction."""
    return re.sub(r"[.\-]", "_", name)
