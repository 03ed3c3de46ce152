"""jax.experimental.array_serialization.tensorstore_impl: one array in TensorStore, as a zarr or zarr3 array.

A spec is TensorStore's description of an array: its driver, where it is stored and its metadata, as nested dicts. The
specs and formats are those of JAX: each reads what the other writes.
"""

import asyncio
import os
import posixpath
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.creation import devices_by_box, put_box
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import lazy_module, set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.dtypes import is_key
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.runtime.array import ArrayImpl, join_shards
from shardwise.runtime.box import Box, block_shape, box_index, box_shape, box_size, relative
from shardwise.runtime.client import process_count, process_index
from shardwise.runtime.memory_layout import Format, sharding_of_format
from shardwise.typing import DTypeLike, SupportsShape

__all__ = ["ByteLimiter", "async_deserialize", "async_serialize", "get_tensorstore_spec"]

ts: Any = lazy_module("tensorstore")  # an optional dependency; 53 ms

_LARGEST_CHUNK = 1 << 31  # bytes
_REMOTE_DRIVERS = {"gs": "gcs", "s3": "s3"}


SPEC = Family(
    {
        "ckpt_path": "a path, or a URL `gs://bucket/path` or `s3://bucket/path`. The last part is the name of the\n"
        "array.",
        "ocdbt": "whether the arrays of a folder are stored in one OCDBT database, whose keys are their names.",
        "process_idx": "the number of the process whose own folder, beside those of others, holds the array.",
        "arr": "an array whose shape, dtype and shards determine the metadata. Without it, writing adds the metadata.",
        "driver": '"zarr" or "zarr3".',
    },
    returns="The spec.",
    raises=[
        "ValueError: if the path has no bucket or no name, if it is relative and `ocdbt` is true, or if `driver` is\n"
        "neither of the two."
    ],
)


@documented(SPEC)
def get_tensorstore_spec(
    ckpt_path: str | os.PathLike[str],
    ocdbt: bool = True,
    process_idx: int | None = None,
    arr: SupportsShape | None = None,
    driver: str = "zarr3",
) -> dict[str, Any]:
    """Return the spec of an array at a path.

    Example:
        >>> jax.experimental.array_serialization.tensorstore_impl.get_tensorstore_spec("/run/w", ocdbt=False)
        {'driver': 'zarr3', 'kvstore': {'driver': 'file', 'path': '/run/w'}}
    """
    scheme, _, rest = os.fspath(ckpt_path).rpartition("://")
    bucket, _, path = posixpath.normpath(rest).partition("/") if scheme else ("", "", posixpath.normpath(rest))
    key = ""
    if path and process_idx is not None:
        folder, name = posixpath.split(path)
        path = posixpath.join(folder, f"process_{process_idx}", name)
    if ocdbt:
        path, key = posixpath.split(path)
    if scheme:
        if scheme not in _REMOTE_DRIVERS or not bucket or not path:
            needed = "bucket/folder/name" if ocdbt else "bucket/name"
            raise ValueError(f"get_tensorstore_spec: {ckpt_path!r} is neither gs://{needed} nor s3://{needed}")
        store: dict[str, Any] = {"driver": _REMOTE_DRIVERS[scheme], "bucket": bucket, "path": path}
    else:
        if ocdbt and not posixpath.isabs(path):
            raise ValueError(f"get_tensorstore_spec: with ocdbt=True the path must be absolute, not {ckpt_path!r}")
        store = {"driver": "file", "path": path}
    spec = {"driver": driver, "kvstore": {"driver": "ocdbt", "base": store, "path": key} if ocdbt else store}
    return spec if arr is None else {**spec, "metadata": _metadata(arr, driver)}


def _metadata(arr: SupportsShape, driver: str) -> dict[str, Any]:
    """Return the metadata of an array whose chunks are its shards, or blocks of them."""
    shape, dtype = tuple(arr.shape), np.dtype(arr.dtype)
    shard_shape = arr.sharding.shard_shape(shape) if isinstance(arr, ArrayImpl) else shape
    chunk = list(block_shape(shard_shape, dtype.itemsize, _LARGEST_CHUNK))
    match driver:
        case "zarr3":
            grid = {"name": "regular", "configuration": {"chunk_shape": chunk}}
            return {"codecs": [], "shape": shape, "data_type": str(dtype), "chunk_grid": grid}
        case "zarr":
            return {"compressor": {"id": "zstd"}, "shape": shape, "chunks": chunk}
    raise ValueError(f"the driver {driver!r} of a spec must be 'zarr' or 'zarr3'")


