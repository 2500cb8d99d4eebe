"""Names and arguments of Keras, PyTorch and TensorFlow 2 that hpcflow lacks, and what to write.

Imported when an error is raised. In the remedies of models, code between backticks runs as it is
where `model` is a compiled `hf.Sequential`, `x` and `y` are its samples and labels.
"""

from __future__ import annotations

DATASET = (
    "`data = hf.data.Dataset({model.inputs[0]: x, model.labels: y, model.sample_weight: "
    "np.ones(len(y), 'float32')}, batch=64, readers=4)`, then `model.fit(data)`"
)
_SCRIPT = (
    "a model is its script and its weights: `model.save_weights('DIR')`, and "
    "`model.load_weights('DIR')` in the script that builds it"
)
_GRAPH = "leave it out: the graph of a step is compiled as a whole, `model.compile('adam', 'mse')`"
_SHAPE = "the input has the shape: `hf.Sequential([hf.Input([4]), hf.layers.Dense(3)])`"
_SUMMARY = "leave it out: `model.summary()` prints each variable in a line"
_CALLBACKS = "callbacks belong to fit: `values = model.evaluate(x, y, return_dict=True)`"

RENAMED: dict[str, str] = {  # keyword -> what it may be called here
    "lr": "learning_rate",
    "batch_size": "batch",
    "shuffle_buffer": "shuffle",
    "num_workers": "readers",
    "in_features": "units",
    "out_features": "units",
    "out_channels": "filters",
    "dim": "axis axes",
    "keepdim": "keepdims keep_dims",
    "requires_grad": "trainable",
}

KEYWORDS: dict[str, dict[str, str]] = {  # function, or "" for any -> keyword -> the remedy
    "": {
        "input_shape": _SHAPE,
        "input_dim": _SHAPE,
        "batch_input_shape": _SHAPE,
        "batch_shape": _SHAPE,
    },
    "fit": {
        "workers": f"a dataset reads ahead in threads: {DATASET}",
        "use_multiprocessing": f"a dataset reads ahead in threads: {DATASET}",
        "max_queue_size": f"a dataset reads ahead in threads: {DATASET}",
    },
    "evaluate": {"callbacks": _CALLBACKS},
    "Input": {
        "batch_size": "leave it out, it belongs to fit: `model.fit(x, y, batch_size=32)`",
        "tensor": "`hf.Input([4])` is a tensor",
    },
    "predict": {"callbacks": "callbacks belong to fit: `rows = model.predict(x)`"},
    "compile": {
        "loss_weights": "a model has one loss, to scale by its function: `model.compile('adam', "
        "lambda labels, outputs: 0.5 * hf.square(labels - outputs))`",
        "weighted_metrics": "the loss alone is weighted: `model.evaluate(x, y, "
        "sample_weight=np.ones(len(y)), return_dict=True)['loss']`",
        "run_eagerly": "hf.Print shows values while a graph runs: `hf.Sequential([lambda x: "
        "hf.Print(x, [x]), hf.layers.Dense(2)])`",
        "steps_per_execution": _GRAPH,
        "jit_compile": _GRAPH,
        "auto_scale_loss": "an optimizer scales the loss: `model.compile("
        "hf.train.LossScaleOptimizer(hf.train.AdamOptimizer(0.001)), 'mse')`",
        "lr": "an optimizer has the rate: `model.compile(hf.train.AdamOptimizer(0.01), 'mse')`",
        "learning_rate": "an optimizer has the rate: `model.compile(hf.train.AdamOptimizer(0.01), "
        "'mse')`",
    },
    "save_weights": {
        "overwrite": "leave it out: `model.save_weights('DIR', step=0)` replaces that step",
        "max_shard_size": "leave it out: `model.save_weights('DIR')` writes one checkpoint",
    },
    "load_weights": {
        "skip_mismatch": "restore some: `hf.train.Saver({v.name.removeprefix(model.name + '/'): v "
        "for v in model.weights[:2]}).restore(model.session, 'DIR')`",
        "by_name": "leave it out: `model.load_weights('DIR')` finds the variables by their names",
    },
    "summary": {
        "line_length": _SUMMARY,
        "positions": _SUMMARY,
        "expand_nested": _SUMMARY,
        "show_trainable": "`[v.name for v in model.trainable_weights]` are those that are trained",
        "layer_range": "`[v.name for v in model.layers[0].weights]` are those of a layer",
    },
    "ModelCheckpoint": {
        "save_weights_only": "leave it out, it saves weights: `hf.callbacks.ModelCheckpoint('DIR', "
        "'loss')`; `model.fit(x, y, checkpoints='JOB')` saves the state of the job",
        "save_freq": "`model.fit(x, y, checkpoints='JOB', save_every=100)` saves by steps",
    },
}

