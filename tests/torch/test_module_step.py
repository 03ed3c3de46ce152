"""Modules as targets of `shardwise explain`, `simulate` and `autoshard`."""

import pytest

from shardwise.launch.command_line import main

pytestmark = pytest.mark.filterwarnings("default")

FILE = """
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

class Network(nn.Module):
    def __init__(self, size=256):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, 1024), nn.BatchNorm1d(1024), nn.Dropout(0.5), nn.Linear(1024, size))

    def forward(self, x):
        return self.layers(x)

class Sized(nn.Module):
    def __init__(self, size):
        super().__init__()

def llama() -> nn.Module:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 512}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, use_cache=False, **sizes))

def with_cache() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4))

def tokens(batch: int = 8):
    ids = torch.zeros(batch, 32, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids}

def arguments(batch: int = 64):
    return (torch.zeros(batch, 256),)

class Options(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)

    def forward(self, x, *, scale, double=False):
        return super().forward(x) * (2 * scale if double else scale)

def options():
    return {"x": torch.zeros(10, 6), "scale": 2.0, "double": True}

def not_a_tuple():
    return torch.zeros(64, 256)

def not_annotated():
    return Network()

network = Network()
"""


@pytest.fixture
def run(tmp_path, capsys):
    (tmp_path / "networks.py").write_text(FILE)

    def call(command, name, *options):
        code = main([command, f"{tmp_path / 'networks.py'}:{name}", "--hardware", "h100", *options])
        return code, "".join(capsys.readouterr())

    return call


def test_explain(run):
    code, text = run("explain", "Network", "--mesh", "data=4,model=2")
    assert code == 0, text
    assert "Network on mesh data=4, model=2" in text
    assert "`params['layers.0.weight']`" in text and "networks.py:12" in text


def test_models_of_transformers(run):
    code, text = run("simulate", "llama", "--arguments", "tokens", "--mesh", "data=4", "--set", "batch=16")
    assert code == 0, text
    assert "llama on mesh data=4 of h100" in text


def test_autoshard(run):
    code, text = run("autoshard", "Network", "--count", "4")
    assert code == 0, text
    assert "networks.py:Network on 4 h100" in text


def test_options_and_modules_that_are_made_already(run):
    code, text = run("explain", "Options", "--arguments", "options", "--mesh", "data=3")
    assert code == 0, text
    assert "Options on mesh data=3" in text and "`inputs['x']`" in text and "networks.py:" in text
    code, text = run("simulate", "network", "--mesh", "data=3")
    assert code == 0, text
    assert "Network on mesh data=3 of h100" in text


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Network", ["--mesh", "rows=3"], "has the axis 'rows', along which nothing would be sharded"),
        ("Network", ["--arguments", "not_a_tuple"], "the example inputs of Network are Tensor: return a tuple"),
        ("not_annotated", [], "`def not_annotated() -> torch.nn.Module`"),
    ],
)
def test_other_errors(name, options, message, run):
    code, text = run("explain", name, *options)
    assert code == 2 and message in text and "Traceback" not in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Sized", "cannot be made without arguments"),
        ("Netwrk", "Did you mean 'Network'?"),
        ("with_cache", "`use_cache=False`"),
    ],
)
def test_errors(name, message, run):
    code, text = run("simulate", name, "--arguments", "tokens")
    assert code == 2 and message in text and "Traceback" not in text
