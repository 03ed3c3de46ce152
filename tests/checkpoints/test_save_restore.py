"""Save pytrees of sharded arrays and restore them, on the same mesh and on others; bit for bit."""

import collections
import gc
import math

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.base._jaxlib import split
from shardwise.checkpoints import snapshot
from shardwise.checkpoints.read import Reader
from shardwise.errors import CheckpointError, CheckpointExists, CheckpointMismatch, ShardingError

Pair = collections.namedtuple("Pair", ["first", "second"])
MESHES = {"4x2": ((4, 2), ("a", "b")), "8": ((8,), ("a",)), "2x2x2": ((2, 2, 2), ("a", "b", "c")), "1": ((1,), ("a",))}
DTYPES = ["float32", "bfloat16", "int4", "uint4", "float8_e4m3fn", "float8_e5m2", "bool", "complex64", "int8", "uint16"]


def bits(x):
    """Return the elements of an array, of keys or of numpy as bytes."""
    if isinstance(x, sw.Array) and jnp.issubdtype(x.dtype, sw.dtypes.prng_key):
        x = sw.random.key_data(x)
    return np.asarray(x).tobytes()


def assert_same(restored, saved):
    assert type(restored) is type(saved)
    if isinstance(saved, (sw.Array, np.ndarray)):
        assert restored.dtype == saved.dtype and restored.shape == saved.shape
        assert bits(restored) == bits(saved)
        if isinstance(saved, sw.Array):
            assert restored.sharding == saved.sharding
    else:
        assert restored == saved or (restored != restored and saved != saved)


def random_array(rng, shape, dtype):
    """Return an array whose elements are random bit patterns of its dtype."""
    target = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in ("int4", "uint4"):
        return rng.integers(0, 7, shape).astype(target)
    return np.frombuffer(rng.bytes(math.prod(shape) * target.itemsize), target).reshape(shape)


@st.composite
def shardings(draw, ndim):
    sizes, axes = draw(st.sampled_from(list(MESHES.values())))
    left = list(draw(st.permutations(axes)))
    spec = []
    for _ in range(ndim):
        count = draw(st.integers(0, min(2, len(left))))
        used, left = left[:count], left[count:]
        spec.append(tuple(used) or None)
    return sw.NamedSharding(sw.make_mesh(sizes, axes), sw.P(*spec))


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_array_is_restored_onto_any_sharding_bit_for_bit(data, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(snapshot, "LARGEST_PACKED", data.draw(st.sampled_from([0, 1 << 20]), label="packed up to"))
    ndim = data.draw(st.integers(1, 3), label="rank")
    shape = tuple(data.draw(st.lists(st.integers(1, 19), min_size=ndim, max_size=ndim), label="shape"))
    dtype = data.draw(st.sampled_from(DTYPES), label="dtype")
    host = random_array(np.random.default_rng(data.draw(st.integers(0, 99), label="seed")), shape, dtype)
    before, after = data.draw(shardings(ndim), label="before"), data.draw(shardings(ndim), label="after")
    path = tmp_path_factory.mktemp("checkpoint") / "one"
    checkpoints.save(path, {"x": sw.device_put(host, before)}).wait()
    like = {"x": sw.ShapeDtypeStruct(shape, host.dtype, sharding=after)}
    restored = checkpoints.restore(path, like)["x"]
    assert restored.sharding == after and restored.dtype == host.dtype
    assert bits(restored) == host.tobytes()
    assert bits(checkpoints.restore(path)["x"]) == host.tobytes()
    assert checkpoints.verify(path) == host.nbytes


@pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "float32"])
def test_uneven_shards_keep_the_bits_of_nans(tmp_path, monkeypatch, dtype):
    """A program on the device computes with narrow floats in a wider dtype, which makes signalling NaNs quiet."""
    monkeypatch.setattr(snapshot, "LARGEST_PACKED", 0)
    host = random_array(np.random.default_rng(0), (5, 64), dtype)
    sharding = sw.NamedSharding(sw.make_mesh((4, 2), ("a", "b")), sw.P("a", None))
    checkpoints.save(tmp_path / "one", {"x": host}).wait()
    like = {"x": sw.ShapeDtypeStruct(host.shape, host.dtype, sharding=sharding)}
    assert bits(checkpoints.restore(tmp_path / "one", like)["x"]) == host.tobytes()


