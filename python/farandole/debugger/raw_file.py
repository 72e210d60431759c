# SPDX-License-Identifier: Apache-2.0
"""Whole tensors in files of the safetensors format, which other tools read too.

A file is the length of the header (8 bytes, little-endian), the header as JSON ({name: {dtype,
shape, data_offsets}}), and the elements of all tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from farandole.foreign_text import json_of
from farandole.regular_file import open_regular_file

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.complex128: "C128",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def copy_for_file(tensor: Tensor) -> Tensor:
    """A copy of a dense ``tensor`` on the host as write() takes it: of a dtype that has a name."""
    if tensor.dtype not in _NAMES:
        tensor = tensor.to(torch.complex64 if tensor.is_complex() else torch.float64)
    return tensor.to("cpu", memory_format=torch.contiguous_format, copy=True)


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of copy_for_file()."""
    header, begin = {}, 0
    for name, tensor in tensors.items():
        end = begin + tensor.nbytes
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors.values():
            file.write(tensor.view(-1).view(torch.uint8).numpy().data)


def read(path: Path, name: str) -> Tensor:
    """One tensor of a file.

    Raises:
        OSError, ValueError, KeyError, TypeError, RuntimeError: the file is missing, damaged, or has
            no such tensor.
    """
    with open_regular_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError("the header is cut off")
        entry = json_of(file.read(length))[name]
        begin, end = entry["data_offsets"]
        file.seek(8 + length + begin)
        data = bytearray(file.read(end - begin))
    if len(data) != end - begin:
        raise ValueError("the elements are cut off")
    dtype = _DTYPES[entry["dtype"]]
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.view(entry["shape"])
