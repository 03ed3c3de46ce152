"""The environment of a process: values from every launcher and scheduler, or an error that names the variable."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.processes.environment import METHODS, ProcessEnvironment, find_processes
from shardwise.processes.services import HostServices
from shardwise.processes.variables import Variables

pytestmark = pytest.mark.faults  # fault 40

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[01-03,7]",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1,10.108.0.1:34911",
    "OMPI_MCA_ess_base_jobid": "1531576321",
}
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMIX_NAMESPACE": "prterun-host-1234@1",
    "PMIX_RANK": "1",
}
HYDRA = {
    "PMI_SIZE": "3",
    "PMI_RANK": "2",
    "MPI_LOCALNRANKS": "3",
    "MPI_LOCALRANKID": "2",
}
KUBERNETES = {
    "KUBERNETES_SERVICE_HOST": "127.0.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "JOB_COMPLETION_INDEX": "2",
    "HOSTNAME": "train-2",
}
GKE_TPU = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t0.pod,t1.pod"}
PLAIN = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
LAUNCHER = {
    "SHARDWISE_LAUNCHER": "1",
    "SHARDWISE_COORDINATOR_ADDRESS": "127.0.0.1:5000",
    "SHARDWISE_NUM_PROCESSES": "2",
    "SHARDWISE_PROCESS_ID": "1",
    "SHARDWISE_COORDINATOR_TOKEN": "secret",
}


class NoServices:
    """A host without services."""

    def has_tpu_library(self):
        return False

    def tpu_metadata(self, key):
        raise AssertionError("nothing hints at a TPU, so the metadata server must not be asked")

    def kubernetes_job(self, name):
        raise ValueError("no Kubernetes API here")


def find(variables, **arguments):
    return find_processes(variables, **{"services": NoServices(), **arguments})


def summary(environment):
    return (
        environment.method,
        environment.coordinator_address.rpartition(":")[0],
        environment.num_processes,
        environment.process_id,
        environment.local_device_ids,
    )


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (SLURM, ("slurm", "node01", 8, 5, (1,))),
        ({**SLURM, "SLURM_STEP_NODELIST": "node7", "SLURM_STEP_NUM_NODES": "1"}, ("slurm", "127.0.0.1", 8, 5, (1,))),
        ({**SLURM, "CUDA_VISIBLE_DEVICES": "1"}, ("slurm", "node01", 8, 5, None)),  # Slurm has selected the GPU
        ({**SLURM, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, ("slurm", "node01", 8, 5, (1,))),
        ({**SLURM, "JAX_PLATFORMS": "cpu"}, ("slurm", "node01", 8, 5, None)),
        ({**SLURM, "PMIX_RANK": "5", "PMIX_NAMESPACE": "slurm.pmix.4711.0"}, ("slurm", "node01", 8, 5, (1,))),
        ({**SLURM, "PMI_RANK": "5", "PMI_SIZE": "8"}, ("slurm", "node01", 8, 5, (1,))),
        (OPEN_MPI_4, ("ompi", "10.96.0.1", 4, 3, (1,))),
        (
            {**OPEN_MPI_4, "OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp6://[fe80::b9b,2620::3000:2]:43370"},
            ("ompi", "[fe80::b9b]", 4, 3, (1,)),
        ),
        (OPEN_MPI_5, ("ompi", "127.0.0.1", 2, 1, (1,))),
        # mpirun inside a Slurm job: Slurm's variables belong to mpirun's daemons.
        (
            {**SLURM, **OPEN_MPI_5, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "SLURM_JOB_NODELIST": "n[4-5]"},
            ("ompi", "n4", 2, 1, (1,)),
        ),
        (HYDRA, ("pmi", "127.0.0.1", 3, 2, (2,))),
        ({**SLURM, **HYDRA}, ("pmi", "127.0.0.1", 3, 2, (2,))),
        (GKE_TPU, ("tpu", "t0.pod", 2, 1, None)),
        ({**GKE_TPU, "TPU_PROCESS_ADDRESSES": "a:8476,b:8476,c:8476"}, ("tpu", "a", 3, 1, None)),
        (
            {
                **GKE_TPU,
                "MEGASCALE_NUM_SLICES": "3",
                "MEGASCALE_SLICE_ID": "2",
                "MEGASCALE_COORDINATOR_ADDRESS": "boss:8080",
            },
            ("tpu", "boss", 6, 5, None),
        ),
        (PLAIN, ("variables", "10.0.0.1", 4, 3, None)),
        ({**PLAIN, "JAX_LOCAL_DEVICE_IDS": "2,3"}, ("variables", "10.0.0.1", 4, 3, (2, 3))),
        ({**SLURM, **PLAIN}, ("variables", "10.0.0.1", 4, 3, None)),
        (LAUNCHER, ("launcher", "127.0.0.1", 2, 1, None)),
        ({**SLURM, **OPEN_MPI_5, **LAUNCHER}, ("launcher", "127.0.0.1", 2, 1, None)),
        ({**KUBERNETES, "JAX_NUM_PROCESSES": "4", "JAX_COORDINATOR_ADDRESS": "a-0.a:1"}, ("k8s", "a-0.a", 4, 2, None)),
        # The address from a plain variable, the rest from the scheduler.
        ({**SLURM, "JAX_COORDINATOR_ADDRESS": "node02:1"}, ("slurm", "node02", 8, 5, (1,))),
    ],
    ids=str,
)
def test_values_are_found(variables, expected):
    variables = dict(variables)
    if "TPU_WORKER_ID" in variables:
        variables["TPU_SKIP_MDS_QUERY"] = "1"
    assert summary(find(variables)) == expected


def test_launcher_has_a_token_and_an_empty_variable_is_unset():
    variables = {**LAUNCHER, "SLURM_JOB_ID": "", "JAX_PROCESS_ID": "", "SHARDWISE_PEER_TIMEOUT": "2.5"}
    assert find(variables) == ProcessEnvironment(
        "launcher", "127.0.0.1:5000", 2, 1, token="secret", has_launcher=True, peer_timeout=2.5
    )


def test_processes_of_a_job_choose_one_port_and_other_jobs_another():
    addresses = {find({**SLURM, "SLURM_PROCID": str(rank)}).coordinator_address for rank in range(1, 8)}
    assert len(addresses) == 1
    ports = {
        int(find({**SLURM, "SLURM_JOB_ID": str(job)}).coordinator_address.rpartition(":")[2]) for job in range(200)
    }
    assert len(ports) > 180 and all(61440 <= port < 65536 for port in ports)
    assert find({**SLURM, "SLURM_STEP_ID": "1"}).coordinator_address not in addresses
    assert find({**SLURM, "JAX_COORDINATOR_PORT": "9"}).coordinator_address == "node01:9"


def test_arguments_take_precedence():
    environment = find(SLURM, coordinator_address="a:1", num_processes=2, process_id=0, local_device_ids=[3])
    assert environment == ProcessEnvironment("arguments", "a:1", 2, 0, (3,))
    assert find({}, coordinator_address="a:1", num_processes=2, process_id=0, local_device_ids=0).local_device_ids == (
        0,
    )
    assert find(SLURM, coordinator_address="a:1").num_processes == 8
    assert find(PLAIN, process_id=1).process_id == 1
    assert find(LAUNCHER, coordinator_address="127.0.0.1:5000", num_processes=2, process_id=0).has_launcher
    assert not find(LAUNCHER, coordinator_address="127.0.0.1:5001", num_processes=2, process_id=0).has_launcher
    bound = find({**PLAIN, "JAX_COORDINATOR_BIND_ADDRESS": "0.0.0.0:1"})
    assert bound.coordinator_bind_address == "0.0.0.0:1"
    assert find(PLAIN, coordinator_bind_address="[::]:1").coordinator_bind_address == "[::]:1"


@pytest.mark.parametrize("method", [name for name in METHODS if name != "deactivate"])
def test_a_method_is_selected_by_name(method):
    variables = {
        **SLURM,
        **OPEN_MPI_5,
        **HYDRA,
        **GKE_TPU,
        **KUBERNETES,
        **LAUNCHER,
        "TPU_SKIP_MDS_QUERY": "1",
        "SHARDWISE_LAUNCHER": "1" if method == "launcher" else "",
    }
    del variables["PMIX_RANK"]
    if method not in ("launcher", "variables"):
        for name in ("SHARDWISE_NUM_PROCESSES", "SHARDWISE_PROCESS_ID"):
            del variables[name]
    if method == "k8s":
        variables["JAX_NUM_PROCESSES"] = "3"
    if method == "slurm":
        variables["PMI_RANK"] = "5"
    assert find(variables, cluster_detection_method=method).method == method


@pytest.mark.parametrize(
    ("variables", "arguments", "names"),
    [
        # Malformed values.
        ({**SLURM, "SLURM_PROCID": "five"}, {}, ["SLURM_PROCID", "'five'"]),
        ({**SLURM, "SLURM_PROCID": "-1"}, {}, ["SLURM_PROCID", "'-1'"]),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "0", "SLURM_NTASKS": "0"}, {}, ["SLURM_STEP_NUM_TASKS"]),
        ({**SLURM, "SLURM_STEP_NODELIST": "node[1-"}, {}, ["SLURM_STEP_NODELIST", "brackets"]),
        ({**PLAIN, "JAX_NUM_PROCESSES": "9" * 5000}, {}, ["JAX_NUM_PROCESSES"]),
        ({**PLAIN, "JAX_COORDINATOR_ADDRESS": "nowhere"}, {}, ["JAX_COORDINATOR_ADDRESS", "host:port"]),
        ({**PLAIN, "JAX_COORDINATOR_ADDRESS": "a:99999"}, {}, ["JAX_COORDINATOR_ADDRESS", "host:port"]),
        ({**PLAIN, "JAX_LOCAL_DEVICE_IDS": "0,x"}, {}, ["JAX_LOCAL_DEVICE_IDS", "'x'"]),
        ({**LAUNCHER, "SHARDWISE_PEER_TIMEOUT": "0"}, {}, ["SHARDWISE_PEER_TIMEOUT=0", "seconds"]),
        ({**OPEN_MPI_4, "OMPI_MCA_orte_hnp_uri": "junk"}, {}, ["OMPI_MCA_orte_hnp_uri"]),
        # Missing values.
        ({name: value for name, value in SLURM.items() if name != "SLURM_PROCID"}, {}, ["SLURM_PROCID is not set"]),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"}, {}, ["SLURM_STEP_NODELIST", "srun"]),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, {}, ["OMPI_COMM_WORLD_RANK is not set", "OMPI_COMM_WORLD_SIZE=2"]),
        ({"OMPI_COMM_WORLD_RANK": "1"}, {}, ["OMPI_COMM_WORLD_SIZE is not set"]),
        ({"PMI_RANK": "0"}, {}, ["PMI_SIZE is not set", "PMI_RANK=0"]),
        ({"PMIX_RANK": "0"}, {}, ["PMI_SIZE is not set", "PMIX_RANK=0"]),
        ({**OPEN_MPI_5, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, {}, ["OMPI_COMM_WORLD_SIZE=2", "JAX_COORDINATOR_ADDRESS"]),
        ({"TPU_WORKER_ID": "0", "TPU_SKIP_MDS_QUERY": "1"}, {}, ["TPU_WORKER_HOSTNAMES"]),
        ({"TPU_WORKER_HOSTNAMES": "a", "TPU_SKIP_MDS_QUERY": "1"}, {}, ["TPU_WORKER_ID is not"]),
        (
            {**GKE_TPU, "MEGASCALE_NUM_SLICES": "2", "TPU_SKIP_MDS_QUERY": "1"},
            {},
            ["MEGASCALE_COORDINATOR_ADDRESS is not set"],
        ),
        ({"JAX_NUM_PROCESSES": "2"}, {}, ["JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES=2 alone"]),
        ({"JAX_PROCESS_ID": "0"}, {"num_processes": 2}, ["JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID=0"]),
        ({"SHARDWISE_LAUNCHER": "1"}, {}, ["SHARDWISE_LAUNCHER", "JAX_NUM_PROCESSES"]),
        ({}, {"cluster_detection_method": "launcher"}, ["SHARDWISE_LAUNCHER is not set"]),
        ({}, {"cluster_detection_method": "slurm"}, ["SLURM_PROCID"]),
        ({}, {}, ["coordinator_address", "JAX_PROCESS_ID", "shardwise launch"]),
        (SLURM, {"cluster_detection_method": "deactivate"}, ["coordinator_address"]),
        ({"KUBERNETES_SERVICE_HOST": "h"}, {}, ["JOB_COMPLETION_INDEX", "Indexed"]),
        ({**KUBERNETES, "HOSTNAME": "other"}, {}, ["HOSTNAME=other", "JAX_NUM_PROCESSES"]),
        # Contradictions.
        (
            {**SLURM, "SLURM_PROCID": "8", "SLURM_LOCALID": "0"},
            {},
            ["SLURM_PROCID must be from 0 to 7 (SLURM_NTASKS=8)"],
        ),
        ({**SLURM, "SLURM_NTASKS": "4"}, {}, ["SLURM_NTASKS=4", "SLURM_STEP_NUM_TASKS=8"]),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "2"}, {}, ["SLURM_STEP_NUM_NODES=2", "4 hosts"]),
        ({**SLURM, "SLURM_LOCALID": "6"}, {}, ["SLURM_LOCALID=6", "SLURM_PROCID=5"]),
        ({**SLURM, "PMIX_RANK": "4"}, {}, ["SLURM_PROCID=5", "PMIX_RANK=4"]),
        ({**SLURM, "JAX_NUM_PROCESSES": "4"}, {}, ["JAX_NUM_PROCESSES=4", "SLURM_NTASKS=8"]),
        ({**SLURM, "JAX_PROCESS_ID": "4"}, {}, ["JAX_PROCESS_ID=4", "SLURM_PROCID=5"]),
        ({**SLURM, "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_LOCALID": "2"}, {}, ["CUDA_VISIBLE_DEVICES=0,1"]),
        ({**OPEN_MPI_5, "PMIX_RANK": "0"}, {}, ["OMPI_COMM_WORLD_RANK=1", "PMIX_RANK=0"]),
        ({**OPEN_MPI_4, "OMPI_COMM_WORLD_LOCAL_SIZE": "5"}, {}, ["OMPI_COMM_WORLD_LOCAL_SIZE=5"]),
        ({**GKE_TPU, "TPU_WORKER_ID": "2", "TPU_SKIP_MDS_QUERY": "1"}, {}, ["TPU_WORKER_ID=2", "TPU_WORKER_HOSTNAMES"]),
        (
            {**GKE_TPU, "MEGASCALE_SLICE_ID": "1", "TPU_SKIP_MDS_QUERY": "1"},
            {},
            ["MEGASCALE_SLICE_ID=1", "MEGASCALE_NUM_SLICES=1"],
        ),
        ({**PLAIN, "JAX_PROCESS_ID": "4"}, {}, ["JAX_PROCESS_ID must be from 0 to 3 (JAX_NUM_PROCESSES=4), not 4"]),
        ({**PLAIN, **LAUNCHER}, {}, ["SHARDWISE_COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS"]),
        (LAUNCHER, {"cluster_detection_method": "mpi4py"}, ["cluster_detection_method", "'ompi' or 'pmi'"]),
        (LAUNCHER, {"cluster_detection_method": "slurm"}, ["SLURM_PROCID"]),
        # Arguments.
        (
            {},
            {"coordinator_address": "a", "num_processes": 1, "process_id": 0},
            ["coordinator_address must be host:port"],
        ),
        ({}, {"coordinator_address": "a:1", "num_processes": 2, "process_id": -1}, ["process_id must be from 0 to 1"]),
        (
            {},
            {"coordinator_address": "a:1", "num_processes": 0, "process_id": 0},
            ["num_processes must be from 1 to 65536"],
        ),
    ],
    ids=str,
)
def test_partial_and_contradictory_variables_raise_an_error_that_names_them(variables, arguments, names):
    with pytest.raises(ValueError) as caught:
        find(variables, **arguments)
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize("value", ["2", 2.0, True])
def test_numbers_that_are_not_integers_raise_a_type_error(value):
    with pytest.raises(TypeError, match="num_processes must be an int"):
        find({}, coordinator_address="a:1", num_processes=value, process_id=0)


@settings(deadline=None)
@given(st.integers(1, 64).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))), st.data())
def test_every_scheduler_gives_the_numbers_that_it_was_given(numbers, data):
    count, rank = numbers
    hosts = data.draw(st.integers(1, count))
    local = data.draw(st.integers(0, rank))
    environments = {
        "slurm": {
            "SLURM_JOB_ID": str(data.draw(st.integers(0, 2**31))),
            "SLURM_STEP_NODELIST": f"n[{','.join(str(host) for host in range(hosts))}]",
            "SLURM_NTASKS": str(count),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
        },
        "ompi": {
            "OMPI_COMM_WORLD_SIZE": str(count),
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(count),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        },
        "pmi": {"PMI_SIZE": str(count), "PMI_RANK": str(rank), "PMI_LOCAL_SIZE": str(count)},
        "tpu": {
            "TPU_WORKER_ID": str(rank),
            "TPU_WORKER_HOSTNAMES": ",".join(f"h{host}" for host in range(count)),
            "TPU_SKIP_MDS_QUERY": "true",
        },
        "variables": {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(rank)},
    }
    for method, variables in environments.items():
        environment = find(variables)
        assert (environment.method, environment.num_processes, environment.process_id) == (method, count, rank)


NAMES = sorted({*SLURM, *OPEN_MPI_4, *OPEN_MPI_5, *HYDRA, *GKE_TPU, *KUBERNETES, *PLAIN, *LAUNCHER})


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.sampled_from(["", "0", "1", "2", "x", "a:1", "n[1-2]", "-1", "h-1"]) | st.text(max_size=8),
        max_size=12,
    )
)
def test_any_variables_give_valid_values_or_a_value_error(variables):
    try:
        environment = find({**variables, "TPU_SKIP_MDS_QUERY": "1"})
    except ValueError as error:
        set_names = [name for name, value in variables.items() if value.strip()]
        assert not set_names or any(name in str(error) for name in NAMES), error
    else:
        assert 0 <= environment.process_id < environment.num_processes
        host, _, port = environment.coordinator_address.rpartition(":")
        assert host and 0 <= int(port) < 2**16


@contextmanager
def server(answers):
    """Serve the answers on a loopback port; yield the port and the list of requests with their headers."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append((self.path, dict(self.headers)))
            status, text = answers.get(self.path, (404, "not found"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format, *arguments):
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield http.server_port, requests
    finally:
        http.shutdown()
        thread.join(5)
        http.server_close()


ATTRIBUTES = "/computeMetadata/v1/instance/attributes/"


@pytest.mark.parametrize(
    ("endpoints", "tpu_env", "expected"),
    [
        ("h0,h1,h2", "", ("tpu", "h0", 3, 1, None)),
        ("a:b:10.0.0.1,c:d:10.0.0.2", "", ("tpu", "10.0.0.1", 2, 1, None)),
        (
            "h0,h1",
            "A: 'b'\nMEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\nMEGASCALE_COORDINATOR_ADDRESS: 'h9:80'\n",
            ("tpu", "h9", 4, 3, None),
        ),
    ],
)
def test_tpu_metadata_server(endpoints, tpu_env, expected, monkeypatch):
    """A loopback fake; proxies are ignored."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    answers = {
        f"{ATTRIBUTES}agent-worker-number": (200, "1"),
        f"{ATTRIBUTES}worker-network-endpoints": (200, endpoints),
        f"{ATTRIBUTES}tpu-env": (200, tpu_env),
    }
    with server(answers) as (port, requests):
        environment = find_processes({"GCE_METADATA_IP": f"127.0.0.1:{port}"})
        assert summary(environment) == expected
        assert environment.coordinator_address.endswith(":8482")
        assert all(headers["Metadata-Flavor"] == "Google" for _, headers in requests)


def test_metadata_server_without_tpu_attributes_is_no_tpu():
    with (
        server({}) as (port, _),
        pytest.raises(ValueError, match="found neither arguments nor variables"),
    ):
        find_processes({"GCE_METADATA_IP": f"127.0.0.1:{port}"})


@pytest.fixture
def service_account(tmp_path):
    (tmp_path / "namespace").write_text("team\n")
    (tmp_path / "token").write_text("t0ken\n")
    return tmp_path


JOB_PATH = "/apis/batch/v1/namespaces/team/jobs/train"
JOB = {
    "metadata": {"labels": {}},
    "spec": {"parallelism": 4, "completions": 4, "template": {"spec": {"subdomain": "trainers"}}},
}


def find_in_kubernetes(answer, service_account):
    with server({JOB_PATH: answer}) as (port, requests):
        variables = {**KUBERNETES, "KUBERNETES_SERVICE_PORT": str(port)}
        services = HostServices(Variables(variables), service_account, "http")
        environment = find_processes(variables, services=services)
        assert all(headers["Authorization"] == "Bearer t0ken" for _, headers in requests)
        return environment


def test_kubernetes_api_knows_the_number_of_processes_and_the_host(service_account):
    environment = find_in_kubernetes((200, json.dumps(JOB)), service_account)
    assert summary(environment) == ("k8s", "train-0.trainers", 4, 2, None)
    job_set = {
        "metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": "set"}},
        "spec": {"parallelism": 4, "template": {"spec": {}}},
    }
    assert find_in_kubernetes((200, json.dumps(job_set)), service_account).coordinator_address.startswith(
        "train-0.set:"
    )


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        ((403, "forbidden"), ["403", "JAX_NUM_PROCESSES", "allow its service account"]),
        ((404, ""), ["404", "'train'"]),
        ((200, "junk"), ["JAX_NUM_PROCESSES"]),
        ((200, "[]"), ["does not describe"]),
        ((200, json.dumps({**JOB, "spec": {**JOB["spec"], "completions": 8}})), ["parallelism 4 and completions 8"]),
        ((200, json.dumps({**JOB, "spec": {**JOB["spec"], "parallelism": "x"}})), ["parallelism 'x'"]),
        ((200, json.dumps({**JOB, "spec": 3})), ["no object `spec`"]),
        ((200, json.dumps({"spec": {"parallelism": 4}})), ["no `subdomain`", "headless Service"]),
    ],
)
def test_kubernetes_errors_say_what_to_change(answer, names, service_account):
    with pytest.raises(ValueError) as caught:
        find_in_kubernetes(answer, service_account)
    for name in names:
        assert name in str(caught.value)


def test_kubernetes_without_a_service_account_says_what_to_set():
    with pytest.raises(ValueError, match=r"cannot read the Job 'train'.*Set JAX_NUM_PROCESSES"):
        find_processes(KUBERNETES)
