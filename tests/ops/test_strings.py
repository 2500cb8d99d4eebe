"""Strings in the graph: fed, fetched, hashed, read from files, and sent between ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import (
    DataError,
    DTypeError,
    FeedError,
    GraphError,
    KernelError,
    PlacementError,
    RangeError,
    ShapeError,
)
from hpcflow.graph.string_encoding import decode_strings, encode_strings
from hpcflow.plan.ir.attribute_values import canonical
from hpcflow.plan.ir.program import Cluster
from hpcflow.plan.pass_list import make_plan
from hpcflow.plan.serialization.partition_codec import decode_partition, encode_partition
from hpcflow.settings import Settings
from tests.ops.sessions import graph, run  # noqa: F401 - graph is a fixture
from tests.runtime.ranks import run_ranks

# -- what a string is


def test_text_and_bytes_become_bytes() -> None:
    for given in ("naïve", "naïve".encode(), np.str_("naïve")):
        assert run(hf.constant(given)) == "naïve".encode()
    t = hf.constant([["a", b"b"], ["c", "d"]])
    assert (t.dtype, t.shape) == (hf.string, (2, 2))
    assert "dtype=string" in repr(t)
    assert run(t).tolist() == [[b"a", b"b"], [b"c", b"d"]]
    assert hf.as_dtype("string") == hf.as_dtype(str) == hf.as_dtype(bytes) == hf.string
    assert run(hf.constant(np.array(["x", "yz"]))).tolist() == [b"x", b"yz"]


def test_what_is_no_string() -> None:
    for wrong in (["a", 1], [["a"], ["b", "c"]], np.array([1, None], object)):
        with pytest.raises((DTypeError, ShapeError)):
            hf.constant(wrong)
    with pytest.raises(DTypeError):
        hf.constant("a") - hf.constant("b")
    with pytest.raises(DTypeError, match="as_string"):
        hf.constant(1, hf.string)
    with pytest.raises(DTypeError, match="string_to_number"):
        hf.cast(hf.constant("1"), hf.int32)
    with pytest.raises(DTypeError, match="strings"):
        hf.Variable("text")


def test_feeding() -> None:
    x = hf.placeholder(hf.string, [None])
    y = hf.string_join([x, "!"])
    with hf.Session() as session:
        for given in (
            ["a", "b"],
            [b"a", b"b"],
            np.array(["a", "b"]),
            np.array([b"a", "b"], object),
        ):
            for _ in range(2):  # the second run is one of a plan that is there
                assert session.run(y, {x: given}).tolist() == [b"a!", b"b!"]
        with pytest.raises(FeedError, match="string"):
            session.run(y, {x: [1, 2]})
        with pytest.raises(FeedError):
            session.run(y, {x: [["a"]]})
    n = hf.placeholder(hf.float32, [None])
    with pytest.raises(FeedError):
        run(n + 1, {n: ["a"]})


def test_many_sizes_and_results_of_ones_own() -> None:
    x = hf.placeholder(hf.string, [None])
    y = hf.concat([x, hf.reverse(x, [0])], 0)
    with hf.Session() as session:
        results = []
        for n in range(12):
            texts = [str(i) * i for i in range(n)]
            results.append(session.run(y, {x: texts}))
            results[-1][:1] = b"mine"
            expected = [t.encode() for t in texts + texts[::-1]]
            assert session.run(y, {x: texts}).tolist() == expected


def test_equality_choice_and_loops_of_steps() -> None:
    x = hf.placeholder(hf.string, [3])
    y = hf.where(hf.equal(x, "b"), "yes", x)
    z = hf.gather(y, hf.where(hf.not_equal(y, "yes"))[:, 0])
    assert run([y, z], {x: ["a", "b", "c"]})[0].tolist() == [b"a", b"yes", b"c"]
    assert run(z, {x: ["a", "b", "c"]}).tolist() == [b"a", b"c"]


def test_constants_are_folded_and_equal_ones_merged() -> None:
    a, b = hf.constant(["x", "y"]), hf.constant(["x", "y"])
    p = hf.placeholder(hf.string, [2])
    found = hf.string_join([a, p]), hf.string_join([b, p])
    fed = {p: hf.Spec(hf.string, (2,))}
    plan = make_plan(hf.get_default_graph(), found, fed, Cluster(), Settings())
    types = [n.type for part in plan.parts.values() for n in part.nodes.values()]
    assert types.count("Const") == types.count("StringJoin") == 1


def test_py_func_and_print_know_strings(capfd: Any) -> None:
    x = hf.constant(["b", "a"])
    y = hf.py_func(lambda a: sorted(s.decode() for s in a), [x], [hf.string])[0]
    z = hf.py_func(lambda a: np.sort(a), [x], hf.string)
    assert run(y).tolist() == [b"a", b"b"]
    assert run(z).tolist() == [b"a", b"b"]
    run(hf.Print(hf.constant(1), [x]))
    assert capfd.readouterr().err == "[b a]\n"


# -- hashing: TensorFlow 2.21's numbers for bytes (7 i + n) % 256, n of them

LENGTHS = [0, 1, 3, 4, 7, 8, 15, 16, 17, 32, 33, 64, 65, 127, 128, 129, 300]
FAST = [
    *(1936946117179621455, 550085751958558782, 50737162503519588, 74291032824012392),
    *(3398365883158499592, 3403648104430010920, 3575310498258597009, 663651183927826904),
    *(3125010364355856015, 3992320350721670009, 3233698670931835597, 1859692024977922284),
    *(444801980686921533, 1314699078308480876, 2003798058489048521, 455335815384283847),
    3886849482814154722,
]
STRONG = [
    *(887865449656487406, 2530494315234787538, 1981602348844247963, 316457773565233715),
    *(2623883144079362254, 3651790893034006960, 554811102323258648, 3947385036238587466),
    *(3795150538614181370, 4415305397725486931, 4329018162153451388, 4114417455690108902),
    *(1561531149541293503, 278788825423749142, 4286908106465852740, 1969204422851029784),
    1052518464435947124,
]
FIRST = [
    *(105434511174508091, 2499542889307245882, 664798910978920875, 1071300106493060473),
    *(3552175740516232787, 1792776028251320487, 848429028861713032, 995847565073455182),
    *(3561695271940059064, 2782484674102228036, 3102851608180839949, 2817797733315875061),
    *(799619217219469469, 2144609678898819261, 2197624490377029079, 247932997590592149),
    2198150325883599006,
]


def test_hashes_are_tensorflows() -> None:
    texts = [bytes((7 * i + n) % 256 for i in range(n)) for n in LENGTHS]
    x = hf.placeholder(hf.string, [None])
    most = 2**62
    found = run(
        [
            hf.string_to_hash_bucket_fast(x, most),
            hf.string_to_hash_bucket_strong(x, most, [123, 456]),
            hf.string_to_hash_bucket(x, most),
        ],
        {x: texts},
    )
    assert [f.tolist() for f in found] == [FAST, STRONG, FIRST]
    order = np.random.default_rng(0).permutation(len(texts))
    mixed = run(hf.string_to_hash_bucket_fast(x, most), {x: [texts[i] for i in order] * 2})
    assert mixed.tolist() == [FAST[i] for i in order] * 2


def test_siphash_as_published() -> None:
    """The vector of the paper's appendix: key 00 ... 0f, message 00 ... 0e."""
    from hpcflow.ops.strings.string_hash_kernels import of_strings, sip

    key = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
    message = np.array([bytes(range(15)), b""], object)[:1]
    assert of_strings(message, lambda s: sip(s, key))[0] == 0xA129CA6149BE45E5


