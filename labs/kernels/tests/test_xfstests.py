"""xfstests: what is refused, how `check`'s output is read, what counts as a difference, and what a file system of one
host runs on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lockify_lab import LabError, UsageError
from lockify_lab.cli import main
from lockify_lab.xfstests import checkout, ways
from lockify_lab.xfstests.results import DIED, FAILED, HUNG, NOT_RUN, PASSED, Progress, Result, Run, compare
from lockify_lab.xfstests.shares import shares

BUILT = ("kernels", "lockify")

# As `check` writes it: the name when a test starts, the rest of the line when it has ended.
TOLD = """FSTYP         -- gfs2
PLATFORM      -- Linux/x86_64 node1 6.12.0
MKFS_OPTIONS  -- /dev/ubdb
MOUNT_OPTIONS -- -o acl /dev/ubdb /mnt/scratch

generic/001        7s
generic/002  5s ...  4s
generic/003       [not run] this test needs a dozen disks
generic/004  5s ... [not run] nor that
generic/005       - output mismatch (see /run/lab/xfstests/generic/005.out.bad)
    --- tests/generic/005.out
    +++ /run/lab/xfstests/generic/005.out.bad
    @@ -1,2 +1,2 @@
    -generic/099 3s
    ...
    (Run 'diff -u tests/generic/005.out out.bad'  to see the entire diff)
generic/006       [failed, exit status 1]- output mismatch (see /run/lab/xfstests/generic/006.out.bad)
generic/007       _check_dmesg: something found in dmesg (see /run/lab/xfstests/generic/007.dmesg)

generic/008       _check_generic_filesystem: filesystem on /dev/ubdb is inconsistent

