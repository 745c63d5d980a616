"""The table of mounts, and where else a folder is found. That covers hold: attack/test_hidden_files.py."""

from __future__ import annotations

import os
from pathlib import Path

from seamgate.entry.netns.mountinfo import Mounted, parse_mounts, places_of

_TABLE = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 254:0 /srv/my\\040data /mnt/data rw shared:1 master:2 - ext4 /dev/vda rw
41 27 0:22 / /sys rw,relatime - sysfs sysfs rw
"""


def test_the_table_is_read_with_its_escapes() -> None:
    """Optional fields may be there or not; a blank in a path is written in octal."""
    assert parse_mounts(_TABLE) == [
        Mounted("254:0", "/", "/", "ext4"),
        Mounted("254:0", "/srv/my data", "/mnt/data", "ext4"),
        Mounted("0:22", "/", "/sys", "sysfs"),
    ]


def test_every_place_of_a_folder_is_found(tmp_path: Path) -> None:
    """A second mount of the same file system leads to it; one that shows another file there now does not."""
    (tmp_path / "real" / "secrets").mkdir(parents=True)
    (tmp_path / "twin").symlink_to("real")  # stands for a bind mount: the same file by another path
    (tmp_path / "other" / "secrets").mkdir(parents=True)
    top = str(tmp_path)
    table = [Mounted("1:1", "/", "/", "ext4")]
    table += [Mounted("1:1", f"{top}/real", f"{top}/{name}", "ext4") for name in ("twin", "other")]
    table += [Mounted("1:2", f"{top}/real", f"{top}/twin", "ext4")]
    assert places_of(f"{top}/real/secrets", table) == [f"{top}/real/secrets", f"{top}/twin/secrets"]
    assert places_of(f"{top}/gone", table) == [os.path.join(top, "gone")]
