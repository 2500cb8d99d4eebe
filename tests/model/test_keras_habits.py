"""Keras 3's arguments and attributes of models, layers and callbacks: they work, or the error has
a remedy, whose code runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.cli import main as cli
from hpcflow.errors import HpcflowError
from hpcflow.platform.other_frameworks import ATTRIBUTES, ELSEWHERE, KEYWORDS

X = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)
CALLS = {  # method -> its positional arguments here, and Keras 3's keywords with values
    "fit": (
        "x, y",
        "batch_size=5 epochs=2 verbose=2 callbacks=[] validation_split=0.5 validation_data=(x,y) "
        "shuffle=False class_weight={0:1.0,1:2.0} sample_weight=np.ones(20) initial_epoch=0 "
        "steps_per_epoch=1 validation_steps=1 validation_batch_size=3 validation_freq=1 "
        "workers=2 use_multiprocessing=True max_queue_size=5",
    ),
    "evaluate": (
        "x, y",
        "batch_size=5 verbose=0 sample_weight=np.ones(20) steps=1 callbacks=[] return_dict=True",
    ),
    "predict": ("x", "batch_size=5 verbose=0 steps=1 callbacks=[]"),
    "compile": (
        "'adam'",
        "loss='mse' loss_weights=[1.0] metrics=['mae'] weighted_metrics=['mae'] run_eagerly=True "
        "steps_per_execution=2 jit_compile=True auto_scale_loss=True lr=0.1 learning_rate=0.1",
    ),
    "save_weights": ("'DIR'", "overwrite=True max_shard_size=9"),
    "load_weights": ("'DIR'", "skip_mismatch=True by_name=True"),
    "summary": (
        "",
        "line_length=80 positions=[] print_fn=print expand_nested=True show_trainable=True "
        "layer_range=None",
    ),
}
WORKING = {  # those that hpcflow has; the others are refused
    "fit": 14,
    "evaluate": 5,
    "predict": 3,
    "compile": 2,
    "save_weights": 0,
    "load_weights": 0,
    "summary": 1,
}


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A trained model and its data, as the remedies name them, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    model = hf.Sequential([hf.layers.Dense(8, "relu"), hf.layers.Dense(2, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(X, Y, verbose=0)
    model.save_weights("DIR")
    values = model.get_weights()
    return {"hf": hf, "np": np, "model": model, "x": X, "y": Y, "values": values}


def code_of(remedy: str) -> list[str]:
    """The code between backticks, without commands."""
    return [code for code in re.findall("`([^`]+)`", remedy) if not code.startswith("hpcflow ")]


def test_arguments_work_or_have_a_remedy(names: dict[str, Any]) -> None:
    for method, (positional, keywords) in CALLS.items():
        worked = 0
        for keyword in keywords.split():
            model = hf.Sequential([hf.layers.Dense(2, "softmax")]) if method == "compile" else None
            here = {**names, "model": model or names["model"]}
            loss = "" if keyword.startswith("loss=") or method != "compile" else "'mse', "
            call = f"model.{method}({positional}{', ' if positional else ''}{loss}{keyword})"
            try:
                eval(call, here)
                worked += 1
            except TypeError as error:
                assert isinstance(error, HpcflowError) and error.hint, call
                assert KEYWORDS[method][keyword.partition("=")[0]] == error.hint, call
                assert len(error.message.splitlines()) == 1, call
        assert worked == WORKING[method], method


def run(remedy: str, names: dict[str, Any]) -> None:
    for code in code_of(remedy):
        exec(code, names)


@pytest.mark.parametrize(
    ("method", "keyword"), [(m, k) for m, known in KEYWORDS.items() for k in known]
)
def test_the_code_of_a_keywords_remedy_runs(
    method: str, keyword: str, names: dict[str, Any]
) -> None:
    remedy = KEYWORDS[method][keyword]
    if method == "ModelCheckpoint":  # checkpoints are chosen by the first call
        names["model"] = hf.Sequential([hf.layers.Dense(2, "softmax")])
        names["model"].compile("adam", "sparse_categorical_crossentropy")
    if method == "compile":
        names["model"] = hf.Sequential([hf.layers.Dense(1)])
        if "evaluate" in remedy:
            names["model"].compile("adam", "mse")
    assert code_of(remedy)
    run(remedy, names)
    if method == "compile" and "Print" not in remedy:
        names["model"].fit(X, X[:, :1], verbose=0)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_of_keras_has_a_remedy_that_runs(name: str, names: dict[str, Any]) -> None:
    with pytest.raises(AttributeError, match=re.escape(ATTRIBUTES[name])):
        getattr(names["model"], name)
    assert not hasattr(names["model"], name)
    if name == "export":
        pytest.importorskip("onnx")
    run(ATTRIBUTES[name], names)


SHAPES = {  # the samples that the layers of the remedies take; [4] by default
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN", "Bidirectional"), (6, 4)),
    **dict.fromkeys(("GlobalAveragePooling2D", "GlobalMaxPooling2D", "MaxPool2D"), (6, 6, 3)),
    "ZeroPadding2D": (6, 6, 3),
    "LayerNormalization": (6, 4),
}


@pytest.mark.parametrize("name", [n for n in ELSEWHERE if n.startswith("layers.")])
def test_a_layer_of_keras_has_a_remedy_that_trains(name: str) -> None:
    layer = name.removeprefix("layers.")
    with pytest.raises(AttributeError, match=re.escape(ELSEWHERE[name])):
        getattr(hf.layers, layer)
    (code,) = code_of(ELSEWHERE[name])
    model = eval(code)
    model.compile("sgd", "mse")
    samples = np.abs(np.random.default_rng(1).standard_normal((5, *SHAPES.get(layer, (4,)))))
    model.build([None, *SHAPES.get(layer, (4,))])
    target = np.zeros((5, *[n or 0 for n in model.outputs.shape[1:]]))
    assert np.isfinite(model.fit(samples, target, verbose=0).history["loss"][0])


def test_callbacks_of_keras_have_a_remedy(names: dict[str, Any]) -> None:
    with pytest.raises(AttributeError, match="resume=True"):
        hf.callbacks.BackupAndRestore  # noqa: B018
    with pytest.raises(AttributeError, match="--run-dir"):
        hf.callbacks.TensorBoard  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'EarlyStopping'"):
        hf.callbacks.EarlyStoping  # noqa: B018


def test_input_shapes_of_layers_have_a_remedy() -> None:
    for make in (hf.layers.Dense, hf.layers.Flatten, lambda **k: hf.layers.Conv2D(3, 3, **k)):
        for keyword in ("input_shape", "input_dim"):
            with pytest.raises(TypeError, match=r"Input\(\[4\]\)"):
                make(**({"units": 3} if make is hf.layers.Dense else {}), **{keyword: 4})


def test_an_unknown_keyword_of_a_layer_is_named() -> None:
    with pytest.raises(TypeError, match=r"argument 'actvation'[^$]*did you mean activation="):
        hf.layers.Dense(3, actvation="relu")


def test_freezing_a_model_by_an_attribute_is_no_silence(names: dict[str, Any]) -> None:
    with pytest.raises(AttributeError, match="trainable=False"):
        names["model"].trainable = False


@pytest.mark.parametrize("data", [zip(X, Y, strict=True), iter(X)], ids=["zip", "iter"])
def test_iterators_have_a_remedy(data: Any, names: dict[str, Any]) -> None:
    with pytest.raises(HpcflowError, match="has no length and items") as caught:
        names["model"].fit(data)
    assert caught.value.hint is not None
    run(caught.value.hint, names)


def test_a_pipeline_and_a_dataset_have_a_remedy(names: dict[str, Any]) -> None:
    with pytest.raises(HpcflowError, match="Pipeline has no length"):
        names["model"].fit(hf.data.Dataset.from_tensor_slices((X, Y)).batch(8))
    names["model"].fit(X, Y, verbose=0)
    data = hf.data.Dataset({names["model"].inputs[0]: X}, batch=4)
    for call in (names["model"].evaluate, names["model"].predict):
        with pytest.raises(HpcflowError, match="takes arrays") as caught:
            call(data)
        assert "model.predict(x)" in (caught.value.hint or "")


def test_pooling_has_keras_window() -> None:
    model = hf.Sequential([hf.layers.MaxPooling2D()])
    rows = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    np.testing.assert_array_equal(model.predict(rows)[0, :, :, 0], [[5, 7], [13, 15]])


def test_a_summary_is_given_to_a_function(names: dict[str, Any], capsys: Any) -> None:
    lines: list[str] = []
    names["model"].summary(print_fn=lines.append)
    assert not capsys.readouterr().out
    names["model"].summary()
    assert capsys.readouterr().out.splitlines() == lines and "trained" in lines[-1]


@pytest.mark.parametrize("name", [n for n in ELSEWHERE if n.startswith("losses.")])
def test_a_loss_of_keras_has_a_name_that_trains(name: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(ELSEWHERE[name])):
        getattr(hf.losses, name.removeprefix("losses."))
    labels = np.eye(4, dtype=np.float32)[np.arange(12) % 4]
    for code in code_of(ELSEWHERE[name]):
        model = hf.Sequential([hf.layers.Dense(4, "softmax")])
        exec(code, {"model": model})
        y = labels.argmax(-1) if "sparse" in code else labels
        assert np.isfinite(model.fit(np.ones((12, 3)), y, verbose=0).history["loss"][0])


NUMBERS = [
    "fit(x, y, epochs='3')", "fit(x, y, epochs=2.5)", "fit(x, y, initial_epoch='1')",
    "fit(x, y, verbose='loud')", "fit(x, y, validation_split='0.1')", "fit(x, y, seed='a')",
    "fit(x, y, batch_size='8')", "fit(x, y, validation_split=0.1, validation_batch_size=0)",
    "fit(x, y, steps_per_epoch='2')", "evaluate(x, y, batch_size=2.5)", "evaluate(x, y, steps='1')",
    "evaluate(x, y, verbose='loud')", "predict(x, batch_size='8')", "predict(x, steps=-1)",
]  # fmt: skip


@pytest.mark.parametrize("call", NUMBERS)
def test_a_number_that_is_none_is_named(call: str, names: dict[str, Any]) -> None:
    argument = call.rstrip(")").split(", ")[-1]
    with pytest.raises(HpcflowError) as raised:
        eval(f"model.{call}", names)
    assert raised.value.message.startswith(argument)


def test_no_message_prints_what_is_in_an_array() -> None:
    with pytest.raises(HpcflowError) as raised:
        hf.Input([X])
    assert "<array float32 [" in raised.value.message and "0." not in raised.value.message


def functional() -> hf.Model:
    with hf.Graph().as_default():
        inputs = hf.Input((4,))
        model = hf.Model(inputs, hf.layers.Dense(2, "softmax")(inputs))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


MISTAKES: dict[str, tuple[str, str]] = {  # code -> a part of the message, and of the hint
    "hf.Model(inputs=x, outputs=model.outputs)": ("an input of a model is a tensor", "hf.Input"),
    "hf.Input(64)": ("shape=64", "hf.Input((64,))"),
    "hf.Input(shape=(4,), batch_size=32)": ("'batch_size'", "batch_size=32"),
    "hf.layers.Dense('4')": ("Dense: units='4' is not", "Dense(4"),
    "hf.layers.Dense(-4)": ("Dense: units=-4 is not", "1 or more"),
    "hf.layers.Conv2D(2.5, 3)": ("Conv2D: filters=2.5 is not", "1 or more"),
    "new.fit(x.astype(object), y)": ("x is an array of Python objects", "x.astype"),
    "model.predict(x.astype(object))": ("x is object; the model's input is float32", "x.astype"),
    "model.fit(x, y.astype(object))": ("y is object; the loss is int64", "y.astype"),
    "functional().fit(np.ones((5, 8)), np.ones(5))": (
        "x has shape [5, 8]; the model's input takes [?, 4]", "reshape"),
    "model(x)": ("not of an array", "model.predict(x)"),
    "functional()(x)": ("no function of an array", "model.predict(x)"),
    "new.compile('addam', 'mse')": ("did you mean 'adam'?", "sgd"),
}  # fmt: skip


@pytest.mark.parametrize("code", MISTAKES)
def test_a_mistake_is_named_where_it_is_made(code: str, names: dict[str, Any]) -> None:
    new = hf.Sequential([hf.layers.Dense(2, "softmax")])
    if "compile" not in code:
        new.compile("adam", "sparse_categorical_crossentropy")
    message, hint = MISTAKES[code]
    with pytest.raises(HpcflowError) as raised, hf.Graph().as_default():
        eval(code, {**names, "new": new, "functional": functional})
    assert message in raised.value.message and hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("hf.utils.to_categorical", "hf.one_hot"),
        ("hf.callbacks.TensorBoard", "--set tensorboard=1"),
    ],
)
def test_names_of_keras_lead_to_those_here(code: str, words: str) -> None:
    with pytest.raises(AttributeError, match=words):
        eval(code, {"hf": hf})


def test_a_misspelt_command_is_told(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["scal", "--ranks", "1"])
    assert ended.value.code == 2 and "did you mean scale?" in capsys.readouterr().err
