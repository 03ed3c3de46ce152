"""Jraph: the README's graphs and `batch`, padding, a `GraphNetwork` that is trained, `GAT`, `GraphConvolution`,
`InteractionNetwork`, partition softmax.
"""

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import optax

from tests.ecosystem.report import explain, report, shard

ring = jraph.GraphsTuple(
    nodes=jnp.arange(3.0)[:, None],
    edges=jnp.array([[5.0], [6.0], [7.0]]),
    senders=jnp.array([0, 1, 2]),
    receivers=jnp.array([1, 2, 0]),
    n_node=jnp.array([3]),
    n_edge=jnp.array([3]),
    globals=jnp.ones((1, 1)),
)
pair = jraph.batch([ring, ring])
report("batched nodes", pair.nodes)
report("batched edges", [pair.senders, pair.receivers])
report("sizes", [pair.n_node, pair.n_edge])
report("unbatched", jraph.unbatch(pair)[1].edges)
nested = ring._replace(nodes={"inputs": ring.nodes, "targets": jnp.array([[True], [False], [True]])})
report("nested", jraph.batch([nested, nested]).nodes["targets"])
passed = jraph.GraphNetwork(
    update_edge_fn=lambda edge, sender, receiver, context: edge + sender * receiver,
    update_node_fn=jraph.concatenated_args(lambda features: features.sum(-1, keepdims=True)),
    update_global_fn=lambda nodes, edges, context: context + nodes - edges,
)(pair)
report("network", [*np.ravel(passed.nodes), *np.ravel(passed.edges), *np.ravel(passed.globals)])

rng = np.random.default_rng(0)


def random_graph(n_node, n_edge):
    return jraph.GraphsTuple(
        nodes=rng.normal(size=(n_node, 4)).astype(np.float32),
        edges=rng.normal(size=(n_edge, 3)).astype(np.float32),
        senders=rng.integers(0, n_node, n_edge).astype(np.int32),
        receivers=rng.integers(0, n_node, n_edge).astype(np.int32),
        n_node=np.array([n_node], np.int32),
        n_edge=np.array([n_edge], np.int32),
        globals=np.zeros((1, 2), np.float32),
    )


graphs = jraph.batch_np([random_graph(3 + index, 6 + 2 * index) for index in range(7)])
padded = jraph.pad_with_graphs(graphs, n_node=64, n_edge=128, n_graph=8)
node_mask, graph_mask = jraph.get_node_padding_mask(padded), jraph.get_graph_padding_mask(padded)
report("masks", [node_mask.sum(), graph_mask.sum(), jraph.get_edge_padding_mask(padded).sum()])
graph = jax.tree.map(lambda x: shard(x, "data"), padded)
targets = shard(rng.normal(size=8).astype(np.float32), "data")


def dense(params, x):
    return jnp.tanh(x @ params["weight"] + params["bias"])


def initialized(key, rows, columns):
    return {"weight": jax.random.normal(key, (rows, columns)) / rows**0.5, "bias": jnp.zeros(columns)}


edge_key, node_key, global_key = jax.random.split(jax.random.key(0), 3)
params = {
    "edge": initialized(edge_key, 3 + 4 + 4 + 2, 8),
    "node": initialized(node_key, 4 + 8 + 8 + 2, 8),
    "global": initialized(global_key, 8 + 8 + 2, 1),
}
optimizer = optax.adam(1e-2)


def loss_fn(params, graph):
    net = jraph.GraphNetwork(
        *(jraph.concatenated_args(lambda x, part=part: dense(params[part], x)) for part in ("edge", "node", "global"))
    )
    errors = (net(graph).globals[:, 0] - targets) ** 2
    return jnp.where(jraph.get_graph_padding_mask(graph), errors, 0.0).sum() / 7


@jax.jit
def step(params, state, graph):
    loss, grads = jax.value_and_grad(loss_fn)(params, graph)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, loss, grads


explain(step, params, optimizer.init(params), graph)
state, losses = optimizer.init(params), []
for _ in range(4):
    params, state, loss, grads = step(params, state, graph)
    losses.append(float(loss))
report("losses", losses)
report("gradients", np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(grads)]))

convolution = jraph.GraphConvolution(lambda nodes: nodes @ params["node"]["weight"][:4], add_self_edges=True)
report("convolution", jax.jit(convolution)(graph).nodes[:32])
attention = jraph.GAT(
    attention_query_fn=lambda nodes: nodes * 2,
    attention_logit_fn=lambda sender, receiver, edge: (sender * receiver).sum(-1, keepdims=True),
    node_update_fn=None,
)
report("attention", jax.jit(lambda graph: attention(graph._replace(edges=None)).nodes)(graph)[:32])
interaction = jraph.InteractionNetwork(
    update_edge_fn=lambda edge, sender, receiver: jnp.concatenate([edge, sender - receiver], -1),
    update_node_fn=lambda node, received: jnp.concatenate([node, received], -1),
)
report("interaction", jax.jit(interaction)(graph).nodes[:32])
report("softmax", jax.jit(lambda graph: jraph.partition_softmax(graph.nodes[:, 0], graph.n_node, 64))(graph))
