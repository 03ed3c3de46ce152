"""Checkpoints that several processes write and read together: see `checkpoint_cases`."""

import numpy as np
import pytest

from shardwise import checkpoints
from tests.multi_process.checkpoint_cases import host_tree
from tests.multi_process.cluster import cases, check_case, run_cases

MODULE = "tests.multi_process.checkpoint_cases"


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow)])
def results(request, tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKPOINT_FOLDER", str(tmp_path))
    run_cases.cache_clear()
    found = run_cases(MODULE, request.param, 2)
    return {name: check_case(found[name]) for name in cases(MODULE)}


def test_checkpoints_of_several_processes(results, tmp_path):
    total = sum(value.nbytes if name != "small" else 28 for name, value in host_tree().items() if name != "replicated")
    total += 6 * 4 * 4
    assert set(results["every_process_writes_its_shards"]) == {total}
    restored = checkpoints.restore(tmp_path / "one")  # in this process
    for name, expected in host_tree().items():
        np.testing.assert_array_equal(restored[name], expected)

    first, second, *_ = results["an_error_in_one_process_is_an_error_in_all"]
    assert "process 1 failed" in first and "a checkpoint cannot hold" in first and "process 1" not in second

    differences = results["trees_that_differ_are_an_error_in_all_processes"]
    assert all(each == differences[0] for each in differences)
    for name, one, two in (
        ("value", "the leaf 'step', int 0", "the leaf 'step', int 1"),
        ("host", "with the checksum", "with the checksum"),
        ("local", "the leaf 'a', int32[3] of each process", "the leaf 'a', int32[3] of each process"),
        ("leaves", "the leaf 'b', int 2", "no further leaf"),
        ("committed", "float32[3] in SingleDeviceSharding(cpu:0)", "float32[3] in SingleDeviceSharding(cpu:2048)"),
    ):
        begin, _, end = differences[0][name].partition("; process 1 has ")
        assert begin.startswith("the trees of the processes differ. Process 0 has the leaf ")
        assert one in begin and two in end and "Save the same tree in every process" in end

    first, second, *_ = results["an_error_of_one_process_in_a_restore_is_an_error_in_all"]
    assert first[0] == "CheckpointMismatch" and "y: missing" in first[1]
    assert second[0] == "CheckpointError" and "process 0 failed: CheckpointMismatch" in second[1]

    expected = [[latest, 3, [3.0], [3, 3, 3]] for latest in (3, 3, 9)]
    assert all(each == expected for each in results["processes_with_different_listings_restore_the_same_step"])

    errors = results["processes_that_see_different_checkpoints_all_raise_the_same_error"]
    assert all(each == errors[0] for each in errors)
    unseen = "process 0 sees this checkpoint, and process 1 does not. All processes must reach the same folder"
    other = "process 0 and process 1 see different checkpoints. All processes must reach the same folder"
    wanted = "the processes restore different steps (process 0: 1, process 1: 2"
    for (kind, message), text in zip(errors[0], (unseen, unseen, other, other, wanted), strict=True):
        assert kind == "CheckpointError" and text in message

    replaced = results["a_corrupt_step_is_skipped_and_replaced_by_all_processes"]
    assert all(each == [1, [5, 5, 5], [1, 2]] for each in replaced)

    assert all("Put it on a mesh of all" in text for text in results["arrays_are_serialized_together"])

    stops = results["all_processes_save_the_same_step_on_sigterm"]
    last, steps, others, received = stops[0]
    assert all(stop == stops[0] for stop in stops) and last >= 5
    assert steps == list(range(steps[0], last + 1)) and 5 <= steps[0] <= last
    assert others == [1000 + last] and received == 2
