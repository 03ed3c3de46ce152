"""`shardwise postmortem`: the conclusion from records. `test_launcher.py` has those of processes that failed."""

import json

import pytest

from shardwise.launch.command_line import main
from shardwise.launch.postmortem import conclude, read_records
from shardwise.processes.launch_record import LaunchRecord


def write(folder, launches, *, processes=None, sets=None, suffix="", ends=()):
    """Write the record of each rank: the names of its launches on all processes, or on those of `sets`."""
    count = processes or len(launches)
    for rank, names in enumerate(launches):
        record = LaunchRecord(folder / f"rank{rank}{suffix}.record", rank, count, lambda: 5)
        recorders, numbers = {}, {}
        for name in names:
            on = (sets or {}).get(name, ",".join(map(str, range(count))))
            if name not in recorders:
                recorders[name] = record.launch_recorder(name, on, [f"all_reduce at train.py:{len(name)}"])
            numbers[on] = numbers.get(on, 0) + 1
            recorders[name](numbers[on])
        if rank in ends:
            record.end("left")


def test_the_process_with_the_fewest_launches_stopped_first(tmp_path, capsys):
    write(tmp_path, [["init", "step", "step"], ["init", "step"], ["init", "step", "step"]])
    result = conclude(read_records(tmp_path))
    assert (result.stopped, result.waiting, result.processes, result.last) == ([1], [0, 2], "0,1,2", 2)
    assert main(["postmortem", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "process 1 stopped first, after launch 2 on the processes 0,1,2." in out
    assert "process 1 was last seen at test_postmortem.py:" in out
    assert "processes 0, 2 waited in launch 3, `step`, or in one that follows it." in out
    assert "all_reduce at train.py:4" in out
    assert "still runs" in out and "after step 5" in out


def test_a_process_without_launches_on_a_set_stopped_there(tmp_path):
    write(tmp_path, [["init", "pair"], ["init"], ["init"]], sets={"pair": "0,1"})
    result = conclude(read_records(tmp_path))
    assert (result.stopped, result.waiting, result.processes, result.last) == ([1], [0], "0,1", 0)
    assert result.awaited.program.name == "pair"


def test_equal_launches_name_nobody(tmp_path, capsys):
    write(tmp_path, [["step"], ["step"]], processes=3, ends={0, 1})
    assert conclude(read_records(tmp_path)).stopped == ()
    assert main(["postmortem", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "none of them stopped before the others" in out
    assert "left the program" in out and "process 2: no record in this folder" in out


def test_the_last_restart_is_read(tmp_path):
    write(tmp_path, [["step"], []])
    write(tmp_path, [[], ["step"]], suffix=".restart1")
    assert conclude(read_records(tmp_path)).stopped == [0]


def test_json(tmp_path, capsys):
    write(tmp_path, [["step"], []])
    assert main(["postmortem", "--json", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["conclusion"]["stopped"] == [1]
    assert report["processes"][0]["launches"][0]["program"]["name"] == "step"


@pytest.mark.parametrize("content", [None, b"", b"something else"])
def test_folders_without_records_are_errors(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / "rank0.record").write_bytes(content)
    assert main(["postmortem", str(tmp_path)]) == 2
    assert ("no launch records" if content is None else "not a record") in capsys.readouterr().err


def test_records_of_different_programs_are_an_error(tmp_path, capsys):
    write(tmp_path, [["step"]] * 2)
    LaunchRecord(tmp_path / "rank2.record", 2, 3, lambda: None)
    assert main(["postmortem", str(tmp_path)]) == 2
    assert "records of programs with 2 and 3 processes" in capsys.readouterr().err
