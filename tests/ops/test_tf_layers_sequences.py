"""`hf.layers` of sequences: attention and recurrent nets, against formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special as sp

import hpcflow as hf
from tests.ops.layers import RNG, check, draw, filled, graph  # noqa: F401 - a graph for each test
from tests.ops.recurrent import basic, gru, lstm


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention(causal: bool) -> None:
    q, k = draw(2, 3, 6), draw(2, 5, 4)
    mask = RNG.random((2, 3, 5)) < 0.7
    fed = hf.placeholder("float64", [None, None, 6])
    own = hf.layers.multi_head_attention(fed, num_heads=2, causal=causal)
    other = hf.layers.multi_head_attention(
        q, k, num_heads=2, units=8, output_units=3, mask=mask, causal=causal, name="cross"
    )
    w = filled()

    def oracle(q: Any, k: Any, name: str, seen: Any, units: int) -> np.ndarray:
        def project(x: Any, into: str) -> Any:
            return x @ w[f"{name}/{into}/kernel"] + w[f"{name}/{into}/bias"]

        a, b, c = project(q, "query"), project(k, "key"), project(k, "value")
        heads = []
        for h in range(2):
            cut = slice(h * units // 2, (h + 1) * units // 2)
            scores = np.einsum("bmd,bnd->bmn", a[..., cut], b[..., cut]) / np.sqrt(units / 2)
            weights = sp.softmax(np.where(seen, scores, -1e30), -1) * seen
            heads.append(np.einsum("bmn,bnd->bmd", weights, c[..., cut]))
        return project(np.concatenate(heads, -1), "output")

    def past(m: int, n: int) -> np.ndarray:
        return np.tril(np.ones((m, n), bool), n - m) if causal else np.ones((m, n), bool)

    assert {n for n in w if n.startswith("cross")} == {
        f"cross/{into}/{v}"
        for into in ("query", "key", "value", "output")
        for v in ("kernel", "bias")
    }
    check(own, oracle(q, q, "multi_head_attention", past(3, 3), 6), w, {fed: q})
    check(other, oracle(q, k, "cross", mask & past(3, 5), 8), w)


# -- recurrent: a loop in the graph, so a session runs it


def _in_session(fetches: Any, w: dict, feeds: Any = None) -> Any:
    """`fetches` with the variables set to `w`."""
    assign = [v.assign(w[v.op.name]) for v in hf.global_variables()]
    with hf.Session() as session:
        session.run(assign)
        return session.run(fetches, feeds)


@pytest.mark.parametrize("kind, oracle", [("rnn", basic), ("gru", gru), ("lstm", lstm)])
def test_recurrent(kind: str, oracle: Any) -> None:
    x, lengths = draw(3, 6, 4), [6, 0, 2]
    layer = getattr(hf.layers, kind)
    fed = hf.placeholder("float64", [None, None, 4])
    plain, state = layer(fed, 5, sequence_length=lengths)
    both, _ = layer(fed, 5, 2, lengths, bidirectional=True, name="deep")
    again, _ = layer(
        hf.transpose(fed, [1, 0, 2]),
        5,
        sequence_length=lengths,
        time_major=True,
        name=kind,
        reuse=True,
    )
    assert plain.shape == (3, None, 5) and both.shape == (3, None, 10)
    w = {k: v * 0.5 for k, v in filled().items()}
    cell = {"rnn": "basic_rnn_cell", "gru": "gru_cell", "lstm": "lstm_cell"}[kind]
    turned = [x[b, :n][::-1] for b, n in enumerate(lengths)]

    def unrolled(rows: Any, name: str) -> list[np.ndarray]:
        outputs = []
        for row in rows:
            zero = np.zeros((1, 5))
            s = (zero, zero) if kind == "lstm" else zero
            made = np.zeros((len(row), 5))
            for t in range(len(row)):
                made[t], s = oracle(w, name, row[t : t + 1], s)
            outputs.append(made)
        return outputs

    def padded(rows: Any) -> np.ndarray:
        out = np.zeros((3, 6, rows[0].shape[-1]))
        for b, row in enumerate(rows):
            out[b, : len(row)] = row
        return out

    rows = [x[b, :n] for b, n in enumerate(lengths)]
    one = unrolled(rows, f"{kind}/rnn/{cell}/")
    stack = "deep/bidirectional_rnn/{}/multi_rnn_cell/cell_{}/" + cell + "/"
    ahead = unrolled(unrolled(rows, stack.format("fw", 0)), stack.format("fw", 1))
    back = unrolled(unrolled(turned, stack.format("bw", 0)), stack.format("bw", 1))
    joined = [np.hstack([a, b[::-1]]) for a, b in zip(ahead, back, strict=True)]
    last = state[1] if kind == "lstm" else state
    (g,) = hf.gradients(plain, fed)
    a, b, c, s, slope = _in_session([plain, both, again, last, g], w, {fed: x})
    np.testing.assert_allclose(a, padded(one), atol=1e-12)
    np.testing.assert_allclose(b, padded(joined), atol=1e-12)
    np.testing.assert_allclose(c, a.transpose(1, 0, 2), atol=1e-12)
    np.testing.assert_allclose(s[[0, 2]], [one[0][-1], one[2][-1]], atol=1e-12)
    assert slope[2, :2].all() and not slope[2, 2:].any() and not slope[1].any()


def test_recurrent_dropout() -> None:
    x = draw(2, 3, 4)
    y, _ = hf.layers.gru(hf.constant(x), 50, dropout_rate=0.5, training=True)
    z, _ = hf.layers.gru(hf.constant(x), 50, dropout_rate=0.5, name="gru", reuse=True)
    dropped, whole = _in_session([y, z], filled())
    assert 0.3 < (dropped == 0).mean() < 0.7 and not (whole == 0).any()