def test_bad_buckets() -> None:
    with pytest.raises(ShapeError, match="buckets"):
        hf.string_to_hash_bucket_fast("a", 0)
    with pytest.raises(ShapeError, match="key"):
        hf.string_to_hash_bucket_strong("a", 3, [1])
    with pytest.raises(DTypeError):
        hf.string_to_hash_bucket_fast(hf.constant(1), 3)


# -- numbers and texts


def test_numbers_as_text() -> None:
    """As C's printf, which TensorFlow uses."""
    assert run(hf.as_string([1.5, -2.25, 1e10])).tolist() == [
        *(b"1.500000", b"-2.250000", b"10000000000.000000")
    ]
    assert run(hf.as_string([1.5], precision=2, scientific=True)).tolist() == [b"1.50e+00"]
    assert run(hf.as_string([1.5], shortest=True, width=8)).tolist() == [b"     1.5"]
    assert run(hf.as_string([3], width=5, fill="0")).tolist() == [b"00003"]
    assert run(hf.as_string([-3], width=6, fill="-")).tolist() == [b"-3    "]
    assert run(hf.as_string([True])).tolist() == [b"true"]
    with pytest.raises(ShapeError):
        hf.as_string(1.0, scientific=True, shortest=True)
    with pytest.raises(ShapeError):
        hf.as_string(1.0, fill="x")


