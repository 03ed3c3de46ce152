"""Neural network layers as pairs of functions: `init(key, input_shape)` and `apply(params, inputs, **kwargs)`.

    init, apply = serial(Dense(64), Relu, Dense(10), LogSoftmax)
    output_shape, params = init(jax.random.key(0), (-1, 784))
    predictions = apply(params, images)

`init` returns the shape of the outputs and the parameters. `apply` accepts a PRNG key as `rng`, which `serial` and
`parallel` split between their layers; `Dropout` needs it.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import shardwise.numpy as jnp
from shardwise import lax, nn, random
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import set_public_names
from shardwise.compiler.arrays.methods import Array
from shardwise.nn.initializers import Initializer, glorot_normal, normal, ones, zeros

__all__ = [
    "AvgPool",
    "BatchNorm",
    "Conv",
    "Conv1DTranspose",
    "ConvTranspose",
    "Dense",
    "Dropout",
    "Elu",
    "Exp",
    "FanInConcat",
    "FanInSum",
    "FanOut",
    "Flatten",
    "Gelu",
    "GeneralConv",
    "GeneralConvTranspose",
    "Identity",
    "LeakyRelu",
    "LogSoftmax",
    "MaxPool",
    "Relu",
    "Selu",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "SumPool",
    "Tanh",
    "elementwise",
    "parallel",
    "serial",
    "shape_dependent",
]

Shape = tuple[int, ...]
_Shapes = Shape | Sequence["_Shapes"]  # of an input, or of the inputs of a layer with several
Layer = tuple[Callable[..., Any], Callable[..., Any]]


_LAYER = Family(
    {
        "W_init": "the initializer of the filter; Glorot's if None.",
        "b_init": "the initializer of the bias.",
        "layers": "the layers.",
    },
    returns="The layer, without parameters.",
    raises=["Nothing."],
)
_WINDOWED = Family(
    {
        **_LAYER.args,
        "padding": '"SAME", "VALID" or pairs of sizes.',
        "dimension_numbers": 'the specs of inputs, filter and outputs, such as `("NHWC", "HWIO", "NHWC")`.',
        "out_chan": "the number of channels of the outputs.",
        "filter_shape": "the spatial shape of the filter.",
        "window_shape": "the spatial shape of the windows.",
        "strides": "the strides of the windows; 1 if None.",
        "spec": 'the order of the dims, such as "NCHW"; the batch first and the channels last if None.',
    },
    returns="The layer, without parameters.",
    raises=["ValueError: if the shapes do not fit."],
)


def _without_params(output_shape: Callable[[Any], Any], function: Callable[[Any], Any]) -> Layer:
    """Return a layer without parameters, given its function and the function of its shapes."""
    return lambda rng, input_shape: (output_shape(input_shape), ()), lambda params, inputs, **kwargs: function(inputs)


@documented(_LAYER, returns="The layer. Its parameters are the weights and the bias.")
def Dense(out_dim: int, W_init: Initializer = glorot_normal(), b_init: Initializer = normal()) -> Layer:  # noqa: B008
    """Create a fully connected layer.

    Args:
        out_dim: the number of features of the outputs.
        W_init: the initializer of the weights.

    Example:
        >>> init, apply = jax.example_libraries.stax.Dense(3)
        >>> init(jax.random.key(0), (5, 2))[0]
        (5, 3)
    """

    def init(rng: Array, input_shape: Shape) -> Any:
        weights_key, bias_key = random.split(rng)
        weights = W_init(weights_key, (input_shape[-1], out_dim))
        return (*input_shape[:-1], out_dim), (weights, b_init(bias_key, (out_dim,)))

    def apply(params: tuple[Array, Array], inputs: Array, **kwargs: object) -> Array:
        weights, bias = params
        return jnp.dot(inputs, weights) + bias

    return init, apply


def _convolution_layer(
    dimension_numbers: Sequence[str],
    out_chan: int,
    filter_shape: Sequence[int],
    W_init: Initializer | None,
    b_init: Initializer,
    output_shape: Callable[[Shape, Shape], Shape],
    convolve: Callable[[Array, Array], Array],
) -> Layer:
    """Return a layer that convolves its inputs and adds a bias per channel."""
    inputs_spec, filter_spec, outputs_spec = dimension_numbers
    initialize = W_init or glorot_normal(filter_spec.index("I"), filter_spec.index("O"))

    def init(rng: Array, input_shape: Shape) -> Any:
        sizes = {"O": out_chan, "I": input_shape[inputs_spec.index("C")]}
        window = iter(filter_shape)
        kernel_shape = tuple(sizes[name] if name in sizes else next(window) for name in filter_spec)
        bias_shape = tuple(out_chan if name == "C" else 1 for name in outputs_spec)
        kernel_key, bias_key = random.split(rng)
        params = initialize(kernel_key, kernel_shape), b_init(bias_key, bias_shape)
        return output_shape(tuple(input_shape), kernel_shape), params

    def apply(params: tuple[Array, Array], inputs: Array, **kwargs: object) -> Array:
        kernel, bias = params
        return convolve(inputs, kernel) + bias

    return init, apply


@documented(_WINDOWED, returns="The layer. Its parameters are the filter and the bias.")
def GeneralConv(
    dimension_numbers: Sequence[str],
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    W_init: Initializer | None = None,
    b_init: Initializer = normal(1e-6),  # noqa: B008
) -> Layer:
    """Create a convolution layer. `Conv` has images with the channels last.

    Args:
        strides: the strides of the window; 1 if None.

    Example:
        >>> init, apply = jax.example_libraries.stax.Conv(4, (3, 3), padding="SAME")
        >>> init(jax.random.key(0), (1, 8, 8, 2))[0]
        (1, 8, 8, 4)
    """
    steps = tuple(strides or (1,) * len(filter_shape))
    return _convolution_layer(
        dimension_numbers,
        out_chan,
        filter_shape,
        W_init,
        b_init,
        lambda inputs, kernel: lax.conv_general_shape_tuple(inputs, kernel, steps, padding, dimension_numbers),
        lambda x, kernel: lax.conv_general_dilated(x, kernel, steps, padding, dimension_numbers=dimension_numbers),
    )


@documented(_WINDOWED, returns="The layer. Its parameters are the filter and the bias.")
def GeneralConvTranspose(
    dimension_numbers: Sequence[str],
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    W_init: Initializer | None = None,
    b_init: Initializer = normal(1e-6),  # noqa: B008
) -> Layer:
    """Create a transposed convolution layer. `ConvTranspose` has images with the channels last.

    Args:
        strides: the factors by which the outputs are larger; 1 if None.

    Example:
        >>> init, apply = jax.example_libraries.stax.ConvTranspose(4, (2, 2), strides=(2, 2))
        >>> init(jax.random.key(0), (1, 8, 8, 2))[0]
        (1, 16, 16, 4)
    """
    steps = tuple(strides or (1,) * len(filter_shape))
    return _convolution_layer(
        dimension_numbers,
        out_chan,
        filter_shape,
        W_init,
        b_init,
        lambda inputs, kernel: lax.conv_transpose_shape_tuple(inputs, kernel, steps, padding, dimension_numbers),
        lambda x, kernel: lax.conv_transpose(x, kernel, steps, padding, dimension_numbers=dimension_numbers),
    )


Conv = functools.partial(GeneralConv, ("NHWC", "HWIO", "NHWC"))
ConvTranspose = functools.partial(GeneralConvTranspose, ("NHWC", "HWIO", "NHWC"))
Conv1DTranspose = functools.partial(GeneralConvTranspose, ("NHC", "HIO", "NHC"))


@documented(_LAYER)
def BatchNorm(
    axis: int | Sequence[int] = (0, 1, 2),
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    beta_init: Initializer = zeros,
    gamma_init: Initializer = ones,
) -> Layer:
    """Create a batch normalization layer, which uses the statistics of its inputs only.

    Args:
        axis: the axes along which inputs are standardized.
        epsilon: a number that is added to the variance.
        center: whether a bias is added.
        scale: whether the result is scaled.
        beta_init: the initializer of the bias.
        gamma_init: the initializer of the scale.

    Returns:
        The layer. Its parameters are the bias and the scale; one that is not used is `()`.

    Example:
        >>> init, apply = jax.example_libraries.stax.BatchNorm(axis=0)
        >>> apply(init(jax.random.key(0), (2, 1))[1], jnp.array([[1.0], [3.0]])).round(3)
        Array([[-1.],
               [ 1.]], dtype=float32)
    """
    axes = (axis,) if isinstance(axis, int) else tuple(axis)

    def init(rng: Array, input_shape: Shape) -> Any:
        shape = tuple(size for dim, size in enumerate(input_shape) if dim not in axes)
        bias_key, scale_key = random.split(rng)
        return input_shape, (
            beta_init(bias_key, shape) if center else (),
            gamma_init(scale_key, shape) if scale else (),
        )

    def apply(params: tuple[Array, Array], inputs: Array, **kwargs: object) -> Array:
        bias, factor = params
        result = nn.standardize(inputs, axes, epsilon=epsilon)
        result = jnp.expand_dims(factor, axes) * result if scale else result
        return result + jnp.expand_dims(bias, axes) if center else result

    return init, apply


@documented(_LAYER)
def elementwise(fun: Callable[..., Any], **fun_kwargs: object) -> Layer:
    """Create a layer that applies a function to its inputs and keeps their shape.

    Args:
        fun: the function.
        fun_kwargs: further arguments of `fun`.

    Example:
        >>> init, apply = jax.example_libraries.stax.elementwise(jnp.clip, min=0.0)
        >>> apply((), jnp.array([-1.0, 2.0]))
        Array([0., 2.], dtype=float32)
    """
    return _without_params(lambda shape: shape, lambda inputs: fun(inputs, **fun_kwargs))


Tanh = elementwise(jnp.tanh)
Relu = elementwise(nn.relu)
Exp = elementwise(jnp.exp)
LogSoftmax = elementwise(nn.log_softmax, axis=-1)
Softmax = elementwise(nn.softmax, axis=-1)
Softplus = elementwise(nn.softplus)
Sigmoid = elementwise(nn.sigmoid)
Elu = elementwise(nn.elu)
LeakyRelu = elementwise(nn.leaky_relu)
Selu = elementwise(nn.selu)
Gelu = elementwise(nn.gelu)
Identity = elementwise(lambda inputs: inputs)
Flatten = _without_params(
    lambda shape: (shape[0], math.prod(shape[1:])), lambda inputs: jnp.reshape(inputs, (inputs.shape[0], -1))
)
FanInSum = _without_params(lambda shapes: shapes[0], sum)


def _pool(
    reducer: Callable[[Any, Any], Any],
    initial: float,
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: str | Sequence[tuple[int, int]],
    spec: str | None,
    mean: bool = False,
) -> Layer:
    """Return a layer that reduces windows of the spatial dims."""
    rank = len(window_shape) + 2
    batch, channel = (0, rank - 1) if spec is None else (spec.index("N"), spec.index("C"))
    spatial = [dim for dim in range(rank) if dim not in (batch, channel)]

    def on_spatial_dims(sizes: Sequence[int]) -> Shape:
        by_dim = dict(zip(spatial, sizes, strict=True))
        return tuple(by_dim.get(dim, 1) for dim in range(rank))

    window, steps = on_spatial_dims(window_shape), on_spatial_dims(strides or (1,) * len(window_shape))
    no_dilation = (1,) * rank

    def output_shape(input_shape: Shape) -> Any:
        pads = lax.padtype_to_pads(input_shape, window, steps, padding)
        return lax.reduce_window_shape_tuple(input_shape, window, steps, pads, no_dilation, no_dilation)

    def apply(inputs: Array) -> Array:
        result = lax.reduce_window(inputs, initial, reducer, window, steps, padding)
        if not mean:
            return result
        one = jnp.ones([size if dim in spatial else 1 for dim, size in enumerate(inputs.shape)], inputs.dtype)
        return result / lax.reduce_window(one, initial, reducer, window, steps, padding)  # padding does not count

    return _without_params(output_shape, apply)


@documented(_WINDOWED)
def MaxPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    spec: str | None = None,
) -> Layer:
    """Create a layer of the maxima of windows.

    Example:
        >>> init, apply = jax.example_libraries.stax.MaxPool((2, 2), strides=(2, 2))
        >>> init(jax.random.key(0), (1, 8, 8, 3))[0]
        (1, 4, 4, 3)
    """
    return _pool(lax.max, -jnp.inf, window_shape, strides, padding, spec)


@documented(_WINDOWED)
def SumPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    spec: str | None = None,
) -> Layer:
    """Create a layer of the sums of windows.

    Example:
        >>> init, apply = jax.example_libraries.stax.SumPool((2,))
        >>> apply((), jnp.array([[[1.0], [2.0], [3.0]]])).ravel()
        Array([3., 5.], dtype=float32)
    """
    return _pool(lax.add, 0.0, window_shape, strides, padding, spec)


@documented(_WINDOWED)
def AvgPool(
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    spec: str | None = None,
) -> Layer:
    """Create a layer of the means of windows; padding does not count.

    Example:
        >>> init, apply = jax.example_libraries.stax.AvgPool((2,), padding="SAME")
        >>> apply((), jnp.array([[[1.0], [2.0], [3.0]]])).ravel()
        Array([1.5, 2.5, 3. ], dtype=float32)
    """
    return _pool(lax.add, 0.0, window_shape, strides, padding, spec, mean=True)


@documented(_LAYER)
def FanOut(num: int) -> Layer:
    """Create a layer that repeats its inputs in a list.

    Args:
        num: the number of repetitions.

    Example:
        >>> init, apply = jax.example_libraries.stax.FanOut(2)
        >>> init(jax.random.key(0), (4,))[0]
        [(4,), (4,)]
    """
    return _without_params(lambda shape: [shape] * num, lambda inputs: [inputs] * num)


@documented(_LAYER)
def FanInConcat(axis: int = -1) -> Layer:
    """Create a layer that concatenates a list of inputs.

    Args:
        axis: the axis along which inputs are concatenated.

    Example:
        >>> init, apply = jax.example_libraries.stax.FanInConcat()
        >>> init(jax.random.key(0), [(4, 1), (4, 2)])[0]
        (4, 3)
    """

    def output_shape(shapes: Sequence[Shape]) -> Shape:
        dim = axis % len(shapes[0])
        return (*shapes[0][:dim], sum(shape[dim] for shape in shapes), *shapes[0][dim + 1 :])

    return _without_params(output_shape, lambda inputs: jnp.concatenate(inputs, axis))


def Dropout(rate: float, mode: str = "train") -> Layer:
    """Create a dropout layer, whose `apply` needs a PRNG key as `rng`.

    Args:
        rate: the probability that an element is kept.
        mode: "train" to drop elements, else the inputs are returned.

    Returns:
        The layer, without parameters.

    Raises:
        ValueError: from `apply`, if it is called without a key.

    Example:
        >>> init, apply = jax.example_libraries.stax.Dropout(1.0)
        >>> apply((), jnp.ones(2), rng=jax.random.key(0))
        Array([1., 1.], dtype=float32)
    """

    def apply(params: object, inputs: Array, *, rng: Array | None = None, **kwargs: object) -> Array:
        if rng is None:
            raise ValueError("Dropout needs a PRNG key: call `apply(params, inputs, rng=key)`")
        if mode != "train":
            return inputs
        return jnp.where(random.bernoulli(rng, rate, inputs.shape), inputs / rate, 0)

    return lambda rng, input_shape: (input_shape, ()), apply


@documented(_LAYER, returns="A layer whose parameters are a list of those of `layers`.")
def serial(*layers: Layer) -> Layer:
    """Compose layers: each one's outputs are the inputs of the next.

    Example:
        >>> from shardwise.example_libraries.stax import Dense, Relu, serial
        >>> init, apply = serial(Dense(8), Relu, Dense(2))
        >>> init(jax.random.key(0), (4, 3))[0]
        (4, 2)
    """

    def init(rng: Array, input_shape: _Shapes) -> Any:
        params = []
        for layer_init, _ in layers:
            rng, key = random.split(rng)
            input_shape, layer_params = layer_init(key, input_shape)
            params.append(layer_params)
        return input_shape, params

    def apply(params: Sequence[object], inputs: object, *, rng: Array | None = None, **kwargs: object) -> Any:
        for (_, layer_apply), layer_params, key in zip(layers, params, _split(rng, len(layers)), strict=True):
            inputs = layer_apply(layer_params, inputs, rng=key, **kwargs)
        return inputs

    return init, apply


@documented(_LAYER, returns="A layer whose parameters are a tuple of those of `layers`.")
def parallel(*layers: Layer) -> Layer:
    """Combine layers to one whose inputs and outputs are lists, with one entry for each layer.

    Example:
        >>> from shardwise.example_libraries.stax import Dense, FanInSum, FanOut, Identity, parallel, serial
        >>> init, apply = serial(FanOut(2), parallel(Dense(3), Identity), FanInSum)
        >>> init(jax.random.key(0), (4, 3))[0]
        (4, 3)
    """

    def init(rng: Array, input_shape: Sequence[_Shapes]) -> Any:
        keys = _split(rng, len(layers))
        pairs = [layer_init(*pair) for (layer_init, _), *pair in zip(layers, keys, input_shape, strict=True)]
        return tuple(shape for shape, _ in pairs), tuple(params for _, params in pairs)

    def apply(
        params: Sequence[object], inputs: Sequence[object], *, rng: Array | None = None, **kwargs: object
    ) -> list[object]:
        rows = zip(layers, params, inputs, _split(rng, len(layers)), strict=True)
        return [layer_apply(p, x, rng=key, **kwargs) for (_, layer_apply), p, x, key in rows]

    return init, apply


def _split(rng: Array | None, count: int) -> Sequence[Array | None] | Array:
    return [None] * count if rng is None else random.split(rng, count)


@documented(_LAYER, returns="The layer.")
def shape_dependent(make_layer: Callable[[Shape], Layer]) -> Layer:
    """Create a layer from the shape of its inputs, when this is known.

    Args:
        make_layer: a function from the shape to a layer.

    Example:
        >>> from shardwise.example_libraries.stax import Dense, shape_dependent
        >>> init, apply = shape_dependent(lambda shape: Dense(2 * shape[-1]))
        >>> init(jax.random.key(0), (4, 3))[0]
        (4, 6)
    """

    def init(rng: Array, input_shape: Shape) -> Any:
        return make_layer(input_shape)[0](rng, input_shape)

    def apply(params: object, inputs: Array, **kwargs: object) -> Any:
        return make_layer(inputs.shape)[1](params, inputs, **kwargs)

    return init, apply


set_public_names(__name__, __all__)
