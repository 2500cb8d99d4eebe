"""One case in one library: values, gradients, static shapes, or the error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tools.oracle.draw import PRELUDE, Case, input_text


@dataclass
class Outcome:
    """What a library made of a case."""

    error: str = ""  # when the call was built or run
    raw: bool = False  # hpcflow's: an error that is not one of its own
    values: list[Any] = field(default_factory=list)
    static: list[Any] = field(default_factory=list)  # lists with None, None of unknown rank
    gradients: list[Any] = field(default_factory=list)  # by input that is a float; None
    gradient_error: str = ""


def outcome(tf: Any, case: Case) -> Outcome:
    """Build the case in this library and run it."""
    found = Outcome()
    with tf.Graph().as_default():
        try:
            names, fed, wanted = built(tf, case)
            known = {"tf": tf, "np": np, **names}
            exec(PRELUDE, known)
            outputs = flat(tf, eval(case.text, known))
            with tf.Session(**as_written(tf)) as session:
                if tf.global_variables() or tf.local_variables():
                    session.run(
                        [tf.global_variables_initializer(), tf.local_variables_initializer()]
                    )
                runs = [o for o in outputs if graph_made(tf, o)]
                if case.in_turn:
                    values = iter([session.run(o, fed) for o in runs[::-1]][::-1])
                else:
                    values = iter(session.run(runs, fed))
                found.values = [next(values) if graph_made(tf, o) else plain(o) for o in outputs]
                found.static = [static(o) if isinstance(o, tf.Tensor) else "" for o in outputs]
                differentiate(tf, session, case, outputs, found, wanted, fed)
        except Exception as error:
            found.error = message(error)
            ours = type(error).__module__.startswith(("hpcflow", "tensorflow"))
            found.raw = not ours and "unexpected keyword argument" not in found.error
    return found


def message(error: Exception) -> str:
    """The class of an error and what it says; of TensorFlow's the line behind the stack."""
    text = str(error)
    if behind := re.search(r"^Node: .*\n(.*)", text, re.MULTILINE):
        text = behind[1]
    return f"{type(error).__name__}: {text[:300]}"


def as_written(tf: Any) -> dict[str, Any]:
    """TensorFlow's sessions compute the graph as it is: its optimizer changes how sums round."""
    if tf.__name__ == "hpcflow":
        return {}
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return {"config": config}


def built(tf: Any, case: Case) -> tuple[dict[str, Any], dict[Any, Any], list[Any]]:
    """The inputs by name, what is fed, and the inputs by which gradients are taken."""
    names: dict[str, Any] = {}
    for one in case.inputs:
        made = {"tf": tf, "np": np, one.name.upper(): one.value}
        names[one.name] = eval(input_text(one), made)
    fed = {names[i.name]: i.plain for i in case.inputs if i.fed}
    return names, fed, [names[i.name] for i in case.inputs if i.floats]


def differentiate(
    tf: Any, session: Any, case: Case, outputs: list[Any], found: Outcome, wanted: Any, fed: Any
) -> None:
    """Gradients of the outputs, each weighted by fixed numbers."""
    ys, weights = [], {}
    for tensor, value in zip(outputs, found.values, strict=True):
        if isinstance(tensor, tf.Tensor) and np.asarray(value).dtype.kind in "fc":
            ys.append(tensor)
            weight = np.random.default_rng(len(ys)).uniform(0.5, 2, np.shape(value))
            weights[tf.placeholder(tensor.dtype, static(tensor))] = weight.astype(value.dtype)
    if not ys or not wanted or case.random or case.in_turn:
        return
    try:
        made = tf.gradients(ys, wanted, list(weights))
        dense = [None if g is None else tf.convert_to_tensor(g) for g in made]
        values = iter(session.run([g for g in dense if g is not None], {**fed, **weights}))
        found.gradients = [None if g is None else next(values) for g in dense]
    except Exception as error:
        found.gradient_error = message(error)


def graph_made(tf: Any, thing: Any) -> bool:
    """Whether a session can run it."""
    return isinstance(thing, tf.Tensor | tf.Operation) or hasattr(thing, "read_value")