def test_trees_of_all_kinds_of_leaves(tmp_path, mesh):
    rows = sw.NamedSharding(mesh, sw.P("data", "model"))
    tree = {
        "large": sw.device_put(np.arange(700 * 701, dtype=np.float32).reshape(700, 701), rows),
        "many keys": sw.random.split(sw.random.key(1), 200_000),
        "nested": [Pair(jnp.arange(3), None), (jnp.zeros((0, 3)), {"a/b": 1, "~": 2.5})],
        "key": sw.random.key(7, impl="rbg"),
        "host": np.arange(6, dtype=np.int64),
        "scalars": [True, 3, -(2**70), 0.1, math.nan, math.inf, 1 + 2j, "text", None],
        "uneven": sw.device_put(np.arange(7), sw.NamedSharding(mesh, sw.P("data"))),
    }
    checkpoints.save(tmp_path / "one", tree, metadata={"run": [1, "a"]}).wait()
    sw.tree.map(assert_same, checkpoints.restore(tmp_path / "one", tree), tree, is_leaf=lambda x: x is None)
    manifest = checkpoints.read_manifest(tmp_path / "one")
    assert manifest.metadata == {"run": [1, "a"]}
    assert str(manifest.leaves["large"]) == "float32[700,701]"


def test_without_like_the_result_is_nested_dicts_and_lists(tmp_path):
    tree = {"a": [jnp.arange(2), {"b": 3}], "c": Pair(1.5, None), "d~/": "x"}
    checkpoints.save(tmp_path / "one", tree).wait()
    restored = checkpoints.restore(tmp_path / "one")
    assert isinstance(restored["a"][0], np.ndarray)
    np.testing.assert_array_equal(restored["a"][0], [0, 1])
    assert restored["a"][1] == {"b": 3} and restored["c"] == {"first": 1.5, "second": None} and restored["d~/"] == "x"
    assert checkpoints.restore(tmp_path / "one", only="^c") == {"c": {"first": 1.5, "second": None}}


def test_a_single_array_is_a_tree(tmp_path):
    checkpoints.save(tmp_path / "one", jnp.arange(3)).wait()
    np.testing.assert_array_equal(checkpoints.restore(tmp_path / "one"), [0, 1, 2])


