"""Cases: checkpoints that several processes write and read together, in the folder `CHECKPOINT_FOLDER`."""

import os
import signal
import time
import warnings
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints import selection, snapshot
from shardwise.checkpoints.location import Folder
from shardwise.checkpoints.read import Reader
from shardwise.errors import CheckpointError, CorruptCheckpoint
from shardwise.experimental.array_serialization import serialization
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

FOLDER = Path(os.environ.get("CHECKPOINT_FOLDER", "."))
NOTICE_LIMIT = 60  # seconds within which XLA tells all processes of a SIGTERM


def host_tree():
    rng = np.random.default_rng(0)
    return {
        "large": rng.random((37, 30), np.float32),
        "small": np.arange(7),
        "replicated": rng.integers(0, 99, (6, 4)),
        "words": rng.integers(0, 99, (12, 2)).astype(np.uint32),
    }


def global_tree(shardings):
    """Return the tree as global arrays; every process has the whole data and puts its shards."""
    return {
        name: sw.make_array_from_callback(value.shape, shardings[name], lambda index, value=value: value[index])
        for name, value in host_tree().items()
    }


def layouts(axes):
    mesh = sw.make_mesh(axes, ("x", "y")[: len(axes)])
    last = "y" if len(axes) > 1 else None
    return {
        "large": NamedSharding(mesh, P("x", last)),
        "small": NamedSharding(mesh, P("x")),
        "replicated": NamedSharding(mesh, P()),
        "words": NamedSharding(mesh, P(last, None)),
    }


def check(tree):
    for name, expected in host_tree().items():
        for shard in tree[name].addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), expected[shard.index])


