"""Plugin: its text in messages, its options, and the error for one that cannot be used."""

import pickle

import pytest

from shardwise.errors import PlatformError
from shardwise.runtime.plugins.plugin import PLUGIN_PRIORITY, Plugin


def test_text_names_platform_library_and_origin():
    assert str(Plugin("mine", "a test", "/lib/mine.so")) == "the PJRT plugin 'mine' (/lib/mine.so, from a test)"
    assert str(Plugin("mine", "a test")) == "the PJRT plugin 'mine' (from a test)"


@pytest.mark.parametrize("options", [{"a": 1}, lambda: {"a": 1}], ids=["mapping", "function"])
def test_options_may_be_a_function(options):
    assert Plugin("mine", "a test", options=options).resolved_options() == {"a": 1}


def test_a_library_may_be_loaded_elsewhere_or_be_absent():
    assert Plugin("mine", "a test", "/lib/mine.so").has_library and Plugin("mine", "a test", api="api").has_library
    assert not Plugin("mine", "a test", factory=lambda: None).has_library


def test_default_priority_is_above_that_of_the_cpu():
    assert Plugin("mine", "a test").priority == PLUGIN_PRIORITY > 0


def test_error_has_cause_and_remedy():
    error = Plugin("mine", "a test", "/lib/mine.so").error("it is rusty.")
    assert isinstance(error, RuntimeError) and error.platform == "mine"
    assert str(error).startswith(
        "the PJRT plugin 'mine' (/lib/mine.so, from a test) cannot be used: it is rusty. Repair"
    )
    assert "SHARDWISE_PLATFORMS=cpu" in str(error)
    copied = pickle.loads(pickle.dumps(error))
    assert isinstance(copied, PlatformError) and (str(copied), copied.platform) == (str(error), "mine")
