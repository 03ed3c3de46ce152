"""The faults that several processes and checkpoints must survive, by number, and the tests that inject them.

`make faults` runs all of them, except those of checkpoints without processes, which `make test` and `make slow` run.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
RENDEZVOUS, INITIALIZE = "processes/test_coordinator_rendezvous.py", "process_faults/test_initialize.py"
FAULTS, LAUNCHER = "process_faults/test_faults.py", "launch/test_launcher.py"
SAVES, SELECTION = "multi_process/test_interrupted_save.py", "checkpoints/test_selection.py"
SNAPSHOTS = "multi_process/test_peer_snapshots.py"
RECOVERY, NODES = "recovery/test_recovery.py", "recovery/test_nodes.py"
ELASTIC = "launch/test_elastic_attempt.py"
CHECKPOINTS = "multi_process/test_checkpoints.py"
FIRST_USE = "runtime/test_launched_process.py"
WAITS = "process_faults/test_waits.py"
OUTER = "process_faults/test_outer_groups.py"
HOSTILE = "processes/test_connections_hostile.py"
CORRUPTION = "checkpoints/test_restore_corruption.py"

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
            f"{LAUNCHER}::test_a_process_that_is_stopped_for_the_timeout_is_reported",
            f"{LAUNCHER}::test_a_process_that_does_not_join_a_save_is_reported",
            f"{LAUNCHER}::test_a_process_that_is_stopped_when_all_others_have_ended_is_reported",
            f"{SAVES}::test_a_process_that_is_stopped_or_sleeps_while_others_save_is_named",
        ],
    ),
    5: (
        "a process sleeps in Python for ever",
        [
            f"{FAULTS}::test_a_process_that_sleeps_is_named_with_its_python_stack",
            f"{SAVES}::test_a_process_that_is_stopped_or_sleeps_while_others_save_is_named",
            f"{LAUNCHER}::test_a_process_that_others_waited_for_is_reported",
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
    8: (
        "SIGKILL with --max-restarts",
        ["launch/test_launcher_resuming.py::test_a_killed_run_resumes_with_equal_losses"],
    ),
    9: (
        "SIGTERM: preemption, with several managers",
        [
            f"{CHECKPOINTS}::test_checkpoints_of_several_processes",
            "checkpoints/test_preemption.py::test_managers_are_closed_in_any_order",
            "checkpoints/test_preemption.py::test_sigterm_ends_the_process_when_no_manager_is_open",
        ],
    ),
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
            "process_faults/test_launch_order.py::test_no_process_reads_a_value_or_exits_with_0_after_another_order",
            "process_faults/test_launch_order.py::test_different_host_values_are_found_with_the_debug_setting",
        ],
    ),
    19: (
        "a process skips a step or a save",
        [
            f"{FAULTS}::test_different_programs_are_a_mismatch_in_every_process",
            f"{SAVES}::test_a_process_that_skips_a_save_is_named",
        ],
    ),
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
    26: ("SIGKILL during a save", ["checkpoints/test_save_faults.py::test_a_killed_save_leaves_only_committed_steps"]),
    28: ("a full disk", ["checkpoints/test_save_faults.py::test_a_full_disk_is_an_error_that_names_path_and_bytes"]),
    29: (
        "a read-only folder",
        [
            "checkpoints/test_save_faults.py::test_a_read_only_folder_is_an_error_before_training",
            "checkpoints/test_save_faults.py::test_a_read_only_manager_reads_a_read_only_folder",
        ],
    ),
    30: ("a flipped bit", [f"{CORRUPTION}::test_every_flipped_bit_is_an_error"]),
    31: ("a file that is cut or missing", [f"{CORRUPTION}::test_a_file_that_is_cut_or_missing_is_an_error"]),
    32: (
        "a forged manifest",
        [f"{CORRUPTION}::test_a_forged_manifest_is_an_error", f"{CORRUPTION}::test_a_deep_manifest_is_an_error"],
    ),
    36: ("a pickle as a checkpoint", [f"{CORRUPTION}::test_a_pickle_is_refused"]),
    37: (
        "two writers, and a second manager",
        [
            "checkpoints/test_save_faults.py::test_of_two_writers_of_one_step_one_is_refused",
            "checkpoints/test_lease.py::test_a_second_manager_leaves_a_save_in_flight_alone",
            "checkpoints/test_lease.py::test_the_files_of_another_process_are_deleted_when_it_is_dead",
            "checkpoints/test_lease.py::test_a_save_whose_files_another_program_deleted_is_not_committed",
        ],
    ),
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
    41: ("a stale listing in one process", [f"{CHECKPOINTS}::test_checkpoints_of_several_processes"]),
    42: (
        "a step is deleted while it is read",
        [
            f"{SELECTION}::test_a_latest_step_that_is_deleted_while_it_is_read_is_no_error",
            f"{SELECTION}::test_a_step_that_is_deleted_while_it_is_read_is_not_found",
            f"{SELECTION}::test_restores_beside_a_writer_that_prunes",
        ],
    ),
    43: (
        "a corrupt latest step, at every restart",
        ["checkpoints/test_superseded.py::test_every_restart_replaces_the_step_that_is_corrupt_then"],
    ),
    44: (
        "an old step that cannot be deleted",
        ["checkpoints/test_manager.py::test_an_old_step_that_cannot_be_deleted_is_a_warning"],
    ),
    51: (
        "a launched program without distributed.initialize, and children of launched processes",
        [
            f"{FIRST_USE}::test_the_first_use_of_a_device_joins_the_processes",
            f"{FIRST_USE}::test_processes_that_a_launched_process_starts_have_devices_of_their_own",
            f"{FIRST_USE}::test_forked_children_do_not_speak_for_their_process",
        ],
    ),
    52: ("nobody reads the launcher's output", [f"{LAUNCHER}::test_signals_end_a_launch_whose_output_nobody_reads"]),
    53: (
        "a full disk of log files or standard output",
        [
            f"{LAUNCHER}::test_a_full_disk_of_the_log_files_is_a_warning",
            f"{LAUNCHER}::test_logs_end_at_the_limit_of_file_sizes",
            f"{LAUNCHER}::test_a_full_standard_output_is_a_warning",
        ],
    ),
    54: (
        "daemons of launched processes",
        [
            f"{LAUNCHER}::test_daemons_are_ended_with_the_job",
            f"{LAUNCHER}::test_daemons_are_gone_after_sigkill_of_the_launcher",
            f"{LAUNCHER}::test_processes_of_a_nested_launch_are_gone_after_sigkill_of_the_outer_launcher",
        ],
    ),
    55: (
        "a process ends while its state is asked for",
        ["launch/test_workers.py::test_a_process_that_ends_between_two_polls_is_not_an_error"],
    ),
    56: (
        "SIGKILL of the guardian",
        ["launch/test_workers.py::test_a_guardian_that_is_killed_is_started_again"],
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
            "process_faults/test_forks.py::test_the_end_of_a_forked_child_is_not_the_end_of_its_parent",
            "process_faults/test_forks.py::test_the_death_of_a_process_is_noticed_while_its_child_lives",
        ],
    ),
    67: (
        "death of processes whose state is in the memory of partners: one, two, during recovery, with its partner",
        [
            f"{SNAPSHOTS}::test_survivors_continue_from_the_memory_of_partners",
            f"{SNAPSHOTS}::test_the_death_of_a_process_and_its_partner_is_an_error_that_says_what_is_lost",
        ],
    ),
    68: (
        "SIGKILL, SIGSTOP or an exception of a process, with spare processes",
        [
            f"{RECOVERY}::test_a_spare_takes_the_place_of_a_killed_process",
            f"{RECOVERY}::test_any_process_of_three_may_fail",
        ],
    ),
    69: (
        "death of the coordinator and lost connections, with spare processes",
        [f"{RECOVERY}::test_the_same_processes_continue_after_the_loss_of_connections"],
    ),
    70: (
        "SIGKILL and SIGSTOP of groups that exchange outer gradients",
        [f"{OUTER}::test_a_killed_and_a_stopped_group_do_not_stop_the_others_and_return"],
    ),
    71: (
        "a process that is slower than the others, with spare processes",
        [
            f"{RECOVERY}::test_a_spare_takes_the_place_of_a_slow_process",
            f"{RECOVERY}::test_a_slow_process_stays_if_its_replacement_is_slow_too",
        ],
    ),
    72: (
        "loss of a node, its return, and the loss of node 0, with launchers on several nodes",
        [
            f"{NODES}::test_spares_take_the_places_of_a_lost_node",
            f"{NODES}::test_fewer_processes_continue_without_a_lost_node",
            f"{NODES}::test_a_node_that_comes_back_takes_part_again",
            f"{NODES}::test_the_job_starts_again_when_the_launcher_of_node_0_does",
        ],
    ),
    73: (
        "failures of processes on several nodes",
        [
            f"{NODES}::test_a_spare_of_the_same_node_takes_the_place_of_a_process",
            f"{NODES}::test_a_spare_of_another_node_takes_the_place_of_a_process",
            f"{NODES}::test_a_single_process_of_each_node_has_a_partner",
        ],
    ),
    74: (
        "processes and launchers that never come, or come twice, with spare processes",
        [
            f"{ELASTIC}::test_a_process_that_does_not_wait_for_its_place_ends_the_program",
            f"{ELASTIC}::test_a_node_that_does_not_come_ends_the_program",
            "launch/test_node_attempt.py::test_a_second_launcher_of_a_node_ends",
        ],
    ),
    75: (
        "Ctrl-C while a launcher is stopped, and a failure after the end of recover",
        [
            f"{ELASTIC}::test_an_interrupt_does_not_wait_for_a_node_that_does_not_answer",
            f"{ELASTIC}::test_a_failure_after_the_end_of_recover_is_that_of_the_job",
        ],
    ),
}
# Those of programs with several processes.
PROCESS_FAULTS = [*range(1, 8), *range(10, 26), 39, 40, *range(51, 55), *range(61, 76)]


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
