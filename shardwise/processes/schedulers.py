"""Job schedulers and MPI launchers: the processes of a job, from the variables that they set.

Each class reads the variables of one scheduler. Variables that are contradictory or incomplete are an error that names
them.
"""

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar, final
from zlib import crc32

from shardwise.processes.node_list import expand_node_list
from shardwise.processes.services import HostServices
from shardwise.processes.variables import HOW_TO_OVERRIDE, Variables, parse_integer

LOOPBACK = "127.0.0.1"
# The coordinator ports for jobs with a job id: the upper end of the ephemeral range.
FIRST_PORT, PORTS = 61440, 4096
DEFAULT_PORT = 55527


class Scheduler(ABC):
    """The job of this process, as one scheduler describes it.

    Args:
        variables: the environment variables.
        services: the services of the host, which are queried for values that no variable has.
    """

    name: ClassVar[str]
    # The variables with the number of processes and the process id, for errors.
    count_name: ClassVar[str]
    id_name: ClassVar[str]
    # Whether only a service has the number of processes. A plain variable makes the query unnecessary.
    asks_for_count: ClassVar[bool] = False

    def __init__(self, variables: Variables, services: HostServices):
        self.variables = variables
        self.services = services

    @abstractmethod
    def is_present(self) -> bool:
        """Return whether this scheduler started the process."""

    @abstractmethod
    def num_processes(self) -> int:
        """Return the number of processes of the job."""

    @abstractmethod
    def process_id(self) -> int:
        """Return the index of this process."""

    @abstractmethod
    def coordinator_host(self) -> str:
        """Return the host of process 0, or the loopback address if all processes are on one host."""

    def port(self) -> int:
        """Return a port for the coordinator: the same in all processes of a job, and different in most other jobs."""
        return DEFAULT_PORT

    def local_process_id(self) -> int | None:
        """Return the index of this process on its host, if each process has one GPU by convention."""
        return None


@final
class Slurm(Scheduler):
    """Steps of Slurm jobs, which `srun` starts."""

    name = "slurm"
    count_name, id_name = "SLURM_NTASKS", "SLURM_PROCID"

    def is_present(self) -> bool:
        return "SLURM_JOB_ID" in self.variables and "SLURM_STEP_NODELIST" in self.variables

    def num_processes(self) -> int:
        variables = self.variables
        variables.check_equal("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")
        count = variables.integer("SLURM_STEP_NUM_TASKS", 1)
        return count or variables.required_integer("SLURM_NTASKS", "SLURM_JOB_ID", 1)

    def process_id(self) -> int:
        for other in ("PMIX_RANK", "PMI_RANK"):
            self.variables.check_equal("SLURM_PROCID", other)
        return self.variables.required_integer("SLURM_PROCID", "SLURM_JOB_ID")

    def coordinator_host(self) -> str:
        hosts = self._hosts()
        return hosts[0] if len(hosts) > 1 else LOOPBACK

    def _hosts(self) -> list[str]:
        variables = self.variables
        text = variables.required_text("SLURM_STEP_NODELIST", "SLURM_JOB_ID")
        hosts = expand_node_list(text, "SLURM_STEP_NODELIST")
        count = variables.integer("SLURM_STEP_NUM_NODES", 1)
        if count is not None and count != len(hosts):
            raise ValueError(
                f"SLURM_STEP_NUM_NODES={count} contradicts SLURM_STEP_NODELIST={text}, which has {len(hosts)} hosts: "
                f"{HOW_TO_OVERRIDE}"
            )
        return hosts

    def port(self) -> int:
        job = self.variables.required_text("SLURM_JOB_ID", "SLURM_STEP_NODELIST")
        return _port_of(f"slurm {job} {self.variables.text('SLURM_STEP_ID')}")

    def local_process_id(self) -> int | None:
        local = self.variables.required_integer("SLURM_LOCALID", "SLURM_JOB_ID")
        if local > (rank := self.process_id()):
            raise ValueError(f"SLURM_LOCALID={local} exceeds SLURM_PROCID={rank}: {HOW_TO_OVERRIDE}")
        return local


