"""RunMetadata: a traced run, encoded as TensorFlow's protocol buffer message.

tensorboardX lacks this message. The encoding needs integers, strings and nested messages.
"""

from __future__ import annotations

from hpcflow.runtime.session.config_proto import NodeExecStats, RunMetadata

_NODE = {  # fields of NodeExecStats and their numbers
    "node_name": 1,
    "all_start_micros": 2,
    "op_start_rel_micros": 3,
    "op_end_rel_micros": 4,
    "all_end_rel_micros": 5,
    "timeline_label": 8,
    "scheduled_micros": 9,
    "thread_id": 10,
    "all_start_nanos": 13,
    "op_start_rel_nanos": 14,
    "op_end_rel_nanos": 15,
    "all_end_rel_nanos": 16,
    "scheduled_nanos": 17,
}


def as_bytes(metadata: RunMetadata) -> bytes:
    """The encoded message."""
    devices = []
    for device_stats in metadata.step_stats.dev_stats:
        nodes = [_field(2, _node(stats)) for stats in device_stats.node_stats]
        devices.append(_field(1, _field(1, device_stats.device.encode()) + b"".join(nodes)))
    return _field(1, b"".join(devices))


def _node(stats: NodeExecStats) -> bytes:
    return b"".join(_field(number, getattr(stats, name)) for name, number in _NODE.items())


def _field(number: int, value: int | str | bytes) -> bytes:
    """A field of a message: a varint, or a length-delimited string or message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """A varint: seven bits per byte, lowest first."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])
