"""Simulated jobs against closed forms: exponential failures, Erlang's loss formula, the availability of nodes."""

import math
from statistics import fmean, stdev

import pytest

from shardwise.explain.failing_job import simulate_job
from shardwise.explain.failures import Failures, RecoveryPolicy
from shardwise.explain.save_schedule import SaveSchedule

DAY = 86400.0
DISK = RecoveryPolicy("disk")
MEMORY = RecoveryPolicy("memory", snapshots=True)
SPARES = RecoveryPolicy("spares", snapshots=True, spares=True)
SHRINK = RecoveryPolicy("shrink", snapshots=True, shrinks=True)
OTHER_SAVES = 10**9  # cycles between checkpoints, if there are none
TRIALS = 12


def mean(failures, policy, schedule, devices, value):
    """Return the mean of a value of simulated jobs, and four standard errors of it."""
    values = [value(simulate_job(failures, policy, schedule, devices, seed)) for seed in range(TRIALS)]
    return fmean(values), 4 * stdev(values) / math.sqrt(TRIALS)


def failures_at(mean_seconds, devices, **values):
    """Return failures with a mean time between them. What a test does not state takes no time and does not happen."""
    costs = {"node_share": 0.0, "wide_share": 0.0, "start_seconds": 0.0, "restart_seconds": 0.0}
    costs |= {"recovery_seconds": 0.0, "replacement_seconds": 0.0, "devices_per_node": 1}
    return Failures(**{"per_device_day": DAY / mean_seconds / devices, **costs, **values})


@pytest.mark.parametrize("policy", [DISK, MEMORY], ids=["disk", "memory"])
@pytest.mark.parametrize(("interval", "stop", "recovery"), [(60, 2, 0), (300, 10, 120), (1500, 30, 700)])
def test_restarts_have_the_expected_goodput_of_exponential_failures(policy, interval, stop, recovery):
    """A cycle takes `exp(rate R) (exp(rate (t + s)) - 1) / rate`, if failures also interrupt saves and recoveries."""
    rate, devices = 1 / 1000, 10**7  # so many nodes that no second failure hits a partner
    failures = failures_at(1 / rate, devices, days=10, restart_seconds=recovery, recovery_seconds=recovery)
    saves = (0.0, 0.0, 1, stop, 0.0) if policy is DISK else (stop, 0.0, OTHER_SAVES, 0.0, 0.0)
    goodput, error = mean(
        failures, policy, SaveSchedule(interval, *saves), devices, lambda job: job.useful / failures.seconds
    )
    expected = interval * rate / (math.exp(rate * recovery) * math.expm1(rate * (interval + stop)))
    assert error < 0.05 and abs(goodput - expected) < error


def erlang_loss(servers, load):
    """The share of time in which all servers are busy: independent of the distribution of the service time."""
    loss = 1.0
    for count in range(1, servers + 1):
        loss = load * loss / (count + load * loss)
    return loss


@pytest.mark.parametrize(("spares", "load"), [(0, 0.3), (2, 1.0), (5, 3.0)])
def test_a_job_waits_as_long_as_all_spares_are_absent(spares, load):
    failures = failures_at(1000.0, 64, days=40, node_share=1.0, replacement_seconds=load * 1000, spare_nodes=spares)
    schedule = SaveSchedule(1.0, 0.0, 0.0, OTHER_SAVES, 0.0, 0.0)
    waiting, error = mean(failures, SPARES, schedule, 64, lambda job: job.waiting / failures.seconds)
    assert error < 0.05 and abs(waiting - erlang_loss(spares + 1, load)) < error


@pytest.mark.parametrize("load", [0.1, 2.0])
def test_a_job_that_shrinks_has_the_availability_of_its_nodes(load):
    nodes, between = 50, 100000.0  # seconds between the failures of a node
    failures = failures_at(between / nodes, nodes, days=50, node_share=1.0, replacement_seconds=load * between)
    schedule = SaveSchedule(1.0, 0.0, 0.0, OTHER_SAVES, 0.0, 0.0)
    missing, error = mean(failures, SHRINK, schedule, nodes, lambda job: (job.shrunk + job.waiting) / failures.seconds)
    assert error < 0.05 and abs(missing - load / (1 + load)) < error


def test_failures_of_partners_and_of_whole_networks_restore_from_disk():
    """The failures after which a job restores from disk are a Markov chain of two states."""
    rate, nodes, lag, recovery, restart = 1 / 1000, 5, 200.0, 100.0, 400.0
    failures = failures_at(1 / rate, nodes, days=15, restart_seconds=restart, recovery_seconds=recovery)
    schedule = SaveSchedule(250.0, 0.0, lag, 4, 0.0, 0.0)
    share, error = mean(failures, MEMORY, schedule, nodes, lambda job: job.disk_restores / job.interruptions)
    from_memory = -math.expm1(-rate * (recovery + lag)) * 2 / (nodes - 1)
    again = -math.expm1(-rate * (restart + lag))
    assert error < 0.05 and abs(share - from_memory / (1 - again + from_memory)) < error

    wide = failures_at(1 / rate, 10**7, days=15, wide_share=0.25)
    share, error = mean(
        wide,
        MEMORY,
        SaveSchedule(100.0, 0.0, 0.0, 4, 0.0, 0.0),
        10**7,
        lambda job: job.disk_restores / job.interruptions,
    )
    assert error < 0.05 and abs(share - 0.25) < error


@pytest.mark.parametrize("seed", range(6))
def test_all_seconds_of_a_job_are_counted(seed):
    failures = Failures(days=20, per_device_day=0.05, replica_nodes=2, replacement_seconds=7200, spare_nodes=seed % 3)
    for policy in failures.policies:
        schedule = SaveSchedule(120.0, 1.0, 10.0, 4, 5.0, 60.0)
        job = simulate_job(failures, policy, schedule, 512, seed)
        total = job.useful + job.lost + job.saving + job.recovering + job.waiting + job.shrunk
        assert total == pytest.approx(failures.seconds) and job.interruptions > 100
        assert all(value >= 0 for value in vars(job).values())
        assert job == simulate_job(failures, policy, schedule, 512, seed)


def test_without_failures_a_job_only_saves():
    job = simulate_job(Failures(per_device_day=0.0, days=1), MEMORY, SaveSchedule(99.0, 1.0, 0.0, 9, 0.0, 0.0), 8, 0)
    assert job.useful == pytest.approx(0.99 * DAY) and job.saving == pytest.approx(0.01 * DAY)
    assert job.interruptions == 0
