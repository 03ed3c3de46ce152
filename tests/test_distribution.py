"""The distribution: metadata and contents; the wheel in a clean environment; imports without POSIX."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from shardwise.launch.command_line import main

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMMANDS = [
    (),
    *((name,) for name in ("run", "launch", "checkpoint", "explain", "simulate", "calibrate", "doctor")),
    *(("checkpoint", name) for name in ("ls", "inspect", "verify", "diff", "export", "import")),
]


def test_documented_extras_exist():
    extras = set(PROJECT["optional-dependencies"])
    table = (ROOT / "docs/installation.md").read_text().partition("## Extras")[2].partition("\n## ")[0]
    documented = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)
    }
    assert documented == extras


def test_files_that_the_metadata_name_exist():
    assert (ROOT / PROJECT["readme"]).is_file()
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])
    assert set(PROJECT["urls"]) == {"Documentation", "Source", "Issues", "Changelog"}
    in_the_repository = [
        re.sub(r".*/(?:blob|tree)/main/", "", url) for url in PROJECT["urls"].values() if "/main/" in url
    ]
    assert in_the_repository and all((ROOT / path).exists() for path in in_the_repository)


def test_every_data_file_of_the_package_is_matched_by_a_pattern():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["shardwise"]
    package = ROOT / "shardwise"
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert package / "py.typed" in others and package / "numpy/__init__.pyi" in others
    assert others == {path for pattern in patterns for path in package.glob(pattern)}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_describes_the_command_with_an_example(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--help"])
    printed = capsys.readouterr().out
    if not command:
        assert all(f"\n    {name}" in printed for (name,) in COMMANDS[1:8])
        return
    example = printed.partition("example:\n")[2]
    assert example.startswith(f"  shardwise {' '.join(command)} "), printed
    description = printed.partition("\n\n")[2].partition("\n\n")[0]
    assert re.fullmatch(r"[A-Z].*\.", description, re.DOTALL), printed


# Imports the package once, for the modules of others, and again without the modules, functions and signals of POSIX.
_IMPORT_WITHOUT_POSIX = """
import importlib, importlib.util, os, pkgutil, signal, sys

# These end processes by signals; `launch` loads them after it has checked that the system has process groups.
LAUNCHER = ("attempt", "elastic_attempt", "launch_attempt", "launcher", "node_attempt", "stop")
has_torch = importlib.util.find_spec("torchax") is not None

def load():
    import shardwise
    for module in pkgutil.LISTING(shardwise.__path__, "shardwise."):
        needs_torch = module.name.startswith("shardwise.torch")
        if module.name not in [f"shardwise.launch.{name}" for name in LAUNCHER] and (has_torch or not needs_torch):
            importlib.import_module(module.name)
    return shardwise

load()
for name in [name for name in sys.modules if name.partition(".")[0] == "shardwise"]:
    del sys.modules[name]
for name in ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None  # its import raises ImportError
for name in ("fork", "forkpty", "getuid", "geteuid", "killpg", "register_at_fork", "setsid", "uname", "waitid"):
    delattr(os, name)
for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "pthread_sigmask", "sigwait"):
    delattr(signal, name)
for name in ("sched_getaffinity", "posix_fadvise"):
    if hasattr(os, name):
        delattr(os, name)
sys.platform = "PLATFORM"
shardwise = load()
assert shardwise.make_mesh is not None
from shardwise.launch.command_line import main
try:
    main(["launch", "-n", "1", __file__])
except SystemExit:
    pass
"""


# The modules at the top by default, and all modules where the tests may take long.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "listing"), [("win32", "iter_modules"), ("win32", "walk_packages"), ("darwin", "walk_packages")]
)
def test_package_can_be_imported_without_posix(platform, listing, tmp_path):
    """This shows import time only: the system below is still Linux."""
    script = tmp_path / "script.py"
    script.write_text(_IMPORT_WITHOUT_POSIX.replace("PLATFORM", platform).replace("LISTING", listing))
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert "launch needs process groups" in run.stderr


_USE = """
from pathlib import Path
import sys
import shardwise as sw
import shardwise.numpy as jnp
from importlib.util import find_spec
assert Path(sw.__file__).is_relative_to(sys.prefix), sw.__file__
assert find_spec("jax") is None
mesh = sw.make_mesh((8,), ("x",))
x = sw.device_put(jnp.arange(16.0), sw.NamedSharding(mesh, sw.P("x")))
print(float(sw.jit(jnp.sum)(x)))
"""


@pytest.mark.slow
def test_wheel_and_source_distribution_install_into_a_clean_environment(tmp_path):
    """`build` makes the wheel from the source distribution, so the latter is complete."""
    run(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (source,) = (tmp_path / "dist").glob("*.tar.gz")

    with ZipFile(wheel) as archive:
        files = set(archive.namelist())
    assert {name.partition("/")[0].partition("-")[0] for name in files} == {"shardwise"}
    package = [path for path in (ROOT / "shardwise").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {name for name in files if name.startswith("shardwise/")} == {
        str(path.relative_to(ROOT)) for path in package
    }

    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "SECURITY.md", "Makefile", "docs/installation.md", "tests/conftest.py"} <= names
    assert not [name for name in names if name.endswith(".pyc")]
    hidden = {name.partition("/")[0] for name in names if name.startswith(".")}
    assert hidden == {".ci", ".devcontainer", ".github", ".pre-commit-config.yaml"}  # tests read them

    venv.create(tmp_path / "clean", with_pip=True)
    clean = tmp_path / "clean/bin"
    run(clean / "python", "-m", "pip", "install", "--quiet", f"{wheel}[checkpoint]")
    assert run(clean / "python", "-c", _USE).strip() == "120.0"
    assert "doctor" in run(clean / "shardwise", "--help")
    assert run(clean / "shardwise", "--version").strip() == f"shardwise {wheel.name.split('-')[1]}"


def run(*command):
    """Run a command outside of the checkout, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    result = subprocess.run(
        words, capture_output=True, text=True, timeout=900, check=False, cwd=Path(sys.prefix), env=environment
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout
