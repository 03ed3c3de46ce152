"""Grain and torch themselves as sources, where they are installed; `fakes` has their protocols."""

import tempfile
from itertools import islice

import numpy as np
import pytest

import shardwise as sw
from shardwise import P, checkpoints, data
from shardwise.errors import DataError, DataStateMismatch

pytestmark = pytest.mark.slow


@pytest.fixture
def rows(mesh):
    return sw.NamedSharding(mesh, P("data"))


def check_resume(create, rows, **options):
    """Compare a run that is resumed after two batches, through a checkpoint, with an uninterrupted one."""
    whole = [lists(batch) for batch in data.BatchIterator(create(), rows, **options)]
    assert len(whole) > 2
    first = data.BatchIterator(create(), rows, **options)
    delivered = list(islice(first, 2))
    with tempfile.TemporaryDirectory() as folder:
        with checkpoints.Manager(folder, every_steps=1, save_on_sigterm=False) as manager:
            manager.save(2, {"w": np.zeros(2)}, metadata={"data": first.state()})
        first.close()
        with checkpoints.Manager(folder, save_on_sigterm=False) as manager:
            state = manager.restore().metadata["data"]
    with data.BatchIterator(create(), rows, **options) as second:
        second.restore(state)
        assert [lists(batch) for batch in [*delivered, *second]] == whole
    return whole


def lists(batch):
    return [np.asarray(leaf).tolist() for leaf in sw.tree.leaves(batch)]


def test_grain_samples_by_index(rows):
    grain = pytest.importorskip("grain", reason="Grain is not installed")
    whole = check_resume(lambda: grain.MapDataset.range(24).map(np.int32), rows, batch_size=4, seed=0)
    assert sorted(np.ravel(whole)) == list(range(24))
    check_resume(lambda: grain.MapDataset.range(6).repeat(4).shuffle(seed=1), rows, batch_size=4)
    check_resume(
        lambda: grain.MapDataset.range(24).seed(3).random_map(lambda x, rng: np.float32(x + rng.random())),
        rows,
        batch_size=4,
        seed=0,
    )
    with pytest.raises(DataError, match=r"without an end cannot be shuffled by `seed`. Pass the dataset before repeat"):
        data.BatchIterator(grain.MapDataset.range(6).repeat(), rows, batch_size=4, seed=0)
    with pytest.raises(DataError, match=r"is None, .* pass dataset.to_iter_dataset"):
        next(data.BatchIterator(grain.MapDataset.range(24).filter(lambda x: x > 9), rows, batch_size=4, prefetch=0))
    with pytest.raises(DataError, match=r"If its samples are batches, .* pass dataset.to_iter_dataset"):
        data.BatchIterator(grain.MapDataset.range(24).batch(4), rows)


def test_grain_iterators(rows):
    grain = pytest.importorskip("grain", reason="Grain is not installed")
    shuffled = grain.MapDataset.range(22).shuffle(seed=1)
    check_resume(shuffled.to_iter_dataset, rows, batch_size=4, epochs=3)
    check_resume(shuffled.batch(4, drop_remainder=True).to_iter_dataset, rows)
    check_resume(lambda: iter(shuffled.to_iter_dataset()), rows, batch_size=4)
    check_resume(grain.MapDataset.range(24).filter(lambda x: x % 2 == 0).to_iter_dataset, rows, batch_size=4)

    def loader():
        return grain.DataLoader(
            data_source=grain.sources.RangeDataSource(0, 24, 1),
            sampler=grain.samplers.IndexSampler(24, shuffle=True, seed=1, num_epochs=1),
            operations=[grain.transforms.Batch(4, drop_remainder=True)],
        )

    check_resume(loader, rows)  # its states are bytes


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_data_loader(workers, rows):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch_data = pytest.importorskip("torch.utils.data")

    def loader(generator=None, **options):
        return torch_data.DataLoader(
            range(24), batch_size=4, drop_last=True, num_workers=workers, generator=generator, **options
        )

    check_resume(loader, rows)
    whole = check_resume(lambda: loader(torch.Generator().manual_seed(0), shuffle=True), rows, epochs=2)
    assert sorted(np.ravel(whole[:6])) == sorted(np.ravel(whole[6:])) == list(range(24)) and whole[:6] != whole[6:]
    with pytest.raises(DataStateMismatch, match="batch 1 differs from the one that was delivered"):
        check_resume(lambda: loader(shuffle=True), rows)


def test_torch_datasets(rows):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch_data = pytest.importorskip("torch.utils.data")
    tensors = torch_data.TensorDataset(torch.arange(24), torch.arange(72.0).reshape(24, 3))
    check_resume(lambda: tensors, rows, batch_size=4, seed=0)
    check_resume(lambda: torch_data.Subset(tensors, list(range(4, 24))), rows, batch_size=4, seed=0)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        numbers = torch.arange(24).to(dtype)
        batch = next(data.BatchIterator(torch_data.TensorDataset(numbers), rows, batch_size=8, prefetch=0))[0]
        assert str(batch.dtype) == str(dtype).removeprefix("torch.")
        np.testing.assert_array_equal(batch.astype(np.float32), numbers[:8].to(torch.float32))
    with pytest.raises(DataError, match=r"cannot be converted to a numpy array: .*requires grad"):
        needs_grad = torch_data.TensorDataset(torch.ones(8, requires_grad=True))
        next(data.BatchIterator(needs_grad, rows, batch_size=4, prefetch=0))
