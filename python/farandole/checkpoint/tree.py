# SPDX-License-Identifier: Apache-2.0
"""Python values as JSON, with tensors apart.

JSON has no tuples, no keys but strings, no NaN. What it has not becomes an object with one member
whose name begins with "!": {"!tuple": [...]}, {"!pairs": [[key, value], ...]}, {"!float": "nan"}.
So C++ and other programs read plain values as they are, and nothing is pickled.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from farandole.checkpoint.checks import check_tensor
from farandole.errors import InvalidArgument, sentences

_MOST_INLINE = 4096
"""Elements of a tensor that may stand in the JSON text."""

TensorSink = Callable[[str, torch.Tensor], str]
TensorSource = Callable[[str], Any]


def encode(value: Any, at: str, keep: TensorSink | None = None) -> Any:
    """What json.dumps() takes.

    Args:
        value: Of numbers, strings, bytes, tensors and containers of these.
        at: Where it is, as keys of tensors begin and as messages call it.
        keep: Takes a tensor that becomes one of the checkpoint and returns its key; without it, all
            are in the text.

    Raises:
        InvalidArgument: it has an object of another class.
    """
    try:
        return _encoded(value, at, keep)
    except RecursionError:
        raise InvalidArgument(
            sentences(
                "checkpoint-nested",
                f"the checkpoint got {at}, which is nested too deeply or contains itself.",
                "it is written as JSON, in which values can be nested some hundred times.",
                "save it in a flatter form.",
            )
        ) from None


def _encoded(value: Any, at: str, keep: TensorSink | None) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else {"!int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"!float": str(float(value))}
    if isinstance(value, torch.Tensor):
        return _encoded_tensor(value, at, keep)
    if isinstance(value, complex):
        return {"!complex": [_encoded(value.real, at, None), _encoded(value.imag, at, None)]}
    if isinstance(value, bytes):
        return {"!bytes": base64.b64encode(value).decode()}
    if isinstance(value, torch.dtype | torch.device):
        kind = "!dtype" if isinstance(value, torch.dtype) else "!device"
        return {kind: str(value).removeprefix("torch.")}
    if isinstance(value, dict):
        return _encoded_dict(value, at, keep)
    if isinstance(value, list | tuple):
        each = [_encoded(one, f"{at}/{i}", keep) for i, one in enumerate(value)]
        return each if isinstance(value, list) else {"!tuple": each}
    if isinstance(value, set | frozenset):
        kind = "!set" if isinstance(value, set) else "!frozenset"
        return {kind: [_encoded(one, f"{at}/{i}", keep) for i, one in enumerate(value)]}
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not value.shape:
        scalar = value.item()
        if type(scalar) is not type(value):
            return _encoded(scalar, at, keep)
    raise InvalidArgument(
        sentences(
            "checkpoint-value",
            f"the checkpoint got {at} of the class {type(value).__qualname__}.",
            "a checkpoint has numbers, strings, bytes, tensors, and lists, tuples, sets and "
            "dictionaries of these; nothing is pickled, so that loading runs no code.",
            "pass its state_dict(), or convert it.",
        )
    )


def _encoded_dict(value: dict[Any, Any], at: str, keep: TensorSink | None) -> Any:
    plain = type(value) in (dict, OrderedDict)
    if plain and all(isinstance(key, str) and not key.startswith("!") for key in value):
        return {key: _encoded(each, f"{at}/{key}", keep) for key, each in value.items()}
    pairs = [
        [_encoded(key, at, None), _encoded(each, f"{at}/{key}", keep)]
        for key, each in value.items()
    ]
    return {"!counter" if isinstance(value, Counter) else "!pairs": pairs}


def _encoded_tensor(tensor: torch.Tensor, at: str, keep: TensorSink | None) -> Any:
    check_tensor(at, tensor)
    tensor = tensor.detach()
    if keep is not None and tensor.numel() > 1:
        return {"!tensor": keep(at, tensor)}
    if tensor.numel() > _MOST_INLINE:
        raise InvalidArgument(
            sentences(
                "checkpoint-large-value",
                f"the checkpoint got {at}, a tensor with {tensor.numel()} elements, within a state "
                "that is cut into shards.",
                "state that a parameter has once, beside its shards, may have at most "
                f"{_MOST_INLINE} elements.",
                'make the optimizer with partition="parameters".',
            )
        )
    tensor = tensor.resolve_conj().resolve_neg()
    data = tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return {
        "!inline": {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "data": base64.b64encode(data).decode(),
        }
    }


def decode(value: Any, tensor: TensorSource) -> Any:
    """The value that encode() was given; ``tensor`` gives what belongs to a key."""
    if isinstance(value, list):
        return [decode(each, tensor) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "!tensor":
            return tensor(content)
        if kind in _DECODERS:
            return _DECODERS[kind](content, tensor)
    return {key: decode(each, tensor) for key, each in value.items()}


def _inline(content: Any, _: TensorSource) -> torch.Tensor:
    dtype = getattr(torch, content["dtype"])
    data = bytearray(base64.b64decode(content["data"]))
    if not data:
        return torch.empty(content["shape"], dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(content["shape"]).clone()


def _pairs(content: Any, tensor: TensorSource) -> dict[Any, Any]:
    return {decode(key, tensor): decode(each, tensor) for key, each in content}


_DECODERS: dict[str, Callable[[Any, TensorSource], Any]] = {
    "!int": lambda content, _: int(content, 16),
    "!float": lambda content, _: float(content),
    "!complex": lambda content, tensor: complex(*(decode(each, tensor) for each in content)),
    "!bytes": lambda content, _: base64.b64decode(content),
    "!dtype": lambda content, _: getattr(torch, content),
    "!device": lambda content, _: torch.device(content),
    "!tuple": lambda content, tensor: tuple(decode(each, tensor) for each in content),
    "!set": lambda content, tensor: {decode(each, tensor) for each in content},
    "!frozenset": lambda content, tensor: frozenset(decode(each, tensor) for each in content),
    "!pairs": _pairs,
    "!counter": lambda content, tensor: Counter(_pairs(content, tensor)),
    "!inline": _inline,
}
