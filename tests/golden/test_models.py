"""Golden plans of models other than the transformer: what an expert would write by hand, to the collective."""

import pytest

from tests.golden import models
from tests.golden.expected import (
    Move,
    assert_planned,
    gathered_and_scattered,
    in_layers,
    piece,
    reduced,
    weights,
)

forms = pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
optimizers = pytest.mark.parametrize("optimizer", ["sgd", "adam"])


@forms
@optimizers
def test_megatron_mlp(scanned, optimizer):
    """The first matrix is cut along its columns, the second along its rows: one sum over `model` a block, and one for
    the slope of what it takes, which the first block has no use for. Gradients are summed over `data`."""
    model = models.mlp(scanned)
    block = Move("all_reduce", ("model",), (64, 512))
    moves = [*in_layers(block, 4, scanned), *in_layers(block, 4, scanned, first=False), *reduced(model, "data")]
    assert_planned(model, model.planned(optimizer), moves)


@optimizers
@pytest.mark.parametrize("cut", [None, "data"], ids=["data-parallel", "fsdp"])
def test_accumulated_gradients_are_summed_once(cut, optimizer):
    """Inside the loop over microbatches nothing moves: weights are gathered before it, terms of the gradients are
    carried through it, and added up after it."""
    model = models.accumulated(cut)
    expected = reduced(model, "data") if cut is None else gathered_and_scattered(model, "data")
    assert_planned(model, model.planned(optimizer), expected)


@optimizers
def test_attention_over_a_cut_sequence(optimizer):
    """Keys and values are gathered, queries stay; backwards their slopes are scattered."""
    model = models.long_attention()
    moves = [
        *2 * [Move("all_gather", ("data",), (4, 8, 256, 32))],
        *2 * [Move("reduce_scatter", ("data",), (4, 8, 2048, 32))],
        *reduced(model, "data"),
    ]
    assert_planned(model, model.planned(optimizer), moves)


@optimizers
def test_cut_vocabulary(optimizer):
    """A device looks up the words that it has, and rows are summed over `model`; so is the slope of what the logits are
    made of. The logits stay cut: of each position only the maximum and the sum move, and what the target adds to the
    loss is added up with the loss. The gradient of the embedding is summed over `data` alone."""
    model = models.vocabulary()
    rows = Move("all_reduce", ("model",), (8, 32, 128))
    positions = Move("all_reduce", ("model",), (8, 32))
    gradients = [Move("all_reduce", ("data",), piece(leaf, model)) for leaf in weights(model)]
    loss = Move("all_reduce", ("data", "model"), ())
    assert_planned(model, model.planned(optimizer), [rows, rows, positions, positions, *gradients, loss])


@forms
@optimizers
def test_experts(scanned, optimizer):
    """Tokens travel to their expert and back, and slopes the same way: 4 exchanges a layer, but for the slope of what
    the first layer takes. Experts' gradients are where they are needed; only the router's is summed."""
    model = models.experts(scanned)
    there = Move("all_to_all", ("expert",), (8, 1, 16, 128))
    back = Move("all_to_all", ("expert",), (1, 8, 16, 128))
    router = Move("all_reduce", ("expert",), (128, 8))
    moves = [Move("all_reduce", ("expert",), ()), *in_layers(router, 2, scanned)]
    moves += 2 * in_layers(there, 2, scanned) + in_layers(back, 2, scanned)
    moves += in_layers(there, 2, scanned, first=False)  # back, where the slope has its experts after its groups
    assert_planned(model, model.planned(optimizer), moves)


@forms
@optimizers
def test_spatial_convolutions(scanned, optimizer):
    """A convolution needs a row of each neighbour, and so does its slope, which the first has no use for. Scanned, the
    backward loop asks for the rows again: a loop keeps what it was given, not what it was given with its neighbours'
    rows. Gradients of the kernels are summed."""
    model = models.convolutions(scanned)
    rows = Move("take_window", ("space",), (4, 16, 64, 16))
    moves = [*in_layers(rows, 3, scanned), *in_layers(rows, 3, scanned, first=False), *reduced(model, "space")]
    if scanned:
        moves += in_layers(rows, 3, scanned)
    assert_planned(model, model.planned(optimizer), moves, halo=2 * 4 * 64 * 16)


@forms
@optimizers
def test_pipeline(scanned, optimizer):
    """Each tick one message from stage to stage, and backwards one; weights and their gradients stay at their stage. In
    the first tick there is nothing to send on. What leaves the last stage is told to all, for the loss."""
    model = models.pipeline(scanned)
    ticks, tick = 16 + 8 - 1, Move("rotate", ("stage",), (1, 32, 128))
    if scanned:
        moves = [tick._replace(turns=ticks)] * 2 + [Move("all_reduce", ("stage",), (1, 32, 128), ticks)]
    else:
        moves = [tick] * 2 * (ticks - 1) + [Move("all_reduce", ("stage",), (16, 32, 128))]
    assert_planned(model, model.planned(optimizer), moves)
