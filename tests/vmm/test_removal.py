"""What deletes a guest's folder, and the channel that carries its descriptors: nothing stays behind."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from seamgate_vmm.channel import Channel, Closed
from seamgate_vmm.removal import remove_tree


def test_a_removal_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    """What an earlier one left goes with the folder, links are not followed, and what is not there is no error."""
    (tmp_path / "x.gone" / "0" / "deep").mkdir(parents=True)
    (tmp_path / "x.gone" / "0" / "deep" / "file").touch()
    (tmp_path / "x" / "a" / "b").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "x" / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "x")
    remove_tree(tmp_path / "x")
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("data", [b"", b'{"op": ' + b"[" * 60_000, b"{", b"[]"])
def test_descriptors_of_a_message_that_is_none_are_closed(data: bytes) -> None:
    """Empty, nested beyond reading, cut or of another kind: the channel is over, and holds nothing of it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(theirs, [data], [theirs.fileno()] * 3)
        with pytest.raises(Closed):
            Channel(ours).receive()
        assert len(os.listdir("/proc/self/fd")) == before
