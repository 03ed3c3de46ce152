"""Optimizers as triples of functions: `init(params)`, `update(step, gradients, state)` and `get_params(state)`.

    init, update, get_params = adam(1e-3)
    state = init(params)
    state = update(0, gradients, state)

An optimizer is defined by its step on one array, `step(i, gradient, x, *slots)`, which returns the new array and slots.
`optimizer` applies it to every leaf of a pytree. Slots have the shardings that the arrays have.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar, final

import shardwise.numpy as jnp
from shardwise import tree
from shardwise.base.docstrings import Family, documented
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.tree_util import PyTreeDef, register_pytree_node
from shardwise.typing import ArrayLike

_P = ParamSpec("_P")
_T = TypeVar("_T")

Schedule = Callable[[Any], Any]
StepSize = ArrayLike | Schedule
# The optimizer of one array: functions from the array to its state, from a step, a gradient and a state to the next
# state, and from a state to the array.
_LeafOptimizer = tuple[Callable[[Any], Any], Callable[[Any, Any, Any], Any], Callable[[Any], Any]]


class Optimizer(NamedTuple):
    """An optimizer.

    Attributes:
        init_fn: the function from parameters to the initial state.
        update_fn: the function `update_fn(step, gradients, state)`, which returns the next state.
        params_fn: the function from a state to the parameters.

    Example:
        >>> jax.example_libraries.optimizers.sgd(0.1).params_fn.__name__
        'get_params'
    """

    init_fn: Callable[[Any], Any]
    update_fn: Callable[[Any, Any, Any], Any]
    params_fn: Callable[[Any], Any]


class OptimizerState(NamedTuple):
    """The state of an optimizer: for every array of the parameters, the leaves of its own state.

    Attributes:
        packed_state: a list of lists of arrays.
        tree_def: the structure of the parameters.
        subtree_defs: the structure of the state of each array.

    Example:
        >>> state = jax.example_libraries.optimizers.momentum(0.1, 0.9).init_fn({"w": jnp.ones(2)})
        >>> [len(leaves) for leaves in state.packed_state]
        [2]
    """

    packed_state: list[list[Any]]
    tree_def: PyTreeDef
    subtree_defs: tuple[PyTreeDef, ...]


register_pytree_node(
    OptimizerState,
    lambda state: ((state.packed_state,), (state.tree_def, state.subtree_defs)),
    lambda structures, children: OptimizerState(children[0], *structures),
)


def optimizer(opt_maker: Callable[_P, _LeafOptimizer]) -> Callable[_P, Optimizer]:
    """Let an optimizer of one array work on pytrees of arrays.

    Args:
        opt_maker: a function that returns a triple: `init(x)` returns the state of an array, a pytree of arrays;
            `update(step, gradient, state)` returns the next state; `get_params(state)` returns the array.

    Returns:
        A function with the parameters of `opt_maker` that returns an `Optimizer` of pytrees.

    Raises:
        TypeError: when the gradients have another structure than the parameters, or an update returns a state of
            another structure.

    Example:
        >>> halve = jax.example_libraries.optimizers.optimizer(
        ...     lambda: (lambda x: x, lambda i, gradient, x: x / 2, lambda x: x)
        ... )
        >>> init, update, get_params = halve()
        >>> get_params(update(0, [jnp.ones(1)], init([jnp.array([4.0])])))
        [Array([2.], dtype=float32)]
    """

    @functools.wraps(opt_maker)
    def make(*args: _P.args, **keywords: _P.kwargs) -> Optimizer:
        init_leaf, update_leaf, params_of_leaf = opt_maker(*args, **keywords)

        def init(params: object) -> OptimizerState:
            leaves, structure = tree.flatten(params)
            return _pack(structure, [init_leaf(x) for x in leaves])

        def update(step: ArrayLike, gradients: object, state: OptimizerState) -> OptimizerState:
            leaves, structure = tree.flatten(gradients)
            if structure != state.tree_def:
                raise TypeError(
                    f"the gradients have the structure {structure}, and the parameters that the optimizer was "
                    f"initialized with {state.tree_def}"
                )
            states = [update_leaf(step, *pair) for pair in zip(leaves, _leaf_states(state), strict=True)]
            new_state = _pack(structure, states)
            if new_state.subtree_defs != state.subtree_defs:
                raise TypeError(
                    f"the update changed the structure of the state from {state.subtree_defs} to "
                    f"{new_state.subtree_defs}"
                )
            return new_state

        def get_params(state: OptimizerState) -> Any:
            return tree.unflatten(state.tree_def, [params_of_leaf(leaf) for leaf in _leaf_states(state)])

        return Optimizer(init, update, get_params)

    return make


def _pack(structure: PyTreeDef, states: Sequence[object]) -> OptimizerState:
    flat = [tree.flatten(state) for state in states]
    return OptimizerState([leaves for leaves, _ in flat], structure, tuple(structure for _, structure in flat))


def _leaf_states(state: OptimizerState) -> list[Any]:
    return [tree.unflatten(*pair) for pair in zip(state.subtree_defs, state.packed_state, strict=True)]


def _with_slots(step: Callable[..., Any], slots: Sequence[Callable[[Any], Any]] = ()) -> _LeafOptimizer:
    """Return the triple of an optimizer whose state is an array and what `slots` return for it."""

    def init(x: Array) -> tuple[Any, ...]:
        return (x, *(slot(x) for slot in slots))

    def update(i: ArrayLike, gradient: Array, state: tuple[Any, ...]) -> tuple[Any, ...]:
        return step(i, gradient, *state)

    return init, update, operator.itemgetter(0)


_OPTIMIZER = Family(
    {
        "step_size": "a number, or a schedule: a function from the step to a number.",
        "mass": "the factor of the velocity in every step.",
        "momentum": "the decay of the mean of the scaled gradients.",
        "gamma": "the decay of the mean of squared gradients.",
        "eps": "a number that is added to this mean.",
        "b1": "the decay of the mean of gradients.",
    },
    returns="The optimizer.",
    raises=["TypeError: if `step_size` is neither a number nor a function."],
)


@optimizer
@documented(_OPTIMIZER)
def sgd(step_size: StepSize) -> _LeafOptimizer:
    """Create the optimizer of gradient descent.

    Example:
        >>> init, update, get_params = jax.example_libraries.optimizers.sgd(0.5)
        >>> get_params(update(0, 2.0, init(3.0)))
        2.0
    """
    schedule = make_schedule(step_size)
    return _with_slots(lambda i, gradient, x: (x - schedule(i) * gradient,))


@optimizer
@documented(_OPTIMIZER)
def momentum(step_size: StepSize, mass: float) -> _LeafOptimizer:
    """Create the optimizer of gradient descent with momentum.

    Example:
        >>> init, update, get_params = jax.example_libraries.optimizers.momentum(0.5, 0.9)
        >>> get_params(update(0, 2.0, init(3.0)))
        Array(2., dtype=float32, weak_type=True)
    """
    schedule = make_schedule(step_size)

    def step(i: ArrayLike, gradient: Array, x: Array, velocity: Array) -> tuple[Array, ...]:
        velocity = mass * velocity + gradient
        return x - schedule(i) * velocity, velocity

    return _with_slots(step, [jnp.zeros_like])


@optimizer
@documented(_OPTIMIZER)
def nesterov(step_size: StepSize, mass: float) -> _LeafOptimizer:
    """Create the optimizer of gradient descent with Nesterov's momentum.

    Example:
        >>> init, update, get_params = jax.example_libraries.optimizers.nesterov(0.5, 0.5)
        >>> get_params(update(0, 2.0, init(3.0)))
        Array(1.5, dtype=float32, weak_type=True)
    """
    schedule = make_schedule(step_size)

    def step(i: ArrayLike, gradient: Array, x: Array, velocity: Array) -> tuple[Array, ...]:
        velocity = mass * velocity + gradient
        return x - schedule(i) * (gradient + mass * velocity), velocity

    return _with_slots(step, [jnp.zeros_like])


@optimizer
@documented(_OPTIMIZER)
def adagrad(step_size: StepSize, momentum: float = 0.9) -> _LeafOptimizer:
    """Create the optimizer Adagrad with momentum.

    Example:
        >>> init, update, get_params = jax.example_libraries.optimizers.adagrad(1.0, momentum=0.0)
        >>> get_params(update(0, jnp.array(4.0), init(jnp.array(3.0))))
        Array(2., dtype=float32, weak_type=True)
    """
    schedule = make_schedule(step_size)

    def step(i: ArrayLike, gradient: Array, x: Array, squares: Array, mean: Array) -> tuple[Array, ...]:
        squares = squares + jnp.square(gradient)
        mean = momentum * mean + (1 - momentum) * gradient * _inverse_root(squares)
        return x - schedule(i) * mean, squares, mean

    return _with_slots(step, [jnp.zeros_like, jnp.zeros_like])


def _inverse_root(squares: Array) -> Array:
    """Return 1 / sqrt(squares), and 0 where there was no gradient yet."""
    is_positive = squares > 0
    return jnp.where(is_positive, 1 / jnp.sqrt(jnp.where(is_positive, squares, 1)), 0)


@optimizer
@documented(_OPTIMIZER)
def rmsprop(step_size: StepSize, gamma: float = 0.9, eps: float = 1e-8) -> _LeafOptimizer:
    """Create the optimizer RMSProp.

    Example:
        >>> init, update, get_params = jax.example_libraries.optimizers.rmsprop(1.0, gamma=0.0, eps=0.0)
        >>> get_params(update(0, jnp.array(4.0), init(jnp.array(3.0))))
        Array(2., dtype=float32, weak_type=True)
    """
    schedule = make_schedule(step_size)

    def step(i: ArrayLike, gradient: Array, x: Array, squares: Array) -> tuple[Array, ...]:
        squares = gamma * squares + (1 - gamma) * jnp.square(gradient)
        return x - schedule(i) * gradient / jnp.sqrt(squares + eps), squares

    return _with_slots(step, [jnp.zeros_like])


@optimizer
@documented(_OPTIMIZER)
def rmsprop_momentum(
    step_size: StepSize, gamma: float = 0.9, eps: float = 1e-8, momentum: float = 0.9
) -> _LeafOptimizer:
    """Create the optimizer RMSProp with momentum.

    Args:
        momentum: the factor of the last displacement in every step.

    Example:
        >>> init, update, get_params = jax.example_libraries.optimizers.rmsprop_momentum(1.0, gamma=0.0, eps=0.0)
        >>> get_params(update(0, jnp.array(4.0), init(jnp.array(3.0))))
        Array(2., dtype=float32, weak_type=True)
    """
    schedule = make_schedule(step_size)

    def step(i: ArrayLike, gradient: Array, x: Array, squares: Array, displacement: Array) -> tuple[Array, ...]:
        squares = gamma * squares + (1 - gamma) * jnp.square(gradient)
        displacement = momentum * displacement + schedule(i) * gradient / jnp.sqrt(squares + eps)
        return x - displacement, squares, displacement

    return _with_slots(step, [jnp.zeros_like, jnp.zeros_like])


@optimizer
@documented(_OPTIMIZER)
def adam(step_size: StepSize, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> _LeafOptimizer:
    """Create the optimizer Adam.

    Args:
        b2: the decay of the mean of squared gradients.
        eps: a number that is added to the root of the latter.

    Example:
        >>> init, update, get_params = jax.example_libraries.optimizers.adam(1.0, eps=0.0)
        >>> get_params(update(0, jnp.array(4.0), init(jnp.array(3.0)))).round()
        Array(2., dtype=float32)
    """
    schedule = make_schedule(step_size)

    def step(i: ArrayLike, gradient: Array, x: Array, mean: Array, squares: Array) -> tuple[Array, ...]:
        mean = b1 * mean + (1 - b1) * gradient
        squares = b2 * squares + (1 - b2) * jnp.square(gradient)
        unbiased_mean, unbiased_squares = mean / _bias(b1, i, mean), squares / _bias(b2, i, mean)
        return x - schedule(i) * unbiased_mean / (jnp.sqrt(unbiased_squares) + eps), mean, squares

    return _with_slots(step, [jnp.zeros_like, jnp.zeros_like])


def _bias(decay: float, i: ArrayLike, like: Array) -> Array:
    """Return the sum of the weights of a mean that started from 0, after step `i`."""
    return 1 - jnp.asarray(decay, like.dtype) ** (i + 1)


@optimizer
@documented(_OPTIMIZER)
def adamax(step_size: StepSize, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> _LeafOptimizer:
    """Create the optimizer AdaMax, Adam with the infinity norm.

    Args:
        b2: the decay of the largest absolute gradient.
        eps: a number that is added to the latter.

    Example:
        >>> init, update, get_params = jax.example_libraries.optimizers.adamax(1.0, eps=0.0)
        >>> get_params(update(0, jnp.array(4.0), init(jnp.array(3.0)))).round()
        Array(2., dtype=float32)
    """
    schedule = make_schedule(step_size)

    def step(i: ArrayLike, gradient: Array, x: Array, mean: Array, largest: Array) -> tuple[Array, ...]:
        mean = b1 * mean + (1 - b1) * gradient
        largest = jnp.maximum(b2 * largest, jnp.abs(gradient))
        return x - schedule(i) / _bias(b1, i, mean) * mean / (largest + eps), mean, largest

    return _with_slots(step, [jnp.zeros_like, jnp.zeros_like])


@optimizer
@documented(_OPTIMIZER)
def sm3(step_size: StepSize, momentum: float = 0.9) -> _LeafOptimizer:
    """Create the optimizer SM3, which keeps one vector of squared gradients for each axis of an array.

    Example:
        >>> init, update, get_params = jax.example_libraries.optimizers.sm3(1.0, momentum=0.0)
        >>> get_params(update(0, jnp.array([4.0]), init(jnp.array([3.0]))))
        Array([2.], dtype=float32)
    """
    schedule = make_schedule(step_size)

    def vectors(x: Array) -> list[Array]:
        return [jnp.zeros(size, x.dtype) for size in jnp.shape(x)] or [jnp.zeros((), jnp.result_type(x))]

    def step(
        i: ArrayLike, gradient: Array, x: Array, mean: Array, bounds: list[Array]
    ) -> tuple[Array, Array, list[Array]]:
        ndim = gradient.ndim
        aligned = [
            jnp.expand_dims(bound, [dim for dim in range(ndim) if dim != axis]) for axis, bound in enumerate(bounds)
        ]
        squares = functools.reduce(jnp.minimum, aligned) + jnp.square(gradient)
        mean = momentum * mean + (1 - momentum) * gradient * _inverse_root(squares)
        new_bounds = [squares.max([dim for dim in range(ndim) if dim != axis]) for axis in range(ndim)] or [squares]
        return x - schedule(i) * mean, mean, new_bounds

    return _with_slots(step, [jnp.zeros_like, vectors])


_SCHEDULE = Family(
    {"step_size": "the number at step 0."},
    returns="A function from the step to a number.",
    raises=["Nothing."],
)


@documented(_SCHEDULE, returns="A function from the step to `step_size`.")
def constant(step_size: ArrayLike) -> Schedule:
    """Create the schedule of a constant.

    Args:
        step_size: the number.

    Example:
        >>> jax.example_libraries.optimizers.constant(0.1)(7)
        0.1
    """
    return lambda i: step_size


@documented(_SCHEDULE)
def exponential_decay(step_size: float, decay_steps: float, decay_rate: float) -> Schedule:
    """Create the schedule `step_size * decay_rate ** (i / decay_steps)`.

    Args:
        decay_steps: the number of steps in which it is multiplied by `decay_rate`.
        decay_rate: the factor.

    Example:
        >>> jax.example_libraries.optimizers.exponential_decay(1.0, 10, 0.25)(5)
        0.5
    """
    return lambda i: step_size * decay_rate ** (i / decay_steps)


@documented(_SCHEDULE)
def inverse_time_decay(step_size: float, decay_steps: float, decay_rate: float, staircase: bool = False) -> Schedule:
    """Create the schedule `step_size / (1 + decay_rate * i / decay_steps)`.

    Args:
        decay_steps: the number of steps after which `decay_rate` is added to the denominator.
        decay_rate: this summand.
        staircase: whether the number changes only after `decay_steps` steps each.

    Example:
        >>> jax.example_libraries.optimizers.inverse_time_decay(1.0, 10, 1.0)(10)
        0.5
    """
    if staircase:
        return lambda i: step_size / (1 + decay_rate * jnp.floor(i / decay_steps))
    return lambda i: step_size / (1 + decay_rate * i / decay_steps)


@documented(_SCHEDULE)
def polynomial_decay(step_size: float, decay_steps: float, final_step_size: float, power: float = 1.0) -> Schedule:
    """Create a schedule that falls like a polynomial and stays constant afterwards.

    Args:
        decay_steps: the step from which on the number is `final_step_size`.
        final_step_size: the last number.
        power: the degree of the polynomial.

    Example:
        >>> jax.example_libraries.optimizers.polynomial_decay(1.0, 10, 0.5)(20)
        Array(0.5, dtype=float32, weak_type=True)
    """

    def schedule(i: ArrayLike) -> Array:
        remaining = 1 - jnp.minimum(i, decay_steps) / decay_steps
        return final_step_size + (step_size - final_step_size) * remaining**power

    return schedule


def piecewise_constant(boundaries: Sequence[float] | Array, values: Sequence[float] | Array) -> Schedule:
    """Create a schedule of several constants.

    Args:
        boundaries: the steps after which the number changes.
        values: the numbers, one more than there are boundaries.

    Returns:
        A function from the step to a number.

    Raises:
        ValueError: if the arguments are not sequences, or do not have these lengths.

    Example:
        >>> jax.example_libraries.optimizers.piecewise_constant([10], [1.0, 0.5])(11)
        Array(0.5, dtype=float32)
    """
    limits, numbers = jnp.array(boundaries), jnp.array(values)
    if limits.ndim != 1 or numbers.ndim != 1:
        raise ValueError(
            f"piecewise_constant: boundaries and values must be sequences, not of shapes {limits.shape} and "
            f"{numbers.shape}"
        )
    if limits.size != numbers.size - 1:
        raise ValueError(
            f"piecewise_constant: {limits.size} boundaries need {limits.size + 1} values, not {numbers.size}"
        )
    return lambda i: numbers[jnp.sum(i > limits)]


def make_schedule(scalar_or_schedule: StepSize) -> Schedule:
    """Convert a number to a schedule.

    Args:
        scalar_or_schedule: a number, or a function from the step to a number.

    Returns:
        A function from the step to a number.

    Raises:
        TypeError: if the argument is neither a number nor a function.

    Example:
        >>> jax.example_libraries.optimizers.make_schedule(0.1)(3)
        0.1
    """
    if callable(scalar_or_schedule):
        return scalar_or_schedule
    if jnp.ndim(scalar_or_schedule) == 0:
        return constant(scalar_or_schedule)
    raise TypeError(
        f"a step size must be a number or a function from the step to a number, not an array of shape "
        f"{jnp.shape(scalar_or_schedule)}"
    )


def l2_norm(tree: object) -> Array:
    """Compute the Euclidean norm of all elements of a pytree.

    Args:
        tree: a pytree of arrays and numbers.

    Returns:
        The norm, a scalar.

    Raises:
        TypeError: if a leaf is neither an array nor a number.

    Example:
        >>> jax.example_libraries.optimizers.l2_norm({"a": jnp.array([3.0]), "b": jnp.array(4.0)})
        Array(5., dtype=float32)
    """
    return jnp.sqrt(functools.reduce(operator.add, [jnp.vdot(x, x) for x in _leaves(tree)], jnp.zeros(())))


_leaves = tree.leaves  # the parameter of `l2_norm` has the name of the module


def clip_grads(grad_tree: _T, max_norm: float) -> _T:
    """Scale gradients so that their Euclidean norm is at most `max_norm`.

    Args:
        grad_tree: a pytree of arrays.
        max_norm: the largest norm.

    Returns:
        A pytree like `grad_tree`.

    Raises:
        TypeError: if a leaf is neither an array nor a number.

    Example:
        >>> jax.example_libraries.optimizers.clip_grads([jnp.array([3.0, 4.0])], 2.5)
        [Array([1.5, 2. ], dtype=float32)]
    """
    norm = l2_norm(grad_tree)
    return tree.map(lambda x: jnp.where(norm < max_norm, x, x * (max_norm / norm)), grad_tree)


@final
class JoinPoint:
    """The state of one array, as a leaf of a pytree like the parameters.

    Args:
        subtree: the state.

    Raises:
        Nothing.

    Example:
        >>> list(jax.example_libraries.optimizers.JoinPoint([1, 2]))
        [[1, 2]]
    """

    def __init__(self, subtree: object) -> None:
        self.subtree = subtree

    def __iter__(self) -> Any:
        yield self.subtree


def unpack_optimizer_state(opt_state: OptimizerState) -> Any:
    """Convert the state of an optimizer to a pytree like the parameters, to be saved.

    Args:
        opt_state: the state.

    Returns:
        A pytree of `JoinPoint`s.

    Raises:
        AttributeError: if `opt_state` is not an `OptimizerState`.

    Example:
        >>> state = jax.example_libraries.optimizers.sgd(0.1).init_fn({"w": jnp.ones(2)})
        >>> jax.example_libraries.optimizers.unpack_optimizer_state(state)["w"].subtree
        (Array([1., 1.], dtype=float32),)
    """
    return tree.unflatten(opt_state.tree_def, [JoinPoint(state) for state in _leaf_states(opt_state)])


def pack_optimizer_state(marked_pytree: object) -> OptimizerState:
    """Convert a pytree of `JoinPoint`s to the state of an optimizer: the inverse of `unpack_optimizer_state`.

    Args:
        marked_pytree: a pytree of `JoinPoint`s.

    Returns:
        The state.

    Raises:
        TypeError: if a leaf is not a `JoinPoint`.

    Example:
        >>> point = jax.example_libraries.optimizers.JoinPoint((jnp.ones(2),))
        >>> jax.example_libraries.optimizers.pack_optimizer_state({"w": point}).packed_state
        [[Array([1., 1.], dtype=float32)]]
    """
    leaves, structure = tree.flatten(marked_pytree)
    if wrong := [leaf for leaf in leaves if not isinstance(leaf, JoinPoint)]:
        raise TypeError(f"pack_optimizer_state: every leaf must be a JoinPoint, not {type(wrong[0]).__name__}")
    return _pack(structure, [leaf.subtree for leaf in leaves])


publish(__name__)
