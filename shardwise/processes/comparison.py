"""Comparison of the programs that processes launch, on the coordinator's side.

The processes of a set must launch the same programs in the same order. Before the first run of a program, each process
sends the program's fingerprint (`Comparison`) and waits. The k-th comparison of a set must have the same fingerprint in
all processes, after the same launches. Later launches only update a rolling hash, which members send periodically and
when they leave: hashes after equal numbers of launches must be equal. Before a member reads a value, it waits until its
hash has been compared with the others' (`Confirm`). When a difference is found, the coordinator requests the programs
from the processes, and sends the first differing line to all processes of the set.

A callback runs in one process, and the others receive its result. So the coordinator also tells the processes of a set
whether the callbacks of a launch succeeded in all of them.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import final

from shardwise.processes.protocol import (
    CallbackResult,
    CallbacksEnded,
    Comparison,
    Confirm,
    Confirmed,
    Equal,
    Message,
    Mismatch,
    Progress,
)

_REMEMBERED = 256  # launch counts, and steps, whose hashes are kept for members that report later
VALUE = "host value "  # the prefix of the name of a compared value, in contrast to a program
_HASH_ANSWER = re.compile(r"([0-9]{1,20}) ([0-9]{1,20})")  # a launch count and the rolling hash
_LINE_LENGTH = 300  # the most characters of a line in a message

_Hash = tuple[int, int, int]  # the rank of a member, a launch count, and the rolling hash
Ask = Callable[[int, str, str, Callable[[str], None]], None]  # rank, question, detail, callback for the answer
Send = Callable[[int, Message], None]


@final
@dataclass
class _ProcessSet:
    """The state of one set of processes."""

    ranks: list[int]
    waiting: dict[int, Comparison] = field(default_factory=dict)  # by rank
    callbacks: dict[int, dict[int, CallbacksEnded]] = field(default_factory=dict)  # by launch and rank
    hashes: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)  # launch count → rank and hash
    steps: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)  # step → rank and launch count
    launches: dict[int, tuple[int, int]] = field(default_factory=dict)  # rank → the last known count and hash
    ended: set[int] = field(default_factory=set)  # ranks that will not launch again
    mismatch: Mismatch | None = None
    is_searching: bool = False  # a difference was found, and the programs have not arrived yet


@final
class LaunchComparison:
    """Compares the launches of all members.

    Args:
        ask: sends a question to a member, and passes the answer to a callback; "" if the member does not answer.
        send: sends a message to a member.
    """

    def __init__(self, ask: Ask, send: Send):
        self._ask = ask
        self._send = send
        self._sets: dict[str, _ProcessSet] = {}
        self._failed: set[int] = set()

    def give_up(self, rank: int) -> None:
        """Record that a member failed. The survivors abandon its sets, each after its own launch."""
        self._failed.add(rank)

    def is_given_up(self, processes: str) -> bool:
        """Return whether a member of a set failed, so that the launch counts of the others may differ."""
        return not self._failed.isdisjoint(self._set(processes).ranks)

    def _set(self, processes: str) -> _ProcessSet:
        if processes not in self._sets:
            self._sets[processes] = _ProcessSet([int(rank) for rank in processes.split(",") if rank.isdecimal()])
        return self._sets[processes]

    def receive_progress(self, rank: int, progress: Progress) -> None:
        """Compare the hashes that a member sends."""
        for processes, (count, rolling_hash, *_) in progress.launches.items():
            state = self._set(processes)
            self._compare_hash(processes, rank, count, rolling_hash)
            if progress.at_step and progress.step is not None and not self.is_given_up(processes):
                other, expected = state.steps.setdefault(progress.step, (rank, count))
                if expected != count:
                    self._report_step(processes, progress.step, {other: expected, rank: count})
            _trim(state.steps)
            self._check_waiting(processes)

    def receive_end(self, rank: int, launches: dict[str, list[int]]) -> None:
        """Compare the hashes of a member that will not launch again."""
        for processes, (count, rolling_hash, *_) in launches.items():
            state = self._set(processes)
            state.ended.add(rank)
            self._compare_hash(processes, rank, count, rolling_hash)
            own = rank, count, rolling_hash
            for other, (other_count, _) in list(state.launches.items()):
                if other_count != count and state.mismatch is None:
                    self._compare_launches(processes, other, own, lambda _: None)

    @property
    def is_searching(self) -> bool:
        """Whether a difference was found, and its message is not complete yet."""
        return any(state.is_searching for state in self._sets.values())

    def _compare_hash(self, processes: str, rank: int, count: int, rolling_hash: int) -> None:
        """Compare the hash of a member with the hash of another member after the same number of launches."""
        state = self._set(processes)
        state.launches[rank] = count, rolling_hash
        other, expected = state.hashes.setdefault(count, (rank, rolling_hash))
        _trim(state.hashes)
        if expected != rolling_hash:
            self._search_history(processes, other, rank)

    def receive_confirm(self, rank: int, confirm: Confirm) -> None:
        """Compare the launches of a member that is about to read a value with the launches of all others.

        The value is ready, so every process that takes part in its computation has launched its program. A different
        order shows in the launches that both have made. No member waits for a process that has launched less.
        """
        processes, state = confirm.processes, self._set(confirm.processes)
        if state.mismatch is not None:
            self._send(rank, state.mismatch)
            return
        self._compare_hash(processes, rank, confirm.launch, confirm.rolling_hash)
        own = confirm.launch, confirm.rolling_hash
        pending = {other for other in state.ranks if other != rank and state.launches.get(other) != own}
        common = confirm.launch  # the number of launches that all processes have made

        def finish(other: int, count: int) -> None:
            nonlocal common
            common = min(common, count)
            pending.discard(other)
            if not pending and not state.is_searching and state.mismatch is None:
                self._send(rank, Confirmed(processes, confirm.number, common))

        if not pending:
            finish(rank, common)
        for other in list(pending):
            self._compare_launches(processes, other, (rank, *own), partial(finish, other))

    def _compare_launches(self, processes: str, rank: int, known: "_Hash", then: Callable[[int], None]) -> None:
        """Compare the launches of two members, up to the smaller launch count.

        `then` is called with the number of compared launches if they are equal.
        """
        state = self._set(processes)
        if rank in state.ended:
            self._compare_prefixes(processes, (rank, *state.launches[rank]), known, then)
        else:
            self._ask_for_hash(processes, rank, known, then)

    def _ask_for_hash(self, processes: str, rank: int, known: "_Hash", then: Callable[[int], None]) -> None:
        """Ask a member for its hash after as many launches as another member has made, or after fewer."""

        def compare(answer: str) -> None:
            if numbers := _HASH_ANSWER.fullmatch(answer):
                self._compare_prefixes(processes, (rank, int(numbers[1]), int(numbers[2])), known, then)

        self._ask(rank, "hash", f"{processes} {known[1]}", compare)

    def _compare_prefixes(self, processes: str, one: "_Hash", other: "_Hash", then: Callable[[int], None]) -> None:
        """Compare two members at the smaller of their launch counts, by asking the member that has launched more."""
        fewer, more = sorted((one, other), key=lambda each: each[1])
        if fewer[1] < more[1]:
            self._ask_for_hash(processes, more[0], fewer, then)
        elif fewer[2] != more[2]:
            self._search_history(processes, fewer[0], more[0])
        else:
            then(fewer[1])

    def receive_comparison(self, rank: int, comparison: Comparison) -> None:
        """Compare a program that a member is about to launch."""
        state = self._set(comparison.processes)
        if state.mismatch is not None:
            self._send(rank, state.mismatch)
            return
        state.waiting[rank] = comparison
        self._compare_hash(comparison.processes, rank, comparison.launch, comparison.rolling_hash)
        for other, expected in state.waiting.items():
            if (expected.number, expected.launch, expected.fingerprint) != (
                comparison.number,
                comparison.launch,
                comparison.fingerprint,
            ):
                self._search_program(comparison.processes, other, rank)
                return
        self._check_waiting(comparison.processes)
        if len(state.waiting) == len(state.ranks) and not state.is_searching:
            state.waiting.clear()
            for member in state.ranks:
                self._send(member, Equal(comparison.processes, comparison.number))

    def receive_callbacks(self, rank: int, ended: CallbacksEnded) -> None:
        """Send the set whether a callback of a launch failed, once the callbacks of all processes have ended."""
        state = self._set(ended.processes)
        for launch in [launch for launch in state.callbacks if launch != ended.launch]:
            # A member waits for the result of a launch before the next one, so its earlier messages are out of date.
            state.callbacks[launch].pop(rank, None)
            if not state.callbacks[launch]:
                del state.callbacks[launch]
        results = state.callbacks.setdefault(ended.launch, {})
        results[rank] = ended
        if len(results) < len(state.ranks):
            return
        state.callbacks = {launch: other for launch, other in state.callbacks.items() if launch > ended.launch}
        failed, first = next(((rank, each) for rank, each in sorted(results.items()) if each.reason), (-1, ended))
        for member in state.ranks:
            self._send(
                member,
                CallbackResult(ended.processes, ended.launch, failed, first.step, first.reason, first.traceback),
            )

    def _check_waiting(self, processes: str) -> None:
        """Find a member that waits with a program while another member has launched a different program instead."""
        state = self._set(processes)
        for rank, comparison in state.waiting.items():
            for other, (count, _) in state.launches.items():
                if other not in state.waiting and count > comparison.launch:
                    self._search_program(processes, other, rank)
                    return

    def _search_program(self, processes: str, first: int, second: int) -> None:
        """Send the set the difference between the next launches of two members."""
        state = self._set(processes)
        if state.is_searching:
            return
        state.is_searching = True
        number = min(state.waiting[rank].launch for rank in (first, second) if rank in state.waiting)
        programs: dict[int, tuple[str, str]] = {}

        def collect(rank: int, answer: str) -> None:
            name, _, text = answer.partition("\n")
            programs[rank] = name, text
            if len(programs) == 2:
                self._conclude(processes, describe_difference(processes, number, programs))

        for rank in (first, second):
            comparison = state.waiting.get(rank)
            waits_there = comparison is not None and comparison.launch == number
            detail = f"{comparison.fingerprint}" if waits_there and comparison is not None else f"{processes} {number}"
            question = "program" if waits_there else "launch"
            self._ask(rank, question, detail, lambda answer, rank=rank: collect(rank, answer))  # type: ignore[misc]

    def _search_history(self, processes: str, first: int, second: int) -> None:
        """Send the set the first launch that differs between two members."""
        state = self._set(processes)
        if state.is_searching or state.mismatch is not None:
            return
        state.is_searching = True
        histories: dict[int, dict[int, str]] = {}

        def collect(rank: int, answer: str) -> None:
            histories[rank] = _parse_history(answer)
            if len(histories) == 2:
                self._conclude(processes, describe_order(processes, histories))

        for rank in (first, second):
            self._ask(rank, "history", processes, lambda answer, rank=rank: collect(rank, answer))  # type: ignore[misc]

    def _report_step(self, processes: str, step: int, counts: dict[int, int]) -> None:
        launches = ", ".join(f"process {rank} {count}" for rank, count in sorted(counts.items()))
        self._conclude(
            processes,
            f"at step {step}, the processes {processes} have not made the same number of launches: {launches}. Each "
            "process must launch every program.",
        )

    def _conclude(self, processes: str, reason: str) -> None:
        state = self._set(processes)
        state.is_searching = False
        state.waiting.clear()
        if state.mismatch is None:
            state.mismatch = Mismatch(processes, reason)
            for rank in state.ranks:
                self._send(rank, state.mismatch)


def _parse_history(answer: str) -> dict[int, str]:
    """Return the programs of a member by launch index; empty if its answer is missing or malformed."""
    with suppress(ValueError, RecursionError):
        history = json.loads(answer)
        if isinstance(history, dict):
            return {int(number): str(name)[:_LINE_LENGTH] for number, name in history.items()}
    return {}


def _trim(table: OrderedDict[int, tuple[int, int]]) -> None:
    while len(table) > _REMEMBERED:
        table.popitem(last=False)


def describe_difference(processes: str, launch: int, programs: dict[int, tuple[str, str]]) -> str:
    """Describe the difference between the programs of two processes.

    Args:
        processes: the set of processes.
        launch: the number of launches before.
        programs: rank → the name and the printed program; "" if the program is unknown.
    """
    (first, (name, text)), (second, (other_name, other_text)) = sorted(programs.items())
    if name.startswith(VALUE) and other_name.startswith(VALUE):
        head = (
            f"the processes {processes} use different values after {launch} launches: process {first} "
            f"{name.removeprefix(VALUE)}, process {second} {other_name.removeprefix(VALUE)}."
        )
    else:
        head = (
            f"launch {launch + 1} on the processes {processes} differs: process {first} launches `{name or '?'}`, "
            f"process {second} `{other_name or '?'}`."
        )
    lines = zip_longest(text.splitlines(), other_text.splitlines(), fillvalue="(the end)")
    for index, (line, other_line) in enumerate(lines, 1):
        if line != other_line:
            return (
                f"{head} The first difference is in line {index}:\n"
                f"  process {first}: {line.strip()[:_LINE_LENGTH]}\n"
                f"  process {second}: {other_line.strip()[:_LINE_LENGTH]}"
            )
    return f"{head} All processes must launch the same programs in the same order, with the same values."


def describe_order(processes: str, histories: dict[int, dict[int, str]]) -> str:
    """Describe the first launch that differs. `histories` maps ranks to programs by launch index."""
    (first, history), (second, other) = sorted(histories.items())
    for number in sorted({*history} & {*other}):
        if history[number] != other[number]:
            return (
                f"launch {number} on the processes {processes} differs: process {first} launched {history[number]}, "
                f"process {second} {other[number]}. All processes must launch the same programs in the same order."
            )
    return (
        f"the processes {first} and {second} launched different programs on the processes {processes}. All processes "
        "must launch the same programs in the same order; the setting debug_launch_order finds the first difference."
    )
