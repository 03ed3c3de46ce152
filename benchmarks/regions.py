"""Bodies of shard_map with explicit collectives, for any library with JAX's names.

Each is a function of shards along one mesh axis. The function of the same name with the suffix `_reference` computes
the same of global arrays on one device.
"""

from collections.abc import Callable
from typing import Any

Body = Callable[..., Any]


def ring(count: int) -> list[tuple[int, int]]:
    """Return the pairs of a ppermute by one device."""
    return [(member, (member + 1) % count) for member in range(count)]


def attention(library: Any, axis: str) -> Body:
    """Return causal ring attention: the sequence is sharded, and keys and values travel around the ring.

    Shards are (batch, length, heads, features).
    """
    jnp, lax = library.numpy, library.lax

    def body(q: Any, k: Any, v: Any) -> Any:
        count, device = lax.axis_size(axis), lax.axis_index(axis)
        length, width = q.shape[1], q.shape[3]
        query_positions = device * length + jnp.arange(length)

        def step_body(carry: Any, step: Any) -> Any:
            k, v, total, weight, maximum = carry
            key_positions = (device - step) % count * length + jnp.arange(length)
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * width**-0.5
            scores = jnp.where(query_positions[:, None] >= key_positions[None, :], scores, -1e9)
            new_top = jnp.maximum(maximum, scores.max(-1))
            exponentials = jnp.exp(scores - new_top[..., None])
            rescale = jnp.exp(maximum - new_top)
            weight = weight * rescale + exponentials.sum(-1)
            total = total * rescale[..., None] + jnp.einsum("bhqk,bkhd->bhqd", exponentials, v)
            k, v = lax.ppermute((k, v), axis, ring(count))
            return (k, v, total, weight, new_top), None

        batch, _, heads, _ = q.shape
        start = (
            jnp.zeros((batch, heads, length, width), q.dtype),
            jnp.zeros((batch, heads, length), q.dtype),
            jnp.full((batch, heads, length), -1e9, q.dtype),
        )
        start = library.tree.map(lambda x: lax.pcast(x, axis, to="varying"), start)
        (_, _, total, weight, _), _ = lax.scan(step_body, (k, v, *start), jnp.arange(count))
        return jnp.moveaxis(total / weight[..., None], 1, 2)

    return body


def attention_reference(library: Any) -> Body:
    jnp = library.numpy

    def reference(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[3] ** -0.5
        causal = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))
        return jnp.einsum("bhqk,bkhd->bqhd", library.nn.softmax(jnp.where(causal, scores, -1e9)), v)

    return reference


def experts(library: Any, axis: str) -> Body:
    """Return a mixture of experts: tokens and experts are sharded, and an all-to-all sends tokens to their experts.

    An expert has capacity for all tokens. Arguments are the tokens (tokens, features), the replicated router, and the
    weights of the experts (experts, features, hidden) and (experts, hidden, features).
    """
    jnp, lax, nn = library.numpy, library.lax, library.nn

    def body(x: Any, router: Any, up: Any, down: Any) -> Any:
        length, count = x.shape[0], router.shape[1]
        weights = nn.softmax(x @ router)
        expert = nn.one_hot(jnp.argmax(weights, -1), count, dtype=x.dtype)
        slot = (jnp.cumsum(expert, 0) * expert).sum(-1).astype(jnp.int32) - 1
        dispatch = expert[:, :, None] * nn.one_hot(slot, length, dtype=x.dtype)[:, None, :]
        received = lax.all_to_all(jnp.einsum("tec,td->ecd", dispatch, x), axis, 0, 1, tiled=True)
        hidden = jnp.maximum(jnp.einsum("ecd,edf->ecf", received, up), 0.0)
        outputs = lax.all_to_all(jnp.einsum("ecf,efd->ecd", hidden, down), axis, 1, 0, tiled=True)
        return jnp.einsum("tec,ecd->td", dispatch * weights[:, :, None], outputs)

    return body


