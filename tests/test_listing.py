"""docs/names.md is up to date with the script that writes it."""

import pytest

pytest.importorskip("jax")
pytestmark = pytest.mark.jax

from tests.listing import DOCUMENT, listing  # noqa: E402


def test_names_page_is_up_to_date():
    assert DOCUMENT.read_text() == listing(), "run `python -m tests.listing`"
