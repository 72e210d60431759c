# SPDX-License-Identifier: Apache-2.0
"""docs/errors.md matches the sources, and the generator reads the sources correctly."""

from __future__ import annotations

import pytest

from error_messages.cpp_messages import CppMessages
from error_messages.notes import Note, notes_of
from error_messages.page import page_of
from error_messages.placeholder import hole
from error_messages.python_messages import PythonMessages, constants_of
from error_messages.text import Message, SourceError
from errors_page import PAGE, difference, messages, page_with


@pytest.fixture(scope="module")
def found() -> list[Message]:
    """All messages of Farandole."""
    return list(messages())


def test_the_page_is_current(found: list[Message]) -> None:
    differs = difference(PAGE.read_text(encoding="utf-8"), page_with(found))
    assert not differs, differs


def test_most_messages_are_found(found: list[Message]) -> None:
    assert sum(each.file.endswith(".py") for each in found) > 250
    assert sum(not each.file.endswith(".py") for each in found) > 350


def test_a_difference_says_the_fix() -> None:
    assert difference("same\n", "same\n") == ""
    assert difference("old\n", "new\n").splitlines()[-3:] == [
        "-old",
        "+new",
        "docs/errors.md differs from the sources; run: make format",
    ]


def cpp(source: str, **others: str) -> Message:
    """The only message of a C++ source."""
    paths = {f"{name}.h": text for name, text in others.items()}
    (message,) = CppMessages({"src/comm/x.cpp": source, **paths}, {"InvalidArgument"})
    return message


def cpp_what(expression: str, before: str = "", parameters: str = "") -> tuple[str, ...]:
    """The first part of a message that a function f() throws."""
    body = f'{before} throw InvalidArgument("a-name", {expression}, "w.", "f.");'
    return cpp(f"void f({parameters}) {{ {body} }}").what


def test_a_cpp_message_has_its_parts_and_place() -> None:
    source = (
        'void f() {\n  throw InvalidArgument("a-name", "what.", "why.",\n "fix.", {{1}, ""});\n}'
    )
    assert cpp(source) == Message(
        "src/comm/x.cpp", 2, "InvalidArgument", "a-name", ("what.",), ("why.",), ("fix.",)
    )


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ('"one "\n  "text."', ("one text.",)),
        ('"a \\"quoted\\" word // no comment."', ('a "quoted" word // no comment.',)),
        ('"n is " + std::to_string(n_) + "."', ("n is <n>.",)),
        ("std::string(\"rank \") + name + '!'", ("rank <name>!",)),
        ('"size " + std::to_string(rows.size() - 1)', ("size <number of rows - 1>",)),
        ('good ? "it is." : "it is not."', ("it is.", "it is not.")),
        ('"it is " + (a ? "one" : b ? "two" : "three")', ("it is <one | two | three>",)),
        ('std::string("it has ") + (many ? "many " : "") + "ranks"', ("it has [many] ranks",)),
    ],
)
def test_cpp_expressions(expression: str, what: tuple[str, ...]) -> None:
    assert cpp_what(expression) == what


@pytest.mark.parametrize(
    ("before", "what"),
    [
        ('const std::string text = "is bad";', "it is bad."),
        ('std::string text("is bad");', "it is bad."),
        ('std::string text = "is bad"; if (x) text += " today";', "it is bad[ today]."),
        ('std::string text; text = "is bad"; text = "is worse";', "it <is bad | is worse>."),
        ("auto text = made();", "it <text>."),
    ],
)
def test_cpp_variables(before: str, what: str) -> None:
    assert cpp_what('"it " + text + "."', before) == (what.replace("[ today]", " [today]"),)


def test_a_cpp_constant_is_its_text() -> None:
    throw = 'void f() { throw InvalidArgument("a-name", "what.", "why.", kFix); }'
    assert cpp(f'constexpr char kFix[] = "do it.";\n{throw}').fix == ("do it.",)


def test_a_cpp_parameter_has_what_callers_pass() -> None:
    source = """
        void fail(const std::string& call, const char* why = nullptr) {
          throw InvalidArgument("a-name", call + "() failed.", why, "fix.");
        }
        void a() { fail("send", "it is late."); }
        void b(int n) { fail("receive", n > 1 ? "it is gone." : "it is new."); }
    """
    message = cpp(source)
    assert message.what == ("<send | receive>() failed.",)
    assert message.why == ("it is late.", "it is gone.", "it is new.")


