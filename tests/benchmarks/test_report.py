"""The report of the benchmarks."""

from importlib.metadata import PackageNotFoundError

from benchmarks import report
from shardwise.version import __version__


def test_a_checkout_needs_no_installed_package(monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(report, "version", version)
    content = report.as_json({"checkpoints": []}, quick=True)
    assert content["machine"]["versions"] == {"shardwise": __version__}
