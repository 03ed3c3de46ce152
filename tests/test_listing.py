"""docs/names.md says of every name of JAX's whether it is here: as the script finds it."""

import pytest

pytest.importorskip("jax")
pytestmark = pytest.mark.jax

from tests.listing import DOCUMENT, listing  # noqa: E402


def test_the_list_is_what_the_script_makes():
    assert DOCUMENT.read_text() == listing(), "run `python -m tests.listing`"
