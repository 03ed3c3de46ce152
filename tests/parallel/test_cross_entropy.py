"""Cross entropy without all logits equals -log_softmax, in value and gradient, and its plan has no large array."""

import math
import re

import jax
import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import P, parallel
from shardwise.errors import StrategyError
from shardwise.sharding import NamedSharding

BATCH, LENGTH, FEATURES, VOCABULARY = 8, 6, 16, 40


def operands(dtype=np.float32):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(BATCH, LENGTH, FEATURES)).astype(dtype)
    table = rng.normal(size=(VOCABULARY, FEATURES)).astype(dtype)
    return hidden, table, rng.integers(0, VOCABULARY, (BATCH, LENGTH)).astype(np.int32)


def oracle(hidden, table, labels):
    """The losses by JAX, from all logits."""
    scores = jax.nn.log_softmax(jax.numpy.asarray(hidden) @ jax.numpy.asarray(table).T)
    return -jax.numpy.take_along_axis(scores, jax.numpy.asarray(labels)[..., None], -1)[..., 0]


def weighted(losses):
    """A sum of losses in which each token has another weight."""
    return (losses * np.linspace(0.5, 2, losses.size, dtype=np.float32).reshape(losses.shape)).sum()


@pytest.fixture(scope="module")
def expected():
    """The weighted loss, and its gradients with respect to the hidden state and the table."""
    hidden, table, labels = operands()
    return jax.jit(jax.value_and_grad(lambda h, t: weighted(oracle(h, t, labels)), (0, 1)))(hidden, table)


def assert_equal(results, expected):
    for result, value in zip(sw.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, value, rtol=2e-5, atol=1e-5)


def largest_array(text):
    """The number of elements of the largest array in the text of a lowered program."""
    shapes = re.findall(r"tensor<((?:\d+x)+)[a-z]", text)
    return max(math.prod(int(size) for size in shape.split("x") if size) for shape in shapes)


@pytest.mark.parametrize("block", [8192, 10, 16, 7], ids=["one block", "equal blocks", "smaller last", "odd"])
def test_equals_log_softmax_in_value_and_gradient(block, expected):
    hidden, table, labels = operands()

    @sw.jit
    @sw.value_and_grad
    def loss(operands):
        return weighted(parallel.cross_entropy(*operands, labels, block=block))

    value, gradients = loss((hidden, table))
    assert_equal((value, *gradients), expected)


def test_head_has_the_vocabulary_along_its_second_dim(expected):
    hidden, table, labels = operands()

    @sw.jit
    @sw.value_and_grad
    def loss(operands):
        return weighted(parallel.cross_entropy(*operands, labels, vocabulary_dim=1, block=16))

    value, (of_hidden, of_head) = loss((hidden, table.T))
    assert_equal((value, of_hidden, of_head.T), expected)


def test_losses_of_tokens_that_do_not_count_are_zero_and_have_no_gradient():
    hidden, table, labels = operands()
    counted = np.arange(LENGTH) < np.arange(BATCH)[:, None]
    padded = np.where(counted, labels, -100)

    def loss(hidden):
        return parallel.cross_entropy(hidden, table, padded, where=counted, block=16)

    np.testing.assert_allclose(loss(hidden), np.where(counted, oracle(hidden, table, labels), 0), rtol=2e-5, atol=1e-5)
    gradient = sw.grad(lambda hidden: loss(hidden).sum())(hidden)
    assert not np.any(np.asarray(gradient)[~counted]) and np.all(np.any(np.asarray(gradient)[counted], -1))


def test_z_loss_adds_the_square_of_the_log_sum_exp():
    hidden, table, labels = operands()

    def total(hidden):
        logits = jax.numpy.asarray(hidden) @ table.T
        return (oracle(hidden, table, labels) + 0.01 * jax.nn.logsumexp(logits, -1) ** 2).sum()

    def ours(hidden):
        return parallel.cross_entropy(hidden, table, labels, z_loss=0.01, block=16).sum()

    assert_equal(sw.value_and_grad(ours)(hidden), jax.value_and_grad(total)(hidden))


def test_label_outside_of_the_vocabulary_makes_its_loss_nan():
    hidden, table, labels = operands()
    labels[0, :2] = -1, VOCABULARY
    losses = np.asarray(parallel.cross_entropy(hidden, table, labels, block=16))
    assert np.isnan(losses[0, :2]).all() and np.isfinite(losses).sum() == losses.size - 2


