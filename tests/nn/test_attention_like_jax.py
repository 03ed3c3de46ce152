"""Compare dot_product_attention with JAX: with a full score matrix, and blockwise over the keys."""

import ml_dtypes
import numpy as np
import pytest

import shardwise as sw
from shardwise import nn, tree
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.pipeline import run_stages
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.spec import pin_of
from shardwise.compiler.trace.build import build
from shardwise.nn import attention, blockwise_attention
from shardwise.sharding import PartitionSpec
from tests.agreement import (
    PARTS,
    Case,
    batch_name,
    batches,
    eagerly_like,
    gradients_like,
    mesh_like_one_device,
    values_like,
    vmap_like_loop,
)

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)


def floats(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def call(q, k, bias=None, mask=None, **keywords):
    arrays = [floats(*q), floats(*k), floats(*k)]
    tolerance = {"rtol": 2e-4, "atol": 2e-5}
    optional = [x for x in (bias, mask)] if mask is not None else [bias] if bias is not None else []
    return Case("dot_product_attention", (*arrays, *optional), keywords, **tolerance)


B, T, S, N, K, H = 4, 5, 7, 4, 2, 3
Q, KV = (B, T, N, H), (B, S, K, H)
MASK = RNG.integers(0, 2, (B, N, T, S)).astype(bool)
MASK[0, 1, 2] = False  # a query for which all keys are masked
LENGTHS = {
    "query_seq_lengths": np.array([5, 3, 0, 1], np.int32),
    "key_value_seq_lengths": np.array([7, 2, 4, 1], np.int32),
}
CASES = [
    call(Q, KV),
    call((B, T, N, H), (B, S, N, H)),
    call((B, T, N, H), (B, S, 1, H)),
    call((T, N, H), (S, K, H)),
    call((T, N, H), (S, K, H), is_causal=True),
    call(Q, KV, is_causal=True),
    call(Q, KV, scale=0.3),
    call(Q, KV, bias=floats(B, N, T, S)),
    call(Q, KV, bias=floats(1, N, 1, S)),
    call(Q, KV, bias=floats(B, 1, T, 1)),
    call(Q, KV, bias=floats(1, N, T, S), mask=MASK),
    call(Q, KV, bias=floats(T, S), mask=MASK[:1, :1]),
    call(Q, KV, local_window_size=2),
    call(Q, KV, local_window_size=(1, 0), is_causal=True),
    call(Q, KV, **LENGTHS),
    call(Q, KV, query_seq_lengths=LENGTHS["query_seq_lengths"]),
    call(Q, KV, key_value_seq_lengths=LENGTHS["key_value_seq_lengths"], is_causal=True, return_residual=True),
    call(Q, KV, return_residual=True, implementation="xla"),
]
NARROW = [
    Case(
        "dot_product_attention",
        tuple(x.astype(ml_dtypes.bfloat16) for x in case.args[:3]),
        case.keywords,
        rtol=3e-2,
        atol=3e-2,
    )
    for case in (CASES[0], CASES[5], CASES[-1])
]


@pytest.fixture(params=["full", "blockwise"])
def algorithm(request, monkeypatch):
    """The full score matrix, or blocks of 3 keys, which the blockwise algorithm uses even for short sequences."""
    if request.param == "blockwise":
        monkeypatch.setattr(blockwise_attention, "BLOCK_SIZE", 3)
        monkeypatch.setattr(attention, "MIN_BLOCKWISE_SCORES", 1)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches([*CASES, *NARROW]), ids=batch_name)
def test_values_match_jax(algorithm, cases):
    values_like(nn, jax.nn, cases, jax)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("cases", batches([*CASES, *NARROW]), ids=batch_name)
def test_gradients_match_jax(algorithm, cases):
    gradients_like(nn, jax.nn, cases, jax)


@pytest.mark.table(default=1)
@PARTS
def test_vmap_matches_a_loop(algorithm, part):
    vmap_like_loop(nn, CASES[::3][part])


@pytest.mark.table(default=1)
@pytest.mark.parametrize("which", ["first", "last"])
@PARTS
def test_sharded_inputs_match_one_device(algorithm, mesh, which, part):
    mesh_like_one_device(mesh, nn, [CASES[0], CASES[5], CASES[10], CASES[14]][part], which)


@pytest.mark.slow
def test_eager_calls_match_jax():
    eagerly_like(nn, jax.nn, [CASES[0], CASES[-1]])


@pytest.mark.table(default=1)
def test_second_derivatives_match_jax(algorithm):
    def norm(package, nn, q, k, v):
        def total(q):
            return (nn.dot_product_attention(q, k, v, is_causal=True) ** 2).sum()

        return package.jit(package.grad(lambda q: (package.grad(total)(q) ** 2).sum()))(q)

    arrays = CASES[0].args
    np.testing.assert_allclose(norm(sw, nn, *arrays), norm(jax, jax.nn, *arrays), rtol=1e-3, atol=1e-4)


