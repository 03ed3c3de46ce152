"""Grain and torch themselves as sources, where they are installed; `fakes` has their protocols."""

from itertools import islice

import numpy as np
import pytest

import shardwise as sw
from shardwise import P, data

pytestmark = pytest.mark.slow


@pytest.fixture
def rows(mesh):
    return sw.NamedSharding(mesh, P("data"))


def check_resume(create, rows, **options):
    """Compare a run that is resumed after two batches with an uninterrupted one."""
    whole = [np.asarray(batch) for batch in data.BatchIterator(create(), rows, **options)]
    first = data.BatchIterator(create(), rows, **options)
    delivered = list(islice(first, 2))
    second = data.BatchIterator(create(), rows, **options)
    second.restore(first.state())
    first.close()
    np.testing.assert_array_equal([np.asarray(batch) for batch in [*delivered, *second]], whole)


def test_grain(rows):
    grain = pytest.importorskip("grain", reason="Grain is not installed")
    check_resume(lambda: grain.MapDataset.range(24).map(np.int32), rows, batch_size=4, seed=0)
    check_resume(lambda: grain.MapDataset.range(24).shuffle(seed=1).to_iter_dataset(), rows, batch_size=4)


def test_torch(rows):
    torch_data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    check_resume(lambda: torch_data.DataLoader(range(24), batch_size=4, drop_last=True), rows)
