# SPDX-License-Identifier: Apache-2.0
"""`farandole migrate check` of notebooks: magics, cells that cannot be read, other formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from farandole.errors import InvalidArgument
from farandole.migrate.check import Finding, check


def found(folder: Path, *cells: str) -> dict[str, Finding]:
    """What the code cells of a notebook use."""
    path = folder / "note.ipynb"
    path.write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": each} for each in cells]})
    )
    return {each.text: each for each in check([path])}


def verdicts(folder: Path, *cells: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        use: (each.answer.verdict.value, each.lines) for use, each in found(folder, *cells).items()
    }


@pytest.mark.parametrize(
    "magic",
    [
        *("%%time", "%%timeit -n 3", "%%capture out", "%%prun -s time", "%%writefile train.py"),
        *("%%writefile -a src/train.py", "%%python3", "%%px", "\n%%time", "%%time\n%%capture"),
        "%%script python3",
    ],
)
def test_cells_of_python(tmp_path: Path, magic: str) -> None:
    uses = verdicts(tmp_path, f"{magic}\nimport horovod.tensorflow\n!horovodrun --help")
    line = magic.count("\n") + 2
    assert uses == {
        "horovod.tensorflow": ("refused", (line,)),
        "horovodrun": ("works", (line + 1,)),
    }


@pytest.mark.parametrize("magic", ["bash", "sh", "script bash", "!", "writefile run.sh"])
def test_cells_of_shells(tmp_path: Path, magic: str) -> None:
    cell = f"%%{magic}\necho 1\nhorovodrun -np 2 \\\n  --jsrun \\\n  python t.py\nHOROVOD_X=1 ls"
    assert verdicts(tmp_path, cell, "import horovod.torch") == {
        "horovodrun": ("refused", (3,)),
        "HOROVOD_X": ("unknown", (6,)),
        "horovod.torch": ("works", (7,)),
    }


@pytest.mark.parametrize(
    "magic", ["html", "javascript", "latex", "sql", "R", "writefile a.yaml", "script ruby"]
)
def test_cells_of_other_languages_are_left_out(tmp_path: Path, magic: str) -> None:
    assert not found(tmp_path, f"%%{magic}\nimport horovod.keras\n<b>horovodrun --jsrun</b>")


def test_lines_of_python_behind_a_magic(tmp_path: Path) -> None:
    cell = """
import horovod.torch as hvd
if True:
    %time hvd.first()
    %timeit -n 10 -q hvd.second()
    %prun x = hvd.third()
print("loss %f"
    % hvd.size())
"""
    uses = verdicts(tmp_path, cell)
    assert [use for use, (verdict, _) in uses.items() if verdict == "unknown"] == [
        "horovod.torch.first",
        "horovod.torch.second",
        "horovod.torch.third",
    ]
    assert "horovod.torch.size" in uses


def test_lines_for_a_shell(tmp_path: Path) -> None:
    cell = """x = !horovodrun -np 2 \\
    --jsrun \\
    python t.py
%env HOROVOD_TIMELINE=x
%sx HOROVOD_ALPHA=1 ls
!!HOROVOD_BETA=1 ls
import smppy"""
    assert verdicts(tmp_path, cell) == {
        "horovodrun": ("refused", (1,)),
        "HOROVOD_TIMELINE": ("works", (4,)),
        "HOROVOD_ALPHA": ("unknown", (5,)),
        "HOROVOD_BETA": ("unknown", (6,)),
        "smppy": ("works", (7,)),
    }


def test_a_cell_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    cells = ("import smppy", "x = 1\nprint 'loss'\n!horovodrun --help", "smppy.bogus()")
    uses = found(tmp_path, *cells)
    assert {use: (each.answer.verdict.value, each.lines) for use, each in uses.items()} == {
        "smppy": ("works", (1,)),
        "code cell 2": ("refused", (3,)),
        "horovodrun": ("works", (4,)),
        "smppy.bogus": ("unknown", (5,)),
    }
    assert "cannot read it" in uses["code cell 2"].answer.notes[0][1]


def test_notebooks_of_format_3(tmp_path: Path) -> None:
    path = tmp_path / "old.ipynb"
    cells = [{"cell_type": "code", "input": ["import smppy\n", "smppy.bogus()"]}]
    path.write_text(json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}))
    assert [(each.text, each.lines) for each in check([path])] == [
        ("smppy", (1,)),
        ("smppy.bogus", (2,)),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}", "it is JSON, but no notebook: it has no list of cells"),
        ("[1]", "it is JSON, but no notebook: it has no list of cells"),
        ('{"cells": 3}', "it is JSON, but no notebook: it has no list of cells"),
        ('{"cells": [{"cell_type": "code", "source": 3}]}', "it is JSON, but no notebook"),
        ("import horovod", "a notebook is JSON, and this is none"),
    ],
)
def test_what_is_no_notebook(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "note.ipynb"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=why):
        check([path])
    (use,) = check([tmp_path])
    assert why in use.answer.notes[0][1]


def test_what_is_no_script_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("# Title\n\nWhat it is.\n")
    (use,) = check([path])
    assert use.answer.notes[0] == (
        "why",
        "by its name it is no script, and this Python cannot read it as one",
    )
    path.write_text("import smppy\n")
    assert [each.text for each in check([path])] == ["smppy"]
