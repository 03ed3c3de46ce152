"""topologies: devices that are present, and devices for which programs are compiled only."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.base import _jaxlib
from shardwise.errors import DeviceMismatchError, PlatformError
from shardwise.experimental import topologies
from shardwise.runtime import client, executable


def test_devices_of_a_platform_become_a_mesh():
    topology = topologies.get_attached_topology("cpu")
    assert topology.devices == sw.devices("cpu")
    mesh = topologies.make_mesh(topologies.TopologyDescription(topology.devices[:6]), (3, 2), ("x", "y"))
    assert dict(mesh.shape) == {"x": 3, "y": 2} and set(mesh.devices.flat) == set(sw.devices("cpu")[:6])


@pytest.mark.parametrize(
    ("platform", "message"),
    [
        ("cpu", "'cpu' has no PJRT plugin, and no topologies"),
        ("quantum", "'quantum' is not supported: no PJRT plugin of this name is installed"),
    ],
)
def test_a_platform_without_a_plugin_is_an_error(platform, message):
    with pytest.raises(PlatformError, match=message):
        topologies.get_topology_desc("2x2", platform)


def test_a_topology_that_a_plugin_does_not_know_is_an_error(monkeypatch):
    def refuse(api, name, options):
        raise _jaxlib.RuntimeFailure("FAILED_PRECONDITION: No visible GPU devices.")

    monkeypatch.setattr(client.clients, "plugin_of", lambda platform: None)
    monkeypatch.setattr(client, "load", lambda plugin: None)
    monkeypatch.setattr(client, "plugin_topology", refuse)
    with pytest.raises(PlatformError, match=r"'cuda' has no topology '' with .*\(topology='1x1x8'\): FAILED_PRECOND"):
        topologies.get_topology_desc("", "cuda", topology="1x1x8")


@pytest.fixture
def mesh():
    """A mesh of devices that stand for those of this machine, for compilation only."""
    devices = _jaxlib.topology_devices(_jaxlib.device_topology(sw.devices()))
    return topologies.make_mesh(topologies.TopologyDescription(devices), (4, 2), ("x", "y"))


def struct(mesh):
    return sw.ShapeDtypeStruct((16, 6), jnp.float32, sharding=sw.NamedSharding(mesh, sw.P("x", "y")))


def test_arrays_cannot_be_put_on_devices_of_a_topology(mesh):
    with pytest.raises(DeviceMismatchError, match="its devices are those of a topology, which are not present"):
        sw.device_put(np.ones((4, 2)), sw.NamedSharding(mesh, sw.P("x")))


def test_a_program_is_compiled_by_the_compiler_of_the_topology(mesh):
    lowered = sw.jit(lambda x: x @ x.T).lower(struct(mesh))
    with pytest.raises(_jaxlib.RuntimeFailure, match="No compiler factory for platform: cpu"):
        lowered.compile()


def test_a_compiled_program_is_read_but_not_called(mesh, monkeypatch):
    calls = []

    def compile_for_topology(text, devices, options):
        calls.append((text, list(devices), dict(options)))

    monkeypatch.setattr(executable, "compile_for_topology", compile_for_topology)
    captured = jnp.arange(6.0)
    lowered = sw.jit(lambda x: x + captured).lower(struct(mesh))
    compiled = lowered.compile({"xla_gpu_autotune_level": 0})
    assert calls == [(lowered.as_text(), list(mesh.devices.flat), {"xla_gpu_autotune_level": 0})]
    assert compiled.cost_analysis()["wire bytes"] == 0
    with pytest.raises(
        DeviceMismatchError, match=r"compiled for 8 devices of a topology \(cpu\), which are not present"
    ):
        compiled._launch.executable.run([])
