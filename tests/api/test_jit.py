"""jit: results, caching, closures, shardings in and out."""

import gc
import inspect
import weakref
from typing import get_args, get_overloads

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def counting(function):
    """Return `function` and the list of its traces."""
    calls = []

    def counted(*args, **keywords):
        calls.append(args)
        return function(*args, **keywords)

    return counted, calls


def test_pytrees_in_and_out():
    f = sw.jit(lambda t, *, scale: {"sum": t["a"] + t["b"][0], "none": None, "scaled": (t["b"][0] * scale,)})
    out = f({"a": np.arange(3.0), "b": [np.ones(3)]}, scale=2.0)
    assert out["none"] is None
    np.testing.assert_array_equal(out["sum"], [1, 2, 3])
    np.testing.assert_array_equal(out["scaled"][0], [2, 2, 2])


def test_traced_once_per_type_and_structure(mesh):
    counted, calls = counting(lambda x: x * 2)
    f = sw.jit(counted)
    for _ in range(3):
        f(jnp.ones(3))
    assert len(calls) == 1
    f(sw.device_put(np.ones(3, np.float32), NamedSharding(mesh, P("data"))))
    assert len(calls) == 1  # another sharding: compiled again, traced once
    f(jnp.ones(4))
    f(jnp.ones(3, jnp.int32))
    f(2.0)
    assert len(calls) == 4


def test_equal_jits_of_a_function_at_different_lines_share_its_trace(mesh):
    counted, calls = counting(lambda x: x * 2)
    rows = NamedSharding(mesh, P("data"))
    first = sw.jit(counted, in_shardings=rows, out_shardings=None)(np.ones(8, np.float32))
    second = sw.jit(counted, in_shardings=rows, out_shardings=None)(np.ones(8, np.float32))
    again = NamedSharding(sw.make_mesh((4, 2), ("data", "model")), P("data"))
    third = sw.jit(counted, in_shardings=again, out_shardings=None)(np.ones(8, np.float32))
    assert len(calls) == 1 and first.sharding == second.sharding == third.sharding
    sw.jit(counted, in_shardings=NamedSharding(mesh, P("model")))(np.ones(8, np.float32))
    assert len(calls) == 2


def test_results_that_are_arguments_keep_their_mesh(mesh):
    flat = sw.make_mesh((8,), ("all",))
    x = sw.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("data")))
    y = sw.device_put(np.ones(8, np.float32), NamedSharding(flat, P()))
    results = sw.jit(lambda x, y: (x, y, x + y))(x, y)
    assert [result.sharding for result in results[:2]] == [x.sharding, y.sharding]
    assert results[2].sharding == x.sharding
    assert sw.jit(lambda y: y, out_shardings=x.sharding)(y).sharding == x.sharding


def test_donated_buffers_are_reused_for_results_of_other_shapes(mesh):
    rows, columns = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "data"))
    x, y, z = (np.arange(64, dtype=np.float32).reshape(shape) for shape in ((64,), (64, 1), (4, 4, 4)))
    put = [sw.device_put(array, rows) for array in (x, y, z)]
    f = sw.jit(lambda x, y, z: (x, y.reshape(64), z + 1), out_shardings=(rows, rows, columns), donate_argnums=(0, 1, 2))
    results = f(*put)
    assert all(array.is_deleted() for array in put)
    for result, expected in zip(results, (x, y.reshape(64), z + 1), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_closures_over_arrays_and_tracers():
    bias = jnp.arange(3.0)

    @sw.jit
    def outer(x):
        doubled = x * 2

        @sw.jit
        def inner(y):
            return y + doubled + bias + np.ones(3, np.float32)

        return inner(x) + inner(doubled)

    x = np.arange(3.0, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_allclose(outer(x), 3 * x + bias + 1 + 4 * x + bias + 1)


def test_closure_over_a_tracer_is_retraced_in_the_next_trace():
    held = []
    inner = sw.jit(lambda y: y * held[-1])

    def outer(x):
        held.append(x)
        return inner(x + 1)

    assert float(sw.jit(outer)(2.0)) == 6.0
    assert float(sw.jit(lambda x: outer(x) + 1)(3.0)) == 13.0


def test_scalars_keep_sign_and_dtype():
    f = sw.jit(lambda x: x)
    assert np.signbit(np.asarray(f(-0.0)))
    assert not np.signbit(np.asarray(f(0.0)))
    assert f(True).dtype == np.bool_
    assert f(1).dtype == np.int32
    assert np.asarray(f(1)) == 1


def test_out_shardings_and_in_shardings(mesh):
    rows, columns = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "data"))
    x = np.arange(30.0, dtype=np.float32).reshape(10, 3)
    f = sw.jit(lambda a: a + 1, in_shardings=rows, out_shardings=columns)
    for given in (x, sw.device_put(x, columns), sw.device_put(x, rows)):
        with sw.config.override("in_shardings_mismatch", "allow"):
            y = f(given)
        assert y.sharding == columns
        np.testing.assert_array_equal(y, x + 1)


