"""Unreduced and reduced arrays outside compiled functions: terms, reads, transfers, jit boundaries and plans.

The oracle is numpy on one device: the sum of the terms. The elements are small integers, so sums are exact.
"""

import copy
import pickle

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.errors import ShardingError, ShardingTypeError
from shardwise.sharding import AbstractMesh, AxisType, NamedSharding, reshard
from shardwise.sharding import PartitionSpec as P
from tests.explicit.typed_arrays import type_text

RNG = np.random.default_rng(0)
X = RNG.integers(-9, 9, size=(8, 4)).astype(np.float32)


def terms_of(value, spec):
    """Return an unreduced array on the current mesh whose terms are random integers with the sum `value`."""
    mesh = sw.sharding.get_mesh()
    sharding = NamedSharding(mesh, spec)
    count = len(set(sharding.terms.values()))
    terms = list(RNG.integers(-9, 9, size=(count - 1, *value.shape)).astype(value.dtype))
    terms.append(value - sum(terms))
    shards = [
        sw.device_put(terms[sharding.terms[device]][index], device)
        for device, index in sharding.devices_indices_map(value.shape).items()
    ]
    return sw.make_array_from_single_device_arrays(value.shape, sharding, shards)


def summed(x):
    """Return the sum of the terms of an array, read from its shards in numpy."""
    result = np.zeros(x.shape, x.dtype)
    for shard in x.addressable_shards:
        if shard.replica_id == 0:
            result[shard.index] += np.asarray(shard.data)
    return result


def collectives(function, *args):
    return [(row.kind, row.times) for row in sw.jit(function).lower(*args).plan.collectives]


SPECS = {
    "one axis": P(unreduced={"X"}),
    "two axes": P(unreduced={"X", "Y"}),
    "beside a sharded dim": P("Y", unreduced={"X"}),
    "beside an uneven dim": P(None, "X", unreduced={"Y"}),
    "beside a reduced axis": P(unreduced={"X"}, reduced={"Y"}),
}


