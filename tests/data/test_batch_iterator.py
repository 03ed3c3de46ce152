"""BatchIterator: batches against numpy, resumed sequences against uninterrupted ones, and errors."""

import json
from itertools import islice

import numpy as np
import pytest

import shardwise as sw
from shardwise import P, data
from shardwise.errors import DataError, DataStateMismatch, EndOfDataError
from tests.data.fakes import DataLoader, IterDataset, MapDataset, TorchDataset
from tests.data.resuming import resume


@pytest.fixture
def rows(mesh):
    return sw.NamedSharding(mesh, P("data"))


def lists(batches):
    return [np.asarray(batch).tolist() for batch in batches]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_batches_in_order_are_sharded(rows, prefetch):
    source = {"x": np.arange(60, dtype=np.float64).reshape(20, 3), "y": np.arange(20)}
    batches = data.BatchIterator(data.ArraySource(source), rows, batch_size=8, prefetch=prefetch)
    assert len(batches) == 2
    for index, batch in enumerate(batches):
        assert sorted(batch) == ["x", "y"] and batch["x"].dtype == np.float32 and batch["y"].dtype == np.int32
        for name, array in batch.items():
            assert array.sharding == rows
            np.testing.assert_array_equal(array, source[name][8 * index : 8 * index + 8])
            assert array.addressable_shards[0].data.shape[0] == 2
    assert batches.position == 2 and list(batches) == []


def test_epochs_are_shuffled_and_have_every_sample_once(rows):
    found = lists(data.BatchIterator(np.arange(10), rows, batch_size=4, seed=1, epochs=6))
    assert len(found) == 15
    epochs = np.concatenate(found).reshape(6, 10)
    for index, epoch in enumerate(epochs):  # a batch may span two epochs
        np.testing.assert_array_equal(epoch, data.Permutation(10, 1, index)(np.arange(10)))
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert found == lists(data.BatchIterator(np.arange(10), rows, batch_size=4, seed=1, epochs=6, prefetch=0))
    assert found != lists(data.BatchIterator(np.arange(10), rows, batch_size=4, seed=2, epochs=6))


def test_a_tree_of_shardings_and_specs_on_the_current_mesh(mesh):
    source = data.ArraySource({"tokens": np.arange(64).reshape(8, 8), "label": np.arange(8)})
    with sw.set_mesh(mesh):
        batches = data.BatchIterator(source, {"tokens": P("data", "model"), "label": P()}, batch_size=8)
    batch = next(batches)  # the mesh is that of the time of creation
    batches.close()
    assert batch["tokens"].sharding.spec == P("data", "model") and batch["label"].is_fully_replicated
    np.testing.assert_array_equal(batch["tokens"], np.arange(64).reshape(8, 8))


def test_64_bit_arrays_follow_the_thread_of_the_caller(rows):
    with sw.enable_x64(True):
        batches = data.BatchIterator(np.arange(4), rows, batch_size=4, epochs=2)
    assert [batch.dtype for batch in batches] == [np.int64] * 2


GRAIN_SAMPLES = [{"a": np.full(3, index), "b": index} for index in range(20)]


def sources():
    """Sources of samples 0 to 19 in batches of 4: a function that creates each, and the options."""
    return {
        "shuffled array": (lambda: np.arange(20), {"batch_size": 4, "seed": 5}),
        "Grain MapDataset": (lambda: MapDataset(GRAIN_SAMPLES), {"batch_size": 4, "seed": 5}),
        "Grain IterDataset": (lambda: IterDataset(GRAIN_SAMPLES), {"batch_size": 4}),
        "Grain iterator": (lambda: iter(IterDataset(GRAIN_SAMPLES, as_bytes=True)), {"batch_size": 4}),
        "torch dataset": (lambda: TorchDataset(20), {"batch_size": 4}),
        "torch DataLoader": (lambda: DataLoader(20, 4), {}),
        "per process": (lambda: DataLoader(20, 4), {"per_process": True}),
        "generator": (lambda: (np.arange(4 * n, 4 * n + 4) for n in range(5)), {}),
        "two epochs": (lambda: [np.arange(4 * n, 4 * n + 4) for n in range(5)][:3], {"epochs": 2, "batch_size": 1}),
        "packs": (lambda: data.pack([[n] * (n % 5) for n in range(20)], 4), {"batch_size": 4}),
    }


@pytest.mark.parametrize("kind", sources())
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_restored_iterator_continues_with_the_next_batch(kind, prefetch, mesh):
    create, options = sources()[kind]
    sharding = sw.NamedSharding(mesh, P("data") if options.get("batch_size") != 1 else P())
    whole = list(data.BatchIterator(create(), sharding, prefetch=prefetch, **options))
    assert len(whole) >= 2
    for stop in range(len(whole) + 1):
        first = data.BatchIterator(create(), sharding, prefetch=prefetch, **options)
        delivered = list(islice(first, stop))
        state = json.loads(json.dumps(first.state()))
        first.close()
        second = data.BatchIterator(create(), sharding, prefetch=prefetch, **options)
        second.restore(state)
        assert second.position == stop
        joined = delivered + list(second)
        assert len(joined) == len(whole)
        sw.tree.map(np.testing.assert_array_equal, joined, whole)


