"""A mixture-of-experts layer: tokens are routed to k experts each, which are sharded over a mesh axis.

Each device routes its own tokens, and sends each to the devices that hold its experts (dispatch). These send the
results back (combine). With a capacity, an expert has as many places for each sending device, and blocks of one size
are exchanged by all-to-alls. Without, slices of any size are exchanged by ragged all-to-alls, and no token is dropped.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import shardwise.numpy as jnp
from shardwise import lax, tree, tree_util
from shardwise.api.transformations.custom import custom_vjp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, type_of
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.partition.local_program import EXPERTS
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.trace.provenance import named_scope
from shardwise.errors import StrategyError
from shardwise.parallel.axis_region import AxisRegion, MeshAxes, axis_region, axis_text
from shardwise.parallel.expert_products import BatchedProduct, GroupedProduct, Product, gated_mlp
from shardwise.parallel.grouped_dot import block_size
from shardwise.parallel.routing import SCORES, SOFTMAX, Routing, route, starts
from shardwise.typing import ArrayLike

_NAME = "mixture_of_experts"

_Experts = Callable[[Array, Product], Array]  # `experts` with the weights bound
_Slices = tuple[Array, ...]  # the offsets and sizes of a ragged all-to-all


class MixtureAux(NamedTuple):
    """Losses and counts of the router of a mixture-of-experts layer, over all tokens.

    Attributes:
        balance_loss: the load-balancing loss, a scalar: the number of experts times the sum over experts of the share
            of assignments and the mean probability. It is 1 if all experts get as many tokens.
        z_loss: the router z-loss, a scalar: the mean square of the log-sum-exp of the router's logits.
        load: the number of assignments of each expert, before any are dropped.
        dropped: the number of assignments that were dropped because their expert was full.

    Example:
        >>> x, weights = jnp.ones((4, 2)), {name: jnp.ones((2, 2, 2)) for name in ("gate", "up", "down")}
        >>> _, aux = jax.parallel.mixture_of_experts(x, jnp.zeros((4, 2)), weights, k=2)
        >>> aux.load.tolist(), float(aux.balance_loss)
        ([4, 4], 1.0)
    """

    balance_loss: Array
    z_loss: Array
    load: Array
    dropped: Array


def mixture_of_experts(
    x: ArrayLike,
    router_logits: ArrayLike,
    weights: object,
    *,
    k: int,
    experts: Callable[[Any, Array, Product], Array] = gated_mlp,
    capacity_factor: float | None = None,
    normalize: bool = True,
    scores: str = SOFTMAX,
    selection_bias: ArrayLike | None = None,
    axis: MeshAxes | None = None,
    batch_axes: MeshAxes = (),
    mesh: Mesh | AbstractMesh | None = None,
) -> tuple[Array, MixtureAux]:
    """Apply a mixture-of-experts layer whose experts are sharded over a mesh axis.

    Each token is routed to the `k` experts with the largest scores. Its result is the sum of their results, weighted by
    these scores. Tokens are sharded over `batch_axes` and `axis` along their first dim.

    Args:
        x: tokens, [..., features].
        router_logits: the router's logits, [..., experts], such as `x @ router`.
        weights: a pytree of the weights of all experts, each stacked along its first dim. For the default `experts`, a
            dict with "gate" and "up", [experts, features, hidden], and "down", [experts, hidden, features].
        k: the number of experts per token.
        experts: a function `experts(weights, rows, product)` that applies the experts to rows of tokens. It multiplies
            rows by the matrix of each row's expert with `product(rows, matrices)`, and gets the vector of each row's
            expert, such as a bias, with `product.select(vectors)`; other ops must work on each row alone. By default,
            a gated MLP: `product(silu(product(rows, gate)) * product(rows, up), down)`.
        capacity_factor: how many tokens an expert accepts from each device, as a multiple of the mean,
            k · tokens / experts. Further tokens are dropped: the expert adds zeros to them. None: none is dropped.
        normalize: whether the weights of a token's k experts are divided by their sum.
        scores: "softmax" of the router's logits, or "sigmoid", as in DeepSeek-V3.
        selection_bias: a bias of each expert's score, [experts], which affects only which experts are chosen. It has no
            gradient; raise it for experts with few tokens to balance the experts without a loss.
        axis: the mesh axis that shards the experts, or a tuple of axes; None for one device. Inside a `shard_map` over
            it, `x`, `router_logits` and `weights` are the device's shards.
        batch_axes: the other mesh axes that shard the first dim of `x`, major to `axis`.
        mesh: the mesh; by default the current one.

    Returns:
        The result, [..., features], and the losses and counts of the router, over all tokens.

    Raises:
        StrategyError: if shapes do not agree, `k` exceeds the number of experts, the devices along `axis` do not divide
            it, those along all axes do not divide the first dim of `x`, the mesh has no such axis, or `scores` is
            unknown.

    Example:
        >>> mesh = jax.make_mesh((4,), ("expert",))
        >>> x, router = jnp.ones((8, 2)), jnp.zeros((2, 4))
        >>> weights = {"gate": jnp.ones((4, 2, 3)), "up": jnp.ones((4, 2, 3)), "down": jnp.ones((4, 3, 2))}
        >>> y, aux = jax.parallel.mixture_of_experts(x, x @ router, weights, k=2, axis="expert", mesh=mesh)
        >>> y.shape, aux.load.tolist()
        ((8, 2), [8, 8, 0, 0])
    """
    region = axis_region(_NAME, axis, mesh)
    others = (batch_axes,) if isinstance(batch_axes, str) else tuple(batch_axes)
    everywhere = axis_region(_NAME, (*others, *region.axes), mesh) if region.axes else region
    if others and not region.axes:
        raise StrategyError(f"{_NAME}: batch_axes={others} needs an axis of the experts; without one, use vmap or jit")
    _check_operands(x, router_logits, weights, k, capacity_factor, region)
    _check_scores(scores, selection_bias, type_of(router_logits, _NAME).shape[-1])
    if experts is gated_mlp:
        _check_gated_mlp(type_of(x, _NAME).shape[-1], weights)
    everywhere.shard_size(_NAME, "the first dim of x", type_of(x, _NAME).shape[0])

    def layer(x: Array, logits: Array, weights: object, bias: Array | None) -> tuple[Array, MixtureAux]:
        rows = x.reshape(-1, x.shape[-1])
        routing = route(logits.reshape(-1, logits.shape[-1]), k, normalize, scores, bias)
        if capacity_factor is None:
            results, dropped = _dropless(region, rows, routing, partial(experts, weights)), jnp.zeros((), jnp.int32)
        else:
            places = max(1, math.ceil(capacity_factor * routing.expert.size / routing.counts.size))
            results, dropped = _with_capacity(region, rows, routing, partial(experts, weights), places)
        result = (results * routing.weight[..., None].astype(results.dtype)).sum(0)
        return result.reshape(*x.shape[:-1], -1), _aux(everywhere, routing, dropped)

    tokens, stacked, replicated = PartitionSpec(everywhere.axes), PartitionSpec(region.axes), PartitionSpec()
    bias = None if selection_bias is None else as_operand(selection_bias)
    operands = as_operand(x), as_operand(router_logits), tree.map(as_operand, weights), bias
    result: tuple[Array, MixtureAux] = everywhere.run(
        layer, (tokens, tokens, stacked, replicated), (tokens, replicated), *operands
    )
    return result


def _aux(region: AxisRegion, routing: Routing, dropped: Array) -> MixtureAux:
    """Return the losses and counts over the tokens of all devices of a region."""
    experts, tokens = routing.counts.size, routing.weight.shape[1] * region.size
    k = routing.weight.shape[0]
    counts = jnp.concatenate([routing.counts, dropped[None]])
    sums = jnp.concatenate([routing.probability, routing.log_sum[None]])
    if region.axes:
        counts, sums = lax.psum(counts, region.axes), lax.psum(sums, region.axes)
    load, dropped = counts[:-1], counts[-1]
    share = load.astype(sums.dtype) / (k * tokens)
    return MixtureAux(
        balance_loss=experts * (share * sums[:-1] / tokens).sum(), z_loss=sums[-1] / tokens, load=load, dropped=dropped
    )


def _with_capacity(
    region: AxisRegion, rows: Array, routing: Routing, experts: _Experts, places: int
) -> tuple[Array, Array]:
    """Apply experts that have `places` for tokens of each device.

    Returns:
        The result of each assignment, [k, tokens, features], zeros if it is dropped; and the number of those dropped.
    """
    count, tokens = routing.counts.size, rows.shape[0]
    place = jnp.arange(places, dtype=jnp.int32)
    is_filled = place < routing.counts[:, None]  # [expert, place]
    position = jnp.where(is_filled, starts(routing.counts)[:, None] + place, routing.order.size)
    token = routing.order.at[position].get(mode="fill", fill_value=0) % tokens
    # The planner may exchange tokens where they are gathered before and after the experts, as their all-to-alls do.
    with named_scope(EXPERTS):
        blocks = jnp.where(is_filled[..., None], rows[token], 0)  # [expert, place, features]
        if region.axes:
            blocks = lax.all_to_all(blocks, region.axes, 0, 1, tiled=True)  # [own expert, sender and place, features]
        results = experts(blocks, BatchedProduct())
        if region.axes:
            results = lax.all_to_all(results, region.axes, 1, 0, tiled=True)
    is_kept = routing.rank < places
    index = jnp.where(is_kept, routing.expert * places + routing.rank, count * places)
    with named_scope(EXPERTS):
        flat = results.reshape(count * places, results.shape[-1])
        kept = flat.at[index].get(mode="fill", fill_value=0)
    return kept.reshape(-1, tokens, flat.shape[-1]), (~is_kept).sum(dtype=jnp.int32)


def _dropless(region: AxisRegion, rows: Array, routing: Routing, experts: _Experts) -> Array:
    """Apply experts to all of their tokens. Returns the result of each assignment, [k, tokens, features]."""
    tokens = rows.shape[0]
    sorted_rows = rows[routing.order % tokens]
    block = block_size(routing.order.size * region.size // routing.counts.size)  # if experts get as many tokens
    if region.axes:
        there, back, sizes = _slices(region, routing.counts)
        few, many = routing.order.size, routing.order.size * region.size  # rows sent, and received at most
        with named_scope(EXPERTS):
            received = _exchange((region.axes, few, many), sorted_rows, there, back)
            results = experts(received, GroupedProduct(sizes, many, block))
            results = _exchange((region.axes, many, few), results, back, there)
    else:
        with named_scope(EXPERTS):
            results = experts(sorted_rows, GroupedProduct(routing.counts, routing.order.size, block))
    position = starts(routing.counts)[routing.expert] + routing.rank
    return results[position].reshape(-1, tokens, results.shape[-1])


def _slices(region: AxisRegion, counts: Array) -> tuple[_Slices, _Slices, Array]:
    """Return the slices of the ragged all-to-all to the experts, those of the opposite one, and the experts' sizes.

    There is one slice per sender and expert. Senders have them sorted by expert, receivers by expert and then sender.
    """
    size, experts = region.size, counts.size
    own, device = experts // size, lax.axis_index(region.axes)
    table = lax.all_gather(counts, region.axes)  # [sender, expert]
    totals = table.sum(0).reshape(size, own)
    places = starts(totals).reshape(-1) + starts(table, 0)  # [sender, expert]: on the device of the expert
    origins = starts(table)  # on the sender

    def of_own_experts(array: Array) -> Array:
        return lax.dynamic_slice_in_dim(array, device * own, own, 1).reshape(-1)

    there = origins[device], counts, places[device], of_own_experts(table)
    back = of_own_experts(places), of_own_experts(table), of_own_experts(origins), counts
    return there, back, totals[device]


_Exchange = tuple[tuple[str, ...], int, int]  # the axes, and the numbers of rows before and after


def _send(options: _Exchange, rows: Array, there: _Slices, back: _Slices) -> Array:
    """Send slices of rows to other devices. `back` are the slices of the opposite exchange."""
    axes, _, size = options
    return lax.ragged_all_to_all(rows, jnp.zeros((size, *rows.shape[1:]), rows.dtype), *there, axis_name=axes)


def _send_forward(
    options: _Exchange, rows: Array, there: _Slices, back: _Slices
) -> tuple[Array, tuple[_Slices, _Slices]]:
    return _send(options, rows, there, back), (there, back)


def _send_backward(
    options: _Exchange, residuals: tuple[_Slices, _Slices], cotangent: Array
) -> tuple[Array, None, None]:
    (axes, before, after), (there, back) = options, residuals
    return _send((axes, after, before), cotangent, back, there), None, None


# The transpose of an exchange is the opposite exchange, whose slices the layer computes anyway.
_exchange = custom_vjp(_send, nondiff_argnums=(0,))
_exchange.defvjp(_send_forward, _send_backward)


def _check_operands(
    x: ArrayLike, router_logits: ArrayLike, weights: object, k: int, capacity_factor: float | None, region: AxisRegion
) -> None:
    """Raise StrategyError if the operands do not agree."""
    tokens, logits = type_of(x, _NAME), type_of(router_logits, _NAME)
    if tokens.ndim < 2 or not is_float(tokens.dtype):
        raise StrategyError(f"{_NAME}: x must be floating-point tokens [..., features], not {tokens}")
    if not is_float(logits.dtype) or logits.shape[:-1] != tokens.shape[:-1]:
        raise StrategyError(
            f"{_NAME}: router_logits {logits} must be [..., experts] with the dims {tokens.shape[:-1]} of x, {tokens}"
        )
    count = logits.shape[-1]
    expected = count if region.mesh is not None else count // region.size
    for path, leaf in tree.leaves_with_path(weights):
        type = type_of(leaf, _NAME)
        if not type.ndim or type.shape[0] != expected:
            label = f"weights{tree_util.keystr(path)}"
            raise StrategyError(
                f"{_NAME}: {label} {type} must have {expected} experts along its first dim, as router_logits {logits}"
            )
    if not isinstance(k, int) or not 1 <= k <= count:
        raise StrategyError(f"{_NAME}: k must be from 1 to {count}, the number of experts, not {k!r}")
    if capacity_factor is not None and not capacity_factor > 0:
        raise StrategyError(f"{_NAME}: capacity_factor must be a positive number or None, not {capacity_factor!r}")
    if count % region.size:
        raise StrategyError(
            f"{_NAME}: there are {count} experts, which the {region.size} devices along {axis_text(region.axes)} do "
            "not divide. Change the number of experts or the mesh."
        )


def _check_scores(scores: str, selection_bias: ArrayLike | None, count: int) -> None:
    """Raise StrategyError if the scores are unknown, or the bias is not one number per expert."""
    if scores not in SCORES:
        raise StrategyError(f"{_NAME}: scores must be one of {', '.join(map(repr, SCORES))}, not {scores!r}")
    if selection_bias is not None:
        bias = type_of(selection_bias, _NAME)
        if bias.shape != (count,) or not is_float(bias.dtype):
            raise StrategyError(f"{_NAME}: selection_bias must be one number per expert, f32[{count}], not {bias}")


def _check_gated_mlp(features: int, weights: object) -> None:
    """Raise StrategyError if the weights are not those of the default experts."""
    names = ("gate", "up", "down")
    if not isinstance(weights, Mapping) or not set(names) <= set(weights):
        keys = sorted(map(str, weights)) if isinstance(weights, Mapping) else type(weights).__name__
        raise StrategyError(
            f"{_NAME}: the default experts need a dict of weights with 'gate', 'up' and 'down', not {keys}. Pass a "
            "function as `experts` for others"
        )
    gate, up, down = (type_of(weights[name], _NAME) for name in names)
    is_product = gate.ndim == down.ndim == 3 and gate.shape[1] == features and gate.shape[2] == down.shape[1]
    if not is_product or up.shape != gate.shape:
        raise StrategyError(
            f"{_NAME}: weights must be 'gate' and 'up' [experts, features, hidden] and 'down' [experts, hidden, "
            f"features] with {features} features, as x, not {gate}, {up} and {down}"
        )
