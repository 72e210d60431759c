# SPDX-License-Identifier: Apache-2.0
"""The pickled metadata of torch's checkpoints: what is taken of it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from farandole.checkpoint import dcp_metadata
from farandole.errors import CheckpointError
from torch.distributed.checkpoint import metadata as of_torch


class Calls:
    """Pickled as a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def saved(folder: Path, **fields: object) -> Path:
    made = of_torch.Metadata({})
    vars(made).update(fields)
    (folder / dcp_metadata.FILE).write_bytes(pickle.dumps(made))
    return folder


def test_members_of_an_enum_may_be_written_as_attributes() -> None:
    """As Python 3.11.0 to 3.11.3 do, which Debian 12 has."""
    encoding = of_torch._MEM_FORMAT_ENCODING
    member = pickle.dumps(Calls(getattr, encoding, "TORCH_CONTIGUOUS_FORMAT"))
    found = dcp_metadata._Unpickler(io.BytesIO(member)).load()
    assert found is encoding.TORCH_CONTIGUOUS_FORMAT


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (of_torch.Metadata, "__init__"),
        (of_torch._MEM_FORMAT_ENCODING, "__class__"),
        (of_torch._MEM_FORMAT_ENCODING, "no_such"),
    ],
)
def test_other_attributes_are_refused(tmp_path: Path, owner: object, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"the attribute {name}"):
        dcp_metadata.read_metadata(saved(tmp_path, planner_data=Calls(getattr, owner, name)))