def _has_metadata(spec: object) -> bool:
    """Return whether a spec, or one inside it such as that of a `cast` driver, has metadata."""
    return isinstance(spec, dict) and ("metadata" in spec or any(map(_has_metadata, spec.values())))


@final
class ByteLimiter:
    """Bounds the bytes of host memory that reads use at a time.

    Args:
        limit: the bytes. A larger read waits until it is alone.

    Raises:
        Nothing.

    Example:
        >>> limiter = jax.experimental.array_serialization.tensorstore_impl.ByteLimiter(1 << 30)
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._used = 0
        self._changed = asyncio.Condition()

    async def wait_for_bytes(self, requested_bytes: int) -> None:
        """Wait until a read of this size may begin."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._used or self._used + requested_bytes <= self._limit)
            self._used += requested_bytes

    async def release_bytes(self, requested_bytes: int) -> None:
        """Tell that a read of this size has ended."""
        async with self._changed:
            self._used -= requested_bytes
            self._changed.notify_all()


async def async_serialize(
    arr_inp: Array,
    tensorstore_spec: dict[str, Any],
    commit_future: list[Any] | None = None,
    context: ts.Context | None = None,
    chunk_layout: ts.ChunkLayout | None = None,
    primary_host: int | None = None,
    replica_id: int = 0,
    transaction: ts.Transaction | None = None,
) -> None:
    """Write the shards of an array that this process holds.

    Args:
        arr_inp: the array.
        tensorstore_spec: its spec.
        commit_future: a list to which the futures of the writes are appended, instead of waiting for them. The array
            may be donated when this returns.
        context: TensorStore's context; by default, one without a cache.
        chunk_layout: TensorStore's chunk layout, for specs without metadata of chunks.
        primary_host: the number of the process that creates the array; by default, every process does.
        replica_id: which replica of each shard is written.
        transaction: TensorStore's transaction that the writes belong to.

    Raises:
        TypeError: if `arr_inp` is not an array, or if it is an array of PRNG keys.
        ValueError: if there are several processes, and the array is on devices of this one only.

    Example:
        >>> import asyncio
        >>> from shardwise.experimental.array_serialization import tensorstore_impl
        >>> spec = tensorstore_impl.get_tensorstore_spec(folder / "w")
        >>> asyncio.run(tensorstore_impl.async_serialize(jnp.arange(4), spec))
    """
    if not isinstance(arr_inp, ArrayImpl) or is_key(arr_inp.dtype):
        raise TypeError(
            f"async_serialize needs an array of numbers, not {arr_inp!r}: convert numpy arrays with `jnp.asarray`, and "
            "PRNG keys with `random.key_data`"
        )
    if process_count() > 1 and arr_inp.is_fully_addressable:
        raise ValueError(
            f"async_serialize: the array at {tensorstore_spec.get('kvstore')} is on devices of process "
            f"{process_index()} only, and every process would write its own to the same place. Put it on a mesh of all "
            "processes."
        )
    spec = dict(tensorstore_spec)
    if not _has_metadata(spec):
        spec["metadata"] = _metadata(arr_inp, spec["driver"])
    if spec["driver"] == "zarr":
        spec.setdefault("dtype", str(np.dtype(arr_inp.dtype)))

    def open_store(**options: object) -> Any:
        options = {
            "context": context or TS_CONTEXT,
            "chunk_layout": chunk_layout,
            "transaction": transaction,
            **options,
        }
        return ts.open(ts.Spec(spec), open=True, **options)

    if primary_host is None or process_index() == primary_host:
        created = open_store(create=True)
        if commit_future is None:
            await created
        else:
            commit_future.append(created)
    store = await open_store(assume_metadata=True)
    shards = [
        (shard.spans, shard.data)
        for shard in arr_inp.addressable_shards
        if shard.replica_id == replica_id and shard.data is not None
    ]
    for _, data in shards:  # copies from devices run at the same time
        data.copy_to_host_async()
    await asyncio.gather(*(_write_shard(store, box, data, commit_future) for box, data in shards))


