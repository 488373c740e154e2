# SPDX-License-Identifier: GPL-2.0-only
"""The patches of series/ are those that src/, hooks.toml and series.toml make; `git am` takes them, and checkpatch.pl.

Needs the packages linux-source-6.12 and linux-source-6.1, and fails without. `.ci/long kernels` does the same for 7.2,
and builds every series at each of its steps.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

KERNEL = Path(__file__).resolve().parent.parent
KERNELS = ("6.12", "6.1")

# A patch's part about claim_trace.h, with lines of kinds that are kept.
NEW = """\
diff --git a/fs/dlm/claim_trace.h b/fs/dlm/claim_trace.h
index 1111111..2222222 100644
--- a/fs/dlm/claim_trace.h
+++ b/fs/dlm/claim_trace.h
@@ -1,1 +1,5 @@
 one
+TRACE_EVENT(a,
+	TP_STRUCT__entry(
+		__field(b)
+	));
"""


@pytest.fixture(scope="module")
def stock(maker: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the series change of each kernel, and its checkpatch. It reads a whole tarball: 13 s."""
    folder = tmp_path_factory.mktemp("stock")

    def one(kernel: str) -> Path:
        tarball = Path(f"/usr/src/linux-source-{kernel}.tar.xz")
        assert tarball.exists(), f"apt install linux-source-{kernel}"
        return maker.take(tarball, [*maker.touched(kernel), *maker.CHECKPATCH], folder / kernel)

    with ThreadPoolExecutor() as pool:
        return dict(zip(KERNELS, pool.map(one, KERNELS), strict=True))