generic/009        12s
Ran: generic/001 generic/002 generic/003 generic/004 generic/005
generic/001 is not started again by a line like this one
"""
VERDICTS = {
    "generic/001": PASSED, "generic/002": PASSED, "generic/003": NOT_RUN, "generic/004": NOT_RUN,
    "generic/005": FAILED, "generic/006": FAILED, "generic/007": FAILED, "generic/008": FAILED, "generic/009": PASSED,
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 7, 64, len(TOLD)])
def test_output_is_read_in_whatever_pieces_it_comes(size: int) -> None:
    progress = Progress()
    for begin in range(0, len(TOLD), size):
        progress.feed(TOLD[begin : begin + size])
    assert {name: result.verdict for name, result in progress.results.items()} == VERDICTS
    assert progress.current is None
    assert progress.results["generic/003"].said == "this test needs a dozen disks"
    assert progress.results["generic/006"].said.startswith("[failed, exit status 1]- output mismatch")


def test_a_test_that_runs_is_known_and_timed_and_can_be_given_up() -> None:
    clock = [100.0]
    progress = Progress(lambda: clock[0])
    progress.feed("FSTYP -- gfs2\n\ngeneric/001 ")
    clock[0] = 107.0
    assert (progress.current, progress.since) == ("generic/001", 100.0)
    progress.feed("       7s\ngeneric/0")
    assert progress.current is None, "half a name is no test"
    clock[0] = 108.0
    progress.feed("02      ")
    assert (progress.current, progress.since) == ("generic/002", 108.0)
    clock[0] = 408.0
    progress.give_up(HUNG)
    assert progress.results == {
        "generic/001": Result(PASSED, 7.0), "generic/002": Result(HUNG, 300.0),
    }  # fmt: skip
    progress.give_up(HUNG)
    assert len(progress.results) == 2, "between tests there is none to give up"


TESTS = ("generic/001", "generic/002", "generic/003")


def _run(claim: str, *verdicts: str) -> Run:
    results = {test: Result(verdict, 1.0) for test, verdict in zip(TESTS, verdicts, strict=True)}
    return Run("gfs2", f"claim {claim}", f"/out/{claim}", results, claims=500 if claim == "on" else 0)


def test_the_same_set_passes_whatever_else_fails() -> None:
    assert compare(_run("off", PASSED, PASSED, FAILED), _run("on", PASSED, PASSED, FAILED), TESTS) == []


@pytest.mark.parametrize("verdict", [FAILED, NOT_RUN, HUNG, DIED])
@pytest.mark.parametrize("worse", ["off", "on"])
def test_every_difference_is_told_with_where_to_look(verdict: str, worse: str) -> None:
    off = _run("off", PASSED, PASSED, verdict if worse == "off" else PASSED)
    on = _run("on", PASSED, PASSED, verdict if worse == "on" else PASSED)
    [told] = compare(off, on, TESTS)
    assert told.startswith("gfs2 generic/003: ") and verdict in told
    assert "/out/off/*/generic/003.*" in told and "/out/on/*/generic/003.*" in told


def test_an_empty_comparison_is_no_success() -> None:
    [told] = compare(_run("off", NOT_RUN, NOT_RUN, PASSED), _run("on", NOT_RUN, NOT_RUN, PASSED), TESTS)
    assert "only 1 of 3 tests passed" in told
    passed = (PASSED, PASSED, PASSED)
    [told] = compare(_run("off", *passed), replace(_run("on", *passed), claims=0), TESTS)
    assert "0 claims were made, claim off, and 0, claim on" in told
    [told] = compare(replace(_run("off", *passed), claims=1), _run("on", *passed), TESTS)
    assert "1 claims were made, claim off" in told
    # A file system of one host has none.
    before, after = (replace(_run("off", *passed), how=how, claims=None) for how in ("on disks", "on an array"))
    assert compare(before, after, TESTS) == []


def test_damage_and_complaints_count_if_only_the_claim_has_them() -> None:
    off, on = _run("off", PASSED, PASSED, PASSED), _run("on", PASSED, PASSED, PASSED)
    bad = replace(on, damage="fsck.gfs2 found errors", complaints={2: ["BUG: in the kernel"]})
    damage, complaint = compare(off, bad, TESTS)
    assert "fsck.gfs2 found errors" in damage and "node 2's kernel complained" in complaint
    same = replace(off, damage="fsck.gfs2 found errors", complaints={2: ["BUG: in the kernel"]})
    assert compare(same, bad, TESTS) == []


def test_a_run_becomes_json() -> None:
    data = json.loads(json.dumps(_run("on", PASSED, NOT_RUN, HUNG).asdict()))
    assert data["counts"] == {"passed": 1, "failed": 0, "not run": 1, "hung": 1, "died": 0}
    assert data["tests"]["generic/003"] == {"verdict": "hung", "seconds": 1.0, "said": ""}


def test_the_list_is_tests_without_repetition() -> None:
    tests = checkout.default_tests()
    assert len(tests) == len(set(tests)) == 93
    assert all(test.startswith("generic/") for test in tests)


def test_tests_with_a_common_file_are_one_nodes(tmp_path: Path) -> None:
    names = {
        "a": "out=$TEST_DIR/fsx", "b": "$TEST_DIR/other", "c": 'rm -rf "${TEST_DIR}/fsx"',
        "d": "$TEST_DIR/$seq.1", "e": ">$TEST_DIR/$seq.1", "f": "$TEST_DIR/x $TEST_DIR/other",
        "g": "$TEST_DIR/x|cat",
    }  # fmt: skip
    (tmp_path / "tests").mkdir()
    for test, script in names.items():
        (tmp_path / "tests" / test).write_text(script)
    assert shares(tmp_path, list(names), 1) == [list("abcdefg")]
    given = shares(tmp_path, list(names), 3)
    assert sorted("".join(share) for share in given) == ["ac", "bdfg", "e"]
    assert shares(tmp_path, ["a"], 2) == [["a"], []]


def _checkout(folder: Path, built: bool) -> Path:
    for name in ("check", "tests/generic/001", *(checkout._BUILT if built else ())):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_a_checkout_that_cannot_run_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="is no checkout of xfstests"):
        checkout.usable(tmp_path, ())
    monkeypatch.setattr(checkout, "_PROGRAMS", ("sh",))
    folder = _checkout(tmp_path / "xfstests", built=False)
    with pytest.raises(LabError, match=f"is not built .*run `make -C {folder}`"):
        checkout.usable(folder, ())
    _checkout(folder, built=True)
    assert checkout.usable(folder, ["generic/001"]) == folder
    with pytest.raises(UsageError, match="there is no test generic/999"):
        checkout.usable(folder, ["generic/001", "generic/999"])
    monkeypatch.setattr(checkout, "_PROGRAMS", ("sh", "no-such-program"))
    with pytest.raises(LabError, match=r"needs no-such-program: run `apt-get install .* xfsprogs && make -C"):
        checkout.usable(folder, ())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--nodes 1", "--nodes is at least 2"),
        ("--active 4", "--active is 1 to --nodes"),
        ("--active 0", "--active is 1 to --nodes"),
        ("--test-timeout 0", "--test-timeout is more than 0"),
        ("-k crash", "other arguments are tests"),
        ("", "is no checkout of xfstests"),
    ],
)
def test_bad_arguments_are_refused(
    words: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", "--xfstests", str(tmp_path), *words.split()]) == 2
    assert told in capsys.readouterr().err


# As xfstests' own: what it is given, and what it does with it.
CHECK = """#!/bin/sh
. "$HOST_OPTIONS"
[ "$1" = --exact-order ] && shift
mkdir -p "$SCRATCH_MNT"
wipefs -q -a "$SCRATCH_DEV" && mkfs -t "$FSTYP" "$SCRATCH_DEV" >/dev/null 2>&1 || exit
mount "$TEST_DEV" "$TEST_DIR" && mount "$SCRATCH_DEV" "$SCRATCH_MNT" || exit
for test; do
    printf '%s ' "$test"
    sh "tests/$test" && echo "  1s" || echo "- output mismatch"
