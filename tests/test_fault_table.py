"""The faults that several processes and checkpoints must survive, by number, and the tests that inject them.

`make faults` runs all of them, except those of checkpoints without processes, which `make test` and `make slow` run.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
RENDEZVOUS, INITIALIZE = "processes/test_rendezvous.py", "processes/test_initialize.py"
FAULTS, LAUNCHER = "processes/test_faults.py", "launch/test_launcher.py"
WAITS = "processes/test_waits.py"
HOSTILE = "processes/test_hostile_connections.py"
CORRUPTION = "checkpoints/test_corruption.py"

TABLE = {
    1: ("SIGKILL of a process", [f"{FAULTS}::test_a_killed_process_is_a_peer_failure_in_the_others"]),
    2: ("SIGKILL of process 0", [f"{FAULTS}::test_a_killed_process_is_a_peer_failure_in_the_others"]),
    3: ("SIGKILL of the launcher", [f"{LAUNCHER}::test_workers_are_gone_after_sigkill_of_the_launcher"]),
    4: (
        "SIGSTOP of a process",
        [
            f"{FAULTS}::test_a_stopped_process_is_named_with_its_last_step",
            f"{LAUNCHER}::test_a_stuck_process_is_reported",
            f"{LAUNCHER}::test_a_process_that_is_stopped_after_its_last_step_is_reported",
            f"{LAUNCHER}::test_a_process_that_is_stopped_when_all_others_have_ended_is_reported",
        ],
    ),
    5: (
        "a process sleeps in Python for ever",
        [
            f"{FAULTS}::test_a_process_that_sleeps_is_named_with_its_python_stack",
            f"{LAUNCHER}::test_a_stuck_process_is_reported",
        ],
    ),
    6: (
        "an exception in one process",
        [
            f"{FAULTS}::test_an_exception_of_one_process_is_shown_in_the_others",
            f"{FAULTS}::test_every_read_of_an_array_ends_when_another_process_fails",
            f"{LAUNCHER}::test_the_first_failure_is_reported_with_its_traceback",
            f"{LAUNCHER}::test_failures_in_training",
        ],
    ),
    7: (
        "a premature exit",
        [f"{FAULTS}::test_a_premature_exit_is_reported", f"{LAUNCHER}::test_failures_in_training"],
    ),
    8: ("SIGKILL with --max-restarts", ["launch/test_resuming.py::test_a_killed_run_resumes_with_equal_losses"]),
    9: ("SIGTERM: preemption", ["multi_process/test_checkpoints.py::test_checkpoints_of_several_processes"]),
    10: ("Ctrl-C on the launcher", [f"{LAUNCHER}::test_interrupt_ends_all_processes"]),
    11: (
        "the coordinator is unreachable",
        [
            f"{RENDEZVOUS}::test_an_unreachable_coordinator_is_an_error_with_its_address",
            f"{INITIALIZE}::test_an_unreachable_coordinator",
        ],
    ),
    12: ("a malformed or unresolvable address", [f"{INITIALIZE}::test_a_wrong_address"]),
    13: (
        "the port is in use",
        [
            f"{RENDEZVOUS}::test_a_port_in_use_is_an_error_that_names_it",
            f"{INITIALIZE}::test_a_port_in_use",
            f"{LAUNCHER}::test_a_port_in_use_is_an_error",
        ],
    ),
    14: (
        "a duplicate process id",
        [
            f"{RENDEZVOUS}::test_a_duplicate_process_id_is_refused_and_the_others_are_unharmed",
            f"{INITIALIZE}::test_a_duplicate_process_id",
        ],
    ),
    15: (
        "a process id out of range, and different numbers of processes",
        [
            f"{RENDEZVOUS}::test_wrong_numbers_are_a_value_error",
            f"{INITIALIZE}::test_wrong_numbers",
            f"{INITIALIZE}::test_different_numbers_of_processes",
        ],
    ),
    16: (
        "a process never comes",
        [
            f"{RENDEZVOUS}::test_the_missing_processes_are_listed_at_the_timeout",
            f"{INITIALIZE}::test_a_process_that_never_comes",
        ],
    ),
    17: (
        "different versions or flags",
        [
            f"{RENDEZVOUS}::test_a_difference_is_refused_and_named",
            f"{INITIALIZE}::test_different_flags_and_settings",
        ],
    ),
    18: (
        "different programs: op, shape, order",
        [
            f"{FAULTS}::test_different_programs_are_a_mismatch_in_every_process",
            f"{FAULTS}::test_debug_launch_order_finds_the_first_different_launch",
            "processes/test_launch_order.py::test_no_process_reads_a_value_or_exits_with_0_after_another_order",
            "processes/test_launch_order.py::test_different_host_values_are_found_with_the_debug_setting",
        ],
    ),
    19: ("a process skips a step", [f"{FAULTS}::test_different_programs_are_a_mismatch_in_every_process"]),
    20: (
        "proxy variables",
        [
            f"{RENDEZVOUS}::test_proxy_variables_are_ignored",
            f"{FAULTS}::test_a_program_ends_without_shutdown_and_proxies_are_ignored",
        ],
    ),
    21: (
        "garbage or a wrong token on the coordinator's port",
        [
            f"{RENDEZVOUS}::test_garbage_is_dropped_and_logged",
            f"{RENDEZVOUS}::test_garbage_after_the_rendezvous_harms_nobody",
            f"{RENDEZVOUS}::test_a_wrong_token_is_dropped_and_logged",
            f"{RENDEZVOUS}::test_a_silent_stranger_is_dropped",
        ],
    ),
    22: (
        "the default address is loopback",
        [
            f"{RENDEZVOUS}::test_the_default_address_is_loopback",
            f"{RENDEZVOUS}::test_another_address_is_explicit_and_warned_of",
        ],
    ),
    23: ("NaN with debug_nans", ["multi_process/test_errors.py::test_every_process_raises_the_same_error"]),
    24: ("an array of 4 TB", ["multi_process/test_errors.py::test_every_process_raises_the_same_error"]),
    25: ("wrong meshes and specs", ["multi_process/test_errors.py::test_every_process_raises_the_same_error"]),
    26: ("SIGKILL during a save", ["checkpoints/test_faults.py::test_a_killed_save_leaves_only_committed_steps"]),
    28: ("a full disk", ["checkpoints/test_faults.py::test_a_full_disk_is_an_error_that_names_path_and_bytes"]),
    29: ("a read-only folder", ["checkpoints/test_faults.py::test_a_read_only_folder_is_an_error_before_training"]),
    30: ("a flipped bit", [f"{CORRUPTION}::test_every_flipped_bit_is_an_error"]),
    31: ("a file that is cut or missing", [f"{CORRUPTION}::test_a_file_that_is_cut_or_missing_is_an_error"]),
    32: (
        "a forged manifest",
        [f"{CORRUPTION}::test_a_forged_manifest_is_an_error", f"{CORRUPTION}::test_a_deep_manifest_is_an_error"],
    ),
    36: ("a pickle as a checkpoint", [f"{CORRUPTION}::test_a_pickle_is_refused"]),
    37: ("two writers", ["checkpoints/test_faults.py::test_of_two_writers_of_one_step_one_is_refused"]),
    39: (
        "a damaged entry of the compilation cache",
        [
            f"{FAULTS}::test_damaged_entries_of_a_shared_compilation_cache_are_compiled_again",
            "runtime/test_compilation_cache.py::test_every_damaged_entry_is_detected_and_compiled_again",
        ],
    ),
    40: (
        "partial and contradictory variables",
        [
            "processes/test_environment.py::test_values_are_found",
            "processes/test_environment.py::test_partial_and_contradictory_variables_raise_an_error_that_names_them",
        ],
    ),
    61: (
        "hostile messages before and after authentication, and a malformed coordinator",
        [
            f"{HOSTILE}::test_no_first_line_ends_the_coordinator",
            f"{HOSTILE}::test_a_member_that_breaks_the_protocol_is_dropped_and_named",
            f"{HOSTILE}::test_valid_messages_in_any_order_harm_nobody_else",
            f"{HOSTILE}::test_a_malformed_message_of_the_coordinator_ends_every_wait",
            f"{HOSTILE}::test_a_slice_of_the_fuzz",
        ],
    ),
    62: (
        "a flood of connections",
        [
            f"{HOSTILE}::test_members_join_during_a_flood_of_connections",
            f"{HOSTILE}::test_the_oldest_strangers_make_room_for_newcomers",
            f"{HOSTILE}::test_errors_of_accept_end_nothing",
        ],
    ),
    63: (
        "a process is stopped or asleep while others wait for it",
        [
            f"{WAITS}::test_a_wait_for_a_process_that_does_not_come_ends_with_its_rank",
            f"{WAITS}::test_of_several_processes_the_one_that_does_not_come_is_named",
            f"{WAITS}::test_a_process_that_is_stuck_during_initialize_is_named",
        ],
    ),
    64: (
        "the end of a process during initialize, after the rendezvous",
        [
            f"{WAITS}::test_a_death_during_initialize_is_a_peer_failure_in_all_others",
            f"{WAITS}::test_an_end_during_initialize_is_a_peer_failure_in_all_others",
        ],
    ),
    65: (
        "SIGKILL of the coordinator",
        [f"{WAITS}::test_the_death_of_the_coordinator_is_an_exception_in_every_process"],
    ),
    66: (
        "forked children of a process",
        [
            "processes/test_forks.py::test_the_end_of_a_forked_child_is_not_the_end_of_its_parent",
            "processes/test_forks.py::test_the_death_of_a_process_is_noticed_while_its_child_lives",
        ],
    ),
}
PROCESS_FAULTS = [*range(1, 8), *range(10, 26), 39, 40, *range(61, 67)]  # those of programs with several processes


def marks_and_tests(path):
    """Return whether a module marks all its tests as `faults`, and the marked names of its tests."""
    tree = ast.parse((ROOT / path).read_text())
    whole = any("pytest.mark.faults" in ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign))
    tests = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    marked = {name for name, node in tests.items() if any("mark.faults" in ast.unparse(d) for d in node.decorator_list)}
    return whole, set(tests), marked


@pytest.mark.parametrize("number", TABLE)
def test_every_fault_has_its_tests(number):
    _, names = TABLE[number]
    for name in names:
        path, _, test = name.partition("::")
        _, tests, _ = marks_and_tests(path)
        assert test in tests, name


def test_every_fault_of_processes_is_injected_by_make_faults():
    for number in PROCESS_FAULTS:
        found = []
        for name in TABLE[number][1]:
            path, _, test = name.partition("::")
            is_whole, _, marked = marks_and_tests(path)
            found.append(is_whole or test in marked)
        assert any(found), number
