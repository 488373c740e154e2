"""Sources of kernels that no installed package has."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockify_lab import sources
from lockify_lab.errors import LabError
from lockify_lab.host import command


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCKIFY_LAB_CACHE", str(tmp_path))
    return tmp_path / "sources"


def test_a_source_that_is_not_here_is_refused_with_the_command(cache: Path) -> None:
    with pytest.raises(LabError, match="labs/kernels/lab setup --kernel 7.2"):
        sources.find("7.2")


def test_a_loaded_source_has_its_packages_version(cache: Path) -> None:
    cache.mkdir()
    tarball = cache / "linux-source-7.2_7.2.13-1~x.tar.xz"
    tarball.touch()
    assert sources.find("7.2") == sources.Source("7.2.13-1~x", tarball)
    # It is not loaded again.
    assert sources.fetch("7.2", 10).tarball == tarball


def package(folder: Path, files: tuple[str, ...]) -> Path:
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = "Package: linux-source-7.2\nVersion: 7.2.1-2\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n"
    (tree / "DEBIAN/control").write_text(control, encoding="utf-8")
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("source", encoding="utf-8")
    command(["dpkg-deb", "--build", "--root-owner-group", tree, folder / "linux-source-7.2.deb"], 60)
    return folder / "linux-source-7.2.deb"


def test_the_tarball_of_a_package_is_kept(cache: Path, tmp_path: Path) -> None:
    cache.mkdir()
    sources._take_tarball("7.2", package(tmp_path, ("usr/src/linux-source-7.2.tar.xz",)), 60)
    source = sources.find("7.2")
    assert source.package == "7.2.1-2" and source.tarball.read_text(encoding="utf-8") == "source"


def test_a_package_without_a_tarball_is_named(cache: Path, tmp_path: Path) -> None:
    cache.mkdir()
    with pytest.raises(LabError, match="linux-source-7.2.deb has no usr/src/linux-source-7.2.tar.xz"):
        sources._take_tarball("7.2", package(tmp_path, ("usr/share/doc/x",)), 60)
