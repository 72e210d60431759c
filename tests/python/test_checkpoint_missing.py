# SPDX-License-Identifier: Apache-2.0
"""farandole.resume_or_start() where no checkpoint is, but something else."""

from __future__ import annotations

import logging
from pathlib import Path

import farandole
import pytest
from farandole import CheckpointError
from torch import nn

import ranks
from saved_by_torch import save_alone


def _starts(rank: int, size: int, path: str) -> list[str]:
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("farandole").addHandler(handler)
    assert farandole.resume_or_start(path, model=nn.Linear(2, 2)) is None
    return [line for line in lines if "resume_or_start" in line]


def test_the_parent_of_torchs_folders_is_warned_of_once(tmp_path: Path) -> None:
    save_alone(tmp_path / "step-10", {"model": nn.Linear(2, 2).state_dict()})
    (line,), others = ranks.run(_starts, 2, str(tmp_path))
    assert "'step-10' in it is of torch.distributed.checkpoint" in line
    assert not others


def test_a_save_of_torch_that_was_killed_is_warned_of(tmp_path: Path) -> None:
    save_alone(tmp_path / "saved", {"model": nn.Linear(2, 2).state_dict()})
    (tmp_path / "saved" / ".metadata").unlink()
    ((line,),) = ranks.run(_starts, 1, str(tmp_path / "saved"))
    assert "no .metadata" in line


def test_a_start_in_a_new_folder_is_told_once(tmp_path: Path) -> None:
    for path in (tmp_path / "new", tmp_path):
        line = f"resume_or_start() starts anew: there is no checkpoint at '{path}'."
        assert ranks.run(_starts, 2, str(path)) == [[line], []]


def _goes_on(rank: int, size: int, path: str) -> list[str]:
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    model = nn.Linear(2, 2)
    farandole.save_checkpoint(path, model=model, step=3)
    logging.getLogger("farandole").addHandler(handler)
    farandole.resume_or_start(path, model=model)
    return lines


def test_what_was_loaded_is_told_once(tmp_path: Path) -> None:
    line = f"resume_or_start() loaded '{tmp_path}/step-00000003'."
    assert ranks.run(_goes_on, 2, str(tmp_path)) == [[line], []]


def _in_files(rank: int, size: int, path: str) -> None:
    for at in (path, f"{path}/below/it"):
        for load in (farandole.load_checkpoint, farandole.resume_or_start):
            with pytest.raises(CheckpointError) as caught:
                load(at, model=nn.Linear(2, 2))
            assert "is a file, and a checkpoint is a folder" in str(caught.value)
            assert rank != 0 or "for a file of torch.save(), use torch.load()" in str(caught.value)


def test_paths_of_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ranks.run(_in_files, 2, str(tmp_path / "file"))
