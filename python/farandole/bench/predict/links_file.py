# SPDX-License-Identifier: Apache-2.0
"""Links in a file: measured times, numbers or presets. docs/predict.md has the format."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from farandole.bench.predict.collectives import Operation
from farandole.bench.predict.fit import Measured, fitted
from farandole.bench.predict.layout import Layout
from farandole.bench.predict.links import GB, US, Algorithm, Link, Links
from farandole.bench.predict.presets import BETWEEN, WITHIN, link_of
from farandole.errors import Error, InvalidArgument, sentences
from farandole.foreign_text import json_of

FORMAT = "farandole-links-1"


def load_links(path: str | Path) -> Links:
    """Reads a file of links.

    Raises:
        InvalidArgument: it is none.
    """
    try:
        return links_of(json_of(Path(path).read_bytes()))
    except Error:
        raise
    except (OSError, ArithmeticError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            sentences(
                "predict-links-file",
                f"'{path}' is no file of links.",
                f"it must be JSON of the format {FORMAT}: {type(error).__name__}: {error}.",
                "docs/predict.md has the format and an example.",
            )
        ) from error


def links_of(read: dict[str, Any]) -> Links:
    """What the file says."""
    if read["format"] != FORMAT:
        raise ValueError("another format")
    algorithm = Algorithm(read["algorithm"])
    cores = read.get("cores_per_host")
    return Links(
        within=_link(read["within_host"], WITHIN, algorithm),
        between=_link(read["between_hosts"], BETWEEN, algorithm),
        algorithm=algorithm,
        launch_s=_from_zero(read.get("launch_us", 0.0)) * US,
        cores_per_host=None if cores is None else _above_zero(cores),
        busy_factor=_above_zero(read.get("busy_factor", 1.0)),
    )


def _link(read: dict[str, Any], presets: dict[str, Link], algorithm: Algorithm) -> Link:
    """One level: a preset, measured times or numbers."""
    if "preset" in read:
        return link_of(read["preset"], presets)
    cpu_s_per_byte = _from_zero(read.get("cpu_s_a_gb", 0.0)) / GB
    message_s = _from_zero(read.get("message_us", 0.0)) * US
    if "measured" in read:
        times = read["measured"]
        measured = Measured(
            operation=Operation(times.get("operation", "all_reduce")),
            layout=_level(int(times["hosts"]), int(times["ranks_per_host"])),
            pairs=tuple((_finite(size), _finite(seconds)) for size, seconds in times["pairs"]),
            cpu_s_per_byte=cpu_s_per_byte,
            message_s=message_s,
        )
        return fitted(measured, algorithm)
    return Link(
        latency_s=_from_zero(read["latency_us"]) * US,
        bytes_per_s=_above_zero(read["gb_per_s"]) * GB,
        spread=_from_zero(read.get("spread", 0.0)),
        message_s=message_s,
        cpu_s_per_byte=cpu_s_per_byte,
        source=str(read.get("source", "")),
    )


def _level(hosts: int, ranks_per_host: int) -> Layout:
    """One level alone: its times say nothing of the other one."""
    layout = Layout(hosts, ranks_per_host)
    if min(hosts, ranks_per_host) != 1 or layout.ranks < 2:
        raise ValueError("times are measured on one host, or on hosts with one rank each")
    return layout


def _above_zero(number: Any) -> float:
    if not _finite(number) > 0:
        raise ValueError(f"{number} is not above 0")
    return float(number)


def _from_zero(number: Any) -> float:
    if _finite(number) < 0:
        raise ValueError(f"{number} is below 0")
    return float(number)


def _finite(number: Any) -> float:
    if not math.isfinite(float(number)):
        raise ValueError(f"{number} is not finite")
    return float(number)
