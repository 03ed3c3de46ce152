"""Fused projections with their parts apart: the same results, names in files, and plans in which no data moves."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.distributed import checkpoint

import shardwise as jax
from shardwise import NamedSharding, P, strategies
from shardwise.errors import TorchModuleError
from shardwise.torch import (
    functional,
    fused_projections,
    load_distributed_checkpoint,
    load_pickled_weights,
    load_safetensors,
    plan_rules,
    save_distributed_checkpoint,
    save_safetensors,
)
from tests.torch.models import DECODER, VOCABULARY, tokens

pytestmark = pytest.mark.filterwarnings("ignore")

ENCODER = {
    "self_attn.in_proj_weight": "colwise",
    "self_attn.out_proj": "rowwise",
    "linear1": "colwise",
    "linear2": "rowwise",
}


def model(name):
    torch.manual_seed(0)
    sizes = dict(vocab_size=VOCABULARY, n_positions=32, n_embd=64, n_layer=2, n_head=4)
    modules = {
        "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)),
        "phi3": lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**DECODER)),
        "mixtral": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(**DECODER, num_local_experts=4)),
        "encoder": lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True),
    }
    return modules[name]().eval()


def step_of(function):
    def loss(params, buffers, inputs):
        if isinstance(inputs, dict):
            return function(params, buffers, **inputs, use_cache=False)[0].loss
        return (function(params, buffers, inputs)[0] ** 2).mean()

    return jax.jit(jax.value_and_grad(loss))


def inputs_of(name):
    if name == "encoder":
        return np.random.default_rng(0).standard_normal((8, 16, 64), np.float32)
    ids = tokens().numpy()
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("name", ["gpt2", "phi3", "mixtral", "encoder"])
def test_results_and_gradients_are_those_of_the_fused_module(name):
    module = model(name)
    split = fused_projections(module)
    assert split
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    results = []
    for parts in ({}, split):
        function, params, buffers = functional(module, split=parts)
        rules = plan_rules(module, ENCODER if name == "encoder" else None, fused=function.fused)
        shardings = strategies.tensor_parallel(params, mesh, rules)
        assert {path for path in params if "model" in shardings[path].spec}
        step = step_of(function)
        value, gradients = step(
            jax.device_put(params, shardings), buffers, jax.device_put(inputs_of(name), NamedSharding(mesh, P("data")))
        )
        results.append((float(value), function.state_dict(gradients, buffers)))
    (value, gradients), (split_value, split_gradients) = results
    assert split_value == pytest.approx(value, rel=1e-5)
    scale = max(float(gradient.abs().max()) for gradient in gradients.values())
    for path, gradient in gradients.items():
        torch.testing.assert_close(split_gradients[path], gradient, atol=1e-6 * scale, rtol=1e-4)


def test_names_and_shapes_of_leaves():
    function, params, _ = functional(model("gpt2"), split={"**.c_attn": 3})
    assert params["transformer.h.0.attn.c_attn.weight"].shape == (64, 3, 64)
    assert params["transformer.h.1.attn.c_attn.bias"].shape == (3, 64)
    rules = dict(plan_rules(function.module, fused=function.fused))
    assert rules[r"^transformer\.h\.0\.attn\.c_attn\.weight$"] == P(None, None, "model")
    assert rules[r"^transformer\.h\.0\.attn\.c_attn\.bias$"] == P(None, "model")
    module = model("phi3")
    assert fused_projections(module)["model.layers.0.self_attn.qkv_proj"] == {"q": 64, "k": 32, "v": 32}
    function, params, _ = functional(module, split=fused_projections(module))
    assert params["model.layers.0.self_attn.qkv_proj.weight.k"].shape == (32, 64)
    assert params["model.layers.0.mlp.gate_up_proj.weight"].shape == (2, 128, 64)
    rules = dict(plan_rules(module, fused=function.fused))
    assert rules[r"^model\.layers\.1\.mlp\.gate_up_proj\.weight$"] == P(None, "model", None)


@pytest.mark.parametrize("name", ["gpt2", "phi3", "mixtral", "encoder"])
def test_the_state_and_files_have_the_names_of_the_module(name, tmp_path):
    module = model(name)
    function, params, buffers = functional(module, split=fused_projections(module))
    expected = {path: tensor for path, tensor in module.state_dict().items() if path in function.names.params}
    for path, tensor in function.state_dict(params, buffers).items():
        torch.testing.assert_close(tensor, module.state_dict()[path], rtol=0, atol=0)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    shardings = strategies.tensor_parallel(
        params, mesh, plan_rules(module, ENCODER if name == "encoder" else None, fused=function.fused)
    )
    shardings = strategies.fsdp(params, mesh, "data", base=shardings, min_size=64)
    types = {path: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=shardings[path]) for path, p in params.items()}
    sharded = jax.device_put(params, shardings)

    save_safetensors(tmp_path / "safetensors", sharded, fused=function.fused)
    save_distributed_checkpoint(tmp_path / "folder", sharded, fused=function.fused)
    torch.save(expected, tmp_path / "model.pt")
    read = [
        load_safetensors(tmp_path / "safetensors", types, fused=function.fused),
        load_distributed_checkpoint(tmp_path / "folder", types, fused=function.fused),
        load_pickled_weights(tmp_path / "model.pt", types, fused=function.fused),
    ]
    for arrays in read:
        for path, array in params.items():
            assert arrays[path].sharding == shardings[path]
            np.testing.assert_array_equal(arrays[path], array)
    like = {path: torch.zeros_like(tensor) for path, tensor in expected.items()}
    checkpoint.load(like, checkpoint_id=tmp_path / "folder")
    for path, tensor in expected.items():
        torch.testing.assert_close(like[path], tensor, rtol=0, atol=0)
    _, fused_types, _ = functional(module)
    for path, array in load_safetensors(tmp_path / "safetensors", fused_types).items():
        np.testing.assert_array_equal(array, expected[path].detach())


def descent(function, buffers):
    def loss(params, ids):
        return function(params, buffers, input_ids=ids, labels=ids, use_cache=False)[0].loss

    return lambda params, ids: jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params, ids))


def plans(width=512):
    """Return the plan of GPT-2's step on a mesh of 8 devices, with its projection fused and with its parts apart."""
    with torch.device("meta"):
        config = transformers.GPT2Config(vocab_size=1024, n_embd=width, n_layer=1, n_head=8)
        module = transformers.GPT2LMHeadModel(config).eval()
    mesh = jax.make_mesh((8,), ("model",))
    for split in ({}, fused_projections(module)):
        function, params, buffers = functional(module, split=split)
        shardings = strategies.tensor_parallel(params, mesh, plan_rules(module, fused=function.fused))
        types = {n: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=shardings[n]) for n, p in params.items()}
        ids = jax.ShapeDtypeStruct((1, 256), np.int32, sharding=NamedSharding(mesh, P()))

        yield jax.explain(descent(function, buffers), hardware="h100")(types, ids)