def flat(tf: Any, made: Any) -> list[Any]:
    """The leaves of what a call returned."""
    if isinstance(made, tf.SparseTensor):
        return [made.indices, made.values, made.dense_shape]
    if isinstance(made, tf.IndexedSlices):
        return [made.indices, made.values]
    if isinstance(made, dict):
        return [leaf for key in sorted(made) for leaf in flat(tf, made[key])]
    if isinstance(made, list | tuple) and not hasattr(made, "as_list"):
        return [leaf for part in made for leaf in flat(tf, part)]
    return [made]


def static(tensor: Any) -> list[int | None] | None:
    """The static shape of a tensor, of either library, as a list."""
    shape = tensor.shape
    if hasattr(shape, "as_list"):
        return None if shape.ndims is None else shape.as_list()
    return None if shape is None else list(shape)


def plain(thing: Any) -> Any:
    """What is no tensor, as something to compare."""
    if hasattr(thing, "as_list"):
        return np.array([-1 if n is None else n for n in thing.as_list()])
    if hasattr(thing, "as_numpy_dtype"):
        return str(np.dtype(thing.as_numpy_dtype))
    return thing if isinstance(thing, bool | int | float | str | None) else str(thing)


TOLERANCE = {"float16": 2e-2, "bfloat16": 8e-2, "float32": 2e-4, "complex64": 2e-4}


def compared(ours: Outcome, theirs: Outcome, case: Case) -> list[tuple[str, str]]:
    """What differs: (kind, what was seen, what is special in the inputs)."""
    marks = special(case)
    return [(kind, told + marks) for kind, told in differing(ours, theirs, case)]


def judged(tf: Any, ours: Outcome, theirs: Outcome, case: Case) -> list[tuple[str, str]]:
    """`compared`, but of 16-bit floats what agrees with TensorFlow's float64 is right, too."""
    found = compared(ours, theirs, case)
    halves = [i for i in case.inputs if i.value.dtype == np.float16]
    if not halves or not {"value", "gradient"} & {kind for kind, _ in found}:
        return found
    wide = [replace(i, value=i.value.astype("f8")) if i in halves else i for i in case.inputs]
    exact = outcome(tf, replace(case, inputs=wide))
    for mine, other in ((ours.values, exact.values), (ours.gradients, exact.gradients)):
        other[:] = [_rounded(x, m) for x, m in zip(other, mine, strict=False)]
    seen = compared(ours, exact, case)
    return seen if not exact.error and len(seen) < len(found) else found


def _rounded(value: Any, like: Any) -> Any:
    """A value of float64 in the dtype of another one, if that has 16 bits."""
    if isinstance(value, np.ndarray | np.generic) and getattr(like, "dtype", None) == np.float16:
        return np.asarray(value).astype(np.float16)
    return value


def special(case: Case) -> str:
    """What of the inputs a known difference may ask for: NaN, no elements, no tensors, ..."""
    values = [i.value.astype(complex) for i in case.inputs if i.value.dtype.kind in "fc"]
    marks = {
        "NaN": any(np.isnan(v).any() for v in values),
        "infinity": any(np.isinf(v).any() for v in values),
        "zero": any((v == 0).any() for v in values),
        "empty": any(not i.value.size for i in case.inputs),
        "float16": any(i.value.dtype == np.float16 for i in case.inputs),
        "literal": any(i.way in ("given", "literal") for i in case.inputs)
        or bool(re.search(r"[(, ]-?[0-9]", case.text)),
    }
    return "".join(f" [{name}]" for name, there in marks.items() if there)