def test_text_as_numbers() -> None:
    x = hf.placeholder(hf.string, [None])
    real, whole = hf.string_to_number(x), hf.string_to_number(x, hf.int32)
    assert run(real, {x: ["1.5", " -2e3", "inf", "7"]}).tolist() == [1.5, -2000, np.inf, 7]
    assert run(whole, {x: [" 12 ", "-3"]}).tolist() == [12, -3]
    for t, wrong in [(real, "1_0"), (real, "x"), (real, ""), (whole, "1.5"), (whole, "3000000000")]:
        with pytest.raises(DataError, match=r"number|range") as caught:
            run(t, {x: [wrong]})
        assert "test_strings.py" in (caught.value.line or "")
    with pytest.raises(DTypeError):
        hf.string_to_number("1", hf.uint8)


def test_parts_of_strings() -> None:
    x = hf.constant(["hello", "world"])
    assert run(hf.substr(x, [1, -2], [3, 2])).tolist() == [b"ell", b"ld"]
    assert run(hf.substr("日本語", 1, 1, unit="UTF8_CHAR")).decode() == "本"
    assert run(hf.reduce_join(x, 0, separator=" ")) == b"hello world"
    assert run(hf.strings.length("日本", unit="UTF8_CHAR")).item() == 2
    assert run(hf.strings.upper("ä", encoding="utf-8")).decode() == "Ä"
    assert run(hf.strings.lower("ABC")) == b"abc"
    assert run(hf.string_strip("  a b ")) == b"a b"
    assert run(hf.regex_replace("a1b22", r"(\d)", r"<\1>")) == b"a<1>b<2><2>"
    assert run(hf.regex_full_match(["ab", "abc"], "ab?")).tolist() == [True, False]
    p = hf.placeholder(hf.int32, [])
    with pytest.raises(RangeError, match="position 6"):
        run(hf.substr(x, p, 1), {p: 6})
    with pytest.raises(GraphError, match="pattern"):
        hf.regex_replace(x, "(", "")


def test_base64() -> None:
    assert run(hf.encode_base64(["hello", "a?>"])).tolist() == [b"aGVsbG8", b"YT8-"]
    assert run(hf.decode_base64(hf.encode_base64(["\x00ÿ"], pad=True))).tolist() == [
        "\x00ÿ".encode()
    ]
    for wrong in ("a+b/", "a"):
        with pytest.raises(DataError, match="Base64"):
            run(hf.decode_base64(wrong))


# -- files and records


