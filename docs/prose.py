#!/usr/bin/env python3
"""Counts how plainly the project's pages and comments are written.

    docs/prose.py            a row for each page and for each kind of comment
    docs/prose.py --check    also fails if a limit is exceeded
    docs/prose.py --list PATH...    the long sentences, openings and one-word comments of these files

A sentence ends at a full stop, a question mark or an exclamation mark, and where its paragraph, list item or table
cell ends. A cell of fewer than four words is a name or a value and no sentence. Text between backquotes is one word.
Headings, code blocks, the separators of tables and the targets of links do not count.

An opening is a sentence that begins with What, Who, Whose or Whether and is not a question. The rules are in
CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import signal
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

# The limits of --check.
MEDIAN = 15  # words
OPENINGS = 4.0  # percent of all sentences
LONG = 20  # words: the rule of CONTRIBUTING.md; --list shows sentences that have more

PAGES = ("README.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
CODE = {".rs": "Rust", ".py": "Python", ".c": "C"}

END = re.compile(r"(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)(?<!\bcf\.)(?<=[.!?])[)\"'*_]*\s+(?=[\"'(*_\[`\uE000]*[^a-z\s])")
OPENING = re.compile(r"(?:_|[^\w\uE000])*(?:what|who|whose|whether)\b", re.IGNORECASE)
CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\](?:\([^)]*\)|\[[^\]]*\])")
REFERENCE = re.compile(r"^\s*\[[^\]]+\]:\s")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
SEPARATOR = re.compile(r"^\s*\|?[\s:|-]+$")
FENCE = re.compile(r"^\s*(```+|~~~+)")
# A code span while a text is taken apart: it is one word and hides its full stops.
SPAN = "\ue000"
# Strings and characters are skipped: they may contain what looks like a comment.
RUST_OR_C = re.compile(
    r"""
      (?P<line>//[^\n]*)
    | (?P<block>/\*.*?\*/)
    | b?r(?P<hashes>\#*)".*?"(?P=hashes)
    | b?"(?:\\.|[^"\\])*"
    | b?'(?:\\[^\n']+|[^\\'\n])'
    """,
    re.DOTALL | re.VERBOSE,
)


class Sentence(NamedTuple):
    text: str

    @property
    def words(self) -> int:
        return sum(any(c.isalnum() or c == SPAN for c in word) for word in self.text.split())

    @property
    def opens_badly(self) -> bool:
        return bool(OPENING.match(self.text)) and not self.text.rstrip("\"')*_ ").endswith("?")


class Comment(NamedTuple):
    """A comment, or several lines of one kind that follow each other."""

    text: str
    documents: bool


class Count(NamedTuple):
    name: str
    sentences: list[Sentence]
    one_word: int = 0

    @property
    def openings(self) -> float:
        """The share of sentences that open with What, Who, Whose or Whether, in percent."""
        bad = sum(sentence.opens_badly for sentence in self.sentences)
        return 100 * bad / len(self.sentences) if self.sentences else 0.0

    @property
    def long(self) -> float:
        """The share of sentences that have more words than the rule allows, in percent."""
        return 100 * sum(s.words > LONG for s in self.sentences) / len(self.sentences) if self.sentences else 0.0

    def percentile(self, percent: int) -> int:
        """The number of words that this share of the sentences does not exceed."""
        words = sorted(sentence.words for sentence in self.sentences)
        return words[max(0, -(-len(words) * percent // 100) - 1)] if words else 0


def paragraphs(text: str) -> Iterator[tuple[str, bool]]:
    """The paragraphs, list items and table cells of a Markdown text, and whether each is a cell."""
    gathered: list[str] = []
    fence = ""

    def flush() -> Iterator[tuple[str, bool]]:
        if gathered:
            yield " ".join(gathered), False
            gathered.clear()

    for line in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).splitlines():
        mark = FENCE.match(line)
        if fence:
            fence = "" if mark and mark[1].startswith(fence) else fence
        elif mark:
            yield from flush()
            fence = mark[1]
        elif not line.strip() or line.lstrip().startswith(("#", "<")) or REFERENCE.match(line):
            yield from flush()
        elif line.lstrip().startswith("|"):
            yield from flush()
            if not SEPARATOR.match(line):
                cells = CODE_SPAN.sub(lambda span: span[0].replace("|", "/"), line).strip().strip("|").split("|")
                yield from ((cell, True) for cell in cells)
        elif ITEM.match(line):
            yield from flush()
            gathered.append(ITEM.sub("", line).strip())
        # A line that is indented further than any item's text is code.
        elif line.startswith("    ") and not gathered:
            continue
        else:
            gathered.append(line.strip().removeprefix("> "))
    yield from flush()


def sentences(text: str) -> list[Sentence]:
    """The sentences of a Markdown text."""
    found = []
    for paragraph, is_cell in paragraphs(text):
        plain = CODE_SPAN.sub(SPAN, paragraph)
        plain = LINK.sub(lambda link: link[1], plain)
        for part in END.split(plain):
            sentence = Sentence(part.strip())
            if sentence.words >= (4 if is_cell else 1):
                found.append(sentence)
    return found


def rust_or_c(text: str) -> Iterator[Comment]:
    """The comments of a Rust or C file."""
    lines: list[str] = []
    kind, next_line = "", -1
    for found in RUST_OR_C.finditer(text):
        number = text.count("\n", 0, found.start())
        if found["line"]:
            mark = re.match(r"//[/!]?", found["line"])
            assert mark
            alone = not text[text.rfind("\n", 0, found.start()) + 1 : found.start()].strip()
            if lines and not (alone and mark[0] == kind and number == next_line):
                yield Comment("\n".join(lines), len(kind) == 3)
                lines = []
            lines.append(found["line"][len(mark[0]) :].removeprefix(" "))
            kind, next_line = mark[0], number + 1
        elif found["block"]:
            if lines:
                yield Comment("\n".join(lines), len(kind) == 3)
                lines = []
            body = found["block"][2:-2]
            stripped = (re.sub(r"^\s*\*? ?", "", line) for line in body.lstrip("*!").splitlines())
            yield Comment("\n".join(stripped), body.startswith(("*", "!")))
    if lines:
        yield Comment("\n".join(lines), len(kind) == 3)


def python(text: str) -> Iterator[Comment]:
    """The comments and docstrings of a Python file."""
    lines: list[str] = []
    next_line = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            if lines and not (alone and token.start[0] == next_line):
                yield Comment("\n".join(lines), False)
                lines = []
            lines.append(token.string.lstrip("#").removeprefix(" "))
            next_line = token.start[0] + 1
    if lines:
        yield Comment("\n".join(lines), False)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if documentation := ast.get_docstring(node):
                yield Comment(documentation, True)


def comments(path: Path) -> list[Comment]:
    """The comments of a source file, without licences and marks for tools."""
    text = path.read_text()
    found = python(text) if path.suffix == ".py" else rust_or_c(text)
    marks = ("SPDX", "!/", "fmt:", "type:", "noqa", "pylint", "ruff:", "mypy:")
    return [comment for comment in found if not comment.text.lstrip().startswith(marks)]


def is_one_word(comment: Comment) -> bool:
    return comment.documents and len(comment.text.split()) == 1


def count_comments(name: str, paths: Iterable[Path]) -> Count:
    found = [comment for path in paths for comment in comments(path)]
    all_sentences = [sentence for comment in found for sentence in sentences(comment.text)]
    return Count(name, all_sentences, sum(map(is_one_word, found)))


def repository() -> tuple[list[Path], list[Path]]:
    """The pages and the source files that are committed, or will be."""
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file()})
    pages = [ROOT / n for n in names if n in PAGES or (n.startswith("docs/") and n.endswith(".md"))]
    return pages, [ROOT / n for n in names if Path(n).suffix in CODE]


def table(counts: Iterable[Count]) -> None:
    print(f"{'':36} {'sentences':>9} {'median':>6} {'90 %':>5} {'over 20':>8} {'openings':>8} {'one word':>8}")
    for count in counts:
        numbers = f"{len(count.sentences):9} {count.percentile(50):6} {count.percentile(90):5} {count.long:6.1f} % {count.openings:6.1f} %"
        print(f"{count.name:36} {numbers} {count.one_word or '':>8}")


def exceeded(count: Count) -> list[str]:
    """The limits that a group of texts does not keep."""
    wrong = []
    if count.percentile(50) > MEDIAN:
        wrong.append(f"{count.name}: the median sentence has {count.percentile(50)} words; the limit is {MEDIAN}")
    if count.openings > OPENINGS:
        wrong.append(f"{count.name}: {count.openings:.1f} % open with What, Who, Whose or Whether; the limit is {OPENINGS} %")
    if count.one_word:
        wrong.append(f"{count.name}: {count.one_word} doc comments have one word only")
    return wrong


def show(path: Path) -> None:
    """Prints what a writer would look at in a file."""
    found = comments(path) if path.suffix in CODE else [Comment(path.read_text(), False)]
    for comment in found:
        if is_one_word(comment):
            print(f"{path}: one word: {comment.text.strip()}")
        for sentence in sentences(comment.text):
            if sentence.opens_badly or sentence.words > LONG:
                print(f"{path}: {sentence.words} words: {sentence.text.replace(SPAN, '`…`')}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Counts how plainly pages and comments are written.")
    parser.add_argument("--check", action="store_true", help="fail if a limit is exceeded")
    parser.add_argument("--list", nargs="+", type=Path, metavar="PATH", help="show the sentences to look at")
    options = parser.parse_args()
    # `| head` stops reading: that ends this program, too.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if options.list:
        for path in options.list:
            show(path)
        return 0
    pages, code = repository()
    each = [Count(str(page.relative_to(ROOT)), sentences(page.read_text())) for page in pages]
    docs = Count("all pages", [sentence for page in each for sentence in page.sentences])
    kinds = [count_comments(f"comments in {name}", (p for p in code if p.suffix == s)) for s, name in CODE.items()]
    all_comments = Count("all comments", [s for kind in kinds for s in kind.sentences], sum(k.one_word for k in kinds))
    table([*each, docs, *kinds, all_comments])
    wrong = [*exceeded(docs), *exceeded(all_comments)] if options.check else []
    for why in wrong:
        print(why, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
