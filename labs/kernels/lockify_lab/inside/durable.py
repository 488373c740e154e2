"""Changes files for ever, and tells of each change before and after: what it says is kept must be there later.

It removes nothing: GFS2 leaves to fsck what a crash interrupts of that, in too many ways to tell it from errors.

    durable.py load FOLDER SEED      {"will": KEY, "sum": SUM} and {"did": KEY, "sum": SUM} as lines on standard output
    durable.py verify LISTING        prints each key whose state is none of those that LISTING has for it

A key is a file, or `file@N` for its page N. A sum is that of the content, `-` for no such file, or `?` for anything.
`did` comes after fsync(2) of the file and of its folder. Stand-alone: a node has Python's standard library and this
file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import random
import sys

ABSENT, ANY = "-", "?"
PAGE = 4096
PAGES = 8


def say(word: str, key: str, content: str) -> None:
    print(json.dumps({word: key, "sum": content}), flush=True)


def sum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Load:
    def __init__(self, folder: str, seed: str) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.files: list[str] = []
        self.made = 0
        os.makedirs(folder, exist_ok=True)
        self.mapped = self.name("mapped")
        self.write(self.mapped, bytes(PAGES * PAGE))
        for page in range(PAGES):
            say("did", f"{self.mapped}@{page}", sum_of(bytes(PAGE)))

    def name(self, kind: str) -> str:
        self.made += 1
        return f"{self.folder}/{kind}.{self.made}"

    def content(self) -> bytes:
        return self.random.randbytes(self.random.choice((100, 3000, PAGE, 20_000, 70_000)))

    def write(self, path: str, content: bytes) -> None:
        with open(path, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync(self.folder)

    def create(self) -> None:
        path, content = self.name("file"), self.content()
        say("will", path, ANY)
        self.write(path, content)
        say("did", path, sum_of(content))
        self.files.append(path)

    def fallocate(self) -> None:
        """Space first, then content in a part of it: the rest is zeros."""
        path, content = self.name("space"), self.content()
        before, after = (self.random.randrange(3 * PAGE) for _ in range(2))
        say("will", path, ANY)
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, before + len(content) + after)
            os.pwrite(file.fileno(), content, before)
            os.fsync(file.fileno())
        sync(self.folder)
        say("did", path, sum_of(bytes(before) + content + bytes(after)))
        self.files.append(path)

    def rename(self) -> None:
        """A file that is kept gets another name."""
        if not self.files:
            return
        index, path = self.random.randrange(len(self.files)), self.name("renamed")
        before, content = self.files[index], state_of(self.files[index])
        say("will", before, ABSENT)
        say("will", path, content)
        os.rename(before, path)
        sync(path)
        sync(self.folder)
        say("did", before, ABSENT)
        say("did", path, content)
        self.files[index] = path

    def map(self) -> None:
        page, content = self.random.randrange(PAGES), self.random.randbytes(PAGE)
        key = f"{self.mapped}@{page}"
        say("will", key, sum_of(content))
        with open(self.mapped, "r+b") as file, mmap.mmap(file.fileno(), PAGES * PAGE) as mapped:
            mapped[page * PAGE : (page + 1) * PAGE] = content
            mapped.flush(page * PAGE, PAGE)
            os.fsync(file.fileno())
        say("did", key, sum_of(content))

    def run(self) -> None:
        while True:
            self.random.choice((self.create, self.fallocate, self.rename, self.map))()


def state_of(key: str) -> str:
    path, _, page = key.partition("@")
    try:
        with open(path, "rb") as file:
            if page:
                file.seek(int(page) * PAGE)
                return sum_of(file.read(PAGE))
            return sum_of(file.read())
    except FileNotFoundError:
        return ABSENT
    except OSError as error:
        return f"error {error.errno}"


def verify(listing: str) -> None:
    with open(listing, encoding="utf-8") as file:
        wanted = json.load(file)
    for key, allowed in wanted.items():
        state = state_of(key)
        if ANY not in allowed and state not in allowed:
            print(f"{key}: {state} instead of {' or '.join(allowed)}")


def main() -> None:
    command, *words = sys.argv[1:]
    if command == "verify":
        verify(*words)
        return
    with contextlib.suppress(BrokenPipeError):
        Load(*words).run()


main()