ATTRIBUTES: dict[str, str] = {  # attribute of Keras's models -> what to write
    "count_params": "`sum(int(np.prod(v.shape)) for v in model.weights)`",
    "evaluate_generator": "`model.evaluate(x, y)`",
    "export": "`hf.onnx.export_model(model.outputs, model.inputs[0], model.session)`",
    "fit_generator": DATASET,
    "get_config": _SCRIPT,
    "get_layer": "`[layer for layer in model.layers if layer.name == 'dense_1']`",
    "input": "`model.inputs[0]`",
    "input_shape": "`model.inputs[0].shape`",
    "loss": "`model.evaluate(x, y, return_dict=True)['loss']`",
    "metrics_names": "`list(model.evaluate(x, y, return_dict=True))`",
    "non_trainable_variables": "`[v for v in model.weights if not v.trainable]`",
    "non_trainable_weights": "`[v for v in model.weights if not v.trainable]`",
    "optimizer": "`model.learning_rate = 0.01` sets the rate of the optimizer",
    "output": "`model.outputs`",
    "output_shape": "`model.outputs.shape`",
    "pop": "make the list of layers before the model: `hf.Sequential([hf.layers.Dense(3)])`",
    "predict_classes": "`model.predict(x).argmax(-1)`",
    "predict_on_batch": "`model.predict(x, batch_size=len(x))`",
    "reset_metrics": "leave it out: each epoch and each evaluation begins with new metrics",
    "reset_states": "leave it out: recurrent layers begin each batch with zeros",
    "save": _SCRIPT,
    "test_on_batch": "`model.evaluate(x, y, batch_size=len(x))`",
    "to_json": _SCRIPT,
    "train_on_batch": "`model.fit(x, y, batch_size=len(x))` is one step",
    "trainable": "layers have it: `hf.layers.Dense(3, trainable=False)`",
    "trainable_variables": "`model.trainable_weights`",
    "variables": "`model.weights`",
}

