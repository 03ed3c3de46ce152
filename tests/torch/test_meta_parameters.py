"""meta_parameters: parameters without values, and buffers with values."""

import threading

import numpy as np
import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import shardwise as jax
from shardwise import strategies
from shardwise.errors import TorchModuleError
from shardwise.torch import functional, load_safetensors, meta_parameters, plan_rules

pytestmark = pytest.mark.filterwarnings("default")

CONFIG = LlamaConfig(
    hidden_size=36,
    intermediate_size=44,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=3,
    vocab_size=70,
)


def test_a_model_is_loaded_into_shards_without_its_weights_in_host_memory(tmp_path):
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    model.save_pretrained(tmp_path)
    mesh = jax.make_mesh((2, 3), ("data", "model"))  # three heads over three devices, 44 and 70 rows are uneven

    def shardings(types):
        base = strategies.tensor_parallel(types, mesh, plan_rules(empty), allow_uneven=True)
        return strategies.fsdp(types, mesh, "data", base=base, min_size=64)

    with meta_parameters():
        empty = LlamaForCausalLM(CONFIG).eval()
    assert all(parameter.is_meta for parameter in empty.parameters())
    function, params, buffers = functional(empty, shardings=shardings)
    params = load_safetensors(tmp_path, params)
    assert params["model.layers.0.mlp.up_proj.weight"].sharding.spec == jax.P("model", "data")
    ids = np.arange(15).reshape(3, 5)
    logits = jax.jit(lambda params, buffers: function(params, buffers, ids, use_cache=False)[0].logits)(params, buffers)
    np.testing.assert_allclose(logits, model(torch.tensor(ids)).logits.detach(), rtol=1e-4, atol=1e-5)


def test_buffers_without_values_are_an_error():
    with torch.device("meta"):
        module = nn.BatchNorm1d(3)
    function, _, buffers = functional(module)
    params = {"weight": np.ones(3, np.float32), "bias": np.zeros(3, np.float32)}
    with pytest.raises(TorchModuleError, match=r"'running_mean' has no values in buffers.*`meta_parameters\(\)`"):
        function(params, buffers, np.ones((2, 3), np.float32))


def test_other_threads_and_modules_that_are_created_afterwards_have_values():
    modules = []
    with meta_parameters():
        thread = threading.Thread(target=lambda: modules.append(nn.Linear(2, 2)))
        thread.start()
        thread.join()
        tied = nn.Linear(2, 2)
        tied.other = tied.weight
    assert tied.weight.is_meta and tied.other is tied.weight
    assert not modules[0].weight.is_meta and not nn.Linear(2, 2).weight.is_meta
