"""Summary kernels: encode `Summary` messages with the classes of the package tensorboardX."""

from __future__ import annotations

import functools
import importlib
import io
import struct
import wave
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from hpcflow.errors import DataError, MissingPackageError, NumericError
from hpcflow.kernels.kernel_registry import KernelNode, kernel
from hpcflow.platform.install_hints import install_hint

LARGEST = float(np.finfo(np.float64).max)
TINY = 1e-6  # an image with a smaller maximum is black
BAD = (255, 0, 0, 255)  # color of a pixel that is not finite
FULL_SCALE = 1 << 15  # of 16-bit samples
TYPES = {"f2": "HALF", "f4": "FLOAT", "f8": "DOUBLE", "b1": "BOOL"}


@functools.cache
def messages() -> Any:
    """The message modules of tensorboardX and their `DecodeError`.

    Errors: MissingPackageError without tensorboardX.
    """
    try:
        names = ("summary", "event", "graph", "attr_value", "types")
        modules = {n: importlib.import_module(f"tensorboardX.proto.{n}_pb2") for n in names}
        error = importlib.import_module("google.protobuf.message").DecodeError
        return SimpleNamespace(**modules, DecodeError=error)
    except ImportError:
        raise MissingPackageError(
            "summaries need the package tensorboardX",
            hint=f"{install_hint('tensorboard')}, or leave the summaries out",
        ) from None


def _summary(type: str, add: Callable[[KernelNode, Any, Any], Callable[..., None]]) -> None:
    """The kernel of an op: `add(node, Summary, tag)` returns the function that fills a message."""

    @kernel(type, "out", on="cpu")
    def make(xp: Any, node: KernelNode) -> Callable[..., Any]:
        message_type = messages().summary.Summary
        fill = add(node, message_type, node.attrs.get("tag"))

        def run(*args: Any) -> None:
            message = message_type()
            fill(message, *args[:-1])
            args[-1][()] = message.SerializeToString()

        return run


def _scalar(node: KernelNode, message_type: Any, tag: str) -> Callable[..., None]:
    def fill(message: Any, x: Any) -> None:
        message.value.add(tag=tag, simple_value=float(x))

    return fill


# -- histograms


@functools.cache
def _limits() -> np.ndarray:
    """The bucket limits: each 1.1 times the previous one, for both signs."""
    above, limit = [], 1e-12
    while limit < 1e20:
        above.append(limit)
        limit *= 1.1
    above.append(LARGEST)
    return np.array([*(-v for v in reversed(above)), 0.0, *above])


def _histogram(node: KernelNode, message_type: Any, tag: str) -> Callable[..., None]:
    def fill(message: Any, x: Any) -> None:
        values = np.asarray(x, np.float64).reshape(-1)
        if not np.isfinite(values).all():
            raise NumericError(f"summary.histogram {tag!r}: a value is NaN or infinite")
        limits = _limits()
        places = np.searchsorted(limits, values, "right")
        counts = np.bincount(np.minimum(places, limits.size - 1), minlength=limits.size)
        ends, bucket_counts = _without_runs_of_none(limits, counts)
        histo = message.value.add(tag=tag).histo
        histo.min = values.min(initial=LARGEST)
        histo.max = values.max(initial=-LARGEST)
        histo.num, histo.sum = values.size, values.sum()
        histo.sum_squares = np.square(values).sum()
        histo.bucket_limit.extend(ends)
        histo.bucket.extend(bucket_counts)

    return fill


def _without_runs_of_none(limits: np.ndarray, counts: np.ndarray) -> tuple[list, list]:
    """The buckets, with runs of empty ones merged into their last."""
    last = np.append(counts[1:] > 0, True)
    mask = (counts > 0) | last
    return limits[mask].tolist(), counts[mask].astype(float).tolist()


# -- images


def _image(node: KernelNode, message_type: Any, tag: str) -> Callable[..., None]:
    most = node.attrs["most"]

    def fill(message: Any, images: Any) -> None:
        for i, pixels in enumerate(images[:most]):
            height, width, colors = pixels.shape
            value = message.value.add(tag=f"{tag}/image/{i}" if most > 1 else f"{tag}/image")
            value.image.height, value.image.width, value.image.colorspace = height, width, colors
            value.image.encoded_image_string = png(_as_bytes(pixels))

    return fill


