"""Node checks: cores, BLAS, speed, GPUs, disks, clocks, waiting; outliers among nodes and links."""

from __future__ import annotations

import statistics

from hpcflow.doctor.rank_facts import (
    ERROR,
    OK,
    WARN,
    Finding,
    FolderFacts,
    JobFacts,
    KernelAgreement,
    NetworkLink,
    RankFacts,
    shortened_names,
)
from hpcflow.doctor.startup_checks import mpi_of, mpirun_or_srun
from hpcflow.platform.install_hints import install_hint
from hpcflow.platform.measured_waits import OWN_CORE, SHARED_CORES, TYPICAL_US
from hpcflow.platform.quantity_text import counted, format_seconds, rounded_bytes

LEAST_DISK = 100e6  # free bytes of a disk below which a run will soon fail
LEAST_SHARED = 64e6  # bytes of shared memory per rank of a node
CLOCK_S = 0.5  # from this offset on, file times mislead builds and readers
SLOW = 0.5  # fraction of the median bandwidth
LATE, LATE_S = 4.0, 100e-6  # a late link takes LATE times the median latency plus LATE_S

BUSY, BUSY_S = 2.0, 500e-6  # busy cores: waiting without yielding is BUSY times as late, and BUSY_S


def cores(job: JobFacts) -> list[Finding]:
    """The CPUs of each rank; warns of ranks with fewer than others or with too many threads."""
    usual = statistics.median(len(rank.cpus) for rank in job.ranks)
    findings = []
    for node in job.nodes:
        ranks = job.on(node)
        few = [rank for rank in ranks if len(rank.cpus) * 2 <= usual]
        if few:
            names = shortened_names(f"rank {rank.rank}" for rank in few)
            of = f"of the node's {few[0].node_cpus} CPUs, ranks elsewhere {usual:.0f}"
            what = f"{names} may use {len(few[0].cpus)} {of}"
            findings.append(Finding(WARN, node, what, _more_cores(few[0], usual)))
            continue
        warned = next((rank for rank in ranks if rank.threads_warning), None)
        if warned is not None:
            what = f"rank {warned.rank}: {warned.threads_warning}"
            findings.append(Finding(WARN, node, what, _more_cores(warned, 0)))
    common = job.by_node(lambda rank: (len(rank.cpus), rank.node_cpus))[0][0]
    each = f"{common[0]} of the node's {common[1]} CPUs for each rank"
    return [Finding(OK, "", each), *findings]


def _more_cores(rank: RankFacts, cpus: float) -> str:
    count = f"{cpus:.0f}" if cpus else "N"
    if mpirun_or_srun(rank) == "srun":
        return f"srun --cpus-per-task={count} --cpu-bind=cores ..."
    if rank.launcher and mpi_of(rank) == "Open MPI":
        return "mpirun --bind-to none ..., and no taskset around it"
    return "mpirun -bind-to none ..., and no taskset around it"


