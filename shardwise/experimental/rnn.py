"""jax.experimental.rnn: LSTMs of several layers, in one or both directions, with the packed weights of cuDNN.

A layer of a bidirectional LSTM has two pseudo-layers, forward and backward, and a pseudo-layer has four parameters.
Their rows are those of the input gate, the forget gate, the cell and the output gate:

    W_ih    (4 × hidden_size, inputs)          the weights of the layer's input
    W_hh    (4 × hidden_size, hidden_size)     the weights of the hidden state
    b_ih    (4 × hidden_size,)                 the biases, of which there are two
    b_hh    (4 × hidden_size,)

The packed vector has the two matrices of each pseudo-layer, and then the two biases of each.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax, random
from shardwise.api.jit import jit
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.lax.precision import PrecisionLike
from shardwise.nn.activations import sigmoid
from shardwise.typing import ArrayLike

Parameters = Mapping[int, Array]  # one parameter of every pseudo-layer

_SIZES = Family(
    {
        "weights": "the packed weights, a vector of `get_num_params_in_lstm` numbers.",
        "input_size": "the number of features of the input.",
        "hidden_size": "the number of features of the hidden state.",
        "num_layers": "the number of layers.",
        "bidirectional": "whether every layer also runs backwards in time.",
    },
    raises=["TypeError: if a size is not an integer."],
)
_LSTM = _SIZES.extended(
    {
        "x": "the input, of shape (batch, time, input_size).",
        "h_0": "the first hidden states, of shape (pseudo-layers, batch, hidden_size).",
        "c_0": "the first cell states, of the same shape.",
        "seq_lengths": "the length of each sequence, of dtype int32 and shape (batch,).",
        "dropout": "the probability of dropout between layers; only 0 is supported.",
    },
    returns="The outputs, of shape (batch, time, directions × hidden_size), which are 0 after the end of a sequence;\n"
    "and the last hidden and cell states, of the shape of the first ones.",
    raises=["NotImplementedError: if `seq_lengths` is not of dtype int32, or `dropout` is not 0."],
)


@documented(_SIZES, returns="The number of weights and biases.")
def get_num_params_in_lstm(input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> int:
    """Count the parameters of an LSTM.

    Example:
        >>> jax.experimental.rnn.get_num_params_in_lstm(2, 3, num_layers=1, bidirectional=False)
        84
    """
    return sum(map(math.prod, _shapes(input_size, hidden_size, num_layers, bidirectional)))


@documented(_SIZES, returns="The packed weights, of dtype float32.")
def init_lstm_weight(rng: ArrayLike, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> Array:
    """Sample the packed weights of an LSTM uniformly between ±1/√hidden_size.

    Args:
        rng: a PRNG key.

    Example:
        >>> jax.experimental.rnn.init_lstm_weight(jax.random.key(0), 2, 3, 1, False).shape
        (84,)
    """
    count = get_num_params_in_lstm(input_size, hidden_size, num_layers, bidirectional)
    bound = float(np.sqrt(1 / hidden_size))
    return random.uniform(rng, (count,), np.float32, -bound, bound)


@documented(_SIZES, returns="The packed weights with the rows of the cell and of the output gate exchanged.")
def swap_lstm_gates(
    weights: ArrayLike, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool
) -> Array:
    """Exchange the last two gates in all parameters, for implementations with another order of gates.

    Example:
        >>> jax.experimental.rnn.swap_lstm_gates(jnp.arange(16.0), 1, 1, 1, False)
        Array([ 0.,  1.,  3.,  2.,  4.,  5.,  7.,  6.,  8.,  9., 11., 10., 12., 13., 15., 14.], dtype=float32)
    """
    parameters = _split(as_operand(weights, "swap_lstm_gates"), input_size, hidden_size, num_layers, bidirectional)
    swapped = [jnp.stack(jnp.split(parameter, 4))[np.array([0, 1, 3, 2])] for parameter in parameters]
    return jnp.concatenate([parameter.reshape(-1) for parameter in swapped])


@documented(_SIZES, returns="The parameters W_ih, W_hh, b_ih and b_hh, each a dict by the index of the pseudo-layer.")
def unpack_lstm_weights(
    weights: ArrayLike, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool
) -> tuple[dict[int, Array], dict[int, Array], dict[int, Array], dict[int, Array]]:
    """Split packed weights into the parameters of the pseudo-layers.

    Example:
        >>> weights = jax.experimental.rnn.init_lstm_weight(jax.random.key(0), 2, 3, 1, False)
        >>> W_ih, W_hh, b_ih, b_hh = jax.experimental.rnn.unpack_lstm_weights(weights, 2, 3, 1, False)
        >>> W_ih[0].shape, b_hh[0].shape
        ((12, 2), (12,))
    """
    packed = as_operand(weights, "unpack_lstm_weights")
    parameters = _split(packed, input_size, hidden_size, num_layers, bidirectional)
    matrices, biases = parameters[: len(parameters) // 2], parameters[len(parameters) // 2 :]
    W_ih, W_hh, b_ih, b_hh = (
        dict(enumerate(kind)) for kind in (matrices[::2], matrices[1::2], biases[::2], biases[1::2])
    )
    return W_ih, W_hh, b_ih, b_hh


def _shapes(input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> list[tuple[int, ...]]:
    """Return the shapes of all parameters in the order of the packed weights."""
    directions, rows = 1 + bool(bidirectional), 4 * hidden_size
    matrices: list[tuple[int, ...]] = []
    for pseudo_layer in range(num_layers * directions):
        inputs = input_size if pseudo_layer < directions else directions * hidden_size
        matrices += [(rows, inputs), (rows, hidden_size)]
    return [*matrices, *[(rows,)] * len(matrices)]


def _split(weights: Array, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> list[Array]:
    """Return all parameters in the order of the packed weights."""
    shapes = _shapes(input_size, hidden_size, num_layers, bidirectional)
    ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
    starts = [0, *ends[:-1]]
    return [weights[start:end].reshape(shape) for start, end, shape in zip(starts, ends, shapes, strict=True)]


@documented(_LSTM)
def lstm(
    x: ArrayLike,
    h_0: ArrayLike,
    c_0: ArrayLike,
    weights: ArrayLike,
    seq_lengths: ArrayLike,
    input_size: int,
    hidden_size: int,
    num_layers: int,
    dropout: float,
    bidirectional: bool,
    precision: PrecisionLike = None,
) -> tuple[Array, Array, Array]:
    """Run an LSTM with packed weights over a batch of sequences.

    It is computed by products of matrices in a loop over time on all platforms; cuDNN's kernel is not used.

    Args:
        precision: the precision of the products, as in `lax.dot`.

    Example:
        >>> weights = jax.experimental.rnn.init_lstm_weight(jax.random.key(0), 2, 3, 1, False)
        >>> x, state, lengths = jnp.ones((4, 5, 2)), jnp.zeros((1, 4, 3)), jnp.full(4, 5, jnp.int32)
        >>> y, h_n, c_n = jax.experimental.rnn.lstm(x, state, state, weights, lengths, 2, 3, 1, 0.0, False)
        >>> y.shape, h_n.shape
        ((4, 5, 3), (1, 4, 3))
    """
    parameters = unpack_lstm_weights(weights, input_size, hidden_size, num_layers, bidirectional)
    _check("lstm", seq_lengths, dropout)
    return _run(x, h_0, c_0, parameters, seq_lengths, num_layers, bidirectional, precision)


@documented(_LSTM)
def lstm_ref(
    x: ArrayLike,
    h_0: ArrayLike,
    c_0: ArrayLike,
    W_ih: Parameters,
    W_hh: Parameters,
    b_ih: Parameters,
    b_hh: Parameters,
    seq_lengths: ArrayLike,
    input_size: int,
    hidden_size: int,
    num_layers: int,
    dropout: float,
    bidirectional: bool,
) -> tuple[Array, Array, Array]:
    """Run an LSTM with unpacked weights over a batch of sequences.

    Args:
        W_ih, W_hh, b_ih, b_hh: the parameters, as `unpack_lstm_weights` returns them.

    Example:
        >>> weights = jax.experimental.rnn.init_lstm_weight(jax.random.key(0), 2, 3, 1, False)
        >>> parameters = jax.experimental.rnn.unpack_lstm_weights(weights, 2, 3, 1, False)
        >>> x, state, lengths = jnp.ones((4, 5, 2)), jnp.zeros((1, 4, 3)), jnp.full(4, 5, jnp.int32)
        >>> y, h_n, c_n = jax.experimental.rnn.lstm_ref(x, state, state, *parameters, lengths, 2, 3, 1, 0.0, False)
        >>> y.shape, h_n.shape
        ((4, 5, 3), (1, 4, 3))
    """
    _check("lstm_ref", seq_lengths, dropout)
    return _run(x, h_0, c_0, (W_ih, W_hh, b_ih, b_hh), seq_lengths, num_layers, bidirectional, None)


def _check(name: str, seq_lengths: ArrayLike, dropout: float) -> None:
    if (dtype := as_operand(seq_lengths, name).dtype) != np.int32:
        raise NotImplementedError(f"{name}: seq_lengths must be of dtype int32, not {dtype}")
    if dropout:
        raise NotImplementedError(
            f"{name}: dropout={dropout} is not supported. Use dropout=0.0, and run the layers one by one with a "
            "dropout of your own between them."
        )


@partial(jit, static_argnums=(5, 6, 7))
def _run(
    x: Array,
    h_0: Array,
    c_0: Array,
    parameters: tuple[Parameters, ...],
    seq_lengths: Array,
    num_layers: int,
    bidirectional: bool,
    precision: PrecisionLike,
) -> tuple[Array, Array, Array]:
    """Run the layers one after the other; the outputs of both directions of a layer are the input of the next one."""
    directions = 1 + bool(bidirectional)
    sequence = jnp.swapaxes(x, 0, 1)  # time first
    is_inside = (jnp.arange(sequence.shape[0])[:, None] < seq_lengths)[..., None]
    last = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            state, output = _run_pseudo_layer(
                sequence,
                is_inside,
                (h_0[index], c_0[index]),
                tuple(kind[index] for kind in parameters),
                bool(direction),
                precision,
            )
            last.append(state)
            outputs.append(output)
        sequence = jnp.concatenate(outputs, axis=-1)
    h_n, c_n = (jnp.stack(states) for states in zip(*last, strict=True))
    return jnp.swapaxes(sequence, 0, 1), h_n, c_n


def _run_pseudo_layer(
    sequence: Array,
    is_inside: Array,
    state: tuple[Array, Array],
    parameters: tuple[Array, ...],
    reverse: bool,
    precision: PrecisionLike,
) -> tuple[tuple[Array, Array], Array]:
    """Run one direction of a layer; return its last state and its outputs.

    Steps after the end of a sequence leave the state as it is, so that the backward direction starts at the end.
    """
    W_ih, W_hh, b_ih, b_hh = parameters
    dot = partial(jnp.matmul, precision=precision)
    from_inputs = dot(sequence, W_ih.T) + b_ih  # of all times at once

    def step(carry: tuple[Array, Array], row: tuple[Array, Array]) -> Any:
        h, c = carry
        from_input, inside = row
        gates = from_input + dot(h, W_hh.T) + b_hh
        enter, forget, cell, leave = jnp.split(gates, 4, axis=-1)
        next_c = sigmoid(forget) * c + sigmoid(enter) * jnp.tanh(cell)
        next_h = sigmoid(leave) * jnp.tanh(next_c)
        return (jnp.where(inside, next_h, h), jnp.where(inside, next_c, c)), jnp.where(inside, next_h, 0)

    return lax.scan(step, state, (from_inputs, is_inside), reverse=reverse)


publish(__name__)
