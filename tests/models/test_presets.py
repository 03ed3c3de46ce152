"""Decoders by name: sizes against published numbers of parameters."""

import pytest

from shardwise.models import preset


@pytest.mark.parametrize(
    ("name", "count"), [("llama3-8b", 8030261248), ("llama3-70b", 70553706496), ("llama3-405b", 405853388800)]
)
def test_presets_have_the_published_numbers_of_parameters(name, count):
    assert preset(name).parameters == count


def test_an_unknown_preset_names_a_near_one():
    with pytest.raises(ValueError, match=r"unknown model 'llama3-7b'. Did you mean 'llama3-70b'"):
        preset("llama3-7b")
