"""Sources of TensorFlow 1's datasets: arrays, tensors, generators, text files."""

from __future__ import annotations

import glob
import io
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from hpcflow.data.dataset_counts import ElementCount
from hpcflow.data.dataset_functions import (
    CapturedValues,
    Element,
    TensorComponent,
    leaves_of,
    map_components,
    pack_components,
    tensors_of,
    values_by_component,
)
from hpcflow.data.dataset_interleave import interleave_iterators
from hpcflow.data.tf_data import Pipeline
from hpcflow.errors import DataError, DTypeError, GraphError, ShapeError
from hpcflow.graph import nested_structure
from hpcflow.graph.dtypes import as_array, as_dtype, int64, string
from hpcflow.graph.graph import Tensor
from hpcflow.graph.static_shape import Shape, as_shape, merge_shapes, shape_text


def from_tensors(tensors: Any) -> Pipeline:
    """A dataset of one element, `tensors`."""
    return _array_dataset(tensors, lambda arrays: [tuple(arrays)], lambda shape: shape, "tensors")


def from_tensor_slices(tensors: Any) -> Pipeline:
    """A dataset of the rows of `tensors`: a tensor, tuple or dict with equal numbers of rows."""

    def rows(arrays: Sequence[np.ndarray]) -> Iterable[Element]:
        counts = {len(a) for a in arrays}
        if len(counts) > 1:
            raise ShapeError(f"from_tensor_slices: the numbers of rows {sorted(counts)} differ")
        return (tuple(a[i, ...] for a in arrays) for i in range(counts.pop() if counts else 0))

    def row(shape: Shape) -> Shape:
        if shape == ():
            raise ShapeError("from_tensor_slices takes tensors with rows, not a scalar")
        return None if shape is None else shape[1:]

    dataset = _array_dataset(tensors, rows, row, "slices")
    _check_rows(nested_structure.flatten_structure(_as_structure(tensors)))
    return dataset


def _check_rows(values: Sequence[Any]) -> None:
    rows: Shape = (None,)
    for value in values:
        if value.shape:
            rows = merge_shapes(rows, value.shape[:1])


def _array_dataset(
    tensors: Any,
    elements: Callable[[Sequence[np.ndarray]], Iterable[Element]],
    shape_of: Callable[[Shape], Shape],
    kind: str,
) -> Pipeline:
    """A dataset of arrays and of graph tensors, which are evaluated when an iterator starts."""
    nested = _as_structure(tensors)
    values = nested_structure.flatten_structure(nested)
    structure = pack_components(
        nested, [TensorComponent(v.dtype, shape_of(v.shape)) for v in values]
    )

    def begin(feeds: CapturedValues) -> Iterator[Element]:
        return iter(elements([feeds[v] if isinstance(v, Tensor) else v for v in values]))

    return Pipeline(structure, begin, [v for v in values if isinstance(v, Tensor)], kind)


def _as_structure(tensors: Any) -> Any:
    """`tensors` as a structure of arrays and tensors."""
    return map_components(_as_array_or_tensor, tensors)


def _as_array_or_tensor(value: Any) -> Any:
    if isinstance(value, Tensor) or hasattr(value, "as_tensor"):
        return tensors_of(value)
    return as_array(value)


def range_(*args: Any) -> Pipeline:
    """The numbers of Python's `range(*args)` as int64 scalars; `args` may be tensors."""
    bounds = [ElementCount("range", a, -(2**63)) for a in args]
    if not 1 <= len(bounds) <= 3 or (len(bounds) == 3 and bounds[2].static_value == 0):
        raise ShapeError(
            f"Dataset.range{args} is not a valid range",
            hint="give (stop), (start, stop) or a step that is not 0",
        )

    def begin(feeds: CapturedValues) -> Iterator[Element]:
        numbers = range(*(bound.evaluate(feeds) for bound in bounds))
        return ((np.asarray(n, int64),) for n in numbers)

    return Pipeline(
        TensorComponent(int64, ()), begin, [t for b in bounds for t in b.needs], "range"
    )


def zip_(datasets: Any) -> Pipeline:
    """Elements of several datasets as one structure; ends with the shortest dataset."""
    parts: list[Pipeline] = nested_structure.flatten_structure(datasets)
    if not parts or not all(isinstance(part, Pipeline) for part in parts):
        raise GraphError("Dataset.zip() needs datasets, as a tuple or dict of them")

    def begin(feeds: CapturedValues) -> Iterator[Element]:
        together = zip(*(part.begin(feeds) for part in parts), strict=False)
        return (tuple(chain(*elements)) for elements in together)

    structure = nested_structure.map_structure(lambda part: part.structure, datasets)
    return Pipeline(structure, begin, [t for part in parts for t in part.needs], "zip")


