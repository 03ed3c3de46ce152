"""Golden plans of a transformer language model: what an expert would write by hand, to the collective.

The bytes are those that `design/choice.md` has in its column of exact elimination, or fewer.
"""

from dataclasses import replace
from functools import lru_cache

import pytest

import shardwise as jax
from tests.golden.expected import Move, assert_planned, gathered_and_scattered, in_layers, planned_moves, reduced
from tests.golden.models import (
    DATA,
    DATA_TENSOR,
    FSDP,
    FSDP_TENSOR,
    LANGUAGE_MODEL,
    SEQUENCE,
    TENSOR,
    transformer,
)

SIZES = LANGUAGE_MODEL
TWO = replace(SIZES, layers=2)

forms = pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
optimizers = pytest.mark.parametrize("optimizer", ["sgd", "adam"])


@lru_cache
def planned(layout, scanned, optimizer="sgd", sizes=SIZES):
    return transformer(layout, scanned, sizes).planned(optimizer)


def sizes_for(optimizer):
    """Adam adds nothing that moves: two layers show it."""
    return SIZES if optimizer == "sgd" else TWO


def activations(rows: int) -> tuple[int, ...]:
    return (rows, SIZES.length, SIZES.width)


def tensor_parallel(rows: int, layers: int, scanned: bool) -> list[Move]:
    """Heads and hidden features are cut: a block's result is summed in the forward pass, the slope of what it takes in
    the backward pass; a layer has two blocks."""
    return 4 * in_layers(Move("all_reduce", ("model",), activations(rows)), layers, scanned)


@forms
@optimizers
def test_data_parallel(scanned, optimizer):
    """Each gradient is summed once: also that of the embedding, which has two parts that are added before."""
    sizes = sizes_for(optimizer)
    model = transformer(DATA, scanned, sizes)
    assert_planned(model, planned(DATA, scanned, optimizer, sizes), reduced(model, "data"))


@forms
@optimizers
def test_fsdp(scanned, optimizer):
    """Weights are gathered, never activations, and gradients arrive scattered. Unrolled, this sends 23.9 MB; where JAX
    has no constraints inside to go by, it sends 465."""
    sizes = sizes_for(optimizer)
    model = transformer(FSDP, scanned, sizes)
    assert_planned(model, planned(FSDP, scanned, optimizer, sizes), gathered_and_scattered(model, "data"))


@forms
@optimizers
def test_tensor_parallel(scanned, optimizer):
    """Only activations move; what is not cut is computed everywhere, and needs no sum."""
    sizes = sizes_for(optimizer)
    moves = tensor_parallel(32, sizes.layers, scanned)
    assert_planned(transformer(TENSOR, scanned, sizes), planned(TENSOR, scanned, optimizer, sizes), moves)


@forms
@optimizers
def test_data_and_tensor_parallel(scanned, optimizer):
    """Both of the above: gradients over `data`, activations of a quarter of the batch over `model`."""
    sizes = sizes_for(optimizer)
    model = transformer(DATA_TENSOR, scanned, sizes)
    moves = [*tensor_parallel(8, sizes.layers, scanned), *reduced(model, "data")]
    assert_planned(model, planned(DATA_TENSOR, scanned, optimizer, sizes), moves)


@forms
@optimizers
def test_fsdp_and_tensor_parallel(scanned, optimizer):
    """Pieces of weights are gathered along `data`, and stay cut along `model`."""
    sizes = sizes_for(optimizer)
    model = transformer(FSDP_TENSOR, scanned, sizes)
    moves = [*tensor_parallel(8, sizes.layers, scanned), *gathered_and_scattered(model, "data")]
    assert_planned(model, planned(FSDP_TENSOR, scanned, optimizer, sizes), moves)


