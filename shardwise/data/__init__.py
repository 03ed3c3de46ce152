"""Data: batches as sharded arrays from any source, shuffled, packed, read ahead, and resumable to the exact batch."""

from shardwise.base.lazy import set_public_names
from shardwise.data.array_source import ArraySource as ArraySource
from shardwise.data.batch_iterator import BatchIterator as BatchIterator
from shardwise.data.packing import PackedSource as PackedSource
from shardwise.data.packing import pack as pack
from shardwise.data.permutation import Permutation as Permutation
from shardwise.data.token_source import TokenSource as TokenSource

__all__ = ["ArraySource", "BatchIterator", "PackedSource", "Permutation", "TokenSource", "pack"]

set_public_names(__name__, __all__)
