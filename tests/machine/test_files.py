"""A machine's files out of a folder and a tarball: the same in both, and nothing that a hostile one could do."""

import bz2
import gzip
import io
import lzma
import os
import random
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine import archive
from collbench.machine.archive import open_archive
from collbench.machine.files import Folder
from collbench.machine.readers.text import Unreadable

RATE = "sys/class/infiniband/mlx5_0/ports/1/rate"


def packed(*entries) -> bytes:
    """A tarball of (name, text | bytes), (name, "->", target), (name, kind of tarfile) or (name,) for a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, *what in entries:
            header = tarfile.TarInfo(name)
            if not what:
                header.type = tarfile.DIRTYPE
            elif what[0] == "->":
                header.type, header.linkname = tarfile.SYMTYPE, what[1]
            elif what[0] == "=":
                header.type, header.linkname = tarfile.LNKTYPE, what[1]
            elif what[0] in {tarfile.CHRTYPE, tarfile.FIFOTYPE}:
                header.type = what[0]
            else:
                data = what[0].encode() if isinstance(what[0], str) else what[0]
                header.size = len(data)
                tar.addfile(header, io.BytesIO(data))
                continue
            tar.addfile(header)
    return out.getvalue()


MACHINE = (
    (RATE, "400 Gb/sec (4X NDR)\n"),
    ("sys/devices/pci0000:00/0000:19:00.0/numa_node", "1\n"),
    ("sys/class/net",),
    ("sys/class/infiniband/mlx5_0/device", "->", "../../../devices/pci0000:00/0000:19:00.0"),
    ("proc/cpuinfo", "processor: 0\n"),
)


@pytest.fixture
def opened(tmp_path):
    """Opens the tarball made of these bytes."""

    def make(data, name="machine.tar"):
        (tmp_path / name).write_bytes(data)
        return open_archive(tmp_path / name)

    return make


COMPRESS = {".tar": bytes, ".tar.gz": gzip.compress, ".tar.bz2": bz2.compress, ".tar.xz": lzma.compress, ".tar.zst": zstandard.compress}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_every_compression_holds_the_same_machine(opened, suffix):
    archive = opened(COMPRESS[suffix](packed(*MACHINE)), "machine" + suffix)
    assert archive.text("/" + RATE) == "400 Gb/sec (4X NDR)"
    assert archive.names("/sys/class") == ("infiniband", "net")
    assert archive.text("/sys/class/infiniband/mlx5_0/device/numa_node") == "1"
    assert archive.doubts == ()


def test_it_is_what_a_folder_of_the_same_files_is(opened, tmp_path):
    with tarfile.open(fileobj=io.BytesIO(packed(*MACHINE))) as tar:
        tar.extractall(tmp_path / "tree", filter="data")
    archive, folder = opened(packed(*MACHINE)), Folder(tmp_path / "tree")
    paths = ["/", "/sys/class", "/" + RATE, "/sys/class/infiniband/mlx5_0/device", "/sys/class/infiniband/mlx5_0/device/numa_node", "/gone"]
    assert [archive.text(path) for path in paths] == [folder.text(path) for path in paths]
    assert [archive.names(path) for path in paths] == [folder.names(path) for path in paths]
    assert [archive.real(path) for path in paths] == [folder.real(path) for path in paths]


@pytest.mark.parametrize("top", ["./", "16em64t-4s2c/", "a/b/"])
def test_the_machine_may_lie_below_a_folder(opened, top):
    archive = opened(packed(*((top + name, *what) for name, *what in MACHINE), (top + "proc/again", "=", top + "proc/cpuinfo")))
    assert archive.names("/") == ("proc", "sys")
    assert archive.text("/sys/class/infiniband/mlx5_0/device/numa_node") == "1"
    assert archive.text("/proc/again") == "processor: 0"


def test_two_machines_in_one_tarball_are_refused(opened):
    with pytest.raises(Unreadable, match=r"machine\.tar holds 2 machines \(node1, node2\)"):
        opened(packed(("node1/sys/x", "1"), ("node2/sys/x", "1")))


def test_a_tarball_without_a_machine_is_refused(opened):
    with pytest.raises(Unreadable, match=r"machine\.tar holds neither sys nor proc"):
        opened(packed(("etc/passwd", "root")))


def test_sysfs_files_that_tar_padded_to_a_page_read_as_they_were(opened):
    assert opened(packed((RATE, b"400 Gb/sec (4X NDR)\n" + bytes(4076)))).text("/" + RATE) == "400 Gb/sec (4X NDR)"


def test_files_of_proc_that_tar_copied_as_empty_are_reported(opened):
    archive = opened(packed(*MACHINE[:3], ("proc/cpuinfo", "")))
    assert archive.doubts[0].startswith("machine.tar: its files of /proc are empty")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (("../sys/evil", "1"), "paths that are absolute or lead upwards"),
        (("sys/../../evil", "1"), "paths that are absolute or lead upwards"),
        (("/sys/evil", "1"), "paths that are absolute or lead upwards"),
        (("sys/\x1b[31mevil", "1"), "paths with control characters or too many folders"),
        (("sys/" + "d/" * 80 + "evil", "1"), "paths with control characters or too many folders"),
        (("sys/evil", "->", "../../etc/shadow"), "links that leave the tree"),
        (("sys/evil", tarfile.CHRTYPE), "devices, pipes and members of unknown kind"),
        (("sys/evil", tarfile.FIFOTYPE), "devices, pipes and members of unknown kind"),
    ],
)
def test_a_hostile_member_is_left_out_and_counted(opened, entry, reason):
    archive = opened(packed(*MACHINE, entry))
    assert len(archive.doubts) == 1 and archive.doubts[0].endswith(f": {reason}")
    assert archive.text("/sys/evil") is None
    assert archive.text("/" + RATE) == "400 Gb/sec (4X NDR)"


def test_absolute_links_count_from_the_trees_root_and_circles_end(opened):
    archive = opened(
        packed(*MACHINE, ("sys/a", "->", "/proc/cpuinfo"), ("sys/b", "->", "c"), ("sys/c", "->", "b"), ("sys/d", "->", "/etc/passwd"))
    )
    assert [archive.text(f"/sys/{name}") for name in "abd"] == ["processor: 0", None, None]
    assert archive.real("/sys/b") is None


def test_a_file_is_read_up_to_its_limit(opened):
    assert len(opened(packed(*MACHINE, ("sys/large", b"x" * (9 << 20)))).text("/sys/large")) == 8 << 20


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_bomb_is_refused(opened, monkeypatch, suffix):
    monkeypatch.setattr(archive, "MOST_STREAM", 4 << 20)
    bomb = COMPRESS[suffix](packed(*MACHINE, *((f"sys/{n}", bytes(1 << 20)) for n in range(8))))
    with pytest.raises(Unreadable, match="more than 4 MiB"):
        opened(bomb)


def test_an_endless_list_of_members_is_refused(opened, monkeypatch):
    monkeypatch.setattr(archive, "MOST_MEMBERS", 50)
    with pytest.raises(Unreadable, match="more than 50 members"):
        opened(packed(*((f"sys/{n}", "") for n in range(60))))


@pytest.mark.parametrize(
    "data", [b"", b"no tarball", bytes(10240), b"\x1f\x8b" + bytes(20), b"\x28\xb5\x2f\xfd" + bytes(20), b"BZh9", b"\xfd7zXZ\x00\x00"]
)
def test_what_is_no_tarball_is_refused_in_one_sentence(opened, data):
    with pytest.raises(Unreadable) as why:
        opened(data)
    assert str(why.value).startswith("machine.tar ")
    assert "\n" not in str(why.value)


def test_a_path_that_is_none(tmp_path):
    with pytest.raises(Unreadable, match=r"gone\.tar is not there"):
        open_archive(tmp_path / "gone.tar")
    with pytest.raises(Unreadable, match="not a valid tarball"):
        open_archive(tmp_path)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_tarball_that_is_cut_off_is_refused_or_doubted(opened, suffix, share):
    random.seed(1)
    data = COMPRESS[suffix](packed(*MACHINE, *((f"sys/{n}", random.randbytes(700)) for n in range(50))))
    try:
        archive = opened(data[: int(len(data) * share)], "machine" + suffix)
    except Unreadable as why:
        assert "valid tarball" in str(why)
    else:
        assert "it may be cut off" in archive.doubts[0]


def test_a_negative_size_does_not_send_the_reader_back(opened):
    header = tarfile.TarInfo("sys/evil")
    header.pax_headers = {"size": "-512"}
    data = header.tobuf(tarfile.PAX_FORMAT)
    with pytest.raises(Unreadable):
        opened(data + packed(*MACHINE))


VALID = packed(*MACHINE)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), min_size=1, max_size=6), st.sampled_from([*COMPRESS]))
def test_damage_anywhere_ends_in_a_sentence_or_a_tree(tmp_path_factory, changes, suffix):
    data = bytearray(COMPRESS[suffix](VALID))
    for at, value in changes:
        data[at % len(data)] = value
    file = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    file.write_bytes(data)
    try:
        assert {"sys", "proc"} & {*open_archive(file).names("/")}
    except Unreadable as why:
        assert file.name in str(why)


def test_a_sparse_member_is_left_out(opened):
    """GNU's form: a hole of 8 MiB and one byte behind it, which take a kilobyte of the stream."""
    header = tarfile.TarInfo("sys/hole").tobuf(tarfile.GNU_FORMAT)
    hole = bytearray(header)
    hole[156:157] = tarfile.GNUTYPE_SPARSE
    hole[124:136] = b"%011o\0" % 1  # what is stored of it
    hole[386:410] = b"%011o\0" % ((8 << 20) - 1) + b"%011o\0" % 1  # (where, how long) of its only part
    hole[483:495] = b"%011o\0" % (8 << 20)  # its real size
    hole[148:156] = b" " * 8
    hole[148:156] = b"%06o\0 " % sum(hole)
    whole = packed(*MACHINE)
    archive = opened(bytes(hole) + b"x".ljust(512, b"\0") + whole)
    assert archive.text("/sys/hole") is None and archive.text("/" + RATE) == "400 Gb/sec (4X NDR)"
    assert len(archive.doubts) == 1 and "1 members left out: sparse files" in archive.doubts[0]


