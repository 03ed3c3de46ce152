"""perfetto_trace.json.gz: XLA's trace of a run for https://ui.perfetto.dev, with the names and source lines of ops."""

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shardwise.base._jaxlib import module_texts
from shardwise.runtime.client import clients, process_count, process_index
from shardwise.runtime.hlo_instructions import Instruction, read_instructions

_INTERNAL_EVENTS = re.compile(r"ThreadpoolListener|end: |Wait for (donation|usage) holds|PythonRefManager")


def write_perfetto_trace(folder: Path, traces: Iterable[Path]) -> None:
    """Write the events of XLA's `*.trace.json.gz` files to one file in `folder`, named after this process."""
    name = "perfetto_trace" if process_count() == 1 else f"perfetto_trace_{process_index()}"
    events = [event for path in traces for event in _read_events(path)]
    with gzip.open(folder / f"{name}.json.gz", "wt") as file:
        json.dump({"displayTimeUnit": "ns", "traceEvents": list(_annotate_events(events))}, file)


def _read_events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def _annotate_events(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield XLA's events with the names and source lines of ops, without events internal to XLA's runtime."""
    modules = {_module_name(event) for event in events if "hlo_op" in event.get("args", {})}
    instructions = _read_modules(modules)
    for event in events:
        if not event or _INTERNAL_EVENTS.match(event.get("name", "")):
            continue
        if event["ph"] != "X":  # metadata, such as thread names
            yield event
            continue
        args = {name: value for name, value in event.get("args", {}).items() if name != "_src"}
        if "hlo_op" not in args:
            yield {**event, **({"args": args} if args else {}), "cat": "host"}
            continue
        candidates = instructions.get((_module_name(event), args["hlo_op"]), [])
        names = [instruction.name.split(";")[0] for instruction in candidates if instruction.name]
        sources = [instruction.source for instruction in candidates if instruction.source]
        fused_ops = [op for instruction in candidates for op in instruction.made_of]
        yield {
            **event,
            "name": " or ".join(dict.fromkeys(names)) or event["name"],
            "cat": "collective" if any(instruction.is_collective for instruction in candidates) else "compute",
            "args": {
                **args,
                **({"source": " or ".join(dict.fromkeys(sources))} if sources else {}),
                **({"made_of": ", ".join(dict.fromkeys(fused_ops))} if len(set(fused_ops)) > 1 else {}),
            },
        }


def _module_name(event: dict[str, Any]) -> str:
    return re.sub(r"\(\d+\)$", "", str(event["args"].get("hlo_module", "")))


def _read_modules(modules: set[str]) -> dict[tuple[str, str], list[Instruction]]:
    """Return the candidate instructions for each pair of module name and instruction name.

    There are several if programs have the same name: XLA's events do not say which of them ran.
    """
    candidates: dict[tuple[str, str], list[Instruction]] = {}
    for client in clients.all():
        for module, text in module_texts(client, modules):
            for name, instruction in read_instructions(text()).items():
                known = candidates.setdefault((module, name), [])
                if instruction not in known:
                    known.append(instruction)
    return candidates
