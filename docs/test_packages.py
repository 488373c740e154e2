"""Lockify is handed out with the notices of third parties, and its published crates say what they are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "packaging"))

import notices  # noqa: E402


def test_the_notices_are_those_of_the_crates_that_are_used() -> None:
    wanted = notices.page(notices.metadata(), notices.metadata(notices.UBLK))
    assert notices.PAGE.read_text() == wanted, "run packaging/notices.py"


def test_crates_for_tests_and_the_compiler_are_left_out() -> None:
    assert not {"proptest", "serde_derive", "syn"} & {crate["name"] for crate in notices.contained(notices.metadata())}


def test_the_notices_say_what_ublk_adds() -> None:
    """One of its crates has another licence than all others."""
    assert "bitmaps" not in {crate["name"] for crate in notices.contained(notices.metadata())}
    more = {crate["name"]: crate["license"] for crate in notices.contained(notices.metadata(notices.UBLK))}
    assert more["libublk"] == "MIT OR Apache-2.0"
    assert [name for name, licence in more.items() if "MPL" in licence and " OR " not in licence] == ["bitmaps"]


def test_published_crates_say_what_they_are() -> None:
    asked = ["cargo", "metadata", "--no-deps", "--offline", "--locked", "--format-version=1"]
    told = json.loads(subprocess.run(asked, cwd=ROOT, check=True, capture_output=True).stdout)
    published = [package for package in told["packages"] if package["publish"] is None]
    assert {"lockify-client", "lockify-core", "lockify-capi"} <= {package["name"] for package in published}
    for package in published:
        for key in ("description", "license", "readme", "keywords", "categories"):
            assert package[key], f"{package['name']} has no {key}"
        words = package["keywords"]
        assert len(words) <= 5 and all(re.fullmatch(r"[a-z][a-z0-9-]{,19}", word) for word in words)
        for licence in ("LICENSE-APACHE", "LICENSE-MIT"):
            text = Path(package["manifest_path"]).with_name(licence)
            assert text.is_file() and text.samefile(ROOT / licence), f"{package['name']} has no link to {licence}"
        # Its parts have to be published, too.
        needed = {need["name"] for need in package["dependencies"] if need["kind"] is None and need.get("path")}
        assert needed <= {other["name"] for other in published}, f"{package['name']} needs {needed}"


def test_every_file_of_the_kernel_that_can_say_so_is_gpl() -> None:
    sources = [*(ROOT / "kernel" / "src").rglob("*.[ch]"), *(ROOT / "labs" / "qemu" / "guest").glob("*.c")]
    assert len(sources) > 5
    for source in sources:
        assert "GPL-2.0-only" in source.read_text().splitlines()[0], source
