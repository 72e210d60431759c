# SPDX-License-Identifier: Apache-2.0
"""Predictions beside published runs of ResNet-50 on 8 to 64 V100; docs/predict.md has the table.

    python -m benchmarks.predict.published                       # prints the table
    python -m benchmarks.predict.published --record step.json    # renews resnet50_v100.json

resnet50_v100.json was not recorded on a V100: when each gradient is ready, as a part of the step,
is from a CPU (4 images of 224 x 224), and the step is as long as NVIDIA measured on a V100.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from farandole.bench.predict import (
    Conditions,
    Options,
    RecordedStep,
    draws_of,
    load_step,
    predict,
    preset,
)

from benchmarks.harness.tables import markdown

STEP = Path(__file__).parent / "resnet50_v100.json"
IMAGES, IMAGES_A_SECOND = 256, 747.9  # 2886.9 on 4 GPUs / 3.86, mixed precision, DGX-1:
SOURCE = (
    "https://github.com/NVIDIA/DeepLearningExamples/commit/20f09772f8c741d28373db6f9ddebb5d54735103"
)
OPTIMIZER_MS = 0.6  # SGD with momentum: 5 x 102 MB at 900 GB/s
RANKS = (8, 16, 32, 64)
JITTER = 0.02


def conditions() -> dict[str, Conditions]:
    """What is predicted, by name."""
    links = preset("nvlink2", "25gbe")
    base = Conditions(load_step(STEP), links, 8, Options(), JITTER)
    halved = Options(wire_dtype="float16")
    return {
        "gradients in float32, jitter 2 %": base,
        "the same without jitter": replace(base, jitter=0.0),
        "gradients in float16, jitter 2 %": replace(base, options=halved),
        "float32, jitter 2 %, nothing overlaps": replace(base, options=Options(1000)),
    }


def table() -> str:
    """Markdown; the same for the same sources."""
    lines = [["Predicted efficiency", *(f"{ranks} GPUs" for ranks in RANKS)]]
    for name, given in conditions().items():
        cells = []
        for ranks in RANKS:
            found = predict(given, ranks, draws_of(0))
            interval = f"{100 * found.low:.1f} to {100 * found.high:.1f}"
            cells.append(f"{100 * found.efficiency:.1f} % ({interval})")
        lines.append([name, *cells])
    return markdown(lines)


def scaled(step: RecordedStep) -> RecordedStep:
    """To the V100's step."""
    step_ms = 1e3 * IMAGES / IMAGES_A_SECOND
    factor = (step_ms - OPTIMIZER_MS) / step.backward_end_ms
    return replace(
        step,
        name=f"ResNet-50, {IMAGES} images, V100 (scaled from a CPU)",
        device="cuda",
        gradients=tuple(
            replace(each, ready_ms=round(factor * each.ready_ms, 3)) for each in step.gradients
        ),
        forward_ms=round(factor * step.forward_ms, 3),
        optimizer_ms=OPTIMIZER_MS,
        other_ms=0.0,
        steps_ms=((round(step_ms, 3),),),
        buffer_bytes=0,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", type=Path, help="a step of ResNet-50 on a CPU")
    if recorded := parser.parse_args().record:
        scaled(load_step(recorded)).save(STEP)
    print(table())
