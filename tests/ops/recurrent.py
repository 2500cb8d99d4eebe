"""Formulas of recurrent cells in NumPy: (values of variables, prefix of their names, x, state)."""

from __future__ import annotations

from typing import Any

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def basic(w: dict, p: str, x: np.ndarray, h: np.ndarray) -> tuple[Any, Any]:
    h = np.tanh(np.hstack([x, h]) @ w[p + "kernel"] + w[p + "bias"])
    return h, h


def gru(w: dict, p: str, x: np.ndarray, h: np.ndarray) -> tuple[Any, Any]:
    gates = sigmoid(np.hstack([x, h]) @ w[p + "gates/kernel"] + w[p + "gates/bias"])
    r, u = np.hsplit(gates, 2)
    c = np.tanh(np.hstack([x, r * h]) @ w[p + "candidate/kernel"] + w[p + "candidate/bias"])
    h = u * h + (1 - u) * c
    return h, h


def lstm(w: dict, p: str, x: np.ndarray, s: Any, clip: Any = None, pclip: Any = None) -> Any:
    c, h = s
    z = np.hstack([x, h]) @ w[p + "kernel"] + w[p + "bias"]
    i, j, f, o = np.hsplit(z, 4)
    peep = p + "w_f_diag" in w
    f = f + 1 + (w[p + "w_f_diag"] * c if peep else 0)
    i = i + (w[p + "w_i_diag"] * c if peep else 0)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(j)
    c = c if clip is None else np.clip(c, -clip, clip)
    o = o + (w[p + "w_o_diag"] * c if peep else 0)
    h = sigmoid(o) * np.tanh(c)
    if p + "projection/kernel" in w:
        h = h @ w[p + "projection/kernel"]
        h = h if pclip is None else np.clip(h, -pclip, pclip)
    return h, (c, h)
