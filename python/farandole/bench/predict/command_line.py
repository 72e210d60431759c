# SPDX-License-Identifier: Apache-2.0
"""Options of `farandole bench predict`."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

from farandole.bench.outcome import RIGHT, USAGE
from farandole.bench.predict import report
from farandole.bench.predict.advice import effects
from farandole.bench.predict.links import Links
from farandole.bench.predict.links_file import load_links
from farandole.bench.predict.prediction import Conditions, draws_of, predict
from farandole.bench.predict.presets import BETWEEN, WITHIN, preset
from farandole.bench.predict.recorded_step import RecordedStep, load_step
from farandole.bench.predict.simulation import Options, Zero
from farandole.bench.rows import check_writable
from farandole.errors import Error, InvalidArgument, sentences

RANKS = [2**power for power in range(1, 11)]
RECORDED_STEPS = 20
_EXAMPLES = """
examples:
  farandole bench predict --record train:setup -o step.json
                        record; setup() returns (module, optimizer, a function that takes one step)
  farandole bench predict step.json --within nvlink4 --between ib-ndr-x8
  farandole bench predict step.json --links links.json --ranks-per-host 1
                        links that were measured; docs/predict.md has the format
  farandole bench predict step.json --between 25gbe --zero shard --wire-dtype bfloat16
"""


def make_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="farandole bench predict",
        description="Predicts how a training step scales, from the step of one rank and its links.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("step", nargs="?", help="file of a recorded step")
    add("--record", metavar="MODULE:FUNCTION", help="record a step instead, and write it to -o")
    add(
        "-o", "--output", default="step.json", help="file for the recorded step; default: step.json"
    )
    add(
        "--steps",
        type=int,
        default=RECORDED_STEPS,
        help="number of steps to record; default: %(default)s",
    )
    add("--list-links", action="store_true", help="print the presets with their sources")
    add("--links", metavar="FILE", help="use measured links instead of presets")
    add("--within", help=f"link within a host: {', '.join(WITHIN)}; default: nvlink4, "
        "or shared-memory for a step recorded on the CPU")  # fmt: skip
    add("--between", help=f"link between hosts: {', '.join(BETWEEN)}; default: 100gbe")
    add("--ranks-per-host", type=int, default=8, help="number of ranks on each host; default: 8")
    add("--ranks", type=int, nargs="+", help="numbers of ranks to predict; default: 2 to 1024")
    add("--bucket-mb", type=float, help="bucket_cap_mb; default: DistributedDataParallel's")
    add("--wire-dtype", choices=("bfloat16", "float16"), help="dtype in which float32 is sent")
    add("--zero", choices=[each.value for each in Zero], default="none",
        help="ZeroRedundancyOptimizer: none, gradients=full or shard, shard_over=host")  # fmt: skip
    add("--overlap-with-ddp", action="store_true", help="the option of ZeroRedundancyOptimizer")
    add("--jitter", type=float, metavar="PERCENT", help="standard deviation of a rank's step; "
        "default: that of the recorded steps")  # fmt: skip
    add("--seed", type=int, default=0, help="seed of the simulated steps")
    add("--json", action="store_true", help="print JSON, for programs")
    return parser


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit status."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        if options.list_links:
            print(_presets())
        elif options.record is not None:
            check_writable("--output", Path(options.output))
            recorded = record(options.record, options.steps)
            recorded.save(options.output)
            print(f"{options.output}: {len(recorded.gradients)} gradients, "
                  f"{recorded.step_ms:.2f} ms a step")  # fmt: skip
        elif options.step is not None:
            print(_prediction(options))
        else:
            parser.print_help(sys.stderr)
            return USAGE
    except Error as error:
        print(error, file=sys.stderr)
        return USAGE
    return RIGHT


def record(target: str, steps: int) -> RecordedStep:
    """Takes steps of what MODULE:FUNCTION returns.

    Raises:
        InvalidArgument: there is no such function, or it returns something else.
    """
    from farandole.bench.predict.recording import StepRecorder

    module, optimizer, step = _training(target)
    recorder = StepRecorder(module, optimizer)
    for _ in range(steps):
        with recorder.step():
            step()
    recorder.close()
    return recorder.recorded()


def _training(target: str) -> tuple[Any, Any, Any]:
    name, _, function = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module, optimizer, step = getattr(importlib.import_module(name), function)()
        if not (hasattr(module, "parameters") and callable(step)):
            kinds = f"{type(module).__name__}, {type(optimizer).__name__}, {type(step).__name__}"
            raise TypeError(f"it returned ({kinds})")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InvalidArgument(
            sentences(
                "predict-record",
                f"--record was '{target}'.",
                f"that gave no module, optimizer and step: {type(error).__name__}: {error}.",
                "write a function without arguments that returns (module, optimizer, step), where "
                "step() takes one training step, and pass its MODULE:FUNCTION.",
            )
        ) from error
    return module, optimizer, step


def _prediction(options: argparse.Namespace) -> str:
    """The tables."""
    conditions = _conditions(options)
    draws = draws_of(options.seed)
    ranks = options.ranks or _usual_ranks(options.ranks_per_host)
    predictions = [predict(conditions, each, draws) for each in sorted(set(ranks))]
    found = effects(conditions, predictions[-1].layout.ranks, draws)
    if options.json:
        return json.dumps(report.rows_of(predictions, found))
    return report.text_of(conditions, predictions, found)


def _conditions(options: argparse.Namespace) -> Conditions:
    step = load_step(options.step)
    for name, value, least in (
        ("--ranks-per-host", options.ranks_per_host, 1),
        ("--ranks", min(options.ranks or [1]), 1),
        ("--bucket-mb", options.bucket_mb, 1e-6),
        ("--jitter", options.jitter, 0),
    ):
        if value is not None and not least <= value < math.inf:
            raise InvalidArgument(
                sentences(
                    "predict-option",
                    f"{name} was {value}.",
                    f"it must be a number of at least {least:g}.",
                    f"pass such a number; farandole bench predict --help explains {name}.",
                )
            )
    return Conditions(
        step=step,
        links=_links(options, step),
        ranks_per_host=options.ranks_per_host,
        options=Options(
            bucket_cap_mb=options.bucket_mb,
            wire_dtype=options.wire_dtype,
            zero=Zero(options.zero),
            overlap_with_ddp=options.overlap_with_ddp,
        ),
        jitter=step.jitter() if options.jitter is None else options.jitter / 100,
    )


def _links(options: argparse.Namespace, step: RecordedStep) -> Links:
    if options.links is None:
        within = options.within or ("shared-memory" if step.device == "cpu" else "nvlink4")
        return preset(within, options.between or "100gbe")
    if options.within is not None or options.between is not None:
        raise InvalidArgument(
            sentences(
                "predict-links-twice",
                "--links cannot be combined with --within or --between.",
                "all of them tell the links.",
                'leave one out; a file may name presets, as {"preset": "nvlink4"}.',
            )
        )
    return load_links(options.links)


def _usual_ranks(ranks_per_host: int) -> list[int]:
    """Those of the powers of 2 that fill their hosts."""
    found = [each for each in RANKS if each <= ranks_per_host or each % ranks_per_host == 0]
    return found or [2 * ranks_per_host]


def _presets() -> str:
    lines = []
    for title, presets in (("--within (a rank)", WITHIN), ("--between (a host)", BETWEEN)):
        lines.append(title)
        for name, link in presets.items():
            lines.append(f"  {name.ljust(14)} {report.link_text(link)}\n      {link.source}")
    return "\n".join(lines)
