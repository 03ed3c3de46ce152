"""Topologies: the devices that are attached, and meshes of them."""

import pytest

import shardwise as sw
from shardwise.errors import UnsupportedError
from shardwise.experimental import topologies


def test_attached_devices_make_a_mesh():
    topology = topologies.get_attached_topology("cpu")
    assert topology.devices == sw.devices("cpu")
    mesh = topologies.make_mesh(topologies.TopologyDescription(topology.devices[:6]), (3, 2), ("x", "y"))
    assert dict(mesh.shape) == {"x": 3, "y": 2} and set(mesh.devices.flat) == set(sw.devices("cpu")[:6])


def test_absent_devices_are_an_error():
    with pytest.raises(UnsupportedError, match=r"the topology 'v5e:2x2' of 'tpu' is not available.*AbstractMesh"):
        topologies.get_topology_desc("v5e:2x2", "tpu")
