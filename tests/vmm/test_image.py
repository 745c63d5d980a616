"""The view: what a path means to a guest, links followed inside it only. Needs no KVM."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamgate_vmm.image import Mount, OwnFile, View, memory_file


@pytest.fixture
def tree(tmp_path: Path) -> tuple[View, Path]:
    """A view of a folder with files and links, a scratch folder, and a made-up file."""
    base, scratch, outside = tmp_path / "base", tmp_path / "scratch", tmp_path / "outside"
    for folder in (base / "a" / "b", scratch, outside):
        folder.mkdir(parents=True)
    (base / "a" / "file").write_text("inside")
    (outside / "secret").write_text("secret")
    (base / "to-file").symlink_to("a/file")
    (base / "to-dir").symlink_to("a")
    (base / "out").symlink_to(outside / "secret")
    (base / "up").symlink_to("../../../../../../../../etc/passwd")
    (base / "loop").symlink_to("loop")
    os.mkfifo(base / "fifo")
    view = View([Mount("/base", str(base)), Mount("/tmp", str(scratch), True)], {"/etc/hosts": b"hosts\n"})
    return view, tmp_path


def _open(view: View, path: str, flags: int = os.O_RDONLY) -> bytes | int:
    """Return what a guest reads, or the errno."""
    try:
        fd = view.open(view.find(path, "/"), flags, 0o600)
    except OSError as error:
        return error.errno or -1
    try:
        return os.pread(fd, 100, 0) if not flags & os.O_WRONLY else b""
    finally:
        os.close(fd)


def test_links_are_followed_inside(tree: tuple[View, Path]) -> None:
    """A link inside the view works, over folders too; dots are as everywhere."""
    view, _ = tree
    for path in ("/base/a/file", "/base/to-file", "/base/to-dir/file", "/base/a/b/../file", "//base/./a//file"):
        assert _open(view, path) == b"inside", path


def test_hidden_files_cannot_be_opened(tree: tuple[View, Path]) -> None:
    """Not by name, not by a link of either kind, and not what takes their place later; their folder stays."""
    view, folder = tree
    secret, later = folder / "base" / "a" / "file", folder / "base" / "later"
    os.link(secret, folder / "base" / "hard")
    view.hide([str(secret), str(later)])
    later.write_text("made after the guest began")
    paths = ("/base/a/file", "/base/to-file", "/base/to-dir/file", "/base/hard", "/base/later")
    shared = view.with_scratch(Mount("/elsewhere", str(folder / "scratch"), True))
    for each in (view, shared):
        assert [_open(each, path) for path in paths] == [errno.EACCES] * len(paths)
    secret.unlink()
    secret.write_text("another")
    assert _open(view, "/base/a/file") == errno.EACCES
    assert dict(view.names(view.find("/base/a", "/"))).keys() == {"b", "file"}


def test_what_a_hidden_name_means_is_looked_up_anew(tree: tuple[View, Path]) -> None:
    """A secret behind links of Kubernetes' kind stays hidden when they turn, before that, and after, at every step."""
    view, place = tree
    base = place / "base"
    for number in (1, 2, 3):
        (base / f"v{number}").mkdir()
        (base / f"v{number}" / "key").write_text("secret")
    (base / "v1" / "other").write_text("other")
    (base / "..data").symlink_to("v1")
    (base / "key").symlink_to("..data/key")
    view.hide([str(base / "key")])
    for target in ("v2", place / "outside" / "v4"):
        (base / "..data.new").symlink_to(target)
        (base / "..data.new").rename(base / "..data")
        named = [f"/base/{name}" for name in ("key", "..data/key", "v1/key", "v2/key", "v3/key")]
        assert {_open(view, path) for path in named} <= {errno.EACCES, errno.ENOENT}
        assert _open(view, "/base/v1/other") == b"other"
    (place / "outside" / "v4").mkdir()
    (place / "outside" / "v4" / "key").write_text("secret")
    os.link(place / "outside" / "v4" / "key", base / "innocent")
    assert _open(view, "/base/innocent") == errno.EACCES


def test_what_rotation_makes_of_a_hidden_file_is_hidden(tree: tuple[View, Path]) -> None:
    """The journal's segments, its head, what takes a file's place and where it went; and all that is in a folder."""
    view, place = tree
    runs = place / "base" / "runs"
    view.hide([str(place / "base" / "run.jsonl"), str(runs)])
    runs.mkdir()
    (runs / "earlier.jsonl").write_text("x")
    made = (
        "run.jsonl",
        "run.jsonl.0000000000000042",
        "run.jsonl.head",
        "run.jsonl.otlp.new",
        ".run.jsonl.x1",
        "run.jsonl~",
    )
    for name in (*made, "run.json", "run.jsonlines"):
        (place / "base" / name).write_text("x")
    assert {_open(view, f"/base/{name}") for name in (*made, "runs/earlier.jsonl")} == {errno.EACCES}
    assert _open(view, "/base/run.json") == _open(view, "/base/run.jsonlines") == b"x"
    assert {*made, "runs"} < {name for name, _ in view.names(view.find("/base", "/"))}


