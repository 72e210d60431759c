# SPDX-License-Identifier: Apache-2.0
"""Samplers have torch's orders, go on with any number of ranks, and are the same in C++."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed.checkpoint as dcp
from farandole import (
    DistributedBucketBatchSampler,
    DistributedSampler,
    DistributedWeightedRandomSampler,
)
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from torch.utils.data import DistributedSampler as TorchSampler

import ranks

REPOSITORY = Path(__file__).parents[2]
PROGRAM = (
    REPOSITORY / os.environ.get("FARANDOLE_BUILD", "build/release") / "tests" / "sampler_orders"
)
DEADLINE_S = 100


class Numbers(Dataset[int]):
    """0, 1, 2 and so on."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def all_ranks(num_replicas: int, *arguments: Any, **options: Any) -> list[DistributedSampler]:
    return [
        DistributedSampler(*arguments, num_replicas=num_replicas, rank=rank, **options)
        for rank in range(num_replicas)
    ]


# --- torch's


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_indices_are_those_of_torch(shuffle: bool, drop_last: bool) -> None:
    for size, num_replicas in itertools.product(range(51), range(1, 9)):
        for rank in range(num_replicas):
            arguments = (Numbers(size), num_replicas, rank, shuffle, size + 3, drop_last)
            theirs, ours = TorchSampler(*arguments), DistributedSampler(*arguments)
            assert isinstance(ours, TorchSampler)
            for epoch in (0, 5):
                for sampler in (theirs, ours):
                    sampler.set_epoch(epoch)
                assert list(ours) == list(theirs), arguments
                assert len(ours) == len(theirs)
            for name in ("num_samples", "total_size", "num_replicas", "rank", "epoch", "seed"):
                assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("seed", [-1, 2**62])
def test_any_seed_is_that_of_torch(seed: int) -> None:
    arguments = (range(99), 2, 1, True, seed)
    assert list(DistributedSampler(*arguments)) == list(TorchSampler(*arguments))


def test_an_epoch_that_is_set_as_an_attribute_counts_as_in_torch() -> None:
    theirs, ours = TorchSampler(range(99), 2, 1), DistributedSampler(range(99), 2, 1)
    theirs.epoch = ours.epoch = 3
    assert list(ours) == list(theirs)


