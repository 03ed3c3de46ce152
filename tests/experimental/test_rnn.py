"""LSTMs like JAX's reference implementation, and packed weights."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.experimental import rnn

BATCH, TIME, INPUTS, HIDDEN = 2, 5, 3, 4


def arguments(layers, bidirectional):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, TIME, INPUTS)).astype(np.float32)
    h, c = rng.normal(size=(2, layers * (1 + bidirectional), BATCH, HIDDEN)).astype(np.float32)
    return x, h, c, np.array([5, 3], np.int32)


@pytest.mark.jax
@pytest.mark.table(default=1)
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("layers", [2, 1])
def test_like_jax(layers, bidirectional):
    jax = pytest.importorskip("jax")
    import jax.experimental.rnn as jax_rnn  # noqa: PLC0415 - without jax, the other tests run

    sizes = (INPUTS, HIDDEN, layers, bidirectional)
    x, h, c, lengths = arguments(layers, bidirectional)
    weights = rnn.init_lstm_weight(sw.random.key(0), *sizes)
    jax_weights = jax_rnn.init_lstm_weight(jax.random.key(0), *sizes)
    np.testing.assert_allclose(weights, jax_weights, rtol=1e-6)
    np.testing.assert_array_equal(
        rnn.swap_lstm_gates(weights, *sizes), jax_rnn.swap_lstm_gates(np.asarray(weights), *sizes)
    )
    theirs = jax_rnn.lstm_ref(
        x, h, c, *jax_rnn.unpack_lstm_weights(jax_weights, *sizes), lengths, *sizes[:3], 0.0, bidirectional
    )
    packed = rnn.lstm(x, h, c, weights, lengths, *sizes[:3], 0.0, bidirectional)
    unpacked = rnn.lstm_ref(x, h, c, *rnn.unpack_lstm_weights(weights, *sizes), lengths, *sizes[:3], 0.0, bidirectional)
    for ours, other, expected in zip(packed, unpacked, theirs, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(other, expected, rtol=1e-5, atol=1e-6)


def test_padding_has_no_effect_and_no_gradient():
    sizes = (INPUTS, HIDDEN, 1, True)
    x, h, c, lengths = arguments(1, True)
    weights = rnn.init_lstm_weight(sw.random.key(1), *sizes)

    def total(x):
        y, h_n, c_n = rnn.lstm(x, h, c, weights, lengths, INPUTS, HIDDEN, 1, 0.0, True)
        return y.sum() + h_n.sum() + c_n.sum()

    gradient = np.asarray(sw.grad(total)(jnp.asarray(x)))
    assert (gradient[1, 3:] == 0).all() and (gradient[0] != 0).all() and (gradient[1, :3] != 0).all()


def test_errors():
    x, h, c, lengths = arguments(1, False)
    weights = jnp.zeros(rnn.get_num_params_in_lstm(INPUTS, HIDDEN, 1, False))
    with pytest.raises(NotImplementedError, match="seq_lengths must be of dtype int32, not float32"):
        rnn.lstm(x, h, c, weights, lengths.astype(np.float32), INPUTS, HIDDEN, 1, 0.0, False)
    with pytest.raises(NotImplementedError, match=r"dropout=0\.5 is not supported. Use dropout=0\.0"):
        rnn.lstm(x, h, c, weights, lengths, INPUTS, HIDDEN, 1, 0.5, False)
