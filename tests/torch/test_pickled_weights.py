"""Files of torch.save, read shard by shard without executing what they name."""

import json
import os

import numpy as np
import pytest
import torch
from torch import nn

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P
from shardwise.errors import TorchModuleError
from shardwise.torch import functional, load_pickled_weights, pickled_weights

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns about sparse and complex32 tensors


def sharded_types(module):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    _, params, _ = functional(module)
    return {
        name: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, P("data", "model") if leaf.ndim > 1 else P("model"))
        )
        for name, leaf in params.items()
    }


def assert_equal(arrays, module):
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.asarray(array, np.float32), module.state_dict()[name].float().numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_dict_is_read_shard_by_shard(dtype, tmp_path, monkeypatch):
    module = nn.Sequential(nn.Linear(10, 12), nn.Linear(12, 7)).to(dtype)
    torch.save(module.state_dict(), tmp_path / "model.pt")
    types = sharded_types(module)
    shapes = []
    to_numpy = pickled_weights.to_numpy
    monkeypatch.setattr(pickled_weights, "to_numpy", lambda tensor: shapes.append(tensor.shape) or to_numpy(tensor))
    arrays = load_pickled_weights(tmp_path / "model.pt", types)
    assert_equal(arrays, module)
    assert all(arrays[name].sharding == types[name].sharding for name in types)
    assert shapes.count((3, 5)) == 8 and (12, 10) not in shapes


def test_nested_and_tied_state(tmp_path):
    module = nn.ModuleDict({"embedding": nn.Embedding(16, 8), "head": nn.Linear(8, 16, bias=False)})
    module["head"].weight = module["embedding"].weight
    state = {"model": module.state_dict(), "optimizer": [torch.ones(2), {"step": 3}], "epoch": 2}
    torch.save(state, tmp_path / "model.pt")
    types = sharded_types(module)
    assert list(types) == ["embedding.weight"]
    options = {"rename": lambda name: f"model.{name}", "ignore": "^optimizer"}
    assert_equal(load_pickled_weights(tmp_path / "model.pt", types, **options), module)
    with pytest.raises(TorchModuleError, match=r"has other tensors: 'optimizer\.0'\."):
        load_pickled_weights(tmp_path / "model.pt", types, rename=options["rename"])
    with pytest.raises(TorchModuleError, match=r"'epoch' in .* is not a tensor"):
        load_pickled_weights(tmp_path / "model.pt", {"epoch": types["embedding.weight"]})


def test_files_with_an_index(tmp_path):
    module = nn.Sequential(nn.Linear(10, 12), nn.Linear(12, 7))
    state = module.state_dict()
    torch.save({n: t for n, t in state.items() if n < "1"}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({n: t for n, t in state.items() if n > "1"}, tmp_path / "pytorch_model-00002-of-00002.bin")
    files = {name: f"pytorch_model-0000{1 + (name > '1')}-of-00002.bin" for name in state}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    assert_equal(load_pickled_weights(tmp_path, sharded_types(module)), module)
    index.write_text("[]")
    with pytest.raises(TorchModuleError, match="has no map of weights"):
        load_pickled_weights(tmp_path, sharded_types(module))


class Malicious:
    def __reduce__(self):
        return os.system, ("echo executed > executed",)


def test_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "model.pt"
    types = {"a": jax.ShapeDtypeStruct((4, 2), jnp.float32), "b": jax.ShapeDtypeStruct((), jnp.float32)}

    def message(error=TorchModuleError, **options):
        with pytest.raises(error) as raised:
            load_pickled_weights(file, types, **options)
        return str(raised.value)

    assert "there is no" in message(FileNotFoundError)
    for value in (Malicious(), {"a": Malicious()}, nn.Linear(2, 2)):
        torch.save(value, file)
        assert "has more than tensors and containers" in message()
    assert not (tmp_path / "executed").exists()
    tensors = {"a": torch.ones(4, 2), "b": torch.tensor(2.0)}
    torch.save(tensors, file, _use_new_zipfile_serialization=False)
    assert "not a complete file of torch.save in its format since PyTorch 1.6" in message()
    torch.save(tensors, file)
    file.write_bytes(file.read_bytes()[:-30])
    assert "not a complete file of torch.save" in message()
    file.write_bytes(b"")
    assert "model.pt" in message()
    torch.save({**tensors, "a": torch.ones(2, 4)}, file)
    assert "'a' has shape (4, 2), and (2, 4) in the file" in message()
    torch.save({**tensors, "a": torch.ones(4, 2, dtype=torch.float64)}, file)
    assert "'a' has dtype float32, and float64 in the file: pass cast=True" in message()
    assert load_pickled_weights(file, types, cast=True)["a"].dtype == jnp.float32
    torch.save({**tensors, "a": torch.ones(4, 2).to_sparse()}, file)
    assert "'a' is torch.sparse_coo; only dense" in message()
    torch.save({**tensors, "a": torch.ones(4, 2, dtype=torch.complex32)}, file)
    assert "'a' has dtype torch.complex32, which arrays do not have" in message()
    torch.save({"a": tensors["a"]}, file)
    assert "lacks 'b'" in message()
