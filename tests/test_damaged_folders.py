"""Subcommands on folders that are damaged, foreign or made to do harm: a plain message and an exit
code that is documented, no traceback, no hang, nothing that steers the terminal.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcflow.cli import main as cli
from hpcflow.platform.terminal_escaping import escape_line, escape_text
from hpcflow.report import scaling_plots

ROOT = Path(__file__).parents[1]
NOBODY = 65534
LIMIT_S = 120
TRAIN = """
import sys
import hpcflow as hf
import numpy as np
x = hf.placeholder(hf.float32, [None, 3], name="x")
w = hf.Variable(np.ones((3, 2), "f4"), name="w")
loss = hf.reduce_mean(hf.square(hf.matmul(x, w)))
train = hf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
data = hf.data.Dataset({x: np.ones((40, 3), "f4")}, batch=4, seed=1)
kept = dict(checkpoints=sys.argv[1], resume=True, save_every=5)
with hf.train.TrainingSession(**kept) as sess, hf.train.Progress(data, epochs=1) as progress:
    for batch in data.epochs(1):
        _, cost = sess.step([train, loss], batch)
        progress.update(batch, loss=cost)
    sess.wait()
    sess.result(accuracy=0.5)
"""
MODEL = """
import hpcflow as hf
def build():
    x = hf.placeholder(hf.float32, [None, 3], name="x")
    return x, hf.matmul(x, hf.Variable(hf.zeros([3, 2]), name="w"))
