"""ring_attention: values, gradients, collectives and memory."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import NamedSharding, P, tree
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.trace.build import build
from shardwise.errors import StrategyError
from shardwise.parallel import ring_attention, unzigzag, zigzag
from tests.parallel.attention_reference import Sizes, assert_like_reference, attention, value_and_cotangents

SIZES = Sizes(batch=2, rows=16, heads=4, key_heads=2, head_dim=8)
SEQUENCE = P(None, "data", "model")  # the sequence over `data`, the heads over `model`


def zigzagged(function, shards):
    """Return `function(q, k, v, segments)` of arrays in zigzag order as a function of arrays in their own order."""

    def call(q, k, v, segments):
        segments = None if segments is None else zigzag(segments, shards)
        return unzigzag(function(*(zigzag(x, shards) for x in (q, k, v)), segments), shards)

    return call


def check(mesh, sizes, axis, shards, causal, has_segments, layout, scale=None):
    *operands, ids = sizes.operands()
    segments = ids if has_segments else None

    order = {"balanced": True} if layout == "balanced" else {"layout": layout}

    def attend(q, k, v, segments):
        return ring_attention(q, k, v, axis=axis, causal=causal, segment_ids=segments, scale=scale, **order, mesh=mesh)

    function = zigzagged(attend, shards) if layout == "zigzag" else attend
    assert_like_reference(
        lambda q, k, v: function(q, k, v, segments), operands, causal=causal, segments=segments, scale=scale
    )


@pytest.mark.table(default=2)
@pytest.mark.parametrize(
    ("axis", "shards", "causal", "has_segments", "layout"),
    [
        ("data", 4, True, False, "zigzag"),
        ("data", 4, True, True, "balanced"),
        ("data", 4, True, True, "contiguous"),
        ("model", 2, True, False, "balanced"),
        (("data", "model"), 8, True, False, "balanced"),
        ("data", 4, False, False, "contiguous"),
        ("model", 2, True, True, "zigzag"),
        ("data", 4, True, False, "contiguous"),
        ("data", 4, True, True, "zigzag"),
        ("data", 4, False, True, "contiguous"),
        ("data", 4, False, True, "zigzag"),
        ("model", 2, True, False, "zigzag"),
        ("model", 2, True, False, "contiguous"),
        ("model", 2, False, False, "contiguous"),
        (("data", "model"), 8, True, True, "zigzag"),
        (("data", "model"), 8, True, False, "contiguous"),
    ],
)
def test_equals_one_device(mesh, axis, shards, causal, has_segments, layout):
    check(mesh, SIZES, axis, shards, causal, has_segments, layout)


@st.composite
def cases(draw):
    shards, layout = draw(st.sampled_from([1, 2, 3, 4, 5, 8])), draw(st.sampled_from(["contiguous", "zigzag"]))
    key_heads = draw(st.sampled_from([1, 2, 3]))
    sizes = Sizes(
        batch=draw(st.integers(1, 2)),
        rows=shards * draw(st.integers(1, 3)) * (2 if layout == "zigzag" else 1),
        heads=key_heads * draw(st.sampled_from([1, 2])),
        key_heads=key_heads,
        head_dim=draw(st.integers(1, 5)),
    )
    return shards, layout, sizes, draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from([None, 0.3]))


def check_case(case):
    shards, layout, sizes, causal, has_segments, scale = case
    mesh = sw.make_mesh((shards,), ("s",), devices=sw.devices()[:shards])
    check(mesh, sizes, "s", shards, causal, has_segments, layout, scale)


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
def test_long_sequences_loop_over_blocks_of_keys(mesh, monkeypatch):
    """Blocks of 3 keys, which do not divide the 4 keys of a device."""
    monkeypatch.setattr("shardwise.nn.blockwise_attention.BLOCK_SIZE", 3)
    check(mesh, SIZES, "data", 4, True, True, "contiguous")
    check(mesh, Sizes(1, 32, 2, 1, 4), "data", 4, True, True, "zigzag")


@pytest.mark.slow
def test_queries_and_keys_may_have_different_lengths(mesh):
    *operands, _ = Sizes(2, 8, 4, 2, 8, keys=12).operands()
    assert_like_reference(lambda q, k, v: ring_attention(q, k, v, axis="data", mesh=mesh), operands)


def test_batch_dim_is_optional_and_calls_work_outside_jit(mesh):
    q, k, v, _, ids = SIZES.operands()
    out = ring_attention(q[1], k[1], v[1], axis="data", causal=True, segment_ids=ids[1], mesh=mesh)
    assert out.sharding.spec == P("data")
    np.testing.assert_allclose(out, attention(q, k, v, causal=True, segments=ids)[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_shard_map(mesh, check_vma):
    """The operands are shards; other manual axes shard the heads."""
    *operands, _ = SIZES.operands()
    mapped = sw.shard_map(
        lambda q, k, v: ring_attention(q, k, v, axis="data", causal=True),
        mesh=mesh,
        in_specs=SEQUENCE,
        out_specs=SEQUENCE,
        check_vma=check_vma,
    )
    assert_like_reference(mapped, operands, causal=True)


def test_replicated_keys_inside_shard_map(mesh):
    """Keys that all heads' devices share: their gradient is summed over these devices."""
    *operands, _ = Sizes(2, 16, 4, 1, 8).operands()
    keys = P(None, "data")
    mapped = sw.shard_map(
        lambda q, k, v: ring_attention(q, k, v, axis="data"),
        mesh=mesh,
        in_specs=(SEQUENCE, keys, keys),
        out_specs=SEQUENCE,
    )
    assert_like_reference(mapped, operands)


