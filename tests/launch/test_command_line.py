"""The command line: what a command loads, its errors, and its standard streams."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardwise.checkpoints import save
from shardwise.launch.command_line import main

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ["shardwise.checkpoints", "tensorstore", "rich", "scipy"]


def modules(code, *arguments):
    """Run code in a process of its own, and return the names of the modules that it has loaded at the end."""
    code = f"{code}\nimport sys; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    return set(run.stdout.split())


def test_run_does_not_load_checkpoints(tmp_path):
    (tmp_path / "script.py").write_text("import jax")
    code = "import sys; from shardwise.launch.command_line import main; main(['run', sys.argv[1]])"
    loaded = modules(code, str(tmp_path / "script.py"))
    assert "jax" in loaded and not loaded.intersection(HEAVY)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("module", ["command_line", "doctor", "launcher"])
def test_commands_are_loaded_when_they_run(module):
    assert not modules(f"import shardwise.launch.{module}").intersection(HEAVY)


def test_the_checkpoint_command_runs(tmp_path):
    command = [sys.executable, "-m", "shardwise", "checkpoint", "ls", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr == f"shardwise checkpoint ls: there is no checkpoint in {tmp_path}\n"


def run_command(
    *arguments, code="import sys; from shardwise.launch.command_line import main; sys.exit(main())", **options
):
    """Run a command in a process of its own. Code before `main` may change its streams."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(
        command, text=True, check=False, timeout=120, env=environment, **{"capture_output": True, **options}
    )


@pytest.mark.parametrize("command", ["run", "launch"])
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("absent.py", "the script 'absent.py' does not exist"),
        ("", "the script '' does not exist"),
        (ROOT, f"the script {str(ROOT)!r} is a folder, not a script"),
    ],
)
def test_wrong_scripts_are_errors(command, script, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([command, *(["-n", "1"] if command == "launch" else []), str(script)])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "module",
    [
        "no_such_module",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("", "json.no_such_module", "no_such_package.module")),
    ],
)
def test_a_module_that_does_not_exist_is_an_error(module):
    run = run_command("run", "-m", module)
    assert (run.returncode, run.stderr) == (2, f"shardwise run: there is no module {module!r}\n")


@pytest.mark.slow
def test_errors_in_a_package_are_raised(tmp_path):
    (tmp_path / "broken_package").mkdir()
    (tmp_path / "broken_package/__init__.py").write_text("import no_such_module")
    run = run_command("run", "-m", "broken_package.module", cwd=tmp_path)
    assert run.returncode == 1
    assert "Traceback" in run.stderr and "No module named 'no_such_module'" in run.stderr


READERLESS = """
import os, sys
from shardwise.launch.command_line import main
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
sys.exit(main())
"""


@pytest.mark.table(default=1)
@pytest.mark.parametrize("arguments", [["doctor"], ["simulate", "MODEL:double", "--hardware", "h100"]])
def test_commands_end_quietly_if_nobody_reads_their_output(arguments, tmp_path):
    (tmp_path / "model.py").write_text("import shardwise.numpy as jnp\ndef double(): return jnp.zeros(2) * 2\n")
    arguments = [argument.replace("MODEL", str(tmp_path / "model.py")) for argument in arguments]
    run = run_command(*arguments, code=READERLESS)
    assert (run.returncode, run.stderr) == (128 + signal.SIGPIPE, "")


CLOSED = """
import os, sys
for descriptor in range(3):
    os.close(descriptor)
os.execv(sys.executable, [sys.executable, "-m", "shardwise", *sys.argv[1:]])
"""


@pytest.mark.table(default=1)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["run", "SCRIPT"],
        pytest.param(["launch", "-n", "1", "SCRIPT"], marks=pytest.mark.slow),
        pytest.param(["checkpoint", "ls", "CHECKPOINTS"], marks=pytest.mark.slow),
    ],
)
def test_commands_run_without_standard_streams(arguments, tmp_path):
    (tmp_path / "script.py").write_text("print('text')")
    if "CHECKPOINTS" in arguments:
        save(tmp_path / "run/step-1", {"x": np.zeros(2)})
    values = {"SCRIPT": str(tmp_path / "script.py"), "CHECKPOINTS": str(tmp_path / "run")}
    run = run_command(*(values.get(argument, argument) for argument in arguments), code=CLOSED)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


INTERRUPTED = """
import sys
from shardwise.launch import command_line
def interrupt(**options): raise KeyboardInterrupt
command_line.run_doctor = interrupt
sys.exit(command_line.main())
"""


def test_an_interrupted_command_has_no_traceback():
    run = run_command("doctor", code=INTERRUPTED)
    assert (run.returncode, run.stderr) == (130, "shardwise doctor: interrupted\n")
