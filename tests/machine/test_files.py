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
from hypothesis import given
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
            header, data = tarfile.TarInfo(name), b""
            if not what:
                header.type = tarfile.DIRTYPE
            elif what[0] in {"->", "="}:
                header.type, header.linkname = tarfile.SYMTYPE if what[0] == "->" else tarfile.LNKTYPE, what[1]
            elif what[0] in {tarfile.CHRTYPE, tarfile.FIFOTYPE}:
                header.type = what[0]
            else:
                data = what[0].encode() if isinstance(what[0], str) else what[0]
                header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    return out.getvalue()


MACHINE = (
    (RATE, "400 Gb/sec (4X NDR)\n"), ("sys/devices/pci0000:00/0000:19:00.0/numa_node", "1\n"), ("sys/class/net",),
    ("sys/class/infiniband/mlx5_0/device", "->", "../../../devices/pci0000:00/0000:19:00.0"),
    ("proc/cpuinfo", "processor: 0\n"),
)  # fmt: skip


@pytest.fixture
def opened(tmp_path):
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


NEGATIVE = tarfile.TarInfo("sys/evil")
NEGATIVE.pax_headers = {"size": "-512"}
NO_TARBALLS = {
    "two machines": (packed(("node1/sys/x", "1"), ("node2/sys/x", "1")), r"holds 2 machines \(node1, node2\)"),
    "no machine": (packed(("etc/passwd", "root")), "holds neither sys nor proc"),
    "a negative size": (NEGATIVE.tobuf(tarfile.PAX_FORMAT) + packed(*MACHINE), ""),
    "a member's attributes without end": (packed(*MACHINE, ("sys/" + "1" * 1_000_000, "x")), r"\d+ bytes, .* 32768\)"),
    "nothing": (b"", ""), "text": (b"no tarball", ""), "zeros": (bytes(10240), ""), "gzip": (b"\x1f\x8b" + bytes(20), ""),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(20), ""), "bzip2": (b"BZh9", ""), "xz": (b"\xfd7zXZ\x00\x00", ""),
}  # fmt: skip


@pytest.mark.parametrize(("data", "why"), NO_TARBALLS.values(), ids=NO_TARBALLS)
def test_what_is_no_tarball_of_a_machine_is_refused_in_one_sentence(opened, data, why):
    with pytest.raises(Unreadable, match=rf"^machine\.tar .*{why}") as refused:
        opened(data)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "why"), [("gone.tar", r"gone\.tar is not there"), ("", "not a valid tarball")])
def test_a_path_that_is_none(name, why, tmp_path):
    with pytest.raises(Unreadable, match=why):
        open_archive(tmp_path / name)


def test_what_tar_made_of_files_of_the_kernel(opened):
    assert opened(packed((RATE, b"400 Gb/sec (4X NDR)\n" + bytes(4076)))).text("/" + RATE) == "400 Gb/sec (4X NDR)"  # padded to a page
    assert opened(packed(*MACHINE[:3], ("proc/cpuinfo", ""))).doubts[0].startswith("machine.tar: its files of /proc are empty")
    assert len(opened(packed(*MACHINE, ("sys/large", b"x" * (9 << 20)))).text("/sys/large")) == 8 << 20  # up to a limit


def test_absolute_links_count_from_the_trees_root_and_circles_end(opened):
    links = {"a": "/proc/cpuinfo", "b": "c", "c": "b", "d": "/etc/passwd"}
    archive = opened(packed(*MACHINE, *((f"sys/{name}", "->", target) for name, target in links.items())))
    assert [archive.text(f"/sys/{name}") for name in "abd"] == ["processor: 0", None, None]
    assert archive.real("/sys/b") is None