class Mpi(Scheduler):
    """Launchers of MPI programs. Their variables have the number of hosts, but not always the host names."""

    # The variables with the index of this process on its host, and the number of processes on the host.
    local_id_names: ClassVar[tuple[str, ...]]
    local_count_names: ClassVar[tuple[str, ...]]
    # Variables that identify the job and have the same value in all its processes.
    job_names: ClassVar[tuple[str, ...]]

    def is_present(self) -> bool:
        return self.count_name in self.variables or self.id_name in self.variables

    def num_processes(self) -> int:
        return self.variables.required_integer(self.count_name, self.id_name, 1)

    def process_id(self) -> int:
        return self.variables.required_integer(self.id_name, self.count_name)

    def coordinator_host(self) -> str:
        count = self.num_processes()
        local_count = self._first_integer(self.local_count_names, 1)
        if local_count is not None and local_count > count:
            present = next(name for name in self.local_count_names if name in self.variables)
            raise ValueError(f"{present}={local_count} exceeds {self.count_name}={count}: {HOW_TO_OVERRIDE}")
        if local_count == count:
            return LOOPBACK
        host = self.launcher_host()
        if host is None and (nodes := self.variables.text("SLURM_JOB_NODELIST")) is not None:
            host = expand_node_list(nodes, "SLURM_JOB_NODELIST")[0]  # the launcher runs inside a Slurm job
        if host is None:
            raise ValueError(
                f"{self.count_name}={count}, but no variable says on which host process 0 is: set "
                "JAX_COORDINATOR_ADDRESS=host:port for all processes, with `mpirun -x` or `mpiexec -env`"
            )
        return host

    def launcher_host(self) -> str | None:
        """Return the host on which the launcher runs, if a variable has it."""
        return None

    def port(self) -> int:
        job = next((text for name in self.job_names if (text := self.variables.text(name)) is not None), None)
        return DEFAULT_PORT if job is None else _port_of(f"{self.name} {job}")

    def local_process_id(self) -> int | None:
        return self._first_integer(self.local_id_names, 0)

    def _first_integer(self, names: tuple[str, ...], minimum: int) -> int | None:
        return next((value for name in names if (value := self.variables.integer(name, minimum)) is not None), None)


@final
class OpenMpi(Mpi):
    """Open MPI's `mpirun`."""

    name = "ompi"
    count_name, id_name = "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"
    local_id_names = ("OMPI_COMM_WORLD_LOCAL_RANK",)
    local_count_names = ("OMPI_COMM_WORLD_LOCAL_SIZE",)
    job_names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")

    def process_id(self) -> int:
        self.variables.check_equal("OMPI_COMM_WORLD_RANK", "PMIX_RANK")
        return super().process_id()

    def launcher_host(self) -> str | None:
        """Return the first address of `1531576320.0;tcp://10.96.0.1,10.148.0.1:34911`, a form of Open MPI 4."""
        uri = self.variables.text("OMPI_MCA_orte_hnp_uri")
        if uri is None:
            return None
        match = re.search(r"tcp://([^,:\s]+)[,:]|tcp6://\[([^,\]\s]+)[,\]]", uri)
        if match is None:
            raise ValueError(f"OMPI_MCA_orte_hnp_uri={uri} has no address: {HOW_TO_OVERRIDE}")
        return match[1] or f"[{match[2]}]"


