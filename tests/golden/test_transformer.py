"""Golden plans of a transformer language model: its collectives are those that an expert would write by hand.

The bytes are at most those of the optimal plans, which an exact search finds.
"""

from dataclasses import replace
from functools import lru_cache

import pytest

import shardwise as jax
from tests.golden.expected import (
    ExpectedCollective,
    all_reduced_gradients,
    assert_planned,
    fsdp_collectives,
    per_layer,
    planned_collectives,
)
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
TWO_LAYERS = replace(SIZES, layers=2)

both_forms = pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
# Adam adds no collectives, which scanned layers show: with unrolled ones it is a second check.
forms_and_optimizers = pytest.mark.parametrize(
    ("scanned", "optimizer"),
    [(False, "sgd"), (True, "sgd"), (True, "adam"), pytest.param(False, "adam", marks=pytest.mark.slow)],
    ids=["unrolled-sgd", "scanned-sgd", "scanned-adam", "unrolled-adam"],
)


def planned(parallelism, scanned, optimizer="sgd", sizes=SIZES):
    return _planned(parallelism, scanned, optimizer, sizes)


@lru_cache  # whose keys tell defaults from arguments of the same value
def _planned(parallelism, scanned, optimizer, sizes):
    return transformer(parallelism, scanned, sizes).plan(optimizer)


def sizes_for(optimizer):
    """Adam adds no collectives, for which two layers are enough."""
    return SIZES if optimizer == "sgd" else TWO_LAYERS


def activations(rows: int) -> tuple[int, ...]:
    return (rows, SIZES.length, SIZES.width)


def tensor_parallel(rows: int, layers: int, scanned: bool) -> list[ExpectedCollective]:
    """Heads and hidden features are sharded: the result of a block is all-reduced in the forward pass, the cotangent of
    its input in the backward pass. A layer has two blocks."""
    return 4 * per_layer(ExpectedCollective("all_reduce", ("model",), activations(rows)), layers, scanned)


@forms_and_optimizers
def test_data_parallel(scanned, optimizer):
    """Each gradient is all-reduced once, also that of the embedding: its two parts are added before."""
    sizes = sizes_for(optimizer)
    model = transformer(DATA, scanned, sizes)
    assert_planned(model, planned(DATA, scanned, optimizer, sizes), all_reduced_gradients(model, "data"))


@forms_and_optimizers
def test_fsdp(scanned, optimizer):
    """Weights are all-gathered, activations never, and gradients are reduce-scattered. Unrolled, this sends 23.9 MB;
    JAX without constraints sends 465 MB."""
    sizes = sizes_for(optimizer)
    model = transformer(FSDP, scanned, sizes)
    assert_planned(model, planned(FSDP, scanned, optimizer, sizes), fsdp_collectives(model, "data"))


@forms_and_optimizers
def test_tensor_parallel(scanned, optimizer):
    """Only activations are all-reduced; replicated values are computed on every device."""
    sizes = sizes_for(optimizer)
    expected = tensor_parallel(32, sizes.layers, scanned)
    assert_planned(transformer(TENSOR, scanned, sizes), planned(TENSOR, scanned, optimizer, sizes), expected)


@forms_and_optimizers
def test_data_and_tensor_parallel(scanned, optimizer):
    """Gradients are all-reduced over `data`, activations of a quarter of the batch over `model`."""
    sizes = sizes_for(optimizer)
    model = transformer(DATA_TENSOR, scanned, sizes)
    expected = [*tensor_parallel(8, sizes.layers, scanned), *all_reduced_gradients(model, "data")]
    assert_planned(model, planned(DATA_TENSOR, scanned, optimizer, sizes), expected)


@forms_and_optimizers
def test_fsdp_and_tensor_parallel(scanned, optimizer):
    """Weights are all-gathered along `data`, and stay sharded along `model`."""
    sizes = sizes_for(optimizer)
    model = transformer(FSDP_TENSOR, scanned, sizes)
    expected = [*tensor_parallel(8, sizes.layers, scanned), *fsdp_collectives(model, "data")]
    assert_planned(model, planned(FSDP_TENSOR, scanned, optimizer, sizes), expected)


