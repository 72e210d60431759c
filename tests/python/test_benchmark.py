# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs, verifies what it measures, and reports it as documented."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules of benchmarks/collectives, which are scripts beside each other."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "collectives"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import measure
    import report
    import update_readme

    yield SimpleNamespace(measure=measure, report=report, update_readme=update_readme)
    for name in ("measure", "report", "lanes", "update_readme"):
        sys.modules.pop(name, None)


def row(lane: str, median_us: float, *, ranks: int = 2, size: int = 2**20) -> dict[str, object]:
    return {"lane": lane, "ranks": ranks, "bytes": size, "median_us": median_us}


@pytest.mark.timeout(300)
def test_quick_run_measures_and_verifies_all_lanes(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "collectives" / "run.py"), "--quick"]
    command += ["--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without " not in done.stdout, done.stdout
    rows = [json.loads(line) for line in (tmp_path / "collectives.jsonl").read_text().splitlines()]
    cells = [each for each in rows if "bytes" in each]
    lanes = {"farandole_symmetric", "farandole_ordinary", "farandole_torch", "gloo_torch"}
    assert {each["lane"] for each in cells} == lanes | {"openmpi"}
    assert {each["bytes"] for each in cells} == {4, 1024, 256 * 1024}
    for each in cells:
        assert each["verified"]
        assert 0 < each["median_us"] <= each["p95_us"]
        busbw = each["bytes"] / each["median_us"] / 1e3  # 2 (n - 1) / n is 1 for two ranks
        assert each["busbw_gb_s"] == pytest.approx(busbw, rel=0.01, abs=1e-3)
    assert next(each for each in rows if each["lane"] == "import")["import_farandole_ms"] > 0
    assert {"commit", "cpu", "cores", "torch", "openmpi", "timestamp"} <= rows[0].keys()
    assert (tmp_path / "all_reduce.png").stat().st_size > 0
    assert (tmp_path / "all_reduce.svg").stat().st_size > 0


def test_percentile_is_a_measured_value(scripts: SimpleNamespace) -> None:
    assert scripts.measure.percentile(range(1, 101), 95) == 95
    assert scripts.measure.percentile([3.0], 95) == 3.0
    assert scripts.measure.percentile([1, 2, 3, 4], 50) == 2


def test_targets_say_by_how_much_they_are_missed(scripts: SimpleNamespace) -> None:
    rows = [row("farandole_symmetric", 10), row("gloo_torch", 150), row("openmpi", 31)]
    states = dict(scripts.report.targets(scripts.report.Results(rows)))
    name = "2 ranks, C++ symmetric, 256 KiB to 64 MiB"
    assert states[f"{name}: >= 20x gloo"] == "15x at 1 MiB, short by 1.33x"
    assert states[f"{name}: >= 3x OpenMPI"] == "3.1x at 1 MiB, reached"
    assert states["2 ranks, through torch, 1 KiB: <= 20 us"] == "not measured"


def test_readme_gets_the_numbers_between_its_markers(scripts: SimpleNamespace) -> None:
    machine = {"cores": 2, "cpu": "a CPU", "torch": "2", "openmpi": "5", "commit": "abc"}
    rows = [{**row("gloo_torch", 150), **machine, "timestamp": "2026-01-02T03:04:05+00:00"}]
    text = scripts.update_readme.section(scripts.report.Results(rows))
    assert "| 1 MiB | - | - | - | 150 us | - | - | - | - |" in text
    begin, end = scripts.update_readme.BEGIN, scripts.update_readme.END
    readme = f"before\n{begin}\nold\n{end}\nafter\n"
    assert scripts.update_readme.filled(readme, "new") == f"before\n{begin}\nnew\n{end}\nafter\n"
