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
