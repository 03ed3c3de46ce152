"""Weights of transformers in safetensors files: sharded arrays from them, and files that transformers loads."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import strategies
from shardwise.errors import TorchModuleError
from shardwise.torch import functional, load_safetensors, plan_rules, save_safetensors, weight_files

pytestmark = pytest.mark.filterwarnings("default")

CONFIG = LlamaConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=80,
)


def llama(dtype=torch.float32):
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG).to(dtype).eval()


def sharded_types(module):
    """Return the parameters of a module as types on a 4 × 2 mesh."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    _, params, _ = functional(module)
    types = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in params.items()}
    shardings = strategies.fsdp(
        types, mesh, "data", base=strategies.tensor_parallel(types, mesh, plan_rules(module)), min_size=64
    )
    return {name: jax.ShapeDtypeStruct(t.shape, t.dtype, sharding=shardings[name]) for name, t in types.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", ["5GB", "20KB"])
def test_what_transformers_saved_is_read_shard_by_shard(dtype, size, tmp_path, monkeypatch):
    module = llama(dtype)
    module.save_pretrained(tmp_path, max_shard_size=size)
    types = sharded_types(module)
    read = []
    monkeypatch.setattr(weight_files, "to_numpy", lambda tensor: read.append(tensor.shape) or to_numpy(tensor))
    params = load_safetensors(tmp_path, types)
    for name, tensor in module.state_dict().items():
        assert params[name].sharding == types[name].sharding
        np.testing.assert_array_equal(np.asarray(params[name]).astype(np.float32), tensor.float().numpy())
    up = types["model.layers.0.mlp.up_proj.weight"]
    assert up.sharding.num_devices == 8 and up.shape not in read
    assert read.count(torch.Size(up.sharding.shard_shape(up.shape))) >= 8


to_numpy = weight_files.to_numpy


@pytest.mark.parametrize("file_bytes", [10**9, 20_000])
def test_transformers_loads_what_is_written(file_bytes, tmp_path):
    module = llama()
    function, params, buffers = functional(module)
    types = sharded_types(module)
    trained = {name: jax.device_put(leaf * 1.5, types[name].sharding) for name, leaf in params.items()}
    save_safetensors(tmp_path, trained, file_bytes=file_bytes)
    CONFIG.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists() == (file_bytes < 10**9)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for name, tensor in loaded.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), np.asarray(trained[name]))
    tokens = np.arange(12).reshape(2, 6)
    outputs, _ = function(trained, buffers, tokens, use_cache=False)
    np.testing.assert_allclose(outputs.logits, loaded(torch.from_numpy(tokens)).logits.detach(), rtol=1e-4, atol=1e-4)


def test_errors(tmp_path):
    types = {"a": jax.ShapeDtypeStruct((4, 2), jnp.float32), "b": jax.ShapeDtypeStruct((), jnp.float32)}
    file = tmp_path / "model.safetensors"

    def message(error=TorchModuleError, path=file, **options):
        with pytest.raises(error) as raised:
            load_safetensors(path, types, **options)
        return str(raised.value)

    assert "there is no" in message(FileNotFoundError)
    assert "model.safetensors.index.json" in message(FileNotFoundError, tmp_path)
    file.write_bytes(b"no tensors")
    assert "not a complete safetensors file" in message()
    tensors = {"a": torch.ones(4, 2), "b": torch.tensor(2.0)}
    save_file(tensors, file)
    file.write_bytes(file.read_bytes()[:-3])
    assert "not a complete safetensors file" in message()
    save_file({"x.a": torch.ones(4, 2), "c": torch.ones(1)}, file)
    assert "lacks 'a', 'b'; it has other tensors: 'c', 'x.a'" in message()
    save_file({**tensors, "a": torch.ones(2, 4)}, file)
    assert "'a' has shape (4, 2), and (2, 4) in the file" in message()
    save_file({**tensors, "a": torch.ones(4, 2, dtype=torch.float16)}, file)
    assert "'a' has dtype float32, and float16 in the file: pass cast=True" in message()
    assert load_safetensors(file, types, cast=True)["a"].dtype == jnp.float32
    save_file({f"x.{name}": tensor for name, tensor in tensors.items()}, file)
    assert float(load_safetensors(tmp_path, types, rename=lambda name: f"x.{name}")["b"]) == 2
    file.unlink()
    index = tmp_path / "model.safetensors.index.json"
    for text in ("{", "[]", '{"weight_map": 3}'):
        index.write_text(text)
        assert "has no map of weights" in message(path=tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../../secret", "b": "part"}}))
    assert "which the index names" in message(FileNotFoundError, tmp_path)
    with pytest.raises(TorchModuleError, match="one name for several"):
        save_safetensors(tmp_path, {"a": jnp.ones(1), "b": jnp.ones(1)}, rename=lambda name: "c")
