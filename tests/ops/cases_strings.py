"""Cases of strings: of ops on them, and of ops that only move them."""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np

from tests.ops.cases import BOOL, C64, C128, CASES, F32, F64, I32, I64, Case, Maker, f, n, v

STRING = np.dtype("O")
TEXTS = [b"", b"a", b"Hello", "naïve".encode(), b" 12 ", b"x" * 40, bytes(range(256)), b"a,b"]


def t(*shape: int, texts: list[bytes] = TEXTS) -> Maker:
    """Strings of any bytes."""

    def make(rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        found = np.empty(shape, object)
        for place in np.ndindex(shape):
            found[place] = texts[rng.integers(len(texts))]
        return found

    return make


def each(function: Any, x: np.ndarray, *more: np.ndarray) -> np.ndarray:
    parts = np.broadcast_arrays(x, *more)
    found = np.empty(parts[0].shape, object)
    for place in np.ndindex(found.shape):
        found[place] = function(*(p[place] for p in parts))
    return found


def case(type: str, inputs: list[Maker], oracle: Any, attrs: Any = None, **facts: Any) -> None:
    CASES.append(Case(type, inputs, oracle, attrs or {}, **{"dtypes": (STRING,), **facts}))


SHAPES = [(), (4,), (2, 3), (0, 2)]
UTF8 = [b"", b"abc", "naïve".encode(), "日本".encode()]
for _s in SHAPES:
    case(
        "StringJoin",
        [t(*_s), t(), t(*_s)],
        lambda *p: each(lambda *x: b"-".join(x), *p),
        {"separator": "-"},
    )
    case("StringLength", [t(*_s)], lambda x: each(len, x).astype(int), {"utf8": False})
    case(
        "StringLength",
        [t(*_s, texts=UTF8)],
        lambda x: each(lambda s: len(s.decode()), x).astype(int),
        {"utf8": True},
    )
    case(
        "StringCase",
        [t(*_s, texts=UTF8)],
        lambda x: each(lambda s: s.decode().upper().encode(), x),
        {"how": "upper", "utf8": True},
    )
    case(
        "StringCase",
        [t(*_s)],
        lambda x: each(lambda s: s.strip(), x),
        {"how": "strip", "utf8": False},
    )
    case(
        "RegexReplace",
        [t(*_s)],
        lambda x: each(lambda s: s.replace(b"l", b"[l]"), x),
        {"pattern": "l", "rewrite": r"[\0]", "all": True},
    )
    case(
        "RegexReplace",
        [t(*_s)],
        lambda x: each(lambda s: s.replace(b"l", b"_", 1), x),
        {"pattern": "(l)", "rewrite": "_", "all": False},
    )
    case(
        "RegexFullMatch",
        [t(*_s)],
        lambda x: each(lambda s: re.fullmatch(b"[a-zA-Z]+", s) is not None, x).astype(bool),
        {"pattern": "[a-zA-Z]+"},
    )
    case("EncodeBase64", [t(*_s)], lambda x: each(base64.urlsafe_b64encode, x), {"pad": True})
    case(
        "EncodeBase64",
        [t(*_s)],
        lambda x: each(lambda s: base64.urlsafe_b64encode(s).rstrip(b"="), x),
        {"pad": False},
    )
    case(
        "DecodeBase64",
        [t(*_s, texts=[b"", b"aGk", b"aGk=", b"_-8"])],
        lambda x: each({b"": b"", b"aGk": b"hi", b"aGk=": b"hi", b"_-8": b"\xff\xef"}.get, x),
    )
    case(
        "Substr",
        [t(*_s, texts=[b"hello", b"worlds"]), v(-3), v(2)],
        lambda x, p, k: each(lambda s: s[-3:-1], x),
        {"utf8": False},
    )
    case(
        "StringToNumber",
        [t(*_s, texts=[b"1.5", b" -2e3 ", b"inf"])],
        lambda x: each(float, x).astype(float),
        {"dtype": F32},
    )
    case(
        "StringToNumber",
        [t(*_s, texts=[b"15", b" -2 "])],
        lambda x: each(int, x).astype(int),
        {"dtype": I64},
    )
    case(
        "AsString",
        [f(*_s)],
        lambda x: each(lambda a: b"%+9.2f" % a, x),
        {"whole": "", "real": "%+9.2f", "text": "%s"},
        dtypes=(F32, F64),
    )
    case(
        "AsString",
        [n(*_s)],
        lambda x: each(lambda a: str(a).encode(), x),
        {"whole": "%d", "real": "", "text": ""},
        dtypes=(I32, I64),
    )
    case("Identity", [t(*_s)], lambda x: x)
    case("IdentityN", [t(*_s), t()], lambda x, y: (x, y))
    case("Equal", [t(*_s), t(*_s)], lambda x, y: each(lambda a, c: a == c, x, y).astype(bool))
    case("NotEqual", [t(*_s), t()], lambda x, y: each(lambda a, c: a != c, x, y).astype(bool))
    case("ZerosLike", [t(*_s)], lambda x: each(lambda a: b"", x))
    case(
        "Fill",
        [t(), v(_s)],
        lambda x, s, k=_s: each(lambda a: a, np.broadcast_to(x, k)),
        {"shape": None},
    )
    case(
        "Fill",
        [],
        lambda k=_s: each(lambda a: b"q", np.zeros(k)),
        {"shape": _s, "value": b"q", "dtype": STRING},
    )
    case(
        "Select",
        [lambda rng, d, k=_s: rng.random(k) < 0.5, t(*_s), t()],
        lambda c, x, y: each(lambda p, a, b: a if p else b, c, x, y),
    )
case(
    "AsString",
    [v([True, False], bool)],
    lambda x: np.array([b" true", b"false"], object),
    {"whole": "", "real": "", "text": "%5s"},
    dtypes=(BOOL,),
)
case(
    "AsString",
    [v([1 + 2j], C64)],
    lambda x: np.array([b"(1.0,2.0)"], object),
    {"whole": "", "real": "%.1f", "text": ""},
    dtypes=(C64, C128),
)
case(
    "Substr",
    [t(3, texts=["日本語".encode()]), v(1), v(2)],
    lambda x, p, k: each(lambda s: "本語".encode(), x),
    {"utf8": True},
)

_JOINED = np.array([[b"a", b"b"], [b"c", b"d"]], object)
for _axis, _keep, _expected in [
    (0, False, [b"a-c", b"b-d"]),
    (1, True, [[b"a-b"], [b"c-d"]]),
    ((0, 1), False, b"a-c-b-d"),
    ((1, 0), False, b"a-b-c-d"),
    (None, False, b"a-b-c-d"),
    (-1, False, [b"a-b", b"c-d"]),
]:
    case(
        "ReduceJoin",
        [lambda rng, d: _JOINED.copy()],
        lambda x, e=_expected: np.array(e, object),
        {"axis": _axis, "keepdims": _keep, "separator": "-"},
    )
case(
    "ReduceJoin",
    [t(0, 2)],
    lambda x: np.zeros(0, object),
    {"axis": 1, "keepdims": False, "separator": "-"},
)
case(
    "ReduceJoin",
    [t(0, 2)],
    lambda x: np.array([b"", b""], object),
    {"axis": 0, "keepdims": False, "separator": "-"},
)

# values of TensorFlow 2.21; the rest of the lengths of FarmHash are in test_strings.py
for _how, _key, _buckets, _texts, _expected in [
    ("farm", (), 3, [b"Hello", b"TensorFlow", b"2.x"], [0, 2, 2]),
    ("sip", (1, 2), 3, [b"Hello", b"TF"], [2, 0]),
    ("murmur", (), 3, [b"Hello", b"TensorFlow", b"2.x"], [2, 0, 1]),
]:
    case(
        "StringToHashBucket",
        [lambda rng, d, x=_texts: np.array(x, object)],
        lambda x, e=_expected: np.array(e),
        {"how": _how, "key": _key, "buckets": _buckets},
    )

# -- records

case(
    "DecodeRaw",
    [t(2, texts=[b"\x01\x00\x02\x00"])],
    lambda x: np.array([[1, 2]] * 2),
    {"dtype": np.dtype("i2"), "little": True},
)
case(
    "DecodeRaw",
    [t(texts=[b"\x01\x00\x02\x00"])],
    lambda x: np.array([256, 512]),
    {"dtype": np.dtype("i2"), "little": False},
)
case("DecodeRaw", [t(0)], lambda x: np.zeros((0, 0)), {"dtype": F32, "little": True})
case(
    "DecodeCSV",
    [t(3, texts=[b'1,"a ""b"",c",2.5', b",x,-1e3", b"7,,NA"])],
    lambda x: tuple(
        np.array([{b"1": row[0], b",": row[1], b"7": row[2]}[s[:1]] for s in x], k)
        for k, row in [("i4", (1, -1, 7)), ("O", (b'a "b",c', b"x", b"")), ("f4", (2.5, -1e3, 0.5))]
    ),
    {
        "dtypes": (I32, STRING, F32),
        "defaults": (-1, b"", 0.5),
        "delimiter": ",",
        "quotes": True,
        "na": "NA",
        "columns": None,
    },
)

# -- ops that only move strings

case("Reshape", [t(2, 3)], lambda x: x.reshape(3, 2), {"shape": (3, 2)})
case("Concat", [t(2, 1), t(2, 2)], lambda x, y: np.hstack([x, y]), {"axis": 1})
case("Pack", [t(2), t(2)], lambda x, y: np.stack([x, y], 1), {"axis": 1})
case("Unpack", [t(2, 3)], lambda x: tuple(x), {"axis": 0, "num": 2})
case("Split", [t(3)], lambda x: (x[:1], x[1:]), {"axis": 0, "sizes": (1, 2)})
case("Transpose", [t(2, 3)], lambda x: x.T, {"perm": None})
case("Tile", [t(2)], lambda x: np.tile(x, 2), {"multiples": (2,)})
case("BroadcastTo", [t(2, 1)], lambda x: np.broadcast_to(x, (2, 3)), {"shape": (2, 3)})
case(
    "StridedSlice", [t(3, 2)], lambda x: x[::-1, 1], {"key": (("slice", None, None, -1), ("at", 1))}
)
case("Gather", [t(4), v((2, 0))], lambda x, i: x[[2, 0]], {"axis": 0})
case("GatherNd", [t(2, 2), v([[1, 0]])], lambda x, i: x[1:, 0], {})
case("Reverse", [t(3)], lambda x: x[::-1], {"axis": (0,)})
case(
    "Unique",
    [t(6, texts=[b"b", b"a"])],
    lambda x: (list(dict.fromkeys(x)), [list(dict.fromkeys(x)).index(s) for s in x]),
    {"counts": False, "dtype": I32},
)
case(
    "ListDiff",
    [t(6, texts=[b"b", b"a", b"c"]), t(1, texts=[b"a"])],
    lambda x, y: ([s for s in x if s != b"a"], [i for i, s in enumerate(x) if s != b"a"]),
    {"dtype": I32},
)
case("DynamicPartition", [t(4), v((1, 0, 1, 1))], lambda x, p: (x[[1]], x[[0, 2, 3]]), {"num": 2})
case(
    "Print",
    [t(2), t(1)],
    lambda x, y: x,
    {"layout": ("x", None), "message": "", "first_n": 1, "summarize": 3},
)
case("Shape", [t(2, 3)], lambda x: np.array([2, 3]), {"dtype": I32})

# -- sequences


def _words(x: np.ndarray, skip: bool) -> tuple[Any, Any, Any]:
    words = [s.replace(b",", b" ").split(b" ") if s else [] for s in x]
    rows = [[w for w in row if w or not skip] for row in words]
    places = [[i, j] for i, row in enumerate(rows) for j in range(len(row))]
    values = np.array([w for row in rows for w in row] + [None], object)[:-1]
    longest = max(map(len, rows), default=0)
    return np.array(places, int).reshape(-1, 2), values, np.array([len(rows), longest])


for _skip in (True, False):
    for _count in (0, 4):
        case(
            "StringSplit",
            [t(_count, texts=[b"a b", b" a,,bc ", b""])],
            lambda x, skip=_skip: _words(x, skip),
            {"delimiter": " ,", "skip_empty": _skip},
        )

# neither sequence at [0, 0], no hypothesis at [0, 1] and [1, 1], two changes of two at [1, 0]
case(
    "EditDistance",
    [
        v([[1, 0, 0], [1, 0, 1]], I64),
        lambda rng, d: np.array([b"a", b"b"], object),
        v([2, 2, 2], I64),
        v([[0, 1, 0], [1, 0, 0], [1, 0, 1], [1, 1, 0]], I64),
        lambda rng, d: np.array([b"a", b"b", b"c", b"a"], object),
        v([2, 2, 2], I64),
    ],
    lambda *_: np.array([[0.0, 1.0], [1.0, 1.0]]),
    {"normalize": True},
)
case(
    "EditDistance",
    [
        v([[0, i] for i in range(6)] + [[2, 0]], I64),
        lambda rng, d: np.frombuffer(b"kittenx", np.uint8).astype(np.int32),
        v([3, 6], I64),
        v([[0, i] for i in range(7)], I64),
        lambda rng, d: np.frombuffer(b"sitting", np.uint8).astype(np.int32),
        v([3, 7], I64),
    ],
    lambda *_: np.array([3.0, 0.0, 1.0]),
    {"normalize": False},
)
