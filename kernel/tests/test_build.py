# SPDX-License-Identifier: GPL-2.0-only
"""kernel/build refuses in words that say what to do, and before it changes anything."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from types import ModuleType

import pytest

KERNEL = Path(__file__).resolve().parent.parent
PACKAGE = "6.12.117-1~deb12u1"
CONFIG = """CONFIG_DLM=m
CONFIG_GFS2_FS=m
CONFIG_GFS2_FS_LOCKING_DLM=y
CONFIG_OCFS2_FS=m
CONFIG_OCFS2_FS_USERSPACE_CLUSTER=m
"""


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    path = tmp_path / "headers"
    (path / "include/generated/uapi/linux").mkdir(parents=True)
    (path / ".config").write_text(CONFIG)
    write_version(path, 6, 12, 117)
    (path / "include/generated/package.h").write_text(
        f'#define LINUX_PACKAGE_ID " Debian {PACKAGE}"\n'
    )
    return path


def write_version(headers: Path, version: int, patchlevel: int, sublevel: int) -> None:
    code = (version << 16) + (patchlevel << 8) + sublevel
    generated = headers / "include/generated"
    (generated / "uapi/linux/version.h").write_text(f"#define LINUX_VERSION_CODE {code}\n")
    release = f"{version}.{patchlevel}.{sublevel}-test"
    (generated / "utsrelease.h").write_text(f'#define UTS_RELEASE "{release}"\n')


@pytest.fixture
def source(builder: ModuleType, tmp_path: Path) -> Path:
    """Looks like a kernel's source to the first look, and has nothing for the hooks."""
    tree = tmp_path / "source"
    for member in builder.MEMBERS:
        path = tree / member
        if member.startswith("fs/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    (tree / "Makefile").write_text("VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 117\n")
    return tree


def refusal(*arguments: object) -> str:
    """The command's message when it refuses."""
    done = subprocess.run(
        [str(KERNEL / "build"), *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("kernel/build: no modules were built: ")
    assert "Traceback" not in done.stderr
    return done.stderr


def test_headers_that_are_not_installed() -> None:
    words = refusal("--headers", "6.12.0+none-amd64")
    assert "apt install linux-headers-6.12.0+none-amd64" in words


def test_headers_that_are_not_prepared(headers: Path) -> None:
    (headers / "include/generated/utsrelease.h").unlink()
    assert "make modules_prepare" in refusal("--headers", headers)


def test_a_kernel_that_has_no_hooks(headers: Path) -> None:
    write_version(headers, 6, 18, 4)
    words = refusal("--headers", headers)
    assert "Linux 6.18.4" in words and "7.2, 6.12 and 6.1 only" in words


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("CONFIG_DLM=m", "without CONFIG_DLM=m, which dlm needs"),
        ("CONFIG_GFS2_FS_LOCKING_DLM=y", "--only dlm,ocfs2"),
        ("CONFIG_OCFS2_FS_USERSPACE_CLUSTER=m", "--only dlm,gfs2"),
    ],
)
def test_a_kernel_without_an_option(headers: Path, option: str, said: str) -> None:
    text = CONFIG.replace(option, f"# {option.split('=')[0]} is not set")
    (headers / ".config").write_text(text)
    words = refusal("--headers", headers)
    assert option in words and said in words


def test_a_kernel_that_has_the_dlm_built_in(headers: Path) -> None:
    (headers / ".config").write_text(CONFIG.replace("CONFIG_DLM=m", "CONFIG_DLM=y"))
    assert "built in, so no module can replace it" in refusal("--headers", headers)


def test_an_option_that_is_not_needed_may_be_off(builder: ModuleType, headers: Path) -> None:
    (headers / ".config").write_text(CONFIG.replace("CONFIG_OCFS2_FS=m\n", ""))
    builder.check_config(builder.find_headers(str(headers)), ["dlm", "gfs2"])
    with pytest.raises(builder.Refused, match="CONFIG_OCFS2_FS=m"):
        builder.check_config(builder.find_headers(str(headers)), ["dlm", "ocfs2"])


def test_a_source_that_is_not_installed(
    builder: ModuleType, headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "USR_SRC", tmp_path)
    with pytest.raises(builder.Refused) as refused:
        builder.find_source(None, builder.find_headers(str(headers)))
    assert f"apt install linux-source-6.12={PACKAGE}" in str(refused.value)


def test_a_source_that_does_not_exist(headers: Path, tmp_path: Path) -> None:
    words = refusal("--headers", headers, "--source", tmp_path / "none")
    assert "no such file or directory" in words


def test_a_source_of_another_release(headers: Path, source: Path, tmp_path: Path) -> None:
    (source / "Makefile").write_text("VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 115\n")
    words = refusal("--headers", headers, "--source", source, "--out", tmp_path / "out")
    assert "Linux 6.12.115, but the headers of 6.12.117-test are 6.12.117" in words
    assert f"apt install linux-source-6.12={PACKAGE}" in words


def test_a_source_package_of_another_revision(builder: ModuleType, headers: Path) -> None:
    """The upstream version is the same, what the distribution patched need not be."""
    found = builder.find_headers(str(headers))
    with pytest.raises(builder.Refused, match="Linux 6.12.117-2, but the headers .* 6.12.117-1~deb12u1"):
        builder.check_package(found, builder.Source(Path("tarball"), "6.12.117-2"))
    builder.check_package(found, builder.Source(Path("tarball"), PACKAGE))
    builder.check_package(found, builder.Source(Path("of no package"), None))


def test_what_is_no_kernel_source(headers: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    words = refusal("--headers", headers, "--source", tmp_path / "source", "--out", tmp_path / "out")
    assert "is no kernel source: it has no Makefile" in words
    (tmp_path / "broken.tar.xz").write_text("no tarball")
    words = refusal("--headers", headers, "--source", tmp_path / "broken.tar.xz", "--out", tmp_path / "out")
    assert "broken.tar.xz cannot be unpacked" in words


def test_what_the_hooks_do_not_know(headers: Path, source: Path, tmp_path: Path) -> None:
    """The words of kernel/apply reach the one who called."""
    words = refusal("--headers", headers, "--source", source, "--out", tmp_path / "out")
    assert "nothing was changed: hook " in words
    assert "hooks.toml" in words


def test_a_directory_of_others_is_never_replaced(headers: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "out/tree").mkdir(parents=True)
    (tmp_path / "out/tree/precious").write_text("mine")
    words = refusal("--headers", headers, "--source", source, "--out", tmp_path / "out")
    assert "was not made by kernel/build" in words
    assert (tmp_path / "out/tree/precious").read_text() == "mine"


def test_what_takes_too_long_is_ended_with_its_children(builder: ModuleType) -> None:
    begin = time.monotonic()
    with pytest.raises(builder.Refused, match="took longer than 1 s"):
        builder.run(["sh", "-c", "sleep 60 & wait"], 1)
    assert time.monotonic() - begin < 30


def test_a_compiler_that_fails(builder: ModuleType, headers: Path, tmp_path: Path) -> None:
    (headers / "Makefile").write_text("modules:\n\t@echo 'a compiler error' >&2; false\n")
    with pytest.raises(builder.Refused, match="compiler's words are above"):
        builder.make_modules(builder.find_headers(str(headers)), tmp_path, 1)


def test_only_adds_the_dlm_and_knows_its_names(builder: ModuleType) -> None:
    assert builder.module_names("ocfs2") == ["dlm", "ocfs2"]
    assert builder.module_names("gfs2,dlm") == ["dlm", "gfs2"]
    with pytest.raises(builder.argparse.ArgumentTypeError, match="`xfs`"):
        builder.module_names("gfs2,xfs")


def test_every_module_has_our_version_once(builder: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text('MODULE_LICENSE("GPL");\n')
    (tmp_path / "lock.c").write_text("/* no MODULE_LICENSE( at the line's begin */\n")
    builder.put_version(tmp_path)
    line = f'MODULE_VERSION("lockify-{builder.our_version()}");\n'
    assert (tmp_path / "main.c").read_text().endswith(line)
    assert "VERSION" not in (tmp_path / "lock.c").read_text()


def test_another_content_is_another_version(
    builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in builder.PARTS:
        path = tmp_path / part
        if (KERNEL / part).is_dir():
            path.mkdir(parents=True)
            path = path / "file"
        path.write_text("before")
    monkeypatch.setattr(builder, "HERE", tmp_path)
    before = builder.our_version()
    (tmp_path / "src/fs/file").write_text("after")
    assert builder.our_version() != before
