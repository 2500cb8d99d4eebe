"""Graph of a model: inputs, outputs, variables, training graph, and the session that runs it.

The first call that runs the model opens a training session, which stays open.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Graph, Tensor, get_default_graph
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.graph.static_shape import size_of
from hpcflow.model.callbacks import History
from hpcflow.model.fit_loop import join_workers
from hpcflow.model.loss_names import LabelsSpec
from hpcflow.model.training_ends import Ends, ancestors, ends_of, in_training, of_two_calls
from hpcflow.model.training_graph import (
    Compiled,
    TrainingGraph,
    compiled,
    training_graph,
)
from hpcflow.ops.array.array_ops import placeholder
from hpcflow.ops.nn.layer_objects import Layer
from hpcflow.ops.nn.training_calls import accepts_training, training_phase
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.ops.variables.variable_scope import AUTO_REUSE, variable_scope
from hpcflow.platform.lazy_imports import LazyMethod
from hpcflow.runtime.job.job_membership import current_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.train.saver import Saver
from hpcflow.train.training_session import TrainingSession

_graphs: weakref.WeakKeyDictionary[Any, Graph] = weakref.WeakKeyDictionary()  # of optimizers
# the numbers of models of each name, of each rank
_counts: weakref.WeakKeyDictionary[RankContext, collections.Counter[str]] = (
    weakref.WeakKeyDictionary()
)


def Input(shape: Sequence[int | None], dtype: Any = float32, name: str | None = None) -> Tensor:
    """A placeholder of samples of `shape`: [None, *shape].

    Where the default graph is finished it has a graph of its own, for a `Sequential`.

    Errors: ShapeError for a shape that is no sequence.
    """
    if isinstance(shape, (int, np.integer)):
        raise ShapeError(
            f"shape={shape} is no shape of a sample", hint=f"write hf.Input(({shape},))"
        )
    graph = get_default_graph()
    with (Graph(graph.seed) if graph.finalized else graph).as_default():
        return placeholder(dtype, [None, *shape], name)


def _input_of(given: Any) -> Tensor:
    """An input of a model. Errors: GraphError."""
    if not isinstance(given, Tensor):
        raise GraphError(
            f"an input of a model is a tensor, not a {type(given).__name__}",
            hint="write x = hf.Input(shape), outputs of it, and hf.Model(x, outputs); arrays are "
            "for fit and predict",
        )
    return given


class ModelGraph:
    """The graph of a model, built and compiled; `Model` adds data, training and evaluation."""

    _repr_html_ = LazyMethod("hpcflow.report.model_html", "model_html")

    def __init__(
        self,
        inputs: Tensor | Sequence[Tensor] | None = None,
        outputs: Tensor | None = None,
        *,
        call: Callable[..., Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or _numbered(type(self).__name__.lower())
        self._inputs: list[Tensor] = []
        self.outputs: Tensor | None = None
        self.stop_training = False
        self.history: History | None = None
        self._fits = 0
        self._options: dict[str, Any] = {}
        self._call = call or getattr(self, "call", None)
        self._calls: tuple[Ends, Ends] | None = None  # after calls for inference, for training
        self._compiled: Compiled | None = None
        self._training: TrainingGraph | None = None
        self._session: TrainingSession | None = None
        self._names: frozenset[str] | None = None  # of the variables without the optimizer's
        self._savers: dict[str, Saver] = {}
        self._given: tuple[Any, Sequence[int | None]] | None = None  # dtype and shape of a sample
        if inputs is not None and outputs is not None:
            if not isinstance(outputs, Tensor):
                raise GraphError(
                    f"a model has one output, not {type(outputs).__name__}",
                    hint="join the outputs, for example by hf.concat",
                )
            inputs = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
            given = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            self._inputs = [_input_of(one) for one in given]
            self.outputs = outputs
            self.graph: Graph = outputs.graph
        elif self._call is None:
            raise GraphError(
                "a model needs inputs and outputs, or call",
                hint="hf.Model(x, y), hf.Model(call=function), or a subclass with a method `call`",
            )
        else:
            self.graph = Graph(get_default_graph().seed)

    # -- properties

    @property
    def is_chief(self) -> bool:
        """True on the one rank that prints and writes."""
        return current_context().is_chief

    @property
    def session(self) -> TrainingSession:
        """The training session; opened by the first use."""
        return self._opened()

    @property
    def inputs(self) -> list[Tensor]:
        """The placeholders of the samples; empty before the first data of a model of `call`."""
        if self._given is not None:
            self._outputs()
        return self._inputs

    @property
    def labels(self) -> Tensor:
        """The placeholder of the labels, for a `hf.data.Dataset` of one's own."""
        return self._built().labels

    @property
    def sample_weight(self) -> Tensor:
        """The placeholder of the samples' weights."""
        return self._built().weights

    @property
    def weights(self) -> list[Variable]:
        """Its variables, without those of the optimizer, in order of creation."""
        self._name_variables()
        assert self._names is not None
        return [v for v in self._global_variables() if v.name in self._names]

    @property
    def trainable_weights(self) -> list[Variable]:
        """Those that the optimizer changes."""
        return [v for v in self.weights if v.trainable]

    @property
    def learning_rate(self) -> float:
        """The optimizer's learning rate; can be set between steps, on every rank alike."""
        return float(self._opened().run(self._rate()))

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._load([(self._rate(), np.float32(rate))])

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            from hpcflow.platform.other_frameworks import missing_attribute

            raise AttributeError(missing_attribute(self, name))

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "trainable":  # which Keras has: without effect here
                self.__getattr__(name)
            super().__setattr__(name, value)

    def _rate(self) -> Variable:
        rate = self._built().rate
        if rate is None:
            raise GraphError(
                "the learning rate of this optimizer is not a number that can be changed",
                hint="give the optimizer a number as its rate",
            )
        return rate

    def say(self, text: str) -> None:
        """Print a line, on the chief."""
        if self.is_chief:
            print(text, flush=True)

    # -- building

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
    ) -> None:
        """Choose how the model is trained; before the first call that uses it.

        `optimizer` is a name ("adam", "sgd" ..., with Keras's rates) or one of `hf.train`. `loss`
        is a name ("mse", "sparse_categorical_crossentropy" ...), a function of `hf.losses`, or a
        function of (labels, outputs) that returns a value for each sample. `metrics` is a list of
        names ("accuracy", "auc", "precision", "recall", "f1", "mae" ...), of functions of
        (labels, outputs), such as those of `hf.metrics`, or a dict of them.

        Errors: GraphError for an unknown name.
        """
        if self._training is not None:
            raise GraphError(
                "the model was compiled and used before", hint="make a new model to train it anew"
            )
        given = compiled(optimizer, loss, metrics)
        if _graphs.setdefault(given.optimizer, self.graph) is not self.graph:
            raise GraphError(
                f"this {type(given.optimizer).__name__} trains another model, of another graph",
                hint="make an optimizer for each model, or name it: optimizer='adam'",
            )
        self._compiled = given

    def build(self, *shapes: Sequence[int | None], dtype: Any = float32) -> None:
        """Create inputs of these shapes, [samples, ...], and the variables of a model of `call`."""
        if self.outputs is None:
            self._build([(dtype, tuple(shape)[1:]) for shape in shapes])

    def _build(self, specs: Sequence[tuple[Any, Sequence[int | None]]]) -> None:
        """Create the inputs, and call the model for inference and for training."""
        assert self._call is not None
        with self.graph.as_default():
            self._inputs = [
                placeholder(dtype, [None, *shape], f"input_{i}" if i else "input")
                for i, (dtype, shape) in enumerate(specs)
            ]
            try:
                self.outputs = self._output(False)
            except Exception:
                self._inputs = []  # other data may fit
                raise
            before = self._count()
            if accepts_training(self._call):
                first = ends_of(self.outputs)
                self._calls = first, ends_of(self._output(True))
        if self._count() != before:
            raise GraphError(
                f"call() of {self.name!r} makes new variables each time it is called",
                hint="use hf.get_variable or layers; hf.Variable(...) belongs into __init__",
            )

    def _count(self) -> int:
        return len(self._global_variables())

    def _output(self, training: bool) -> Tensor:
        assert self._call is not None
        self._check_layers()
        with variable_scope(self.name, reuse=AUTO_REUSE):
            if accepts_training(self._call):
                with training_phase(training):
                    result = self._call(*self._inputs, training=training)
            else:
                result = self._call(*self._inputs)
        if not isinstance(result, Tensor):
            raise GraphError(
                f"call() of {self.name!r} returned {type(result).__name__}, not a tensor",
                hint="return the model's one output",
            )
        return result

    def _check_layers(self) -> None:
        """Errors: GraphError for a layer that has variables in the graph of another model."""
        held = [*vars(self).values(), *getattr(self, "layers", ())]
        for layer in held:
            if isinstance(layer, Layer) and layer.weights and layer.graph is not self.graph:
                raise GraphError(
                    f"the layer {layer.name!r} has variables in the graph of another model",
                    hint="make a layer for each model; set_weights(other.get_weights()) copies "
                    "values",
                )

    def _built(
        self, labels: LabelsSpec | None = None, weight_shape: Sequence[int | None] = ()
    ) -> TrainingGraph:
        """The training graph; created by the first use, for the given labels if there are any.

        `weight_shape` is that of a sample's weights.
        """
        if self._training is None:
            if self._compiled is None:
                raise GraphError(
                    f"{self.name!r} is not compiled", hint="model.compile(optimizer, loss) first"
                )
            if self._session is not None:
                raise GraphError(
                    f"{self.name!r} was used before it was compiled",
                    hint="call compile() before predict(), set_weights() and load_weights()",
                )
            with self.graph.as_default():
                trained, inferred = self._ends()
                self._name_variables(trained.output)
                self._training = training_graph(
                    *(self._compiled, trained, inferred, self.weights, self.name),
                    *(labels, weight_shape),
                )
        return self._training

    def _ends(self) -> tuple[Ends, Ends]:
        """What is computed in training and otherwise, of the entries that need its variables."""
        self._name_variables()
        output, own = self._outputs(), {v.op for v in self.weights}
        now = ends_of(output)
        if self._calls is not None:
            trained, inferred = of_two_calls(*self._calls, self._inputs, now)
            return trained.with_variables(own), inferred.with_variables(own)
        inferred = now.with_variables(own)
        return in_training(inferred, self._inputs, self.name), inferred

    def _name_variables(self, *others: Tensor) -> None:
        """Remember which variables the outputs need: not the optimizer's, nor other models'.

        Those that `others` need are added.
        """
        if self._names is None or others:
            trained = [] if self._calls is None else [self._calls[1].output]
            needed = ancestors([self._outputs(), *trained, *others])
            variables = self._global_variables()
            self._names = frozenset(v.name for v in variables if v.op in needed)

    def _global_variables(self) -> list[Variable]:
        variables: list[Variable] = self.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
        return variables

    def _outputs(self) -> Tensor:
        if self.outputs is None and self._given is not None:
            self._build([self._given])
        if self.outputs is None:
            raise GraphError(
                f"the inputs of {self.name!r} are not known yet",
                hint="call fit() with data, or build(shape)",
            )
        return self.outputs

    def _opened(self, **options: Any) -> TrainingSession:
        """The session; opened by the first use."""
        if self._session is None:
            self._outputs()
            if self._compiled is not None:
                self._built()
            with self.graph.as_default():
                self._session = TrainingSession(self.graph, **options)
            self._options = options
        elif any(options.values()) and options != self._options:
            raise GraphError(
                "checkpoints are chosen by the first call that runs the model",
                hint="give fit(checkpoints=DIR) before evaluate() and predict()",
            )
        return self._session

    def _load(self, pairs: Sequence[tuple[Variable, Any]]) -> None:
        """Set variables, while all ranks wait: the chief those on servers, each rank its own."""
        session, done = self._opened(), np.zeros(1, np.int64)
        join_workers(session, done, "sum", "new values of variables")
        if session.context.cluster.mode != "ps" or session.is_chief:
            for variable, value in pairs:
                variable.load(value, session)
        join_workers(session, done, "sum", "new values of variables")

    def summary(self, print_fn: Callable[[str], object] | None = None) -> None:
        """Print the variables with shapes and numbers of values, on the chief.

        `print_fn` is called with each line instead.
        """
        rows = [(v.name, list(v.shape or ()), size_of(v.shape or ())) for v in self.weights]
        width = max([len(name) for name, _, _ in rows], default=0) + 2
        lines = [f"model {self.name!r}"]
        lines += [f"  {name:{width}}{shape!s:20}{count:>14,}" for name, shape, count in rows]
        trained = sum(size_of(v.shape or ()) for v in self.trainable_weights)
        total = sum(count for _, _, count in rows)
        lines.append(f"values: {total:,}, of which {trained:,} are trained")
        for line in lines if self.is_chief else ():
            (print_fn or self.say)(line)

    def close(self) -> None:
        """Release the session; further calls open a new one, with new weights."""
        if self._session is not None:
            self._session.close()
            self._session = None


def _numbered(name: str) -> str:
    """A name that no other model of this rank has: servers keep variables by their names."""
    counts = _counts.setdefault(current_context(), collections.Counter())
    counts[name] += 1
    return name if counts[name] == 1 else f"{name}_{counts[name] - 1}"
