"""Penzai: the README's perceptron with captured activations, selectors, named axes, parameters sharded by axis names,
`StatefulTrainer`, dropout, a Llama-like transformer with gradients.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from penzai import pz
from penzai.models import simple_mlp
from penzai.models.transformer.variants import llamalike_common
from penzai.toolshed import basic_training, sharding_util

from tests.ecosystem.report import mesh, report, shard, spec_text

rng = np.random.default_rng(0)


@pz.pytree_dataclass
class Record(pz.nn.Layer):
    """Appends its input to a variable."""

    saved: pz.StateVariable[list[Any]]

    def __call__(self, x, **side_inputs):
        self.saved.value = [*self.saved.value, x]
        return x


perceptron = simple_mlp.MLP.from_config(name="mlp", init_base_rng=jax.random.key(0), feature_sizes=[8, 32, 32, 8])
batch = pz.nx.wrap(shard(rng.normal(size=(16, 8)).astype(np.float32), "data")).tag("batch", "features")
activations = pz.StateVariable(value=[], label="activations")
recording = pz.select(perceptron).at_instances_of(pz.nn.Elementwise).insert_after(Record(activations))
report("output", recording(batch).unwrap("batch", "features"))
report("activations", [float(jnp.abs(value.unwrap("batch", "features")).sum()) for value in activations.value])
weights = pz.select(perceptron).at_instances_of(pz.Parameter)
report("parameters", [f"{p.label} {dict(p.value.named_shape)}" for p in weights.get_sequence()])
scaled = (
    pz.select(pz.freeze_params(perceptron))
    .at_instances_of(pz.nx.NamedArray | pz.nx.NamedArrayView)
    .apply(lambda array: array * 0.5)
)
report("scaled", jax.jit(lambda model, x: model(x))(scaled, batch).unwrap("batch", "features")[:4])

table = pz.nx.wrap(shard(rng.normal(size=(8, 4, 6)).astype(np.float32), "data")).tag("row", "column", "depth")
centered = table - pz.nx.nmap(jnp.mean)(table.untag("row"))
report("named axes", pz.nx.nmap(jnp.linalg.norm)(centered.untag("column", "depth")).unwrap("row"))
report("indexed", table[{"row": pz.nx.wrap(jnp.array([3, 1])).tag("row"), "depth": 2}].unwrap("row", "column"))
contracted = pz.nx.nmap(jnp.dot)(table.untag("depth"), (table * 2).untag("depth"))
report("contracted", contracted.unwrap("row", "column"))

frozen, parameters = pz.unbind_params(perceptron)
placed = sharding_util.name_to_name_device_put(
    pz.freeze_params(parameters), mesh, axis_name_to_mesh_name={"features_out": "model"}
)
if mesh.size > 1:
    report("shardings", [spec_text(parameter.value.data_array) for parameter in placed])
perceptron = pz.bind_variables(frozen, [parameter.unfreeze_as_copy() for parameter in placed])
targets = shard(rng.normal(size=(16, 8)).astype(np.float32), "data")


def regression(model, rng, state, x, y):
    dropped = pz.select(model).at_instances_of(pz.nn.Elementwise).insert_after(pz.nn.StochasticDropout(0.1))
    output = dropped(x, random_stream=pz.RandomStream.from_base_key(rng))
    loss = ((output.unwrap("batch", "features") - y) ** 2).mean()
    return loss, state, {"loss": loss}


trainer = basic_training.StatefulTrainer.build(
    root_rng=jax.random.key(1), model=perceptron, optimizer_def=optax.adam(1e-2), loss_fn=regression
)
report("trainer", [float(trainer.step(x=batch, y=targets)["loss"]) for _ in range(4)])

config = llamalike_common.LlamalikeTransformerConfig(
    num_kv_heads=2,
    query_head_multiplier=2,
    embedding_dim=16,
    projection_dim=4,
    mlp_hidden_dim=32,
    num_decoder_blocks=1,
    vocab_size=24,
    mlp_variant="swiglu",
    tie_embedder_and_logits=False,
)
transformer = llamalike_common.build_llamalike_transformer(config, init_base_rng=jax.random.key(2))
tokens = pz.nx.wrap(shard(rng.integers(0, 24, (8, 10)), "data")).tag("batch", "seq")


@jax.jit
def loss_and_grads(parameters, tokens):
    def loss(parameters):
        model = pz.bind_variables(structure, parameters)
        log_probs = pz.nx.nmap(jax.nn.log_softmax)(model(tokens).untag("vocabulary")).tag("vocabulary")
        chosen = log_probs.unwrap("batch", "seq", "vocabulary")[:, :-1]
        following = tokens.unwrap("batch", "seq")[:, 1:]
        return -jnp.take_along_axis(chosen, following[..., None], -1).mean()

    return jax.value_and_grad(loss)(parameters)


structure, parameters = pz.unbind_params(transformer, freeze=True)
loss, grads = loss_and_grads(parameters, tokens)
report("transformer", float(loss))
report("gradients", [float(jnp.abs(grad.value.data_array).sum()) for grad in grads])