@pytest.mark.parametrize("end", ["donate", "delete"])
@pytest.mark.parametrize("sharded", [False, True])
def test_arrays_may_be_donated_and_deleted_as_soon_as_save_returns(tmp_path, mesh, end, sharded):
    expected = np.arange(4_000_000, dtype=np.float32)
    x = sw.device_put(expected, sw.NamedSharding(mesh, sw.P("data"))) if sharded else jnp.asarray(expected) + 0
    started = checkpoints.save(tmp_path / "one", x)
    if end == "donate":
        sw.jit(lambda x: x * 0 - 1, donate_argnums=0)(x).block_until_ready()
    else:
        x.delete()
    del x
    others = [jnp.full(4_000_000 // 8, -1.0) + index for index in range(10)]  # would reuse the memory
    sw.block_until_ready(others)
    started.wait()
    assert started.done() and started.written_bytes == started.total_bytes == expected.nbytes
    np.testing.assert_array_equal(checkpoints.restore(tmp_path / "one"), expected)


def test_restored_arrays_are_donated_without_a_copy(tmp_path, mesh):
    """Their elements are read into memory that XLA owns; memory of numpy would be copied when it is donated."""
    x = sw.device_put(
        np.arange(700 * 704, dtype=np.float32).reshape(700, 704), sw.NamedSharding(mesh, sw.P(None, ("data", "model")))
    )
    checkpoints.save(tmp_path / "one", x).wait()
    restored = checkpoints.restore(tmp_path / "one", x)
    addresses = [shard.data.unsafe_buffer_pointer() for shard in restored.addressable_shards]
    doubled = sw.jit(lambda x: x * 2, donate_argnums=0)(restored)
    assert restored.is_deleted()
    assert [shard.data.unsafe_buffer_pointer() for shard in doubled.addressable_shards] == addresses
    np.testing.assert_array_equal(doubled, np.asarray(x) * 2)


@pytest.mark.parametrize("spec", [sw.P(), sw.P("data"), sw.P(None, "model")])
@pytest.mark.parametrize("rows", [701, 704])  # 701 are not a multiple of 4: shards are padded
def test_replicas_share_memory_until_they_are_donated(tmp_path, mesh, spec, rows):
    host = np.random.default_rng(0).random((rows, 704), np.float32)
    x = sw.device_put(host, sw.NamedSharding(mesh, spec))
    checkpoints.save(tmp_path / "one", x).wait()
    restored = checkpoints.restore(tmp_path / "one", x)
    addresses = [buffers.unsafe_buffer_pointer() for buffers in split(restored.buffers)]
    indices = [str(shard.index) for shard in restored.addressable_shards]
    assert len({*zip(indices, addresses, strict=True)}) == len({*indices}) == len({*addresses}) < 8
    np.testing.assert_array_equal(restored, host)
    doubled = sw.jit(lambda x: x * 2, donate_argnums=0)(restored)
    assert restored.is_deleted()
    np.testing.assert_array_equal(doubled, host * 2)
    for shard in doubled.addressable_shards:
        np.testing.assert_array_equal(shard.data, host[shard.index] * 2)


def test_a_chunk_is_read_once_and_only_where_it_is_needed(tmp_path, mesh):
    """Shards of other sizes than the chunks are read in parts that end where chunks do."""
    host = np.random.default_rng(0).random((2048, 1024), np.float32)  # 16 chunks of 128 rows in one file
    checkpoints.save(tmp_path / "one", {"x": host}).wait()
    (file,) = (path for path in (tmp_path / "one" / "arrays").rglob("*") if path.is_file() and path.name != "zarr.json")
    reader = Reader(tmp_path / "one")
    for rows in [(0, 256), (384, 640), (0, 2048)]:
        before = _bytes_read()
        ((_, _, data),) = reader.read_boxes([("x", (rows, (0, 1024)))], memory_limit=1 << 20)
        np.testing.assert_array_equal(data, host[slice(*rows)])
        chunks = data.nbytes * file.stat().st_size / host.nbytes
        assert data.nbytes <= _bytes_read() - before <= chunks + 8 * 1024  # and the index of the chunks, for each part


def _bytes_read():
    """Return the bytes that TensorStore has read from files."""
    (metric,) = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
    return sum(value["value"] for value in metric["values"])


def test_a_numpy_array_may_be_changed_as_soon_as_save_returns(tmp_path):
    x = np.arange(4_000_000)
    started = checkpoints.save(tmp_path / "one", x)
    x[:] = -1
    started.wait()
    np.testing.assert_array_equal(checkpoints.restore(tmp_path / "one"), np.arange(4_000_000))


def test_one_error_lists_all_differences(tmp_path):
    checkpoints.save(tmp_path / "one", {"a": jnp.ones(3), "b": jnp.ones(2), "c": 1, "d": jnp.ones(2)}).wait()
    like = {"a": jnp.ones(4), "b": jnp.ones(2, int), "c": jnp.ones(1), "e": 1}
    with pytest.raises(CheckpointMismatch) as caught:
        checkpoints.restore(tmp_path / "one", like)
    assert [difference.partition(":")[0] for difference in caught.value.differences] == ["a", "b", "c", "e", "d"]
    assert "float32[3]" in str(caught.value) and "cast=True" in str(caught.value)


def test_casting_missing_and_extra_leaves_are_opt_in(tmp_path):
    checkpoints.save(tmp_path / "one", {"a": jnp.arange(3.0), "extra": 1}).wait()
    like = {"a": jnp.zeros(3, jnp.bfloat16), "new": jnp.full(2, 7)}
    restored = checkpoints.restore(tmp_path / "one", like, cast=True, allow_missing=True, allow_extra=True)
    assert restored["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(restored["a"].astype(float), [0, 1, 2])
    assert restored["new"] is like["new"]


def test_shardings_replace_those_of_like(tmp_path, mesh):
    tree = {"a": jnp.arange(8), "b": jnp.arange(4)}
    checkpoints.save(tmp_path / "one", tree).wait()
    rows, whole = sw.NamedSharding(mesh, sw.P("data")), sw.NamedSharding(mesh, sw.P())
    restored = checkpoints.restore(tmp_path / "one", tree, shardings={"a": rows, "b": whole})
    assert restored["a"].sharding == rows and restored["b"].sharding == whole
    assert checkpoints.restore(tmp_path / "one", shardings=rows)["b"].sharding == rows


def test_a_tree_of_shardings_needs_no_like(tmp_path, mesh):
    checkpoints.save(tmp_path / "one", {"b": [jnp.arange(8), jnp.arange(4)], "a": jnp.arange(4), "n": 3}).wait()
    rows, device = sw.NamedSharding(mesh, sw.P("data")), sw.devices()[5]
    restored = checkpoints.restore(tmp_path / "one", shardings={"a": device, "b": [rows, None], "n": None})
    assert restored["b"][0].sharding == rows and restored["a"].devices() == {device} and restored["n"] == 3
    assert isinstance(restored["b"][1], np.ndarray)
    restored = checkpoints.restore(tmp_path / "one", shardings={"b": rows}, only="^b")
    assert [x.sharding for x in restored["b"]] == [rows, rows]
    with pytest.raises(ShardingError, match="shardings must be a tree prefix of the checkpoint"):
        checkpoints.restore(tmp_path / "one", shardings={"a": rows, "c": rows})
    with pytest.raises(ShardingError, match="shardings must be a tree prefix of like"):
        checkpoints.restore(tmp_path / "one", {"a": jnp.arange(4)}, shardings={"c": rows})
    with pytest.raises(ValueError, match="needs a Sharding or a device, not 'rows'"):
        checkpoints.restore(tmp_path / "one", shardings="rows")


def test_arrays_with_64_bits_are_not_narrowed_silently(tmp_path, mesh):
    tree = {
        "i": np.arange(8) + 2**40,
        "f": np.arange(4) / 3,
        "large": np.ones(1 << 18),
        "s": np.arange(4.0, dtype="f4"),
    }
    checkpoints.save(tmp_path / "one", tree).wait()
    rows = sw.NamedSharding(mesh, sw.P("data"))
    for arguments in ({}, {"like": tree}):
        with pytest.raises(CheckpointMismatch) as caught:
            checkpoints.restore(tmp_path / "one", shardings=rows, **arguments)
        assert sorted(text.partition(":")[0] for text in caught.value.differences) == ["f", "i", "large"]
        assert "jax_enable_x64" in str(caught.value) and "cast=True" in str(caught.value)
        cast = checkpoints.restore(tmp_path / "one", shardings=rows, cast=True, **arguments)
        for name, host in tree.items():
            np.testing.assert_array_equal(cast[name], host.astype(f"{host.dtype.kind}4"))
        with sw.enable_x64():
            restored = checkpoints.restore(tmp_path / "one", shardings=rows, **arguments)
        assert all(bits(restored[name]) == host.tobytes() for name, host in tree.items())


def test_an_existing_checkpoint_is_not_overwritten(tmp_path):
    checkpoints.save(tmp_path / "one", {"a": 1}).wait()
    with pytest.raises(CheckpointExists, match="choose another name"):
        checkpoints.save(tmp_path / "one", {"a": 2})
    assert checkpoints.restore(tmp_path / "one") == {"a": 1}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"f": print}, "'f' is a builtin_function_or_method, which a checkpoint cannot hold"),
        ({"f": np.array([None])}, "'f' is a numpy array of object"),
        ({"a": collections.OrderedDict([(1, 0), ("1", 0)])}, "two leaves of the tree have the name 'a/1'"),
        ({"a\0": 0}, "NUL"),
        ({"a" * 5000: 0}, "5000 characters"),
    ],
)
def test_what_cannot_be_saved_raises_before_anything_is_written(tmp_path, tree, message):
    with pytest.raises((CheckpointError, ValueError), match=message):
        checkpoints.save(tmp_path / "one", tree)
    assert not list(tmp_path.iterdir())


