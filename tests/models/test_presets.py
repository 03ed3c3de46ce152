"""Decoders by name: sizes against published numbers of parameters."""

import pytest

from shardwise.models import preset


@pytest.mark.parametrize(
    ("name", "count", "active"),
    [
        ("llama3-8b", 8030261248, 8.03e9),
        ("llama3-70b", 70553706496, 70.6e9),
        ("llama3-405b", 405853388800, 405.9e9),
        ("mixtral-8x7b", 46702792704, 12.9e9),
        ("mixtral-8x22b", 140630071296, 39.2e9),
        ("deepseek-v3", 671026419200, 37.6e9),
    ],
)
def test_presets_have_the_published_numbers_of_parameters(name, count, active):
    sizes = preset(name)
    assert sizes.parameters == count and sizes.active_parameters == pytest.approx(active, rel=2e-3)


def test_an_unknown_preset_names_a_near_one():
    with pytest.raises(ValueError, match=r"unknown model 'llama3-7b'. Did you mean 'llama3-70b'"):
        preset("llama3-7b")
