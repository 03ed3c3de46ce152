"""Block schedules: every piece is sent once, and no schedule has more rounds than a device has pieces."""

from collections import Counter

import numpy as np
import pytest

from shardwise.compiler.ops.collective.block_schedule import Piece, schedule, sent_elements


def random_pieces(seed):
    """Return random pieces between a few devices, some of them several times between the same two."""
    rng = np.random.default_rng(seed)
    devices = rng.integers(1, 12)
    largest = rng.choice([1, 2, 9])
    return [
        Piece(*map(int, rng.integers(0, devices, 2)), index * 10, index * 10, int(rng.integers(1, largest + 1)))
        for index in range(rng.integers(0, 60))
    ]


def elements(pieces):
    """Return every element that is sent: source, target, position there and position here."""
    return sorted(
        (piece.source, piece.target, piece.start + at, piece.position + at)
        for piece in pieces
        for at in range(piece.size)
    )


def degree(pieces):
    """Return the most pieces that one device sends to others, or receives from them."""
    remote = [piece for piece in pieces if piece.source != piece.target]
    ends = Counter((end, piece[end]) for piece in remote for end in (0, 1))
    return max(ends.values(), default=0)


@pytest.mark.parametrize("seed", range(200))
def test_every_piece_is_in_one_round_in_which_its_devices_have_no_other(seed):
    pieces = random_pieces(seed)
    rounds = schedule(pieces)
    assert elements(piece for each in rounds for piece in each.pieces) == elements(pieces)  # long pieces may be split
    for each in rounds:
        assert len({piece.source for piece in each.pieces}) == len({piece.target for piece in each.pieces})
        assert len({piece.source for piece in each.pieces}) == len(each.pieces)
        assert each.size == max(piece.size for piece in each.pieces)
        assert each.is_local == all(piece.source == piece.target for piece in each.pieces)


@pytest.mark.parametrize("seed", range(200))
def test_pieces_of_one_size_need_as_many_rounds_as_a_device_has_pieces(seed):
    pieces = [piece._replace(size=4) for piece in random_pieces(seed)]
    rounds = [each for each in schedule(pieces) if not each.is_local]
    assert len(rounds) == degree(pieces)
    assert sent_elements(schedule(pieces)) == 4 * degree(pieces)


def test_pieces_of_equal_sizes_share_rounds():
    """Ten elements on four devices in reverse order: a device gets two elements of one device, and one of another."""
    large = [Piece(2, 0, 1, 0, 2), Piece(1, 1, 1, 0, 2), Piece(0, 2, 1, 0, 2)]
    small = [Piece(3, 0, 0, 2, 1), Piece(2, 1, 0, 2, 1), Piece(1, 2, 0, 2, 1), Piece(0, 3, 0, 2, 1)]
    assert sent_elements(schedule([*small, *large])) == 3


def test_long_pieces_are_split_if_less_is_sent():
    """Devices 0 and 1 each send three elements, as two and one. In whole pieces, both rounds need blocks of two."""
    pieces = [Piece(0, 1, 0, 0, 2), Piece(0, 2, 2, 0, 1), Piece(1, 2, 0, 1, 2), Piece(1, 0, 2, 0, 1)]
    assert sent_elements(schedule(pieces)) == 3