def test_computation_follows_data(mesh):
    x = sw.device_put(np.ones((10, 6), np.float32), NamedSharding(mesh, P("data", "model")))
    assert (x + 1).sharding.spec == P("data", "model")
    assert x.T.sharding.spec == P("model", "data")
    assert x.sum(axis=1).sharding.spec == P("data")
    assert x.sum().sharding.spec == P()


def test_constraint_pins_an_intermediate_value(mesh):
    where = NamedSharding(mesh, P(None, "model"))

    @sw.jit
    def f(x):
        return sw.lax.with_sharding_constraint(x * 2, where) + 0

    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    y = f(x)
    assert y.sharding == where
    np.testing.assert_array_equal(y, 2 * x)


def test_unconstrained_dims_are_left_to_the_planner(mesh):
    x = sw.device_put(np.ones((8, 6), np.float32), NamedSharding(mesh, P("data")))
    open_rows = NamedSharding(mesh, P(P.UNCONSTRAINED, "model"))
    y = sw.jit(lambda a: sw.lax.with_sharding_constraint(a, open_rows))(x)
    assert y.sharding.spec == P("data", "model")


def test_uncommitted_arrays_join_the_mesh(mesh):
    x = sw.device_put(np.ones((8, 6), np.float32), NamedSharding(mesh, P("data")))
    w = jnp.ones((6, 2))
    assert not w.committed
    y = x @ w
    assert y.sharding.spec == P("data")
    np.testing.assert_array_equal(y, np.full((8, 2), 6))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)])
def test_empty_arrays(mesh, shape):
    x = sw.device_put(np.zeros(shape, np.float32), NamedSharding(mesh, P("data")))
    y = sw.jit(lambda a: (a * 2 + 1, a.sum()))(x)
    assert y[0].shape == shape
    assert float(y[1]) == 0.0


def test_more_devices_than_rows(mesh):
    x = np.arange(6, dtype=np.int32).reshape(3, 2)
    y = sw.device_put(x, NamedSharding(mesh, P(("data", "model"))))
    assert [s.data.shape[0] for s in y.addressable_shards] == [1, 1, 1, 0, 0, 0, 0, 0]
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(y.T @ y, x.T @ x)


def test_dump_writes_every_stage(tmp_path):
    before, x = sw.config.dump_to, jnp.ones(5)
    sw.config.update("dump_to", str(tmp_path))
    try:
        sw.jit(lambda x: x * 3 + 7)(x)
    finally:
        sw.config.update("dump_to", before)
    texts = {path.stem: path.read_text() for path in sorted(tmp_path.glob("*/*.txt"))}
    assert list(texts) == [
        "01-trace",
        "02-inline",
        "03-erase_varying",
        "04-lower_keys",
        "05-inline_single_trips",
        "06-hoist",
        "07-merge_stacks",
        "08-crop_pads",
        "09-merge_factorizations",
        "10-dce",
        "11-erase_shardings",
        "12-layout_problem",
        "13-choose",
        "14-partition",
        "15-lower",
    ]
    assert texts["01-trace"].startswith("program ") and texts["11-erase_shardings"] == "(unchanged since trace)\n"
    assert "stablehlo.multiply" in texts["15-lower"]


