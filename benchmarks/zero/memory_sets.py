# SPDX-License-Identifier: Apache-2.0
"""Which lanes fit into memory together."""

from farandole.bench.sizes import MIB

from benchmarks.zero.lanes import lane_of

USABLE = 0.9  # of what is available at the start
REST_BYTES = 512 * MIB  # of a rank: libraries, activations, buffers of the groups


def needed_bytes(lanes: list[str], parameters: int, ranks: int) -> float:
    """Of all ranks. What a lane needs for a moment while it is made is less than its state."""
    steady = sum(lane_of(lane).steady_bytes(parameters, ranks) for lane in lanes)
    return ranks * (steady + REST_BYTES)


def sets_of(lanes: list[str], parameters: int, ranks: int, available: int) -> list[list[str]]:
    """Lanes in the order given, each in the first set with room for it and its baseline."""
    usable = USABLE * available
    baselines = {baseline for lane in lanes if (baseline := lane_of(lane).baseline) != lane}
    sets: list[list[str]] = []
    for lane in (lane for lane in lanes if lane not in baselines):
        joined = ((each, with_baseline(each, lane, lanes)) for each in sets)
        fit = (pair for pair in joined if needed_bytes(pair[1], parameters, ranks) <= usable)
        if found := next(fit, None):
            found[0][:] = found[1]
            continue
        alone = with_baseline([], lane, lanes)
        if (needed := needed_bytes(alone, parameters, ranks)) > usable:
            text = f"{lane} on {ranks} ranks needs {needed / MIB:.0f} MiB of {usable / MIB:.0f}"
            raise RuntimeError(f"{text} that are available; take a smaller model or less ranks")
        sets.append(alone)
    return sets


def with_baseline(lanes: list[str], lane: str, measured: list[str]) -> list[str]:
    """`lanes` and `lane`, and before it what its times are compared with, if that is measured."""
    added = [each for each in (lane_of(lane).baseline, lane) if each in measured]
    return [*dict.fromkeys([*lanes, *added])]
