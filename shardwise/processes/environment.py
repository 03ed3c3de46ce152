"""The arguments of `distributed.initialize` that the caller omits, from environment variables and host services.

Values have this precedence: arguments, then plain variables, then a job scheduler (`schedulers.py`). Each plain
variable has two names, `SHARDWISE_NUM_PROCESSES` and JAX's `JAX_NUM_PROCESSES`. The launcher sets Shardwise's names,
and `SHARDWISE_LAUNCHER` to state that it hosts the coordinator.

Variables that are contradictory or incomplete are a ValueError that names them.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

from shardwise.processes.number_checks import MAX_PROCESSES, check_integer
from shardwise.processes.protocol import split_address
from shardwise.processes.schedulers import SCHEDULERS, Scheduler
from shardwise.processes.services import HostServices
from shardwise.processes.variables import HOW_TO_OVERRIDE, Variables

ADDRESS = "SHARDWISE_COORDINATOR_ADDRESS"
BIND_ADDRESS = "SHARDWISE_COORDINATOR_BIND_ADDRESS"
NUM_PROCESSES = "SHARDWISE_NUM_PROCESSES"
PROCESS_ID = "SHARDWISE_PROCESS_ID"
LOCAL_DEVICE_IDS = "SHARDWISE_LOCAL_DEVICE_IDS"
TOKEN = "SHARDWISE_COORDINATOR_TOKEN"
LAUNCHER = "SHARDWISE_LAUNCHER"
PORT = "SHARDWISE_COORDINATOR_PORT"
PEER_TIMEOUT = "SHARDWISE_PEER_TIMEOUT"

LAUNCHER_METHOD = "launcher"
VARIABLES_METHOD = "variables"
DEACTIVATED = "deactivate"  # JAX's value for no detection
MAX_DEVICE_ID = 2**16 - 1
# JAX's names of detection methods that are one method here.
METHOD_ALIASES = {"gcetpu": "tpu", "gketpu": "tpu"}
METHODS = (LAUNCHER_METHOD, VARIABLES_METHOD, *(scheduler.name for scheduler in SCHEDULERS), DEACTIVATED)


class NoProcessesError(ValueError):
    """Neither arguments nor variables describe the processes of a program."""


@final
@dataclass(frozen=True)
class ProcessEnvironment:
    """The processes of a program, from the view of one of them.

    Attributes:
        method: the source of the values: "arguments", "launcher", "variables" or the name of a scheduler.
        coordinator_address: the `host:port` of the coordinator.
        num_processes: the number of processes.
        process_id: the index of this process.
        local_device_ids: the GPUs of this process; None for all GPUs of its host.
        coordinator_bind_address: the address on which the coordinator's host listens; None for the default.
        token: the secret that the coordinator expects; "" for none.
        has_launcher: whether a launcher hosts the coordinator; otherwise process 0 does.
        peer_timeout: the seconds that a process waits for others in a collective; None for the default.
    """

    method: str
    coordinator_address: str
    num_processes: int
    process_id: int
    local_device_ids: tuple[int, ...] | None = None
    coordinator_bind_address: str | None = None
    token: str = ""
    has_launcher: bool = False
    peer_timeout: float | None = None


@final
@dataclass(frozen=True)
class _Values:
    """The known values, each with its source for errors."""

    address: tuple[str, str] | None
    count: tuple[int, str] | None
    rank: tuple[int, str] | None

    def or_else(self, other: "_Values") -> "_Values":
        return _Values(self.address or other.address, self.count or other.count, self.rank or other.rank)

    @property
    def is_complete(self) -> bool:
        return None not in (self.address, self.count, self.rank)

    @property
    def is_empty(self) -> bool:
        return not any((self.address, self.count, self.rank))


def find_processes(
    variables: Mapping[str, str] = os.environ,
    *,
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Iterable[int] | None = None,
    coordinator_bind_address: str | None = None,
    cluster_detection_method: str | None = None,
    services: HostServices | None = None,
) -> ProcessEnvironment:
    """Complete the arguments of `distributed.initialize`.

    Args:
        variables: the environment variables.
        coordinator_address: the `host:port` of the coordinator, or None to find it.
        num_processes: the number of processes, or None to find it.
        process_id: the index of this process, or None to find it.
        local_device_ids: the GPUs of this process, or None to find them.
        coordinator_bind_address: the address on which the coordinator's host listens.
        cluster_detection_method: one of `METHODS`, or None for the first one present. "deactivate" uses only the
            arguments and plain variables.
        services: the services of the host; the default queries the network.

    Raises:
        TypeError: if `num_processes` or `process_id` is not an integer.
        ValueError: if a value is missing or invalid, or if two variables contradict each other.
    """
    environment = Variables(variables)
    services = services or HostServices(environment)
    given = _Values(
        _known(_address("coordinator_address", coordinator_address), "coordinator_address"),
        _known(_integer("num_processes", num_processes), "num_processes"),
        _known(_integer("process_id", process_id), "process_id"),
    )
    method = _method(cluster_detection_method)
    plain = _plain_values(environment)
    launched = LAUNCHER in environment
    if method == LAUNCHER_METHOD and not launched:
        raise ValueError(f"cluster_detection_method={method!r}, but {LAUNCHER} is not set: use `shardwise launch`")
    if launched and not given.is_complete and not plain.is_complete:
        raise ValueError(_missing(plain, f"{LAUNCHER} is set, but"))
    known = given.or_else(plain)
    scheduler = None
    if not given.is_complete and method != DEACTIVATED:
        scheduler = _scheduler(environment, services, method, known)
    if scheduler is not None:
        known = given.or_else(_with_scheduler(environment, scheduler, plain, given))
    _check_complete(known, environment)
    if given.is_complete:
        source = "arguments"
    elif scheduler is not None:
        source = scheduler.name
    else:
        source = LAUNCHER_METHOD if launched else VARIABLES_METHOD
    return _environment(known, source, environment, scheduler, local_device_ids, coordinator_bind_address)


def _environment(
    known: _Values,
    method: str,
    variables: Variables,
    scheduler: Scheduler | None,
    local_device_ids: int | Iterable[int] | None,
    bind_address: str | None,
) -> ProcessEnvironment:
    assert known.address and known.count and known.rank
    check_integer(known.count[1], known.count[0], 1, MAX_PROCESSES)
    if not 0 <= known.rank[0] < known.count[0]:
        raise ValueError(
            f"{known.rank[1]} must be from 0 to {known.count[0] - 1} ({_shown(known.count)}), not {known.rank[0]}"
        )
    device_ids: tuple[int, ...] | None
    if local_device_ids is not None:
        device_ids = _device_ids(local_device_ids)
    else:
        device_ids = _first(variables, LOCAL_DEVICE_IDS, Variables.integers)[0]
        if device_ids is None and scheduler is not None:
            device_ids = _own_gpu(variables, scheduler.local_process_id())
    bind, bind_source = _first(variables, BIND_ADDRESS, Variables.text)
    return ProcessEnvironment(
        method=method,
        coordinator_address=known.address[0],
        num_processes=known.count[0],
        process_id=known.rank[0],
        local_device_ids=device_ids,
        coordinator_bind_address=_address("coordinator_bind_address", bind_address) or _address(bind_source, bind),
        token=variables.text(TOKEN) or "",
        has_launcher=LAUNCHER in variables and known.address[0] == variables.text(ADDRESS),
        peer_timeout=variables.seconds(PEER_TIMEOUT),
    )


def _device_ids(ids: int | Iterable[int]) -> tuple[int, ...]:
    """Return the argument `local_device_ids` as distinct indices."""
    values = tuple(ids) if isinstance(ids, Iterable) else (ids,)
    indices = tuple(check_integer("local_device_ids", value, 0, MAX_DEVICE_ID) for value in values)
    if not indices or len(set(indices)) < len(indices):
        raise ValueError(f"local_device_ids must be distinct GPUs of this host, and at least one, not {ids!r}")
    return indices


def _method(method: str | None) -> str | None:
    name = METHOD_ALIASES.get(method, method) if method is not None else None
    if name is not None and name not in METHODS:
        hint = ": use 'ompi' or 'pmi', which need no package" if name == "mpi4py" else ""
        raise ValueError(f"cluster_detection_method must be one of {', '.join(METHODS)}, not {method!r}{hint}")
    return name


def _plain_values(variables: Variables) -> _Values:
    address, address_name = _first(variables, ADDRESS, Variables.text)
    count, count_name = _first(variables, NUM_PROCESSES, lambda values, name: values.integer(name, 1))
    rank, rank_name = _first(variables, PROCESS_ID, Variables.integer)
    return _Values(
        _known(_address(address_name, address), address_name), _known(count, count_name), _known(rank, rank_name)
    )


def _scheduler(variables: Variables, services: HostServices, method: str | None, known: _Values) -> Scheduler | None:
    """Return the scheduler that started this process; None if plain variables are used."""
    schedulers = [scheduler(variables, services) for scheduler in SCHEDULERS]
    if method in (LAUNCHER_METHOD, VARIABLES_METHOD):
        return None
    if method is not None:
        (chosen,) = [scheduler for scheduler in schedulers if scheduler.name == method]
        if not chosen.is_present():
            raise ValueError(
                f"cluster_detection_method={method!r}, but this process was not started by it: "
                f"{chosen.id_name} or other variables of it are not set"
            )
        return chosen
    if known.is_complete:
        return None
    return next((scheduler for scheduler in schedulers if scheduler.is_present()), None)


def _with_scheduler(variables: Variables, scheduler: Scheduler, plain: _Values, given: _Values) -> _Values:
    """Complete plain variables with the values of a scheduler, which is queried only for values that are missing."""
    count, rank, address = plain.count, plain.rank, plain.address
    if given.count is None and not (count and scheduler.asks_for_count):
        count = _agreed(count, scheduler.num_processes(), scheduler.count_name)
    if given.rank is None:
        rank = _agreed(rank, scheduler.process_id(), scheduler.id_name)
    if given.address is None and address is None:
        port, _ = _first(variables, PORT, Variables.integer)
        address = (f"{scheduler.coordinator_host()}:{port or scheduler.port()}", scheduler.name)
    return _Values(address, count, rank)


def _agreed(plain: tuple[int, str] | None, value: int, source: str) -> tuple[int, str]:
    if plain is not None and plain[0] != value:
        raise ValueError(f"{plain[1]}={plain[0]} contradicts {source}={value}: {HOW_TO_OVERRIDE}")
    return value, source


def _own_gpu(variables: Variables, local_process_id: int | None) -> tuple[int, ...] | None:
    """Return the GPU with the process's index on its host, as JAX does, unless the scheduler has selected GPUs."""
    platforms = variables.text("SHARDWISE_PLATFORMS") or variables.text("JAX_PLATFORMS")
    if local_process_id is None or platforms == "cpu":
        return None
    visible = variables.text("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus = [gpu for gpu in visible.split(",") if gpu.strip() not in ("", "-1", "NoDevFiles")]
        if len(gpus) < 2:
            return None
        if local_process_id >= len(gpus):
            raise ValueError(
                f"CUDA_VISIBLE_DEVICES={visible} has {len(gpus)} GPUs, but this is process {local_process_id} of its "
                "host, counted from 0: start one process per GPU, or pass local_device_ids to distributed.initialize"
            )
    return (local_process_id,)


def _check_complete(known: _Values, variables: Variables) -> None:
    if known.is_complete:
        return
    if not known.is_empty:
        raise ValueError(_missing(known, "distributed.initialize lacks values:"))
    hint = ""
    if "SLURM_JOB_ID" in variables:
        hint = (
            " SLURM_JOB_ID is set, but SLURM_STEP_NODELIST is not: inside a Slurm job, start the processes with `srun`."
        )
    elif "KUBERNETES_SERVICE_HOST" in variables:
        hint = (
            " KUBERNETES_SERVICE_HOST is set, but JOB_COMPLETION_INDEX is not: the Job needs `completionMode: Indexed`."
        )
    raise NoProcessesError(
        "distributed.initialize found neither arguments nor variables: pass coordinator_address, num_processes and "
        "process_id, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or start the program with "
        f"`shardwise launch -n N script.py`.{hint}"
    )


def _missing(known: _Values, start: str) -> str:
    names = {"coordinator_address": known.address, "num_processes": known.count, "process_id": known.rank}
    present = [_shown(value) for value in names.values() if value is not None]
    absent = [f"{name} ({_jax_name(f'SHARDWISE_{name.upper()}')})" for name, value in names.items() if value is None]
    has = f"; {' and '.join(present)} alone {'is' if len(present) == 1 else 'are'} not enough" if present else ""
    return f"{start} {' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not set{has}"


def _first(variables: Variables, name: str, read: Any) -> tuple[Any, str]:
    """Return the value of Shardwise's or JAX's variable, and the name of the variable that is set.

    Raises:
        ValueError: if both are set and differ.
    """
    value, other = read(variables, name), read(variables, _jax_name(name))
    if None not in (value, other) and value != other:
        raise ValueError(
            f"{name}={variables.text(name)} contradicts {_jax_name(name)}={variables.text(_jax_name(name))}: unset one"
        )
    return (value, name) if value is not None else (other, _jax_name(name))


def _jax_name(name: str) -> str:
    return name.replace("SHARDWISE_", "JAX_", 1)


def _known(value: Any, source: str) -> tuple[Any, str] | None:
    return None if value is None else (value, source)


def _shown(value: tuple[Any, str]) -> str:
    return f"{value[1]}={value[0]}"


def _integer(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {value!r}")
    return value.__index__()


def _address(name: str, address: str | None) -> str | None:
    if address is not None:
        split_address(address, name)
    return address
