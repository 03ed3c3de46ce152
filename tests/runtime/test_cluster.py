"""The demo's training step on two processes with four devices each, against one process and one device."""

import json
import subprocess
import sys

import numpy as np
import pytest

import shardwise as sw
from examples import mlp
from tests.multi_process.cluster import run_processes

PROCESSES, DEVICES_EACH = 2, 4


def run_worker(worker: str) -> list[dict]:
    """Return the JSON object that each process of a worker prints."""
    path = f"tests/runtime/{worker}"
    outputs = run_processes(lambda rank, port: [path, *map(str, (rank, PROCESSES, port, DEVICES_EACH))], PROCESSES)
    return [json.loads(next(line for line in out.splitlines() if line.startswith("{"))) for out in outputs]


def test_training_step_on_two_processes_equals_one_device():
    reports = run_worker("cluster_worker.py")
    params, losses = mlp.train(mlp.initial_params(), *mlp.batch(), steps=5)
    w1 = np.asarray(params["w1"])
    rows = []
    for rank, report in enumerate(reports):
        assert len(report["devices"]) == PROCESSES * DEVICES_EACH
        assert len(report["local"]) == DEVICES_EACH
        assert not report["addressable"]
        assert f"has shards on process {1 - rank}" in report["error"]
        np.testing.assert_allclose(report["losses"], losses, rtol=1e-5, err_msg=f"process {rank}")
        for index, part in report["w1"].items():
            np.testing.assert_allclose(part, w1[eval(index)], rtol=1e-4, atol=1e-6)
        rows += [tuple(part) for part in report["rows"]]
    assert sorted(rows) == [(0, 8), (8, 16), (16, 24), (24, 30)]  # each process holds half of the uneven batch


def test_pmap_on_two_processes_equals_one_process():
    """Each process passes the slices of its own devices, and gets the results of these."""
    reports = run_worker("pmap_worker.py")
    whole = {name: [part for report in reports for part in report[name]] for name in ("parts", "places", "normal")}
    numbers = np.arange(8, dtype=np.float32)
    np.testing.assert_allclose(whole["parts"], numbers / numbers.sum(), rtol=1e-6)
    assert whole["places"] == list(range(8))
    keys = sw.random.split(sw.random.key(0), 8)
    np.testing.assert_allclose(whole["normal"], sw.vmap(sw.random.normal)(keys), rtol=1e-6)
    turned = np.concatenate([report["turned"] for report in reports], axis=1)
    np.testing.assert_allclose(turned, np.roll(np.stack([numbers, numbers + 100]) * 8 + numbers, 1, axis=1))
    for rank, report in enumerate(reports):
        mine = numbers[rank * DEVICES_EACH : (rank + 1) * DEVICES_EACH]
        assert report["here"] is True
        np.testing.assert_allclose(report["again"], report["parts"], rtol=1e-6)
        assert report["largest"] == 114
        assert report["alone"] == [mine.sum()] * DEVICES_EACH
        count, inside = report["errors"]
        assert (
            "`x`, f32[8], has 8 slices, but this process has 4 of the 8 devices: pass one slice per local device"
            in count
        )
        assert "use shard_map there, with arrays that are sharded over a mesh of all devices" in inside


@pytest.mark.parametrize(
    ("address", "processes", "rank", "message"),
    [
        ("nowhere", 2, 0, "coordinator_address must be host:port, not 'nowhere'"),
        ("127.0.0.1:", 2, 0, "coordinator_address must be host:port, not '127.0.0.1:'"),
        ("127.0.0.1:9", 2, 2, "process_id must be from 0 to 1 (num_processes=2), not 2"),
        ("127.0.0.1:9", 2, -1, "process_id must be from 0 to 1 (num_processes=2), not -1"),
    ],
)
def test_bad_arguments_raise_errors_before_connecting(address, processes, rank, message):
    code = (
        "import shardwise as sw\n"
        f"try: sw.distributed.initialize({address!r}, {processes}, {rank})\n"
        "except ValueError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == message


def test_initialize_after_the_first_use_of_a_device_raises_an_error():
    sw.devices()
    with pytest.raises(RuntimeError, match=r"must come before the first use of a device"):
        sw.distributed.initialize("127.0.0.1:9", 2, 0)