@pytest.fixture
def derived(maker: ModuleType, stock: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    def make(kernel: str) -> Path:
        tree = maker.take(stock[kernel], maker.touched(kernel), tmp_path / "derive")
        maker.derive(tree, kernel, maker.load_plan(), tmp_path / kernel)
        return tmp_path / kernel

    return make


def test_every_kernel_has_a_series(maker: ModuleType) -> None:
    assert {path.name for path in (KERNEL / "series").iterdir()} == set(maker.applier.KERNELS)
    for kernel in maker.applier.KERNELS:
        assert (KERNEL / "series" / kernel / maker.COVER).is_file()
        assert len(maker.kept_series(kernel)) > 10


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_series_is_what_is_derived(maker: ModuleType, derived: Callable[[str], Path], kernel: str) -> None:
    maker.check_plan(maker.load_plan())
    maker.compare(KERNEL / "series" / kernel, derived(kernel), kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_git_am_gives_what_apply_makes(maker: ModuleType, stock: dict[str, Path], tmp_path: Path, kernel: str) -> None:
    maker.check_applied(stock[kernel], kernel, maker.kept_series(kernel), tmp_path)


@pytest.mark.parametrize("kernel", KERNELS)
def test_checkpatch_has_nothing_to_say(maker: ModuleType, stock: dict[str, Path], kernel: str) -> None:
    maker.check_style(stock[kernel], maker.kept_series(kernel))


def test_checkpatch_would_say_something(maker: ModuleType, stock: dict[str, Path], tmp_path: Path) -> None:
    """About a new file and about an old one, even where some types are kept."""
    good = next(path for path in maker.kept_series("6.12") if "gfs2-claim-the" in path.name).read_text()
    assert "--- a/fs/gfs2/inode.c\n" in good
    patch = tmp_path / "0001-x.patch"
    patch.write_text(good + NEW)
    assert maker.complaints(patch, stock["6.12"]) == []
    patch.write_text(good.replace(" | LM_FLAG_CLAIM", "|LM_FLAG_CLAIM") + NEW.replace("(b)", "( b )"))
    said = maker.complaints(patch, stock["6.12"])
    assert len(said) > 2 and all("SPACING" in line for line in said), said


def test_a_series_that_was_edited_is_refused(maker: ModuleType, tmp_path: Path) -> None:
    kept, there = tmp_path / "6.12", KERNEL / "series/6.12"
    shutil.copytree(there, kept)
    maker.compare(kept, there, "6.12")

    path = sorted(kept.iterdir())[2]
    good = path.read_text()
    path.write_text(good.replace("index 000000000000..", "index 100000000000..").replace("@@ -0,0 +1,", "@@ -0,0 +3,"))
    assert path.read_text() != good
    maker.compare(kept, there, "6.12")  # as the next release of the source would have it
    path.write_text(good.replace("+static void hurry(", "+static void hurry2("))
    assert path.read_text() != good
    with pytest.raises(maker.Refused, match=f"{path.name} is not what.*make-series"):
        maker.compare(kept, there, "6.12")
    path.unlink()
    with pytest.raises(maker.Refused, match=f"{path.name} is not yet"):
        maker.compare(kept, there, "6.12")


def test_a_series_without_a_patch_is_not_what_apply_makes(
    maker: ModuleType, stock: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(maker.Refused, match="is not what kernel/apply makes"):
        maker.check_applied(stock["6.12"], "6.12", maker.kept_series("6.12")[:-1], tmp_path)


def test_a_file_or_hook_without_a_patch_is_refused(maker: ModuleType) -> None:
    plan = maker.load_plan()
    without = [patch for patch in plan.patches if patch.name != "gfs2-claim"]
    with pytest.raises(maker.Refused, match="hook gfs2-claim-.*no patch `gfs2-claim`"):
        maker.check_plan(dataclasses.replace(plan, patches=without))
    empty = [dataclasses.replace(patch, files=()) for patch in plan.patches]
    with pytest.raises(maker.Refused, match="`.*` has to be a file of src/ and in one patch"):
        maker.check_plan(dataclasses.replace(plan, patches=empty))


def test_a_build_without_the_claim_is_no_proof(maker: ModuleType, tmp_path: Path) -> None:
    config = tmp_path / ".config"
    config.write_text("CONFIG_X=y\n" + maker.CONFIGURATIONS["on"])
    maker.check_config(config)
    config.write_text("CONFIG_DLM_CLAIM=y\n")
    with pytest.raises(maker.Refused, match="lacks `CONFIG_DLM_CLAIM_KUNIT_TEST=y`"):
        maker.check_config(config)


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "linux-source-5.10.tar.xz").touch()
    for source, words in (("linux-source-5.10.tar.xz", "is Linux 5.10"), ("linux.tar", "does not tell a version")):
        command = [str(KERNEL / "make-series"), "--check", "--source", str(tmp_path / source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and words in done.stderr, done.stderr


def test_a_sender_signs_with_the_documented_step(maker: ModuleType, stock: dict[str, Path], tmp_path: Path) -> None:
    """README.md's commands, as they stand there; with the signature checkpatch.pl wants nothing more."""
    tree = maker.take(stock["6.12"], maker.touched("6.12"), tmp_path / "linux")
    maker.repository(tree)
    readme = (KERNEL / "README.md").read_text()
    begin = readme.index("git tag before")
    script = readme[begin : readme.index("```", begin)].replace("LOCKIFY", str(KERNEL.parent)).replace("VERSION", "6.12")
    assert script.count("\n") == 4, script
    sender = {"NAME": "A Sender", "EMAIL": "sender@example.org"}
    environment = maker.ENVIRONMENT | {f"GIT_{role}_{key}": sender[key] for role in ("AUTHOR", "COMMITTER") for key in sender}
    done = subprocess.run(["sh", "-ec", script], cwd=tree, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    patches = sorted((tree / "outgoing").glob("*.patch"))
    assert len(patches) == len(maker.kept_series("6.12"))
    for patch in patches:
        assert "From: A Sender <sender@example.org>" in patch.read_text()
        assert "\nSigned-off-by: A Sender <sender@example.org>\n---\n" in patch.read_text()
    assert maker.complaints(patches[0], stock["6.12"], signed=True) == []
    assert "MISSING_SIGN_OFF" in maker.complaints(maker.kept_series("6.12")[0], stock["6.12"], signed=True)[0]