"""
EVIL = "\x1b]0;title\x07\x1b[2J\x1b[31mred\r\x9b1m\u202egnp.exe\u2066"
NAN, INF = float("nan"), float("inf")
BAD: list[Any] = [None, True, -1, 0, 1e308, 10**400, 2**63, NAN, INF, EVIL, "", [], {}, [[]],
                  [None], {"": None}, [-1], ["x"], [NAN], {EVIL: EVIL}]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of real jobs: run1 and run2 (with a server), their checkpoints kept1 and kept2."""
    base = tmp_path_factory.mktemp("made")
    (base / "train.py").write_text(TRAIN)
    (base / "model.py").write_text(MODEL)
    with h5py.File(base / "data.h5", "w") as file:
        file["x"] = np.ones((10, 3), "f4")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for n, options in ((1, []), (2, ["-n", "3", "--ps", "1"])):
        run = [sys.executable, "-m", "hpcflow", "run", *options, f"--run-dir={base}/run{n}"]
        run += [f"{base}/train.py", f"{base}/kept{n}"]
        done = subprocess.run(run, env=env, cwd=base, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
    failure = {"kind": "death", "rank": 1, "task": "/job:worker/task:1", "host": "nid7"}
    failure |= {"step": 5, "cause": "was killed", "error": "DeathError", "checkpoint": "kept1"}
    (base / "run1" / "failure.json").write_text(json.dumps(failure))
    dead = {"host": "nid7", "boot": "x", "pid": 1, "job": None, "since": "yesterday"}
    (base / "run1" / ".running.json").write_text(json.dumps(dead))
    os.utime(base / "run1" / ".running.json", (0, 0))
    return base


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, which is the current folder."""
    monkeypatch.chdir(made)  # and back to where it was at the end
    fresh(made, tmp_path / "here")
    monkeypatch.syspath_prepend("")  # a model's folder is put there, and is taken away so
    return tmp_path / "here"


@pytest.fixture
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every twentieth report has its picture: it takes longer than all else."""
    drawn, count = scaling_plots.draw, itertools.count()

    def draw(*args: Any) -> None:
        if next(count) % 20 == 0:
            drawn(*args)

    monkeypatch.setattr(scaling_plots, "draw", draw)


def fresh(made: Path, here: Path) -> None:
    """As if nothing had been done to it; it is the current folder again."""
    os.chdir(made)
    if os.path.lexists(here):
        for folder, _, _ in os.walk(here):
            os.chmod(folder, 0o755)
        shutil.rmtree(here)
    shutil.copytree(made, here, symlinks=True)
    os.chdir(here)


def too_long(*_: object) -> None:
    raise TimeoutError(f"it hangs: {LIMIT_S} s")


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def steers(text: str) -> list[str]:
    """What of a text a terminal would obey, or hide."""
    return [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Cs")]


def faults_of(words: list[str], capsys: pytest.CaptureFixture[str], codes: set[int]) -> str:
    """What is wrong with how a command answers; "" if nothing is."""
    try:
        with within(LIMIT_S):
            code = cli.main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:  # whatever reaches the user as a traceback
        capsys.readouterr()
        return f"{words}: {type(error).__name__}: {error}"
    said = "".join(capsys.readouterr())
    if code not in codes:
        return f"{words}: exit code {code}: {said}"
    if "Traceback" in said or steers(said):
        return f"{words}: {said!r}"
    if code and not said.strip():
        return f"{words}: exit code {code} without a word"
    return ""


def commands(also_run: bool = True) -> list[list[str]]:
    """Those that read what jobs have left, of the folders of `made`."""
    words = [["report", "run1", "run2", "--out", "out"]] if also_run else []
    for kept in ("kept1", "kept1/step-5", "kept1/step-5/index.h5"):
        words += [["inspect", kept], ["inspect", kept, "--json"], ["verify", kept]]
    words += [["diff", "kept1/step-5", "kept1/step-10"], ["diff", "kept1", "kept2"]]
    words += [["verify", "kept1", "--json"], ["export", "kept1", "out.npz"]]
    return [*words, ["export", "kept1/step-5", "out.h5"]]


@pytest.mark.slow
def test_undamaged_folders_are_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [faults_of(words, capsys, {0}) for words in commands() if words[0] != "diff"]
    found += [faults_of(words, capsys, {1}) for words in commands() if words[0] == "diff"]
    assert not list(filter(None, found))


# -- a file is something else


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def binary(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(5000))


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def prose(path: Path) -> None:
    path.write_text(f"this is no such file {EVIL}\nnor is this, \u00e9\n" * 30)


def latin(path: Path) -> None:
    path.write_bytes(b'{"mode": "caf\xe9", "step": 1}\nstep,loss\n1,\xff\n')


def nested(path: Path) -> None:
    path.write_text("[" * 200_000)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / EVIL.replace("/", "")).touch()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to(f"nowhere{EVIL.replace('/', '')}")


def another_hdf5(path: Path) -> None:
    path.unlink()
    with h5py.File(path, "w") as file:
        file.create_group(EVIL.replace("/", "").replace("\x00", ""))
        file["w"] = np.zeros((3, 2))


def a_text(path: Path) -> None:
    path.write_text(json.dumps(EVIL))


def gone(path: Path) -> None:
    path.unlink()


KINDS: list[Callable[[Path], None]] = [
    *(empty, cut, binary, zeros, prose, latin, nested, a_folder, a_pipe, a_loop, dangling),
    *(another_hdf5, a_text, gone),
]
RECORDS = ("manifest.json", "metrics.csv", "result.json", "failure.json", ".running.json")
FILES = [*(f"run1/{name}" for name in RECORDS),
         *("kept1/latest", "kept1/starts.json", "kept1/step-10/index.h5"),
         *("kept1/step-10/part-00000.h5", "kept1/step-5/index.h5")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_something_else(
    made: Path, here: Path, capsys: pytest.CaptureFixture[str], kind: Callable[[Path], None]
) -> None:
    found = []
    for name in FILES:
        fresh(made, here)
        kind(here / name)
        found += [faults_of(words, capsys, {0, 1, 2}) for words in commands(name[:3] == "run")]
    assert not list(filter(None, found))


@pytest.mark.slow
@pytest.mark.usefixtures("few_pictures")
def test_nothing_of_a_run_is_readable(
    made: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for kind in KINDS:
        fresh(made, here)
        for name in ("manifest.json", "metrics.csv", "result.json"):
            kind(here / "run1" / name)
        found.append(faults_of(["report", "run1", "--out", "out"], capsys, {1}))
        found.append(faults_of(["report", "run1", "run2", "--out", "out"], capsys, {1}))
        assert "samples/s" in (here / "out" / "report.txt").read_text()
        assert kind is cut or "unreadable" in (here / "out" / "report.txt").read_text()
    assert not list(filter(None, found))


# -- a folder is something else


@pytest.mark.slow
@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("name", ["run1", "kept1", "kept1/step-10"])
def test_a_folder_that_is_something_else(
    made: Path, here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    found = []
    for kind in KINDS:
        if kind is cut or kind is zeros:
            continue
        fresh(made, here)
        shutil.rmtree(here / name)
        (here / name).touch()
        kind(here / name)
        some = commands(name[:3] == "run")
        found += [faults_of(words, capsys, {0, 1, 2}) for words in some]
    assert not list(filter(None, found))


@pytest.mark.usefixtures("few_pictures")
def test_foreign_folders(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run directories for checkpoints and the other way round, names that steer the terminal."""
    odd = EVIL.replace("/", "")
    shutil.copytree("run1", f"run{odd}")
    shutil.copytree("kept1", f"kept{odd}")
    os.rename("kept1/step-5", f"kept1/step-5{odd}")
    shutil.copytree("run1", "_$x_{$^")
    shutil.copytree("run1", "实验")
    shutil.copytree("run2", os.fsdecode(b"run\xff\xfe"))
    places = [f"run{odd}", "_$x_{$^", os.fsdecode(b"run\xff\xfe"), f"kept{odd}", "run1", "kept1"]
    places += ["/proc", "/dev", "/dev/null", "/dev/zero", "/", "x" * 5000, f"none{odd}", "", "~"]
    found = []
    for place in places:
        for words in (["report", place, "run1"], ["inspect", place], ["verify", place],
                      ["diff", place, "kept1"], ["export", place, "out.npz"]):  # fmt: skip
            found.append(faults_of(words, capsys, {0, 1, 2}))
        found.append(faults_of(["report", "run1", f"-{odd}"], capsys, {2}))
    found.append(faults_of(["report", "run2", *places[:3], "实验", "--out", "o"], capsys, {0}))
    assert not list(filter(None, found))


# -- what files say


def holes(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places in JSON data, those of lists once."""
    yield at
    if isinstance(value, dict):
        for name in value:
            yield from holes(value[name], (*at, name))
    elif isinstance(value, list) and value:
        yield from holes(value[0], (*at, 0))


def put(data: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    place = data
    for name in at[:-1]:
        place = place[name]
    place[at[-1]] = value
    return data


@pytest.mark.slow(first=False)
@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("name", ["result.json", "manifest.json", "failure.json", ".running.json"])
def test_values_of_other_kinds(
    made: Path, here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Each place in the JSON, by each of a list of values; the picture of some."""
    draw, found = random.Random(7), []
    run = "run2" if (here / "run2" / name).exists() else "run1"
    path = here / run / name
    text = path.read_text()
    dull = {"environment", "settings", "compile", "versions"}  # below these alike
    places = [at for at in holes(json.loads(text)) if len(at) < 2 or at[0] not in dull]
    for at in places:
        for value in draw.sample(BAD, 3):
            path.write_text(json.dumps(put(json.loads(text), at, value)))
            said = faults_of(["report", "run2", "run1", "--out", "out"], capsys, {0, 1})
            found += [f"{at} = {str(value)[:50]}: {said}"] if said else []
    assert not found


@pytest.mark.slow
@pytest.mark.usefixtures("few_pictures")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tables_of_other_numbers(
    made: Path, here: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    draw, found = random.Random(seed), []
    words = ["", "nan", "inf", "-inf", "-1", "1e308", "-1e308", "1e-320", "9" * 400, "1e999", "0",
             EVIL, "x", '"', "\0", "1_0", "٣", "5", "0.25", "9" * 200_000]  # fmt: skip
    names = ["time", "seconds", "step", "epoch", "samples", "samples_per_second", "loss"]
    for i in range(40):
        head = names if i % 3 else draw.sample(names, draw.randrange(1, 8))
        head = [*head, *draw.sample(["", EVIL, "_x", "$y_{$", "loss", "step", '"'], i % 4)]
        rows = [[str(n), str(n / 10), str(n), "1", str(n), "10.0", "0.5"] for n in range(1, 300)]
        rows = [(row * 2)[: len(head)] for row in rows]
        for _ in range(draw.randrange(1, 60)):
            row = draw.choice(rows)
            row[draw.randrange(len(row))] = draw.choice(words[: -1 if i % 10 else None])
        text = "\n".join(",".join(row) for row in [head, *rows])
        (here / "run1" / "metrics.csv").write_text(text[: -draw.randrange(1, 9)])
        said = faults_of(["report", "run1", "run2", "--out", "out"], capsys, {0, 1})
        found += [f"{i} {head}: {said}"] if said else []
    assert not found


@pytest.mark.slow
def test_bits_of_checkpoints(made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw, found = random.Random(3), []
    for name in ("step-10/index.h5", "step-10/part-00000.h5"):
        whole = (here / "kept1" / name).read_bytes()
        for _ in range(25):
            broken = bytearray(whole)
            for _ in range(draw.choice([1, 1, 50])):
                broken[draw.randrange(min(len(broken), draw.choice([100, 6000, 1 << 30])))] ^= 1
            (here / "kept1" / name).write_bytes(broken[: draw.choice([None, None, 100, 5000])])
            for words in (["inspect", "kept1"], ["verify", "kept1"], ["diff", "kept1", "kept2"]):
                found.append(faults_of(words, capsys, {0, 1, 2}))
        (here / "kept1" / name).write_bytes(whole)
    assert not list(filter(None, found))


@contextlib.contextmanager
def as_another_user(here: Path) -> Iterator[None]:
    """For root everything is readable; the others have no way into its own folders either."""
    for folder in (here, *here.parents):
        with contextlib.suppress(PermissionError):
            folder.chmod(folder.stat().st_mode | 0o55)
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.slow
@pytest.mark.usefixtures("few_pictures")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a second user")
def test_files_of_others(made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [faults_of(words, capsys, {0, 1}) for words in commands()]  # it is loaded now
    for name in (*FILES, "run1", "kept1", "kept1/step-10"):
        for mode in (0, 0o444):
            fresh(made, here)
            os.chmod(here / name, mode if (here / name).is_dir() else 0)
            (here / "out").mkdir()
            os.chown(here / "out", NOBODY, NOBODY)
            words = [some for some in commands(name[:3] == "run") if some[0] != "export"]
            with as_another_user(here):
                said = [faults_of(some, capsys, {0, 1, 2}) for some in words]
                if name == "run1/result.json":
                    assert cli.main(["report", "run1", "--out", "out"]) == 1
                    assert "Permission denied" in capsys.readouterr().out
            found += said
    assert not list(filter(None, found))


# -- the other subcommands, each in a process of its own: some are to end it


def of_process(words: list[str], codes: set[int], **more: str) -> str:
    """What is wrong with how a command of the shell answers."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    command = [sys.executable, "-m", "hpcflow", *words]
    done = subprocess.run(command, env=env, capture_output=True, timeout=LIMIT_S + 30)
    said = (done.stdout + done.stderr).decode("utf-8", "surrogateescape")
    wrong = done.returncode not in codes or "Traceback" in said or steers(said) or not said.strip()
    return f"{words}: {done.returncode}: {said!r}" if wrong else ""


@pytest.mark.slow(first=False)
@pytest.mark.parametrize(
    ("words", "name", "codes"),
    [
        (["infer", "kept1", "data.h5", "--model", "model.py:build"], "data.h5", {1}),
        (["infer", "kept1", "data.h5", "--model", "model.py:build"], "kept1/step-10/index.h5", {0}),
        (["plan", "--ps", "1", "--ranks", "3", "--set=placement=run2/result.json", "train.py",
          "kept3"], "run2/result.json", {2}),
        (["run", "--hostfile", "hosts", "-n", "2", "train.py", "kept3"], "hosts", {1, 2}),
        (["submit", "job.sbatch"], "job.sbatch", {1}),
        (["cache"], "cache/plans", {0}),
        (["pack", "pack"], "pack", {0, 1}),
        (["doctor", "--run-dir", "runs"], "runs", {0, 1, 2}),
        (["prove-resume", "--folder", "place", "train.py", "kept3"], "place", {2}),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)  # fmt: skip
def test_other_subcommands(
    made: Path, here: Path, words: list[str], name: str, codes: set[int]
) -> None:
    """Of a hostfile mpirun is the judge, but for what is no file at all."""
    kinds = [binary, nested, a_folder, a_pipe, a_loop, gone]
    if words[0] in ("run", "doctor"):
        kinds = [a_pipe, a_loop]
    found = []
    for kind in kinds:
        fresh(made, here)
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).touch()
        kind(here / name)
        may = codes | ({1, 2} if kind in (a_loop, dangling, gone, a_folder) else set())
        more = {"HPCFLOW_PLAN_CACHE": "cache/plans", "HPCFLOW_KERNEL_CACHE": "cache/plans"}
        found.append(of_process(words, may, **more))
    assert not list(filter(None, found))


@pytest.mark.slow
def test_a_job_begins_in_a_damaged_run_directory(made: Path, here: Path) -> None:
    """What earlier starts have left is put aside, and that is said."""
    for kind in (binary, nested, a_text, a_folder, a_pipe):
        fresh(made, here)
        for name in ("run1/manifest.json", "run1/metrics.csv", "kept1/starts.json"):
            kind(here / name)
        if kind is a_folder:  # of a folder the name cannot be used
            (here / "run1" / "manifest.json" / EVIL.replace("/", "")).unlink()
            (here / "run1" / "manifest.json").rmdir()
        said = of_process(["run", "--run-dir", "run1", "train.py", "kept3"], {0})
        assert not said, f"{kind.__name__}: {said}"
        assert json.loads((here / "run1" / "manifest.json").read_text())["finished"] is True
        assert (here / "run1" / "metrics.csv").read_text().startswith("time,seconds,step")


# -- where all of them print


def test_subcommands_print_by_one_function_alone() -> None:
    for path in (ROOT / "hpcflow" / "cli").glob("*.py"):
        if path.name in ("say.py", "packed.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert name not in ("print", "sys.stdout.write", "sys.stderr.write"), path
            assert name != "argparse.ArgumentParser", path


def test_what_is_printed_has_no_letter_that_steers() -> None:
    every = "".join(map(chr, [*range(0x3000), *range(0xD800, 0xD900), 0xE0001, 0x1F600]))
    assert steers(escape_text(every)) == [] and steers(escape_line(every)) == []
    assert escape_text("a\tb\nö 😀") == "a\tb\nö 😀" and escape_line("a\tb\n") == r"a\tb\n"
    assert escape_text("\x1b[2J\x9b\r\u202e\udcff") == r"\x1b[2J\x9b\r\u202e\udcff"


@pytest.mark.parametrize(("encoding", "told"), [("ascii", r"\xf6\u5b9e"), ("utf-8", "ö实")])
def test_letters_that_the_terminal_lacks_are_written_out(encoding: str, told: str) -> None:
    code = "from hpcflow.cli.terminal_output import err, out; out('ö实'); err('ö实')"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=200)
    assert done.stdout.decode() == done.stderr.decode() == told + "\n"


def test_who_stops_reading_is_no_error_of_ours(here: Path) -> None:
    code = "from hpcflow.cli.terminal_output import out\nfor i in range(10**6): out('line')"
    command = f'{sys.executable} -c "$CODE" | head -1; echo ${{PIPESTATUS[0]}}'
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CODE": code}
    done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, timeout=200)
    assert done.stdout.split() == [b"line", b"1"] and not done.stderr
