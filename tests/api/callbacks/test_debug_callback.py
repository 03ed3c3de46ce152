"""debug.print and debug.callback: options, objects that are not arrays, keys, shards, donated arguments."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def printed(capsys):
    sw.effects_barrier()
    return capsys.readouterr().out


def test_objects_that_are_not_arrays_are_formatted(capsys):
    f = sw.jit(lambda x: sw.debug.print("{} {x} {dtype} {name}", "first", x=x, dtype=np.dtype("float32"), name="a"))
    f(jnp.arange(2))
    assert printed(capsys) == "first [0 1] float32 a\n"


def test_options_in_a_call_of_their_own(capsys):
    @sw.jit
    def f(x):
        sw.debug.print(ordered=True)("{x} {ordered}", x=x, ordered=1)
        sw.debug.callback(ordered=True)(lambda x, ordered: print(ordered, x), x, ordered="as an argument")

    f(3)
    assert printed(capsys) == "3 1\nas an argument 3\n"
    with pytest.raises(TypeError, match=r"debug.print: without a first argument it accepts options only"):
        sw.debug.print(x=3)
    with pytest.raises(TypeError, match=r"debug.callback: without a first argument it accepts options only"):
        sw.debug.callback(x=3)


def test_numpy_print_options_of_the_trace(capsys):
    x = jnp.array([1.23456, 2.34567, 1e-7])
    with np.printoptions(precision=2, suppress=True):
        f = sw.jit(lambda x: sw.debug.print("{}", x))
        f(x)
        expected = str(np.asarray(x))
    f(x)
    assert printed(capsys) == f"{expected}\n{expected}\n"
    assert expected == "[1.23 2.35 0.  ]"


def test_keys_print_as_they_do_outside_jit(capsys):
    keys = sw.random.split(sw.random.key(0), 2)
    sw.jit(lambda key: sw.debug.print("{}", key))(keys)
    assert printed(capsys) == f"{keys}\n"
    seen = []
    sw.jit(lambda key: sw.debug.callback(seen.append, key))(keys)
    sw.effects_barrier()
    assert seen[0].dtype == keys.dtype
    np.testing.assert_array_equal(sw.random.key_data(seen[0]), sw.random.key_data(keys))


def test_arrays_in_a_pytree_print_as_arrays(capsys):
    sw.jit(lambda x: sw.debug.print("{}", {"a": x, "b": (x[0], 2)}))(jnp.arange(2))
    assert printed(capsys) == "{'a': Array([0, 1], dtype=int32), 'b': (Array(0, dtype=int32), Array(2, dtype=int32))}\n"


def test_without_fields_arguments_follow_the_format(capsys):
    sw.jit(lambda x: sw.debug.print("x is", x, skip_format_check=True))(3)
    assert printed(capsys) == "x is 3\n"


@pytest.mark.parametrize("ordered", [False, True])
def test_donated_arguments(capsys, ordered):
    """A donated Python scalar must not free the array that other calls with an equal scalar use."""

    @sw.jit
    def keep(x):
        return x + 1

    def f(x):
        sw.debug.print("{}", x, ordered=ordered)
        return x + 1

    donating = sw.jit(f, donate_argnums=0)
    assert [int(keep(2)), int(donating(2)), int(donating(2)), int(keep(2))] == [3, 3, 3, 3]
    x = jnp.arange(3)
    donating(x)
    assert x.is_deleted()
    assert printed(capsys) == "2\n2\n[0 1 2]\n"


@pytest.mark.parametrize("rows", [8, 6])
def test_partitioned_prints_shards(mesh, capsys, rows):
    """Every device prints its own shard, without padding."""
    host = np.arange(2 * rows, dtype=np.int32).reshape(rows, 2)
    x = sw.device_put(host, NamedSharding(mesh, P("data", "model")))

    seen = []

    @sw.jit
    def f(x):
        sw.debug.callback(seen.append, 2 * x, partitioned=True)
        sw.debug.print("a shard: {}", x, partitioned=True)
        return x

    f(x)
    expected = sorted((2 * host[shard.index]).tolist() for shard in x.addressable_shards)
    assert sorted(block.tolist() for block in seen) == expected
    assert printed(capsys).count("a shard: ") == 8


def test_partitioned_needs_no_collective(mesh):
    x = sw.device_put(np.ones((8, 2), np.float32), NamedSharding(mesh, P("data", "model")))

    def text(partitioned):
        return sw.jit(lambda x: sw.debug.print("{}", x * 2, partitioned=partitioned)).lower(x).as_text("local")

    assert "all_gather" in text(partitioned=False)
    assert "all_gather" not in text(partitioned=True)


def test_partitioned_under_vmap(capsys):
    sw.vmap(lambda x: sw.debug.print("{}", x, partitioned=True))(jnp.arange(3))
    assert printed(capsys) == "0\n1\n2\n"