@forms
@optimizers
def test_sequence_parallel(scanned, optimizer):
    """Between blocks positions are cut along `model`, as Megatron has it: gathered before a block and its sum scattered
    after it, and backwards the other way round. That sends what the sums of tensor parallelism send."""
    sizes = replace(sizes_for(optimizer), batch=16)
    model = transformer(SEQUENCE, scanned, sizes)
    gather = Move("all_gather", ("model",), (4, SIZES.length // 2, SIZES.width))
    scatter = Move("reduce_scatter", ("model",), (4, SIZES.length, SIZES.width))
    moves = [move for each in 4 * [gather, scatter] for move in in_layers(each, sizes.layers, scanned)]
    # Positions are rows too: what is not cut along `model` has its gradient summed over both axes.
    for move in reduced(model, "data"):
        cut = move.shape and move.shape not in [(SIZES.width,), (SIZES.words, SIZES.width)]
        moves.append(move if cut else move._replace(axes=("data", "model")))
    assert_planned(model, planned(SEQUENCE, scanned, optimizer, sizes), moves)


@forms
def test_sequence_parallel_with_more_activations_than_weights(scanned):
    """Then cheaper ways are found than Megatron's: weights are gathered instead, and heads exchanged for positions."""
    model = transformer(SEQUENCE, scanned, TWO)
    megatron = 8 * TWO.layers * Move("all_gather", ("model",), (8, SIZES.length // 2, SIZES.width)).sent(model.axes)
    found = planned_moves(planned(SEQUENCE, scanned, "sgd", TWO))
    assert sum(n * move.sent(model.axes) for move, n in found.items() if move.axes == ("model",)) < megatron


LAYOUTS = {"fsdp": FSDP, "tensor": TENSOR, "fsdp-tensor": FSDP_TENSOR}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_further_layer_does_not_change_the_plan_of_the_others(name):
    """Each layer adds the same collectives."""
    sizes = [TWO, replace(SIZES, layers=3), SIZES]
    two, three, four = (planned_moves(planned(LAYOUTS[name], False, "sgd", each)) for each in sizes)
    assert three - two == four - three
    assert not two - three


def test_more_devices_do_the_same():
    """4,096 devices on a mesh that nobody has: the collectives of 8, on smaller pieces."""
    sizes = replace(TWO, batch=4096)
    few = planned(DATA_TENSOR, False, "sgd", sizes)
    many = transformer(replace(DATA_TENSOR, axes={"data": 512, "model": 8}), False, sizes).planned()
    assert many.counts() == few.counts()
    assert many.mesh.size == 4096


@pytest.mark.parametrize(
    ("layout", "scanned", "most"),
    [
        (DATA, False, 23.87),
        (FSDP, False, 23.87),
        (TENSOR, False, 119.3),
        (DATA_TENSOR, False, 28.07),
        (FSDP_TENSOR, False, 28.07),
        (FSDP, True, 34.9),
    ],
    ids=["data", "fsdp", "tensor", "data-tensor", "fsdp-tensor", "fsdp-scanned"],
)
def test_bytes_are_those_of_exact_elimination(layout, scanned, most):
    assert planned(layout, scanned).wire_bytes <= most * 1e6 * 1.001


class TestMemoryLimit:
    """Weights are kept from the forward to the backward pass while there is room, and gathered again where not."""

    def within(self, limit):
        with jax.config.override("memory_limit", limit):
            return transformer(FSDP, False).planned()

    def test_what_does_not_fit_is_gathered_again(self):
        free = planned(FSDP, False)
        tight = self.within(free.peak_bytes - 12_000_000)
        assert tight.peak_bytes <= free.peak_bytes - 12_000_000
        assert free.wire_bytes < tight.wire_bytes <= 36e6
        assert {kind: tight.counts()[kind] - free.counts()[kind] for kind in ("reduce_scatter", "all_reduce")} == {
            "reduce_scatter": 0,
            "all_reduce": 0,
        }
        assert any("gathered again" in row.reason for row in tight.collectives)

    def test_no_more_than_has_to_be(self):
        free = planned(FSDP, False)
        halfway = self.within(free.peak_bytes - 3_000_000)
        assert halfway.peak_bytes <= free.peak_bytes - 3_000_000
        assert halfway.wire_bytes < 28e6

    def test_nothing_changes_where_there_is_room(self):
        free = planned(FSDP, False)  # without a limit: CPU devices have no memory of their own
        assert planned_moves(self.within(free.peak_bytes)) == planned_moves(free)
