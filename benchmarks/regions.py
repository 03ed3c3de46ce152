"""Programs that say themselves what devices send each other: bodies of shard_map, for a library with JAX's names.

Each is a function of pieces along one axis of the mesh. What it computes is what the function of the same name, with
`_alone`, computes of whole arrays on one device.
"""

from collections.abc import Callable
from typing import Any

Body = Callable[..., Any]


def ring(count: int) -> list[tuple[int, int]]:
    """Everybody sends to the next."""
    return [(member, (member + 1) % count) for member in range(count)]


def attention(library: Any, axis: str) -> Body:
    """Causal attention of a sequence that is cut: keys and values go round, and each device meets all of them in turn.

    Pieces are batch, length, heads, features.
    """
    jnp, lax = library.numpy, library.lax

    def body(q: Any, k: Any, v: Any) -> Any:
        count, me = lax.axis_size(axis), lax.axis_index(axis)
        length, width = q.shape[1], q.shape[3]
        mine = me * length + jnp.arange(length)

        def turn(carry: Any, step: Any) -> Any:
            k, v, total, weight, top = carry
            theirs = (me - step) % count * length + jnp.arange(length)
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * width**-0.5
            scores = jnp.where(mine[:, None] >= theirs[None, :], scores, -1e9)
            higher = jnp.maximum(top, scores.max(-1))
            part = jnp.exp(scores - higher[..., None])
            kept = jnp.exp(top - higher)
            weight = weight * kept + part.sum(-1)
            total = total * kept[..., None] + jnp.einsum("bhqk,bkhd->bhqd", part, v)
            k, v = lax.ppermute((k, v), axis, ring(count))
            return (k, v, total, weight, higher), None

        batch, _, heads, _ = q.shape
        start = (
            jnp.zeros((batch, heads, length, width), q.dtype),
            jnp.zeros((batch, heads, length), q.dtype),
            jnp.full((batch, heads, length), -1e9, q.dtype),
        )
        start = library.tree.map(lambda x: lax.pcast(x, axis, to="varying"), start)
        (_, _, total, weight, _), _ = lax.scan(turn, (k, v, *start), jnp.arange(count))
        return jnp.moveaxis(total / weight[..., None], 1, 2)

    return body


def attention_alone(library: Any) -> Body:
    jnp = library.numpy

    def whole(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[3] ** -0.5
        seen = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))
        return jnp.einsum("bhqk,bkhd->bqhd", library.nn.softmax(jnp.where(seen, scores, -1e9)), v)

    return whole


def experts(library: Any, axis: str) -> Body:
    """A mixture of experts: tokens are cut, experts too. Each token is sent to the device of its best expert, which has
    room for all tokens of every device, and comes back.

    Pieces are tokens × features, the whole router, and experts × features × hidden and back.
    """
    jnp, lax, nn = library.numpy, library.lax, library.nn

    def body(x: Any, router: Any, up: Any, down: Any) -> Any:
        length, count = x.shape[0], router.shape[1]
        weights = nn.softmax(x @ router)
        chosen = nn.one_hot(jnp.argmax(weights, -1), count, dtype=x.dtype)
        place = (jnp.cumsum(chosen, 0) * chosen).sum(-1).astype(jnp.int32) - 1
        sent = chosen[:, :, None] * nn.one_hot(place, length, dtype=x.dtype)[:, None, :]
        mail = lax.all_to_all(jnp.einsum("tec,td->ecd", sent, x), axis, 0, 1, tiled=True)
        hidden = jnp.maximum(jnp.einsum("ecd,edf->ecf", mail, up), 0.0)
        made = lax.all_to_all(jnp.einsum("ecf,efd->ecd", hidden, down), axis, 1, 0, tiled=True)
        return jnp.einsum("tec,ecd->td", sent * weights[:, :, None], made)

    return body


