"""Sources with the documented protocols of Grain and torch, which are not installed here."""

import numpy as np


class MapDataset:
    """A Grain MapDataset: samples by index; a filtered one is None."""

    def __init__(self, samples, keep=lambda sample: True):
        self.samples, self.keep, self.read = samples, keep, []

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.read.append(index)
        sample = self.samples[index % len(self)]
        return sample if self.keep(sample) else None

    def to_iter_dataset(self):
        return IterDataset([sample for sample in self.samples if self.keep(sample)])


class IterDataset:
    """A Grain IterDataset: its iterators have states, which are JSON or bytes."""

    def __init__(self, samples, as_bytes=False):
        self.samples, self.as_bytes, self.read = samples, as_bytes, []

    def __iter__(self):
        return DatasetIterator(self)


class DatasetIterator:
    def __init__(self, dataset):
        self.dataset, self.position = dataset, {"next_index": 0}

    def __iter__(self):
        return self

    def __next__(self):
        index = self.position["next_index"]
        if index == len(self.dataset.samples):
            raise StopIteration
        self.position["next_index"] += 1
        self.dataset.read.append(index)
        return self.dataset.samples[index]

    def get_state(self):
        return str(self.position["next_index"]).encode() if self.dataset.as_bytes else self.position

    def set_state(self, state):
        self.position = {"next_index": int(state)} if self.dataset.as_bytes else dict(state)


class Tensor:
    """A torch tensor on the CPU: it converts to numpy by `__array__`."""

    def __init__(self, array):
        self.array = np.asarray(array)

    def __array__(self, dtype=None, copy=None):
        return self.array if dtype is None else self.array.astype(dtype)


class TorchDataset:
    """A map-style dataset of torch that reads many samples in one call."""

    def __init__(self, size):
        self.size, self.calls = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        raise AssertionError("`__getitems__` is preferred")

    def __getitems__(self, indices):
        self.calls.append(indices)
        return [(Tensor(np.full(2, index, np.float32)), index) for index in indices]


class DataLoader:
    """A torch DataLoader: an iterable of collated batches with a length, without items by index."""

    def __init__(self, size, batch_size, drop_last=True):
        self.size, self.batch_size, self.drop_last = size, batch_size, drop_last

    def __len__(self):
        return self.size // self.batch_size if self.drop_last else -(-self.size // self.batch_size)

    def __iter__(self):
        for index in range(len(self)):
            rows = np.arange(index * self.batch_size, min(self.size, (index + 1) * self.batch_size))
            yield [Tensor(rows.astype(np.float32)[:, None]), Tensor(rows)]