def test_files(tmp_path: Path) -> None:
    name = hf.placeholder(hf.string, [])
    text = hf.placeholder(hf.string, [])
    write, read = hf.write_file(name, text), hf.read_file(name)
    with hf.Session() as session:
        for part in ("b", "a"):
            path = str(tmp_path / "new" / f"{part}.bin")
            session.run(write, {name: path, text: b"\x00" + part.encode()})
            assert session.run(read, {name: path}) == b"\x00" + part.encode()
        found = session.run(hf.matching_files([str(tmp_path / "new" / "*.bin"), "/none/*"]))
        assert [Path(f.decode()).name for f in found] == ["a.bin", "b.bin"]
        assert session.run(hf.matching_files(str(tmp_path / "none*"))).tolist() == []
        with pytest.raises(DataError, match="cannot be read: No such file"):
            session.run(read, {name: str(tmp_path / "missing")})
        with pytest.raises(DataError, match="cannot be written"):
            session.run(write, {name: str(tmp_path), text: "x"})


def test_a_file_is_read_at_each_run(tmp_path: Path) -> None:
    path = tmp_path / "f"
    read = hf.read_file(str(path))
    with hf.Session() as session:
        for text in (b"one", b"two"):
            path.write_bytes(text)
            assert session.run(read) == text


def test_decode_raw() -> None:
    x = hf.placeholder(hf.string, [None])
    y = hf.decode_raw(x, hf.int16)
    assert run(y, {x: [b"\x01\x00\x02\x00", b"\x03\x00\x04\x00"]}).tolist() == [[1, 2], [3, 4]]
    assert run(hf.decode_raw(b"\x01\x00", hf.int16, little_endian=False)).tolist() == [256]
    for wrong in ([b"ab", b"abcd"], [b"abc"]):
        with pytest.raises(DataError):
            run(y, {x: wrong})


def test_decode_csv() -> None:
    lines = hf.placeholder(hf.string, [None])
    a, b, c = hf.decode_csv(lines, [[1], hf.constant([], hf.float32), ["none"]])
    assert [t.dtype for t in (a, b, c)] == [hf.int32, hf.float32, hf.string]
    values = run([a, b, c], {lines: ['5,2.5,"x, ""y"""', ",1e2,", "3, 4 ,z"]})
    assert values[0].tolist() == [5, 1, 3]
    assert values[1].tolist() == [2.5, 100, 4]
    assert values[2].tolist() == [b'x, "y"', b"none", b"z"]
    for wrong, why in [("1,2", "2 fields"), ("1,,z", "required"), ("x,1,z", "number")]:
        with pytest.raises(DataError, match=why):
            run([a, b, c], {lines: [wrong]})
    (only,) = hf.decode_csv(["1|2|3"], [[0]], field_delim="|", select_cols=[1])
    assert run(only).tolist() == [2]
    plain = hf.decode_csv(['a"b,NA'], [[""], [7]], use_quote_delim=False, na_value="NA")
    assert [v.tolist() for v in run(plain)] == [[b'a"b'], [7]]


# -- between ranks


def test_packed_and_taken_apart() -> None:
    for texts in ([], [b""], [b"a", b"", "ï".encode() * 9, bytes(256)]):
        array = np.array([*texts, None], object)[:-1]
        data = encode_strings(array)
        assert decode_strings(data, array.shape).tolist() == texts
        if data:
            with pytest.raises(ValueError):
                decode_strings(data[:-1], array.shape)
    a, b = (canonical(np.array(["x" * n, "y"], object)) for n in (1, 2))
    assert a == canonical(np.array([b"x", b"y"], object))
    assert a != b