def test_a_program_beside_a_secret_is_not_hidden(tree: tuple[View, Path]) -> None:
    """Source and documents named like a secret are other files; copies of it, and what is named itself, are hidden."""
    view, place = tree
    base = place / "base"
    view.hide([str(base / "token"), str(base / "key.py")])
    others = (
        "token.py",
        "token-client.py",
        "token.cpython-311-x86_64-linux-gnu.so",
        "token.md",
        ".token.py",
        "token_x",
    )
    copies = "token token.new token.a8Xk2f .token.swp token.py.swp token-20261130 token.json".split()
    copies += "key.py key.py.new key.py~ .key.py.x1".split()
    for name in (*others, *copies):
        (base / name).write_text("x")
    assert {name: _open(view, f"/base/{name}") for name in others} == dict.fromkeys(others, b"x")
    assert {name: _open(view, f"/base/{name}") for name in copies} == dict.fromkeys(copies, errno.EACCES)
    (base / "v1").mkdir()
    (base / "v1" / "token").write_text("x")
    (base / "token").unlink()
    (base / "token").symlink_to("v1/token")  # it is replaced by a link while guests run
    assert [_open(view, f"/base/{name}") for name in ("token", "v1/token", "token.py")] == [errno.EACCES] * 2 + [b"x"]


@pytest.mark.parametrize("path", ["/base/out", "/base/up", "/base/../etc/passwd", "/etc/passwd", "/../../etc/shadow"])
def test_nothing_outside_is_there(tree: tuple[View, Path], path: str) -> None:
    """Where a link or dots lead outside, there is nothing: the guest's root is the view."""
    assert _open(tree[0], path) == errno.ENOENT


def test_odd_files_are_refused(tree: tuple[View, Path]) -> None:
    """A link to itself is ELOOP, a pipe is EACCES, a file as a folder is ENOTDIR, a NUL is EINVAL."""
    view, _ = tree
    assert _open(view, "/base/loop") == errno.ELOOP
    assert _open(view, "/base/fifo") == errno.EACCES
    assert _open(view, "/base/a/file/x") == errno.ENOTDIR
    assert _open(view, "/base/a\0b") == errno.EINVAL


def test_a_link_put_there_at_the_last_moment_is_not_followed(tree: tuple[View, Path]) -> None:
    """The last step on the host never follows a link, so that one that appears after the look is refused."""
    view, place = tree
    found = view.find("/base/a/file", "/")
    (place / "base" / "a" / "file").unlink()
    (place / "base" / "a" / "file").symlink_to(place / "outside" / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        view.open(found, os.O_RDONLY, 0)


def test_writing_is_for_scratch(tree: tuple[View, Path]) -> None:
    """Only scratch can be written; elsewhere it is EROFS, also for files that exist only in the view."""
    view, place = tree
    assert _open(view, "/tmp/new", os.O_CREAT | os.O_WRONLY) == b""
    assert (place / "scratch" / "new").exists()
    assert _open(view, "/base/new", os.O_CREAT | os.O_WRONLY) == errno.EROFS
    assert _open(view, "/base/a/file", os.O_WRONLY) == errno.EROFS
    assert _open(view, "/etc/hosts", os.O_WRONLY) == errno.EROFS


def test_made_up_files_and_folders(tree: tuple[View, Path]) -> None:
    """Made-up files read as files; folders that exist only above mounts list what is below them."""
    view, _ = tree
    assert _open(view, "/etc/hosts") == b"hosts\n"
    assert [n for n, _ in view.names(view.find("/", "/"))] == ["base", "etc", "tmp"]
    assert view.stat(view.find("/etc", "/"), follow=True).st_mode & 0o170000 == 0o040000
    assert view.stat(view.find("/etc/hosts", "/"), follow=True).st_size == 6


def test_a_file_of_ones_own_is_in_no_other_view(tree: tuple[View, Path]) -> None:
    """At each of its places, over what is made up for all; the folders above it are there."""
    view, _ = tree
    fd = memory_file("own", b"mine\n")
    own = view.with_own(OwnFile(("/etc/hosts", "/srv/deep/own"), fd, 5))
    for place in ("/etc/hosts", "/srv/deep/own"):
        assert _open(own, place) == b"mine\n"
        assert own.stat(own.find(place, "/"), follow=True).st_size == 5
        assert _open(own, place, os.O_WRONLY) == errno.EROFS
    assert [n for n, _ in own.names(own.find("/srv", "/"))] == ["deep"]
    assert _open(view, "/etc/hosts") == b"hosts\n"
    assert _open(view, "/srv/deep/own") == errno.ENOENT
    os.close(fd)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(["..", ".", "", "base", "a", "b", "to-dir", "out", "up", "tmp", "file", "etc"]), max_size=12
    )
)
def test_no_path_leaves_the_view(parts: list[str]) -> None:
    """Whatever its components, a path means something in the view, or nothing."""
    view = View([Mount("/base", "/nonexistent-base"), Mount("/tmp", "/nonexistent-scratch", True)], {})
    found = view.find("/" + "/".join(parts), "/")
    assert ".." not in found.path.split("/")
    if found.host is not None:
        assert found.host.startswith(("/nonexistent-base", "/nonexistent-scratch"))
        assert ".." not in found.host.split("/")
