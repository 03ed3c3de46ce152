"""The pair of PyTorch and torchax that `shardwise.torch` needs: metadata, the error of the import, and `doctor`."""

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from shardwise.base.torch_versions import torch_problem
from shardwise.launch import doctor
from shardwise.version import TORCH_BOUNDS, TORCHAX_BOUNDS

ROOT = Path(__file__).resolve().parents[2]
PAIR = "torch>=2.11,<2.13 and torchax==0.0.13"


@pytest.mark.parametrize(
    ("versions", "problem", "status"),
    [
        ({"torch": "2.11.0", "torchax": "0.0.13"}, None, "ok"),
        ({"torch": "2.12.1+cu130", "torchax": "0.0.13"}, None, "ok"),
        ({}, "torch and torchax are not installed", "ok"),
        ({"torch": "2.13.0+cpu"}, "torchax is not installed", "ok"),
        ({"torchax": "0.0.13"}, "torch is not installed", "warning"),
        ({"torch": "2.13.0", "torchax": "0.0.13"}, "torch 2.13.0 is not supported", "warning"),
        ({"torch": "2.10.1", "torchax": "0.0.13"}, "torch 2.10.1 is not supported", "warning"),
        ({"torch": "2.12.1", "torchax": "0.0.14"}, "torchax 0.0.14 is not supported", "warning"),
    ],
)
def test_pairs(versions, problem, status):
    assert torch_problem(versions.get) == problem
    check = doctor.check_torch(versions.get)
    assert (check.name, check.status) == ("torch", status)
    if problem is not None:
        assert PAIR in check.detail
    if status == "warning":
        assert problem in check.detail and check.fix == 'pip install "shardwise[torch]"'


def test_the_extra_has_the_bounds():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["torch"][:2] == [f"torch{TORCH_BOUNDS}", f"torchax{TORCHAX_BOUNDS}"]


@pytest.mark.skipif(find_spec("torchax") is not None, reason="torchax is installed")
def test_the_import_without_the_pair_says_what_to_install():
    run = subprocess.run(
        [sys.executable, "-c", "import shardwise.torch"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert run.stderr.splitlines()[-1] == (
        f"ImportError: shardwise.torch needs {PAIR}, but torch and torchax are not installed: "
        'pip install "shardwise[torch]"'
    )
