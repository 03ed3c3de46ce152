"""Models of PyTorch compute the same loss and gradients on Shardwise as in PyTorch, on one device and on a 4 × 2 mesh.

`make test-torch` installs the libraries and runs this; `make test` does not. Then `python -m tests.torch.table` writes
the table of docs/from-pytorch.md.
"""

import pytest

from tests.torch.compare import TOLERANCE, compare
from tests.torch.models import MODELS
from tests.torch.table import record

# Frameworks warn about the small sizes of the configurations.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_equal_those_of_pytorch(name):
    result = compare(name)
    tolerance = max(TOLERANCE, 2 * result.pytorch_error)
    assert result.loss_error < TOLERANCE and result.sharded_loss_error < TOLERANCE
    assert result.gradient_error < tolerance and result.sharded_gradient_error < tolerance
    assert result.unsharded_matrices == []
    assert result.wire_bytes > 0
    record(name, result)
