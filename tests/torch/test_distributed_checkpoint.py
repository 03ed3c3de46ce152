"""Folders of torch.distributed.checkpoint: PyTorch writes what Shardwise reads, and reads what Shardwise writes."""

import os
import pickle

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import NamedSharding, P
from shardwise.errors import TorchModuleError
from shardwise.torch import load_distributed_checkpoint, save_distributed_checkpoint
from tests.torch.gloo_ranks import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns where there is no process group

SHAPES = {
    "layers.0.weight": (12, 10),
    "layers.0.bias": (7,),
    "scale": (),
}  # 7 and 10 are divisible by no axis of size 4
SPECS = {"layers.0.weight": P("data", "model"), "layers.0.bias": P(("data", "model")), "scale": P()}


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def save(state, folder):
    # PyTorch copies ahead on streams, which the device module of torchax lacks: once it is imported, this is needed.
    checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(folder, per_thread_copy_ahead=0))


def sharded_types(dtype=jnp.float32):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, SPECS[name]))
        for name, shape in SHAPES.items()
    }


def assert_equal(arrays, expected):
    for name, tensor in expected.items():
        np.testing.assert_array_equal(np.asarray(arrays[name]).astype(np.float32), tensor.float().numpy())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_pytorch_saved_is_read_shard_by_shard(dtype, tmp_path, monkeypatch):
    values = tensors(getattr(torch, dtype))
    save(values, tmp_path)
    types = sharded_types(getattr(jnp, dtype))
    sizes = []
    empty = np.empty
    monkeypatch.setattr(
        np,
        "empty",
        lambda shape, *rest, **options: sizes.append(tuple(np.atleast_1d(shape))) or empty(shape, *rest, **options),
    )
    arrays = load_distributed_checkpoint(tmp_path, types)
    monkeypatch.undo()
    assert_equal(arrays, values)
    assert all(arrays[name].sharding == types[name].sharding for name in SHAPES)
    assert (3, 5) in sizes and (12, 10) not in sizes


def test_nested_state_with_an_optimizer_and_transposed_memory(tmp_path):
    values = {**tensors(), "layers.0.weight": torch.randn(10, 12).t()}
    state = {"model": values, "optimizer": {"state": [{"exp_avg": torch.ones(3)}], "groups": {"lr": 0.1}}, "step": 3}
    save(state, tmp_path)
    options = {"rename": lambda name: f"model.{name}", "ignore": r"^optimizer\."}
    assert_equal(load_distributed_checkpoint(tmp_path, sharded_types(), **options), values)
    with pytest.raises(TorchModuleError, match=r"has other tensors: 'optimizer\.state\.0\.exp_avg'\. Pass `rename`"):
        load_distributed_checkpoint(tmp_path, sharded_types(), rename=options["rename"])


@pytest.mark.parametrize(
    "specs", [SPECS, dict.fromkeys(SPECS, P()), {**SPECS, "layers.0.weight": P(None, "data")}], ids=str
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_pytorch_loads_what_is_written(specs, dtype, tmp_path):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    values = tensors()
    arrays = {
        name: jax.device_put(jnp.asarray(tensor.numpy(), dtype), NamedSharding(mesh, specs[name]))
        for name, tensor in values.items()
    }
    for _ in range(2):  # the second replaces the first
        save_distributed_checkpoint(tmp_path, arrays, rename=lambda name: f"model.{name}")
    like = {name: torch.zeros(shape, dtype=getattr(torch, jnp.dtype(dtype).name)) for name, shape in SHAPES.items()}
    checkpoint.load({"model": like}, checkpoint_id=tmp_path)
    assert_equal(arrays, like)
    metadata = checkpoint.FileSystemReader(tmp_path).read_metadata().state_dict_metadata["model.layers.0.weight"]
    assert len(metadata.chunks) == len({str(shard.index) for shard in arrays["layers.0.weight"].addressable_shards})
    again = load_distributed_checkpoint(tmp_path, sharded_types(dtype), rename=lambda name: f"model.{name}")
    assert_equal(again, like)


def test_integers_and_empty_arrays(tmp_path):
    arrays = {"count": jnp.arange(5), "mask": jnp.array([True, False]), "empty": jnp.zeros((0, 3))}
    save_distributed_checkpoint(tmp_path, arrays)
    read = load_distributed_checkpoint(tmp_path, arrays)
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


RANKS = """
import sys, torch
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
weight = torch.arange(120.0).reshape(12, 10)
state = {
    "rows": distribute_tensor(weight, mesh, [Shard(0)]),
    "columns": distribute_tensor(weight, mesh, [Shard(1)]),
    "uneven": distribute_tensor(torch.arange(7.0), mesh, [Shard(0)]),
    "replicated": distribute_tensor(weight, mesh, [Replicate()]),
}
if sys.argv[2] == "save":
    checkpoint.save(state, checkpoint_id=sys.argv[1])
else:
    expected = {name: value.full_tensor() + 1 for name, value in state.items()}
    checkpoint.load(state, checkpoint_id=sys.argv[1])
    assert all(torch.equal(state[name].full_tensor(), expected[name]) for name in state)
distributed.destroy_process_group()
"""


def test_shards_of_two_ranks(tmp_path):
    run_ranks(RANKS, 2, tmp_path, "save")
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    specs = {"rows": P(None, "data"), "columns": P("data", "model"), "uneven": P("data"), "replicated": P("model")}
    shapes = {"rows": (12, 10), "columns": (12, 10), "uneven": (7,), "replicated": (12, 10)}
    types = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, specs[name]))
        for name, shape in shapes.items()
    }
    arrays = load_distributed_checkpoint(tmp_path, types)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, np.arange(np.prod(shapes[name]), dtype=np.float32).reshape(shapes[name]))
    save_distributed_checkpoint(tmp_path / "plus", {name: array + 1 for name, array in arrays.items()})
    run_ranks(RANKS, 2, tmp_path / "plus", "load")