def test_infinite_biases_match_jax(algorithm):
    bias = np.zeros((B, N, T, S), np.float32)
    bias[..., :4] = -np.inf  # all keys of the first block, and one of the second
    values_like(nn, jax.nn, [call(Q, KV, bias=bias)], jax)


def loss(q, k, v):
    return (nn.dot_product_attention(q, k, v, is_causal=True) ** 2).sum()


def local_program(function, types, specs):
    """Return the partitioned program of one of 8 devices, for arguments with these specs."""
    mesh = AbstractMesh((4, 2), ("data", "model"))
    program, _ = build(lambda *args: tree.leaves(function(*args)), types, "attention")
    pins = [pin_of(PartitionSpec(*spec), type.shape, mesh) for type, spec in zip(types, specs, strict=True)]
    return run_stages(program, mesh, pins, [None] * len(program.outputs)).local


FORWARD = [lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True)]
BOTH = [*FORWARD, sw.grad(loss, (0, 1, 2))]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("function", BOTH, ids=["forward", "backward"])
def test_sharded_batch_and_heads_need_no_communication(algorithm, function):
    types = [ArrayType(shape, np.float32) for shape in ((8, 6, 8, 3), (8, 9, 4, 3), (8, 9, 4, 3))]
    local = local_program(function, types, [("data", None, "model")] * 3)
    assert local.collectives() == []
    assert all(output.layout.dims[0] == ("data",) for output in local.outputs)


@pytest.mark.table(default=1)
@pytest.mark.parametrize("length", [16, 13])
def test_sharded_queries_need_no_communication(algorithm, length):
    types = [ArrayType(shape, np.float32) for shape in ((2, length, 4, 3), (2, 9, 4, 3), (2, 9, 4, 3))]
    local = local_program(FORWARD[0], types, [(None, ("data", "model")), (), ()])
    assert local.collectives() == []
    assert local.outputs[0].layout.dims[1] == ("data", "model")


@pytest.mark.parametrize("function", BOTH, ids=["forward", "backward"])
def test_long_sequences_do_not_materialize_the_score_matrix(function):
    """No value of the program, residuals included, is larger than the scores of one block."""
    rows, keys = 1024, 2048
    types = [ArrayType((1, length, 2, 8), np.float32) for length in (rows, keys, keys)]
    program, _ = build(lambda *args: tree.leaves(function(*args)), types, "attention")
    largest = max(value.type.size for equation in program.walk() for value in equation.outputs)
    assert largest == 2 * rows * blockwise_attention.BLOCK_SIZE


def test_the_weights_are_the_only_residual_of_the_size_of_the_scores():
    """Constants and masks of this size are broadcast, and XLA does not store them."""
    q, k, v = (floats(2, 16, 2, 4) for _ in range(3))
    _, pullback = sw.vjp(lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True), q, k, v)
    scores = [np.asarray(x) for x in tree.leaves(pullback) if x.size == 2 * 2 * 16 * 16 and x.dtype == np.float32]
    (weights,) = [x for x in scores if np.ptp(x)]
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_invalid_arguments_raise():
    q, k = floats(*Q), floats(*KV)
    with pytest.raises(NotImplementedError, match="cuDNN's kernel cannot be used: the platform is 'cpu'"):
        nn.dot_product_attention(q, k, k, implementation="cudnn")
    with pytest.raises(ValueError, match="implementation must be None, 'xla' or 'cudnn', not 'mine'"):
        nn.dot_product_attention(q, k, k, implementation="mine")
    with pytest.raises(ValueError, match="must be a multiple of that of key"):
        nn.dot_product_attention(q[:, :, :3], k, k)
    with pytest.raises(ValueError, match="value must have the type of key"):
        nn.dot_product_attention(q, k, k[:, :6])
    with pytest.raises(ValueError, match="mask must have dtype bool"):
        nn.dot_product_attention(q, k, k, mask=np.ones((T, S), np.float32))
    with pytest.raises(ValueError, match=r"bias must broadcast to \[B,N,T,S\]"):
        nn.dot_product_attention(q, k, k, floats(B, N, T, S + 1))
    with pytest.raises(ValueError, match="query_seq_lengths must be i32 of shape"):
        nn.dot_product_attention(q, k, k, query_seq_lengths=np.ones(B, np.float32))
    with pytest.raises(ValueError, match="must have the dtype, the batch dim and the last dim"):
        nn.dot_product_attention(q[:2], k, k)


def test_long_sequences_match_jax():
    """Sequences that are blockwise by their length, with more keys than one block and a last block with padding."""
    cases = [call((1, 1024, 2, 8), (1, 1100, 1, 8), is_causal=True)]
    values_like(nn, jax.nn, cases, jax)
    gradients_like(nn, jax.nn, cases, jax)