def test_no_data_moves_to_separate_the_parts_of_gpt2s_projection():
    fused, apart = plans()
    assert fused.counts()["take_window"] > 0 and set(apart.counts()) == {"all_reduce"}
    assert apart.wire_bytes < fused.wire_bytes
    (parts,) = fused.fused_parts
    assert parts.names == ("`params['transformer.h.0.attn.c_attn.weight']`",) and parts.sizes == (512,) * 3
    assert parts.sent == pytest.approx(fused.wire_bytes - apart.wire_bytes, rel=0.01)
    assert "functional(module, split=fused_projections(module))" in str(parts) and "modeling_gpt2.py" in str(parts)
    assert not apart.fused_parts


def test_a_pin_on_the_fused_dim_is_kept():
    fused, _ = plans()
    rows = {row.name: row.layout for row in fused.plan.inputs}
    assert str(rows["`params['transformer.h.0.attn.c_attn.weight']`"]) == "P(None, 'model')"


def test_errors():
    module = nn.Sequential(nn.Linear(4, 6))
    with pytest.raises(TorchModuleError, match=r"`split` has '1', which matches no parameter"):
        functional(module, split={"1": 3})
    with pytest.raises(
        TorchModuleError, match=r"'0\.weight' cannot be 4 parts of one size: dim 0 of its shape \(6, 4\)"
    ):
        functional(module, split={"0": 4})
    with pytest.raises(TorchModuleError, match=r"the parts {'q': 4, 'k': 1} of '0\.weight' have 5 elements together"):
        functional(module, split={"0": {"q": 4, "k": 1}})
    function, params, buffers = functional(module, split={"0": {"q": 4, "k": 2}})
    assert list(params) == ["0.weight.q", "0.weight.k", "0.bias.q", "0.bias.k"]
    with pytest.raises(TorchModuleError, match=r"'0\.weight' is not a name of the module's params"):
        function({**params, "0.weight": params["0.weight.q"]}, buffers, np.ones((1, 4), np.float32))
    with pytest.raises(TorchModuleError, match=r"'0\.bias\.k' is missing, a part of a fused parameter"):
        save_safetensors("unused", {"0.bias.q": params["0.bias.q"]}, fused=function.fused)
