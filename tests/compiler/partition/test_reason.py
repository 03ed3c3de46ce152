"""Reasons of inserted equations: their sentences, and which of them say that the compiler inserted an equation."""

import numpy as np
import pytest

import shardwise as sw
from shardwise.compiler.ir.program import Source, Value
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.partition.reason import (
    Exchange,
    Masking,
    OpSite,
    Repad,
    Reshard,
    UserCollective,
    is_inserted,
)
from shardwise.compiler.reduction import MAX, SUM
from shardwise.compiler.shardings.layout import Layout
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

X = Value(ArrayType((30, 16), np.float32))
ROWS, REPLICATED = Layout((("a",), ())), Layout(((), ()))
DOT = OpSite("dot", Source("train.py", 7, "f"))
LOOP_OUTPUT = OpSite("scan", Source("train.py", 9, "f", ("layers",)), is_output=True)
LOOP_RESULT = OpSite("scan", Source("train.py", 9, "f"), after_loop=True)
LARGE_OUTPUT = OpSite("scan", Source("train.py", 9, "f"), is_output=True, exceeds_memory=True)


def unreduced(*partial):
    return Layout(((), ()), partial)


REASONS = {
    "`x` has sharding P('a', None); dot at train.py:7 needs P(None, None)": Reshard(X, ROWS, REPLICATED, "`x`", DOT),
    "dot at train.py:7 has sharding P('a', None); an output of scan at train.py:9 in layers needs P(None, None); it is "
    "gathered again, because keeping the first copy would exceed the memory limit": Reshard(
        X, ROWS, REPLICATED, DOT, LOOP_OUTPUT, regathered=True
    ),
    "dot at train.py:7 leaves an unreduced sum over 'a', 'b'; output 0 needs it reduced": Reshard(
        X, unreduced(("a", SUM), ("b", SUM)), REPLICATED, DOT, "output 0"
    ),
    "dot at train.py:7 leaves an unreduced sum over 'a' and max over 'b'; output 0 needs it reduced": Reshard(
        X, unreduced(("a", SUM), ("b", MAX)), REPLICATED, DOT, "output 0"
    ),
    "dot at train.py:7 leaves an unreduced sum over 'a', which scan at train.py:9 keeps until its last iteration; "
    "output 0 needs it reduced": Reshard(X, unreduced(("a", SUM)), REPLICATED, LOOP_RESULT, "output 0", summed=(DOT,)),
    "dot at train.py:7 and 2 other ops leave an unreduced sum over 'a', which scan at train.py:9 keeps until its last "
    "iteration; output 0 needs it reduced": Reshard(
        X, unreduced(("a", SUM)), REPLICATED, LOOP_RESULT, "output 0", summed=(DOT, DOT, DOT)
    ),
    "dot at train.py:7 leaves an unreduced sum over 'a'; an output of scan at train.py:9 needs it reduced in every "
    "iteration, because keeping it unreduced would exceed the memory limit": Reshard(
        X, unreduced(("a", SUM)), ROWS, DOT, LARGE_OUTPUT
    ),
    "`x` has sharding P(None, None) + sum over 'a' + sum over 'b'; dot at train.py:7 needs "
    "P(None, None) + sum over 'a'": Reshard(X, unreduced(("a", SUM), ("b", SUM)), unreduced(("a", SUM)), "`x`", DOT),
    "`x` does not divide evenly: its shards have size 8 along dim 0; dot at train.py:7 needs size 10": Repad(
        X, ROWS, ROWS, "`x`", DOT, 0, 8, 10
    ),
    "dot needs data from other shards along 'a', 'b'": Exchange(DOT, ("a", "b")),
    "dot at train.py:7 reduces over the padding of dim 0, which is set to 0.0": Masking(DOT, 0, np.float32(0)),
    "written by hand, along 'i', 'j'": UserCollective(("i", "j")),
}


@pytest.mark.parametrize("sentence", REASONS)
def test_sentence(sentence):
    assert str(REASONS[sentence]) == sentence


def test_user_collectives_are_not_inserted():
    assert [is_inserted(reason) for reason in REASONS.values()] == [True] * 11 + [False]
    assert not is_inserted(None)


def test_the_reason_names_the_pending_reduction(mesh):
    x = sw.ShapeDtypeStruct((8, 6), np.float32, sharding=NamedSharding(mesh, P("data")))
    (row,) = sw.jit(lambda x: x.max(0)).lower(x).plan.collectives
    assert row.reason == f"reduce_max at {row.source} leaves an unreduced max over 'data'; `output` needs it reduced"
