"""Golden plans: the collectives of several models are those that an expert would write by hand."""

import pytest

from tests.golden import models
from tests.golden.expected import (
    ExpectedCollective,
    all_reduced_gradients,
    assert_planned,
    fsdp_collectives,
    parameters,
    per_layer,
    shard_shape,
)

both_forms = pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
optimizers = pytest.mark.parametrize("optimizer", ["sgd", "adam"])


@both_forms
@optimizers
def test_megatron_mlp(scanned, optimizer):
    """The first matrix is sharded along columns, the second along rows: one all-reduce over `model` per block, and one
    for the cotangent of its input, which the first block does not need. Gradients are all-reduced over `data`."""
    model = models.mlp(scanned)
    block = ExpectedCollective("all_reduce", ("model",), (64, 512))
    expected = [
        *per_layer(block, 4, scanned),
        *per_layer(block, 4, scanned, first=False),
        *all_reduced_gradients(model, "data"),
    ]
    assert_planned(model, model.plan(optimizer), expected)


@optimizers
@pytest.mark.parametrize("axis", [None, "data"], ids=["data-parallel", "fsdp"])
def test_accumulated_gradients_are_all_reduced_once(axis, optimizer):
    """The loop over microbatches has no collectives: weights are gathered before it, partial gradients are carried
    through it, and reduced after it."""
    model = models.accumulated_gradients(axis)
    expected = all_reduced_gradients(model, "data") if axis is None else fsdp_collectives(model, "data")
    assert_planned(model, model.plan(optimizer), expected)


@optimizers
@pytest.mark.parametrize("kind", ["data-parallel", "fsdp", "fsdp-tensor"])
def test_gradients_of_scanned_layers_are_reduced_after_the_loop_over_microbatches(kind, optimizer):
    """Gradients stay unreduced in both loops: the backward loop stacks them, the loop over microbatches adds up the
    stacks, and they are reduced once. Weights are gathered before both loops."""
    rows = None if kind == "data-parallel" else "data"
    tensor = "model" if kind == "fsdp-tensor" else None
    model = models.microbatches({"data": 4, "model": 2} if tensor else {"data": 8}, rows, tensor)
    if rows is None:
        expected = list(all_reduced_gradients(model, "data"))
    else:
        expected = [ExpectedCollective("all_reduce", ("data",), ())]
        for leaf in parameters(model):
            expected.append(ExpectedCollective("all_gather", ("data",), shard_shape(leaf, model)))
            expected.append(ExpectedCollective("reduce_scatter", ("data",), shard_shape(leaf, model, "data")))
    if tensor:  # the result of a block, and the cotangent of its input
        expected += [ExpectedCollective("all_reduce", ("model",), (64, 64), 5 * 3)] * 2
    assert_planned(model, model.plan(optimizer), expected)


@optimizers
def test_attention_over_a_sharded_sequence(optimizer):
    """Keys and values are all-gathered, queries stay sharded; in the backward pass their cotangents are
    reduce-scattered."""
    model = models.long_attention()
    expected = [
        *2 * [ExpectedCollective("all_gather", ("data",), (4, 8, 256, 32))],
        *2 * [ExpectedCollective("reduce_scatter", ("data",), (4, 8, 2048, 32))],
        *all_reduced_gradients(model, "data"),
    ]
    assert_planned(model, model.plan(optimizer), expected)


@optimizers
def test_sharded_vocabulary(optimizer):
    """A device looks up the words that it has, and the rows are all-reduced over `model`, as is the cotangent of the
    input of the logits. The logits stay sharded: only the maximum and the sum of each position are reduced, and the
    logit of the target is reduced with the loss. The gradient of the embedding is all-reduced over `data` only."""
    model = models.vocabulary()
    rows = ExpectedCollective("all_reduce", ("model",), (8, 32, 128))
    positions = ExpectedCollective("all_reduce", ("model",), (8, 32))
    gradients = [ExpectedCollective("all_reduce", ("data",), shard_shape(leaf, model)) for leaf in parameters(model)]
    loss = ExpectedCollective("all_reduce", ("data", "model"), ())
    assert_planned(model, model.plan(optimizer), [rows, rows, positions, positions, *gradients, loss])


@both_forms
@optimizers
def test_experts(scanned, optimizer):
    """Tokens are sent to their expert and back, and so are cotangents: 4 all-to-alls per layer, except for the
    cotangent of the input of the first layer. Gradients of experts are local; only that of the router is
    all-reduced, after the loop if layers are scanned."""
    model = models.experts(scanned)
    dispatch = ExpectedCollective("all_to_all", ("expert",), (8, 1, 16, 128))
    combine = ExpectedCollective("all_to_all", ("expert",), (1, 8, 16, 128))
    expected = [ExpectedCollective("all_reduce", ("expert",), ())]
    expected += [
        ExpectedCollective("all_reduce", ("expert",), leaf.shape)
        for leaf in parameters(model)
        if "expert" not in leaf.spec
    ]
    expected += 2 * per_layer(dispatch, 2, scanned) + per_layer(combine, 2, scanned)
    expected += per_layer(
        dispatch, 2, scanned, first=False
    )  # the way back; the cotangent has the dims in the other order
    assert_planned(model, model.plan(optimizer), expected)


@both_forms
@optimizers
def test_spatial_convolutions(scanned, optimizer):
    """A convolution needs one row of each neighbour, and so does its cotangent, except in the first layer. Scanned, the
    backward loop exchanges the rows again: the residual of the loop is the input without the halo. Gradients of the
    kernels are all-reduced."""
    model = models.convolutions(scanned)
    rows = ExpectedCollective("take_window", ("space",), (4, 16, 64, 16))
    expected = [
        *per_layer(rows, 3, scanned),
        *per_layer(rows, 3, scanned, first=False),
        *all_reduced_gradients(model, "space"),
    ]
    if scanned:
        expected += per_layer(rows, 3, scanned)
    assert_planned(model, model.plan(optimizer), expected, halo=2 * 4 * 64 * 16)


@pytest.mark.table(default=2)
@both_forms
@optimizers
def test_pipeline(scanned, optimizer):
    """One message per tick from stage to stage, and one in the backward pass; weights and their gradients stay local.
    The first tick sends nothing. The outputs of the last stage are all-reduced for the loss, all at once."""
    model = models.pipeline(scanned)
    ticks, tick = 16 + 8 - 1, ExpectedCollective("rotate", ("stage",), (1, 32, 128))
    expected = [tick._replace(times=ticks)] * 2 if scanned else [tick] * 2 * (ticks - 1)
    expected += [ExpectedCollective("all_reduce", ("stage",), (16, 32, 128))]
    assert_planned(model, model.plan(optimizer), expected)