def test_names_longer_than_any_path_are_left_out_and_counted(opened):
    archive = opened(packed(*MACHINE, ("sys/" + "a/" * 3000 + "b", "x"), ("sys/link", "->", "../" * 3000)))
    assert len(archive.doubts) == 1 and "2 members left out: " in archive.doubts[0]


def test_a_members_attributes_without_end_are_refused_before_they_are_searched(opened):
    with pytest.raises(Unreadable, match=r"^machine.tar .*\d+ bytes, .* 32768\)"):
        opened(packed(*MACHINE, ("sys/" + "1" * 1_000_000, "x")))


def test_a_file_is_read_and_stripped_and_a_folder_listed_in_order(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys" / "b").write_text("1500\n")
    (tmp_path / "sys" / "a").write_text("")
    assert Folder(tmp_path).text("/sys/b") == "1500"
    assert Folder(tmp_path).names("/sys") == ("a", "b")


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert (Folder(tmp_path).text("/no"), Folder(tmp_path).names("/no"), Folder(tmp_path).real("/no")) == (None, (), None)


@pytest.mark.timeout(10)
def test_a_pipe_in_a_files_place_is_no_file_and_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mtu")
    assert Folder(tmp_path).text("/mtu") is None


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../../../../etc/hostname"])
def test_a_link_never_leaves_the_tree(tmp_path: Path, target: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "hostname").write_text("inside")
    (tmp_path / "link").symlink_to(target)
    assert Folder(tmp_path).text("/link") == "inside"
    assert Folder(tmp_path).real("/link") == "/etc/hostname"


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert (Folder(tmp_path).text("/a"), Folder(tmp_path).real("/a")) == (None, None)
