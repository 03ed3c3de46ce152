"""Training steps of a small language model, as users write them, for pipelines made of ordinary steps."""

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.tree_util import tree_leaves, tree_map

LAYERS, WIDTH, HIDDEN, VOCABULARY, ROWS = 5, 8, 16, 32, 24


def loss_of(params, tokens, targets):
    def layer(x, w):
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    x = lax.scan(layer, params["table"][tokens], params["layers"])[0]
    log_p = sw.nn.log_softmax(x @ params["head"])
    return -jnp.take_along_axis(log_p, targets[:, None], 1).mean()


def tied_loss(params, tokens, targets):
    """A loss whose embedding is its head too, as in GPT-2."""
    return loss_of({**params, "head": params["table"].T}, tokens, targets)


def initial_params(seed=0, layers=LAYERS):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return (0.3 * rng.normal(size=shape)).astype(np.float32)

    stacks = {"up": normal(layers, WIDTH, HIDDEN), "down": normal(layers, HIDDEN, WIDTH)}
    return {"table": normal(VOCABULARY, WIDTH), "head": normal(WIDTH, VOCABULARY), "layers": stacks}


def batch(seed=1):
    return tuple(np.random.default_rng(seed).integers(0, VOCABULARY, size=(2, ROWS)).astype(np.int32))


def zeros_like(params):
    return tree_map(jnp.zeros_like, params)


def sgd(params, tokens, targets):
    """Gradient descent; the result is a tuple of parameters and loss."""
    loss, gradients = sw.value_and_grad(loss_of)(params, tokens, targets)
    return tree_map(lambda p, g: p - 0.1 * g, params, gradients), loss


@sw.jit
def clipped_adam(state, tokens, targets, rate):
    """Adam with a clipped global norm and metrics, whose state is a dict."""
    loss, gradients = sw.value_and_grad(loss_of)(state["params"], tokens, targets)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in tree_leaves(gradients)))
    gradients = tree_map(lambda g: g * jnp.minimum(1.0, 0.5 / norm), gradients)
    count = state["count"] + 1
    mean = tree_map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradients)
    square = tree_map(lambda v, g: 0.99 * v + 0.01 * g * g, state["square"], gradients)

    def updated(p, m, v):
        return p - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.99**count)) + 1e-8)

    params = tree_map(updated, state["params"], mean, square)
    sizes = tree_map(lambda p: jnp.sqrt(jnp.mean(p**2)), params)
    new = {"params": params, "mean": mean, "square": square, "count": count}
    return new, {"loss": loss, "norm": norm, "sizes": sizes}


def adam_state():
    params = initial_params()
    return {"params": params, "mean": zeros_like(params), "square": zeros_like(params), "count": jnp.array(0)}


def factored(params, rows, columns, tokens, targets):
    """Adafactor's statistics of rows and columns, a norm of each array's update, and skipped updates after overflow."""
    loss, gradients = sw.value_and_grad(loss_of)(params, tokens, targets)
    is_finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in tree_leaves(gradients)]))

    def new_row(r, g):
        return 0.9 * r + 0.1 * (g * g).mean(-1)

    def new_column(c, g):
        return 0.9 * c + 0.1 * (g * g).mean(-2)

    rows = tree_map(new_row, rows, gradients)
    columns = tree_map(new_column, columns, gradients)

    def updated(p, g, r, c):
        update = g / jnp.sqrt(r[..., None] * c[..., None, :] / r.mean(-1)[..., None, None] + 1e-6)
        update = update / jnp.maximum(1.0, jnp.sqrt((update**2).mean()))
        return jnp.where(is_finite, p - 0.05 * update, p)

    return tree_map(updated, params, gradients, rows, columns), rows, columns, loss


def factored_state():
    params = initial_params()
    rows = tree_map(lambda p: jnp.zeros(p.shape[:-1]), params)
    columns = tree_map(lambda p: jnp.zeros((*p.shape[:-2], p.shape[-1])), params)
    return params, rows, columns


