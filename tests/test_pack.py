"""The pack that the ranks of `hpcflow run` import: when it is used, that it is never stale."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcflow.cli import pack_choice
from hpcflow.platform import file_systems
from hpcflow.settings import Settings

ROOT = Path(__file__).resolve().parent.parent

# /proc/self/mountinfo of login and compute nodes, shortened to a few mounts of each kind.
LAPTOP = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
25 22 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw,size=16G
31 22 0:27 / /tmp rw,nosuid,nodev shared:9 - tmpfs tmpfs rw
"""
NFS_HOME = (
    LAPTOP
    + """\
60 22 0:51 / /home rw,relatime shared:30 - autofs systemd-1 rw,fd=46,pgrp=1,timeout=0
61 60 0:55 / /home rw,relatime shared:31 - nfs4 10.0.0.2:/export/home rw,vers=4.2,hard,proto=tcp
62 22 0:57 / /home2 rw,relatime shared:32 - xfs /dev/sdb1 rw
"""
)
LUSTRE = (
    LAPTOP
    + """\
80 22 0:60 / /lustre/scratch rw,relatime - lustre 10.1.0.1@o2ib:10.1.0.2@o2ib:/scratch rw,flock
81 80 0:61 / /lustre/scratch/local rw - tmpfs none rw
"""
)
GPFS = LAPTOP + "90 22 0:70 / /gpfs/a\\040b rw,relatime shared:40 - gpfs fs1 rw,mtime\n"
BEEGFS = LAPTOP + "91 22 0:71 / /data rw,relatime - beegfs beegfs_nodev rw,cfgFile=/etc/b.conf\n"
CIFS = LAPTOP + "92 22 0:72 / /mnt/win rw,relatime shared:3 master:4 - cifs //srv/share rw,vers=3\n"
CONTAINER = """\
600 500 0:40 / / rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
601 600 0:41 / /work rw,relatime - 9p kataShared rw,trans=virtio
"""


@pytest.mark.parametrize(
    ("mountinfo", "path", "kind"),
    [
        (LAPTOP, "/home/u/.venv", "ext4"),
        (LAPTOP, "/tmp", "tmpfs"),
        (LAPTOP, "/tmpfs", "ext4"),  # no part of a name
        (NFS_HOME, "/home/u/.venv", "nfs4"),  # the last mount on a folder hides the first
        (NFS_HOME, "/home2/u", "xfs"),
        (LUSTRE, "/lustre/scratch/env/lib", "lustre"),
        (LUSTRE, "/lustre/scratch/local/env", "tmpfs"),
        (LUSTRE, "/lustre/other", "ext4"),
        (GPFS, "/gpfs/a b/env", "gpfs"),  # a space is \\040
        (BEEGFS, "/data/env", "beegfs"),
        (CIFS, "/mnt/win/env", "cifs"),
        (CONTAINER, "/usr/lib", "overlay"),
        (CONTAINER, "/work/x", "9p"),
        ("", "/x", ""),
        ("nonsense\n1 2 3 - \n - ext4\n", "/x", ""),
    ],
)
def test_the_file_system_of_a_path(mountinfo: str, path: str, kind: str) -> None:
    assert file_systems.file_system_type(path, mountinfo) == kind
    shared = {"nfs4", "lustre", "gpfs", "beegfs", "cifs", "9p"}
    assert (kind in file_systems.SHARED) == (kind in shared)


@pytest.mark.parametrize(
    ("setting", "ranks", "mounts", "packs"),
    [
        ("auto", 64, LAPTOP, False),
        ("auto", 65, LAPTOP, True),
        ("auto", 2, "1 0 0:1 / / rw - nfs4 srv:/ rw\n", True),
        ("on", 1, LAPTOP, True),
        ("off", 4096, "1 0 0:1 / / rw - nfs4 srv:/ rw\n", False),
    ],
)
def test_when_ranks_import_from_a_pack(
    setting: str,
    ranks: int,
    mounts: str,
    packs: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "mountinfo").write_text(mounts)
    monkeypatch.setattr(file_systems, "MOUNTS", str(tmp_path / "mountinfo"))
    assert bool(pack_choice.pack_reason(setting, ranks)) == packs


TOLD = """
import sys
import hpcflow as hf
from hpcflow.platform.pack_importer import active_importer, problems
from hpcflow.plan.serialization.plan_cache_key import files_fingerprint, source_fingerprint
import hpcflow.report.run_page as page
import hpcflow.ops as ops
print(active_importer() is not None, ops.__file__, page.ASSETS.joinpath("page.css").exists())
print(source_fingerprint() == files_fingerprint(), problems, getattr(ops, "EDITED", 0))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of hpcflow, whose sources a test may edit."""
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "hpcflow", tmp_path / "tree" / "hpcflow", ignore=skip)
    return tmp_path / "tree"


