"""Batches of several processes: see `data_cases`. A run on 1, 2 or 4 processes in turn has the samples of one run."""

import numpy as np
import pytest

from shardwise import data
from tests.multi_process.cluster import check_case, run_cases
from tests.multi_process.data_cases import BATCH, SAMPLES, recorded_run

MODULE = "tests.multi_process.data_cases"


def expected(steps):
    """Return the samples of each step, by numpy."""
    epochs = -(-steps * BATCH // SAMPLES)
    order = np.concatenate([data.Permutation(SAMPLES, 7, epoch)(np.arange(SAMPLES)) for epoch in range(epochs)])
    return order[: steps * BATCH].reshape(steps, BATCH).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("turns", [(1, 2, 1), pytest.param((2, 4, 1, 4, 2), marks=pytest.mark.slow)], ids=str)
def test_resumed_on_another_number_of_processes(turns, tmp_path, monkeypatch):
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path))
    seen, total = [], None
    for processes in turns:
        if processes == 1:
            results = [recorded_run(tmp_path, 3)]
        else:
            run_cases.cache_clear()
            found = {name: check_case(results) for name, results in run_cases(MODULE, processes, 2).items()}
            results = found["resumed"]
            assert all(len(set(read)) < 3 * BATCH for *_, read in results)  # a part of the samples of three steps
        assert all(result[:2] == results[0][:2] for result in results)
        seen += results[0][0]
        total = results[0][1]
    assert seen == expected(len(seen))
    assert total == np.sum(seen)
