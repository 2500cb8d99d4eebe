"""`hf.summary`: messages as TensorFlow 1 makes them, in files that TensorBoard reads."""

from __future__ import annotations

import io
import struct
import sys
import wave
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import DataError, GraphError, MissingPackageError, NumericError, ShapeError
from hpcflow.ops.metrics.summary_kernels import messages
from hpcflow.runtime.job.rank_context import RankContext
from tests.ops.sessions import graph, run  # noqa: F401
from tests.runtime.ranks import run_ranks

pytest.importorskip("tensorboardX")
summary = hf.summary


def parsed(message: Any, feeds: Any = None) -> Any:
    return list(hf.summary.Summary.FromString(run(message, feeds)).value)


def test_scalars_and_tags() -> None:
    """Tags as TensorFlow 1 gives them."""
    with hf.name_scope("layer"):
        first = summary.scalar("a loss", 2.5)
        grouped = summary.scalar("x", np.int64(7), family="f")
    again = summary.scalar("/layer/a_loss", hf.constant(1.0))
    assert [t.name for t in (first, again)] == ["layer/a_loss:0", "layer/a_loss_1:0"]
    assert hf.get_collection(hf.GraphKeys.SUMMARIES) == [first, grouped, again]
    (value,) = parsed(first)
    assert (value.tag, value.simple_value) == ("layer/a_loss", 2.5)
    (value,) = parsed(grouped)
    assert (value.tag, value.simple_value) == ("f/layer/f/x", 7)
    mine = summary.scalar("m", 1.0, collections=["mine"])
    assert hf.get_collection("mine") == [mine]
    for name in ("", "/", None):
        with pytest.raises(GraphError, match="not a valid name of a summary"):
            summary.scalar(name, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ShapeError):
        summary.scalar("v", [1.0, 2.0])


def test_histogram() -> None:
    """The buckets that TensorFlow 1.15 writes for these values."""
    (value,) = parsed(summary.histogram("h", np.array([1.0, 2, 2, -3, 0, 1e-13, 5.5])))
    h = value.histo
    assert (h.min, h.max, h.num) == (-3, 5.5, 7)
    np.testing.assert_allclose([h.sum, h.sum_squares], [7.5, 48.25])
    limits = [-3.1665833053880363, -2.8787120958073054, 0, 1e-12, 0.917246389039776]
    limits += [1.0089710279437536, 1.9661990955585713, 2.1628190051144287]
    limits += [5.0998140791604882, 5.6097954870765374, sys.float_info.max]
    np.testing.assert_allclose(h.bucket_limit, limits, rtol=1e-12)
    assert list(h.bucket) == [0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0]
    (value,) = parsed(summary.histogram("none", hf.zeros([0])))
    assert (value.histo.num, list(value.histo.bucket)) == (0, [0])
    with pytest.raises(NumericError, match="'bad'"):
        run(summary.histogram("bad", hf.constant([1.0, np.nan])))


