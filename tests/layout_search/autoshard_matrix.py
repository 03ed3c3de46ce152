"""Questions to `shardwise autoshard`: models on many chips and numbers of devices, each with an answer or an error.

    python -m tests.layout_search.autoshard_matrix [--only REGEX] [--seconds 3600] [--log FILE]

Each question runs in its own process. An answer must fit in the memory of the chip and have a possible MFU. An error
must say what to do. Everything else is a failure: a traceback, a warning, no answer. A log keeps the outputs; questions
that are in it are not asked again.
"""

import argparse
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, final

from tests.layout_search.test_autoshard_grouped_queries import fused, llama, tokens

STEPS = "tests.layout_search.autoshard_matrix"
CHIPS = ("a100", "h200", "tpu v4", "v5e", "v5p", "cpu")
_LONGEST = 1500  # seconds of a question; planning deepseek-v3 takes five minutes of an idle core
_ANSWER = re.compile(
    r": [\d.]+ \S+ per step.*, ([\d.]+)% MFU, ([\d.]+ \S+)(?: of (?:a limit of )?([\d.]+ \S+))? per device"
)
_ADVICE = re.compile(r"would fit on|[Uu]se |[Rr]ecompute|[Ww]rite|[Cc]hange|pass ")
_UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}

step, _ = llama(fused, 8, 2)  # reads all sizes from the shapes of its arguments


def arguments(heads: int = 8, shared: int = 2, rows: int = 16, layers: int = 2) -> tuple[Any, Any]:
    """Return the types of the arguments of `step`, whose attention has this many query and key heads."""
    _, state = llama(fused, heads, shared, layers=layers)
    return state, tokens(rows)


@final
class Question(NamedTuple):
    """Arguments of `shardwise autoshard`."""

    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.arguments)


def questions() -> list[Question]:
    """Return all questions, the cheap ones first."""
    asked = []

    def ask(target: str, hardware: str, count: int, *options: str) -> None:
        asked.append(Question((target, "--hardware", hardware, "--count", str(count), *options)))

    def heads(count: int, queries: int, keys: int, *options: str, rows: int = 16) -> None:
        sizes = [
            part
            for name, value in (("heads", queries), ("shared", keys), ("rows", rows))
            for part in ("--set", f"{name}={value}")
        ]
        ask(f"{STEPS}:step", "h100", count, *sizes, *options)

    for count, queries, keys in ((12, 8, 8), (8, 8, 2), (64, 8, 8), (512, 8, 8), (7, 12, 3), (5, 4, 1), (1, 8, 8)):
        heads(count, queries, keys, rows=count)
    heads(8, 8, 2, "--memory-limit", "1k")  # nothing fits, on any number of devices
    heads(8, 8, 2, "--memory-limit", "200k")
    heads(11, 8, 2, rows=7)  # no axis divides the batch
    heads(13, 8, 2, rows=1)
    for count in (1, 2, 3, 6, 8, 12, 16, 24, 48, 64, 96, 100, 128, 256, 512, 1024):
        ask("llama3-8b", "h100", count)
    for chip in CHIPS:
        for count in (1, 8, 12, 100):
            ask("llama3-8b", chip, count)
    ask("llama3-8b", "h100", 97)  # a prime number
    ask("llama3-8b", "h100", 8, "--sequences", "1")
    ask("llama3-8b", "h100", 8, "--sequences", "12", "--length", "1000")
    ask("llama3-8b", "h100", 8, "--memory-limit", "2G")
    ask("llama3-8b", "h100", 64, "--tokens", "4M")
    ask("llama3-8b", "h100:500w", 16)
    for count in (1, 8, 12, 48, 64, 96, 100, 128, 256, 512, 1024):
        ask("llama3-70b", "h100", count)
    for chip in CHIPS:
        ask("llama3-70b", chip, 96)
        ask("llama3-70b", chip, 256)
    ask("llama3-70b", "h100", 64, "--memory-limit", "30G")
    ask("llama3-70b", "h100", 512, "--tokens", "16M")
    for count in (8, 64, 512, 1000, 1024, 4096):
        ask("llama3-405b", "h100", count)
    ask("llama3-405b", "v5p", 768)
    for model in ("mixtral-8x7b", "mixtral-8x22b"):
        for count in (1, 6, 8, 12, 64, 100, 256):
            ask(model, "h100", count, "--length", "4096")
    ask("mixtral-8x7b", "v4", 64, "--length", "4096")
    ask("mixtral-8x7b", "a100", 48, "--length", "4096", "--expert-imbalance", "1.5")
    for count in (64, 96, 512, 1024):
        ask("deepseek-v3", "h100", count, "--length", "4096")
    ask("deepseek-v3", "v5p", 100, "--length", "4096")
    return list(dict.fromkeys(asked))


def verdict(code: int, output: str, errors: str) -> str:
    """Return why an answer is wrong; nothing if it is right."""
    if "Traceback" in errors or "Warning" in errors:
        return "a traceback or a warning"
    if code == 2:
        message = errors.rpartition("shardwise autoshard: ")[2]
        return "" if message and _ADVICE.search(message) else "an error that does not say what to do"
    if code:
        return f"exit code {code}"
    match = _ANSWER.search(output)
    if match is None:
        return "no answer"
    utilization, used, limit = match.groups()
    if limit is not None and _bytes(used) > _bytes(limit):
        return "an answer that does not fit"
    return "" if float(utilization) <= 100 else "an impossible MFU"


def _bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * _UNITS[unit]


def ask(question: Question) -> tuple[str, str, float, float]:
    """Ask a question, and return why the answer is wrong, the output, and the seconds of wall and CPU time."""
    start, cpu = time.monotonic(), _cpu_seconds()
    command = [sys.executable, "-m", "shardwise", "autoshard", *question.arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer after {_LONGEST} s", "", time.monotonic() - start, _cpu_seconds() - cpu
    reason = verdict(run.returncode, run.stdout, run.stderr)
    return reason, run.stdout + run.stderr, time.monotonic() - start, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    """Return the CPU time of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {STEPS}", description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="ask the questions that match")
    parser.add_argument("--seconds", type=float, default=7200, help="stop after this time")
    parser.add_argument("--log", type=Path, help="keep the outputs here")
    options = parser.parse_args()
    known = options.log.read_text() if options.log and options.log.exists() else ""
    end, failures, asked = time.monotonic() + options.seconds, 0, 0
    for question in questions():
        if not re.search(options.only, str(question)) or f"$ {question}\n" in known:
            continue
        if time.monotonic() > end:
            break
        reason, output, seconds, cpu = ask(question)
        asked, failures = asked + 1, failures + bool(reason)
        result = f"FAILED: {reason}" if reason else "ok"
        text = f"$ {question}\n{result} ({seconds:.0f} s, {cpu:.0f} s of CPU time)\n{output}\n"
        print(text, flush=True)
        if options.log:
            with options.log.open("a") as log:
                log.write(text)
    print(f"{asked} questions, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