def case_every_process_writes_its_shards():
    snapshot.LARGEST_PACKED = 1000
    count = sw.device_count()
    before = layouts((count,))
    checkpoints.save(FOLDER / "one", global_tree(before), metadata={"from": sw.process_count()}).wait()
    for axes in ((count,), (2, count // 2), (count // 2, 2)):
        like = {
            name: sw.ShapeDtypeStruct(value.shape, jnp.asarray(value).dtype, sharding=layouts(axes)[name])
            for name, value in host_tree().items()
        }
        check(checkpoints.restore(FOLDER / "one", like))
    manifest = checkpoints.read_manifest(FOLDER / "one")
    assert len(manifest.packs) == sw.process_count() and all(manifest.packs)
    return checkpoints.verify(FOLDER / "one")


def case_an_error_in_one_process_is_an_error_in_all():
    leaf = print if sw.process_index() == 1 else 3
    try:
        checkpoints.save(FOLDER / "bad", {"x": leaf})
    except CheckpointError as error:
        text = str(error)
    assert not (FOLDER / "bad").exists()
    return text


def case_arrays_that_each_process_has_are_written_once():
    """Uncommitted arrays and numpy arrays, as in the state of an optimizer; a restored tree can be saved again."""
    snapshot.LARGEST_PACKED = 1000
    tree = {
        "count": jnp.zeros((), int) + 4,
        "key": sw.random.key(7),
        "large": jnp.full((40, 30), 2.5),
        "host": np.arange(5),
        "global": global_tree(layouts((sw.device_count(),)))["large"],
    }
    for name in ("state", "again"):
        checkpoints.save(FOLDER / name, tree).wait()
        assert checkpoints.verify(FOLDER / name) == 4 + 8 + 4 * 40 * 30 + 40 + 4 * 37 * 30
        tree = checkpoints.restore(FOLDER / name, tree)
        assert (int(tree["count"]), float(tree["large"].sum()), tree["host"].tolist()) == (4, 3000, [0, 1, 2, 3, 4])
        assert tree["count"].sharding.device_set == {sw.local_devices()[0]} and not tree["count"].committed
        assert sw.random.key_data(tree["key"]).tolist() == [0, 7]


def case_trees_that_differ_are_an_error_in_all_processes():
    rank = sw.process_index()
    trees = {
        "value": {"a": 1, "step": rank},
        "host": {"a": np.full(3, rank)},
        "local": {"a": jnp.full(3, rank)},
        "leaves": {"a": 1} if rank else {"a": 1, "b": 2},
        "committed": {"a": sw.device_put(np.ones(3), sw.local_devices()[0])},
    }
    messages = {}
    for name, tree in trees.items():
        try:
            checkpoints.save(FOLDER / "different", tree)
        except CheckpointError as error:
            messages[name] = str(error).partition(": ")[2]
    assert not (FOLDER / "different").exists()
    return messages


def case_an_error_of_one_process_in_a_restore_is_an_error_in_all():
    manager = checkpoints.Manager(FOLDER / "one step", every_steps=1, save_on_sigterm=False, timeout=60)
    manager.save(1, {"x": 3})
    manager.wait()
    try:
        manager.restore({"x": 0} if sw.process_index() else {"y": 0})
    except CheckpointError as error:
        return [type(error).__name__, str(error)]


def save_steps(name, steps):
    """Save steps in which every element is the step, each larger than a pack."""
    manager = checkpoints.Manager(FOLDER / name, every_steps=1, save_on_sigterm=False)
    for step in steps:
        manager.save(step, step_tree(step))
    manager.wait()
    return manager


def step_tree(step):
    sharding = layouts((sw.device_count(),))["large"]
    x = sw.make_array_from_callback((37, 30), sharding, lambda index: np.full((37, 30), step, np.float32)[index])
    return {"x": x, "y": np.full(3, step)}


@contextmanager
def patched(owner, name, value):
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def case_processes_with_different_listings_restore_the_same_step():
    """Return the step that each process restores, and the elements, for stale listings in one process."""
    manager = save_steps("stale", [1, 2, 3])
    children, results = Folder.children, []
    for stale in (["step-1"], [], ["step-1", "step-2", "step-3", "step-9"]):
        listing = children if sw.process_index() == 0 else lambda self, stale=stale: stale
        with patched(Folder, "children", listing):
            latest, restored = manager.latest(), manager.restore(step_tree(0))
        shards = [np.asarray(shard.data) for shard in restored.tree["x"].addressable_shards]
        values = sorted({float(value) for shard in shards for value in np.unique(shard)})
        results.append([latest, restored.step, values, restored.tree["y"].tolist()])
    return results


def case_processes_that_see_different_checkpoints_all_raise_the_same_error():
    """Return the errors: a process does not see a step, sees another checkpoint, or asks for another step."""
    manager = save_steps("different", [1, 2])
    data, errors = Folder.data, []

    def hide(self):
        return None if self.path.name == "step-2" else data(self)

    def replace(self):
        return data(Folder(self.path.with_name("step-1"))) if self.path.name == "step-2" else data(self)

    selection._ATTEMPTS, selection._PAUSE = 2, 0.01
    for step, view in ((None, hide), (2, hide), (None, replace), (2, replace), (1 + sw.process_index() % 2, data)):
        with patched(Folder, "data", view if sw.process_index() == 1 else data):
            try:
                manager.restore(step_tree(0), step=step)
            except CheckpointError as error:
                errors.append([type(error).__name__, str(error)])
    return errors


def case_a_corrupt_step_is_skipped_and_replaced_by_all_processes():
    manager = save_steps("corrupt", [1, 2])
    read_small = Reader.read_small

    def fail(self, names):
        if self.path.endswith("step-2") and sw.process_index() == sw.process_count() - 1:
            raise CorruptCheckpoint(f"{self.path} is corrupt")
        return read_small(self, names)

    with patched(Reader, "read_small", fail), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        first = manager.restore(step_tree(0)).step
    manager.save(2, step_tree(5))
    manager.wait()
    return [first, manager.restore(step_tree(0)).tree["y"].tolist(), manager.steps()]


def case_arrays_are_serialized_together():
    manager = serialization.GlobalAsyncCheckpointManager(timeout_secs=60)
    tree, count, called = global_tree(layouts((sw.device_count(),))), sw.device_count(), []
    paths = [FOLDER / "arrays" / name for name in tree]
    manager.serialize_with_paths(list(tree.values()), paths, on_commit_callback=lambda: called.append(True))
    manager.wait_until_finished()
    shardings = [layouts((2, count // 2))[name] for name in tree]
    check(dict(zip(tree, manager.deserialize_with_paths(shardings, paths), strict=True)))
    assert len(called) == (sw.process_index() == 0)
    try:
        manager.serialize_with_paths([jnp.ones(3)], [FOLDER / "local"])
    except ValueError as error:
        return str(error)


def case_all_processes_save_the_same_step_on_sigterm():
    """Two managers with different steps, one of which saves every third time; others were closed before."""
    received = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    for _ in range(2):
        with checkpoints.Manager(FOLDER / "run"), checkpoints.Manager(FOLDER / "other"):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGTERM]  # no manager is open
    managers = [checkpoints.Manager(FOLDER / name) for name in ("run", "other")]
    mesh = sw.make_mesh((sw.device_count(),), ("x",))
    x = sw.make_array_from_callback((8,), NamedSharding(mesh, P("x")), lambda index: np.zeros(8, np.float32)[index])
    step_function = sw.jit(lambda x: x + x.sum() + 1)
    deadline = time.monotonic() + NOTICE_LIMIT
    for step in count():  # until the notice has reached all processes
        assert time.monotonic() < deadline, f"no notice after {step} steps"
        if step == 5 and sw.process_index() == sw.process_count() - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        x = step_function(x)
        managers[0].save(step, {"x": x})
        if step % 3 == 0:
            managers[1].save(1000 + step, {"x": x})
        if all(manager.stopping for manager in managers):
            break
    for manager in managers:
        manager.close()
    os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGTERM, previous)
    return [step, *(manager.steps() for manager in managers), len(received)]
