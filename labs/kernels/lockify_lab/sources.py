"""Sources of kernels: the installed packages, and for newer ones a package of Debian's development release.

That release is asked by an apt with a configuration of its own, in the cache: nothing of it is installed, and this machine's
apt never hears of it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError
from .host import cache_dir, command, locked, say, version_of

INSTALLED = ("6.12", "6.1")
DEVELOPMENT = ("7.2",)
VERSIONS = INSTALLED + DEVELOPMENT

SUITE = "sid"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True)
class Source:
    """A source package: its version, and the tarball that it has."""

    package: str
    tarball: Path


def find(version: str) -> Source:
    """The source of this machine, or an error that tells how to get it."""
    if version in DEVELOPMENT:
        found = _fetched(version)
        if found is None:
            raise LabError(f"no source of Linux {version} is here: run `labs/kernels/lab setup --kernel {version}`")
        return found
    name = f"linux-source-{version}"
    package = version_of(name)
    if package is None:
        raise LabError(f"the package {name} is not installed: run `labs/kernels/lab setup`")
    return Source(package, Path(f"/usr/src/{name}.tar.xz"))


def fetch(version: str, limit: float) -> Source:
    """Loads the newest source package of a version, unless one is here."""
    with locked(_folder() / f"{version}.lock", limit, f"the source of Linux {version}"):
        found = _fetched(version)
        if found is not None:
            return found
        say(f"loading linux-source-{version} of Debian {SUITE}")
        # An interrupted call may have left it.
        loading = _folder() / "loading"
        shutil.rmtree(loading, ignore_errors=True)
        _download(version, loading, limit)
        for package in loading.glob("*.deb"):
            _take_tarball(version, package, limit)
        shutil.rmtree(loading)
    return find(version)


def _folder() -> Path:
    return cache_dir() / "sources"


def _fetched(version: str) -> Source | None:
    prefix, suffix = f"linux-source-{version}_", ".tar.xz"
    for tarball in _folder().glob(f"{prefix}*{suffix}"):
        return Source(tarball.name.removeprefix(prefix).removesuffix(suffix), tarball)
    return None


def _download(version: str, folder: Path, limit: float) -> None:
    if not KEYRING.exists():
        raise LabError(f"{KEYRING} is missing: apt-get install debian-archive-keyring")
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    entry = f"deb [signed-by={KEYRING}] {_mirror()} {SUITE} main\n"
    (folder / "sources.list").write_text(entry, encoding="utf-8")
    own = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::Etc::Preferences": "-",
        "Dir::Etc::PreferencesParts": "-",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder,
        "Acquire::Languages": "none",
        # The user of downloads need not be able to read the cache.
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-q"] + [word for key, value in own.items() for word in ("-o", f"{key}={value}")]
    command([*apt, "update"], limit)
    command([*apt, "download", f"linux-source-{version}"], limit, cwd=folder)


def _mirror() -> str:
    """The Debian mirror that this machine's packages come from."""
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Label: Debian"]
    told = command(words, 60).splitlines()
    if not told:
        raise LabError("apt knows no Debian mirror: run `apt-get update`, if its sources name one")
    return told[0]


def _take_tarball(version: str, package: Path, limit: float) -> None:
    unpacked = package.with_suffix("")
    command(["dpkg-deb", "--extract", package, unpacked], limit)
    tarball = unpacked / f"usr/src/linux-source-{version}.tar.xz"
    if not tarball.is_file():
        raise LabError(f"{package.name} has no {tarball.relative_to(unpacked)}")
    name = command(["dpkg-deb", "--field", package, "Version"], 60).strip()
    tarball.rename(_folder() / f"linux-source-{version}_{name}.tar.xz")
