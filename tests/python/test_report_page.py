# SPDX-License-Identifier: Apache-2.0
"""The page of `farandole report`: whole, without anything else, and readable for everybody."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import pytest
from farandole.__main__ import main as farandole_command
from farandole.profiler import Profile
from farandole.report import command_line
from farandole.report.comparison import comparison_of
from farandole.report.comparison_page import comparison_page
from farandole.report.figures import figures_of
from farandole.report.page import page
from farandole.report.strip import strip
from farandole.report.time_columns import MOST_COLUMNS

from profile_fixtures import START_S, TimelineWriter, core, gpu, write_metrics

SECTIONS = [
    "Job",
    "What to do",
    "What is missing",
    "Parts of a step",
    "Step times",
    "Exposed communication",
    "Stragglers",
    "Data loading",
    "Hardware",
    "Collectives",
    "Annotations",
    "Checkpoints",
    "Ranks and clocks",
    "Other rules",
    "What could not be read",
]
_EMPTY = {"meta", "img", "br", "rect", "line", "path", "circle", "polyline"}


class Checked(HTMLParser):
    """Raises where tags do not close each other; keeps what can be read, by section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.words: dict[str, str] = {}
        self._section = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.ids += [found["id"]] if found.get("id") else []  # type: ignore[list-item]
        self.targets += [found["href"]] if found.get("href") else []  # type: ignore[list-item]
        if tag == "img":
            self.images.append(found)
        if tag == "section":
            self._section = str(found["id"])
            self.words[self._section] = ""
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in _EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in _EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._section:
            self.words[self._section] += data + " "


def rich_profile(folder: Path, *, slow: int = 2000) -> Path:
    """Two ranks of which one is late, with all that can be recorded."""
    for rank in range(2):
        writer = TimelineWriter(folder, rank)
        for number in range(60):
            own = slow * rank
            writer.step(
                number,
                forward=3000 + own,
                exposed=100 + slow - own,
                latest=1,
                gc=30,
                workers=2,
                data=9000 if number == 40 else 100,
            )
        writer.span("collective", "all_reduce <world>", 2000, bytes=4000, waiting_us=500)
        writer.span("annotation", "Make & mend", 1000)
        writer.span("checkpoint", "save", 3000)
        writer.save()
    count = 120
    series = {core(i): [float((i * 20 + j) % 100) for j in range(count)] for i in range(4)}
    series |= {core(i, "I/OWaitPercentage"): [2.0] * count for i in range(4)}
    series |= {gpu(i): [80.0 * i] * count for i in range(2)}
    series |= {("memory", "MemoryUsedPercent", ""): [50.0] * count}
    for name in ("ReceiveBytesPerSecond", "TransmitBytesPerSecond"):
        series[("network", name, "Algorithm")] = [2e6] * count
    write_metrics(folder, series)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> str:
    return page(figures_of(Profile(rich_profile(tmp_path / "profile"))))


def test_the_page_needs_nothing_else(text: str) -> None:
    found = Checked(text)
    assert "<script" not in text
    assert "http" not in text
    assert not re.search(r"@import|url\((?!#)", text)
    assert all(str(each["src"]).startswith("data:image/png;base64,") for each in found.images)
    assert {each.removeprefix("#") for each in found.targets} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))


def test_each_section_says_what_was_recorded(text: str) -> None:
    words = Checked(text).words
    assert [name.lower().replace(" ", "-") for name in SECTIONS] == list(words)
    assert "training loop" in words["job"]
    assert "Straggler fired" in words["what-to-do"]
    assert "Rank 1 on algo-1 holds up the others by" in words["what-to-do"]
    assert "Advice:" in words["what-to-do"]
    assert "Nothing is missing." in words["what-is-missing"]
    assert "waiting for late ranks" in words["parts-of-a-step"]
    assert "rank 0 on algo-1: 12." in words["parts-of-a-step"]
    assert "step 40" in words["step-times"]
    assert "rank 1" in words["stragglers"]
    assert "num_workers" in words["data-loading"]
    assert "cpu3 of algo-1" in words["hardware"]
    assert "gpu1 of algo-1" in words["hardware"]
    assert "2 MB/s" in words["hardware"]
    assert "which least p25 median p75 p95" in one_line(words["hardware"])
    assert "memory of gpu1 of algo-1" not in words["hardware"]
    assert "all_reduce <world>" in words["collectives"]
    assert "Make & mend" in words["annotations"]
    assert "save" in words["checkpoints"]
    assert "30.1 us" in words["ranks-and-clocks"]
    assert "Without data" in words["other-rules"]
    assert "All was read." in words["what-could-not-be-read"]


