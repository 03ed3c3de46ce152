"""Tests mirror the package: the tests of a module are found by its path.

The tests of `shardwise/a/b/c.py` are in `tests/a/b/test_c.py`, and those of a further aspect in `test_c_ASPECT.py`. The
tests of several modules of a package `a/b` are in `tests/a/b/test_b.py` and `test_b_ASPECT.py`. The modules without a
file of their own are in `tests/tested_elsewhere.py`, with the files that test them.
"""

from pathlib import Path, PurePosixPath

import pytest

from tests.tested_elsewhere import FOLDERS, MODULES

ROOT = Path(__file__).resolve().parents[1]
TESTS, PACKAGE = ROOT / "tests", ROOT / "shardwise"

# Tests of programs and of the repository. Files in `tests/` itself test modules of the top level, or the repository.
NOT_MIRRORED = {
    "benchmarks": "scripts outside of the package",
    "checkpoints/forgeries": "a campaign of damaged files in all formats",
    "ecosystem": "libraries written for JAX, in an environment of their own",
    "examples": "scripts outside of the package",
    "explicit": "programs on Explicit axes, which pass through all stages",
    "fuzz": "random programs, which pass through all stages",
    "golden": "plans of known models",
    "layouts": "every public function, with sharded arguments",
    "manual": "programs under shard_map, which pass through all stages",
    "multi_process": "programs on several processes",
    "process_faults": "real processes that fail, stop or fork",
    "recovery": "programs whose failed processes are replaced",
    "soak": "training with random faults",
    "user_types": "programs for type checkers, which do not run",
}


def module_paths() -> set[str]:
    """Return the paths of the modules in the package, such as `api/jit`, without those of packages."""
    paths = (path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py"))
    return {path for path in paths if not path.endswith("__init__")}


def is_test_of(test: PurePosixPath, module: str) -> bool:
    """Return whether a test file has the path of a module. Leading underscores of a module's name are left out."""
    folder, _, name = module.rpartition("/")
    stem = f"test_{name.lstrip('_')}"
    return test.parent == PurePosixPath(folder) and (test.stem == stem or test.stem.startswith(f"{stem}_"))


def is_mirrored(test: PurePosixPath) -> bool:
    return test.parent != PurePosixPath(".") and not any(test.is_relative_to(folder) for folder in NOT_MIRRORED)


def covered_by_folder(module: str) -> list[str]:
    return [folder for folder in FOLDERS if PurePosixPath(module).parent == PurePosixPath(folder)]


TEST_FILES = {PurePosixPath(path.relative_to(TESTS).as_posix()) for path in TESTS.rglob("test_*.py")}
MODULE_PATHS = module_paths()
OWN = {module for module in MODULE_PATHS if any(is_test_of(test, module) for test in TEST_FILES)}


def test_every_test_file_has_the_path_of_a_module_or_a_package():
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")} - {"."}
    own_names = {f"{package}/{PurePosixPath(package).name}" for package in packages}
    strays = [
        str(test)
        for test in sorted(TEST_FILES)
        if is_mirrored(test) and not any(is_test_of(test, path) for path in MODULE_PATHS | own_names)
    ]
    assert strays == []


def test_every_module_has_a_test_file_or_is_listed():
    listed = {module for module in MODULE_PATHS if module in MODULES or covered_by_folder(module)}
    assert sorted(MODULE_PATHS - OWN - listed) == []


def test_listed_modules_exist_and_have_no_test_file_of_their_own():
    assert sorted(MODULES.keys() - MODULE_PATHS) == []
    assert sorted(MODULES.keys() & OWN) == []
    assert [module for module in MODULES if covered_by_folder(module)] == []
    uncovered = [folder for folder in FOLDERS if not any(covered_by_folder(m) == [folder] for m in MODULE_PATHS - OWN)]
    assert uncovered == []


def test_listed_test_files_exist():
    assert sorted({path for path in (*MODULES.values(), *FOLDERS.values()) if not (TESTS / path).is_file()}) == []


@pytest.mark.parametrize("folder", NOT_MIRRORED)
def test_folders_that_do_not_mirror_the_package_exist(folder):
    assert (TESTS / folder).is_dir()


def test_the_rule():
    assert is_test_of(PurePosixPath("api/test_jit.py"), "api/jit")
    assert is_test_of(PurePosixPath("api/test_jit_threads.py"), "api/jit")
    assert is_test_of(PurePosixPath("base/test_jaxlib.py"), "base/_jaxlib")
    assert not is_test_of(PurePosixPath("api/test_jitted.py"), "api/jit")
    assert not is_test_of(PurePosixPath("test_jit.py"), "api/jit")
