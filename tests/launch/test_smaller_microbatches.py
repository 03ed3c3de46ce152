"""A batch that does not fit in memory is searched again in microbatches with fewer sequences than devices."""

from types import SimpleNamespace

import pytest

from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import AutoshardError
from shardwise.launch.preset_target import Batch
from shardwise.launch.smaller_microbatches import faster_without_limit, search_smaller_microbatches
from shardwise.layout_search.evaluate import Alternative
from shardwise.models import PRESETS, Decoder

TINY = Decoder(2, 64, 4, 2, 16, 128, 256)
STATE, GRADIENTS = 3 * TINY.parameters, TINY.parameters  # bytes per device, on four
ACTIVATIONS = 100_000_000


def alternative(seconds, peak_bytes, fits):
    return Alternative("FSDP", AbstractMesh((4,), ("data",)), (), seconds, 0.0, peak_bytes, fits)


def find(memory, monkeypatch, fits=True):
    """Return the batch that was found, and the shapes of the tokens of all searches."""
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    peak_bytes = STATE + GRADIENTS + ACTIVATIONS
    least, shapes = alternative(1.0, peak_bytes, fits=False), []

    def search(step):
        def call(state, tokens):
            shapes.append(tokens.shape)
            if not fits:
                raise AutoshardError("nor here", least)
            return "a plan"

        return call

    found = search_smaller_microbatches("tiny", Batch(8, 64, 2), search, least, memory)
    return None if found is None else found[0], shapes


def test_the_fewest_microbatches_that_fit_by_an_estimate_are_searched(monkeypatch):
    assert find(0.6 * ACTIVATIONS, monkeypatch) == (Batch(8, 64, 4), [(4, 2, 65)])
    assert find(0.3 * ACTIVATIONS, monkeypatch) == (Batch(8, 64, 8), [(8, 1, 65)])


@pytest.mark.parametrize("memory", [STATE + GRADIENTS, 0.2 * ACTIVATIONS])
def test_nothing_is_found_if_none_fits_by_the_estimate(memory, monkeypatch):
    assert find(memory, monkeypatch) == (None, [])


def test_nothing_is_found_if_the_search_finds_none(monkeypatch):
    assert find(0.6 * ACTIVATIONS, monkeypatch, fits=False) == (None, [(4, 2, 65)])


@pytest.mark.parametrize(
    ("seconds", "peak_bytes", "is_found"),
    [(2.0, 150, True), (2.0, 250, False), (2.5, 150, False)],
    ids=["much faster", "far from fitting", "not much faster"],
)
def test_microbatches_are_tried_if_a_plan_that_nearly_fits_is_much_faster(seconds, peak_bytes, is_found):
    best, other = alternative(3.5, 90, True), alternative(seconds, peak_bytes, False)
    result = SimpleNamespace(alternatives=[best, other], seconds=best.seconds)
    assert faster_without_limit(result, 100) is (other if is_found else None)