@pytest.mark.parametrize(("entry", "reason"), [
    (("../sys/evil", "1"), "paths that are absolute or lead upwards"), (("sys/../../evil", "1"), "paths that are absolute or lead upwards"),
    (("/sys/evil", "1"), "paths that are absolute or lead upwards"),
    (("sys/\x1b[31mevil", "1"), "paths with control characters or too many folders"),
    (("sys/" + "d/" * 80 + "evil", "1"), "paths with control characters or too many folders"),
    (("sys/evil", "->", "../../etc/shadow"), "links that leave the tree"),
    (("sys/evil", tarfile.CHRTYPE), "devices, pipes and members of unknown kind"),
    (("sys/evil", tarfile.FIFOTYPE), "devices, pipes and members of unknown kind"),
])  # fmt: skip
def test_a_hostile_member_is_left_out_and_counted(opened, entry, reason):
    archive = opened(packed(*MACHINE, entry))
    assert len(archive.doubts) == 1 and archive.doubts[0].endswith(f": {reason}")
    assert archive.text("/sys/evil") is None
    assert archive.text("/" + RATE) == "400 Gb/sec (4X NDR)"


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_bomb_is_refused(opened, monkeypatch, suffix):
    monkeypatch.setattr(archive, "MOST_STREAM", 4 << 20)
    with pytest.raises(Unreadable, match="more than 4 MiB"):
        opened(COMPRESS[suffix](packed(*MACHINE, *((f"sys/{n}", bytes(1 << 20)) for n in range(8)))))
    monkeypatch.setattr(archive, "MOST_MEMBERS", 50)
    with pytest.raises(Unreadable, match="more than 50 members"):
        opened(COMPRESS[suffix](packed(*((f"sys/{n}", "") for n in range(60)))))


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


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), min_size=1, max_size=6), st.sampled_from([*COMPRESS]))
def test_damage_anywhere_ends_in_a_sentence_or_a_tree(tmp_path_factory, changes, suffix):
    data = bytearray(COMPRESS[suffix](packed(*MACHINE)))
    for at, value in changes:
        data[at % len(data)] = value
    file = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    file.write_bytes(data)
    try:
        assert {"sys", "proc"} & {*open_archive(file).names("/")}
    except Unreadable as why:
        assert file.name in str(why)


def test_a_sparse_member_and_names_longer_than_any_path_are_left_out(opened):
    """GNU's form: a hole of 8 MiB and one byte behind it, which take a kilobyte of the stream."""
    header = tarfile.TarInfo("sys/hole").tobuf(tarfile.GNU_FORMAT)
    hole = bytearray(header)
    hole[156:157] = tarfile.GNUTYPE_SPARSE
    hole[124:136] = b"%011o\0" % 1  # what is stored of it
    hole[386:410] = b"%011o\0" % ((8 << 20) - 1) + b"%011o\0" % 1  # (where, how long) of its only part
    hole[483:495] = b"%011o\0" % (8 << 20)  # its real size
    hole[148:156] = b" " * 8
    hole[148:156] = b"%06o\0 " % sum(hole)
    sparse = opened(bytes(hole) + b"x".ljust(512, b"\0") + packed(*MACHINE))
    assert sparse.text("/sys/hole") is None and sparse.text("/" + RATE) == "400 Gb/sec (4X NDR)"
    assert len(sparse.doubts) == 1 and "1 members left out: sparse files" in sparse.doubts[0]
    long = opened(packed(*MACHINE, ("sys/" + "a/" * 3000 + "b", "x"), ("sys/link", "->", "../" * 3000)))
    assert len(long.doubts) == 1 and "2 members left out: " in long.doubts[0]


@pytest.mark.timeout(10)
def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/b").write_text("1500\n")
    (tmp_path / "sys/a").write_text("")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    os.mkfifo(tmp_path / "mtu")  # nothing waits for it
    folder = Folder(tmp_path)
    assert (folder.text("/sys/b"), folder.names("/sys")) == ("1500", ("a", "b"))
    assert [folder.text(path) for path in ("/no", "/one", "/mtu")] == [None] * 3
    assert (folder.names("/no"), folder.real("/no"), folder.real("/one")) == ((), None, None)


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../../../../etc/hostname"])
def test_a_link_never_leaves_the_tree(tmp_path: Path, target: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "hostname").write_text("inside")
    (tmp_path / "link").symlink_to(target)
    assert Folder(tmp_path).text("/link") == "inside"
    assert Folder(tmp_path).real("/link") == "/etc/hostname"
