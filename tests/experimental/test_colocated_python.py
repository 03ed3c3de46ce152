"""colocated_python in one process; tests/multi_process runs it in several."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import numpy as jnp
from shardwise.experimental import colocated_python as colocated


class Accelerator:
    """A device of another platform than CPU, and the client of all such devices."""

    platform, process_index = "gpu", 0

    def __init__(self, devices):
        self.client, self.devices = self, lambda: devices


def accelerator(number, count):
    devices = []
    devices += [Accelerator(devices) for _ in range(count)]
    return devices[number]


def test_the_colocated_device_has_the_same_position():
    cpus = sw.devices("cpu")
    assert colocated.colocated_cpu_devices(cpus[2:4]) == tuple(cpus[2:4])
    assert colocated.colocated_cpu_devices([accelerator(3, 4), cpus[1]]) == (cpus[3], cpus[1])


def test_too_few_cpu_devices_raise():
    with pytest.raises(
        ValueError, match=r"process 0 has 9 devices like .*, but only 8 CPU devices. Call config.update\('num_cpu_dev"
    ):
        colocated.colocated_cpu_devices([accelerator(8, 9)])


def test_methods_of_a_class_run_with_the_object():
    @colocated.colocated_python_class
    class Counter:
        """Adds arrays."""

        def __init__(self):
            self.total = 0

        def add(self, x):
            self.total += int(np.asarray(x).sum())
            return jnp.asarray(self.total)

    counter = Counter()
    assert [int(counter.add(jnp.arange(3))), int(counter.add(jnp.arange(4)))] == [3, 9]
    assert (Counter.__name__, Counter.__doc__) == ("Counter", "Adds arrays.")


def test_a_function_in_place_of_a_class_raises():
    with pytest.raises(TypeError, match="colocated_python_class needs a class, not "):
        colocated.colocated_python_class(len)
