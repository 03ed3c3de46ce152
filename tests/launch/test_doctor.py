"""`shardwise doctor`: each check, and the way to fix what is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.base._jaxlib import jaxlib_version
from shardwise.launch import doctor
from shardwise.version import JAXLIB_BOUNDS, NEWEST_JAXLIB, OLDEST_JAXLIB, UNSUPPORTED_JAXLIB

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_doctor_prints_json_and_finds_no_error_here():
    run = subprocess.run(
        [sys.executable, "-m", "shardwise", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    report = json.loads(run.stdout)
    assert run.returncode == 0 and report["ok"], report
    checks = {check["name"]: check for check in report["checks"]}
    assert list(checks) == list(doctor.CHECKS)
    assert "cpu" in checks["devices"]["detail"]
    assert checks["collective"]["detail"] == "a sum over 2 processes with 2 devices each is right"


@pytest.mark.parametrize(
    "name", [name for name in doctor.CHECKS if name not in ("devices", "collective")], ids=lambda name: name
)
def test_checks_pass_here(name):
    check = doctor.CHECKS[name]()
    assert check.name == name
    assert check.status != "error" and check.detail


def test_versions_of_jaxlib():
    newest = max(NEWEST_JAXLIB.values())
    for supported in (OLDEST_JAXLIB, (*newest[:2], 7), (*newest[:2], 0, 1)):
        assert doctor.check_jaxlib(".".join(map(str, supported))).status == "ok"
    for unsupported in ((*OLDEST_JAXLIB[:2], OLDEST_JAXLIB[2] - 1), (0, 9, 9), (*UNSUPPORTED_JAXLIB, 0), (1, 0)):
        check = doctor.check_jaxlib(".".join(map(str, unsupported)))
        assert check.status == "error" and check.fix == f'pip install "jaxlib{JAXLIB_BOUNDS}"'


def test_plugins_must_have_the_version_of_jaxlib():
    assert doctor.check_plugins({"jax-cuda12-plugin": jaxlib_version()}, True).status == "ok"
    assert doctor.check_plugins({}, False).status == "ok"
    wrong = doctor.check_plugins({"jax-cuda12-plugin": "0.1.0"}, True)
    assert wrong.status == "error" and wrong.fix == f"pip install jax-cuda12-plugin=={jaxlib_version()}"
    missing = doctor.check_plugins({}, True)
    assert missing.status == "warning" and "jax-cuda12-plugin[with-cuda]" in missing.fix


def test_a_plugin_that_cannot_be_loaded_is_a_warning(tmp_path, monkeypatch):
    library = tmp_path / "mine.so"
    library.write_text("not a library, although it is as long as the header of one would be, and somewhat longer")
    monkeypatch.setenv("PJRT_NAMES_AND_LIBRARY_PATHS", f"mine:{library},nonsense")
    check = doctor.check_platforms()
    assert check.status == "warning" and "uninstall the plugin" in check.fix
    assert f"the PJRT plugin 'mine' ({library}, from PJRT_NAMES_AND_LIBRARY_PATHS) cannot be used" in check.detail
    assert "has the entry 'nonsense'" in check.detail


def test_little_memory_is_a_warning():
    assert doctor.check_memory(2**34).status == "ok"
    check = doctor.check_memory(2**28)
    assert (check.status, check.detail) == ("warning", "0.2 GiB are free")


def test_an_address_that_cannot_be_bound_is_an_error():
    assert doctor.check_ports("192.0.2.1").status == "error"


def test_proxies():
    assert doctor.check_proxies({}).status == "ok"
    assert doctor.check_proxies({"http_proxy": "http://p:1", "no_proxy": "*"}).status == "ok"
    check = doctor.check_proxies({"HTTPS_PROXY": "http://p:1"})
    assert check.status == "warning" and "HTTPS_PROXY" in check.detail and "no_proxy" in check.fix


def test_contradictory_variables_are_an_error():
    check = doctor.check_environment({"PMI_RANK": "3", "PMI_SIZE": "2", "PMI_LOCAL_SIZE": "2"})
    assert check.status == "error" and "PMI_RANK must be from 0 to 1" in check.detail
    plain = {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    assert doctor.check_environment(plain).detail == "process 1 of 2 by variables, h:1"
    assert doctor.check_environment({}).status == "ok"


@pytest.mark.table(default=1)
@pytest.mark.parametrize("name", ["devices", "collective"])
def test_a_program_that_fails_is_an_error_with_its_message(name, monkeypatch):
    """XLA ends a process whose flags are wrong; the check that starts it does not end with it."""
    monkeypatch.setenv("XLA_FLAGS", "--no_such_flag=1")
    check = doctor.CHECKS[name]()
    assert check.status == "error" and check.fix


def test_a_check_that_raises_is_an_error_and_the_others_run(monkeypatch, capsys):
    def broken():
        raise OSError("no such device")

    monkeypatch.setattr(doctor, "CHECKS", {"broken": broken, "python": doctor.check_python})
    assert doctor.run_doctor() == 1
    printed = capsys.readouterr().out
    assert "ERROR    broken: OSError: no such device" in printed
    assert "ok       python" in printed and "2 checks: 1 errors, 0 warnings" in printed
