# SPDX-License-Identifier: Apache-2.0
"""Checkpoints where ranks die, fork, and have others beside them."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import farandole
import numpy as np
import pytest
import torch
import torch.distributed as dist
from farandole import CheckpointError, InvalidArgument
from farandole.checkpoint import rng
from torch import nn

import ranks


def _dies(rank: int, size: int, path: str) -> None:
    net = nn.Linear(8, 8)
    farandole.save_checkpoint(path, model=net)
    save = farandole.save_checkpoint(path, model=nn.Linear(3000, 3000), asynchronous=True)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with contextlib.suppress(farandole.PeerFailure):  # it may have been quick enough
        save.wait()
    assert time.monotonic() - began < ranks.TIMEOUT_S / 2
    assert not list(Path(path).glob("tmp-*"))


def test_a_death_ends_an_asynchronous_save_at_once(tmp_path: Path) -> None:
    ranks.run(_dies, 2, str(tmp_path), may_die=(1,))


def _dies_when_all_is_saved(rank: int, size: int, path: str) -> None:
    net = nn.Linear(8, 8)
    farandole.save_checkpoint(path, model=net)
    if rank == 1:
        threading.Thread(target=_die_with, args=(Path(path, "save-00000002"),)).start()
    save = farandole.save_checkpoint(path, model=net, asynchronous=True)
    began = time.monotonic()
    with contextlib.suppress(farandole.PeerFailure):  # this rank may not have heard of the end yet
        save.wait()
    assert time.monotonic() - began < ranks.TIMEOUT_S / 2
    assert Path(path, "save-00000002").is_dir()


def _die_with(folder: Path) -> None:
    while not folder.exists():
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_death_after_a_save_delays_nobody(tmp_path: Path) -> None:
    ranks.run(_dies_when_all_is_saved, 2, str(tmp_path), may_die=(1,))


def _forks(rank: int, size: int, path: str) -> None:
    save = farandole.save_checkpoint(path, model=nn.Linear(3000, 3000), asynchronous=True)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it if it waits for a thread that it has not
        atexit._run_exitfuncs()  # as sys.exit() does
        os._exit(0)
    save.wait()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_forked_child_ends_while_its_parent_saves(tmp_path: Path) -> None:
    ranks.run(_forks, 2, str(tmp_path))


def _waits_in_a_child(rank: int, size: int, path: str) -> None:
    save = farandole.save_checkpoint(path, model=nn.Linear(3000, 3000), asynchronous=True)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            save.wait()
        except CheckpointError as error:
            os._exit(0 if "[checkpoint-forked-child]" in str(error) else 1)
        os._exit(0 if save.is_done else 1)
    save.wait()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(tmp_path: Path) -> None:
    ranks.run(_waits_in_a_child, 2, str(tmp_path))


def _does_not_wait(path: str) -> None:
    """In a process that calls no functions of atexit when it ends."""
    farandole.init_process_group(world_size=1, rank=0, store=dist.HashStore())
    farandole.save_checkpoint(path, model=nn.Linear(3000, 3000), asynchronous=True)


def _starts_a_process(rank: int, size: int, path: str) -> None:
    process = multiprocessing.get_context("fork").Process(target=_does_not_wait, args=(path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert Path(path, "save-00000001", "index.json").exists()


def test_a_process_of_multiprocessing_ends_when_all_is_saved(tmp_path: Path) -> None:
    ranks.run(_starts_a_process, 1, str(tmp_path), setup=ranks.Setup(backend=None))


def _saves_and_leaves_a_child(rank: int, size: int, path: str) -> None:
    farandole.save_checkpoint(path, model=nn.Linear(2, 2))
    child = os.fork()
    if child == 0:
        for each in Path("/proc/self/fd").iterdir():  # which end with the rank
            with contextlib.suppress(OSError):
                if str(each.readlink()).startswith(("pipe:", "socket:")):
                    os.close(int(each.name))
        time.sleep(60)
        os._exit(0)
    Path(path, "child").write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


def _saves(rank: int, size: int, path: str) -> None:
    farandole.save_checkpoint(path, model=nn.Linear(2, 2))


def test_a_child_that_outlives_its_job_does_not_keep_the_folder(tmp_path: Path) -> None:
    ranks.run(_saves_and_leaves_a_child, 1, str(tmp_path), may_die=(0,))
    try:
        ranks.run(_saves, 1, str(tmp_path))
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def _has_its_folder_removed(rank: int, size: int, path: str) -> None:
    net = nn.Linear(2, 2)
    folder = Path(path, "saved")
    farandole.save_checkpoint(folder, model=net)
    shutil.rmtree(folder)
    Path(path, "removed").touch()
    while not Path(path, "taken").exists():
        time.sleep(0.01)
    with pytest.raises(CheckpointError, match="are being saved by another writer"):
        farandole.save_checkpoint(folder, model=net)
    Path(path, "refused").touch()


def _takes_a_removed_folder(rank: int, size: int, path: str) -> None:
    while not Path(path, "removed").exists():
        time.sleep(0.01)
    farandole.save_checkpoint(Path(path, "saved"), model=nn.Linear(2, 2))
    Path(path, "taken").touch()
    while not Path(path, "refused").exists():
        time.sleep(0.01)


def test_a_folder_that_was_removed_belongs_to_who_makes_it(tmp_path: Path) -> None:
    other = threading.Thread(target=ranks.run, args=(_takes_a_removed_folder, 1, str(tmp_path)))
    other.start()
    try:
        ranks.run(_has_its_folder_removed, 1, str(tmp_path))
    finally:
        (tmp_path / "refused").touch()
        other.join()


def _two_groups(rank: int, size: int, path: str) -> None:
    other = dist.new_group([0, 1])
    small = {"net": nn.Linear(2, 2)}
    large = {"net": nn.Linear(3000, 3000)}
    options: dict[str, Any] = {"process_group": other, "asynchronous": True}
    farandole.save_checkpoint(path, model=small, step=1, **options).wait()
    slow = farandole.save_checkpoint(path, model=large, step=5, **options)
    farandole.save_checkpoint(path, model=small, step=6)
    slow.wait()
    assert Path(path, "latest").read_text() == "step-00000006\n"


def test_the_latest_checkpoint_is_that_which_began_last(tmp_path: Path) -> None:
    ranks.run(_two_groups, 2, str(tmp_path))


SAMPLERS: dict[str, Callable[[], Any]] = {
    "samples": lambda: farandole.DistributedSampler(range(40), seed=3),
    "weights": lambda: farandole.DistributedWeightedRandomSampler(
        torch.arange(1.0, 41.0), num_samples=40
    ),
    "lengths": lambda: farandole.DistributedBucketBatchSampler(torch.arange(1, 41), 2),
}


class Refusing:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        raise ValueError("not this one")


def _refused(rank: int, size: int, path: str) -> None:
    for name, make in SAMPLERS.items():
        folder = Path(path, name)
        farandole.save_checkpoint(folder, sampler=make().state_dict(1), scaler=Refusing())
        wanted, sampler = make(), make()
        passes = []
        for each in (wanted, sampler):
            each.set_epoch(1)
            each.load_state_dict(each.state_dict(3))
            passes.append(iter(each))
            next(passes[-1])
        scaler = Refusing() if rank == 1 else farandole.GradScaler(enabled=False)
        with pytest.raises(CheckpointError):
            farandole.load_checkpoint(folder, sampler=sampler, scaler=scaler)
        assert sampler.state_dict(1) == wanted.state_dict(1)
        assert len(sampler) == len(wanted)
        assert list(passes[1]) == list(passes[0])
        assert list(sampler) == list(wanted)


def test_a_load_that_fails_leaves_a_sampler_in_its_pass(tmp_path: Path) -> None:
    ranks.run(_refused, 2, str(tmp_path))


def _has_other_random_states(rank: int, size: int, path: str) -> None:
    saving: Any = sys.modules["farandole.checkpoint.save"]
    original = saving.add_states
    saved, net = nn.Linear(2, 2), nn.Linear(2, 2)
    np.random.seed(0)  # noqa: NPY002  # the generator whose state is saved
    for name in ("torch", "python", "numpy"):
        folder = Path(path, name)

        def add_states(slices: Any, number: int, name: str = name) -> None:
            state = torch.arange(5, dtype=torch.uint8) if rank == 1 else torch.get_rng_state()
            if rank == 1 or name == "torch":
                slices.add_own(rng._key(number, name), state)

        saving.add_states = add_states
        try:
            farandole.save_checkpoint(folder, model=saved)
        finally:
            saving.add_states = original
        before = net.weight.clone()
        with pytest.raises(CheckpointError, match="random number generator"):
            farandole.load_checkpoint(folder, model=net)
        assert torch.equal(net.weight, before)
        farandole.load_checkpoint(folder, model=net, rng=False)
        assert torch.equal(net.weight, saved.weight)
        torch.nn.init.zeros_(net.weight)


def test_random_states_are_checked_before_the_model_changes(tmp_path: Path) -> None:
    ranks.run(_has_other_random_states, 2, str(tmp_path))


class Unprintable:
    def state_dict(self) -> dict[str, Any]:
        raise ValueError("the file \udcff is missing")


def _has_an_error_that_is_no_utf8(rank: int, size: int, path: str) -> None:
    scaler = Unprintable() if rank == 1 else farandole.GradScaler(enabled=False)
    error = ValueError if rank == 1 else CheckpointError
    with pytest.raises(error, match="missing"):
        farandole.save_checkpoint(path, scaler=scaler)
    farandole.save_checkpoint(path, model=nn.Linear(2, 2))


def test_the_others_learn_of_an_error_that_is_no_utf8(tmp_path: Path) -> None:
    ranks.run(_has_an_error_that_is_no_utf8, 2, str(tmp_path))


def _saves_on(rank: int, size: int, path: str) -> None:
    began = time.monotonic()
    while not Path(path, "enough").exists() and time.monotonic() - began < 50:
        farandole.save_checkpoint(Path(path, "saved"), model=nn.Linear(20, 20), keep=1)


def _loads_often(rank: int, size: int, path: str) -> None:
    net = nn.Linear(20, 20)
    while not Path(path, "saved", "latest").exists():
        time.sleep(0.01)
    dist.barrier()
    for _ in range(60):
        farandole.load_checkpoint(Path(path, "saved"), model=net)
    Path(path, "enough").touch()


def test_a_job_may_load_what_another_one_replaces(tmp_path: Path) -> None:
    saving = threading.Thread(target=ranks.run, args=(_saves_on, 1, str(tmp_path)))
    saving.start()
    try:
        ranks.run(_loads_often, 2, str(tmp_path))
    finally:
        (tmp_path / "enough").touch()
        saving.join()


def _has_its_own(rank: int, size: int, path: str) -> None:
    net = nn.Linear(2, 2)
    own = f"{path}/of-{rank}"
    for call in (farandole.save_checkpoint, farandole.load_checkpoint, farandole.resume_or_start):
        with pytest.raises(InvalidArgument, match=r"rank 1 got the path '.*of-1'.*rank 0 '.*of-0'"):
            call(own, model=net)
    assert not Path(own).exists()
    farandole.save_checkpoint(f"{path}/one", model=net)
    if rank == 0:
        Path(path, "link").symlink_to(Path(path, "one"))
    dist.barrier()
    farandole.load_checkpoint(f"{path}/link" if rank == 1 else f"{path}/one", model=net)


def test_paths_that_differ_are_named(tmp_path: Path) -> None:
    ranks.run(_has_its_own, 2, str(tmp_path))


def _may_not_read(rank: int, size: int, path: str) -> None:
    net = nn.Linear(2, 2)
    farandole.save_checkpoint(path, model=net)
    if rank == 1:
        os.seteuid(65534)
    for call in (farandole.load_checkpoint, farandole.resume_or_start):
        with pytest.raises(CheckpointError, match="could not be read"):
            call(path, model=net)
    os.seteuid(0)
    farandole.load_checkpoint(path, model=net)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")
def test_all_ranks_learn_that_one_may_not_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ranks.run(_may_not_read, 2, str(tmp_path))


def _has_no_space_at_the_end(rank: int, size: int, path: str) -> list[str]:
    """On file systems for so many files and folders, the root among them."""
    libc = ctypes.CDLL(None)
    new_namespace, private = 0x00020000, 1 << 18 | 1 << 14
    if libc.unshare(new_namespace) != 0 or libc.mount(None, b"/", None, private, None) != 0:
        return ["not permitted"]
    for inodes in range(2, 6):  # .writer, the folder, its file, its index, latest
        options = f"size=1m,nr_inodes={inodes}".encode()
        assert libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, options) == 0
        with pytest.raises(CheckpointError, match="No space left"):
            farandole.save_checkpoint(path, model=nn.Linear(2, 2))
        assert not list(Path(path).glob("[!.]*"))
    libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, b"size=1m,nr_inodes=6")
    farandole.save_checkpoint(path, model=nn.Linear(2, 2))
    return sorted(each.name for each in Path(path).glob("[!.]*"))


def test_a_disk_that_is_full_at_the_end_of_a_save_leaves_nothing(tmp_path: Path) -> None:
    ((names),) = ranks.run(_has_no_space_at_the_end, 1, str(tmp_path))
    if names == ["not permitted"]:
        pytest.skip("this user may not mount file systems")
    assert names[0] == "latest"
    assert len(names) == 2


def _copies(rank: int, size: int, path: str) -> None:
    net = nn.Linear(2, 2)
    for step in range(5):
        folder = Path(farandole.save_checkpoint(path, model=net, step=step, keep=2).wait())
        if step == 1:
            shutil.copytree(folder, folder.with_name("best"))
            folder.rename(folder.with_name("step-1-moved"))
    present = {each.name for each in Path(path).iterdir() if each.is_dir()}
    assert present == {"best", "step-1-moved", "step-00000003", "step-00000004"}
    farandole.load_checkpoint(f"{path}/best", model=net)


def test_copies_under_other_names_are_kept(tmp_path: Path) -> None:
    ranks.run(_copies, 1, str(tmp_path))


def _beside(rank: int, size: int, path: str) -> None:
    net = nn.Linear(2, 2)
    farandole.save_checkpoint(path, model=net)


def test_only_what_saves_have_left_is_removed(tmp_path: Path) -> None:
    own = ["tmp-notes", "tmp-save-1-2", "tmp-run-4711-0123456789abcdeX", "tmp-0123456789abcdef"]
    left = ["tmp-save-00000001-4711-0123456789abcdef", "tmp-latest-4711-0123456789abcdef"]
    for name in own + left:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    ranks.run(_beside, 1, str(tmp_path))
    present = {each.name for each in tmp_path.iterdir()}
    assert present == {*own, ".writer", "latest", "save-00000001"}


def _within(rank: int, size: int, path: str) -> None:
    net = nn.Linear(2, 2)
    folder = farandole.save_checkpoint(path, model=net).wait()
    for asynchronous in (False, True):
        with pytest.raises(CheckpointError, match=r"was to be saved into '.*save-00000001'"):
            farandole.save_checkpoint(folder, model=net, asynchronous=asynchronous)
    assert not list(Path(folder).glob("*-*/index.json"))


def test_a_checkpoint_has_no_others_within(tmp_path: Path) -> None:
    ranks.run(_within, 2, str(tmp_path))


def _loop(rank: int, size: int, path: str) -> None:
    with pytest.raises(CheckpointError):
        farandole.load_checkpoint(path, model=nn.Linear(2, 2))


def test_a_link_to_itself_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    ranks.run(_loop, 1, str(tmp_path / "loop"))


def _meets_a_pipe(rank: int, size: int, path: str) -> None:
    for load in (farandole.load_checkpoint, farandole.resume_or_start):
        with pytest.raises(CheckpointError, match="not a file"):
            load(path, model=nn.Linear(8, 8))


@pytest.mark.parametrize("name", ["index.json", "rank-00000.safetensors", ".metadata"])
def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path, name: str) -> None:
    ranks.run(_saves, 1, str(tmp_path))
    folder = tmp_path / "save-00000001"
    if name == ".metadata":
        shutil.rmtree(folder)
        folder.mkdir()
    else:
        [each] = folder.glob(name.replace("rank-00000", "*"))
        name = each.name
        each.unlink()
    os.mkfifo(folder / name)
    ranks.run(_meets_a_pipe, 2, str(folder))


def _loads_its_own(rank: int, size: int, path: str) -> None:
    assert farandole.load_checkpoint(path, model=nn.Linear(8, 8)) == {"of": "inside"}


def _saves_value(rank: int, size: int, path: str, value: str) -> None:
    farandole.save_checkpoint(path, model=nn.Linear(8, 8), values={"of": value})


@pytest.mark.parametrize("kind", ["text", "link to a folder", "link to a text", "pipe"])
def test_the_latest_checkpoint_lies_in_its_folder(tmp_path: Path, kind: str) -> None:
    root, latest = tmp_path / "root", tmp_path / "root" / "latest"
    for _ in range(2):  # so that its number is higher
        ranks.run(_saves_value, 1, str(tmp_path / "other"), "outside")
    (tmp_path / "other" / "save-00000002").rename(tmp_path / "outside")
    ranks.run(_saves_value, 1, str(root), "inside")
    latest.unlink()
    if kind == "text":
        latest.write_text("../outside\n")
    elif kind == "link to a folder":
        latest.symlink_to("../outside")
    elif kind == "link to a text":
        (tmp_path / "text").write_text("../outside\n")
        latest.symlink_to("../text")
    else:
        os.mkfifo(latest)
    ranks.run(_loads_its_own, 1, str(root))