def pixels(png: bytes) -> np.ndarray:
    """The rows of a PNG file, each after its filter byte."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        name, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        crc = struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0]
        assert crc == zlib.crc32(name + data)
        chunks[name] = data
        at += length + 12
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    colors = {0: 1, 2: 3, 6: 4}[kind]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert depth == 8 and not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, colors)


def test_images() -> None:
    """Scaled as TensorFlow 1 does: by the largest, or to both sides of 128."""
    rng = np.random.default_rng(0)
    x = rng.random((4, 3, 5, 3)).astype(np.float32)
    x[1] -= 0.5
    x[2, 0, 1, 2] = np.inf
    values = parsed(summary.image("i", x))
    assert [v.tag for v in values] == ["i/image/0", "i/image/1", "i/image/2"]
    assert (values[0].image.height, values[0].image.width, values[0].image.colorspace) == (3, 5, 3)
    good = np.isfinite(x[2]).all(2, keepdims=True)
    expected = [
        (x[0] * (255 / x[0].max())).astype(np.uint8),
        (x[1] * (127 / abs(x[1]).max()) + 128).astype(np.uint8),
        (np.where(good, x[2], 0) * (255 / x[2][good[..., 0]].max())).astype(np.uint8),
    ]
    expected[2][0, 1] = [255, 0, 0]
    for value, want in zip(values, expected, strict=True):
        found = pixels(value.image.encoded_image_string)
        assert abs(found.astype(int) - want).max() <= 1  # where rounding of the scale differs
    assert (pixels(values[2].image.encoded_image_string)[0, 1] == [255, 0, 0]).all()
    bytes_ = rng.integers(0, 256, (1, 2, 2, 4)).astype(np.uint8)
    (value,) = parsed(summary.image("b", bytes_, max_outputs=1))
    assert value.tag == "b/image"
    np.testing.assert_array_equal(pixels(value.image.encoded_image_string), bytes_[0])
    (value,) = parsed(summary.image("black", np.full((1, 1, 1, 1), 1e-8)))
    assert pixels(value.image.encoded_image_string) == [[[0]]]
    with pytest.raises(ShapeError, match="2 channels"):
        summary.image("c", np.zeros((1, 2, 2, 2)))


def test_audio() -> None:
    sounds = np.array([[[0.5, -0.5], [2.0, -2.0], [1.5 / 32768, -1.5 / 32768]]], np.float32)
    (value,) = parsed(summary.audio("a", sounds, 8000))
    a = value.audio
    assert (value.tag, a.sample_rate, a.num_channels, a.length_frames, a.content_type) == (
        "a/audio/0",
        8000.0,
        2,
        3,
        "audio/wav",
    )
    with wave.open(io.BytesIO(a.encoded_audio_string)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (8000, 2, 2)
        samples = np.frombuffer(file.readframes(3), "<i2").reshape(3, 2)
    np.testing.assert_array_equal(samples, [[16384, -16384], [32767, -32768], [2, -2]])


def test_text_and_tensors() -> None:
    (value,) = parsed(summary.text("t", hf.constant([["x"], ["y"]])))
    assert value.metadata.plugin_data.plugin_name == "text"
    assert list(value.tensor.string_val) == [b"x", b"y"]
    assert [d.size for d in value.tensor.tensor_shape.dim] == [2, 1]
    types = messages().types
    for dtype, name in [("f4", "FLOAT"), ("f8", "DOUBLE"), ("i8", "INT64"), ("u1", "UINT8")]:
        x = np.arange(6, dtype=dtype).reshape(2, 3)
        (value,) = parsed(summary.tensor_summary("x", x, display_name="shown"))
        assert value.metadata.display_name == "shown"
        assert value.tensor.dtype == getattr(types, f"DT_{name}")
        np.testing.assert_array_equal(np.frombuffer(value.tensor.tensor_content, dtype), x.flat)


def test_merged() -> None:
    assert summary.merge_all() is None
    x = hf.placeholder(hf.float32, [])
    with hf.name_scope("one"):
        a = summary.scalar("a", x)
    b = summary.scalar("b", x + 1)
    everything, some = summary.merge_all(), summary.merge_all(scope="one/")
    assert everything is not None and some is not None
    assert everything.op.name == "Merge/MergeSummary"
    told = [(v.tag, v.simple_value) for v in parsed(everything, {x: 2.0})]
    assert told == [("one/a", 2.0), ("b", 3.0)]
    assert [v.tag for v in parsed(some, {x: 2.0})] == ["one/a"]
    with pytest.raises(DataError, match="'b' occurs twice"):
        run(summary.merge([a, b, b]), {x: 1.0})
    for wrong in ([], 3, a):
        with pytest.raises(GraphError):
            summary.merge(wrong)  # type: ignore[arg-type]


def events(folder: Path) -> list[Any]:
    return [e for f in sorted(folder.iterdir()) for e in hf.train.summary_iterator(f)]


def test_a_file(tmp_path: Path) -> None:
    x = hf.placeholder(hf.float32, [None], name="x")
    text = summary.text("t", hf.constant("hello"))
    loss = summary.scalar("loss", hf.reduce_sum(x, name="total"))
    with hf.Session() as session:
        with summary.FileWriter(tmp_path / "log", session.graph, filename_suffix=".mine") as writer:
            assert writer.get_logdir() == str(tmp_path / "log")
            for step in (1, 2):
                writer.add_summary(session.run(loss, {x: [step, step]}), step)
                writer.add_summary(session.run(text), step)
            made = summary.Summary()
            made.value.add(tag="own", simple_value=3)
            writer.add_summary(made)
        writer.add_summary(made)  # closed: nothing
        (file,) = (tmp_path / "log").iterdir()
        assert ".out.tfevents." in file.name and file.name.endswith(".mine")
        first, told, *found = events(tmp_path / "log")
        writer.reopen()
        writer.add_summary(made, 9)
        writer.close()
    assert first.file_version == "brain.Event:2"
    nodes = {n.name: n for n in messages().graph.GraphDef.FromString(told.graph_def).node}
    assert (nodes["x"].op, nodes["total"].op) == ("Placeholder", "Sum")
    assert nodes["total"].input[0] == "x" and list(nodes["loss"].input) == ["total"]
    assert [d.size for d in nodes["x"].attr["_output_shapes"].list.shape[0].dim] == [-1]
    values = [(e.step, e.summary.value[0]) for e in found]
    assert [(s, v.tag) for s, v in values] == [
        (1, "loss"),
        (1, "t"),
        (2, "loss"),
        (2, "t"),
        (0, "own"),
    ]
    assert [v.simple_value for _, v in values] == [2, 0, 4, 0, 3]
    assert [v.HasField("metadata") for _, v in values] == [False, True, False, False, False]
    assert len(list((tmp_path / "log").iterdir())) == 2
    assert events(tmp_path / "log")[-1].step == 9


def test_events_come_in_time(tmp_path: Path) -> None:
    made = summary.Summary()
    writer = summary.FileWriter(tmp_path, max_queue=3)
    for n in range(3):
        assert len(events(tmp_path)) <= 1
        writer.add_summary(made, n)
    assert len(events(tmp_path)) == 4
    writer.add_summary(made, 4)
    writer.flush()
    assert len(events(tmp_path)) == 5
    writer.close()


def test_one_writer_a_folder(tmp_path: Path) -> None:
    cache = summary.FileWriterCache
    first = cache.get(tmp_path)
    assert cache.get(str(tmp_path)) is first
    cache.clear()
    assert cache.get(tmp_path) is not first
    cache.clear()


def test_what_is_no_summary(tmp_path: Path) -> None:
    with summary.FileWriter(tmp_path) as writer:
        for bad in (3.0, b"\xff\xff\xff", np.zeros(3)):
            with pytest.raises(DataError):
                writer.add_summary(bad)
        with pytest.raises(GraphError):
            writer.add_graph("graph")  # type: ignore[arg-type]
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    for cut in (5, 20):
        file.write_bytes(data[:cut])
        with pytest.raises(DataError, match="cut off inside"):
            list(hf.train.summary_iterator(file))
    with pytest.raises(DataError, match="cannot be read"):
        list(hf.train.summary_iterator(tmp_path / "none"))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    messages.cache_clear()
    for name in [n for n in sys.modules if n.startswith("tensorboardX")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingPackageError, match="tensorboardX"):
        run(summary.scalar("a", 1.0))
    with pytest.raises(MissingPackageError, match=r"hpcflow-mpi\[tensorboard\]"):
        summary.FileWriter(tmp_path)


@pytest.mark.parametrize("ranks, ps", [(1, 0), (3, 0), (3, 1)])
def test_the_chief_alone_writes(ranks: int, ps: int, tmp_path: Path) -> None:
    def body(context: RankContext) -> bool:
        loss = summary.scalar("rank", hf.constant(float(context.rank == 0)))
        with hf.Session() as session, summary.FileWriter(tmp_path, session.graph) as writer:
            writer.add_summary(session.run(loss), 5)
        return context.is_chief

    chiefs = run_ranks(ranks, body, ps=ps)
    assert sum(chiefs) == 1
    version, told, last = events(tmp_path)
    assert last.step == 5 and told.graph_def and version.file_version
