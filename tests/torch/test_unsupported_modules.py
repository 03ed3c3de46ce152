"""Modules that do what a function of arrays cannot do are refused, with their paths."""

import pytest
import torch
from torch import nn

from shardwise.errors import TorchModuleError
from shardwise.torch import functional

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Embedding(4, 2, max_norm=1.0), r"'0' has max_norm=1\.0, with which a call changes the weight"),
        (lambda: nn.EmbeddingBag(4, 2, max_norm=1.0), r"'0' has max_norm=1\.0"),
        (
            lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(2, 2)), {nn.Linear}),
            r"'0\.0' is Linear of torch\.ao, whose weights are packed",
        ),
        (lambda: torch.jit.script(nn.Linear(2, 2)), "'0' is compiled by TorchScript"),
        (lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), "'0' is compiled by TorchScript"),
        (lambda: nn.LazyLinear(2), r"'0\.weight' has no shape yet"),
    ],
    ids=["embedding", "embedding bag", "quantized", "scripted", "traced", "lazy"],
)
def test_errors(make, message):
    with pytest.raises(TorchModuleError, match=message):
        functional(nn.Sequential(make()))