def weighted(num_replicas: int, **options: Any) -> list[DistributedWeightedRandomSampler]:
    return [
        DistributedWeightedRandomSampler(num_replicas=num_replicas, rank=rank, **options)
        for rank in range(num_replicas)
    ]


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("num_replicas", [1, 3])
def test_weighted_indices_are_those_of_torch(replacement: bool, num_replicas: int) -> None:
    weights = torch.rand(40, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    samplers = weighted(
        num_replicas, weights=weights, num_samples=30, replacement=replacement, seed=5
    )
    for epoch in (0, 2):
        generator = torch.Generator().manual_seed(5 + epoch)
        theirs = list(WeightedRandomSampler(weights, 30, replacement, generator=generator))
        for sampler in samplers:
            sampler.set_epoch(epoch)
        rows = zip(*samplers, strict=True)
        assert list(itertools.chain.from_iterable(rows)) == theirs
    assert replacement or len(set(theirs)) == 30


def test_weighted_samples_are_shared_as_others_are() -> None:
    even = weighted(4, weights=[1.0] * 9, num_samples=9, replacement=False)
    assert [len(sampler) for sampler in even] == [3] * 4
    dropped = weighted(4, weights=[1.0] * 9, num_samples=9, replacement=False, drop_last=True)
    assert [len(sampler) for sampler in dropped] == [2] * 4
    exact = weighted(4, weights=[1.0] * 9, num_samples=9, replacement=False, even_divisible=False)
    assert sorted(itertools.chain(*exact)) == list(range(9))


# --- exact evaluation


def test_without_even_divisible_each_sample_is_there_once() -> None:
    for size, num_replicas in itertools.product(range(31), range(1, 9)):
        samplers = all_ranks(num_replicas, size, even_divisible=False)
        parts = [list(sampler) for sampler in samplers]
        assert sorted(itertools.chain(*parts)) == list(range(size))
        assert [len(part) for part in parts] == [len(sampler) for sampler in samplers]
        lengths = [len(part) for part in parts]
        assert lengths == sorted(lengths, reverse=True)
        assert max(lengths) - min(lengths) <= 1


# --- going on in the middle of an epoch


def test_any_number_of_ranks_goes_on_without_repeating_or_leaving_out_a_sample() -> None:
    draw = random.Random(2)
    for _ in range(500):
        size, state = draw.randrange(100), None
        times: Counter[int] = Counter()
        for is_last in (False, False, False, True):
            samplers = all_ranks(draw.randint(1, 8), size, seed=4, even_divisible=False)
            for sampler in samplers:
                if state is not None:
                    sampler.load_state_dict(json.loads(json.dumps(state)))
                sampler.set_epoch(7)
            longest = len(samplers[0])
            consumed = longest if is_last else draw.randint(0, longest)
            for sampler in samplers:
                times.update(list(sampler)[:consumed])
            state = samplers[0].state_dict(consumed)
        assert times == Counter(range(size))


@pytest.mark.parametrize("drop_last", [True, False])
def test_even_shares_go_on_too(drop_last: bool) -> None:
    draw = random.Random(3)
    for _ in range(300):
        size, before, after = draw.randint(1, 80), draw.randint(1, 8), draw.randint(1, 8)
        old = all_ranks(before, size, drop_last=drop_last)
        consumed = draw.randint(0, len(old[0]))
        times = Counter(itertools.chain(*(list(sampler)[:consumed] for sampler in old)))
        states = [sampler.state_dict(consumed) for sampler in old]
        assert all(state == states[0] for state in states)
        new = all_ranks(after, size, drop_last=drop_last)
        for sampler in new:
            sampler.load_state_dict(states[0])
        parts = [list(sampler) for sampler in new]
        assert len({len(part) for part in parts}) == 1
        times.update(itertools.chain(*parts))
        if drop_last:
            dropped = size - times.total()
            assert set(times.values()) <= {1}
            assert 0 <= dropped < max(before, after)
        else:
            assert set(times) == set(range(size))
            assert times.total() - size < before + after


def test_the_same_ranks_go_on_as_if_nothing_had_happened() -> None:
    for drop_last, rank in itertools.product([True, False], range(3)):
        whole = DistributedSampler(50, 3, rank, drop_last=drop_last)
        whole.set_epoch(2)
        indices = list(whole)
        for consumed in range(len(indices) + 1):
            resumed = DistributedSampler(50, 3, rank, drop_last=drop_last)
            resumed.load_state_dict(whole.state_dict(consumed))
            assert resumed.epoch == 2
            assert len(resumed) == len(indices) - consumed
            assert list(resumed) == indices[consumed:]


def test_a_position_is_one_of_the_first_pass() -> None:
    sampler = DistributedSampler(20, 2, 1)
    whole = list(sampler)
    state = sampler.state_dict(4)
    for _ in range(2):
        sampler.load_state_dict(state)
        sampler.set_epoch(0)
        assert (len(sampler), sampler.num_samples, sampler.total_size) == (6, 6, 12)
        assert list(sampler) == whole[4:]
        assert sampler.state_dict(2) == sampler.state_dict(2) | {"position": 12}
        assert list(sampler) == whole
    sampler.load_state_dict(state)
    sampler.set_epoch(1)
    assert len(sampler) == 10


def test_a_state_has_the_seed_and_other_data_is_refused() -> None:
    saved = DistributedSampler(20, 2, 0, seed=6)
    saved.set_epoch(3)
    state = saved.state_dict(5)
    assert state == {"epoch": 3, "seed": 6, "position": 10, "size": 20, "shuffle": 1}
    loaded = DistributedSampler(20, 2, 0)
    loaded.load_state_dict(state)
    assert (loaded.epoch, loaded.seed) == (3, 6)
    other = DistributedSampler(21, 2, 0)
    with pytest.raises(farandole.InvalidArgument, match="its 'size' is 20 and not 21"):
        other.load_state_dict(state)
    assert other.epoch == 0
    with pytest.raises(farandole.InvalidArgument, match="its 'shuffle' is 1 and not 0"):
        DistributedSampler(20, 2, 0, shuffle=False).load_state_dict(state)


def test_a_pass_that_repeats_the_order_of_the_last_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = DistributedSampler(8, 2, 0)
    for epoch in (0, 1, 1, 2):
        told.set_epoch(epoch)
        list(told)
    told.epoch = 3
    list(told)
    in_order = DistributedSampler(8, 2, 0, shuffle=False)
    assert list(in_order) == list(in_order)
    assert not caplog.records
    sampler = DistributedSampler(8, 2, 0)
    for _ in range(3):
        list(sampler)
    (record,) = caplog.records
    assert record.getMessage() == (
        "DistributedSampler starts another pass with epoch 0, which repeats the order of the "
        "previous pass: call set_epoch(epoch) before each pass."
    )


def test_copies_go_on_where_the_sampler_would() -> None:
    sampler = DistributedSampler(20, 2, 1)
    sampler.set_epoch(4)
    sampler.load_state_dict(sampler.state_dict(3))
    for other in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert len(other) == 7
        assert other.epoch == 4
        assert list(other) == list(copy.deepcopy(sampler))
    list(sampler)
    assert len(copy.deepcopy(sampler)) == 10  # its next pass


# --- errors


def test_arguments_that_cannot_be_are_refused() -> None:
    for arguments in ((9, 2, 2), (9, 2, -1), (9, 0, 0)):
        with pytest.raises(farandole.InvalidArgument, match="a sampler got rank"):
            DistributedSampler(*arguments)
    with pytest.raises(ValueError, match="drop_last without even_divisible"):
        DistributedSampler(9, 2, 0, drop_last=True, even_divisible=False)
    with pytest.raises(farandole.InvalidArgument, match="no default group"):
        DistributedSampler(9)
    with pytest.raises(farandole.InvalidArgument, match="as num_replicas"):
        DistributedSampler(9, "2", 0)
    with pytest.raises(farandole.InvalidArgument, match="after -1 samples"):
        DistributedSampler(9, 2, 0).state_dict(-1)
    with pytest.raises(farandole.InvalidArgument, match="got epoch -1"):
        DistributedSampler(9, 2, 0).set_epoch(-1)
    with pytest.raises(farandole.InvalidArgument, match="weights of 2 dimensions"):
        DistributedWeightedRandomSampler(torch.ones(2, 2), 1, True, 1, 0)
    with pytest.raises(farandole.InvalidArgument, match="16777217 weights"):
        DistributedWeightedRandomSampler(torch.ones(2**24 + 1), 1, True, 1, 0)
    with pytest.raises(farandole.InvalidArgument, match="batch_size 0"):
        DistributedBucketBatchSampler([1], 0, num_replicas=1, rank=0)


# --- buckets


def bucketed(num_replicas: int, **options: Any) -> list[DistributedBucketBatchSampler]:
    return [
        DistributedBucketBatchSampler(num_replicas=num_replicas, rank=rank, **options)
        for rank in range(num_replicas)
    ]


def test_batches_have_similar_lengths() -> None:
    draw = random.Random(4)
    lengths = [draw.randint(1, 512) for _ in range(2000)]
    samplers = bucketed(2, lengths=lengths, batch_size=8)
    assert [len(sampler) for sampler in samplers] == [125, 125]
    padded = 0
    for batches in zip(*samplers, strict=True):  # of one step
        longest = [max(lengths[index] for index in batch) for batch in batches]
        assert abs(longest[0] - longest[1]) < 60
        padded += sum(max(longest) * 8 for _ in longest)
    assert padded < 1.1 * sum(lengths)  # 1.9 times with random batches
    orders = [list(sampler) for sampler in samplers]
    assert sorted(itertools.chain(*itertools.chain(*orders))) == list(range(2000))
    samplers[0].set_epoch(1)
    assert list(samplers[0]) != orders[0]


def test_batches_are_shared_as_samples_are() -> None:
    lengths = list(range(21))
    sizes = lambda samplers: [[len(batch) for batch in sampler] for sampler in samplers]  # noqa: E731
    options = {"lengths": lengths, "batch_size": 4, "shuffle": False}
    assert sizes(bucketed(4, **options)) == [[4, 4], [4, 1], [4, 4], [4, 4]]
    assert sizes(bucketed(4, drop_last=True, **options)) == [[4]] * 4
    exact = bucketed(4, even_divisible=False, **options)
    assert sizes(exact) == [[4, 4], [4, 1], [4], [4]]
    assert next(iter(exact[0])) == [20, 19, 18, 17]
    assert sorted(itertools.chain(*itertools.chain(*exact))) == lengths


def test_batches_go_on_with_any_number_of_ranks() -> None:
    draw = random.Random(5)
    for _ in range(100):
        lengths = torch.randint(1, 99, (draw.randint(0, 200),))
        times: Counter[int] = Counter()
        state = None
        for is_last in (False, True):
            samplers = bucketed(
                draw.randint(1, 5), lengths=lengths, batch_size=4, even_divisible=False
            )
            for sampler in samplers:
                if state is not None:
                    sampler.load_state_dict(state)
            longest = len(samplers[0])
            consumed = longest if is_last else draw.randint(0, longest)
            for sampler in samplers:
                times.update(itertools.chain(*list(sampler)[:consumed]))
            state = samplers[0].state_dict(consumed)
        assert times == Counter(range(len(lengths)))


# --- DataLoader


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_after_the_batches_of_the_training(workers: int) -> None:
    options = {"batch_size": 4, "num_workers": workers, "persistent_workers": workers > 0}
    sampler = DistributedSampler(Numbers(50), 2, 1)
    loader = DataLoader(Numbers(50), sampler=sampler, **options)
    assert len(loader) == 7
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append([batch.tolist() for batch in loader])
        theirs = TorchSampler(Numbers(50), 2, 1)
        theirs.set_epoch(epoch)
        assert list(itertools.chain(*epochs[-1])) == list(theirs)
    assert epochs[0] != epochs[1]

    sampler.set_epoch(1)
    for batches, _ in enumerate(loader, 1):
        if batches == 3:
            state = sampler.state_dict(batches * 4)
            break
    resumed = DistributedSampler(Numbers(50), 2, 1)
    loader = DataLoader(Numbers(50), sampler=resumed, **options)
    resumed.load_state_dict(state)
    assert len(loader) == 4
    seen = []
    for epoch in range(resumed.epoch, 3):
        resumed.set_epoch(epoch)
        seen.append([batch.tolist() for batch in loader])
    assert seen[0] == epochs[1][3:]
    assert len(seen[1]) == 7


def test_a_loader_takes_batches() -> None:
    (sampler,) = bucketed(1, lengths=list(range(10)), batch_size=3)
    loader = DataLoader(Numbers(10), batch_sampler=sampler, num_workers=1)
    assert len(loader) == 4
    assert [batch.tolist() for batch in loader] == list(sampler)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_what_the_sampler_gives_goes_on(workers: int) -> None:
    """Without a BatchSampler between them, a loader with workers makes two iterators at once."""
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    for make in (
        lambda: {"batch_sampler": bucketed(1, lengths=list(range(50)), batch_size=3)[0]},
        lambda: {"sampler": DistributedSampler(Numbers(50), 2, 1), "batch_size": None},
        lambda: {
            "sampler": DistributedWeightedRandomSampler(torch.ones(50), 50, num_replicas=2, rank=1),
            "batch_size": None,
        },
    ):
        passes = []
        for position in (0, 4):
            arguments: dict[str, Any] = make()
            sampler = arguments.get("batch_sampler", arguments.get("sampler"))
            loader: DataLoader[Any] = DataLoader(Numbers(50), **arguments, **options)
            sampler.load_state_dict(sampler.state_dict(position))
            length = len(loader)
            passes.append([[torch.as_tensor(each).tolist() for each in loader] for _ in range(2)])
            assert len(passes[-1][0]) == length
        assert passes[1] == [passes[0][0][4:], passes[0][1]]


def test_the_sampler_counts_for_loaders_that_ask_without_a_count() -> None:
    """As torchdata's StatefulDataLoader asks, between the samples of one batch and the next."""
    make: Callable[[], Any]
    for make in (
        lambda: DistributedSampler(50, 2, 1),
        lambda: DistributedWeightedRandomSampler(torch.ones(50), 50, num_replicas=2, rank=1),
        lambda: bucketed(2, lengths=list(range(150)), batch_size=3)[1],
    ):
        sampler, order = make(), list(make())
        assert sampler.state_dict() == sampler.state_dict(0)
        for count in (4, 3):  # of this pass, then of one that goes on there
            given = list(itertools.islice(sampler, count))
            assert given == order[:count]
            assert sampler.state_dict() == sampler.state_dict(count)
            resumed, order = make(), order[count:]
            resumed.load_state_dict(sampler.state_dict())
            assert resumed.state_dict() == sampler.state_dict()
            assert list(copy.deepcopy(resumed)) == order
            sampler = resumed
        assert list(sampler) == order
        sampler.set_epoch(0)
        assert sampler.state_dict() == sampler.state_dict(len(order))
        sampler.set_epoch(1)
        assert sampler.state_dict() == sampler.state_dict(0)
        next(iter(sampler))
        sampler.epoch = 2
        assert sampler.state_dict() == sampler.state_dict(0)


def test_a_later_epoch_stays_where_nothing_is_left_of_a_loaded_one() -> None:
    """StatefulDataLoader loads the state of the sampler when the next pass begins."""
    whole = DistributedSampler(50, 2, 1)
    list(whole)
    resumed = DistributedSampler(50, 2, 1)
    resumed.epoch = 1
    resumed.load_state_dict(whole.state_dict())
    whole.set_epoch(1)
    assert list(resumed) == list(whole)
    resumed.load_state_dict(whole.state_dict(25))  # goes back: nothing announces another epoch
    resumed.load_state_dict(DistributedSampler(50, 2, 1).state_dict(25))
    assert resumed.epoch == 0
    assert list(resumed) == []
    resumed.set_epoch(2)
    resumed.load_state_dict(whole.state_dict(24))  # of which a sample is left
    assert (resumed.epoch, len(resumed)) == (1, 1)


def test_torch_saves_and_loads_a_sampler(tmp_path: Path) -> None:
    sampler = DistributedSampler(50, 2, 1)
    loader = iter(DataLoader(Numbers(50), 4, sampler=sampler))
    seen = [next(loader).tolist() for _ in range(3)]
    dcp.save({"sampler": sampler}, checkpoint_id=tmp_path, no_dist=True)
    resumed = DistributedSampler(50, 2, 1)
    dcp.load({"sampler": resumed}, checkpoint_id=tmp_path, no_dist=True)
    assert [*itertools.chain(*seen), *resumed] == list(DistributedSampler(50, 2, 1))


# --- groups


def of_the_group(rank: int, world_size: int) -> None:
    for sampler in (
        DistributedSampler(9),
        DistributedWeightedRandomSampler([1.0], 9),
        DistributedBucketBatchSampler([1] * 9, 2),
    ):
        assert (sampler.rank, sampler.num_replicas) == (rank, world_size)


@pytest.mark.parametrize("backend", ["farandole", "gloo"])
def test_ranks_are_those_of_the_default_group(backend: str) -> None:
    ranks.run(of_the_group, 2, setup=ranks.Setup(backend=backend))


# --- C++


def drawn_cases(draw: random.Random) -> Iterator[tuple[str, list[list[int]]]]:
    """A line for the program, and the batches that Python has."""
    for _ in range(200):
        name = draw.choice(
            [
                "DistributedSampler",
                "DistributedWeightedRandomSampler",
                "DistributedBucketBatchSampler",
            ]
        )
        size, epoch, batch_size = draw.randrange(1, 60), draw.randrange(5), draw.randint(1, 5)
        drop_last, even_divisible = draw.choice([(True, True), (False, True), (False, False)])
        shared: dict[str, Any] = {
            "seed": draw.randrange(-5, 5),
            "drop_last": drop_last,
            "even_divisible": even_divisible,
        }
        own: dict[str, Any] = {"shuffle": draw.random() < 0.7}
        values: list[float] = []
        if name == "DistributedSampler":
            own["dataset"] = size
        elif name == "DistributedWeightedRandomSampler":
            values = [draw.random() for _ in range(size)]
            own = {
                "weights": values,
                "num_samples": draw.randint(1, size),
                "replacement": draw.random() < 0.5,
            }
        else:
            values = [draw.randint(1, 20) for _ in range(size)]
            own |= {"lengths": values, "batch_size": batch_size, "bucket_batches": 2}
        kind = getattr(farandole, name)
        num_replicas, before = draw.randint(1, 4), draw.randint(1, 4)
        old = kind(num_replicas=before, rank=0, **shared, **own)
        old.set_epoch(epoch)
        consumed = draw.randint(0, len(old))
        sampler = kind(
            num_replicas=num_replicas, rank=draw.randrange(num_replicas), **shared, **own
        )
        sampler.load_state_dict(old.state_dict(consumed))
        numbers = shared | own
        numbers |= {"size": size, "epoch": epoch, "batch_size": batch_size, "consumed": consumed}
        numbers |= {"num_replicas": num_replicas, "num_replicas_before": before}
        numbers |= {"rank": sampler.rank, "shuffle": numbers.get("shuffle", False)}
        words = [f"{key}={int(number)}" for key, number in numbers.items() if key in WORDS]
        batches = list(sampler)
        if name != "DistributedBucketBatchSampler":
            batches = [batches[i : i + batch_size] for i in range(0, len(batches), batch_size)]
        yield " ".join([name, *words, "/", *map(repr, values)]), batches


WORDS = (
    *("size", "shuffle", "seed", "drop_last", "even_divisible", "num_samples", "replacement"),
    *("batch_size", "bucket_batches", "num_replicas", "num_replicas_before", "rank", "epoch"),
    "consumed",
)


@pytest.mark.system
def test_samplers_of_cpp_have_the_same_indices() -> None:
    cases = list(drawn_cases(random.Random(6)))
    done = subprocess.run(
        [PROGRAM],
        input="".join(f"{line}\n" for line, _ in cases),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (line, batches), printed in zip(cases, done.stdout.splitlines(), strict=True):
        found = [[int(word) for word in part.split()] for part in printed.split("/")[:-1]]
        assert found == batches, line
