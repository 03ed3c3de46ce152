"""A batch that does not fit in memory is searched again in microbatches with fewer sequences than devices."""

import pytest

from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.errors import AutoshardError
from shardwise.launch.preset_target import Batch
from shardwise.launch.smaller_microbatches import search_smaller_microbatches
from shardwise.layout_search.evaluate import Alternative
from shardwise.models import PRESETS, Decoder

TINY = Decoder(2, 64, 4, 2, 16, 128, 256)
STATE, GRADIENTS = 3 * TINY.parameters, TINY.parameters  # bytes per device, on four
ACTIVATIONS = 100_000_000


def find(memory, monkeypatch, fits=True):
    """Return the batch that was found, and the shapes of the tokens of all searches."""
    monkeypatch.setitem(PRESETS, "tiny", TINY)
    peak_bytes = STATE + GRADIENTS + ACTIVATIONS
    least = Alternative("FSDP", AbstractMesh((4,), ("data",)), (), 1.0, 0.0, peak_bytes, fits=False)
    error, shapes = AutoshardError("no plan fits", least), []

    def search(step):
        def call(state, tokens):
            shapes.append(tokens.shape)
            if not fits:
                raise AutoshardError("nor here", least)
            return "a plan"

        return call

    try:
        batch, _ = search_smaller_microbatches("tiny", Batch(8, 64, 2), search, error, memory)
    except AutoshardError as raised:
        assert raised is error
        batch = None
    return batch, shapes


def test_the_fewest_microbatches_that_fit_by_an_estimate_are_searched(monkeypatch):
    assert find(0.6 * ACTIVATIONS, monkeypatch) == (Batch(8, 64, 4), [(4, 2, 65)])
    assert find(0.3 * ACTIVATIONS, monkeypatch) == (Batch(8, 64, 8), [(8, 1, 65)])


@pytest.mark.parametrize("memory", [STATE + GRADIENTS, 0.2 * ACTIVATIONS])
def test_the_error_stays_if_none_fits_by_the_estimate(memory, monkeypatch):
    assert find(memory, monkeypatch) == (None, [])


def test_the_error_stays_if_the_search_finds_none(monkeypatch):
    assert find(0.6 * ACTIVATIONS, monkeypatch, fits=False) == (None, [(4, 2, 65)])
