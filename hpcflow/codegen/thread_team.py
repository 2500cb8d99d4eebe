"""Large kernels run on several threads: how one is cut into ranges, and which threads those are.

A kernel is a function of a range of its rows, or of whatever it is cut into. The threads are those
of an OpenMP library that other kernels of this process use, too, for two pools of threads, which
look for work for a while before they rest, take each other's cores. Each has one range, so what
a thread has in its cache the next kernel finds there. Only sums over the ranges, as of columns,
depend on the number of threads: each thread makes its own, and they are added in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any

from hpcflow.platform import cpu_threads

MANY = 1 << 14  # elements: while so many are computed other threads may run Python
FEW = 1 << 12  # elements: so few are not worth a thread
MOST_SUMS = 1 << 20  # bytes on the stack for the sums of all threads but one


class _Team(ctypes.Structure):
    """What the kernels read: how many threads, and functions of OpenMP."""

    _fields_ = (
        ("threads", ctypes.c_int64),
        ("start", ctypes.c_void_p),  # on so many threads
        ("count", ctypes.c_void_p),  # how many there are
        ("number", ctypes.c_void_p),  # the one that asks
    )


FUNCTIONS = ("GOMP_parallel", "omp_get_num_threads", "omp_get_thread_num")
_team = _Team(1)
NAME, ADDRESS = "hpcflow.team", ctypes.addressof(_team)
_is_only = False  # pool of this process that has several threads
_barred: set[str] = set()  # why large kernels run on one


def load() -> None:
    """Use the OpenMP that oneDNN uses, too, if it is there and this rank has several threads."""
    if cpu_threads.chosen().threads > 1:
        with contextlib.suppress(OSError):
            use(ctypes.CDLL("libgomp.so.1"))


def use(library: Any) -> None:
    """Run large kernels on the threads of a library, if it has OpenMP's."""
    if all(hasattr(library, name) for name in FUNCTIONS):
        for field, name in zip(("start", "count", "number"), FUNCTIONS, strict=True):
            setattr(_team, field, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
        resize(cpu_threads.chosen().threads)


def size() -> int:
    """On how many threads large kernels run."""
    return int(_team.threads)


def resize(number: int) -> None:
    """Run large kernels on so many threads from now on, if there may be several."""
    _team.threads = number if _team.start and not _barred else 1


def beside_blas() -> None:
    """Products are BLAS's: if that has threads of its own, kernels have one."""
    if not _is_only:
        _barred.add("BLAS")
        resize(1)


def alone() -> None:
    """BLAS has one thread from now on."""
    global _is_only
    _is_only = True
    _barred.discard("BLAS")
    resize(cpu_threads.chosen().threads)


def _forked() -> None:
    """A process that was forked has none of the library's threads, and the library knows not."""
    _barred.add("fork")
    resize(1)


os.register_at_fork(after_in_child=_forked)


JOB = (  # what the threads are told, 8 bytes each; thread 0 tells how many there are
    ("range", "ptr"),
    ("args", "ptr"),
    ("first", "i64"),
    ("last", "i64"),
    ("grain", "i64"),
    ("sums", "ptr"),
    ("bytes", "i64"),
)


def _each(line: str) -> list[str]:
    """A line for each of them, which is at %NAME.at."""
    found = []
    for k, (name, type) in enumerate(JOB):
        found.append(f"  %{name}.at = getelementptr i64, ptr %job, i64 {k}")
        found.append(line.format(name=name, type=type))
    return found


TOLD = _each("  store {type} %{name}, ptr %{name}.at")
HEARD = _each("  %{name} = load {type}, ptr %{name}.at")


def _of_team(name: str, place: int) -> list[str]:
    """One of OpenMP's functions."""
    at = f"  %{name}.of = getelementptr ptr, ptr @{NAME}, i64 {place}"
    return [at, f"  %{name} = load ptr, ptr %{name}.of"]


# `run` has %range done from %first to %last, in ranges of multiples of %grain if there are many
# %elements. A range is also told where its sums go, of %bytes: null for the kernel's own outputs,
# to which %join adds those of others.
RUN = [
    "define linkonce_odr hidden void @hpcflow.run(ptr %range, ptr %join, ptr %args, i64 %first, "
    "i64 %last, i64 %grain, i64 %elements, i64 %bytes) noinline {",
    f"  %many = icmp sge i64 %elements, {MANY}",
    "  br i1 %many, label %unlock, label %small",
    "small:",
    "  call void %range(ptr %args, i64 %first, i64 %last, ptr null)",
    "  ret void",
    "unlock:",
    "  %python = call ptr @PyEval_SaveThread()",
    f"  %threads = load i64, ptr @{NAME}",
    "  %others = sub i64 %threads, 1",
    "  %several = icmp sgt i64 %others, 0",
    "  %room = mul i64 %others, %bytes",
    f"  %fits = icmp sle i64 %room, {MOST_SUMS}",
    f"  %least = mul i64 %threads, {FEW}",
    "  %enough = icmp sge i64 %elements, %least",
    "  %can = and i1 %several, %fits",
    "  %shared = and i1 %can, %enough",
    "  br i1 %shared, label %share, label %alone",
    "alone:",
    "  call void %range(ptr %args, i64 %first, i64 %last, ptr null)",
    "  br label %lock",
    "share:",
    "  %sums = alloca i8, i64 %room, align 64",
    f"  %job = alloca [{len(JOB) + 1} x i64], align 64",
    *TOLD,
    *_of_team("start", 1),
    "  %asked = trunc i64 %threads to i32",
    "  call void %start(ptr @hpcflow.part, ptr %job, i32 %asked, i32 0)",
    f"  %team.at = getelementptr i64, ptr %job, i64 {len(JOB)}",
    "  %team = load i64, ptr %team.at",
    "  %summed = icmp sgt i64 %bytes, 0",
    "  %begin = select i1 %summed, i64 1, i64 %team",
    "  br label %joins",
    "joins:",
    "  %k = phi i64 [%begin, %share], [%next, %add]",
    "  %all = icmp sge i64 %k, %team",
    "  br i1 %all, label %lock, label %add",
    "add:",
    "  %before = sub i64 %k, 1",
    "  %away = mul i64 %before, %bytes",
    "  %own = getelementptr i8, ptr %sums, i64 %away",
    "  call void %join(ptr %args, ptr %own)",
    "  %next = add i64 %k, 1",
    "  br label %joins",
    "lock:",
    "  call void @PyEval_RestoreThread(ptr %python)",
    "  ret void",
    "}",
]
PART = [  # what each thread does
    "define linkonce_odr hidden void @hpcflow.part(ptr %job) noinline {",
    "entry:",
    *HEARD,
    *_of_team("count", 2),
    "  %threads = call i32 %count()",
    "  %team = sext i32 %threads to i64",
    *_of_team("number", 3),
    "  %thread = call i32 %number()",
    "  %k = sext i32 %thread to i64",
    "  %leads = icmp eq i64 %k, 0",
    "  br i1 %leads, label %tell, label %begin",
    "tell:",
    f"  %team.at = getelementptr i64, ptr %job, i64 {len(JOB)}",
    "  store i64 %team, ptr %team.at",
    "  br label %begin",
    "begin:",
    "  %size = sub i64 %last, %first",
    "  %whole = udiv i64 %size, %grain",
    "  %done = mul i64 %whole, %k",
    "  %doing = add i64 %done, %whole",
    "  %skipped = udiv i64 %done, %team",
    "  %reached = udiv i64 %doing, %team",
    "  %skip = mul i64 %skipped, %grain",
    "  %reach = mul i64 %reached, %grain",
    "  %from = add i64 %first, %skip",
    "  %stop = add i64 %first, %reach",
    "  %k1 = add i64 %k, 1",
    "  %ends = icmp eq i64 %k1, %team",
    "  %to = select i1 %ends, i64 %last, i64 %stop",
    "  %before = sub i64 %k, 1",
    "  %away = mul i64 %before, %bytes",
    "  %others = getelementptr i8, ptr %sums, i64 %away",
    "  %own = select i1 %leads, ptr null, ptr %others",
    "  call void %range(ptr %args, i64 %from, i64 %to, ptr %own)",
    "  ret void",
    "}",
]
SHARED = "\n".join(
    [
        f"@{NAME} = external global [4 x ptr]",
        "declare ptr @PyEval_SaveThread()",
        "declare void @PyEval_RestoreThread(ptr)",
        *RUN,
        *PART,
    ]
)
DECLARED = "declare void @hpcflow.run(ptr, ptr, ptr, i64, i64, i64, i64, i64)"