def test_callers_in_files_that_include_the_header_count() -> None:
    fail = 'void fail(const char* w) { throw InvalidArgument("a-name", w, "why.", "fix."); }'
    caller = 'void g() { fail("what."); }'
    own = {"src/comm/x.cpp": fail, "src/comm/x.h": "void fail(const char* w);"}
    for include, what in (('#include "comm/x.h"\n', "what."), ("", "<w>")):
        (message,) = CppMessages({**own, "src/y.cpp": include + caller}, {"InvalidArgument"})
        assert message.what == (what,)


def test_a_cpp_function_that_builds_a_part_is_followed() -> None:
    source = """
        std::string place(int rank) {
          return "on rank " + std::to_string(rank);
        }
        void f() { throw InvalidArgument("a-name", "bad " + place(own) + ".", "why.", "fix."); }
    """
    assert cpp(source).what == ("bad on rank <own>.",)


@pytest.mark.parametrize("made", ["return {%s};", "std::make_exception_ptr(InvalidArgument(%s));"])
def test_cpp_errors_that_are_not_thrown_at_once_are_read(made: str) -> None:
    body = made % '"a-name", "what.", "why.", "fix."'
    assert cpp(f"InvalidArgument bad(int n) {{ {body} }}").what == ("what.",)


@pytest.mark.parametrize(
    "source", ['throw InvalidArgument(name, "w", "w", "f");', 'throw InvalidArgument("a-b", "w");']
)
def test_a_cpp_message_that_cannot_be_derived_is_told_with_its_line(source: str) -> None:
    with pytest.raises(SourceError, match=r"^src/comm/x.cpp:2: "):
        cpp(f"void f() {{\n{source} }}")


def python_messages(source: str) -> list[Message]:
    """The messages of a Python source."""
    return list(PythonMessages("python/farandole/x.py", source, constants_of({"x": source})))


def python_what(expression: str, before: str = "pass") -> tuple[str, ...]:
    """The first part of a message that a function f(n) raises."""
    source = f"def f(n):\n {before}\n raise Bad(sentences('a-name', {expression}, 'w.', 'f.'))\n"
    (message,) = python_messages(source)
    assert (message.type, message.name, message.line) == ("Bad", "a-name", 3)
    return message.what


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("'one ' 'text.'", ("one text.",)),
        ("f'n is {n!r}, {len(rows)} of {self._most}.'", ("n is <n>, <number of rows> of <most>.",)),
        ("f'a {type(n).__name__}' + '.'", ("a <class>.",)),
        ("'it is.' if n else 'it is not.'", ("it is.", "it is not.")),
        ("""f"it has{' many' if n else ''} ranks" """, ("it has [many] ranks",)),
        ("f'one of {\", \".join(names)}'", ("one of <names>",)),
    ],
)
def test_python_expressions(expression: str, what: tuple[str, ...]) -> None:
    assert python_what(expression) == what


@pytest.mark.parametrize(
    ("before", "what"),
    [
        ("text = 'bad'", "it is bad."),
        ("text, fix = ('bad', 'x') if n else made()", "it is <text>."),
        ("text = 'bad' if n else 'worse'", "it is <bad | worse>."),
        ("text, other = 'bad', 'worse'", "it is bad."),
    ],
)
def test_python_variables(before: str, what: str) -> None:
    assert python_what("f'it is {text}.'", before) == (what,)


def test_a_python_parameter_has_what_callers_pass() -> None:
    source = """
def fail(why, *, fix):
    return Bad(sentences("a-name", "what.", f"{why}.", fix))

raise fail("it is late", fix="wait.")
raise fail("it is gone", fix=WAIT)

WAIT = "wait longer."
"""
    (message,) = python_messages(source)
    assert message.why == ("it is late.", "it is gone.")
    assert message.fix == ("wait.", "wait longer.")