def differing(ours: Outcome, theirs: Outcome, case: Case) -> list[tuple[str, str]]:
    """What differs: (kind, what was seen)."""
    if ours.raw:
        return [("raw error", ours.error)]
    if ours.error and theirs.error:
        return []
    if ours.error:
        return [("hpcflow refuses", ours.error)]
    if theirs.error:
        return [("TensorFlow refuses", theirs.error)]
    if len(ours.values) != len(theirs.values):
        return [("outputs", f"{len(ours.values)}, TensorFlow {len(theirs.values)}")]
    found = []
    for place, (mine, other) in enumerate(zip(ours.values, theirs.values, strict=True)):
        if told := unlike(mine, other, values=not case.random):
            found.append(("value", f"output {place}: {told}"))
        if told := knows_less(ours.static[place], theirs.static[place], mine):
            found.append(("static shape", f"output {place}: {told}"))
    return found or gradients_differ(ours, theirs, case)


def gradients_differ(ours: Outcome, theirs: Outcome, case: Case) -> list[tuple[str, str]]:
    """The same of the gradients, where the values agree and the input is a number."""
    if ours.gradient_error or theirs.gradient_error:
        if ours.gradient_error and not theirs.gradient_error:
            return [("hpcflow has no gradient", ours.gradient_error)]
        if theirs.gradient_error and not ours.gradient_error:
            return [("TensorFlow has no gradient", theirs.gradient_error)]
        return []
    if not ours.gradients or not theirs.gradients:
        return []
    found = []
    floats = [i.value for i in case.inputs if i.floats]
    for place, (mine, other) in enumerate(zip(ours.gradients, theirs.gradients, strict=True)):
        if all(g is not None and g.shape == floats[place].shape for g in (mine, other)):
            mine, other = (np.where(np.isnan(floats[place]), 0, g) for g in (mine, other))
        if (mine is None) != (other is None):
            none = "hpcflow" if mine is None else "TensorFlow"
            found.append((f"{none}'s gradient is None", f"input {place}"))
        elif mine is not None and (told := unlike(mine, other)):
            found.append(("gradient", f"input {place}: {told}"))
    return found


def knows_less(mine: Any, other: Any, value: Any) -> str:
    """hpcflow's static shape must be true and know what TensorFlow's knows."""
    if isinstance(mine, str) or isinstance(other, str):
        return ""
    if mine is not None:
        real = np.shape(value)
        if len(mine) != len(real) or any(
            m not in (None, r) for m, r in zip(mine, real, strict=True)
        ):
            return f"{mine} is wrong: {real}"
    if other is None or mine == other:
        return ""
    if mine is None or any(m is None and o is not None for m, o in zip(mine, other, strict=True)):
        return f"{mine}, TensorFlow {other}"
    return ""


def unlike(mine: Any, other: Any, values: bool = True) -> str:
    """How two results differ, or nothing."""
    if mine is None or other is None or isinstance(mine, str) or isinstance(other, str):
        return "" if mine == other or values is False else f"{mine!r}, TensorFlow {other!r}"
    a, b = np.asarray(mine), np.asarray(other)
    if a.dtype.kind in "OS" and b.dtype.kind in "OS":
        same = a.shape == b.shape and a.tolist() == b.tolist()
        return "" if same or not values else f"{a.tolist()}, TensorFlow {b.tolist()}"
    if a.dtype != b.dtype:
        told = f"dtype {a.dtype}, TensorFlow {b.dtype}"
        alike = a.shape == b.shape and (not values or near(a.astype(b.dtype), b))
        return told if alike else f"{told}, and other values"
    if a.shape != b.shape:
        return f"shape {a.shape}, TensorFlow {b.shape}"
    if not values or near(a, b):
        return ""
    return f"{_short(a)}, TensorFlow {_short(b)}"


def near(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Equal but for rounding; NaN and infinities in the same places."""
    if a.dtype.kind not in "fc" and a.dtype.name != "bfloat16":
        return bool((a == b).all())
    tolerance = TOLERANCE.get(a.dtype.name, 1e-6)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        finite = np.abs(y[np.isfinite(y)])
        largest = float(finite.max()) if finite.size else 1.0
        return bool(np.allclose(x, y, tolerance, tolerance * max(largest, 0.01), equal_nan=True))


def _short(a: np.ndarray[Any, Any]) -> str:
    text = np.array2string(a, threshold=24, precision=5, separator=", ").replace("\n", "")
    return text if len(text) < 200 else text[:200] + "..."