@forms_and_optimizers
def test_sequence_parallel(scanned, optimizer):
    """Between blocks positions are sharded along `model`, as in Megatron: all-gathered before a block and
    reduce-scattered after it, and conversely in the backward pass. The bytes are those of the all-reduces of tensor
    parallelism."""
    sizes = replace(sizes_for(optimizer), batch=16)
    model = transformer(SEQUENCE, scanned, sizes)
    gather = ExpectedCollective("all_gather", ("model",), (4, SIZES.length // 2, SIZES.width))
    scatter = ExpectedCollective("reduce_scatter", ("model",), (4, SIZES.length, SIZES.width))
    expected = [
        collective
        for collective_of_layer in 4 * [gather, scatter]
        for collective in per_layer(collective_of_layer, sizes.layers, scanned)
    ]
    # Positions are sharded along `model`: gradients of replicated parameters are all-reduced over both axes.
    for collective in all_reduced_gradients(model, "data"):
        unsharded = [(), (SIZES.width,), (sizes.layers, SIZES.width), (SIZES.words, SIZES.width)]
        is_sharded = collective.shape not in unsharded
        expected.append(collective if is_sharded else collective._replace(axes=("data", "model")))
    assert_planned(model, planned(SEQUENCE, scanned, optimizer, sizes), expected)


@both_forms
def test_sequence_parallel_with_more_activations_than_weights(scanned):
    """There are cheaper plans than Megatron's: weights are all-gathered, and an all-to-all reshards heads to
    positions."""
    model = transformer(SEQUENCE, scanned, TWO_LAYERS)
    megatron = (
        8
        * TWO_LAYERS.layers
        * ExpectedCollective("all_gather", ("model",), (8, SIZES.length // 2, SIZES.width)).wire_bytes(model.axes)
    )
    actual = planned_collectives(planned(SEQUENCE, scanned, "sgd", TWO_LAYERS))
    assert (
        sum(n * collective.wire_bytes(model.axes) for collective, n in actual.items() if collective.axes == ("model",))
        < megatron
    )


PARALLELISMS = {"fsdp": FSDP, "tensor": TENSOR, "fsdp-tensor": FSDP_TENSOR}


@pytest.mark.parametrize("name", PARALLELISMS)
def test_each_layer_adds_the_same_collectives(name):
    sizes = [TWO_LAYERS, replace(SIZES, layers=3), SIZES]
    of_two, of_three, of_four = (
        planned_collectives(planned(PARALLELISMS[name], False, "sgd", collective_of_layer))
        for collective_of_layer in sizes
    )
    assert of_three - of_two == of_four - of_three
    assert not of_two - of_three


def test_the_number_of_devices_does_not_change_the_collectives():
    """On 4,096 abstract devices, the collectives are those on 8, with smaller shards."""
    sizes = replace(TWO_LAYERS, batch=4096)
    few = planned(DATA_TENSOR, False, "sgd", sizes)
    many = transformer(replace(DATA_TENSOR, axes={"data": 512, "model": 8}), False, sizes).plan()
    assert many.counts() == few.counts()
    assert many.mesh.size == 4096


@pytest.mark.parametrize(
    ("parallelism", "scanned", "megabytes"),
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
def test_bytes_are_at_most_those_of_the_optimal_plan(parallelism, scanned, megabytes):
    assert planned(parallelism, scanned).wire_bytes <= megabytes * 1e6 * 1.001


class TestMemoryLimit:
    """Gathered weights are residuals of the backward pass if they fit into memory, and are gathered again if not."""

    def within(self, limit):
        with jax.config.override("memory_limit", limit):
            return transformer(FSDP, False).plan()

    def test_weights_that_do_not_fit_are_gathered_again(self):
        free = planned(FSDP, False)
        tight = self.within(free.peak_bytes - 9_000_000)
        assert tight.peak_bytes <= free.peak_bytes - 9_000_000
        assert free.wire_bytes < tight.wire_bytes <= 36e6
        assert {kind: tight.counts()[kind] - free.counts()[kind] for kind in ("reduce_scatter", "all_reduce")} == {
            "reduce_scatter": 0,
            "all_reduce": 0,
        }
        assert any("gathered again" in row.reason for row in tight.collectives)

    def test_no_more_weights_than_necessary_are_gathered_again(self):
        free = planned(FSDP, False)
        halfway = self.within(free.peak_bytes - 3_000_000)
        assert halfway.peak_bytes <= free.peak_bytes - 3_000_000
        assert halfway.wire_bytes < 28e6

    def test_a_large_limit_changes_nothing(self):
        free = planned(FSDP, False)  # no limit: CPU devices have no memory limit
        assert planned_collectives(self.within(free.peak_bytes)) == planned_collectives(free)
