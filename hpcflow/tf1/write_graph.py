"""Graph files: writes a graph as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcflow.graph.graph import Graph


def write_graph(
    graph_or_graph_def: Graph | Mapping[str, Any], logdir: str | Path, name: str
) -> Path:
    """Write a graph, or the result of `as_graph_def`, as JSON to `logdir/name`; returns the path.

    `hf.import_graph_def(json.loads(path.read_text()))` reads it. Call it on one rank.
    Errors: GraphError for attributes that are not plain data.
    """
    source = graph_or_graph_def
    data = source.as_graph_def() if isinstance(source, Graph) else dict(source)
    path = Path(logdir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    draft.write_text(json.dumps(data, allow_nan=False))
    draft.replace(path)  # atomic
    return path
