"""Instructions, and what is printed of them, by what Python's own parser says of the text."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.lowering import instructions, update_tiling
from hpcflow.lowering.instructions import Access, BindingKind, Instruction, Opcode, Use
from hpcflow.lowering.kernel_metadata import GeneratedCode, LoweredPartition
from hpcflow.lowering.python_codegen import generate_code
from hpcflow.lowering.python_printer import TEXTS, PythonPrinter
from hpcflow.plan.cost.cost_model import input_specs
from hpcflow.plan.ir.program import Partition
from hpcflow.plan.serialization import plan_cache_format
from hpcflow.runtime.device.cuda_graph_regions import RegionFinder
from hpcflow.runtime.device.device import Device
from hpcflow.runtime.profile.timed_code import print_timed

from .model import REPLICAS, SERVERS, Net, graph, plan_of
from .test_random_graphs import CLUSTER, RandomGraph

CPU = Device()
BUILTINS = {"range", "min", "None", "True", "False"}


def code_of(part: Partition) -> GeneratedCode:
    return generate_code(part, lambda node: CPU.info(node, input_specs(node, part)))


def tiled() -> Partition:
    """A partition with updates in tiles, one of a pinned version."""
    size = update_tiling.MIN_TILED_ELEMENTS + 5
    with graph() as made:
        x = hf.placeholder(hf.float32, [size], name="x")
        w = hf.Variable(np.zeros(size, "f4"), name="w")
        before = hf.identity(w.read_value())
        with hf.control_dependencies([before]):
            update = w.assign_add(hf.square(x) * 2.0)
        with hf.control_dependencies([update]):
            after = hf.negative(before)
    (part,) = plan_of(made, [after, update], {x: (size,)}).parts.values()
    return part


def parts() -> list[Partition]:
    made = [tiled()]
    for cluster in (REPLICAS, SERVERS):
        made += Net(rows=64, width=128).step(cluster).parts.values()
    for seed in range(12):
        drawn = RandomGraph(seed, 40)
        made += plan_of(drawn.graph, drawn.fetches, {drawn.x: (64, 3)}, CLUSTER).parts.values()
    return made


@pytest.fixture(scope="module")
def codes() -> list[tuple[Partition, GeneratedCode]]:
    return [(part, code_of(part)) for part in parts()]


def names(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def flat(body: tuple[Instruction, ...]) -> list[Instruction]:
    return [i for one in body for i in (one, *flat(one.body))]


def test_what_an_instruction_uses_and_sets_is_what_its_text_does(codes):
    opcodes = set()
    for _, code in codes:
        for one in (i for function in code.functions for i in flat(function.body) if not i.body):
            text = PythonPrinter().statement(one)
            tree = ast.parse(f"def f():\n    {text}")
            loaded = names(tree, ast.Load) - BUILTINS - {"i", "j"}
            assert loaded == set(instructions.loads(one)), text
            assert names(tree, ast.Store) - {"_", "j"} == {*instructions.stores(one)} - {"_"}, text
            opcodes.add(one.opcode)
    assert len(opcodes) > 24


def test_every_name_is_bound_or_set_before_it_is_used(codes):
    for _, code in codes:
        for function in code.functions:
            known = {*code.binds, *code.shared, *function.parameters}
            for one in (i for i in flat(function.body) if not i.body):
                assert {*instructions.loads(one)} <= known
                known.update(one.targets)


def test_each_line_has_the_node_whose_kernel_it_calls(codes):
    for _, code in codes:
        tree = ast.parse(code.source)
        assert len(code.lines) == len(code.source.splitlines())
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name.startswith("k"):
                assert code.lines[call.lineno - 1] == code.binds[name].node


def test_timed_code_is_the_code_with_clocks(codes):
    for _, code in codes:
        places: list[tuple[int, str]] = []

        def place(line: int, kind: str, places: list[tuple[int, str]] = places) -> int:
            places.append((line, kind))
            return len(places) - 1

        printed = print_timed(code, place)
        ast.parse(printed.source)
        plain = re.sub(r"_t = _clock\(\); ", "", printed.source)
        plain = re.sub(r"_r = (.*); _note\(\d+, _t\); return _r", r"return \1", plain)
        plain = re.sub(r"; _note\(\d+, _t\)", "", plain)
        plain = re.sub(r"_pulled\(\d+, iter\((.*)\)\): yield", r"\1: yield", plain)
        assert plain == code.source and printed.lines == code.lines
        lines = printed.source.splitlines()
        assert all(f"({number}, " in lines[line - 1] for number, (line, _) in enumerate(places))
        calls = [n for n, text in enumerate(lines, 1) if re.search(r"\bk\d+\(", text)]
        assert set(calls) <= {line for line, _ in places}


def test_regions_hold_what_may_be_captured_and_leave_the_rest_in_order(codes):
    """A reason against one operation keeps it out of the regions, and nothing is lost."""
    regions = 0
    for part, code in codes:
        odd = {name for name in part.nodes if len(name) % 3 == 0}
        cutter = RegionFinder(
            code, part, lambda n, odd=odd: n.name * (n.name in odd), lambda n: True
        )
        printed = cutter.printed()
        ast.parse(printed.source)
        kinds = (BindingKind.KERNEL, BindingKind.LOOP)
        kernels = {name for name, b in code.binds.items() if b.kind in kinds}
        called, plain = (
            sorted(name for name in re.findall(r"\b(k\d+)\(", text) if name in kernels)
            for text in (printed.source, code.source)
        )
        assert called == plain
        for region in cutter.regions:
            inside = {code.binds[name].node for name in region.kernels}
            assert len(region.kernels) >= 2 and not inside & odd
            assert not set(region.read) & set(region.written)
        regions += len(cutter.regions)
    assert regions > 20


def test_the_cache_of_plans_keeps_them(codes):
    for part, code in codes:
        data = plan_cache_format.encode_lowered(LoweredPartition(part, code, {}))
        back = plan_cache_format.decode_lowered(data).code
        assert back == code and back.source == code.source
        assert {type(i.opcode) for f in back.functions for i in f.body} == {Opcode}


def test_every_opcode_is_printed():
    compound = {Opcode.TILE_LOOP, Opcode.LAST_TILE, Opcode.GUARD}
    assert set(TEXTS) == set(Opcode) - compound
    use = Use("x", Access.READ, "c")
    assert PythonPrinter().statement(Instruction(Opcode.RETURN, "", (), (use,))) == (
        "return c(x.read())"
    )


@pytest.mark.slow
def test_nothing_parses_generated_text():
    for file in Path(hf.__file__).parent.rglob("*.py"):
        tree = ast.parse(file.read_text())
        found = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
        assert not any(a.name == "ast" for n in found if isinstance(n, ast.Import) for a in n.names)
        assert not any(n.module == "ast" for n in found if isinstance(n, ast.ImportFrom)), file