async def _write_shard(store: ts.TensorStore, box: Box, data: ArrayImpl, commit_future: list[Any] | None) -> None:
    # The host array shares the memory of a buffer, which XLA neither changes nor reuses while it exists.
    written = store[box_index(box)].write(np.asarray(data), can_reference_source_data_indefinitely=True)
    if commit_future is None:
        await written.commit
    else:
        commit_future.append(written.commit)
        await written.copy


async def async_deserialize(
    in_type: Sharding | Format | ShapeDtypeStruct,
    tensorstore_spec: dict[str, Any] | ts.Spec,
    global_shape: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    byte_limiter: ByteLimiter | None = None,
    context: ts.Context | None = None,
    chunk_layout: ts.ChunkLayout | None = None,
    assume_metadata: bool = False,
) -> Array:
    """Read an array; each device gets its shard.

    Args:
        in_type: a sharding, a `Format`, or a `ShapeDtypeStruct` with a sharding.
        tensorstore_spec: the spec of the array.
        global_shape: the shape of the result; by default, that of the stored array. Elements that are not stored are 0.
        dtype: the dtype of the result; by default, that of `in_type`, or of the stored array. Without `enable_x64`, a
            64-bit dtype becomes 32-bit.
        byte_limiter: bounds the host memory that reads use at a time.
        context: TensorStore's context; by default, one without a cache.
        chunk_layout: TensorStore's chunk layout.
        assume_metadata: whether the metadata of the spec is used without reading the stored one.

    Returns:
        The array.

    Raises:
        TypeError: if `in_type` has no sharding.

    Example:
        >>> import asyncio
        >>> from shardwise.experimental.array_serialization import tensorstore_impl
        >>> spec = tensorstore_impl.get_tensorstore_spec(folder / "w")
        >>> asyncio.run(tensorstore_impl.async_serialize(jnp.arange(4), spec))
        >>> rows = jax.NamedSharding(jax.make_mesh((4,), ("rows",)), P("rows"))
        >>> asyncio.run(tensorstore_impl.async_deserialize(rows, spec)).sharding.spec
        P('rows')
    """
    store = await ts.open(
        tensorstore_spec,
        open=True,
        assume_metadata=assume_metadata,
        context=context or TS_CONTEXT,
        chunk_layout=chunk_layout,
    )
    shape = tuple(store.shape if global_shape is None else global_shape)
    sharding = _sharding_of(in_type, len(shape))
    if dtype is None:
        dtype = in_type.dtype if isinstance(in_type, ShapeDtypeStruct) else store.dtype.numpy_dtype
    target = canonical_dtype(dtype)
    devices = devices_by_box(shape, sharding)

    async def read(box: Box) -> dict[Any, Any]:
        nbytes = box_size(box) * store.dtype.numpy_dtype.itemsize
        if byte_limiter is not None:
            await byte_limiter.wait_for_bytes(nbytes)
        data = (await _read_box(store, box)).astype(target, copy=False)
        shards = put_box(data, devices[box], shape, sharding)
        if byte_limiter is not None:
            await byte_limiter.release_bytes(nbytes)
        return shards

    shards = {
        device: shard
        for read_shards in await asyncio.gather(*map(read, devices))
        for device, shard in read_shards.items()
    }
    return join_shards([shards[device] for device in sharding.local_devices], ArrayType(shape, target), sharding)


def _sharding_of(in_type: object, ndim: int) -> Sharding:
    sharding = in_type.sharding if isinstance(in_type, ShapeDtypeStruct) else in_type
    if isinstance(sharding, Format):
        sharding = sharding_of_format("async_deserialize", sharding, ndim)
    if not isinstance(sharding, Sharding):
        raise TypeError(
            "async_deserialize needs a sharding, such as NamedSharding(mesh, spec), or a ShapeDtypeStruct that has "
            f"one, not {in_type!r}"
        )
    return sharding


async def _read_box(store: ts.TensorStore, box: Box) -> np.ndarray[Any, Any]:
    """Return the elements in a box, with zeros outside of the stored array."""
    stored = tuple((low, max(low, min(high, size))) for (low, high), size in zip(box, store.shape, strict=True))
    if stored == box:
        return np.asarray(await store[box_index(box)].read())
    data = np.zeros(box_shape(box), store.dtype.numpy_dtype)
    if box_size(stored):
        data[box_index(relative(stored, box))] = await store[box_index(stored)].read()
    return data


TS_CONTEXT = ts.Context({"cache_pool": {"total_bytes_limit": 0}, "file_io_concurrency": {"limit": 16}})

set_public_names(__name__, __all__)