ELSEWHERE: dict[str, str] = {  # names, without `hf.`, and what is here instead
    "Module": "write a function of tensors, or a subclass of hf.Model",
    "GradientTape": "hf.gradients(loss, variables) adds the gradients to the graph",
    "config": "settings are options: `hpcflow run --set NAME=VALUE` (`hpcflow help settings`)",
    "device_count": "hf.Session().list_devices() lists the devices",
    "distribute": "the launcher chooses: `hpcflow run -n 4 [--ps 1] SCRIPT`",
    "estimator": "hf.Model has fit, evaluate and predict",
    "from_numpy": "hf.constant(array) makes a tensor; feeds take arrays as they are",
    "function": "the graph is compiled as a whole: session.make_callable(fetches, feeds)",
    "keras": "hf.Model, hf.Sequential, hf.Input, hf.layers, hf.callbacks, hf.losses, hf.metrics, "
    "hf.initializers; optimizers are in hf.train (hf.keras.layers.Dense is hf.layers.Dense)",
    "no_grad": "only hf.gradients makes gradients; hf.stop_gradient(x) stops them",
    "optim": "optimizers are in hf.train, such as hf.train.AdamOptimizer(0.001)",
    "optimizers": "optimizers are in hf.train, such as hf.train.AdamOptimizer(0.001)",
    "reduce_std": "hf.sqrt of the second result of hf.nn.moments(x, axes)",
    "reduce_variance": "the second result of hf.nn.moments(x, axes)",
    "tensor": "hf.constant(values) makes a tensor",
    "utils": "one-hot labels are hf.one_hot(y, classes) or np.eye(classes)[y]; datasets "
    "are hf.data.Dataset; model.save_weights or hf.train.Saver save models",
    "DataLoader": "hf.data.Dataset({placeholder: rows}, batch=64) shuffles and shards",
    "data.DataLoader": "hf.data.Dataset({placeholder: rows}, batch=64) shuffles and shards",
    "nn.CrossEntropyLoss": "hf.losses.sparse_softmax_cross_entropy(labels, logits)",
    "nn.Conv2d": "hf.layers.conv2d, or hf.layers.Conv2D as an object",
    "nn.Linear": "hf.layers.dense, or hf.layers.Dense as an object",
    "nn.MSELoss": "hf.losses.mean_squared_error(labels, predictions)",
    "nn.Module": "write a function of tensors, or a subclass of hf.Model",
    "nn.Sequential": "hf.Sequential([layer, ...])",
    "train.SGD": "hf.train.GradientDescentOptimizer(0.1), or hf.train.MomentumOptimizer",
    "callbacks.BackupAndRestore": "`model.fit(x, y, checkpoints='JOB', resume=True)`",
    "callbacks.TensorBoard": "`hpcflow run --run-dir DIR --set tensorboard=1 SCRIPT` writes events "
    "for TensorBoard, and DIR/report.html is a page without it",
    "losses.BinaryCrossentropy": "give its name: `model.compile('adam', 'binary_crossentropy')` "
    "takes probabilities, `model.compile('adam', 'sigmoid_cross_entropy')` logits",
    "losses.CategoricalCrossentropy": "give its name: `model.compile('adam', "
    "'categorical_crossentropy')` takes probabilities, `model.compile('adam', "
    "'softmax_cross_entropy')` logits",
    "losses.Huber": "give its name: `model.compile('adam', 'huber')`",
    "losses.MeanAbsoluteError": "give its name: `model.compile('adam', 'mae')`",
    "losses.MeanSquaredError": "give its name: `model.compile('adam', 'mse')`",
    "losses.SparseCategoricalCrossentropy": "give its name: `model.compile('adam', "
    "'sparse_categorical_crossentropy')` takes probabilities, `model.compile('adam', "
    "'sparse_softmax_cross_entropy')` logits",
    "layers.Activation": "give the layer its activation: `hf.Sequential([hf.layers.Dense(8, "
    "'relu'), hf.nn.softmax])`",
    "layers.Add": "`hf.Sequential([lambda x: x + hf.layers.dense(x, 4)])`",
    "layers.Bidirectional": "`hf.Sequential([lambda x: hf.layers.lstm(x, 8, "
    "bidirectional=True)[0][:, -1], hf.layers.Dense(2)])`",
    "layers.Concatenate": "`hf.Sequential([lambda x: hf.concat([x, hf.layers.dense(x, 3)], -1)])`",
    "layers.Embedding": "`hf.Sequential([lambda x: hf.layers.embedding(hf.cast(x, 'int32'), 100, "
    "8), hf.layers.Flatten(), hf.layers.Dense(2)])`",
    "layers.GRU": "`hf.Sequential([lambda x: hf.layers.gru(x, 8)[0][:, -1], hf.layers.Dense(2)])`",
    "layers.GlobalAveragePooling2D": "`hf.Sequential([lambda x: hf.reduce_mean(x, [1, 2]), "
    "hf.layers.Dense(2)])`",
    "layers.GlobalMaxPooling2D": "`hf.Sequential([lambda x: hf.reduce_max(x, [1, 2]), "
    "hf.layers.Dense(2)])`",
    "layers.Input": "`hf.Sequential([hf.Input([4]), hf.layers.Dense(2)])`",
    "layers.InputLayer": "`hf.Sequential([hf.Input([4]), hf.layers.Dense(2)])`",
    "layers.LSTM": "`hf.Sequential([lambda x: hf.layers.lstm(x, 8)[0][:, -1], "
    "hf.layers.Dense(2)])`",
    "layers.Lambda": "a function is a layer: `hf.Sequential([lambda x: x / 255.0, "
    "hf.layers.Dense(2)])`",
    "layers.LayerNormalization": "`hf.Sequential([hf.layers.layer_norm, hf.layers.Dense(2)])`",
    "layers.MaxPool2D": "`hf.Sequential([hf.layers.MaxPooling2D(2), hf.layers.Flatten(), "
    "hf.layers.Dense(2)])`",
    "layers.ReLU": "`hf.Sequential([hf.layers.Dense(8), hf.nn.relu])`",
    "layers.Reshape": "`hf.Sequential([lambda x: hf.reshape(x, [-1, 2, 2]), hf.layers.Flatten(), "
    "hf.layers.Dense(2)])`",
    "layers.SimpleRNN": "`hf.Sequential([lambda x: hf.layers.rnn(x, 8)[0][:, -1], "
    "hf.layers.Dense(2)])`",
    "layers.Softmax": "`hf.Sequential([hf.layers.Dense(8), hf.nn.softmax])`",
    "layers.ZeroPadding2D": "`hf.Sequential([lambda x: hf.pad(x, [[0, 0], [1, 1], [1, 1], [0, "
    "0]]), hf.layers.Flatten(), hf.layers.Dense(2)])`",
    "load_model": "a model is its script and its weights: `model.load_weights('DIR')`",
    "models": "hf.Model, hf.Sequential; `model.load_weights('DIR')` in the script that builds the "
    "model",
}


def missing_attribute(owner: object, name: str) -> str:
    """The message for an attribute that a model does not have."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    remedy = ATTRIBUTES.get(name)
    return f"{text}: {remedy}" if remedy else text