def _as_bytes(pixels: Any) -> np.ndarray:
    if pixels.dtype == np.uint8:
        return pixels
    pixels = np.asarray(pixels, np.promote_types(pixels.dtype, np.float32))
    good = np.isfinite(pixels).all(axis=2)
    low, high = pixels[good].min(initial=0), pixels[good].max(initial=0)
    offset, full, largest = (128.0, 127.0, max(-low, high)) if low < 0 else (0.0, 255.0, high)
    scale = 0.0 if largest < TINY else full / largest
    image_bytes = np.empty(pixels.shape, np.uint8)
    image_bytes[good] = (pixels[good] * pixels.dtype.type(scale) + offset).astype(np.uint8)
    image_bytes[~good] = BAD[: pixels.shape[2]]
    return image_bytes


def png(pixels: np.ndarray) -> bytes:
    """An array [height, width, 1, 3 or 4] of bytes as a PNG file."""
    height, width, colors = pixels.shape
    kind = {1: 0, 3: 2, 4: 6}[colors]
    rows = np.zeros((height, 1 + width * colors), np.uint8)  # each begins with filter byte 0
    rows[:, 1:] = pixels.reshape(height, -1)

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    body = (
        chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows.tobytes())) + chunk(b"IEND", b"")
    )
    return b"\x89PNG\r\n\x1a\n" + body


# -- audio


def _audio(node: KernelNode, message_type: Any, tag: str) -> Callable[..., None]:
    most = node.attrs["most"]

    def fill(message: Any, sounds: Any, rate: Any) -> None:
        for i, samples in enumerate(sounds[:most]):
            samples = samples if samples.ndim == 2 else samples[:, None]
            value = message.value.add(tag=f"{tag}/audio/{i}" if most > 1 else f"{tag}/audio")
            value.audio.sample_rate, value.audio.content_type = float(rate), "audio/wav"
            value.audio.length_frames, value.audio.num_channels = samples.shape
            value.audio.encoded_audio_string = wav(samples, float(rate))

    return fill


def wav(samples: np.ndarray, rate: float) -> bytes:
    """Samples [frames, channels] in [-1, 1] as a 16-bit WAV file."""
    scaled = np.asarray(samples, np.float32) * FULL_SCALE
    scaled = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))  # rounds halves away from 0
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(samples.shape[1])
        out.setsampwidth(2)
        out.setframerate(int(rate))
        out.writeframes(np.clip(scaled, -FULL_SCALE, FULL_SCALE - 1).astype("<i2").tobytes())
    return file.getvalue()


# -- tensors, and merged messages


def _tensor(node: KernelNode, message_type: Any, tag: str) -> Callable[..., None]:
    attrs = node.attrs

    def fill(message: Any, x: Any) -> None:
        value = message.value.add(tag=tag)
        if attrs.get("plugin"):
            value.metadata.plugin_data.plugin_name = attrs["plugin"]
        else:
            value.metadata.ParseFromString(attrs["metadata"])
        if attrs.get("display"):
            value.metadata.display_name = attrs["display"]
        tensor_message(np.asarray(x), value.tensor)

    return fill


def tensor_message(array: np.ndarray, into: Any) -> None:
    """Write an array into a `TensorProto`."""
    array = array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16
    kind = array.dtype.str[1:]
    if array.dtype.kind == "O":
        into.dtype = messages().types.DT_STRING
        into.string_val.extend(array.reshape(-1).tolist())
    else:
        word = TYPES.get(kind, f"{'U' if kind[0] == 'u' else ''}INT{8 * array.itemsize}")
        into.dtype = getattr(messages().types, f"DT_{word}")
        into.tensor_content = np.ascontiguousarray(array).tobytes()
    for size in array.shape:
        into.tensor_shape.dim.add(size=size)


def _merge(node: KernelNode, message_type: Any, tag: Any) -> Callable[..., None]:
    def fill(message: Any, *serialized: Any) -> None:
        for data in serialized:
            for text in data.reshape(-1).tolist():
                message.MergeFromString(text)
        tags = [value.tag for value in message.value]
        if len(set(tags)) < len(tags):
            twice = next(t for t in tags if tags.count(t) > 1)
            raise DataError(f"summary.merge: the tag {twice!r} occurs twice")

    return fill


_summary("ScalarSummary", _scalar)
_summary("HistogramSummary", _histogram)
_summary("ImageSummary", _image)
_summary("AudioSummary", _audio)
_summary("TensorSummary", _tensor)
_summary("MergeSummary", _merge)