def experts_reference(library: Any) -> Body:
    jnp, nn = library.numpy, library.nn

    def reference(x: Any, router: Any, up: Any, down: Any) -> Any:
        weights = nn.softmax(x @ router)
        expert = nn.one_hot(jnp.argmax(weights, -1), router.shape[1], dtype=x.dtype)
        hidden = jnp.maximum(jnp.einsum("td,edf->tef", x, up), 0.0)
        return jnp.einsum("tef,efd,te->td", hidden, down, weights * expert)

    return reference


def pipeline(library: Any, axis: str) -> Body:
    """Return a pipeline with one layer per device: microbatches go from device to device, a psum shares the results.

    Arguments are the weight of the device, (1, features, features), and all microbatches.
    """
    jnp, lax = library.numpy, library.lax

    def body(weight: Any, batches: Any) -> Any:
        count, device = lax.axis_size(axis), lax.axis_index(axis)
        number = batches.shape[0]

        def step_body(arriving: Any, step: Any) -> Any:
            first = batches[jnp.minimum(step, number - 1)]
            outputs = jnp.tanh(jnp.where(device == 0, first, arriving) @ weight[0])
            return lax.ppermute(outputs, axis, ring(count)[:-1]), outputs

        start = lax.pcast(jnp.zeros_like(batches[0]), axis, to="varying")
        _, outputs = lax.scan(step_body, start, jnp.arange(number + count - 1))
        return lax.psum(jnp.where(device == count - 1, outputs[count - 1 :], 0.0), axis)

    return body


def pipeline_reference(library: Any) -> Body:
    jnp = library.numpy

    def reference(weights: Any, batches: Any) -> Any:
        for index in range(weights.shape[0]):
            batches = jnp.tanh(batches @ weights[index])
        return batches

    return reference


def stencil(library: Any, axis: str, steps: int) -> Body:
    """Return a stencil that averages each row with its neighbours, `steps` times; rows past the ends are zeros.

    Rows are sharded: each device sends its first and last row to its neighbours.
    """
    jnp, lax = library.numpy, library.lax

    def body(x: Any) -> Any:
        forward_pairs = ring(lax.axis_size(axis))[:-1]
        backward_pairs = [(b, a) for a, b in forward_pairs]

        def step_body(x: Any, _: Any) -> Any:
            before = lax.ppermute(x[-1:], axis, forward_pairs)
            after = lax.ppermute(x[:1], axis, backward_pairs)
            rows = jnp.concatenate([before, x, after])
            return 0.5 * rows[1:-1] + 0.25 * (rows[:-2] + rows[2:]), None

        return lax.scan(step_body, x, None, length=steps)[0]

    return body


def stencil_reference(library: Any, steps: int) -> Body:
    jnp = library.numpy

    def reference(x: Any) -> Any:
        for _ in range(steps):
            rows = jnp.pad(x, ((1, 1), (0, 0)))
            x = 0.5 * rows[1:-1] + 0.25 * (rows[:-2] + rows[2:])
        return x

    return reference


def fsdp_layers(library: Any, axis: str) -> Body:
    """Return a scan over fully sharded layers: a weight is all-gathered for its layer, and again for its gradient."""
    jnp, lax = library.numpy, library.lax

    def layer(x: Any, weight: Any) -> Any:
        return x + jnp.tanh(x @ lax.all_gather(weight, axis, tiled=True)), None

    def body(x: Any, weights: Any) -> Any:
        return lax.scan(library.checkpoint(layer), x, weights)[0]

    return body


def fsdp_layers_reference(library: Any) -> Body:
    jnp = library.numpy

    def reference(x: Any, weights: Any) -> Any:
        for index in range(weights.shape[0]):
            x = x + jnp.tanh(x @ weights[index])
        return x

    return reference


def megatron_mlp(library: Any, axis: str) -> Body:
    """Return two products with sharded hidden features: each device has a partial result, summed by a psum."""
    jnp, lax = library.numpy, library.lax

    def body(x: Any, up: Any, down: Any) -> Any:
        return lax.psum(jnp.tanh(x @ up) @ down, axis)

    return body


def megatron_mlp_reference(library: Any) -> Body:
    jnp = library.numpy
    return lambda x, up, down: jnp.tanh(x @ up) @ down