def test_what_colours_say_words_and_patterns_say_too(text: str) -> None:
    found = Checked(text)
    assert all(each["alt"] for each in found.images)
    used = set(re.findall(r'class="part"[^>]* fill="url\(#(\w+)\)"', text))
    patterns = dict(re.findall(r'<pattern id="(\w+)"[^>]*>.*?<g stroke="#000">(.*?)</g>', text))
    assert used <= set(patterns)
    assert len(set(patterns.values())) == len(patterns)


def test_a_strip_is_a_picture_of_its_values() -> None:
    picture = strip([0, 50, 100, None, 300], 100, "words")
    data = re.search(r"base64,([^\"]+)", picture)
    assert data is not None
    png = base64.b64decode(data[1])
    assert struct.unpack(">II", png[16:24]) == (5, 1)
    start = png.index(b"IDAT") + 4
    length = struct.unpack(">I", png[start - 8 : start - 4])[0]
    pixels = zlib.decompress(png[start : start + length])
    levels = [half for byte in pixels[1:] for half in (byte >> 4, byte & 15)]
    assert levels == [1, 8, 15, 0, 15, 0]


def test_a_comparison_shows_the_gain(tmp_path: Path) -> None:
    before = rich_profile(tmp_path / "before", slow=12_000)
    after = rich_profile(tmp_path / "after", slow=0)
    found = comparison_of(*(figures_of(Profile(each)) for each in (before, after)))
    words = Checked(comparison_page(found)).words
    gain = r"A step took 22\.\d+ ms before and takes 10\.\d+ ms after: 2\.\d+ times as fast"
    assert re.search(gain, words["gain"])
    assert re.search(r"Straggler\s+fired\s+Rank 1.*did not fire", words["rules"])
    assert "GPUs 40 % 40 %" in one_line(words["hardware"])


def test_folders_without_steps_are_compared_too(tmp_path: Path) -> None:
    figures = figures_of(Profile(tmp_path))
    words = Checked(comparison_page(comparison_of(figures, figures))).words
    assert "nothing to compare" in words["gain"]
    assert "There is no timeline of any rank" in words["what-is-missing"]


def one_line(words: str) -> str:
    return " ".join(words.split())