@final
class Pmi(Mpi):
    """Launchers with PMI or PMIx: MPICH's and Intel MPI's `mpiexec`, Cray's `aprun` and PALS."""

    name = "pmi"
    count_name, id_name = "PMI_SIZE", "PMI_RANK"
    local_id_names = ("MPI_LOCALRANKID", "PMI_LOCAL_RANK")
    local_count_names = ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
    job_names = ("PMIX_NAMESPACE", "PMI_JOBID", "PMI_KVSNAME", "PALS_APID")

    def is_present(self) -> bool:
        return (super().is_present() or "PMIX_RANK" in self.variables) and not self._is_slurm_step()

    def _is_slurm_step(self) -> bool:
        """Return whether `srun` is the launcher. It sets more variables, and the same number of processes."""
        tasks = self.variables.text("SLURM_STEP_NUM_TASKS") or self.variables.text("SLURM_NTASKS")
        return "SLURM_STEP_NODELIST" in self.variables and self.variables.text(self.count_name) in (None, tasks)

    def num_processes(self) -> int:
        # PMIx has no variable for the number of processes.
        return self.variables.required_integer(self.count_name, self._present_id_name(), 1)

    def process_id(self) -> int:
        self.variables.check_equal("PMI_RANK", "PMIX_RANK")
        return self.variables.required_integer(self._present_id_name(), self.count_name)

    def _present_id_name(self) -> str:
        return "PMIX_RANK" if self.id_name not in self.variables and "PMIX_RANK" in self.variables else self.id_name


@final
class Kubernetes(Scheduler):
    """Indexed Jobs of Kubernetes, including Jobs of a JobSet, with one process per pod."""

    name = "k8s"
    count_name, id_name = "the `parallelism` of the Job", "JOB_COMPLETION_INDEX"
    asks_for_count = True

    def is_present(self) -> bool:
        return "KUBERNETES_SERVICE_HOST" in self.variables and "JOB_COMPLETION_INDEX" in self.variables

    def num_processes(self) -> int:
        spec = self._job_field("spec")
        count = spec.get("parallelism", 1)
        completions = spec.get("completions", count)
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"the Job {self._job_name()!r} has parallelism {count!r}, not an integer of at least 1")
        if completions != count:
            raise ValueError(
                f"the Job {self._job_name()!r} has parallelism {count} and completions {completions}: all processes "
                "must run at the same time, so both must be equal"
            )
        return count

    def process_id(self) -> int:
        return self.variables.required_integer("JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST")

    def coordinator_host(self) -> str:
        name = self._job_name()
        pod = self._job_field("spec", "template", "spec")
        subdomain = pod.get("subdomain") or self._job_field("metadata", "labels").get("jobset.sigs.k8s.io/jobset-name")
        if not isinstance(subdomain, str):
            raise ValueError(
                f"the pods of the Job {name!r} have no `subdomain`, so they cannot reach each other by name: create a "
                "headless Service and set `subdomain` to its name, or set JAX_COORDINATOR_ADDRESS in the pod's `env`"
            )
        return f"{name}-0.{subdomain}"

    def _job_name(self) -> str:
        """Return the name of the Job. The host name of a pod is this name followed by the index."""
        host = self.variables.required_text("HOSTNAME", "JOB_COMPLETION_INDEX")
        index = f"-{self.process_id()}"
        if not host.endswith(index) or host == index:
            raise ValueError(
                f"HOSTNAME={host} is not the name of a Job followed by JOB_COMPLETION_INDEX ({index}): set "
                "JAX_NUM_PROCESSES and JAX_COORDINATOR_ADDRESS in the pod's `env`"
            )
        return host.removesuffix(index)

    def _job_field(self, *path: str) -> dict[str, Any]:
        field: dict[str, Any] = self.services.kubernetes_job(self._job_name())
        for key in path:
            field = field.get(key) or {}
            if not isinstance(field, dict):
                raise ValueError(f"the Job {self._job_name()!r} has no object `{'.'.join(path)}`")
        return field


