"""Public callables have the signatures of JAX: names, kinds and defaults of parameters."""

import inspect

import pytest

import shardwise as sw
from tests.signatures import (
    EXCEPTIONS,
    PARAMETERS,
    SETTINGS_WITH_DEFAULT,
    SETTINGS_WITHOUT_DEFAULT,
    callables,
    differences,
)

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax


def test_signatures_equal_those_of_jax():
    differing = {name: pair for name, pair in differences().items() if name not in EXCEPTIONS}
    assert differing == {}


def test_every_exception_is_needed():
    assert set(EXCEPTIONS) - set(differences()) == set()
    assert {name for name, _ in PARAMETERS} - set(differences(excepted=())) == set()
    assert len(list(callables())) > 1200


def test_every_excepted_parameter_exists():
    functions = {name: function for name, _, function in callables()}
    for name, parameter in PARAMETERS:
        assert parameter in inspect.signature(functions[name]).parameters, name


@pytest.mark.parametrize("name", SETTINGS_WITH_DEFAULT)
def test_settings_without_a_value_are_true(name):
    assert getattr(jax, name)().new_val is True
    assert inspect.signature(getattr(sw, name)).parameters["new_val"].default is True


@pytest.mark.parametrize("name", SETTINGS_WITHOUT_DEFAULT)
def test_settings_need_a_value(name):
    for package in (jax, sw):
        with pytest.raises(TypeError):
            getattr(package, name)()