def loss_scaled(state, tokens, targets):
    """Gradients of a scaled loss; the scale and a moving average of parameters are state."""
    scale = state["scale"]
    gradients = sw.grad(lambda params: scale * loss_of(params, tokens, targets))(state["params"])
    largest = jnp.max(jnp.stack([jnp.abs(g).max() for g in tree_leaves(gradients)]))
    params = tree_map(lambda p, g: p - 0.1 * g / scale, state["params"], gradients)
    average = tree_map(lambda a, p: 0.9 * a + 0.1 * p, state["average"], params)
    return {"params": params, "average": average, "scale": jnp.where(largest < 100.0, 2 * scale, scale / 2)}


def tied_momentum(state, tokens, targets):
    """Momentum and a clipped norm; the first and the last stage read the table."""
    loss, gradients = sw.value_and_grad(tied_loss)(state["params"], tokens, targets)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in tree_leaves(gradients)))
    mean = tree_map(lambda m, g: 0.9 * m + g * jnp.minimum(1.0, 1.0 / norm), state["mean"], gradients)
    return {"params": tree_map(lambda p, m: p - 0.1 * m, state["params"], mean), "mean": mean}, (loss, norm)


def tied_state():
    params = {name: value for name, value in initial_params().items() if name != "head"}
    return {"params": params, "mean": zeros_like(params)}


def loss_with_metrics(params, tokens, targets):
    """A loss whose auxiliary results are computed in all stages, of floats and integers, and a number."""
    embedded = params["table"][tokens]

    def layer(x, w):
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    logits = lax.scan(layer, embedded, params["layers"])[0] @ params["head"]
    losses = -jnp.take_along_axis(sw.nn.log_softmax(logits), targets[:, None], 1)[:, 0]
    metrics = {
        "close": (losses < 10).all(),
        "correct": (logits.argmax(-1) == targets).sum(),
        "embedded": (embedded**2).mean(),
        "head": (params["head"] ** 2).mean(),
        "largest": logits.max(0),
        "losses": losses,
        "nll": losses.mean(),
        "rows": len(tokens),
        "tokens": tokens,
    }
    return losses.mean() + 1e-3 * (sw.nn.logsumexp(logits, -1) ** 2).mean(), (metrics, logits)


def with_metrics(params, tokens, targets):
    """Gradient descent whose rate depends on an auxiliary result. The logits, another one, are not used."""
    loss = sw.value_and_grad(loss_with_metrics, has_aux=True)
    (value, (metrics, _)), gradients = loss(params, tokens, targets)
    rate = 0.1 / (1 + metrics["nll"])
    new = tree_map(lambda p, g: p - rate * g, params, gradients)
    return new, {**metrics, "loss": value, "perplexity": jnp.exp(metrics["nll"])}


def with_rates_of_layers(state, tokens, targets):
    """A rate for each layer, and biases that are not differentiated, as those that balance experts."""

    def loss(params):
        def layer(x, layer):
            w, bias = layer
            x = x + jnp.tanh(x @ w["up"] + bias) @ w["down"]
            return x, (x**2).mean(1)

        x, squares = lax.scan(layer, params["table"][tokens], (params["layers"], state["bias"]))
        log_p = sw.nn.log_softmax(x @ params["head"])
        return -jnp.take_along_axis(log_p, targets[:, None], 1).mean(), squares.mean(1)

    (value, squares), gradients = sw.value_and_grad(loss, has_aux=True)(state["params"])
    rates = 0.1 / (1 + squares[:, None, None])
    new = tree_map(lambda p, g: p - 0.1 * g, state["params"], gradients)
    new["layers"] = tree_map(lambda p, g: p - rates * g, state["params"]["layers"], gradients["layers"])
    return {"params": new, "bias": state["bias"] - 0.1 * jnp.sign(squares)}, (value, squares)


def biased_state():
    return {"params": initial_params(), "bias": jnp.zeros(LAYERS)}
