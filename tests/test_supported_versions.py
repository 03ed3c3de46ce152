"""`shardwise/version.py` says which versions of Python and jaxlib are supported; metadata and documents agree."""

import json
import re
import tomllib
from pathlib import Path

from shardwise.version import JAXLIB_BOUNDS, NEWEST_JAXLIB, OLDEST_JAXLIB, UNSUPPORTED_JAXLIB
from tests.jaxlib_versions import PAIRS

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [".".join(map(str, version)) for version in NEWEST_JAXLIB]


def text(version):
    return ".".join(map(str, version))


def numbers(version):
    return tuple(map(int, version.split(".")))


def test_metadata_have_the_bounds_of_jaxlib():
    assert f"jaxlib{JAXLIB_BOUNDS}" in PROJECT["dependencies"]
    for name in ("cuda12", "cuda13"):
        assert PROJECT["optional-dependencies"][name] == [f"jax-{name}-plugin[with-cuda]{JAXLIB_BOUNDS}"]


def test_metadata_have_the_versions_of_python():
    prefix = "Programming Language :: Python :: "
    classifiers = [name.removeprefix(prefix) for name in PROJECT["classifiers"] if name.startswith(prefix)]
    assert classifiers == ["3 :: Only", *PYTHONS]
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_installation_page_lists_every_pair():
    page = (ROOT / "docs/installation.md").read_text()
    rows = re.findall(r"^\| (3\.\d+) \| (.+?) \|$", page, re.MULTILINE)
    oldest = text(OLDEST_JAXLIB)
    expected = [
        (python, oldest if newest == OLDEST_JAXLIB else f"{oldest} to {text(newest)}")
        for python, newest in zip(PYTHONS, NEWEST_JAXLIB.values(), strict=True)
    ]
    assert rows == expected


def test_every_python_and_every_minor_version_of_jaxlib_is_tested():
    assert list(dict.fromkeys(python for python, _ in PAIRS)) == PYTHONS
    assert numbers(PAIRS[0][1]) == OLDEST_JAXLIB
    minors = [numbers(jaxlib)[:2] for _, jaxlib in PAIRS]
    assert minors == [(0, minor) for minor in range(OLDEST_JAXLIB[1], UNSUPPORTED_JAXLIB[1])]
    for python, jaxlib in PAIRS:
        assert numbers(jaxlib)[:2] <= NEWEST_JAXLIB[numbers(python)][:2]


def test_dev_container_has_the_oldest_python():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert re.fullmatch(rf"mcr\.microsoft\.com/devcontainers/python:{re.escape(PYTHONS[0])}-\w+", container["image"])
    assert container["postCreateCommand"] == "make venv"