def test_a_plan_with_strings_as_bytes() -> None:
    with hf.device("/job:ps/task:0"):
        y = hf.string_join(
            [hf.fill([2], "q"), hf.placeholder(hf.string, [2], name="p"), ["é", b"\x00"]]
        )
    p = hf.get_default_graph().get_tensor_by_name("p:0")
    fed = {p: hf.Spec(hf.string, (2,))}
    cluster = Cluster(workers=1, servers=1)
    plan = make_plan(hf.get_default_graph(), [y], fed, cluster, Settings())
    part = plan.parts["/job:ps/task:0"]
    again = decode_partition(encode_partition(part))
    assert encode_partition(again) == encode_partition(part)
    (constant,) = [
        n for n in again.nodes.values() if n.type == "Const" and n.specs[0].shape == (2,)
    ]
    assert constant.attrs["value"].tolist() == ["é".encode(), b"\x00"]
    shown = {edge.spec.sized for edge in plan.edges if not edge.token}
    assert shown == {False}


def test_strings_cross_ranks_both_ways() -> None:
    def body(context: Any) -> Any:
        x = hf.placeholder(hf.string, [None, 2])
        with hf.device("/job:ps/task:0"):
            there = hf.string_join([x, hf.constant(["-a", "-b"])])
            hashed = hf.string_to_hash_bucket_fast(there, 1000)
        with hf.device("/job:worker/task:0"):
            back = hf.reduce_join(there, 1, separator=",")
        session = hf.Session(context=context)
        texts = [["x" * i, "é"] for i in range(5)]
        for n in (5, 0, 3):
            rows = np.array(texts[:n], object).reshape(n, 2)
            lines, numbers = session.run([back, hashed], {x: rows})
            expected = [[f"{a}-a".encode(), f"{b}-b".encode()] for a, b in texts[:n]]
            assert lines.tolist() == [b",".join(pair) for pair in expected]
            local = session.run(
                hf.string_to_hash_bucket_fast(np.array([*expected, [b"", b""]]), 1000)
            )
            assert numbers.tolist() == local[:n].tolist()
        return session.run(hf.identity(there), {x: [["1", "2"]]}).tolist()

    assert run_ranks(2, body, ps=1) == [[[b"1-a", b"2-b"]]]
    assert run_ranks(2, body, seed=3, ps=1) == [[[b"1-a", b"2-b"]]]


def test_a_failure_where_strings_are_made_is_told() -> None:
    def body(context: Any) -> None:
        x = hf.placeholder(hf.string, [1])
        with hf.device("/job:ps/task:0"):
            y = hf.decode_base64(x)
        session = hf.Session(context=context)
        with pytest.raises(DataError, match="Base64"):
            session.run(hf.identity(y), {x: ["?"]})
        assert session.run(y, {x: ["aGk"]}).tolist() == [b"hi"]

    run_ranks(2, body, ps=1)


def test_strings_stay_on_cpus() -> None:
    x = hf.placeholder(hf.string, [2])
    y = hf.to_float(hf.string_to_hash_bucket_fast(hf.reshape(x, [2, 1]), 10)) * 2
    cluster = Cluster(devices=("gpu:0", "cpu:0"))
    fed = {x: hf.Spec(hf.string, (2,))}
    (part,) = make_plan(hf.get_default_graph(), [y], fed, cluster, Settings()).parts.values()
    kinds = {n.type: n.device.rpartition("/")[2] for n in part.nodes.values()}
    assert kinds["StringToHashBucket"] == kinds["Reshape"] == "cpu:0"
    assert kinds["Cast"] == "gpu:0"
    with hf.device("/gpu:0"):
        z = hf.string_join([x, "a"])
    with pytest.raises(PlacementError, match="cpu only"):
        make_plan(hf.get_default_graph(), [z], fed, cluster, Settings())


def test_queues_hold_strings() -> None:
    q = hf.FIFOQueue(4, [hf.string], [[]])
    put = q.enqueue_many([hf.constant(["a", "bc"])])
    take = q.dequeue_many(2)
    with hf.Session() as session:
        session.run(put)
        assert session.run(take).tolist() == [b"a", b"bc"]


def test_a_kernel_that_cannot_take_strings_says_so() -> None:
    with pytest.raises((DTypeError, KernelError)):
        run(hf.reduce_sum(hf.constant(["a"])))
