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


def path_without_underscores(module: str) -> str:
    """Return the path of a module without the leading underscores of its name, which the names of its tests omit."""
    folder, slash, name = module.rpartition("/")
    return f"{folder}{slash}{name.lstrip('_')}"


def paths_of_tested(test: PurePosixPath) -> set[str]:
    """Return all paths of modules that a test file can belong to: of test_a_b.py, those of the modules a_b and a."""
    words = test.stem.removeprefix("test_").split("_")
    names = ("_".join(words[: count + 1]) for count in range(len(words)))
    return {test.with_name(name).as_posix() for name in names if name}


def is_mirrored(test: PurePosixPath) -> bool:
    return test.parent != PurePosixPath(".") and not any(test.is_relative_to(folder) for folder in NOT_MIRRORED)


def covered_by_folder(module: str) -> list[str]:
    return [folder for folder in FOLDERS if PurePosixPath(module).parent == PurePosixPath(folder)]


TEST_FILES = {PurePosixPath(path.relative_to(TESTS).as_posix()) for path in TESTS.rglob("test_*.py")}
MODULE_PATHS = module_paths()
TESTED = set().union(*map(paths_of_tested, TEST_FILES))
OWN = {module for module in MODULE_PATHS if path_without_underscores(module) in TESTED}


def test_every_test_file_has_the_path_of_a_module_or_a_package():
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")} - {"."}
    own_names = {f"{package}/{PurePosixPath(package).name}" for package in packages}
    paths = set(map(path_without_underscores, MODULE_PATHS | own_names))
    strays = [str(test) for test in sorted(TEST_FILES) if is_mirrored(test) and paths.isdisjoint(paths_of_tested(test))]
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
    assert paths_of_tested(PurePosixPath("api/test_jit.py")) == {"api/jit"}
    assert paths_of_tested(PurePosixPath("api/test_jit_of_threads.py")) == {
        "api/jit",
        "api/jit_of",
        "api/jit_of_threads",
    }
    assert path_without_underscores("base/_jaxlib") == "base/jaxlib"
