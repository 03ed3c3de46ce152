"""Names that a module of JAX has and Shardwise does not provide."""

import sys
from types import ModuleType

import pytest

from shardwise.base.missing_names import report_missing


def test_the_error_names_the_module_of_jax_and_what_it_provides(monkeypatch):
    module = ModuleType("shardwise.jax_modules.fake")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    report_missing(module.__name__, ["second", "first"])
    with pytest.raises(AttributeError, match=r"jax\.fake\.third.* is not provided by .*It provides first, second\."):
        _ = module.third