def test_under_vmap_with_an_axis_name():
    *operands, _ = SIZES.operands()

    def attend(q, k, v):
        shards = [x.reshape(2, 4, 4, *x.shape[2:]) for x in (q, k, v)]
        function = sw.vmap(
            lambda q, k, v: ring_attention(q, k, v, axis="s", causal=True), in_axes=1, out_axes=1, axis_name="s"
        )
        return function(*shards).reshape(q.shape)

    assert_like_reference(attend, operands, causal=True)


def test_explicit_axes(explicit_mesh):
    *operands, _ = SIZES.operands()
    arrays = [sw.device_put(x, NamedSharding(explicit_mesh, P(None, "X", "Y"))) for x in operands]
    attend = value_and_cotangents(lambda q, k, v: ring_attention(q, k, v, axis="X", causal=True))
    for actual, expected in zip(attend(*arrays), attention(*operands, causal=True), strict=True):
        assert actual.sharding.spec == P(None, "X", "Y", None)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_bfloat16(mesh):
    """Operands are rounded; sums are not: the error does not exceed that of one rounding of each result by much."""
    *operands, _ = Sizes(2, 32, 4, 2, 8).operands(ml_dtypes.bfloat16)
    assert_like_reference(
        lambda q, k, v: ring_attention(q, k, v, axis="data", causal=True, mesh=mesh), operands, rtol=1e-2, causal=True
    )


def test_fused_kernel_of_gpus_computes_the_blocks(mesh):
    """On other platforms the kernel is replaced by ordinary ops."""
    *operands, _ = SIZES.operands(ml_dtypes.bfloat16)

    def attend(q, k, v):
        return ring_attention(*(zigzag(x, 4) for x in (q, k, v)), axis="data", causal=True, layout="zigzag", mesh=mesh)

    with sw.config.override("target_platform", "gpu"):
        assert "fused_attention[" in str(sw.jit(attend).trace(*operands[:3]))
        assert_like_reference(lambda *x: unzigzag(attend(*x), 4), operands, rtol=2e-2, causal=True)


def test_zigzag_order_is_predicted_to_balance_causal_attention():
    """The slowest device computes all blocks in contiguous order, and half of each in zigzag order, except its own."""
    ring = sw.sharding.AbstractMesh((4,), ("sequence",))
    x = sw.ShapeDtypeStruct(
        (1, 4096, 8, 64), ml_dtypes.bfloat16, sharding=sw.NamedSharding(ring, sw.P(None, "sequence"))
    )

    def flops(layout):
        def attend(q, k, v):
            return ring_attention(q, k, v, axis="sequence", causal=True, layout=layout, mesh=ring)

        return sw.simulate(attend, hardware="h100")(x, x, x).flops

    block = 2 * 2 * 1024**2 * 8 * 64  # two products
    assert flops("contiguous") == 3.5 * block
    assert flops("zigzag") == 2 * block