def test_argument_structures_are_distinguished():
    runs = []

    @sw.jit
    def f(x, y=None):
        runs.append(1)
        return x + 1 if y is None else x + y

    x, y = jnp.arange(3.0), jnp.ones(3)
    for _ in range(2):
        assert f(x).tolist() == f((x,)[0]).tolist() == [1.0, 2.0, 3.0]
        assert f(x, y).tolist() == f(x, y=y).tolist() == f(y=y, x=x).tolist() == [1.0, 2.0, 3.0]
    assert len(runs) == 4  # f(x), f(x, y), f(x, y=y) and f(y=y, x=x), which differ in structure
    assert sw.jit(lambda *xs: xs)() == ()
    (same,) = sw.jit(lambda xs: xs)([x])
    assert same.tolist() == x.tolist()


def test_least_recently_used_programs_are_evicted(monkeypatch):
    monkeypatch.setattr("shardwise.api.jit.MAX_PROGRAMS", 4)
    traced = []

    @sw.jit
    def f(x):
        traced.append(x.shape)
        return x + 1

    often = jnp.zeros(1)
    f(often)
    for size in range(2, 12):
        f(jnp.zeros(size))
        f(often)  # frequently used entries stay
    assert len(traced) == len(set(traced)) == 11
    assert f._launches.count <= 4 and f._programs.count <= 4
    f(jnp.zeros(11))
    assert len(traced) == 11  # the last one is still there
    assert f(jnp.zeros(2)).tolist() == [1.0, 1.0]
    assert traced[-1] == (2,) and len(traced) == 12  # the first was evicted and is compiled again


def test_evicted_programs_are_freed(monkeypatch):
    monkeypatch.setattr("shardwise.api.jit.MAX_PROGRAMS", 2)
    f = sw.jit(lambda x: x + 1)
    f(jnp.zeros(1))
    ((launch, _),) = f._launches.values()
    gone = weakref.ref(launch)
    del launch
    for size in range(2, 5):
        f(jnp.zeros(size))
    gc.collect()
    assert gone() is None


def test_repr_shows_the_function_and_its_options(mesh):
    ones = jnp.ones(2)

    def scale(x: sw.Array, factor: float = 2.0, *rest, table=ones) -> sw.Array:
        return x * factor

    assert repr(sw.jit(scale)) == "<jit of scale(x, factor=2.0, *rest, table=Ellipsis)>"
    sharding = sw.NamedSharding(mesh, P("data"))
    jitted = sw.jit(scale, static_argnums=1, donate_argnames="x", out_shardings=sharding)
    parts = [f"out_shardings={sharding!r}", "static=(factor)", "donate=(x)"]
    assert repr(jitted) == f"<jit of scale(x, factor=2.0, *rest, table=Ellipsis), {', '.join(parts)}>"
    assert repr(sw.pmap(lambda x: x, axis_name="i")) == "<pmap of <lambda>(x), axis_name='i'>"
    assert repr(sw.jit(max)) == "<jit of max(...)>"  # a callable without a signature
    assert repr(sw.custom_jvp(scale)) == "<custom_jvp of scale(x, factor=2.0, *rest, table=Ellipsis)>"


@pytest.mark.parametrize("function", [sw.jit, sw.checkpoint, sw.shard_map], ids=lambda function: function.__name__)
def test_type_checkers_know_all_keywords(function):
    """The overloads take the keywords of a TypedDict; these are the parameters after the function."""
    keywords = get_args(get_overloads(function)[0].__annotations__["options"])[0]
    assert list(keywords.__annotations__) == list(inspect.signature(function).parameters)[1:]
