# SPDX-License-Identifier: Apache-2.0
"""Options of `farandole run` for jobs whose ranks may change."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from farandole.errors import InvalidArgument, sentences
from farandole.run.elastic.settings import ElasticSettings
from farandole.run.hosts import Host

_HERE = "localhost"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds them, in a group of their own."""
    add = parser.add_argument_group("ranks that may be lost and may come (farandole.elastic)")
    add.add_argument("--min-ranks", metavar="N", help="go on after a rank was lost while so many "
        "are left; default: as many as -n")  # fmt: skip
    add.add_argument("--max-ranks", metavar="N", help="let new ranks come, up to so many in all; "
        "default: as many as -n")  # fmt: skip
    add.add_argument("--host-discovery-script", metavar="COMMAND", help="prints host:slots lines; "
        "called every second, in place of --hosts")  # fmt: skip
    add.add_argument("--slots-per-host", metavar="N", help="of hosts that it prints without them")
    add.add_argument("--elastic-timeout", metavar="S", default="600", help="seconds to wait for "
        "the smallest number of ranks; default: 600")  # fmt: skip
    add.add_argument("--reset-limit", metavar="N", help="end when ranks have met again so often")
    add.add_argument("--cooldown", metavar=("MIN", "MAX"), nargs=2, help="start a rank in the "
        "place of a lost one after MIN seconds, twice that the next time, up to MAX")  # fmt: skip


def is_elastic(options: argparse.Namespace) -> bool:
    """Whether they ask for such a job."""
    given = (options.min_ranks, options.max_ranks, options.host_discovery_script)
    return any(each is not None for each in given)


def settings_of(
    options: argparse.Namespace,
    command: list[str],
    hosts: list[Host],
    number: Callable[..., int],
    default_ranks: int,
) -> ElasticSettings:
    """What they ask for.

    Args:
        options: As parsed.
        command: Of each rank.
        hosts: Those of --hosts or --hostfile.
        number: Reads an option that is an integer.
        default_ranks: Without -n.

    Raises:
        InvalidArgument: one has a wrong value, or two do not go together.
    """

    def of(name: str, text: str | None, default: int, least: int = 1) -> int:
        return default if text is None else number(name, text, least=least)

    least = of("--min-ranks", options.min_ranks, 0)
    ranks = of("-n", options.ranks, least or default_ranks)
    most = of("--max-ranks", options.max_ranks, ranks)
    places = {host.name: host.slots or 1 for host in hosts}
    script = options.host_discovery_script
    if script is None and not places:
        places = {_HERE: most}
    slots, limit = options.slots_per_host, options.reset_limit
    return ElasticSettings(
        command=command,
        ranks=ranks,
        min_ranks=least or ranks,
        max_ranks=most,
        hosts=places,
        discovery_script=script,
        slots_per_host=None if slots is None else of("--slots-per-host", slots, 1),
        elastic_timeout_s=of("--elastic-timeout", options.elastic_timeout, 600),
        reset_limit=None if limit is None else of("--reset-limit", limit, 0, least=0),
        cooldown_s=_cooldown(options.cooldown, of),
        prefix=not options.no_prefix,
        output_folder=Path(options.output_dir) if options.output_dir else None,
        quiet=options.quiet,
    )


def _cooldown(
    given: list[str] | None, number: Callable[[str, str | None, int], int]
) -> tuple[float, float] | None:
    if given is None:
        return None
    return number("--cooldown", given[0], 1), number("--cooldown", given[1], 1)


def check_others(options: argparse.Namespace) -> None:
    """Fail if options were given that an elastic job does not have.

    Raises:
        InvalidArgument: so.
    """
    others = {
        "--nnodes": options.nnodes,
        "--max-restarts": options.max_restarts != "0",
        "--mpirun-args": options.mpirun_args,
        "--from-sagemaker": options.from_sagemaker,
    }
    given = [name for name, value in others.items() if value]
    if given:
        raise InvalidArgument(
            sentences(
                "elastic-options",
                f"ranks that may change cannot be combined with {', '.join(given)}.",
                "farandole run starts them itself, without torchrun and mpirun.",
                "leave it out, or leave out --min-ranks, --max-ranks and --host-discovery-script.",
            )
        )
