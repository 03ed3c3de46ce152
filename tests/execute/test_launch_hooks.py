"""Launch hooks are called for compilations and launches until they are removed."""

import numpy as np

import shardwise as sw
from shardwise.execute.launch_hooks import launch_hooks


def test_a_hook_sees_the_compilation_and_every_launch():
    seen = []

    def hook(launch, runs):
        seen.append(runs)

    double = sw.jit(lambda x: x * 2)
    launch_hooks.add(hook)
    try:
        double(np.ones(3, np.float32))
        double(np.ones(3, np.float32))
    finally:
        launch_hooks.remove(hook)
    double(np.ones(3, np.float32))
    assert seen == [False, True, True]
