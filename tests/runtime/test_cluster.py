"""The demo's training step on two processes with four devices each, against one process and one device."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shardwise as sw
from examples import mlp

ROOT = Path(__file__).resolve().parents[2]
PROCESSES, DEVICES_EACH = 2, 4


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_cluster(worker: str, processes: int, devices: int) -> list[dict]:
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "tests/runtime" / worker),
                *map(str, (rank, processes, port, devices)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        for rank in range(processes)
    ]
    try:
        outputs = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, (out, err) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, f"{out}\n{err}"
    return [json.loads(next(line for line in out.splitlines() if line.startswith("{"))) for out, _ in outputs]


def test_training_step_on_two_processes_equals_one_device():
    reports = run_cluster("cluster_worker.py", PROCESSES, DEVICES_EACH)
    params, losses = mlp.train(mlp.initial_params(), *mlp.batch(), steps=5)
    w1 = np.asarray(params["w1"])
    rows = []
    for rank, report in enumerate(reports):
        assert len(report["devices"]) == PROCESSES * DEVICES_EACH
        assert len(report["local"]) == DEVICES_EACH
        assert not report["addressable"]
        assert "shards on other processes" in report["error"]
        np.testing.assert_allclose(report["losses"], losses, rtol=1e-5, err_msg=f"process {rank}")
        for index, part in report["w1"].items():
            np.testing.assert_allclose(part, w1[eval(index)], rtol=1e-4, atol=1e-6)
        rows += [tuple(part) for part in report["rows"]]
    assert sorted(rows) == [(0, 8), (8, 16), (16, 24), (24, 30)]  # each process holds half of the uneven batch


def test_pmap_on_two_processes_equals_one_process():
    """Each process passes the slices of its own devices, and gets the results of these."""
    reports = run_cluster("pmap_worker.py", PROCESSES, DEVICES_EACH)
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