def test_indexed_and_stateful_sources_are_not_read_from_the_beginning(rows):
    source = MapDataset(GRAIN_SAMPLES)
    batches = data.BatchIterator(source, rows, batch_size=4, prefetch=0)
    batches.restore(batches.state() | {"batches": 4})
    assert np.asarray(next(batches)["b"]).tolist() == [16, 17, 18, 19] and source.read == [16, 17, 18, 19]
    source = IterDataset(GRAIN_SAMPLES)
    batches = data.BatchIterator(source, rows, batch_size=4, prefetch=0)
    list(islice(batches, 4))
    state = batches.state()
    source.read.clear()
    batches.restore(state)
    assert np.asarray(next(batches)["b"]).tolist() == [16, 17, 18, 19] and source.read == [16, 17, 18, 19]


def test_restore_after_iteration_began(rows):
    batches = data.BatchIterator(np.arange(12), rows, batch_size=4)
    start = batches.state()
    assert lists(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    batches.restore(start)
    assert lists(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


class Shuffled:
    """An iterable of batches in another order at each iteration, as a DataLoader with shuffle=True and no seed."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __iter__(self):
        return iter(self.rng.permutation(80).reshape(10, 8))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_stream_that_yields_other_batches_does_not_resume(rows, prefetch):
    source = Shuffled()
    batches = data.BatchIterator(source, rows, prefetch=prefetch)
    next(batches), next(batches)
    state = json.loads(json.dumps(batches.state()))
    batches.close()
    batches.restore(state)
    with pytest.raises(
        DataStateMismatch, match=r"batch 1 differs from the one that was delivered .* Seed its shuffling"
    ):
        next(batches)
    same = data.BatchIterator(Shuffled(), rows, prefetch=prefetch)  # from the same seed
    same.restore(state)
    expected = list(iter(Shuffled()))[2]
    np.testing.assert_array_equal(next(same), expected)
    same.close()


def test_state_is_saved_with_a_checkpoint(rows, tmp_path):
    def train(steps):
        batches = data.BatchIterator(np.arange(100), rows, batch_size=8, seed=0, epochs=None)
        return resume(
            tmp_path, batches, rows.mesh, steps, lambda batch: np.asarray(batch).tolist(), lambda batch: batch
        )

    expected = lists(islice(data.BatchIterator(np.arange(100), rows, batch_size=8, seed=0, epochs=None), 15))
    (first, _), (second, total) = train(7), train(8)
    assert first + second == expected and total == np.sum(expected)


def test_a_source_that_ends_early(rows):
    batches = data.BatchIterator(np.arange(10), rows, batch_size=4, steps=5)
    assert len(list(islice(batches, 2))) == 2
    for _ in range(2):
        with pytest.raises(EndOfDataError, match="the source ended after 2 of 5 batches: pass more data, epochs=None"):
            next(batches)
    with pytest.raises(EndOfDataError) as caught:
        list(data.BatchIterator(iter([np.arange(4)] * 3), rows, steps=4))
    assert (caught.value.delivered, caught.value.expected) == (3, 4)
    assert len(lists(data.BatchIterator(np.arange(10), rows, batch_size=4, steps=5, epochs=None))) == 5
    assert len(data.BatchIterator(np.arange(10), rows, batch_size=4, steps=5, epochs=None)) == 5
    with pytest.raises(TypeError, match="number of batches is not known"):
        len(data.BatchIterator(np.arange(10), rows, batch_size=4, epochs=None))
    assert list(data.BatchIterator(DataLoader(0, 4), rows, epochs=None)) == []


def test_states_of_other_iterators_are_errors(rows):
    state = data.BatchIterator(np.arange(20), rows, batch_size=4, seed=0).state()

    def check(message, *, source=None, state=state, batch_size=4, **options):
        batches = data.BatchIterator(
            np.arange(20) if source is None else source, rows, batch_size=batch_size, **options
        )
        with pytest.raises(DataStateMismatch, match=message) as caught:
            batches.restore(state)
        return caught.value.differences

    check("seed was 0 when the state was saved, and is 1 now", seed=1)
    check("batch_size was 4 when the state was saved, and is 8 now", batch_size=8, seed=0)
    check("samples was 20 when the state was saved, and is 24 now", source=np.arange(24), seed=0)
    assert len(check("fingerprint was", source=np.arange(1, 21), seed=0)) == 1
    check("kind was 'indexed' when the state was saved, and is 'stream' now", source=iter([np.arange(4)]))
    check("version was 2", seed=0, state=state | {"version": 2})
    for wrong in ({}, None, {"batches": -1}, {"batches": "3"}):
        check("this is not a state of a BatchIterator", state=wrong, seed=0)
    stream = iter([np.arange(4)] * 3)
    batches = data.BatchIterator(stream, rows)
    start = batches.state()
    next(batches)
    batches.restore(start)
    with pytest.raises(DataError, match="an iterator that has been read already, and cannot start again"):
        next(batches)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (np.arange(8), {"batch_size": 6}, "batch of 6 rows is not divisible by 4, .* Use 4 or 8 rows"),
        (np.arange(8), {"batch_size": 3}, "batch of 3 rows is not divisible by 4, .* Use 4 rows"),
        ([np.arange(6)], {}, "batch of 6 rows is not divisible by 4"),
        ([np.arange(6)], {"per_process": True}, "not divisible by 4, the number of its shards on this process"),
        (np.arange(8), {}, "samples by index need batch_size"),
        ({"x": np.arange(8)}, {"batch_size": 4}, "a dict is not a source of samples; wrap it: data.ArraySource"),
        ([], {"batch_size": 4}, "the source has no samples"),
        (7, {}, "a int is not a source: it needs `__len__` and `__getitem__`, or `__iter__`"),
        (iter([]), {"seed": 0}, "a stream is not shuffled by `seed`"),
        (iter([]), {"epochs": 2}, "an iterator can be read once only"),
        (np.arange(8), {"batch_size": 0}, "batch_size must be at least 1, not 0"),
        (np.arange(8), {"batch_size": 4, "steps": -1}, "steps must be at least 0"),
        (np.arange(8), {"batch_size": 4, "prefetch": -1}, "prefetch must be at least 0"),
        (np.arange(8), {"batch_size": 4, "seed": "a"}, "seed must be an integer, not 'a'"),
        ([np.arange(n) for n in (2, 2, 3, 2)], {"batch_size": 4}, "sample 2: the leaf of the batch has shape .3,."),
        ([{"a": 0}, {"b": 0}] * 2, {"batch_size": 4}, "sample 1 has the structure"),
        ([{"a": 0}, {"a": 0.5}] * 2, {"batch_size": 4}, "sample 1: the leaf 'a' has shape .* and dtype float64"),
        (["text"] * 4, {"batch_size": 4}, "sample 0: the leaf .* is 'text', with dtype <U4"),
        (
            MapDataset(range(8), lambda n: n != 2),
            {"batch_size": 4},
            "sample 2 is None, .* pass dataset.to_iter_dataset",
        ),
        (iter([{"a": np.zeros(4), "b": np.zeros(3)}]), {}, "batch 0 is ragged: the leaf 'b' has 3 rows, but 'a' has 4"),
        (iter([np.zeros(())]), {}, "has no dims.* Pass batch_size, if the source yields single samples"),
        (iter([{}]), {}, "batch 0 has no arrays"),
        (DataLoader(6, 4, drop_last=False), {}, "batch 1 has 2 rows, and the ones before have 4: .*drop_last=True"),
    ],
)
def test_errors(source, options, message, rows):
    def read():
        if isinstance(source, list) and not options.keys() & {"batch_size"}:
            return list(data.BatchIterator(iter(source), rows, **options))
        return list(data.BatchIterator(source, rows, **options))

    with pytest.raises(DataError, match=message):
        read()


def test_shardings_that_do_not_fit(mesh):
    with pytest.raises(DataError, match=r"needs a NamedSharding, a PartitionSpec .* not None"):
        data.BatchIterator(np.arange(8), None, batch_size=4)
    with pytest.raises(DataError, match="there is no sharding"):
        data.BatchIterator(np.arange(8), {}, batch_size=4)
    rows = sw.NamedSharding(mesh, P("data"))
    with pytest.raises(DataError, match="the shardings must be a tree prefix of the batches"):
        next(data.BatchIterator(data.ArraySource({"x": np.arange(8)}), {"y": rows}, batch_size=4))
    device = sw.sharding.SingleDeviceSharding(sw.devices()[3])
    batch = next(data.BatchIterator(np.arange(7), device, batch_size=7))
    assert batch.sharding == device and batch.tolist() == list(range(7))


def test_packed_batches_are_operands_of_attention(mesh, tmp_path):
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 50, size) for size in (3, 9, 5, 7, 16, 2)]
    sharding = sw.NamedSharding(mesh, P(None, "data"))
    batch = next(data.BatchIterator(data.PackedSource(documents, 16), sharding, batch_size=2))
    table = rng.normal(size=(50, 4, 8)).astype(np.float32)
    x = sw.numpy.asarray(table)[batch["tokens"]]
    segment_ids = batch["segment_ids"]
    out = sw.parallel.ring_attention(x, x, x, axis="data", causal=True, segment_ids=segment_ids, mesh=mesh)
    start, segment = 0, 1  # the documents of the first sequence, each on its own
    for document in documents[:2]:
        own = table[document][None]
        alone = sw.nn.dot_product_attention(own, own, own, is_causal=True)
        np.testing.assert_allclose(out[:1, start : start + len(document)], alone, rtol=1e-4, atol=1e-5)
        assert (np.asarray(segment_ids)[0, start : start + len(document)] == segment).all()
        start, segment = start + len(document), segment + 1