def test_small_integers_as_labels():
    hidden, table, labels = operands()
    tall = np.concatenate([table] * 20)  # has more rows than int8 has numbers
    losses = parallel.cross_entropy(hidden, tall, labels.astype(np.int8), block=512)
    np.testing.assert_allclose(losses, oracle(hidden, tall, labels), rtol=2e-5)


def test_low_precision_operands_accumulate_in_float32():
    hidden, table, labels = operands(jnp.bfloat16)
    losses = parallel.cross_entropy(hidden, table, labels, block=16)
    assert losses.dtype == np.float32
    np.testing.assert_allclose(losses, oracle(hidden.astype(np.float32), table.astype(np.float32), labels), rtol=1e-5)
    gradients = sw.grad(lambda ops: parallel.cross_entropy(*ops, labels, block=16).sum())((hidden, table))
    assert [gradient.dtype for gradient in gradients] == [jnp.bfloat16] * 2


def test_vmap_equals_a_loop():
    hidden, table, labels = operands()
    tables = np.stack([table, 2 * table])
    mapped = sw.vmap(lambda table: parallel.cross_entropy(hidden, table, labels, block=16))(tables)
    for losses, table in zip(mapped, tables, strict=True):
        np.testing.assert_allclose(losses, oracle(hidden, table, labels), rtol=2e-5, atol=1e-5)


def sharded_step(mesh, block=10):
    """The loss and gradients of a batch that is sharded over data, with the vocabulary sharded over model."""
    hidden, table, labels = operands()
    rows, columns = NamedSharding(mesh, P("data")), NamedSharding(mesh, P("model"))
    args = sw.device_put((hidden, table, labels), (rows, columns, rows))

    @sw.jit
    def step(hidden, table, labels):
        def loss(hidden, table):
            return weighted(parallel.cross_entropy(hidden, table, labels, axis="model", block=block, mesh=mesh))

        return sw.value_and_grad(loss, (0, 1))(hidden, table)

    return step, args


def test_sharded_vocabulary_under_jit(mesh, expected):
    step, args = sharded_step(mesh)
    value, gradients = step(*args)
    assert_equal((value, *gradients), expected)
    assert [gradient.sharding.spec for gradient in gradients] == [P("data"), P("model")]


def test_devices_exchange_two_numbers_per_token_and_the_gradients(mesh):
    step, args = sharded_step(mesh)
    plan = step.lower(*args).plan
    tokens = BATCH * LENGTH // 4  # per device
    along_model = sorted(c.type for c in plan.collectives if c.axes == ("model",))
    # The maximum, the two sums, and in the backward pass the gradient of the hidden state.
    assert along_model == ["f32[2,2,6]", "f32[2,6,16]", "f32[2,6]"]
    along_data = sorted(c.type for c in plan.collectives if c.axes == ("data",))
    assert along_data == ["f32[2,10,16]", "f32[]"]  # the gradient of the table's two blocks, and the loss
    assert {c.kind for c in plan.collectives} == {"all_reduce"}
    sent = sum(c.sent for c in plan.collectives if c.axes == ("model",))
    assert sent == (1 + 2 + FEATURES) * tokens * 4  # 2·(n−1)/n = 1 for two devices


def test_forward_pass_reduces_only_arrays_of_the_size_of_the_tokens(mesh):
    hidden, table, labels = operands()
    table = sw.device_put(table, NamedSharding(mesh, P("model")))
    loss = sw.jit(lambda table: parallel.cross_entropy(hidden, table, labels, axis="model", block=10, mesh=mesh))
    plan = loss.lower(table).plan
    assert sorted(c.type for c in plan.collectives) == ["f32[2,8,6]", "f32[8,6]"]


def test_no_array_holds_all_logits(mesh):
    step, args = sharded_step(mesh, block=4)
    per_device = BATCH * LENGTH // 4 * VOCABULARY // 2
    table_shard = VOCABULARY // 2 * FEATURES
    assert largest_array(step.lower(*args).as_text()) == table_shard > per_device
    hidden, table, labels = (np.concatenate([x] * 4) for x in operands())  # with more tokens than features
    logits = labels.size * table.shape[0]

    def loss(hidden, table):
        return parallel.cross_entropy(hidden, table, labels, block=20).sum()

    text = sw.jit(sw.grad(loss, (0, 1))).lower(hidden, table).as_text()
    assert largest_array(text) == labels.size * 20 == logits / 8