def test_a_deleted_array_cannot_be_saved(tmp_path):
    x = jnp.arange(3)
    x.delete()
    with pytest.raises(CheckpointError, match="'w', i32\\[3\\], was donated or deleted"):
        checkpoints.save(tmp_path / "one", {"w": x})


def test_a_tracer_cannot_be_saved(tmp_path):
    with pytest.raises(CheckpointError, match="outside of traced functions"):
        sw.jit(lambda x: checkpoints.save(tmp_path / "one", x) and x)(jnp.ones(3))


def test_arguments_that_are_not_valid(tmp_path):
    for metadata in ([1], "text", {"a": {1, 2}}):
        with pytest.raises(CheckpointError, match="metadata must be"):
            checkpoints.save(tmp_path / "one", {"a": 1}, metadata=metadata)
    checkpoints.save(tmp_path / "one", {"a": 1}).wait()
    with pytest.raises(ValueError, match=r"only='\(' is not a regular expression"):
        checkpoints.restore(tmp_path / "one", only="(")


def test_paths_without_a_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        checkpoints.restore(tmp_path / "none")
    checkpoints.save(tmp_path / "run" / "step-3", {"a": 1}).wait()
    with pytest.raises(CheckpointError, match="It has the checkpoints step-3"):
        checkpoints.restore(tmp_path / "run")
    with pytest.raises(CheckpointError, match="not on http://"):
        checkpoints.restore("http://somewhere/x")


