"""docs/prose.py counts as it says, and the repository keeps its limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import prose
import pytest

SCRIPT = Path(prose.__file__)


def texts(markdown: str) -> list[str]:
    return [sentence.text.replace(prose.SPAN, "`") for sentence in prose.sentences(markdown)]


def test_sentences_end_at_marks_and_with_their_paragraph() -> None:
    assert texts("One two. Three four?\nFive!\n\nNo mark") == ["One two.", "Three four?", "Five!", "No mark"]


def test_a_wrapped_sentence_is_one() -> None:
    assert texts("One\ntwo\nthree.") == ["One two three."]


def test_abbreviations_versions_and_code_end_no_sentence() -> None:
    assert texts("Linux 6.12 has it, e.g. Debian. `a. B` is code.") == ["Linux 6.12 has it, e.g. Debian.", "` is code."]


def test_list_items_are_sentences_of_their_own() -> None:
    assert texts("Three things:\n- one\n- two\n  goes on\n1. three") == ["Three things:", "one", "two goes on", "three"]


def test_short_cells_separators_headings_and_code_do_not_count() -> None:
    page = "# A heading\n\n| a | b |\n|---|:-:|\n| `key` | this cell has five words |\n\n```sh\nNo sentence. At all.\n```\n"
    assert texts(page) == ["this cell has five words"]


def test_targets_of_links_do_not_count() -> None:
    (sentence,) = prose.sentences("See [the page](a.md#with-an-anchor) and [this one](b.md).")
    assert sentence.words == 6


def test_a_code_span_is_one_word() -> None:
    (sentence,) = prose.sentences("Run `lockify status --json` now.")
    assert sentence.words == 3


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("What is left is sent.", True),
        ("**Who** asks is told.", True),
        ("whether it is there", True),
        ("Who asks?", False),
        ("`key`: whether it is there", False),
        ("Whole stripes are written.", False),
        ("The node says what it knows.", False),
    ],
)
def test_openings(text: str, bad: bool) -> None:
    (sentence,) = prose.sentences(text)
    assert sentence.opens_badly == bad


def test_rust_comments() -> None:
    code = """//! The module.
//! Goes on.

/// One.
let a = "// no comment"; // Behind it.
let b = r#"/* nor this */"#;
let c = '"'; // Seen.
fn d<'a>() {}
/* A block. */
"""
    found = [(comment.text, comment.documents) for comment in prose.rust_or_c(code)]
    assert found == [
        ("The module.\nGoes on.", True),
        ("One.", True),
        ("Behind it.", False),
        ("Seen.", False),
        ("A block. ", False),
    ]


def test_python_comments() -> None:
    code = '"""The module."""\n\n# One\n# comment.\na = "# none"  # Behind it.\n\n\ndef f():\n    """Function."""\n'
    found = [(comment.text, comment.documents) for comment in prose.python(code)]
    assert found == [("One\ncomment.", False), ("Behind it.", False), ("The module.", True), ("Function.", True)]


def test_one_word_doc_comments() -> None:
    assert prose.is_one_word(prose.Comment("Bytes.", True))
    assert not prose.is_one_word(prose.Comment("In bytes.", True))
    assert not prose.is_one_word(prose.Comment("Bytes.", False))


def test_percentiles_and_shares() -> None:
    found = [prose.Sentence("word " * words) for words in range(1, 11)] + [prose.Sentence("What " * 30)]
    count = prose.Count("some", found)
    assert (count.percentile(50), count.percentile(90)) == (6, 10)
    assert round(count.openings, 1) == round(count.long, 1) == 9.1


def test_limits_that_are_exceeded_are_named() -> None:
    good = prose.Count("good", [prose.Sentence("The actor is the subject.")])
    bad = prose.Count("bad", [prose.Sentence("What " + "word " * prose.MEDIAN)], 1)
    assert prose.exceeded(good) == []
    assert len(prose.exceeded(bad)) == 3
