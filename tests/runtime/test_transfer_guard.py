"""Transfers between host and devices that settings log or disallow."""

import logging

import pytest

import shardwise as sw
from shardwise.errors import TransferError
from shardwise.runtime.transfer_guard import check_transfer


@pytest.mark.parametrize("direction", ["host_to_device", "device_to_device", "device_to_host"])
def test_only_implicit_transfers_are_disallowed_unless_the_setting_is_explicit(direction):
    with sw.config.override(f"transfer_guard_{direction}", "disallow"):
        check_transfer(direction, "f32[3]", explicit=True)
        with pytest.raises(TransferError, match=rf"{direction.replace('_', ' ')} is disallowed here: f32\[3\]; "):
            check_transfer(direction, "f32[3]")
    with (
        sw.config.override(f"transfer_guard_{direction}", "disallow_explicit"),
        pytest.raises(TransferError, match=r"is disallowed here: f32\[3\]\nSee "),
    ):
        check_transfer(direction, "f32[3]", explicit=True)


def test_transfers_are_logged(caplog):
    with caplog.at_level(logging.WARNING, "shardwise"), sw.config.override("transfer_guard_host_to_device", "log"):
        check_transfer("host_to_device", "f32[3]", explicit=True)
        assert caplog.messages == []
        check_transfer("host_to_device", "f32[3]")
    assert caplog.messages == ["a transfer from host to device: f32[3]"]