def from_generator(
    generator: Callable[..., Iterable[Any]],
    output_types: Any,
    output_shapes: Any = None,
    args: Sequence[Any] = (),
) -> Pipeline:
    """The items of `generator(*args)`, with the structure of `output_types`.

    Each iteration calls the generator again. `args` may be tensors; the generator gets arrays and
    NumPy scalars.
    Errors: DataError at run time, for an element of another structure or shape.
    """
    if not callable(generator):
        raise GraphError(f"from_generator needs a function, not {generator!r}")
    types = nested_structure.map_structure(as_dtype, output_types)
    shapes = (
        [None] * len(nested_structure.flatten_structure(types))
        if output_shapes is None
        else values_by_component(types, output_shapes)
    )
    leaves = [
        TensorComponent(t, as_shape(s))
        for t, s in zip(nested_structure.flatten_structure(types), shapes, strict=True)
    ]

    arguments = [_as_structure(a) for a in args or ()]

    def begin(feeds: CapturedValues) -> Iterator[Element]:
        values = [(feeds[a] if isinstance(a, Tensor) else a)[()] for a in arguments]
        return (_fit_to_types(item, types, leaves) for item in generator(*values))

    needs = [a for a in arguments if isinstance(a, Tensor)]
    return Pipeline(pack_components(types, leaves), begin, needs, "generator")


def list_files(file_pattern: Any, shuffle: bool | None = None, seed: int | None = None) -> Pipeline:
    """The names of the files that match a pattern, or any of a vector of patterns: string scalars.

    The order is random and differs between iterations; with `shuffle=False` it is sorted.
    Errors: DataError at run time, if no file matches.
    """
    patterns = _array_dataset(file_pattern, lambda arrays: [tuple(arrays)], lambda shape: shape, "")
    if [leaf.dtype for leaf in leaves_of(patterns.structure)] != [string]:
        raise DTypeError("list_files() needs one or more file name patterns")

    def change(elements: Iterator[Element]) -> Iterator[Element]:
        for (array,) in elements:
            globs = array.reshape(-1).tolist()
            names = sorted({name for pattern in globs for name in glob.glob(pattern)})
            if not names:
                pattern_text = ", ".join(repr(p.decode(errors="replace")) for p in globs)
                raise DataError(f"no file matches {pattern_text}", hint="check the path")
            yield from ((np.array(name, object),) for name in names)

    dataset = patterns.then("files", change, TensorComponent(string, ()))
    return dataset if shuffle is False else dataset.shuffle(sys.maxsize, seed)


def _fit_to_types(item: Any, types: Any, leaves: Sequence[TensorComponent]) -> Element:
    """An item of a generator as arrays with the promised dtypes and shapes."""
    values = [item] if not isinstance(types, (tuple, dict)) else _in_structure(item, types)
    arrays = []
    for value, leaf in zip(values, leaves, strict=True):
        array = as_array(value, leaf.dtype)
        try:
            merge_shapes(array.shape, leaf.shape)
        except ShapeError:
            raise DataError(
                f"the generator of a dataset returned shape {list(array.shape)}; "
                f"output_shapes says {shape_text(leaf.shape)}"
            ) from None
        arrays.append(array)
    return tuple(arrays)


def _in_structure(item: Any, types: Any) -> list[Any]:
    """The components of an item; a list of numbers may represent a leaf."""
    if isinstance(types, dict) and isinstance(item, dict) and set(types) == set(item):
        pairs = [(item[key], types[key]) for key in sorted(types)]
    elif isinstance(types, tuple) and isinstance(item, (tuple, list)) and len(item) == len(types):
        pairs = list(zip(item, types, strict=True))
    else:
        raise DataError(f"the generator of a dataset returned {item!r}; output_types says {types}")
    return [x for value, t in pairs for x in ([value] if _is_leaf(t) else _in_structure(value, t))]


def _is_leaf(node: Any) -> bool:
    return not isinstance(node, (tuple, dict))


def text_lines(
    filenames: Any,
    compression_type: str | None = None,
    buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
) -> Pipeline:
    """The lines of text files, without line ends, file after file: string scalars.

    `compression_type` is "GZIP", "ZLIB" or "". With `num_parallel_reads`, the lines of so many
    files are interleaved. `buffer_size` has no effect.
    Errors: DataError at run time, for a file that cannot be read.
    """
    kind = compression_type or ""
    if kind not in ("", "GZIP", "ZLIB"):
        raise GraphError(
            f"TextLineDataset does not know compression_type={kind!r}",
            hint='give "GZIP", "ZLIB" or ""',
        )
    names = _array_dataset(filenames, lambda arrays: [tuple(arrays)], lambda shape: shape, "files")
    if [leaf.dtype for leaf in leaves_of(names.structure)] != [string]:
        raise DTypeError("TextLineDataset needs the names of files")

    def change(elements: Iterator[Element]) -> Iterator[Element]:
        names = (name for (array,) in elements for name in array.reshape(-1).tolist())
        return interleave_iterators(
            names, lambda name: _lines(name, kind), num_parallel_reads or 1, 1
        )

    return names.then("lines", change, TensorComponent(string, ()))


def _lines(name: bytes, kind: str) -> Iterator[Element]:
    try:
        with _open_file(name, kind) as file:
            for line in file:
                text = line.removesuffix(b"\n").replace(b"\r", b"")
                yield (np.array(text, object),)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{name.decode()!r} cannot be read: {reason}") from None


def _open_file(name: bytes, kind: str) -> Any:
    """A file, open for reading its decompressed bytes."""
    if kind == "GZIP":
        import gzip

        return gzip.open(name, "rb")
    if kind == "ZLIB":
        with open(name, "rb") as file:
            return io.BytesIO(zlib.decompress(file.read()))
    return open(name, "rb")
