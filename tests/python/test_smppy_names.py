# SPDX-License-Identifier: Apache-2.0
"""smppy and smprof by their own names, and the examples of both kinds."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import farandole
import pytest
from farandole.profiler import Profile
from farandole_compat import finder

import run_command

finder.install()
import smppy  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples" / "sagemaker"


@pytest.fixture
def profiler() -> smppy.SMProfiler:
    return smppy.SMProfiler()


def config(**options: str) -> smppy.Config:
    made = smppy.Config()
    made.profiler = options
    return made


def names_in(folder: Path) -> Counter[str]:
    (rank,) = Profile(folder).timeline.ranks()
    return Counter(span.name for span in rank.spans("annotation"))


def test_smprof_is_smppy() -> None:
    import smprof

    assert smprof.SMProfiler.instance() is smppy.SMProfiler.instance()
    assert smprof.annotate is smppy.annotate


@pytest.mark.system
def test_what_is_between_start_and_stop_is_recorded(
    profiler: smppy.SMProfiler, tmp_path: Path
) -> None:
    profiler.configure(config(EnableCuda="1", RecordFile=f"{tmp_path}/%p_%t", BucketCount="4"))

    @smppy.annotate("Function")
    def function() -> None:
        pass

    function()
    profiler.start_profiling()
    with smppy.annotate("Block"):
        function()
        smppy.annotation_end(smppy.annotation_begin("Begun"))
    profiler.stop_profiling()
    function()
    assert names_in(tmp_path) == {"Block": 1, "Function": 1, "Begun": 1}


def test_the_configuration_file_says_where(
    profiler: smppy.SMProfiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profilerconfig.json"
    path.write_text(json.dumps({"LocalPath": str(tmp_path / "out")}))
    monkeypatch.setenv("SMPROFILER_CONFIG_FILE_PATH", str(path))
    profiler.start_profiling()
    with smppy.annotate("Here"):
        pass
    profiler.stop_profiling()
    assert names_in(tmp_path / "out") == {"Here": 1}

    path.write_text("{")
    with pytest.raises(farandole.InvalidArgument, match=r"sagemaker-profiler-config"):
        profiler.start_profiling()


def test_the_default_folder_is_that_of_the_container(
    profiler: smppy.SMProfiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from farandole.sagemaker import places

    monkeypatch.setenv("SMPROFILER_CONFIG_FILE_PATH", str(tmp_path / "none.json"))
    assert places.profiler_folder() == Path("/opt/ml/output/profiler")
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(places, "_PROFILER", file / "profiler")  # cannot be made
    with pytest.raises(farandole.NotSupported, match=r"(?s)'.*file/profiler'.*sagemaker-folder"):
        profiler.start_profiling()


@pytest.mark.system
@pytest.mark.parametrize("name", ["EnablePerf", "EnableForkFollow"])
def test_what_is_not_offered_is_refused_if_it_is_asked_for(
    profiler: smppy.SMProfiler, name: str
) -> None:
    profiler.configure(config(**{name: "0"}))
    with pytest.raises(farandole.NotSupported, match=rf"{name}(?s:.*)sagemaker-absent"):
        profiler.configure(config(**{name: "1"}))


@pytest.mark.system
def test_wrong_types_are_told(profiler: smppy.SMProfiler) -> None:
    nothing: Any = None
    unset = smppy.Config()
    unset.profiler = nothing
    for misuse in (
        lambda: profiler.configure(nothing),
        lambda: profiler.configure(unset),
        lambda: smppy.annotate(nothing),
        lambda: smppy.annotation_begin(nothing),
        lambda: smppy.annotation_end(nothing),
    ):
        with pytest.raises(farandole.InvalidArgument, match="argument-type"):
            misuse()


@pytest.mark.system
def test_an_unknown_option_is_named(profiler: smppy.SMProfiler) -> None:
    with pytest.raises(farandole.InvalidArgument, match=r"(?s)'EnableTpu'.*profiler-option"):
        profiler.configure(config(EnableTpu="1"))


@pytest.mark.system
def test_a_script_on_two_ranks_shows_its_steps(tmp_path: Path) -> None:
    script = EXAMPLES / "smppy_script.py"
    assert "farandole" not in re.sub(r'""".*?"""', "", script.read_text(), flags=re.DOTALL)
    done = run_command.run("-n", "2", script, str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = Profile(tmp_path).timeline.ranks()
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        counts = Counter(span.name for span in rank.spans("annotation"))
        del counts["Optimizer.zero_grad#SGD.zero_grad"]  # torch's own
        assert counts == {"Forward": 20, "Backward": 20, "Optimizer": 20}
        assert rank.spans("collective")


@pytest.mark.system
def test_natively(tmp_path: Path) -> None:
    done = run_command.run("-n", "2", EXAMPLES / "smppy_native.py", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "all-ranks.json.gz").stat().st_size > 100
