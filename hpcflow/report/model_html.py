"""Models, their histories and variables as HTML for notebooks; showing them builds nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.errors import HpcflowError
from hpcflow.graph.default_session import get_default_session
from hpcflow.graph.dtypes import name_of
from hpcflow.graph.static_shape import shape_text, size_of
from hpcflow.report.html_elements import Html, joined
from hpcflow.report.html_representation import MOST_VALUES, facts_table, rows_table

LAST_EPOCHS = 10  # of a history


def variable_html(variable: Any) -> Html:
    """A variable: its name, shape, dtype and device; a small value of the default session."""
    rows = [
        ("dtype", name_of(variable.dtype)),
        ("shape", shape_text(variable.shape)),
        ("elements", f"{size_of(variable.shape):,}"),
        ("trained", "yes" if variable.trainable else "no"),
        ("device", variable.device or "not requested"),
        ("made at", variable.op.line),
    ]
    text = _value_text(variable)
    return facts_table(f"Variable {variable.name}", [*rows, ("value", text)] if text else rows)


def _value_text(variable: Any) -> str:
    """A small value in the default session of one rank; "" if there is none.

    A read on several ranks may wait for them.
    """
    session = get_default_session()
    if session is None or session.graph is not variable.graph or session.context.size > 1:
        return ""
    if size_of(variable.shape) > MOST_VALUES:
        return ""
    try:
        return str(np.asarray(session.run(variable)))
    except HpcflowError:  # it has no value yet, or the session is closed
        return ""


def model_html(model: Any) -> Html:
    """A model: how it is compiled, its layers and variables, and its last fit."""
    given, built = model._compiled, model.outputs is not None
    rows = [("compiled", "no" if given is None else "yes")]
    if given is not None:
        metrics = [getattr(one, "__name__", str(one)) for one in given.metrics]
        rows += [
            ("optimizer", type(given.optimizer).__name__),
            ("loss", given.loss.name),
            ("metrics", ", ".join(metrics) or "none"),
        ]
    parts = []
    if built:
        rows += [(f"input {t.op.name}", shape_text(t.shape)) for t in model.inputs]
        rows += [("output", shape_text(model.outputs.shape))]
        weights = model.weights
        sizes = [size_of(v.shape) for v in weights]
        trained = sum(size for v, size in zip(weights, sizes, strict=True) if v.trainable)
        rows += [("parameters", f"{sum(sizes):,}, of which {trained:,} are trained")]
        parts.append(
            rows_table(
                ("variable", "shape", "elements", "trained"),
                [
                    (v.name, shape_text(v.shape), f"{size:,}", "yes" if v.trainable else "no")
                    for v, size in zip(weights, sizes, strict=True)
                ],
            )
        )
    else:
        rows += [("built", "no: the first data, or build(shape), give the shapes")]
    layers = [
        (getattr(layer, "name", getattr(layer, "__name__", "")), type(layer).__name__)
        for layer in getattr(model, "layers", ())
    ]
    shown = [facts_table(f"{type(model).__name__} {model.name}", rows)]
    shown += [rows_table(("layer", "kind"), layers)] if layers else []
    shown += parts
    if model.history is not None:
        shown.append(history_html(model.history))
    return joined(shown)


def history_html(history: Any) -> Html:
    """What `fit` returned: the values of each epoch, the last epochs if there are many."""
    epochs, found = history.epoch, history.history
    each = [name for name, values in found.items() if len(values) == len(epochs)]
    first = max(len(epochs) - LAST_EPOCHS, 0)
    rows = [
        (epochs[place] + 1, *(f"{found[name][place]:.4g}" for name in each))
        for place in range(first, len(epochs))
    ]
    some = [  # of `validation_freq`
        (name, f"{values[-1]:.4g}") for name, values in found.items() if values and name not in each
    ]
    parts = [rows_table(("epoch", *each), rows)]
    return joined([*parts, facts_table("last value", some)] if some else parts)