@final
class TpuPod(Scheduler):
    """Hosts of a TPU pod slice, or of several slices, with one process per host.

    GKE sets variables, and Compute Engine has a metadata server. This class was tested only with a fake server.
    """

    name = "tpu"
    count_name, id_name = "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"

    def is_present(self) -> bool:
        if "TPU_WORKER_ID" in self.variables or self._host_variable() is not None:
            return True
        asks_server = "GCE_METADATA_IP" in self.variables or self.services.has_tpu_library()
        return asks_server and self._metadata("agent-worker-number") is not None

    def num_processes(self) -> int:
        return len(self._hosts()) * self._slices()

    def process_id(self) -> int:
        hosts, slices = len(self._hosts()), self._slices()
        worker = self._number("TPU_WORKER_ID", "agent-worker-number")
        if worker is None:
            raise ValueError(f"{self._hosts_source()} is set, but TPU_WORKER_ID is not: set both or neither")
        if worker >= hosts:
            raise ValueError(
                f"TPU_WORKER_ID={worker} is out of range: {self._hosts_source()} has {hosts} hosts, numbered from 0"
            )
        text = self._multislice_value("MEGASCALE_SLICE_ID")
        slice_id = 0 if text is None else parse_integer(f"MEGASCALE_SLICE_ID={text}", text, 0)
        if slice_id >= slices:
            raise ValueError(f"MEGASCALE_SLICE_ID={slice_id} is out of range: MEGASCALE_NUM_SLICES={slices}")
        return worker + slice_id * hosts

    def coordinator_host(self) -> str:
        address = self._multislice_value("MEGASCALE_COORDINATOR_ADDRESS")
        if address is None and self._slices() > 1:
            raise ValueError("MEGASCALE_NUM_SLICES is more than 1, but MEGASCALE_COORDINATOR_ADDRESS is not set")
        if address is None and self.num_processes() == 1:
            return LOOPBACK
        return _without_port(address or self._hosts()[0])

    def port(self) -> int:
        return 8482

    def _host_variable(self) -> str | None:
        names = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
        return next((name for name in names if name in self.variables), None)

    def _hosts_source(self) -> str:
        return self._host_variable() or "the metadata attribute worker-network-endpoints"

    def _hosts(self) -> list[str]:
        """Return the hosts of this slice."""
        if (name := self._host_variable()) is not None:
            hosts = [_without_port(host.strip()) for host in self.variables.required_text(name, name).split(",")]
        else:
            # Each endpoint is a host name, or name:id:address.
            endpoints = self._metadata("worker-network-endpoints")
            if endpoints is None:
                raise ValueError("TPU_WORKER_ID is set, but TPU_WORKER_HOSTNAMES is not: set both or neither")
            hosts = [endpoint.strip().split(":")[-1] for endpoint in endpoints.split(",")]
        if not all(hosts):
            raise ValueError(f"{self._hosts_source()} has an empty host name: {','.join(hosts)}")
        return hosts

    def _slices(self) -> int:
        text = self._multislice_value("MEGASCALE_NUM_SLICES")
        return 1 if text is None else parse_integer(f"MEGASCALE_NUM_SLICES={text}", text, 1)

    def _multislice_value(self, name: str) -> str | None:
        """Return a variable, or the entry of this name in the metadata attribute `tpu-env` (lines `NAME: 'value'`)."""
        if (text := self.variables.text(name)) is not None:
            return text
        for line in (self._metadata("tpu-env") or "").splitlines():
            key, separator, value = line.partition(":")
            if separator and key.strip() == name:
                return value.strip().strip("'\"") or None
        return None

    def _number(self, name: str, key: str) -> int | None:
        if (number := self.variables.integer(name)) is not None:
            return number
        text = self._metadata(key)
        return None if text is None else parse_integer(f"the metadata attribute {key}", text, 0)

    def _metadata(self, key: str) -> str | None:
        return None if "TPU_SKIP_MDS_QUERY" in self.variables else self.services.tpu_metadata(key)


# In the order of detection, innermost launcher first: `mpirun` inside a Slurm job starts its daemons as a Slurm step,
# whose variables the processes inherit.
SCHEDULERS: tuple[type[Scheduler], ...] = (OpenMpi, Pmi, Slurm, TpuPod, Kubernetes)


def _port_of(job: str) -> int:
    return FIRST_PORT + crc32(job.encode()) % PORTS


def _without_port(address: str) -> str:
    """Return the host of `host`, `host:port`, `[::1]:port` or `::1`."""
    host, separator, port = address.rpartition(":")
    return host if separator and port.isdecimal() and (host.endswith("]") or ":" not in host) else address
