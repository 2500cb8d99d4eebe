"""Thread team of kernels: splits a large kernel into ranges over the threads of OpenMP.

A kernel is a function of a range of its rows, or of another index. The team uses the OpenMP library
that other kernels of the process use: two thread pools would compete for the cores, since idle
threads spin before they sleep. Each thread has one range, so the next kernel finds the thread's
data in its cache. Only reductions over the ranges, as column sums, depend on the number of threads:
each thread has partial sums, which are added in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from typing import Any

from hpcflow.platform import cpu_threads

MIN_GIL_RELEASE_ELEMENTS = 1 << 14  # elements from which on a kernel releases the GIL
MIN_RANGE_ELEMENTS = 1 << 12  # elements of a range, at least
MOST_SUMS = 1 << 20  # bytes of stack for the partial sums of all threads but one


class _ThreadTeam(ctypes.Structure):
    """The global struct that kernels read: the number of threads, and functions of OpenMP."""

    _fields_ = (
        ("threads", ctypes.c_int64),
        ("start", ctypes.c_void_p),  # GOMP_parallel
        ("count", ctypes.c_void_p),  # omp_get_num_threads
        ("number", ctypes.c_void_p),  # omp_get_thread_num
    )


FUNCTIONS = ("GOMP_parallel", "omp_get_num_threads", "omp_get_thread_num")
_team = _ThreadTeam(1)
NAME, ADDRESS = "hpcflow.team", ctypes.addressof(_team)
_is_only = False  # whether this is the only thread pool of the process with several threads
_barred: set[str] = set()  # the reasons why kernels run on one thread


def load() -> None:
    """Load the OpenMP library that oneDNN uses, if it exists and this rank has several threads."""
    if cpu_threads.chosen_threads().threads > 1:
        with contextlib.suppress(OSError):
            use(ctypes.CDLL("libgomp.so.1"))


def use(library: Any) -> None:
    """Run large kernels on the OpenMP threads of a library, if it has them."""
    if all(hasattr(library, name) for name in FUNCTIONS):
        for field, name in zip(("start", "count", "number"), FUNCTIONS, strict=True):
            setattr(_team, field, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
        resize(cpu_threads.chosen_threads().threads)


def size() -> int:
    """The number of threads of large kernels."""
    return int(_team.threads)


def resize(number: int) -> None:
    """Set the number of threads of large kernels; 1 without OpenMP or where it is barred."""
    _team.threads = number if _team.start and not _barred else 1


def beside_blas() -> None:
    """Use one thread for kernels if BLAS computes the matrix products with threads of its own."""
    _resize_blas_pool()
    if not _is_only:
        _barred.add("BLAS")
        resize(1)


@functools.cache
def _resize_blas_pool() -> None:
    """Give BLAS the threads of this rank if NumPy was imported before they were chosen."""
    chosen = cpu_threads.chosen_threads()
    if chosen.is_late and not _is_only:
        with contextlib.suppress(ImportError):  # then a warning has said so
            from threadpoolctl import threadpool_limits

            threadpool_limits(chosen.threads, user_api="blas")


def blas_is_single_threaded() -> None:
    """Note that BLAS has one thread from now on: kernels may have several."""
    global _is_only
    _is_only = True
    _barred.discard("BLAS")
    resize(cpu_threads.chosen_threads().threads)


def _forked() -> None:
    """Use one thread in a forked child, which has no OpenMP threads of its own."""
    _barred.add("fork")
    resize(1)


os.register_at_fork(after_in_child=_forked)


JOB = (  # the fields of a job, 8 bytes each; thread 0 stores the team size behind them
    ("range", "ptr"),
    ("args", "ptr"),
    ("first", "i64"),
    ("last", "i64"),
    ("grain", "i64"),
    ("sums", "ptr"),
    ("bytes", "i64"),
)


def _format_job_fields(line: str) -> list[str]:
    """The formatted line for each field of a job, with its address in %NAME.at."""
    lines = []
    for k, (name, type) in enumerate(JOB):
        lines.append(f"  %{name}.at = getelementptr i64, ptr %job, i64 {k}")
        lines.append(line.format(name=name, type=type))
    return lines


STORE_JOB_FIELDS = _format_job_fields("  store {type} %{name}, ptr %{name}.at")
LOAD_JOB_FIELDS = _format_job_fields("  %{name} = load {type}, ptr %{name}.at")


def _of_team(name: str, index: int) -> list[str]:
    """Load one of the OpenMP functions."""
    at = f"  %{name}.of = getelementptr ptr, ptr @{NAME}, i64 {index}"
    return [at, f"  %{name} = load ptr, ptr %{name}.of"]


# `run` calls %range from %first to %last, with many %elements in parallel ranges of multiples of
# %grain. A range also gets the address of its partial sums, of %bytes: null for the kernel's
# outputs, to which %join adds the partial sums of the other ranges.
RUN = [
    "define linkonce_odr hidden void @hpcflow.run(ptr %range, ptr %join, ptr %args, i64 %first, "
    "i64 %last, i64 %grain, i64 %elements, i64 %bytes) noinline {",
    f"  %many = icmp sge i64 %elements, {MIN_GIL_RELEASE_ELEMENTS}",
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
    f"  %least = mul i64 %threads, {MIN_RANGE_ELEMENTS}",
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
    *STORE_JOB_FIELDS,
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
PART = [  # the function of each thread
    "define linkonce_odr hidden void @hpcflow.part(ptr %job) noinline {",
    "entry:",
    *LOAD_JOB_FIELDS,
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