def test_names_of_leaves_stay_inside_the_folder(tmp_path):
    tree = {"../x": jnp.ones(2), "/etc/passwd": jnp.zeros(1 << 19), "a/b": 1, "": {"..": 2}}
    checkpoints.save(tmp_path / "in" / "one", tree).wait()
    assert [entry.name for entry in tmp_path.iterdir()] == ["in"]
    sw.tree.map(assert_same, checkpoints.restore(tmp_path / "in" / "one", tree), tree)


def test_an_uncommitted_array_stays_uncommitted(tmp_path, mesh):
    """So a restored tree can be used where the saved one could: beside arrays on a mesh."""
    rows = sw.NamedSharding(mesh, sw.P("data"))
    tree = {"count": jnp.zeros((), int) + 4, "key": sw.random.key(1), "w": sw.device_put(np.ones(8), rows)}
    checkpoints.save(tmp_path / "one", tree).wait()
    restored = checkpoints.restore(tmp_path / "one", tree)
    assert {name: leaf.committed for name, leaf in restored.items()} == {"count": False, "key": False, "w": True}
    total = sw.jit(lambda tree: tree["w"].sum() + tree["count"] + 0 * sw.random.normal(tree["key"], ()))
    assert float(total(restored)) == 12
    like = sw.tree.map(lambda x: sw.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
    assert all(leaf.committed for leaf in checkpoints.restore(tmp_path / "one", like).values())
    everywhere = checkpoints.restore(tmp_path / "one", tree, shardings=sw.NamedSharding(mesh, sw.P()))
    assert all(leaf.committed for leaf in everywhere.values())


@pytest.mark.parametrize("spec", [sw.P(), sw.P("data")])
def test_a_save_keeps_no_objects(tmp_path, mesh, spec):
    """jaxlib keeps an object for each shard of an array that is split."""
    arrays = [sw.device_put(np.arange(8.0), sw.NamedSharding(mesh, spec)) for _ in range(50)]
    checkpoints.save(tmp_path / "first", arrays).wait()
    before = _count_objects()
    more = [sw.device_put(np.arange(8.0), sw.NamedSharding(mesh, spec)) for _ in range(50)]
    created = _count_objects() - before
    checkpoints.save(tmp_path / "second", more).wait()
    assert _count_objects() - before - created < 50


def _count_objects():
    gc.collect()
    return len(gc.get_objects())
