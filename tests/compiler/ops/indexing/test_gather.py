"""Lookups on a mesh: collectives, gradients, and the sign of zeros."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.partition.evaluate_shards import evaluate_shards
from shardwise.compiler.shardings.spec import PartitionSpec as P
from shardwise.compiler.shardings.spec import pin_of
from tests.compiler.ops.indexing.compiled import F32, I32, MESH, assert_like_one_device, collectives, compile_on_mesh


@pytest.mark.parametrize("words", [48, 50], ids=["even", "uneven"])
def test_lookup_in_an_embedding_sharded_along_the_vocabulary_needs_one_all_reduce(words):
    table, tokens = ((words, 16), F32, P("model", None)), ((8, 6), I32, P("data", None))
    program, stages = compile_on_mesh(lambda table, tokens: table[tokens], table, tokens)
    assert collectives(stages) == [("all_reduce", (2, 6, 16))]
    rng = np.random.default_rng(0)
    args = rng.standard_normal((words, 16)).astype(F32), rng.integers(-99, 99, (8, 6)).astype(I32)
    assert_like_one_device(program, stages, *args)
    program, stages = compile_on_mesh(lambda table, tokens: jnp.take(table, tokens, axis=0), table, tokens)
    assert collectives(stages) == [("all_reduce", (2, 6, 16))]  # the fill value is a term of the sum too
    assert_like_one_device(program, stages, *args)


@pytest.mark.parametrize("spec", [P("data", None), P(None, "model"), P()], ids=str)
@pytest.mark.parametrize("words", [48, 50], ids=["even", "uneven"])
def test_gradient_of_an_embedding(words, spec):
    """XLA's partitioned scatter-add returned wrong gradients (xla#42481)."""

    def step(table, tokens):
        return table - 0.5 * sw.grad(lambda table: (table[tokens] * jnp.arange(16.0)).sum())(table)

    program, stages = compile_on_mesh(step, ((words, 16), F32, spec), ((8, 6), I32, P("data", None)))
    assert stages.local.outputs[0].layout.dims == pin_of(spec, (words, 16), MESH).layout.dims
    rng = np.random.default_rng(0)
    args = rng.integers(-8, 8, (words, 16)).astype(F32), rng.integers(-99, 99, (8, 6)).astype(I32)
    assert_like_one_device(program, stages, *args)


def test_lookup_of_target_logits_needs_one_all_reduce():
    """Both the batch and the classes are sharded."""
    program, stages = compile_on_mesh(
        lambda x, i: jnp.take_along_axis(x, i[:, None], 1), ((16, 50), F32, P("data", "model")), ((16,), I32, P("data"))
    )
    assert collectives(stages) == [("all_reduce", (4, 1))]
    x = np.arange(800, dtype=F32).reshape(16, 50)
    assert_like_one_device(program, stages, x, np.arange(-8, 8, dtype=I32) * 7)


def test_minus_zero_survives_a_lookup():
    _, stages = compile_on_mesh(lambda x, i: x[i], ((8,), F32, P("data")), ((3,), I32, P()))
    (found,) = evaluate_shards(stages.local, [np.full(8, -0.0, F32), np.array([1, 7, 4], I32)])
    assert np.signbit(found).all()
