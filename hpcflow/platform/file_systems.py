"""File systems: the type of the file system of a path, and whether many nodes share it."""

from __future__ import annotations

import os
import re

MOUNTS = "/proc/self/mountinfo"
# Types as /proc/self/mountinfo names them; a FUSE file system is `fuse.NAME`.
SHARED = frozenset(
    "9p acfs afs beegfs beegfs_nodev ceph cifs dvs fhgfs gfs2 glusterfs gpfs lustre mfs nfs nfs4 "
    "ocfs2 orangefs panfs pvfs2 smb3 smbfs virtiofs wekafs "
    "fuse.beegfs fuse.ceph-fuse fuse.dfuse fuse.glusterfs fuse.juicefs fuse.mfs fuse.orangefs "
    "fuse.s3fs fuse.sshfs".split()
)
_ESCAPE = re.compile(r"\\([0-7]{3})")  # space, tab, newline and backslash in a path


def file_system_type(path: str, mountinfo: str) -> str:
    """The type of the file system that holds the absolute `path`; "" if unknown.

    `mountinfo` is the content of /proc/self/mountinfo (proc_pid_mountinfo(5)). Of several mounts on
    one folder the last is seen.
    """
    kind, longest = "", -1
    for line in mountinfo.splitlines():
        fields, separator, source = line.partition(" - ")
        words, source_words = fields.split(" "), source.split(" ")
        if not separator or len(words) < 5 or not source_words[0]:
            continue
        point = _ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), words[4]).rstrip("/")
        if (path == point or path.startswith(point + "/")) and len(point) >= longest:
            kind, longest = source_words[0], len(point)
    return kind


def shared_type(path: str | os.PathLike[str]) -> str:
    """The type of the file system of `path` if nodes share it, else ""; also if unknown."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            kind = file_system_type(os.path.realpath(path), file.read())
    except OSError:  # not Linux
        return ""
    return kind if kind in SHARED else ""
