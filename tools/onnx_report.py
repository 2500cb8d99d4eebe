"""Run ONNX's own node tests on hpcflow and write the table of docs/onnx.md.

python tools/onnx_report.py            # counts, and what fails
python tools/onnx_report.py Conv       # the tests of one operator, with errors
python tools/onnx_report.py --write    # the table in docs/onnx.md
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "onnx.md"
BEGIN, END = "<!-- made by tools/onnx_report.py -->\n", "<!-- end -->\n"


def main() -> int:
    """Run, print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="operators, or parts of names of tests")
    parser.add_argument("--write", action="store_true", help="write the table of docs/onnx.md")
    args = parser.parse_args()
    start = time.process_time()
    results = [run(*case) for case in cases(args.only)]
    if args.write:
        write(results)
        return 0
    for op, name, outcome, text in results:
        if outcome == "failed" or args.only:
            print(f"{op:24} {name:60} {outcome} {text.strip() if args.only else _last(text)}")
    print(totals(results), f"{time.process_time() - start:.1f} s")
    return 0


def cases(only: list[str]) -> list[tuple[str, Any]]:
    """Operator and test of the suite; the test of an expanded function is its operator's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite's own data overflow
        from onnx.backend.test.loader import load_model_tests

        tests: list[Any] = load_model_tests(kind="node")
    ops = {t.name: t.model.graph.node[0].op_type for t in tests}
    found = []
    for test in tests:
        op = ops.get(re.sub(r"_expanded.*", "", test.name), ops[test.name])
        if not only or op in only or any(word in test.name for word in only):
            found.append((op, test))
    return sorted(found, key=lambda case: (case[0], case[1].name))


def run(op: str, test: Any) -> tuple[str, str, str, str]:
    """Operator, test, "passed", "declined", "outside" or "failed", and why."""
    from onnx.backend.test.runner import Runner, _normalize_tensor

    from hpcflow.onnx.backend import HpcflowBackend
    from hpcflow.onnx.unsupported_operators import is_unsupported_model, why_not

    if is_unsupported_model(test.model):
        return op, test.name, "outside", ""
    reason = why_not(op, test.name)
    try:
        prepared = HpcflowBackend.prepare(test.model)
        for inputs, wanted in test.data_sets:
            made = prepared.run([_normalize_tensor(item) for item in inputs])
            references = [_normalize_tensor(item) for item in wanted]
            Runner.assert_similar_outputs(references, made, test.rtol, test.atol)
    except Exception:
        return op, test.name, "declined" if reason else "failed", reason or traceback.format_exc()
    return op, test.name, "passed", ""


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line and line[0] not in " ^"]
    return " ".join(lines[-8:])[-300:]


def totals(results: list[tuple[str, str, str, str]]) -> str:
    """One line."""
    count = collections.Counter(outcome for _, _, outcome, _ in results)
    inside = sum(n for outcome, n in count.items() if outcome != "outside")
    share = count["passed"] / max(inside, 1)
    return f"{count['passed']} of {inside} pass ({share:.1%}); {dict(count)}"


def write(results: list[tuple[str, str, str, str]]) -> None:
    """The table between its marks in docs/onnx.md."""
    table = page(results)
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    PAGE.write_text(head + BEGIN + table + END + rest.partition(END)[2])


def page(results: list[tuple[str, str, str, str]]) -> str:
    """The table by operator."""
    import onnx

    rows: dict[str, list[tuple[str, str]]] = {}
    for op, _, outcome, text in results:
        if outcome != "outside":
            rows.setdefault(op, []).append((outcome, text))
    lines = [
        f"onnx {onnx.__version__}, opset {onnx.defs.onnx_opset_version()}: {summary(results)}",
        "",
        "| operator | tests passed | not supported, and why |",
        "|---|---|---|",
    ]
    for op, found in sorted(rows.items()):
        passed = sum(outcome == "passed" for outcome, _ in found)
        why = "; ".join(dict.fromkeys(text for outcome, text in found if outcome == "declined"))
        lines.append(f"| {op} | {passed} of {len(found)} | {why} |")
    return "\n".join(lines) + "\n"


def summary(results: list[tuple[str, str, str, str]]) -> str:
    """Passed of all, as the page says it."""
    inside = [outcome for _, _, outcome, _ in results if outcome != "outside"]
    passed = inside.count("passed")
    return f"{passed} of {len(inside)} node tests pass ({passed / max(len(inside), 1):.1%})."


if __name__ == "__main__":
    sys.exit(main())
