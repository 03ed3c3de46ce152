"""The tests of the examples train models of one layer."""

import gpt
import pytest


@pytest.fixture(autouse=True, scope="session")
def one_layer():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt, "LAYERS", 1)
        yield