def test_constants_of_python_are_followed() -> None:
    source = """
NAMES = ("one", "two")
REASONS: dict[str, str] = {"a": "it is old.", "b": "it is new."}

def f(why="it is lost."):
    for name, reason in REASONS.items():
        why = reason
    raise Bad(sentences("a-name", f"pass one of {', '.join(NAMES)}.", why, "fix."))

f()
"""
    (message,) = python_messages(source)
    assert message.what == ("pass one of one, two.",)
    assert message.why == ("it is old.", "it is new.", "it is lost.")


def test_a_python_text_that_has_all_three_parts_is_read() -> None:
    (message,) = python_messages('raise ImportError(f"{x} is old.\\nwhy: w.\\nfix: f. [a-name]")')
    assert (message.what, message.why, message.fix) == (("<x> is old.",), ("w.",), ("f.",))
    assert (message.type, message.name) == ("ImportError", "a-name")


@pytest.mark.parametrize(
    "source",
    ["Bad(sentences(name, 'w', 'w', 'f'))", "Bad(sentences('a-b', 'w'))", "x = sentences(*'abcd')"],
)
def test_a_python_message_that_cannot_be_derived_is_told_with_its_line(source: str) -> None:
    with pytest.raises(SourceError, match=r"^python/farandole/x.py:2: "):
        python_messages(f"\n{source}")


@pytest.mark.parametrize(
    ("expression", "placeholder"),
    [
        ("group.kMostBytes", "<most bytes>"),
        ("std::to_string(static_cast<int>(world_size) - 1)", "<world size - 1>"),
        ("caller.describe()", "<call>"),
        ("names_[index].c_str()", "<names>"),
    ],
)
def test_placeholders(expression: str, placeholder: str) -> None:
    assert hole(expression) == (placeholder,)


def message(name: str, **parts: str) -> Message:
    """A message with short parts."""
    file, kind = parts.pop("file", "src/x.cpp"), parts.pop("type", "Bad")
    texts = {"what": "It is.", "why": "it was.", "fix": "do.", **parts}
    return Message(file, 1, kind, name, *((texts[part],) for part in ("what", "why", "fix")))


TEMPLATE = "## Bad\n\n{Bad}\n"


def test_the_page_has_each_message_once_by_its_name() -> None:
    own = [
        message("b", fix="call `make`."),
        message("a", file="python/farandole/run/x.py"),
        message("b", fix="do."),
        message("b", what="It <n> is."),
    ]
    assert page_of(own, TEMPLATE, {"a": Note(text="By hand.")}) == (
        "## Bad\n\n"
        "### a\n\n**`It is.`** (`farandole run`)\n\n- why: `it was.`\n- fix: `do.`\n\nBy hand.\n\n"
        "### b\n\n**`It is.`**\n\n- why: `it was.`\n- fix: `` call `make`. ``\n- fix: `do.`\n\n"
        "**`It <n> is.`**\n\n- why: `it was.`\n- fix: `do.`\n"
    )


def test_notes_say_what_the_sources_do_not() -> None:
    notes = notes_of(
        "About notes.\n\n### a\nwhy: <NCCL's reason>\nwhy: no GPU.\n\n### b\nA paragraph.\n"
    )
    assert notes == {
        "a": Note({"why": ["<NCCL's reason>", "no GPU."]}),
        "b": Note({}, "A paragraph."),
    }
    page = page_of([message("a", why="<text>"), message("b")], TEMPLATE, notes)
    assert "- why: `<NCCL's reason>`\n- why: `no GPU.`\n" in page


@pytest.mark.parametrize(
    ("own", "template", "notes", "told"),
    [
        ([message("a", why="<text>.")], TEMPLATE, {}, r"^src/x.cpp:1: in the why of a "),
        ([message("a")], TEMPLATE, {"b": Note()}, r"no message has the name b"),
        ([message("a")], "## Bad\n", {}, r"^src/x.cpp:1: .*not one place for \{Bad\}"),
        ([message("a")], TEMPLATE + "{Worse}\n", {}, r"no message has the type Worse"),
        (
            [message("a"), message("a", type="Worse")],
            TEMPLATE,
            {},
            r"^src/x.cpp:1: .* another type",
        ),
    ],
)
def test_what_does_not_fit_is_told(
    own: list[Message], template: str, notes: dict[str, Note], told: str
) -> None:
    with pytest.raises(SourceError, match=told):
        page_of(own, template, notes)