@pytest.mark.slow
def test_second_derivative(mesh):
    q, k, v, ct, _ = Sizes(1, 8, 2, 1, 4).operands()

    def penalty(function):
        def norm(q):
            return (sw.grad(lambda q: (function(q, k, v) * ct).sum())(q) ** 2).sum()

        return sw.jit(sw.grad(norm))(q)

    ring = penalty(lambda q, k, v: ring_attention(q, k, v, axis="model", causal=True, mesh=mesh))
    full = penalty(lambda q, k, v: sw.nn.dot_product_attention(q, k, v, is_causal=True))
    np.testing.assert_allclose(ring, full, rtol=1e-4, atol=1e-5)


def test_masked_blocks_are_not_computed(mesh):
    """A block of NaN that is fully masked has no effect: masking its scores would not help, as 0 · NaN is NaN."""
    q, k, v, _, _ = SIZES.operands()
    expected = attention(q, k, v, causal=True)
    k, v = k.copy(), v.copy()
    k[:, 12:], v[:, 12:] = np.nan, np.nan  # the block of the last device
    attend = sw.jit(lambda q, k, v: ring_attention(q, k, v, axis="data", causal=True, mesh=mesh))
    out = np.asarray(attend(q, k, v))
    np.testing.assert_allclose(out[:, :12], expected[:, :12], rtol=1e-5, atol=1e-5)
    assert np.isnan(out[:, 12:]).all()


def types(sizes, mesh, spec=SEQUENCE, dtype=np.float32):
    """Return the types of q, k, v and the cotangent of the result."""
    return [sw.ShapeDtypeStruct(x.shape, dtype, sharding=NamedSharding(mesh, spec)) for x in sizes.operands()[:4]]


def plans(mesh, sizes, *, dtype=np.float32, spec=SEQUENCE, **options):
    """Return the plans of the forward pass alone, and of both passes."""

    def attend(q, k, v):
        return ring_attention(q, k, v, axis="data", mesh=mesh, **options)

    operands = types(sizes, mesh, spec, dtype)
    forward = sw.jit(attend, out_shardings=operands[0].sharding).lower(*operands[:3]).plan
    return forward, value_and_cotangents(attend).lower(*operands).plan