def test_inside_a_users_shard_map(mesh, expected):
    hidden, table, labels = operands()

    def loss(hidden, table, labels, weights):
        losses = parallel.cross_entropy(hidden, table, labels, axis="model", block=10)
        return sw.lax.psum((losses * weights).sum(), "data")

    weights = np.linspace(0.5, 2, labels.size, dtype=np.float32).reshape(labels.shape)
    specs = P("data"), P("model"), P("data"), P("data")
    for check_vma in (True, False):
        mapped = sw.shard_map(loss, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=check_vma)
        value, gradients = sw.jit(sw.value_and_grad(mapped, (0, 1)))(hidden, table, labels, weights)
        assert_equal((value, *gradients), expected)
    # The gradient of one device's function is that of the entire loss.
    inside = sw.shard_map(sw.grad(loss, (0, 1)), mesh=mesh, in_specs=specs, out_specs=(P("data"), P("model")))
    assert_equal(sw.jit(inside)(hidden, table, labels, weights), expected[1])


def test_vocabulary_sharded_over_two_axes_and_the_current_mesh(mesh, expected):
    hidden, table, labels = operands()
    with sw.set_mesh(mesh):
        losses = parallel.cross_entropy(hidden, table, labels, axis=("data", "model"), block=3)
    np.testing.assert_allclose(weighted(losses), expected[0], rtol=2e-5)


@pytest.mark.parametrize("padding", [8, 24], ids=["half of the last shard", "more than one shard"])
@pytest.mark.parametrize("vocabulary_dim", [0, 1])
def test_padding_of_the_vocabulary_does_not_count(vocabulary_dim, padding, mesh, expected):
    hidden, table, labels = operands()
    # A product with the padding would be larger than all logits.
    padded = np.concatenate([table, np.full((padding, FEATURES), 1e3, np.float32)])
    sharded = sw.device_put(
        padded.T if vocabulary_dim else padded, NamedSharding(mesh, P(*[None] * vocabulary_dim, "data"))
    )

    def loss(hidden, table):
        options = {"vocabulary_dim": vocabulary_dim, "vocabulary_size": VOCABULARY, "mesh": mesh}
        return weighted(parallel.cross_entropy(hidden, table, labels, axis="data", block=5, **options))

    value, (of_hidden, of_table) = sw.jit(sw.value_and_grad(loss, (0, 1)))(hidden, sharded)
    of_table = np.asarray(of_table).T if vocabulary_dim else np.asarray(of_table)
    assert_equal((value, (of_hidden, of_table[:VOCABULARY])), expected)
    assert not of_table[VOCABULARY:].any()
    unsharded = parallel.cross_entropy(hidden, padded, np.full_like(labels, VOCABULARY), vocabulary_size=VOCABULARY)
    assert np.isnan(unsharded).all()  # a label in the padding


def test_bad_operands_are_errors_that_say_what_to_write(mesh):
    hidden, table, labels = operands()

    def check(message, *args, **keywords):
        with pytest.raises(StrategyError, match=message):
            parallel.cross_entropy(*args, **keywords)

    check(r"labels must be integers, indices of the vocabulary, not f32\[8,6\]", hidden, table, labels * 1.0)
    check(r"must have the shape of hidden f32\[8,6,16\] without its last dim: \(8, 6\)", hidden, table, labels[:4])
    check(r"A head \[features, vocabulary\] needs vocabulary_dim=1", hidden, table.T, labels)
    check(r"must be \[features, vocabulary\] with 16 features", hidden, table, labels, vocabulary_dim=1)
    check("vocabulary_dim must be 0 or 1, not 2", hidden, table, labels, vocabulary_dim=2)
    check("vocabulary_size must be an integer from 1 to 40, .* not 41", hidden, table, labels, vocabulary_size=41)
    check("block must be a positive number", hidden, table, labels, block=0)
    check(r"where must be booleans of shape \(8, 6\)", hidden, table, labels, where=labels)
    check("must hold floating-point numbers", labels[..., None], table, labels)
    check(
        "no axis 'modle'; it has 'data', 'model'. Did you mean 'model'", hidden, table, labels, axis="modle", mesh=mesh
    )
    check("axis 'model' needs a mesh", hidden, table, labels, axis="model")
    check(
        "the size of the vocabulary is 39, which the 2 devices along 'model' do not divide. Pad it to 40, "
        "or use another mesh. Pass vocabulary_size=39, so that the padding does not count",
        *(hidden, table[:39], labels),
        axis="model",
        mesh=mesh,
    )
