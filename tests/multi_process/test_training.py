"""Training on several processes equals training on one process with as many devices, loss for loss."""

import numpy as np
import pytest

from tests.multi_process.cluster import check_case, run_cases
from tests.multi_process.training import KINDS, train

MODULE = "tests.multi_process.training"


def check(kind, processes, devices):
    expected = train(kind)  # on the 8 devices of this process
    assert expected[-1] < expected[0]
    for losses in check_case(run_cases(MODULE, processes, devices)[kind]):
        np.testing.assert_allclose(losses, expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_of_four_devices(kind):
    check(kind, 2, 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_four_processes_of_two_devices(kind):
    check(kind, 4, 2)