class TestArrays:
    def test_devices_hold_terms(self, explicit_mesh):
        x = sw.device_put(X, P("Y", unreduced={"X"}))
        assert type_text(x) == "f32[8@Y,4]{U:X}"
        assert x.sharding.spec == P("Y", unreduced={"X"})
        assert not x.is_fully_replicated and not x.sharding.is_fully_replicated
        by_device = {shard.device.id: np.asarray(shard.data) for shard in x.addressable_shards}
        np.testing.assert_array_equal(np.concatenate([by_device[0], by_device[1]]), X)
        assert not any(by_device[index].any() for index in range(2, 8))
        np.testing.assert_array_equal(summed(x), X)

    def test_scalars_have_terms(self, explicit_mesh):
        value = np.float32(3)
        for x in (sw.device_put(value, P(unreduced={"X"})), terms_of(np.full((), value), P(unreduced={"X"}))):
            assert type_text(x) == "f32[]{U:X}"
            assert float(summed(x)) == float(reshard(x, P())) == float(reshard(x * 2, P())) / 2 == 3
        assert [float(term.data) for term in sw.device_put(value, P(unreduced={"X"})).addressable_shards] == [
            3.0
        ] * 2 + [0.0] * 6

    def test_replicas_are_numbered_within_each_term(self, explicit_mesh):
        shards = sw.device_put(X, P(unreduced={"X"})).addressable_shards
        assert [shard.replica_id for shard in shards] == [0, 1] * 4
        assert [shard.replica_id for shard in sw.device_put(X, P(unreduced={"X", "Y"})).addressable_shards] == [0] * 8

    @pytest.mark.parametrize(
        "read",
        [
            np.asarray,
            lambda x: x.tolist(),
            lambda x: x.item(0, 0),
            lambda x: x.tobytes(),
            lambda x: float(x[0, 0]),
            lambda x: int(x[0, 0]),
            lambda x: bool(x[0, 0]),
            bytes,
            pickle.dumps,
            sw.device_get,
            lambda x: np.save("/dev/null", x),
            lambda x: x.__dlpack__(),
            lambda x: sw.pure_callback(lambda y: y, sw.ShapeDtypeStruct((8, 4), np.float32), x),
        ],
    )
    def test_reading_raises(self, explicit_mesh, read):
        x = sw.device_put(X, P("Y", unreduced={"X"}))
        with pytest.raises(ShardingTypeError, match=r"is unreduced over 'X'.*reshard\(x, P\("):
            read(x)

    def test_text_shows_no_elements(self, explicit_mesh):
        x = sw.device_put(X, P(unreduced={"X"}))
        expected = (
            "Array(f32[8,4]{U:X}, NamedSharding(mesh(X=4 explicit, Y=2 explicit), P(unreduced={'X'})), unreduced)"
        )
        assert repr(x) == str(x) == f"{x}" == expected
        assert expected.replace("'", "&#x27;") in x._repr_html_()

    def test_pictures_say_that_devices_hold_terms(self, explicit_mesh, capsys):
        sw.debug.visualize_array_sharding(sw.device_put(X, P("Y", unreduced={"X"})), use_color=False)
        assert "unreduced over 'X': each device holds a term of the sum" in capsys.readouterr().out
        sw.debug.visualize_sharding((8, 4), NamedSharding(explicit_mesh, P("Y")), use_color=False)
        assert "unreduced" not in capsys.readouterr().out

    def test_a_mesh_of_one_device_raises_too(self):
        mesh = sw.make_mesh((1,), ("X",), axis_types=AxisType.Explicit)
        x = sw.device_put(X, NamedSharding(mesh, P(unreduced={"X"})))
        with pytest.raises(ShardingTypeError, match="unreduced over 'X'"):
            np.asarray(x)
        np.testing.assert_array_equal(reshard(x, NamedSharding(mesh, P())), X)

    def test_copies_keep_terms(self, explicit_mesh):
        x = terms_of(X, P(unreduced={"X"}))
        for other in (x.copy(), copy.deepcopy(x), sw.device_put(x, x.sharding, may_alias=False)):
            assert other.sharding == x.sharding
            pairs = zip(x.addressable_shards, other.addressable_shards, strict=True)
            assert all(np.array_equal(a.data, b.data) for a, b in pairs)

    def test_an_array_from_a_callback_has_no_terms(self, explicit_mesh):
        with pytest.raises(ShardingError, match="make_array_from_single_device_arrays"):
            sw.make_array_from_callback(
                (8, 4), NamedSharding(explicit_mesh, P(unreduced={"X"})), lambda index: X[index]
            )

    def test_shardings_compare_terms(self, explicit_mesh):
        replicated, first, second = (NamedSharding(explicit_mesh, P(unreduced=axes)) for axes in ((), {"X"}, {"Y"}))
        assert len({replicated, first, second}) == 3
        assert first.is_equivalent_to(NamedSharding(explicit_mesh, P(None, unreduced={"X"})), 2)
        assert not first.is_equivalent_to(second, 2) and not first.is_equivalent_to(replicated, 2)

    @pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_, np.complex64, jnp.bfloat16])
    def test_every_dtype_has_terms(self, explicit_mesh, dtype):
        value = (X > 0).astype(dtype)
        x = sw.device_put(value, P(unreduced={"X"}))
        assert x.dtype == dtype
        np.testing.assert_array_equal(np.asarray(reshard(x, P())), value)

    def test_zero_terms_are_negative(self, explicit_mesh):
        # x + -0.0 is x for every x, but -0.0 + 0.0 is 0.0.
        for put in (sw.device_put, lambda x, spec: reshard(sw.device_put(x, P()), spec)):
            terms = put(np.array([-0.0, 0.0], np.float32), P(unreduced={"X"})).addressable_shards
            assert [np.signbit(term.data).tolist() for term in terms] == [[True, False]] * 2 + [[True, True]] * 6

    def test_debug_nans_reads_terms(self, explicit_mesh):
        x = sw.device_put(np.array([1.0, 2.0], np.float32), P(unreduced={"X"}))
        with sw.debug_nans(True):
            assert type_text(x + x) == "f32[2]{U:X}"
            with pytest.raises(FloatingPointError, match="nan in a result of `divide`"):
                jnp.divide(x, 0.0)
            has_nan = sw.device_put(np.array([np.nan, 2.0], np.float32), P(unreduced={"X"}))
            assert type_text(has_nan + has_nan) == "f32[2]{U:X}"