done
umount "$TEST_DIR" "$SCRATCH_MNT"
"""
CHECKS = {
    "generic/001": "echo $FSTYP >$TEST_DIR/name && sync",
    "generic/002": "cp $TEST_DIR/name $SCRATCH_MNT && [ $(cat $SCRATCH_MNT/name) = $FSTYP ]",
    "generic/003": "echo c >/proc/sysrq-trigger",
    "generic/004": "[ $(cat $TEST_DIR/name) = $FSTYP ] && [ ! -e $SCRATCH_MNT/name ]",
    "generic/005": "case $TEST_DEV in /dev/ubd?) ;; *) exit 1 ;; esac",
}


@pytest.mark.long
@pytest.mark.parametrize("fs", ["ext4", "xfs"])
def test_a_file_system_of_one_host_has_its_devices_on_disks_and_on_an_array(
    fs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test takes its node along. The others go on with what it had written, and a difference is told."""
    monkeypatch.setattr(checkout, "_PROGRAMS", ())
    monkeypatch.setattr(ways, "SIZE", 320)  # as little as XFS takes
    folder = _checkout(tmp_path / "xfstests", built=True)
    (folder / "check").write_text(CHECK)
    (folder / "check").chmod(0o755)
    (folder / "tests/generic/group.list").touch()
    for test, script in CHECKS.items():
        (folder / "tests" / test).write_text(script + "\n")
        (folder / "tests" / f"{test}.out").touch()
    out = tmp_path / "out"
    words = ["--fs", fs, "--out", str(out), "--timeout", "1500", "--test-timeout", "300", *CHECKS]
    assert main(["test", "--xfstests", str(folder), *words]) == 1
    report = json.loads((out / "report.json").read_text())
    disks, array = report["runs"]
    verdicts = [{test: result["verdict"] for test, result in run["tests"].items()} for run in (disks, array)]
    passed = dict.fromkeys(CHECKS, PASSED) | {"generic/003": DIED}
    assert verdicts == [passed, passed | {"generic/005": FAILED}]
    assert [told.split(":")[0] for told in report["differences"]] == [f"{fs} generic/005"]
    assert (disks["damage"], array["damage"]) == ("", "")
