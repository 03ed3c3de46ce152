"""Lazy modules, and the public names of stubs."""

import sys
from types import ModuleType

import pytest

from shardwise.base.lazy import lazy_module, missing_attribute_error, publish, stub_names

STUB = """
from typing import Any
from package.one import first as first, second
from package.two import (
    third as renamed,
    fourth as fourth,
)
alias = second
"""


def test_a_stub_exports_names_with_as_and_aliases():
    assert stub_names(STUB) == {
        "first": ("package.one", "first"),
        "renamed": ("package.two", "third"),
        "fourth": ("package.two", "fourth"),
        "alias": ("package.one", "second"),
    }


def test_a_lazy_module_is_imported_at_the_first_access(monkeypatch, tmp_path):
    (tmp_path / "loaded_late.py").write_text("answer = 42")
    monkeypatch.syspath_prepend(tmp_path)
    module = lazy_module("loaded_late")
    assert "loaded_late" not in sys.modules
    assert module.answer == 42
    monkeypatch.delitem(sys.modules, "loaded_late")


def test_published_names_are_those_that_the_module_defines(monkeypatch):
    module = ModuleType("published")
    monkeypatch.setitem(sys.modules, "published", module)
    exec("from math import sqrt\ndef shown(): ...\ndef _hidden(): ...", vars(module))
    publish("published", "sqrt")
    assert module.__all__ == ["shown", "sqrt"]
    assert "_hidden" not in dir(module)
    with pytest.raises(AttributeError, match=r"published has no attribute 'show'.* Did you mean 'shown'"):
        _ = module.show


def test_private_names_get_no_hint():
    assert "Did you mean" not in str(missing_attribute_error("package", "_shown", ["shown"]))