class TestTransfers:
    @pytest.mark.table(default=32)
    @pytest.mark.parametrize("shape", [(8, 4), (7, 5), (0, 4)], ids=str)
    @pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
    @pytest.mark.parametrize("target", [P(), P("X"), P(("X", "Y")), *SPECS.values()], ids=repr)
    def test_reshard_keeps_the_sum(self, explicit_mesh, shape, spec, target):
        value = RNG.integers(-9, 9, size=shape).astype(np.float32)
        x = terms_of(value, spec)
        for move in (reshard, sw.device_put, sw.jit(reshard, static_argnums=1)):
            y = move(x, target)
            assert y.sharding == NamedSharding(explicit_mesh, target)
            np.testing.assert_array_equal(summed(y), value)

    @pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
    def test_numpy_arrays_and_other_devices(self, explicit_mesh, spec):
        np.testing.assert_array_equal(summed(reshard(X, spec)), X)
        np.testing.assert_array_equal(summed(sw.device_put(sw.device_put(X, sw.devices()[3]), spec)), X)
        np.testing.assert_array_equal(sw.device_put(terms_of(X, spec), sw.devices()[3]), X)
        other = sw.make_mesh((2, 2), ("a", "b"), axis_types=AxisType.Explicit, devices=sw.devices()[4:])
        there = NamedSharding(other, P("a", unreduced={"b"}))
        moved = sw.device_put(terms_of(X, spec), there)
        assert moved.sharding == there
        np.testing.assert_array_equal(summed(moved), X)
        np.testing.assert_array_equal(summed(sw.device_put(moved, NamedSharding(explicit_mesh, spec))), X)

    def test_auto_axes_beside_unreduced_ones(self):
        mesh = sw.make_mesh((4, 2), ("X", "Y"), axis_types=(AxisType.Explicit, AxisType.Auto))
        with sw.set_mesh(mesh):
            x = sw.device_put(X, P("Y", unreduced={"X"}))
            assert x.sharding == NamedSharding(mesh, P("Y", unreduced={"X"}))
            doubled = sw.jit(lambda x: x + x)(x)
            assert type_text(doubled) == "f32[8,4]{U:X}"
            np.testing.assert_array_equal(summed(doubled), 2 * X)
            np.testing.assert_array_equal(sw.device_put(doubled, P(None, "Y")), 2 * X)
            with pytest.raises(ShardingError, match="unreduced needs Explicit axes"):
                sw.device_put(X, P(unreduced={"Y"}))

    def test_wire_bytes(self, explicit_mesh):
        replicated, unreduced = sw.device_put(X, P()), sw.device_put(X, P(unreduced={"X"}))

        def sent(x, spec):
            return sw.jit(lambda x: reshard(x, spec)).lower(x).plan

        assert sent(replicated, P(unreduced={"X"})).collectives == ()
        assert sent(replicated, P(unreduced={"X", "Y"})).collectives == ()
        (reduce,) = sent(unreduced, P()).collectives
        assert (reduce.kind, reduce.sent) == ("all_reduce", 2 * X.nbytes * 3 / 4)
        (scatter,) = sent(unreduced, P("X")).collectives
        assert (scatter.kind, scatter.sent) == ("reduce_scatter", X.nbytes * 3 / 4)


