"""The check of the installed JAX, before anything imports it."""

import sys
from importlib import metadata
from types import ModuleType

import pytest

pytest.importorskip("jax")

from shardwise.errors import UnsupportedError
from shardwise.inside_jax import _installed

pytestmark = pytest.mark.jax


def test_no_jax(monkeypatch):
    def raise_not_found(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(_installed, "version", raise_not_found)
    with pytest.raises(ImportError, match="pip install jax"):
        _installed.check_jax()


@pytest.mark.parametrize("release", ["0.9.2", "0.13.0", "1.0.0rc1"])
def test_another_release(monkeypatch, release):
    monkeypatch.setattr(_installed, "version", lambda name: release)
    with pytest.raises(UnsupportedError, match=f"does not support JAX {release}"):
        _installed.check_jax()


def test_shardwise_as_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", ModuleType("shardwise"))
    with pytest.raises(ImportError, match="`import jax` imports Shardwise"):
        _installed.check_jax()


def test_the_installed_release():
    _installed.check_jax()
