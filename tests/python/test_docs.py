# SPDX-License-Identifier: Apache-2.0
"""The documentation says what the sources say."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
PAGES = [README, *sorted((REPOSITORY / "docs").glob("*.md"))]
ERROR_TYPES = re.findall(
    r"^class FARANDOLE_API (\w+) :",
    (REPOSITORY / "include/farandole/error.h").read_text(),
    re.MULTILINE,
)


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


def arguments(source: str, start: int) -> str:
    """The text of the arguments of the call whose parenthesis opens at `start`."""
    depth, in_string, i = 0, False, start
    while True:
        letter = source[i]
        if in_string:
            i += letter == "\\"
            in_string = letter != '"'
        elif letter == '"':
            in_string = True
        else:
            depth += (letter in "({[") - (letter in ")}]")
            if depth == 0:
                return source[start + 1 : i]
        i += 1


def literals(expression: str) -> list[str]:
    """Its string literals, those that touch joined."""
    groups = re.findall(r'(?:"(?:[^"\\]|\\.)*"\s*)+', expression)
    return [ast.literal_eval(f"({group})") for group in groups]


class Message(NamedTuple):
    """An error that Farandole raises, as the sources have it."""

    file: str
    type: str
    name: str
    parts: list[str]
    """The literal parts of what, why and fix."""


def cpp_messages() -> list[Message]:
    found = []
    thrown = re.compile(rf"\b({'|'.join(ERROR_TYPES)})\(")
    for folder in ("src", "python/bindings"):
        for path in sorted((REPOSITORY / folder).rglob("*")):
            if path.suffix not in {".h", ".cpp"} or path.name == "error.cpp":
                continue
            source = re.sub(r"^ *//.*", "", path.read_text(), flags=re.MULTILINE)
            for match in thrown.finditer(source):
                texts = literals(arguments(source, match.end() - 1))
                found.append(Message(path.name, match[1], texts[0], texts[1:]))
    return found


def constant_parts(node: ast.AST) -> list[str]:
    """The strings below ``node``, without what stands in the braces of f-strings."""
    if isinstance(node, ast.FormattedValue):
        return []
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    return [part for child in ast.iter_child_nodes(node) for part in constant_parts(child)]


def python_messages() -> list[Message]:
    found = []
    folders = (REPOSITORY / "python/farandole", REPOSITORY / "python/compat")
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            (text,) = node.args if len(node.args) == 1 else (None,)
            if isinstance(text, ast.Call) and ast.unparse(text.func) == "sentences":
                name, *parts = text.args
                found.append(
                    Message(
                        path.name,
                        node.func.id,
                        ast.literal_eval(name),
                        [part for each in parts for part in constant_parts(each)],
                    )
                )
    return found


def sections() -> dict[str, tuple[str, str]]:
    """Of docs/errors.md: each message's type and text by its name."""
    page = (REPOSITORY / "docs/errors.md").read_text()
    found: dict[str, tuple[str, str]] = {}
    for kind, texts in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL):
        for name, text in re.findall(
            r"^### (.*?)\n(.*?)(?=^### |\Z)", texts, re.MULTILINE | re.DOTALL
        ):
            assert name not in found, f"two headings {name}"
            found[name] = (kind, one_line(text))
    return found


def test_messages_are_found() -> None:
    assert len(cpp_messages()) > 220
    assert len(python_messages()) > 50


def test_errors_page_has_every_message_below_its_name() -> None:
    on_page = sections()
    missing = []
    for message in (*cpp_messages(), *python_messages()):
        kind, text = on_page.get(message.name, ("", ""))
        if kind not in (message.type, f"{message.type} of Python", "If it is a bug of ours"):
            missing.append(f"{message.file}: no {message.name} below {message.type}, but: {kind}")
        for part in map(one_line, message.parts):
            if len(part.split()) >= 2 and part not in text:
                missing.append(f"{message.file}: {message.name} without: {part}")
    assert not missing, "\n".join(missing)


def test_errors_page_has_no_name_that_no_message_has() -> None:
    named = {message.name for message in (*cpp_messages(), *python_messages())}
    sources = "".join(path.read_text() for path in (REPOSITORY / "src").rglob("*.cpp"))
    left_over = [name for name in sections() if name not in named and f'"{name}"' not in sources]
    assert left_over == ["torch-version"]  # an ImportError, raised before farandole.errors is there


def test_errors_page_has_a_section_for_every_type() -> None:
    page = (REPOSITORY / "docs/errors.md").read_text()
    headings = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    assert headings == set(ERROR_TYPES) - {"Error"}


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


def test_readme_begins_with_the_two_commands() -> None:
    first = README.read_text().partition("```\n")[2]
    assert re.match(r"make demo\s.*\nmake test\s", first)


def test_every_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs/index.md").read_text()
    for page in PAGES[1:]:
        assert page.name == "index.md" or f"({page.name})" in index