class TestJit:
    @pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
    def test_arguments_and_results(self, explicit_mesh, spec):
        @sw.jit
        def double(x):
            assert sw.typeof(x).sharding.spec.unreduced == spec.unreduced
            return x + x

        x = terms_of(X, spec)
        y = double(x)
        assert y.sharding == x.sharding
        np.testing.assert_array_equal(summed(y), 2 * X)
        assert collectives(double, x) == []

    def test_a_product_stays_unreduced(self, explicit_mesh):
        x, w = sw.device_put(X, P("X", "Y")), sw.device_put(X.T.copy(), P("Y", None))
        spec = P("X", None, unreduced={"Y"})
        for dot in (jnp.dot, sw.jit(jnp.dot, static_argnames="out_sharding")):
            y = dot(x, w, out_sharding=spec)
            assert type_text(y) == "f32[8@X,8]{U:Y}" and y.sharding == NamedSharding(explicit_mesh, spec)
            np.testing.assert_array_equal(summed(y), X @ X.T)

    def test_in_and_out_shardings(self, explicit_mesh):
        spec = P(unreduced={"X"})
        by_output = sw.jit(lambda x: x * 2, out_shardings=spec)(X)
        assert type_text(by_output) == "f32[8,4]{U:X}"
        np.testing.assert_array_equal(summed(by_output), 2 * X)
        by_input = sw.jit(lambda x: x * 2, in_shardings=spec)(X)
        assert type_text(by_input) == "f32[8,4]{U:X}"
        np.testing.assert_array_equal(summed(by_input), 2 * X)
        reduced = sw.jit(lambda x: x * 2, out_shardings=P())(terms_of(X, spec))
        np.testing.assert_array_equal(reduced, 2 * X)
        assert type_text(sw.jit(lambda x: x * 2, out_shardings=P(reduced={"X"}))(X)) == "f32[8,4]{R:X}"
        assert type_text(sw.jit(lambda x: x * 2, in_shardings=P(reduced={"X"}))(X)) == "f32[8,4]{R:X}"

    def test_updates_of_elements(self, explicit_mesh):
        x, expected = terms_of(X, P(unreduced={"X"})), X.copy()
        expected[0], expected[1:3] = X[1], X[1:3] + X[5:7]

        def set_and_add(x):
            return x.at[0].set(x[1]).at[1:3].add(x[5:7])

        for update in (set_and_add, sw.jit(set_and_add)):
            y = update(x)
            assert type_text(y) == "f32[8,4]{U:X}"
            np.testing.assert_array_equal(summed(y), expected)
        with pytest.raises(ShardingTypeError, match=r"scatter: .* and the other operands are not"):
            x.at[0].set(5.0)

    def test_shardings_inspected_in_a_compiled_function(self, explicit_mesh):
        seen = []

        @sw.jit
        def f(x):
            sw.debug.inspect_array_sharding(x + x, callback=seen.append)
            return x

        f(terms_of(X, P("Y", unreduced={"X"})))
        assert seen == [NamedSharding(explicit_mesh, P("Y", unreduced={"X"}))]

    def test_donation(self, explicit_mesh):
        x = terms_of(X, P(unreduced={"X"}))
        y = sw.jit(lambda x: x + x, donate_argnums=0)(x)
        assert x.is_deleted()
        np.testing.assert_array_equal(summed(y), 2 * X)

    def test_ahead_of_time(self, explicit_mesh):
        spec = P("Y", unreduced={"X"})
        struct = sw.ShapeDtypeStruct((8, 4), np.float32, sharding=NamedSharding(explicit_mesh, spec))
        assert type_text(struct) == "f32[8@Y,4]{U:X}"
        assert sw.eval_shape(lambda x: x + x, struct).sharding.spec == P("Y", None, unreduced={"X"})
        lowered = sw.jit(lambda x: x + x).lower(struct)
        assert lowered.out_info.sharding.spec.unreduced == {"X"}
        compiled = lowered.compile()
        np.testing.assert_array_equal(summed(compiled(terms_of(X, spec))), 2 * X)
        with pytest.raises((TypeError, ValueError)):
            compiled(sw.device_put(X, P("Y")))

    def test_an_abstract_mesh(self):
        mesh = AbstractMesh((64, 8), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)
        struct = sw.ShapeDtypeStruct((128, 32), np.float32, sharding=NamedSharding(mesh, P("Y", unreduced={"X"})))
        lowered = sw.jit(lambda x: (x + x, reshard(x, NamedSharding(mesh, P("Y", "X"))))).lower(struct)
        assert [info.sharding.spec for info in lowered.out_info] == [P("Y", None, unreduced={"X"}), P("Y", "X")]
        assert [row.kind for row in lowered.plan.collectives] == ["reduce_scatter"]

    def test_the_plan_says_that_a_result_is_unreduced(self, explicit_mesh):
        plan = sw.jit(lambda x: (x + x, reshard(x, P()))).lower(terms_of(X, P("Y", unreduced={"X"}))).plan
        text = str(plan)
        assert "sum over 'X'" in text
        reasons = [row.reason for row in plan.collectives if row.kind == "all_reduce"]
        assert reasons and all("the terms of `x` are summed over 'X'" in reason for reason in reasons)

    def test_simulated_devices_agree(self, explicit_mesh):
        lowered = sw.jit(lambda x, w: (x + x, reshard(x, P("X")) * 2, x @ w)).lower(
            terms_of(X, P("Y", unreduced={"X"})), sw.device_put(X.T.copy(), P())
        )
        outputs = evaluate_shards(lowered._prepared.stages.local, [X, X.T])
        for output, expected in zip(outputs, (2 * X, 2 * X, X @ X.T), strict=True):
            np.testing.assert_array_equal(output, expected)

    def test_a_nonlinear_op_raises_without_jit_too(self, explicit_mesh):
        x = terms_of(X, P(unreduced={"X"}))
        with pytest.raises(ShardingTypeError, match=r"sin: operand 0 of type f32\[8,4\]\{U:X\} is unreduced.*reshard"):
            jnp.sin(x)
        with pytest.raises(ShardingTypeError, match=r"add: .* and the other operands are not.*reshard"):
            x + sw.device_put(X, P())
        with pytest.raises(ShardingTypeError, match=r"dot: .* 'X' shards another operand.*reshard"):
            x @ sw.device_put(X.T.copy(), P(None, "X"))
        with pytest.raises(ShardingTypeError, match="with_sharding_constraint: the value has type"):
            lax.with_sharding_constraint(x, P())
