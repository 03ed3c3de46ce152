"""ulysses_attention: values, gradients, collectives and memory."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise import NamedSharding, P
from shardwise.errors import StrategyError
from shardwise.parallel import ulysses_attention, unzigzag, zigzag
from tests.parallel.attention_reference import Sizes, assert_like_reference, attention, value_and_cotangents

SIZES = Sizes(batch=2, rows=16, heads=8, key_heads=4, head_dim=4)


def check(mesh, sizes, axis, shards, causal, has_segments, layout):
    *operands, ids = sizes.operands()
    segments = ids if has_segments else None
    options = {"axis": axis, "causal": causal, "layout": layout, "mesh": mesh}

    def attend(q, k, v):
        if layout == "contiguous":
            return ulysses_attention(q, k, v, segment_ids=segments, **options)
        permuted = None if segments is None else zigzag(segments, shards)
        out = ulysses_attention(*(zigzag(x, shards) for x in (q, k, v)), segment_ids=permuted, **options)
        return unzigzag(out, shards)

    assert_like_reference(attend, operands, causal=causal, segments=segments)


@pytest.mark.table(default=1)
@pytest.mark.parametrize(
    ("axis", "shards", "causal", "has_segments", "layout"),
    [
        ("data", 4, True, True, "zigzag"),
        ("data", 4, True, False, "contiguous"),
        ("model", 2, False, True, "contiguous"),
        ("data", 4, False, False, "contiguous"),
        ("data", 4, True, True, "contiguous"),
        ("model", 2, True, False, "zigzag"),
    ],
)
def test_equals_one_device(mesh, axis, shards, causal, has_segments, layout):
    check(mesh, SIZES, axis, shards, causal, has_segments, layout)


@st.composite
def cases(draw):
    shards, layout = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.sampled_from(["contiguous", "zigzag"]))
    key_heads = shards * draw(st.integers(1, 2))
    sizes = Sizes(
        batch=draw(st.integers(1, 2)),
        rows=shards * draw(st.integers(1, 3)) * (2 if layout == "zigzag" else 1),
        heads=key_heads * draw(st.sampled_from([1, 2])),
        key_heads=key_heads,
        head_dim=draw(st.integers(1, 5)),
    )
    return shards, layout, sizes, draw(st.booleans()), draw(st.booleans())


def check_case(case):
    shards, layout, sizes, causal, has_segments = case
    mesh = sw.make_mesh((shards,), ("s",), devices=sw.devices()[:shards])
    check(mesh, sizes, "s", shards, causal, has_segments, layout)


@pytest.mark.slow
@settings(max_examples=4, deadline=None, derandomize=True)
@given(cases())
def test_random_sizes_equal_one_device(case):
    check_case(case)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_many_random_sizes_equal_one_device(case):
    check_case(case)


@pytest.mark.slow
def test_several_axes_count_as_one(mesh):
    check(mesh, Sizes(1, 16, 16, 8, 4), ("data", "model"), 8, True, True, "zigzag")


@pytest.mark.parametrize("spec", [P(None, "model"), P(None, "model", "data")], ids=["sequence", "heads too"])
def test_inside_shard_map(mesh, spec):
    *operands, _ = Sizes(2, 16, 16, 8, 4).operands()
    mapped = sw.shard_map(
        lambda q, k, v: ulysses_attention(q, k, v, axis="model", causal=True), mesh=mesh, in_specs=spec, out_specs=spec
    )
    assert_like_reference(mapped, operands, causal=True)


def test_explicit_axes(explicit_mesh):
    *operands, _ = SIZES.operands()
    arrays = [sw.device_put(x, NamedSharding(explicit_mesh, P("Y", "X"))) for x in operands]
    attend = value_and_cotangents(lambda q, k, v: ulysses_attention(q, k, v, axis="X", causal=True))
    for actual, expected in zip(attend(*arrays), attention(*operands, causal=True), strict=True):
        assert actual.sharding.spec == P("Y", "X", None, None)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_bfloat16(mesh):
    *operands, _ = SIZES.operands(ml_dtypes.bfloat16)
    assert_like_reference(
        lambda q, k, v: ulysses_attention(q, k, v, axis="data", causal=True, mesh=mesh),
        operands,
        rtol=2e-2,
        causal=True,
    )


def plans(mesh, sizes, spec, **options):
    """Return the plans of the forward pass alone, and of both passes."""

    def attend(q, k, v):
        return ulysses_attention(q, k, v, axis="data", mesh=mesh, **options)

    types = [sw.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)) for x in sizes.operands()[:4]]
    forward = sw.jit(attend, out_shardings=types[0].sharding).lower(*types[:3]).plan
    return forward, value_and_cotangents(attend).lower(*types).plan


@pytest.mark.parametrize("spec", [P(None, "data", "model"), P("model", "data")], ids=["heads", "batch"])
def test_collectives_are_two_all_to_alls(mesh, spec):
    """Another axis shards the heads, or the batch: n - 1 of n blocks of q, k, v and the result are sent, twice."""
    sizes = Sizes(batch=2, rows=16, heads=16, key_heads=8, head_dim=4)
    forward, both = plans(mesh, sizes, spec)
    operands = 2 * (16 // 4) * (16 + 2 * 8 + 16) * 4 * 4 // 2  # q, k, v and the result on one device
    for plan, passes in ((forward, 1), (both, 2)):
        assert {(row.kind, row.axes) for row in plan.collectives} == {("all_to_all", ("data",))}
        assert sum(row.times for row in plan.collectives) == 2 * passes
        assert plan.wire_bytes == passes * operands * 3 // 4


def test_segment_ids_are_gathered(mesh):
    q, k, v, _, ids = SIZES.operands()

    def attend(q, k, v, ids):
        return ulysses_attention(q, k, v, axis="data", segment_ids=ids, mesh=mesh)

    arrays = [sw.device_put(x, NamedSharding(mesh, P(None, "data"))) for x in (q, k, v, ids)]
    plan = sw.jit(attend).lower(*arrays).plan
    assert plan.counts() == {"all_to_all": 2, "all_gather": 1}
    (gather,) = [row for row in plan.collectives if row.kind == "all_gather"]
    assert gather.sent == ids.nbytes * 3 // 4


@pytest.mark.slow
def test_memory_grows_linearly_with_the_sequence(mesh):
    """With 16,384 and 32,768 positions, the scores of a head would be 1 and 4 GB."""
    peaks = []
    for rows in (16_384, 32_768):
        forward, both = plans(mesh, Sizes(1, rows, 8, 8, 64), P(None, "data", "model"), causal=True)
        peaks.append((forward.peak_bytes, both.peak_bytes))
    for shorter, longer in zip(*peaks, strict=True):
        assert longer < 2.01 * shorter


def test_errors_name_what_does_not_fit(mesh):
    q, k, v, _, _ = SIZES.operands()

    def fails(message, *operands, **options):
        with pytest.raises(StrategyError, match=message):
            ulysses_attention(*(operands or (q, k, v)), **{"axis": "data", "mesh": mesh, **options})

    fails(
        "key has 2 heads, which the 4 devices along 'data' do not divide. Use ring_attention",
        q,
        k[:, :, :2],
        v[:, :, :2],
    )
    fails("the mesh has no axis 'date'", axis="date")
    fails("must have the same sequence length, not 2 and 4 per device", q[:, :8], k, v)
    fails("the sequence of the queries is 15", q[:, :15], k[:, :15], v[:, :15])
    fails("layout must be", layout="")