def message(path, types=None, error=TorchModuleError, **options):
    with pytest.raises(error) as raised:
        load_distributed_checkpoint(path, sharded_types() if types is None else types, **options)
    return str(raised.value)


def test_errors_name_the_tensor(tmp_path):
    assert "there is no" in message(tmp_path, error=FileNotFoundError)
    save({**tensors(), "step": 3}, tmp_path)
    types = sharded_types()
    assert "lacks 'head'" in message(tmp_path, {**types, "head": types["scale"]})
    assert "'step' in " in message(tmp_path, {**types, "step": types["scale"]})
    assert "has other tensors: 'scale'" in message(tmp_path, {n: t for n, t in types.items() if n != "scale"})
    wrong = jax.ShapeDtypeStruct((10, 12), jnp.float32)
    assert "'layers.0.weight' has shape (10, 12), and (12, 10) in the file" in message(
        tmp_path, {**types, "layers.0.weight": wrong}
    )
    assert "'layers.0.weight' has dtype bfloat16, and float32 in the file" in message(
        tmp_path, sharded_types(jnp.bfloat16)
    )
    assert_equal(
        load_distributed_checkpoint(tmp_path, sharded_types(jnp.bfloat16), cast=True),
        {name: tensor.bfloat16() for name, tensor in tensors().items()},
    )
    with pytest.raises(TorchModuleError, match="one name for several"):
        save_distributed_checkpoint(tmp_path, {"a": jnp.ones(1), "b": jnp.ones(1)}, rename=lambda name: "c")


class Malicious:
    def __reduce__(self):
        return os.system, ("echo executed > executed",)


def test_metadata_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for value in (Malicious(), {"a": Malicious()}):
        (tmp_path / ".metadata").write_bytes(pickle.dumps(value))
        assert "names posix.system, which a checkpoint does not need" in message(tmp_path)
    # Protocol 4 resolves dotted names below a module: `metadata.os.system` must not be reached either.
    payload = b"\x80\x04\x8c\x25torch.distributed.checkpoint.metadata\x8c\x09os.system\x93\x8c\x04true\x85R."
    (tmp_path / ".metadata").write_bytes(payload)
    assert "metadata.os.system, which a checkpoint does not need" in message(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_damaged_folders_are_errors(tmp_path):
    save(tensors(), tmp_path)
    data, metadata = tmp_path / "__0_0.distcp", tmp_path / ".metadata"
    good, good_metadata = data.read_bytes(), metadata.read_bytes()
    data.write_bytes(good[: len(good) // 2])
    assert "is damaged" in message(tmp_path)
    data.unlink()
    assert "which the metadata names" in message(tmp_path, error=FileNotFoundError)
    data.write_bytes(good)
    for damaged in (b"", b"no pickle", pickle.dumps([1]), good_metadata[:-10]):
        metadata.write_bytes(damaged)
        assert "is not the metadata of a checkpoint" in message(tmp_path)
    generator = np.random.default_rng(0)
    for _ in range(60):
        # Each forgery is a typed error, or changes nothing but values.
        file, original = ((data, good), (metadata, good_metadata))[generator.integers(2)]
        forged = bytearray(original)
        forged[generator.integers(len(forged))] = generator.integers(256)
        file.write_bytes(forged)
        try:
            arrays = load_distributed_checkpoint(tmp_path, sharded_types())
        except (TorchModuleError, FileNotFoundError):
            pass
        else:
            assert {name: array.shape for name, array in arrays.items()} == SHAPES
        file.write_bytes(original)


def test_incomplete_chunks_are_an_error(tmp_path):
    save(tensors(), tmp_path)
    metadata = checkpoint.FileSystemReader(tmp_path).read_metadata()
    metadata.state_dict_metadata["layers.0.bias"].chunks.clear()
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert "the chunks of 'layers.0.bias'" in message(tmp_path)
    metadata.storage_data.clear()
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert "does not say where 'layers.0.weight' is" in message(tmp_path)