def call(copy: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Python in the folder of the copy, which it imports."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI", "PMI", "HPCFLOW_"))}
    caches = {"PYTHONPATH": str(copy), "HPCFLOW_PACK_CACHE": str(copy.parent / "packs")}
    return subprocess.run(
        [sys.executable, *words],
        env={**clean, **caches, **more},
        cwd=copy.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )


def packed(copy: Path) -> str:
    done = call(copy, "-m", "hpcflow", "pack")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_pack_is_used_again_until_a_source_is_edited(copy: Path) -> None:
    first = packed(copy)
    made = os.stat(first)
    assert packed(copy) == first and os.stat(first).st_mtime_ns == made.st_mtime_ns
    told = call(copy, "-c", TOLD, HPCFLOW_PACK_FILE=first).stdout.split("\n")
    assert told[0] == f"True {copy}/hpcflow/ops/__init__.py True"
    assert told[1] == "True [] 0"
    with open(copy / "hpcflow" / "ops" / "__init__.py", "a") as file:
        file.write("EDITED = 1\n")
    second = packed(copy)
    assert second != first
    assert call(copy, "-c", TOLD, HPCFLOW_PACK_FILE=second).stdout.split()[-1] == "1"


@pytest.mark.slow
def test_a_pack_that_cannot_be_used_is_named_and_files_are_imported(copy: Path) -> None:
    good = Path(packed(copy))
    data = good.read_bytes()
    short = good.with_name("short.pack")
    short.write_bytes(data[:-1])
    renamed = good.with_name("renamed.pack")
    renamed.write_bytes(data)
    other = shutil.copytree(copy / "hpcflow", copy.parent / "other" / "hpcflow").parent
    cases = {
        (copy, short): "damaged",
        (copy, renamed): "damaged",
        (copy, good.with_name("none.pack")): "No such file",
        (other, good): "pack of another hpcflow",
    }
    for (tree, file), why in cases.items():
        told = call(tree, "-c", TOLD, HPCFLOW_PACK_FILE=str(file)).stdout
        assert told.startswith(f"False {tree}/hpcflow/ops/__init__.py True"), told
        assert why in told


SCRIPT = """
import os, sys
from hpcflow.launch import launcher_detection
from hpcflow.platform.pack_importer import active_importer
rank = launcher_detection.detect_launcher().rank
print(rank, active_importer() is not None, "HPCFLOW_PACK_FILE" in os.environ, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pack", "used"), [("on", True), ("off", False), ("auto", False)], ids=["on", "off", "auto"]
)
def test_hpcflow_run_hands_the_pack_on(
    copy: Path, monkeypatch: pytest.MonkeyPatch, pack: str, used: bool
) -> None:
    (copy.parent / "script.py").write_text(SCRIPT)
    (copy.parent / "packs").mkdir(mode=0o700)
    run = ["-m", "hpcflow", "run", "-n", "2", f"--set=pack={pack}", "script.py"]
    if pack == "auto" and (file_systems.shared_type(copy) or file_systems.shared_type(sys.prefix)):
        used = True
    done = call(copy, *run, HPCFLOW_PACK_FILE="/an/old.pack" if pack == "off" else "")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == [f"{rank} {used} {used}" for rank in (0, 1)]
    assert ("modules from one file" in done.stderr) == used
    assert len(list((copy.parent / "packs").glob("*.pack"))) == int(used)


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_told_in_one_line(copy: Path) -> None:
    (copy.parent / "script.py").write_text(SCRIPT)
    (copy.parent / "file").write_text("no folder")
    run = ["-m", "hpcflow", "run", "-n", "2", "--set=pack=on", "script.py"]
    done = call(copy, *run, HPCFLOW_PACK_CACHE=str(copy.parent / "file" / "packs"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n"))[1:] == ["0 False False", "1 False False"]
    assert done.stderr.count("imports hpcflow file by file") == 1
    assert call(copy, "-m", "hpcflow", "pack", HPCFLOW_PACK_CACHE="none").returncode == 1


def test_the_setting_is_checked() -> None:
    with pytest.raises(Exception, match="pack='maybe' is not one of auto, on, off"):
        Settings.from_environ({"HPCFLOW_PACK": "maybe"})
