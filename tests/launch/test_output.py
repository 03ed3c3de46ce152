"""Colours and tracebacks in the output of launched processes."""

import gc
import io
import os
import subprocess

import pytest

from shardwise.launch.output import Output, last_traceback, uses_colour
from shardwise.launch.writer import Writer


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "variables", "expected"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colours_are_for_terminals_without_no_color(stream, variables, expected):
    assert uses_colour(stream, variables) is expected


def test_prefixes_have_one_width_and_a_colour_per_rank(tmp_path, monkeypatch):
    writer = Writer(io.StringIO())
    output = Output(tmp_path, 12, writer, writer)
    assert [output.prefix(rank, io.StringIO()) for rank in (3, 11)] == ["[ 3] ", "[11] "]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.prefix(0, Terminal()) == "\033[36m[ 0]\033[0m "
    assert output.prefix(0, Terminal()) != output.prefix(1, Terminal())


def test_the_files_of_a_process_that_has_ended_are_closed(tmp_path):
    """A launcher that replaces processes for days starts thousands."""
    writer = Writer(io.StringIO())
    output = Output(tmp_path, 2, writer, writer)
    gc.collect()  # files of other tests
    before = len(os.listdir("/dev/fd"))
    for number in range(3):
        process = subprocess.Popen(["sh", "-c", "echo out; echo fault >&2"], stdout=-1, stderr=-1)
        output.add(number, 0, process.stdout, process.stderr)
        process.wait()
        while not (process.stdout.closed and process.stderr.closed):
            output.copy(1)
    assert len(os.listdir("/dev/fd")) == before
    assert sorted((tmp_path / "rank2.log").read_text().split()) == ["fault", "out"]
    output.close()


def test_last_traceback_has_its_causes():
    text = """noise
Traceback (most recent call last):
  File "a.py", line 1
KeyError: 1
retried
Traceback (most recent call last):
  File "b.py", line 1
KeyError: 2

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "c.py", line 1
ValueError: 3"""
    lines = text.splitlines()
    assert last_traceback(lines) == "\n".join(lines[5:])
    assert last_traceback(["nothing"]) == ""


def test_gloo_lines_are_in_the_log_only(tmp_path):
    lines = [
        "[Gloo] Rank 1 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7",
        "[Gloo] Rank [Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3",
        "1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3",
        "loss 3",
        "",
        "[Gloo] Rank 1 failed",
    ]
    reader, writer = os.pipe()
    empty_reader, empty_writer = os.pipe()
    os.write(writer, "\n".join(lines).encode() + b"\n")
    os.close(writer)
    os.close(empty_writer)
    shown = io.StringIO()
    writer = Writer(shown)
    output = Output(tmp_path, 1, writer, writer)
    output.add(0, 0, os.fdopen(reader, "rb", 0), os.fdopen(empty_reader, "rb", 0))
    output.close()
    assert writer.flush(60)
    assert shown.getvalue().splitlines() == ["[0] loss 3", "[0] ", "[0] [Gloo] Rank 1 failed"]
    assert output.log_file(0).read_text().splitlines() == lines