@pytest.mark.table(default=1)
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("causal", [False, True])
def test_collectives_are_permutes_of_keys_and_values(mesh, causal, layout):
    """The sequence over `data`, the heads over `model`: n - 1 permutes forward; twice that backward."""
    forward, both = plans(mesh, SIZES, causal=causal, layout=layout)
    block = 2 * SIZES.batch * (16 // 4) * (2 // 2) * SIZES.head_dim * 4  # the keys and values of a device
    for plan, permutes in ((forward, 3), (both, 9)):
        assert {(row.kind, row.axes) for row in plan.collectives} == {("ppermute", ("data",))}
        assert sum(row.times for row in plan.collectives) == permutes
        assert plan.wire_bytes == permutes * block


@pytest.mark.slow
def test_gradients_of_bfloat16_keys_travel_in_float32(mesh):
    forward, both = plans(mesh, SIZES, dtype=ml_dtypes.bfloat16)
    block = 2 * SIZES.batch * 4 * 1 * SIZES.head_dim * 2
    assert forward.wire_bytes == 3 * block and both.wire_bytes == (3 + 3 + 2 * 3) * block


def test_data_parallelism_needs_no_other_collectives():
    mesh = sw.make_mesh((2, 4), ("batch", "data"))
    _, both = plans(mesh, Sizes(4, 16, 4, 2, 8), spec=P("batch", "data"), causal=True)
    assert both.wire_bytes == 9 * 2 * 2 * 4 * 2 * 8 * 4
    assert {row.axes for row in both.collectives} == {("data",)}


def flops_of_slowest_device(program):
    """Return the flops of all products, those of the larger branch where there are two."""
    total = 0.0
    for equation in program.equations:
        inner = [flops_of_slowest_device(each) for each in equation.op.programs]
        repeated = getattr(equation.op, "trip_count", None) or 1
        own = equation.op.flops(*(value.type for value in equation.inputs))
        total += max(inner) * repeated if inner else own
    return total


def test_zigzag_balances_causal_attention(mesh):
    """The last device computes all 4 blocks in contiguous order, and 1 + 3 / 2 in zigzag order."""

    def counted(causal, layout):
        def attend(*operands):
            return [ring_attention(*operands, axis="data", causal=causal, layout=layout, mesh=mesh)]

        types = [ArrayType(x.shape, np.float32) for x in Sizes(1, 4096, 2, 2, 64).operands()[:3]]
        return flops_of_slowest_device(build(attend, types, "attend")[0])

    block = 2 * 2 * 2 * 1024 * 1024 * 64  # two products for two heads
    assert counted(False, "contiguous") == counted(True, "contiguous") == 4 * block
    assert counted(True, "zigzag") == 2.5 * block


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_linearly_with_the_sequence_of_a_device(mesh, causal):
    """With 16,384 and 32,768 positions per device."""
    peaks = []
    for rows in (65_536, 131_072):
        forward, both = plans(mesh, Sizes(1, rows, 2, 2, 64), causal=causal, layout="zigzag")
        peaks.append((forward.peak_bytes, both.peak_bytes))
    for shorter, longer in zip(*peaks, strict=True):
        assert longer < 2.01 * shorter
    assert peaks[0][1] < 16_384**2 * 4 / 4  # the scores of one block alone have four times this size


def test_residuals_are_operands_output_and_logsumexp(mesh):
    q, k, v, _, _ = SIZES.operands()
    arrays = [sw.device_put(x, NamedSharding(mesh, SEQUENCE)) for x in (q, k, v)]
    _, pullback = sw.vjp(lambda q, k, v: ring_attention(q, k, v, axis="data", causal=True, mesh=mesh), *arrays)
    sizes = sorted(x.size for x in tree.leaves(pullback) if x.size > 16)
    assert sizes == sorted([q.size, k.size, v.size, q.size, q.size // 8])


def test_errors_name_what_does_not_fit(mesh):
    q, k, v, _, ids = SIZES.operands()

    def fails(message, *operands, **options):
        with pytest.raises(StrategyError, match=message):
            ring_attention(*(operands or (q, k, v)), **{"axis": "data", "mesh": mesh, **options})

    fails("the mesh has no axis 'date'.*Did you mean 'data'", axis="date")
    fails("needs a mesh", mesh=None)
    fails("axis must be the name of a mesh axis, not None", axis=None)
    fails("layout must be 'contiguous' or 'zigzag', not 'striped'", layout="striped")
    fails("the sequence of the queries is 15.*4 devices along 'data'", q[:, :15], k[:, :15], v[:, :15])
    fails("is 12, which is not divisible by 8.*zigzag", q[:, :12], k[:, :12], v[:, :12], layout="zigzag")
    fails("the number of heads of query", q[:, :, :3], k, v)
    fails("value must have the shape and dtype of key", q, k, v[:, :12])
    fails("must have the dtype, the batch dim and the last dim of key", q.astype(np.float16), k, v)
    fails("must have the dtype, the batch dim and the last dim of key", q[:1], k, v)
    fails("floating-point", *(x.astype(np.int32) for x in (q, k, v)))
    fails(r"query and key must be \[B,T,N,H\]", q[0], k, v)
    fails("causal attention needs as many queries as keys, not 8 and 16", q[:, :8], k, v, causal=True)
    fails("segment ids need as many queries", q[:, :8], k, v, segment_ids=ids)
    fails(r"segment_ids must be integers of shape \(2, 16\)", segment_ids=ids[:, :8])
    fails("segment_ids must be integers", segment_ids=ids.astype(np.float32))
    with pytest.raises(TypeError):
        ring_attention("q", k, v, axis="data", mesh=mesh)


def test_current_mesh_is_the_default(mesh):
    q, k, v, _, _ = SIZES.operands()
    with sw.set_mesh(mesh):
        out = sw.jit(lambda q, k, v: ring_attention(q, k, v, axis="data"))(q, k, v)
    np.testing.assert_allclose(out, attention(q, k, v), rtol=1e-5, atol=1e-5)
    assert isinstance(out, jnp.ndarray)