def experts_alone(library: Any) -> Body:
    jnp, nn = library.numpy, library.nn

    def whole(x: Any, router: Any, up: Any, down: Any) -> Any:
        weights = nn.softmax(x @ router)
        chosen = nn.one_hot(jnp.argmax(weights, -1), router.shape[1], dtype=x.dtype)
        hidden = jnp.maximum(jnp.einsum("td,edf->tef", x, up), 0.0)
        return jnp.einsum("tef,efd,te->td", hidden, down, weights * chosen)

    return whole


def pipeline(library: Any, axis: str) -> Body:
    """Layers are cut, one a device. Microbatches go from device to device; the last one has the results, for all.

    Pieces are 1 × features × features, and all microbatches.
    """
    jnp, lax = library.numpy, library.lax

    def body(weight: Any, batches: Any) -> Any:
        count, me = lax.axis_size(axis), lax.axis_index(axis)
        number = batches.shape[0]

        def turn(arriving: Any, step: Any) -> Any:
            first = batches[jnp.minimum(step, number - 1)]
            made = jnp.tanh(jnp.where(me == 0, first, arriving) @ weight[0])
            return lax.ppermute(made, axis, ring(count)[:-1]), made

        start = lax.pcast(jnp.zeros_like(batches[0]), axis, to="varying")
        _, made = lax.scan(turn, start, jnp.arange(number + count - 1))
        return lax.psum(jnp.where(me == count - 1, made[count - 1 :], 0.0), axis)

    return body


def pipeline_alone(library: Any) -> Body:
    jnp = library.numpy

    def whole(weights: Any, batches: Any) -> Any:
        for number in range(weights.shape[0]):
            batches = jnp.tanh(batches @ weights[number])
        return batches

    return whole


def stencil(library: Any, axis: str, times: int) -> Body:
    """Each row becomes a mean with its neighbours, `times` times; beyond the ends are zeros. Rows are cut: each device
    sends its first and its last to the device before and to the one after."""
    jnp, lax = library.numpy, library.lax

    def body(x: Any) -> Any:
        onward = ring(lax.axis_size(axis))[:-1]
        back = [(b, a) for a, b in onward]

        def turn(x: Any, _: Any) -> Any:
            before = lax.ppermute(x[-1:], axis, onward)
            after = lax.ppermute(x[:1], axis, back)
            rows = jnp.concatenate([before, x, after])
            return 0.5 * rows[1:-1] + 0.25 * (rows[:-2] + rows[2:]), None

        return lax.scan(turn, x, None, length=times)[0]

    return body


def stencil_alone(library: Any, times: int) -> Body:
    jnp = library.numpy

    def whole(x: Any) -> Any:
        for _ in range(times):
            rows = jnp.pad(x, ((1, 1), (0, 0)))
            x = 0.5 * rows[1:-1] + 0.25 * (rows[:-2] + rows[2:])
        return x

    return whole


def gathered(library: Any, axis: str) -> Body:
    """Layers in a loop, fully sharded: rows of the batch are cut and so is each weight, which is gathered for its layer
    alone, and again for its derivative."""
    jnp, lax = library.numpy, library.lax

    def layer(x: Any, weight: Any) -> Any:
        return x + jnp.tanh(x @ lax.all_gather(weight, axis, tiled=True)), None

    def body(x: Any, weights: Any) -> Any:
        return lax.scan(library.checkpoint(layer), x, weights)[0]

    return body


def gathered_alone(library: Any) -> Body:
    jnp = library.numpy

    def whole(x: Any, weights: Any) -> Any:
        for number in range(weights.shape[0]):
            x = x + jnp.tanh(x @ weights[number])
        return x

    return whole


def summed(library: Any, axis: str) -> Body:
    """Two products, the hidden features between them cut: each device has terms of the result, which are summed."""
    jnp, lax = library.numpy, library.lax

    def body(x: Any, up: Any, down: Any) -> Any:
        return lax.psum(jnp.tanh(x @ up) @ down, axis)

    return body


def summed_alone(library: Any) -> Body:
    jnp = library.numpy
    return lambda x, up, down: jnp.tanh(x @ up) @ down
