# SPDX-License-Identifier: Apache-2.0
"""The documentation says what the sources say."""

import json
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
PAGES = [README, *sorted((REPOSITORY / "docs").glob("*.md"))]


def one_line(text: str) -> str:
    return " ".join(text.split())


def settings() -> dict[str, str]:
    """Each FARANDOLE_* variable and what its comment in config.h says of it."""
    found: dict[str, str] = {}
    name = ""
    for line in (REPOSITORY / "include/farandole/config.h").read_text().splitlines():
        comment = re.match(r"\s*/// ?(?:(FARANDOLE_\w+): )?(.*)", line)
        if not comment:
            name = ""
        elif comment[1]:
            name = comment[1]
            found[name] = comment[2]
        elif name:
            found[name] += " " + comment[2]
    return found


@pytest.mark.parametrize("name", settings())
def test_each_setting_is_explained_as_in_config_h(name: str) -> None:
    page = (REPOSITORY / "docs/configuration.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert name in sections
    assert settings()[name].lower() in one_line(sections[name]).lower()


def test_no_setting_is_explained_that_does_not_exist() -> None:
    page = (REPOSITORY / "docs/configuration.md").read_text()
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == list(settings())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_are_cut_from_the_examples(page: Path) -> None:
    examples = [
        path.read_text()
        for path in (REPOSITORY / "examples").rglob("*")
        if path.suffix in {".py", ".cpp"}
    ]
    blocks = re.findall(
        r"^```(?:python|cpp)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    )
    assert blocks or page != README
    for block in blocks:
        assert any(block in example for example in examples), block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert link.startswith("https://") or (page.parent / link).exists(), link


REPORTS = sorted((REPOSITORY / "benchmarks/results").glob("gpu-check-*.json"))
NEVER_CHECKED = {"horovod.md", "predict.md"}
"""Pages about what `make gpu-check` does not check."""


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_the_page_on_gpus_says_what_the_report_says(report: Path) -> None:
    page = one_line((REPOSITORY / "docs/gpu.md").read_text())
    said = json.loads(report.read_text())
    counts = said["counts"]
    assert (
        f"{counts['passed']} checks passed there, {counts['failed']} failed and "
        f"{counts['left out']} were left out" in page
    )
    assert f'is "{said["verdict"]}"' in page
    assert f"`{said['commit']}`" in page
    assert f"NCCL {said['machine']['nccl']}" in page
    for figure in said["figures"]:
        assert f"{figure['ours_us']:.1f} us" in page, figure
        assert f"{figure['peer_us']:.1f} us" in page, figure
        assert f"ratios was {figure['ratio']:.2f}" in page, figure


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_denies_that_a_gpu_was_used(page: Path) -> None:
    denials = r"simulated device only|not (?:yet )?(?:run )?on a GPU"
    found = re.findall(denials, one_line(page.read_text()))
    assert not (found and REPORTS) or page.name in NEVER_CHECKED


def test_readme_begins_with_the_two_commands() -> None:
    first = README.read_text().partition("```\n")[2]
    assert re.match(r"make demo\s.*\nmake test\s", first)


def test_every_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs/index.md").read_text()
    for page in PAGES[1:]:
        assert page.name == "index.md" or f"({page.name})" in index
