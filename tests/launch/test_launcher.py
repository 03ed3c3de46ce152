"""`shardwise launch` with real processes and signals. Every wait is bounded, and tests end only what they started."""

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from shardwise.launch.attempt import POLL_INTERVAL
from shardwise.launch.command_line import main
from shardwise.launch.postmortem import conclude, read_records
from shardwise.launch.stop import AFTER_FAILURE, AFTER_INTERRUPT, AFTER_SECOND_INTERRUPT

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests/launch/programs.py"
TRAINING = ROOT / "tests/launch/training.py"
STOP_TIME = 5.0  # seconds after which the launcher leaves no process alive
STUCK_TIME = 20  # seconds after which a process counts as stuck: more than a step takes on a busy machine
LIMIT = 300  # seconds for every wait, which a test that passes never needs, also on a busy machine

pytestmark = pytest.mark.faults


def command(*arguments, script=PROGRAMS):
    return [sys.executable, "-m", "shardwise", "launch", *map(str, arguments[:-1]), str(script), *arguments[-1]]


def variables():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*arguments, script=PROGRAMS):
    """Run the launcher to its end. The last argument lists the arguments of the script."""
    return subprocess.run(
        command(*arguments, script=script),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env=variables(),
    )


class Running:
    """A launcher in the background, which is killed at the end of the test."""

    def __init__(self, *arguments, line=None):
        self.process = subprocess.Popen(
            line or command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables()
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.communicate(timeout=LIMIT)

    def wait_for(self, folder, names):
        """Wait until the programs have written files, and return their contents as process ids."""
        deadline = time.monotonic() + LIMIT
        while not all(Path(folder, name).exists() for name in names):
            assert self.process.poll() is None, self.process.communicate(timeout=LIMIT)
            assert time.monotonic() < deadline, f"no {names}"
            time.sleep(0.02)
        return [int(Path(folder, name).read_text()) for name in names]


def is_alive(pid):
    """Return whether a process runs: not one that has ended and waits for its parent."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status not in ("Z", "X")


def wait_for_end(pids):
    """Wait until none of these processes runs."""
    deadline = time.monotonic() + LIMIT
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"the processes {alive} still run"
        time.sleep(0.02)


def wait_for_reaping(pid):
    """Wait until the parent of a process has learned that it has ended."""
    deadline = time.monotonic() + LIMIT
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"nobody has waited for the process {pid}"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    """Let the launcher write its logs there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def coordinator_port(pid):
    """Return the port of the coordinator that a launched process sees."""
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return re.search(r"\bSHARDWISE_COORDINATOR_ADDRESS=127\.0\.0\.1:(\d+)\0", text)[1]


def test_output_is_prefixed_and_logged(tmp_path):
    launch = run("-n", 3, "--log-dir", tmp_path / "logs", ["show", "a", "--flag"])
    assert launch.returncode == 0, launch.stderr
    assert sorted(launch.stdout.splitlines()) == [f"[{rank}] rank {rank} a --flag" for rank in range(3)]
    assert sorted(launch.stderr.splitlines()) == [f"[{rank}] error {rank}" for rank in range(3)]
    for rank in range(3):
        log = (tmp_path / f"logs/rank{rank}.log").read_text().splitlines()
        assert sorted(log) == [f"error {rank}", f"rank {rank} a --flag"]


def test_lines_stay_whole():
    launch = run("-n", 1, ["write"])
    assert launch.stdout.splitlines() == ["[0] one line", "[0] 100%", "[0] no end of line"]


@pytest.mark.slow
def test_modules_and_scripts_that_import_jax(tmp_path):
    (tmp_path / "program.py").write_text("import sys, jax\nprint(jax.__name__, sys.argv[1:])\n")
    for arguments in (["--as-jax", "program.py", "x"], ["--as-jax", "-m", "program", "x"]):
        launch = subprocess.run(
            [sys.executable, "-m", "shardwise", "launch", "-n", "1", *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            env=variables(),
            cwd=tmp_path,
        )
        assert launch.stdout == "[0] jax ['x']\n", launch.stderr


BAD = ("nan", "inf", -1, 1e9, 1e300)  # numbers of seconds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((("-n", value), "-n must be from 1 to 1024, not") for value in (0, -1, 1025, 10**30)),
        *((("-n", value), "-n/--processes: invalid int value") for value in ("1.5", "nan", "", "two")),
        *((("-n", 2, "--nodes", value), "--nodes must be from 1 to 32768, not") for value in (0, -1, 32769)),
        *((("-n", 1, "--max-restarts", value), "--max-restarts must be from 0 to 1000000") for value in (-1, 10**7)),
        *((("-n", 1, "--grace-period", value), "--grace-period must be from 0 to 100000000 seconds") for value in BAD),
        *((("-n", 1, "--timeout", value), "--timeout must be from 0.001 to 100000000 seconds") for value in (0, *BAD)),
        (("-n", 2, "--nodes", 2), "--nodes needs --coordinator"),
        (("-n", 2, "--node-rank", 1), "--node-rank (with --nodes 1) must be from 0 to 0, not 1"),
        (("-n", 2, "--coordinator", "nowhere"), "--coordinator must be host:port"),
        (("-n", 2, "--coordinator", f"localhost:{10**6}"), "--coordinator must be host:port"),
        *(
            (("-n", 2, "--devices-per-process", value), "--devices-per-process must be from 1 to 2048, not")
            for value in (0, -1, 2049)
        ),
        (("-n", 2, "--nodes", 2, "--coordinator", "a:1", "--max-restarts", 1), "--max-restarts needs one node"),
    ],
)
def test_wrong_options_are_errors(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["launch", *map(str, arguments), str(PROGRAMS)])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["launch", "-n", "1", "absent.py"], "the script 'absent.py' does not exist"),
        (["launch", "script.py"], "-n"),
        (["--help"], "doctor"),
        (["launch", "--help"], "--max-restarts"),
        (["--version"], "shardwise"),
    ],
)
def test_command_line(arguments, text, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    captured = capsys.readouterr()
    assert text in captured.out + captured.err


def test_console_script_is_the_command():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert EntryPoint("shardwise", scripts["shardwise"], "console_scripts").load() is main


def test_output_that_the_terminal_cannot_show_is_escaped():
    launch = subprocess.run(
        command("-n", 1, ["write_utf8"]),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env={**variables(), "PYTHONIOENCODING": "ascii"},
    )
    assert launch.stdout == "[0] \\u2192\n"


@pytest.mark.parametrize(
    ("program", "names"),
    [
        ("have_children", ["child0", "child1"]),
        pytest.param("ignore_signals", [], marks=pytest.mark.slow),
        pytest.param("stop", [], marks=pytest.mark.slow),
    ],
)
def test_workers_are_gone_after_sigkill_of_the_launcher(program, names, tmp_path):
    """Fault 3."""
    with Running("-n", 2, [program, str(tmp_path)]) as launch:
        pids = launch.wait_for(tmp_path, ["pid0", "pid1", *names])
        assert all(is_alive(pid) for pid in pids)
        launch.process.kill()
        wait_for_end(pids)


@pytest.mark.parametrize(
    "program",
    ["ignore_signals", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sleep", "stop", "have_children"))],
)
def test_interrupt_ends_all_processes(program, tmp_path):
    """Fault 10: Ctrl-C."""
    names = ["pid0", "pid1", *(["child0", "child1"] if program == "have_children" else [])]
    with Running("-n", 2, [program, str(tmp_path)]) as launch:
        pids = launch.wait_for(tmp_path, names)
        launch.process.send_signal(signal.SIGINT)
        wait_for_end(pids)
        _, errors = launch.process.communicate(timeout=LIMIT)
        assert launch.process.returncode == 130
        assert errors.startswith("shardwise launch: stopped by SIGINT\nshardwise launch: logs: ")  # no tracebacks


@pytest.mark.parametrize("schedule", [AFTER_FAILURE, AFTER_INTERRUPT, AFTER_SECOND_INTERRUPT])
def test_every_stop_ends_with_sigkill_in_time(schedule):
    """Processes are killed `STOP_TIME` seconds after a failure or Ctrl-C at the latest, whatever they do."""
    seconds, last = schedule[-1]
    assert last == signal.SIGKILL and seconds + 2 * POLL_INTERVAL < STOP_TIME
    assert [start for start, _ in schedule] == sorted(start for start, _ in schedule)


def test_sigterm_is_passed_on(tmp_path):
    with Running("-n", 2, ["handle_sigterm", str(tmp_path)]) as launch:
        launch.wait_for(tmp_path, ["pid0", "pid1"])
        launch.process.terminate()
        launch.process.communicate(timeout=LIMIT)
        assert launch.process.returncode == 0
        assert [(tmp_path / f"saved{rank}").exists() for rank in range(2)] == [True, True]


@pytest.mark.slow
def test_sigterm_kills_processes_after_the_grace_period(tmp_path):
    with Running("-n", 2, "--grace-period", 0.5, "--log-dir", tmp_path, ["ignore_signals", str(tmp_path)]) as launch:
        pids = launch.wait_for(tmp_path, ["pid0", "pid1"])
        launch.process.terminate()
        launch.process.communicate(timeout=LIMIT)
        assert launch.process.returncode == 143
        wait_for_end(pids)


def test_the_first_failure_is_reported_with_its_traceback(tmp_path):
    """Fault 6, without devices."""
    launch = run("-n", 3, ["fail", str(tmp_path)])
    assert launch.returncode == 1
    report = launch.stderr[launch.stderr.index("shardwise launch:") :].splitlines()
    assert re.fullmatch(r"shardwise launch: process 1 failed first: exit code 1 \(pid \d+\)", report[0])
    assert report[1] == "Traceback (most recent call last):"
    assert "KeyError: 'cause'" in report and "ValueError: no such number" in report
    assert report[-2] == "shardwise launch: process 0: killed by SIGTERM; process 2: killed by SIGTERM"
    folder = Path(report[-1].partition("logs: ")[2])
    assert "no such number" in (folder / "rank1.log").read_text()


@pytest.mark.slow
def test_a_killed_process_is_reported(tmp_path):
    launch = run("-n", 2, "--log-dir", tmp_path, ["kill_self", str(tmp_path)])
    assert launch.returncode == 128 + signal.SIGKILL
    assert "process 1 failed first: killed by SIGKILL, perhaps since the machine ran out of memory" in launch.stderr


@pytest.mark.slow
def test_a_process_that_is_stopped_when_all_others_have_ended_is_reported(tmp_path):
    """Fault 4 after the process has left the coordinator, which then does not miss it."""
    launch = run("-n", 3, "--grace-period", 1, ["stop_self", str(tmp_path)])
    assert launch.returncode == 1
    report = r"process 1 failed first: a signal such as SIGSTOP stopped it \d+ s ago, and all others have ended"
    assert re.search(report, launch.stderr)
    wait_for_end([int((tmp_path / "pid1").read_text())])


@pytest.mark.slow
def test_a_process_that_is_stopped_for_the_timeout_is_reported(tmp_path):
    """Fault 4 while the others do something for which there is no timeout."""
    launch = run("-n", 3, "--timeout", 0.3, "--grace-period", 0.2, ["one_stops", str(tmp_path)])
    assert launch.returncode == 1
    assert re.search(r"process 1 failed first: a signal such as SIGSTOP stopped it \d+ s ago\n", launch.stderr)
    wait_for_end([int((tmp_path / f"pid{rank}").read_text()) for rank in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "reason"), [("stop", "stopped"), ("sleep", "save"), ("skip", "save")])
def test_a_process_that_does_not_join_a_save_is_reported(fault, reason, tmp_path):
    """Fault 4 while the others wait for it in a save, for which their timeout may be longer."""
    options = ("-n", 2, "--devices-per-process", 2, "--timeout", STUCK_TIME, "--grace-period", 5, "--log-dir", tmp_path)
    launch = run(*options, [fault, str(tmp_path / "run")], script=ROOT / "tests/launch/saving.py")
    assert launch.returncode != 0
    assert re.search(f"shardwise launch: process 1 failed first: .*{reason}", launch.stderr), launch.stderr
    assert "saved 1" in launch.stdout and "[0] saved 2" not in launch.stdout


@pytest.mark.slow
def test_a_process_that_continues_is_waited_for(tmp_path):
    with Running("-n", 2, "--grace-period", 60, ["stop_self", str(tmp_path)]) as launch:
        ended, stopped = launch.wait_for(tmp_path, ["pid0", "pid1"])
        wait_for_reaping(ended)  # the launcher knows that only the stopped process is left
        os.kill(stopped, signal.SIGCONT)
        out, err = launch.process.communicate(timeout=LIMIT)
    assert launch.process.returncode == 0, err
    assert "continued" in out


@pytest.mark.slow
def test_a_closed_output_ends_all_processes(tmp_path):
    with Running("-n", 2, ["print_for_ever", str(tmp_path)]) as launch:
        pids = launch.wait_for(tmp_path, ["pid0", "pid1"])
        launch.process.stdout.close()
        wait_for_end(pids)
        assert launch.process.wait(timeout=LIMIT) == 128 + signal.SIGPIPE
        launch.process.stdout = None  # `communicate` would read it


@pytest.mark.slow
def test_children_of_finished_processes_are_ended(tmp_path):
    launch = run("-n", 2, ["leave_child", str(tmp_path)])
    assert launch.returncode == 0
    wait_for_end([int((tmp_path / f"child{rank}").read_text()) for rank in range(2)])


def test_daemons_are_ended_with_the_job(tmp_path):
    """A child that leaves the group of its process by `setsid`."""
    launch = run("-n", 2, ["leave_daemon", str(tmp_path)])
    assert launch.returncode == 0, launch.stderr
    wait_for_end([int((tmp_path / f"daemon{rank}").read_text()) for rank in range(2)])


def test_daemons_are_gone_after_sigkill_of_the_launcher(tmp_path):
    with Running("-n", 2, ["leave_daemon", str(tmp_path), "sleep"]) as launch:
        pids = launch.wait_for(tmp_path, ["pid0", "pid1", "daemon0", "daemon1"])
        launch.process.kill()
        wait_for_end(pids)


@pytest.mark.slow
def test_processes_of_a_nested_launch_are_gone_after_sigkill_of_the_outer_launcher(tmp_path):
    inner = command("-n", 2, ["leave_daemon", str(tmp_path), "sleep"])
    (tmp_path / "outer.py").write_text(f"import subprocess; subprocess.run({inner!r}, start_new_session=True)")
    outer = [sys.executable, "-m", "shardwise", "launch", "-n", "1", str(tmp_path / "outer.py")]
    with Running(line=outer) as launch:
        pids = launch.wait_for(tmp_path, ["pid0", "pid1", "daemon0", "daemon1"])
        launch.process.kill()
        wait_for_end(pids)


@pytest.mark.parametrize(
    ("number", "stream"),
    [
        (signal.SIGINT, "stdout"),
        (signal.SIGTERM, "stdout"),
        (signal.SIGINT, "stderr"),
        (signal.SIGTERM, "stderr"),
    ],
)
@pytest.mark.slow
def test_signals_end_a_launch_whose_output_nobody_reads(number, stream, tmp_path):
    with Running("-n", 2, "--grace-period", 1, ["fill_pipe", str(tmp_path), stream]) as launch:
        pids = launch.wait_for(tmp_path, ["pid0", "pid1", "full0", "full1"])
        launch.process.send_signal(number)
        wait_for_end(pids)
        assert launch.process.wait(timeout=LIMIT) == 128 + number


def test_a_full_disk_of_the_log_files_is_a_warning(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}.log").symlink_to("/dev/full")
    launch = run("-n", 2, "--log-dir", tmp_path, ["print_lines", "3"])
    assert launch.returncode == 0, launch.stderr
    assert sorted(launch.stdout.splitlines()) == [f"[{rank}] line {line}" for rank in range(2) for line in range(3)]
    (warning,) = launch.stderr.splitlines()
    assert re.fullmatch(r"shardwise launch: the log file .*rank[01]\.log cannot be written \(No space .*", warning)


@pytest.mark.slow
def test_logs_end_at_the_limit_of_file_sizes(tmp_path):
    limited = [sys.executable, "-c", LIMITED, "launch", "-n", "1", "--log-dir", str(tmp_path), str(PROGRAMS)]
    launch = subprocess.run(
        [*limited, "print_lines", "3000"], capture_output=True, text=True, timeout=LIMIT, check=False, env=variables()
    )
    assert launch.returncode == 0 and "[0] line 2999" in launch.stdout
    assert launch.stderr.count("cannot be written (File too large)") == 1
    assert (tmp_path / "rank0.log").stat().st_size == 5000


LIMITED = """
import resource, sys
from shardwise.launch import command_line
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
sys.exit(command_line.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_log_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    launch = run("-n", 1, "--log-dir", tmp_path / "file/logs", ["show"])
    assert launch.returncode == 2
    assert "logs cannot be created (Not a directory)" in launch.stderr and "Traceback" not in launch.stderr


@pytest.mark.slow
def test_a_full_standard_output_is_a_warning(tmp_path):
    with open("/dev/full", "w") as full:
        launch = subprocess.run(
            command("-n", 2, "--log-dir", tmp_path, ["print_lines", "3"]),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT,
            check=False,
            env=variables(),
        )
    assert launch.returncode == 0
    assert launch.stderr.count("shardwise launch: standard output cannot be written (No space left on device)") == 1
    assert (tmp_path / "rank1.log").read_text().splitlines() == ["line 0", "line 1", "line 2"]


@pytest.mark.slow
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_launcher_that_is_started_without_standard_streams(closed, tmp_path):
    code = f"import os, sys; [os.close(number) for number in {closed}]; os.execv(sys.argv[1], sys.argv[1:])"
    line = [sys.executable, "-c", code, *command("-n", 2, "--log-dir", tmp_path, ["show"])]
    launch = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False, env=variables())
    assert launch.returncode == 0
    assert launch.stdout.count("rank") == (0 if 1 in closed else 2)
    assert "rank 1" in (tmp_path / "rank1.log").read_text()


@pytest.mark.slow
def test_exit_codes_are_seen_if_the_parent_of_the_launcher_ignores_its_children(tmp_path):
    code = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    line = [sys.executable, "-c", code, *command("-n", 2, "--max-restarts", 1, ["fail_once", str(tmp_path)])]
    launch = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT, check=False, env=variables())
    assert launch.returncode == 0 and "restart 1 of 1" in launch.stderr


@pytest.mark.slow
def test_nohup_is_respected(tmp_path):
    with Running(line=["nohup", *command("-n", 1, ["sleep", str(tmp_path)])]) as launch:
        (pid,) = launch.wait_for(tmp_path, ["pid0"])
        launch.process.send_signal(signal.SIGHUP)
        assert is_alive(pid)
        launch.process.send_signal(signal.SIGTERM)  # it is delivered after SIGHUP
        assert launch.process.wait(timeout=LIMIT) == 128 + signal.SIGTERM


def test_restarts(tmp_path):
    launch = run("-n", 2, "--max-restarts", 2, "--log-dir", tmp_path / "logs", ["fail_once", str(tmp_path)])
    assert launch.returncode == 0, launch.stderr
    assert "ValueError: first start" in launch.stderr and "restart 1 of 2" in launch.stderr
    assert [(tmp_path / f"starts{rank}").read_text().split() for rank in range(2)] == [["0", "1"], ["0", "1"]]
    assert "first start" in (tmp_path / "logs/rank1.log").read_text()
    assert (tmp_path / "logs/rank1.restart1.log").read_text() == "finished\n"


@pytest.mark.slow
def test_restarts_are_limited(tmp_path):
    launch = run("-n", 2, "--max-restarts", 1, "--log-dir", tmp_path, ["fail", str(tmp_path)])
    assert launch.returncode == 1
    assert launch.stderr.count("process 1 failed first") == 2


@pytest.mark.slow
def test_a_port_in_use_is_an_error(tmp_path):
    with Running("-n", 1, "--coordinator", "127.0.0.1:0", ["sleep", str(tmp_path)]) as launch:
        (pid,) = launch.wait_for(tmp_path, ["pid0"])
        port = coordinator_port(pid)
        second = run("-n", 1, "--coordinator", f"127.0.0.1:{port}", ["show"])
        assert second.returncode == 2
        assert port in second.stderr and "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param(
            "exit",
            r"process 1 failed first: it ended with exit code 0 while others still ran \(a premature exit\)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "fail", r"process 1 failed first: it raised ValueError: one rank only, after step 2", marks=pytest.mark.slow
        ),
        pytest.param("kill", r"process 1 failed first: killed by SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_failures_in_training(name, reason, tmp_path):
    """Faults 1, 6 and 7 under the launcher."""
    options = ("-n", 2, "--devices-per-process", 2, "--timeout", LIMIT, "--log-dir", tmp_path)
    launch = run(*options, ["train", name], script=TRAINING)
    assert launch.returncode != 0
    assert re.search(reason, launch.stderr), launch.stderr
    assert ("ValueError: one rank only" in launch.stderr) == (name == "fail")
    assert "step 2: 4.0" in launch.stdout and "step 3" not in launch.stdout
    check_records(tmp_path, stops=name == "kill")


def check_records(folder, stops):
    """Check that the records name process 1 as the one that stopped, and the program in which process 0 waited."""
    records = read_records(folder)
    assert all(launch.program.processes == "0,1" for record in records for launch in record.launches)
    result = conclude(records)
    if stops:  # process 0 had time for the next launch
        assert (result.stopped, result.waiting) == ([1], [0])
        assert "training.py:" in result.awaited.program.collectives[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "texts"),
    [("sleep", ["it is alive", "time.sleep(600)"]), ("stop", ["the process is stopped, or unreachable"])],
)
def test_a_stuck_process_is_reported(name, texts, tmp_path):
    """Faults 4 and 5 under the launcher: the stuck process is named, not the one that waited for it."""
    options = ("-n", 2, "--devices-per-process", 2, "--timeout", STUCK_TIME, "--log-dir", tmp_path)
    launch = run(*options, ["train", name], script=TRAINING)
    assert launch.returncode != 0
    report = launch.stderr[launch.stderr.index("shardwise launch: process 1 failed first") :]
    assert "after step 2" in report
    for text in texts:
        assert text in report
    check_records(tmp_path, stops=True)
    assert "training.py:" in read_records(tmp_path)[1].status.line


@pytest.mark.slow
def test_training_is_restarted(tmp_path):
    options = ("-n", 2, "--devices-per-process", 2, "--timeout", LIMIT, "--max-restarts", 1, "--log-dir", tmp_path)
    launch = run(*options, ["train", "kill"], script=TRAINING)
    assert launch.returncode == 0, launch.stderr
    assert launch.stdout.count("step 5: 4.0") == 2


@pytest.mark.slow
def test_an_exit_before_initialize_is_premature(tmp_path):
    launch = run("-n", 2, "--log-dir", tmp_path, ["exit_before_initialize"], script=TRAINING)
    assert launch.returncode == 1
    assert "process 1 failed first: it ended with exit code 0 while others still ran" in launch.stderr


@pytest.mark.slow
def test_two_launchers_run_one_program(tmp_path):
    """Two nodes on this machine."""
    with Running("-n", 1, "--coordinator", "127.0.0.1:0", ["sleep", str(tmp_path)]) as probe:
        (pid,) = probe.wait_for(tmp_path, ["pid0"])
        port = coordinator_port(pid)
    options = (
        "-n",
        1,
        "--devices-per-process",
        2,
        "--nodes",
        2,
        "--coordinator",
        f"127.0.0.1:{port}",
        "--timeout",
        LIMIT,
    )
    launchers = [
        subprocess.Popen(
            command(*options, "--node-rank", node, ["train", "nothing"], script=TRAINING),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables(),
        )
        for node in range(2)
    ]
    try:
        outputs = [launcher.communicate(timeout=LIMIT) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait(timeout=LIMIT)
    for node, (launcher, (out, err)) in enumerate(zip(launchers, outputs, strict=True)):
        assert launcher.returncode == 0, err
        assert f"[{node}] step 5: 4.0" in out


@pytest.mark.slow
def test_a_process_that_others_waited_for_is_reported():
    """Fault 5 where only an exception of the process that waited names the other, which sleeps or skips a save."""
    launch = run("-n", 3, [], script=ROOT / "tests/launch/peer_failure.py")
    assert launch.returncode == 1
    report = launch.stderr[launch.stderr.index("shardwise launch: ") :]
    reason = "it did not reach save 3 within 10 s (process 0 waited for it), after step 7"
    assert report.startswith(f"shardwise launch: process 1 failed first: {reason}\nTraceback")
    assert "shardwise launch: process 0: exit code 1; process 2: killed by SIGTERM" in report


SHORT_HEARTBEAT = """
import sys
from functools import partial
from shardwise.launch import attempt, command_line
attempt.Coordinator = partial(attempt.Coordinator, heartbeat_timeout=20)
sys.exit(command_line.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_process_that_is_stopped_after_its_last_step_is_reported():
    """Fault 4 while all others end without an error: the launcher does not wait for ever."""
    program = ROOT / "tests/launch/stopped_at_the_end.py"
    launcher = [sys.executable, "-c", SHORT_HEARTBEAT, "launch", "-n", "3", "--grace-period", "2", str(program)]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=LIMIT, check=False, env=variables())
    assert done.returncode == 1
    assert "process 0 failed first: no heartbeat for" in done.stderr
