"""`shardwise postmortem`: read the launch records of all processes, and say which one stopped where."""

import json
import os
import re
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import final

from shardwise.processes.launch_record import RECORD_SUFFIX, Launch, Record, read_record
from shardwise.processes.protocol import split_ranks

_SHOWN = 3  # the last launches of each process to show


@final
@dataclass(frozen=True)
class Postmortem:
    """The conclusion from the records of a program's processes.

    Attributes:
        stopped: the ranks that made the fewest launches on a set of processes, of which others made more.
        processes: the set of processes, separated by commas; "" if no process stopped behind another.
        last: the index of the last recorded launch of the stopped processes on it; 0 if there is none.
        waiting: the other ranks of the set.
        awaited: the next recorded launch on the set, in which they waited.
    """

    stopped: Sequence[int] = ()
    processes: str = ""
    last: int = 0
    waiting: Sequence[int] = ()
    awaited: Launch | None = None


def run_postmortem(folder: Path, as_json: bool) -> int:
    """Print the last launches of every process, and which one stopped where. Return the exit code.

    Args:
        folder: the folder with the records.
        as_json: whether to print JSON.
    """
    try:
        records = read_records(folder)
    except (OSError, ValueError) as error:
        print(f"shardwise postmortem: {error}", file=sys.stderr)
        return 2
    result = conclude(records)
    if as_json:
        processes = [
            {**asdict(each.status), "launches": list(map(asdict, each.launches[-_SHOWN:]))} for each in records
        ]
        print(json.dumps({"processes": processes, "conclusion": asdict(result)}, indent=2))
    else:
        print("\n".join([*_describe_processes(records), "", *_describe(result, records)]))
    return 0


def read_records(folder: Path) -> list[Record]:
    """Return the records of the last start of a program, by rank.

    Raises:
        OSError: if the folder or a record cannot be read.
        ValueError: if there is none, one is damaged, or they are of different programs.
    """
    paths: dict[int, list[Path]] = {}
    for path in folder.iterdir():
        if match := re.fullmatch(rf"rank\d+(?:\.restart(\d+))?{re.escape(RECORD_SUFFIX)}", path.name):
            paths.setdefault(int(match[1] or 0), []).append(path)
    if not paths:
        raise ValueError(
            f"{folder} has no launch records: pass the folder of `shardwise launch --log-dir`, or the folder that the "
            "setting launch_record_dir names"
        )
    records = sorted(map(read_record, paths[max(paths)]), key=lambda record: record.status.rank)
    sizes = {record.status.num_processes for record in records}
    if len(sizes) > 1:
        raise ValueError(f"{folder} has records of programs with {' and '.join(map(str, sorted(sizes)))} processes")
    return records


def conclude(records: Sequence[Record]) -> Postmortem:
    """Find the processes that launched less than the others, and what those waited for.

    The processes of a set launch the same programs in the same order, and record those with collectives. So the
    processes with the fewest launches stopped first, and the others waited in the next one, or in one that follows it.
    """
    counts: dict[str, dict[int, int]] = {}
    for record in records:
        for launch in record.launches:
            counts.setdefault(launch.program.processes, {})[record.status.rank] = launch.number
    behind: list[tuple[float, Postmortem]] = []
    for processes, numbers in counts.items():
        least = min(numbers.get(rank, 0) for rank in _known(records, processes))
        ahead = sorted(rank for rank, number in numbers.items() if number > least)
        if ahead:
            stopped = [rank for rank in _known(records, processes) if rank not in ahead]
            awaited = _next_launch(records, processes, least)
            behind.append((awaited.time, Postmortem(stopped, processes, least, ahead, awaited)))
    return min(behind, key=lambda each: each[0])[1] if behind else Postmortem()


def _known(records: Sequence[Record], processes: str) -> list[int]:
    """Return the ranks of a set that have a record."""
    ranks = {record.status.rank for record in records}
    return [rank for rank in split_ranks(processes) if rank in ranks]


def _next_launch(records: Sequence[Record], processes: str, number: int) -> Launch:
    """Return the first recorded launch on a set of processes after a number of launches."""
    launches = (launch for record in records for launch in record.launches)
    later = [each for each in launches if each.program.processes == processes and each.number > number]
    return min(later, key=lambda launch: (launch.number, launch.time))


def _describe_processes(records: Sequence[Record]) -> list[str]:
    """Describe the last launches of every process."""
    lines = []
    for record in records:
        status = record.status
        step = "" if status.step is None else f", after step {status.step}"
        lines.append(f"process {status.rank} (pid {status.pid} on {status.host}): {_end(record)}{step}")
        if status.line and status.end != "left":
            lines.append(f"  last seen {_clock(status.time)} at {status.line}")
        for launch in record.launches[-_SHOWN:]:
            launched_at = "" if launch.step is None else f", after step {launch.step}"
            text = f"launch {launch.number} on the processes {launch.program.processes}: `{launch.program.name}`"
            lines.append(f"  {_clock(launch.time)} {text}{launched_at}")
    missing = {*range(records[0].status.num_processes)} - {record.status.rank for record in records}
    return [*lines, *(f"process {rank}: no record in this folder" for rank in sorted(missing))]


def _describe(result: Postmortem, records: Sequence[Record]) -> list[str]:
    """Describe the conclusion."""
    if result.awaited is None:
        return ["All recorded processes launched the same programs: none of them stopped before the others."]
    lines = [f"{_ranks(result.stopped)} stopped first, after launch {result.last} on the processes {result.processes}."]
    for record in records:
        if record.status.rank in result.stopped and record.status.line:
            lines.append(f"  process {record.status.rank} was last seen at {record.status.line}")
    number, program = result.awaited.number, result.awaited.program
    lines.append(f"{_ranks(result.waiting)} waited in launch {number}, `{program.name}`, or in one that follows it.")
    lines += ["  Its collectives:", *(f"    {text}" for text in program.collectives)]
    return [*lines, f"    and {program.more} more"] if program.more else lines


def _end(record: Record) -> str:
    """Say how a process ended."""
    status = record.status
    if status.end:
        return "left the program" if status.end == "left" else status.end
    if status.host != socket.gethostname():
        return "did not report its end"
    with suppress(ProcessLookupError):
        os.kill(status.pid, 0)
        return "still runs, or its process id is in use again"
    return "ended without a report, as a killed process does"


def _ranks(ranks: Sequence[int]) -> str:
    return f"process{'es' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%H:%M:%S.%f")[:-3]