def dumped(folder: Path, *options: str) -> str:
    """What Chromium prints; skips where there is none."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
               "--hide-scrollbars", "--allow-file-access-from-files",
               f"--user-data-dir={folder / 'chromium'}", "--virtual-time-budget=5000",
               *options]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


PHONE_PIXELS = 360

PROBE = """<!DOCTYPE html><iframe id="phone" width="{width}" height="800" style="border:0"
  srcdoc="{text}"></iframe><script>
  phone.onload = () => {{
    const page = phone.contentDocument, style = phone.contentWindow.getComputedStyle(page.body);
    const bars = [...page.querySelectorAll("rect.part")].map(each => each.getBoundingClientRect());
    const links = [...page.querySelectorAll("nav a")];
    const found = {{
      width: page.documentElement.scrollWidth, font: parseFloat(style.fontSize),
      images: [...page.images].filter(each => each.complete && each.naturalWidth).length,
      bars: bars.length, outside: bars.filter(each => each.right > {width} + 1).length,
      reached: links.filter(each => {{ each.focus(); return page.activeElement === each; }}).length,
      cut: [...page.querySelectorAll(".wide")].filter(
        each => each.scrollWidth > each.clientWidth + 1).length,
      words: page.querySelector("main").innerText,
    }};
    const out = document.createElement("pre");
    out.id = "found"; out.textContent = JSON.stringify(found); document.body.append(out);
  }};</script>"""


def probed(text: str, folder: Path) -> dict[str, Any]:
    """What PROBE finds on a page."""
    probe = folder / "probe.html"
    probe.write_text(PROBE.format(width=PHONE_PIXELS, text=html.escape(text)))
    output = re.search(r'<pre id="found">(.*?)</pre>', dumped(folder, "--dump-dom",
                       probe.as_uri()), re.DOTALL)  # fmt: skip
    assert output is not None
    found: dict[str, Any] = json.loads(html.unescape(output[1]))
    return found


@pytest.mark.system
def test_before_and_after_are_beside_each_other_on_a_phone_in_chromium(tmp_path: Path) -> None:
    figures = figures_of(Profile(rich_profile(tmp_path / "p")))
    found = probed(comparison_page(comparison_of(figures, figures)), tmp_path)
    assert found["cut"] == 0
    assert found["width"] <= PHONE_PIXELS


@pytest.mark.system
def test_the_page_is_readable_on_a_phone_and_by_keyboard_in_chromium(
    text: str, tmp_path: Path
) -> None:
    found = probed(text, tmp_path)
    assert found["width"] <= PHONE_PIXELS  # nothing to scroll sideways
    assert found["font"] >= 16
    assert found["images"] == len(Checked(text).images)
    assert found["bars"] > 10
    assert found["outside"] == 0
    assert found["reached"] == len(SECTIONS)
    for words in ("Straggler fired", "Rank 1 on algo-1 holds up the others", "cpu3 of algo-1"):
        assert words in found["words"]


@pytest.mark.system
def test_chromium_takes_a_picture(text: str, tmp_path: Path) -> None:
    file, picture = tmp_path / "report.html", tmp_path / "report.png"
    file.write_text(text)
    dumped(tmp_path, "--window-size=1000,3000", f"--screenshot={picture}", file.as_uri())
    png = picture.read_bytes()
    assert struct.unpack(">II", png[16:24]) == (1000, 3000)
    assert len(png) > 50_000  # text and heat maps do not pack well


@pytest.mark.parametrize("fault", ["empty", "no timeline", "no metrics", "cut", "foreign"])
def test_damaged_folders_give_a_page_that_says_so(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "profile"
    folder.mkdir()
    if fault != "empty":
        rich_profile(folder)
    expected = ["There is no timeline of any rank", "There are no system metrics"]
    if fault == "no timeline":
        shutil.rmtree(folder / "framework")
        expected = expected[:1]
    if fault == "no metrics":
        shutil.rmtree(folder / "system")
        expected = expected[1:]
    if fault == "cut":
        for file in folder.rglob("*.json"):
            file.write_bytes(b"\x00\xff{]\n" + file.read_bytes()[:-40])
        expected = ["1 damaged lines were left out", "its last line is unfinished"]
    if fault == "foreign":
        for file in folder.rglob("*.json"):
            file.with_suffix(".txt").write_text("notes")
            file.write_text('[1, {"a": []}, {"ph": "X", "ts": "x"}]\n{"Value": "much"}\n')
        expected = ["not a file of this kind", "damaged lines were left out"]
    output = tmp_path / "report.html"
    assert command_line.main([str(folder), "-o", str(output)]) == 0
    words = one_line(" ".join(Checked(output.read_text()).words.values()))
    for each in expected:
        assert each in words


DAMAGE: list[Any] = [float("nan"), float("inf"), 1e300, 10**30, -1, 0, "x", [], {}, None, True]


def damage(event: dict[str, Any], share: float, random: Random) -> None:
    """Puts something else where a share of the values are."""
    for name, value in event.items():
        if isinstance(value, dict):
            damage(value, share, random)
        elif random.random() < share:
            event[name] = random.choice(DAMAGE)


@pytest.mark.parametrize("seed", range(12))
def test_any_value_may_be_damaged(seed: int, tmp_path: Path) -> None:
    rich_profile(tmp_path)
    random = Random(seed)
    for file in tmp_path.rglob("*.json"):
        lines = []
        for line in file.read_text().splitlines():
            event = json.loads(line.rstrip(",")) if line[0] == "{" else None
            if event is not None:
                damage(event, random.choice([0, 0.01, 0.1]), random)
            lines.append(line if event is None else json.dumps(event))
        file.write_text("\n".join(lines))
    figures = figures_of(Profile(tmp_path))
    json.dumps(figures, allow_nan=False)
    assert list(Checked(page(figures)).words) == [
        name.lower().replace(" ", "-") for name in SECTIONS
    ]


def test_a_page_on_a_thousand_cores_is_small(tmp_path: Path) -> None:
    figures = figures_of(Profile(rich_profile(tmp_path)))
    random = Random(1)
    (row, *_) = figures["hardware"][0]["rows"]
    figures["hardware"][0]["rows"] = [
        {**row, "columns": [random.uniform(0, 100) for _ in range(MOST_COLUMNS)]}
        for _ in range(1000)
    ]
    assert len(page(figures)) < 2_000_000


def test_ranks_that_are_absent_are_named(tmp_path: Path) -> None:
    TimelineWriter(tmp_path, 1, world_size=4).save()
    words = Checked(page(figures_of(Profile(tmp_path)))).words["what-is-missing"]
    assert "Of ranks 0, 2, 3 there is no timeline" in words
    assert "Of rank 1 no step was recorded." in words


def test_the_command_writes_page_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output, figures = rich_profile(tmp_path / "p"), tmp_path / "o.html", tmp_path / "o.json"
    arguments = ["report", str(folder), "-o", str(output), "--json", str(figures)]
    assert farandole_command(arguments) == 0
    found: dict[str, Any] = json.loads(figures.read_text())
    assert found["version"] == 1
    assert found["job"]["start_time"] == START_S
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Straggler: rank 1 on algo-1")
    assert printed[-1] == f"The page is in {output}."
    both = ["--compare", str(folder), str(folder), "-o", str(output), "--json", str(figures)]
    assert command_line.main(both) == 0
    assert json.loads(figures.read_text())["step"]["speedup"] == 1.0


def test_pages_lie_beside_what_they_show_unless_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rich_profile(tmp_path / "before")
    rich_profile(tmp_path / "after")
    for arguments, name in (
        (["after"], "after/report.html"),
        (["--compare", "before", "after"], "after/comparison.html"),
    ):
        assert command_line.main(arguments) == 0
        assert capsys.readouterr().out.endswith(f"The page is in {name}.\n")
        assert (tmp_path / name).is_file()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["after", "before"]
    assert not Profile(tmp_path / "after").problems()  # a page is no file that cannot be read


def test_the_numbers_of_the_axis_are_beside_the_chart(text: str) -> None:
    axis, chart = re.findall(r'<div class="timed">(<svg .*?</svg>)(.*?)</div>', text)[0]
    assert axis.count(" ms</text>") == 5
    assert not re.search(r">[0-9.]+ ms</text>", chart)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], "[profile-folder]"),
        (["x" * 300], "[profile-folder]"),
        ([".", "--tensors", "x" * 300], "[debugger-trial]"),
        ([".", "-o", "x" * 300], "[report-output]"),
        (["--compare", ".", "nowhere"], "[profile-folder]"),
        ([".", "-o", "nowhere/page.html"], "[report-output]"),
    ],
)
def test_what_cannot_be_read_or_written_is_status_2(
    arguments: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_line.main(arguments) == 2
    assert error in capsys.readouterr().err


def test_names_that_are_no_utf8_are_shown_with_escapes(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = tmp_path / os.fsdecode(b"run\xff\x1b[31m")
    TimelineWriter(folder).save()
    (folder / "system" / os.fsdecode(b"\xff")).mkdir(parents=True)
    (folder / "system" / os.fsdecode(b"\xff") / "x").touch()
    page = tmp_path / os.fsdecode(b"page\xff.html")
    assert command_line.main([str(folder), "-o", str(page)]) == 0
    assert r"system/\udcff/x" in page.read_text()
    assert farandole_command(["top", str(folder), "--once"]) == 0
    printed = capsysbinary.readouterr().out
    assert rb"page\udcff.html" in printed
    assert b"\x1b" not in printed


@pytest.mark.parametrize("arguments", [["report", "."], ["top", ".", "--once"]])
def test_without_numpy_the_command_says_what_to_install(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert farandole_command(arguments) == 2
    assert "[report-numpy]" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], [".", "--compare", ".", "."], [".", "--fast"]])
def test_wrong_options_are_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert ended.value.code == 2


def test_very_many_and_very_long_names_are_cut(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path, world_size=1)
    writer.span("annotation", "n" * 1000, 100)
    for number in range(150):
        writer.span("annotation", f"<b>step {number}", 10)
    writer.save()
    text = page(figures_of(Profile(tmp_path)))
    assert "And 51 other names" in text
    assert "n" * 60 + "..." in text
    assert "n" * 61 not in text
    assert "<b>" not in text


def test_several_processes_of_a_rank_are_told(tmp_path: Path) -> None:
    rich_profile(tmp_path)
    folder = tmp_path / "framework" / "pevents" / "2020060304"
    for path in folder.iterdir():
        other = path.name.replace("_1", "_7", 1)
        (folder / other).write_text(path.read_text())
    words = Checked(page(figures_of(Profile(tmp_path)))).words["what-is-missing"]
    assert "2 processes of one rank have recorded" in words
