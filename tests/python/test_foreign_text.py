# SPDX-License-Identifier: Apache-2.0
"""Names, texts and JSON of other programs are read, or are errors of one kind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from farandole.foreign_text import is_folder, json_of, shown


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[" * 9999, '{"a":' * 9999, '"\\ud800"', '["\\uDFFF"]', "1e999", "NaN"),
        *("[-Infinity]", b"\xff", b'"\xed\xa0\x80"'),
    ],
)
def test_json_that_cannot_be_used_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_of(text)


def test_json_that_can_be_used_is_as_ever() -> None:
    assert json_of('{"a": [1, 2.5, null, "\\ud83d\\ude00"]}') == {"a": [1, 2.5, None, "\U0001f600"]}
    assert json_of("1e999", finite=False) == float("inf")
    with pytest.raises(ValueError, match="surrogates"):
        json_of('[NaN, "\\ud800"]', finite=False)


def test_names_that_no_folder_can_have(tmp_path: Path) -> None:
    assert is_folder(tmp_path)
    assert not is_folder(tmp_path / ("x" * 300))
    assert not is_folder(Path("a\0b"))


def test_what_is_shown_goes_to_any_terminal() -> None:
    text = shown(os.fsdecode(b"a\xff\x1b[31m\x07\tb\n") + "\x9b\u00e9")
    assert text == "a\\udcff\\x1b[31m\\x07\tb\n\\x9b\u00e9"