def blas(job: JobFacts) -> list[Finding]:
    """Threads per rank; warns if BLAS uses more, or if a node has fewer CPUs than threads."""
    (name, number, why), _ = job.by_node(lambda r: (r.blas, r.threads, r.threads_why))[0]
    threads = f"{counted(number, 'thread')} a rank ({why})"
    findings = [Finding(OK, "", f"{name}, {threads}" if name else threads)]
    for node in job.nodes:
        ranks = job.on(node)
        excess = [rank for rank in ranks if rank.blas_threads > rank.threads]
        if excess:
            names = shortened_names(f"rank {rank.rank}" for rank in excess)
            what = f"{names}: BLAS has {excess[0].blas_threads} threads, not {excess[0].threads}"
            fix = f"export OMP_NUM_THREADS={excess[0].threads} in the job script"
            findings.append(Finding(WARN, node, what, fix))
        total = sum(rank.threads for rank in ranks)
        cpus = len({cpu for rank in ranks for cpu in rank.cpus}) or ranks[0].node_cpus
        if total > cpus:
            noun = "rank" if len(ranks) == 1 else "ranks"
            what = f"{len(ranks)} {noun} with {total} threads share {cpus} CPUs"
            fewer = max(1, cpus // len(ranks))
            fix = f"export OMP_NUM_THREADS={fewer}"
            if len(ranks) > cpus:
                fix = f"start at most {cpus} ranks on each node"
            findings.append(Finding(WARN, node, what, fix))
    return findings


def speed(job: JobFacts) -> list[Finding]:
    """Compute and copy rates of a rank per node; warns of nodes far below the median."""
    kinds = {"gemm": ("float32 products", "GFLOP/s"), "copies": ("copies in memory", "GB/s")}
    findings, usual = [], []
    for field, (name, unit) in kinds.items():
        each = {
            n: statistics.median(getattr(rank, field) / 1e9 for rank in job.on(n))
            for n in job.nodes
        }
        median = statistics.median(each.values())
        usual.append(f"{name} {median:.3g} {unit}")
        for node, rate in each.items():
            if rate < SLOW * median:
                what = f"{name} {rate:.3g} {unit} a rank, the median of all nodes is {median:.3g}"
                fix = "look for other processes on the node; else leave it out (--exclude)"
                findings.append(Finding(WARN, node, what, fix))
    return [Finding(OK, "", f"{', '.join(usual)} a rank"), *findings]


def gpus(job: JobFacts) -> list[Finding]:
    """The GPU of each rank; an error for two ranks on one GPU or a GPU that cupy cannot use."""
    findings = []
    for node in job.nodes:
        ranks = job.on(node)
        first = ranks[0]
        if first.gpu_error:
            fix = "check nvidia-smi on the node and CUDA_VISIBLE_DEVICES"
            findings.append(Finding(ERROR, node, f"cupy finds no GPU: {first.gpu_error}", fix))
        elif first.gpu_files and not first.gpus:
            fix = install_hint("cuda12", "cuda13")
            what = f"{first.gpu_files} GPUs are here, but cupy is not installed: CPUs will be used"
            findings.append(Finding(WARN, node, what, fix))
        shared = [gpu for gpu in {r.gpu for r in ranks if r.gpu} if _users(ranks, gpu) > 1]
        for gpu in shared:
            names = shortened_names(f"rank {r.rank}" for r in ranks if r.gpu == gpu)
            fix = f"{mpirun_or_srun(first)} with one rank for each GPU (srun --gpus-per-task=1)"
            findings.append(
                Finding(ERROR, node, f"{names} would share {gpu}, NCCL refuses that", fix)
            )
    bound = [f"rank {r.rank} {r.gpu}" for r in job.ranks if r.gpu]
    if not findings:
        findings = [
            Finding(OK, "", shortened_names(bound, 8) if bound else "none; CPUs will be used")
        ]
    return findings


def gpu_kernels(job: JobFacts) -> list[Finding]:
    """Whether the libraries' kernels on each node's GPUs agree with the plain kernels."""
    findings = []
    for node in job.nodes:
        for agreement in (agreement for rank in job.on(node) for agreement in rank.agreements):
            for title, why in agreement.wrong.items():
                fix = "run with --set kernels=plain, and install other versions of the library"
                findings.append(Finding(ERROR, node, f"{agreement.provider}: {title}: {why}", fix))
    rows = [_agreement(agreement) for rank in job.ranks for agreement in rank.agreements]
    return [*(row for i, row in enumerate(rows) if row not in rows[:i]), *findings]


def _agreement(agreement: KernelAgreement) -> Finding:
    """How many kernels of a library agree, and which it refuses for which reasons."""
    reasons: dict[str, list[str]] = {}
    for title, why in agreement.refused.items():
        reasons.setdefault(why, []).append(title)
    refused = "; ".join(f"not {shortened_names(titles)}: {why}" for why, titles in reasons.items())
    if not agreement.run:
        return Finding(
            WARN, "", f"{agreement.provider} serves nothing, CuPy does: {'; '.join(reasons)}"
        )
    right = (
        f"{agreement.run - len(agreement.wrong)} of {agreement.run} compute what plain kernels do"
    )
    return Finding(OK, "", f"{agreement.provider}: {right}{'; ' if refused else ''}{refused}")


def _users(ranks: list[RankFacts], gpu: str) -> int:
    return sum(rank.gpu == gpu for rank in ranks)


def disk(job: JobFacts) -> list[Finding]:
    """Whether the run directory, TMPDIR, HOME and shared memory are writable; their free space."""
    findings = []
    for name in dict.fromkeys(place.name for rank in job.ranks for place in rank.places):
        bad = [
            row
            for node in job.nodes
            if (
                row := _worst(
                    node, [_folder_named(r, name) for r in job.on(node)], len(job.on(node))
                )
            )
        ]
        places = [place for rank in job.ranks if (place := _folder_named(rank, name))]
        least = min(places, key=lambda place: place.free)
        if not bad:
            what = f"{name} {least.path}: {rounded_bytes(least.free)} free"
            findings.append(Finding(OK, "", what))
        findings += bad
    return findings


def _folder_named(rank: RankFacts, name: str) -> FolderFacts | None:
    return next((place for place in rank.places if place.name == name), None)


def _worst(node: str, places: list[FolderFacts | None], ranks: int) -> Finding | None:
    """The finding about the worst of a node's folders; None if all are good."""
    there = [place for place in places if place is not None]
    if not there:
        return None
    place = min(there, key=lambda place: (not place.problem, place.free))
    folder, free = f"{place.name} {place.path}", f"{rounded_bytes(place.free)} free"
    if place.name == "HOME":
        what = f"{folder}: {place.problem}; hpcflow writes nothing there"
        return Finding(OK, node, what) if place.problem else None
    if place.problem:
        return Finding(ERROR, node, f"{folder}: {place.problem}", _elsewhere(place))
    if place.name == "shared memory":
        if place.free >= LEAST_SHARED * ranks:
            return None
        what = f"{folder}: {free} for {ranks} ranks; sums will go by messages"
        return Finding(WARN, node, what, _elsewhere(place))
    if place.free >= LEAST_DISK:
        return None
    return Finding(WARN, node, f"{folder}: {free}", _elsewhere(place))


def _elsewhere(folder: FolderFacts) -> str:
    if folder.name == "TMPDIR":
        return "export TMPDIR=/some/node-local/folder with space, or empty this one"
    if folder.name == "shared memory":
        return "rm dead jobs' leftovers in /dev/shm; in a container --shm-size=8g or --ipc=host"
    return "hpcflow run --run-dir /a/folder/on/scratch, or ask for quota"


def clock(job: JobFacts) -> list[Finding]:
    """Warns of clock offsets, which make the times of logs and files meaningless."""
    findings, most = [], 0.0
    for node in job.nodes:
        rank = job.on(node)[0]
        most = max(most, abs(rank.clock_s))
        if abs(rank.clock_s) - rank.clock_within_s > CLOCK_S:
            direction = "ahead of" if rank.clock_s > 0 else "behind"
            what = f"{format_seconds(abs(rank.clock_s))} {direction} {job.nodes[0]}"
            fix = "chronyc tracking; tell the site's staff that its clock is not kept"
            findings.append(Finding(WARN, node, what, fix))
    if not findings and len(job.nodes) > 1:
        within = max(rank.clock_within_s for rank in job.ranks)
        findings = [Finding(OK, "", f"within {format_seconds(max(most, within))} of each other")]
    return findings


def links(job: JobFacts) -> list[Finding]:
    """The network's timings, and the nodes or pairs that are outliers."""
    findings = []
    if job.links:
        speed = statistics.median(link.bytes_per_s for link in job.links)
        late = statistics.median(link.latency_s for link in job.links)
        total = statistics.median(link.allreduce_s for link in job.links)
        what = (
            f"{len(job.links)} pairs of nodes, median {rounded_bytes(speed)}/s each way, "
            f"{format_seconds(late)}; "
            f"sum of 1 MiB {format_seconds(total)}{job.skipped}"
        )
        findings.append(Finding(OK, "", what))
    titles = {"ring": f"a ring over {len(job.nodes)} nodes", "allreduce": "a sum over all ranks"}
    rows = [
        f"1 MiB by {titles[name]} {format_seconds(seconds)}"
        for name, seconds in job.together.items()
    ]
    if rows:
        findings.append(Finding(OK, "", ", ".join(rows)))
    return findings + slow_links(job.links, job.nodes) + late_links(job.links, job.nodes)


def waiting(job: JobFacts) -> list[Finding]:
    """Warns of nodes whose ranks would go on sooner after a message if they yielded their cores."""
    findings, typical = [], []
    for node in job.nodes:
        late = {
            row.policy: statistics.median(row.late_s)
            for row in job.waits
            if (row.node, row.waited_us) == (node, TYPICAL_US)
        }
        if len(late) < 2:
            continue
        own, shared = late[OWN_CORE], late[SHARED_CORES]
        typical.append(own)
        if own > BUSY_S and own > BUSY * shared:
            what = (
                f"a waiting rank goes on {format_seconds(own)} after a message, and "
                f"{format_seconds(shared)} if it yields its core: other programs use the cores"
            )
            fix = "give the job whole cores (srun --exclusive), or hpcflow run --set crowded=1"
            findings.append(Finding(WARN, node, what, fix))
    if typical and not findings:
        what = (
            f"a waiting rank goes on {format_seconds(statistics.median(typical))} after a message"
        )
        findings.append(Finding(OK, "", what))
    return findings


FIX_LINK = "leave it out (srun --exclude={}), and show the site's staff this page"


def slow_links(links: list[NetworkLink], nodes: list[str]) -> list[Finding]:
    """Nodes whose best link is below half the median best; then slow pairs of the other nodes."""
    best = {n: max((li.bytes_per_s for li in links if n in (li.a, li.b)), default=0) for n in nodes}
    usual = statistics.median(best.values())
    odd = [node for node in nodes if best[node] < SLOW * usual]
    findings = [
        Finding(
            WARN,
            node,
            f"no link faster than {rounded_bytes(best[node])}/s, the median of all nodes is "
            f"{rounded_bytes(usual)}/s",
            FIX_LINK.format(node),
        )
        for node in odd
    ]
    sound = [link for link in links if link.a not in odd and link.b not in odd]
    speed = statistics.median(link.bytes_per_s for link in sound) if sound else 0.0
    for link in sound:
        if link.bytes_per_s < SLOW * speed:
            what = (
                f"{rounded_bytes(link.bytes_per_s)}/s to {link.b}, the median of pairs is "
                f"{rounded_bytes(speed)}/s"
            )
            findings.append(Finding(WARN, link.a, what, FIX_LINK.format(link.b)))
    return findings


def late_links(links: list[NetworkLink], nodes: list[str]) -> list[Finding]:
    """Nodes whose least latency is far above the median."""
    least = {n: min((li.latency_s for li in links if n in (li.a, li.b)), default=0) for n in nodes}
    usual = statistics.median(least.values())
    return [
        Finding(
            WARN,
            node,
            f"no message faster than {format_seconds(seconds)}, the median of all nodes is "
            f"{format_seconds(usual)}",
            FIX_LINK.format(node),
        )
        for node, seconds in least.items()
        if seconds > LATE * usual + LATE_S
    ]
