"""Names for values whose type is known only when a step runs, or only to the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]  # plain data: a message, a report, the facts of a file
Attributes = Mapping[str, Any]  # of an operation
DeviceArray = Any  # an array of NumPy, CuPy or a device of the user; they share no base class
Value = Any  # what an operation computes: a `DeviceArray`, or an object such as a list of tensors
KernelFunction = Callable[..., Value]
FeedValue = Any  # what a user feeds: numbers, or what can become an array
Feeds = Mapping[Any, FeedValue]  # by tensors, variables, names and tuples of them
Fed = dict[Any, FeedValue]  # the same, to be changed
Fetches = Any  # what a user fetches: tensors, operations and names, nested in lists and dicts
Rebuild = Callable[..., Fetches]  # fetched values -> the same in the structure of the fetches
State = Any  # of an operation, by its type: a variable, a queue, a reader
