"""Bad input ends with exit code 2 and a sentence that says what to write, before anything is started."""

import json
import subprocess
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[1] / "lab"


def _lab(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([LAB, *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("up --nodes 0", "--nodes is 1 to 16"),
        ("up --nodes 17", "--nodes is 1 to 16"),
        ("up --nodes two", "invalid int value"),
        ("up --fs ext4", "--fs is one of gfs2, ocfs2, none"),
        ("up --stack pacemaker", "--stack is one of dlm, o2cb, none"),
        ("up --claim maybe", "--claim is one of off, strict, on"),
        ("up --fs gfs2 --stack o2cb", "GFS2 needs --stack dlm"),
        ("up --fs ocfs2 --stack none", "OCFS2 needs --stack dlm or o2cb"),
        ("up --fs ocfs2 --stack o2cb --claim on", "o2cb has no claim"),
        ("up --kernel 5.10", "no such kernel: 5.10"),
        ("up --kernel /no/such/linux", "is no kernel that can be started"),
        ("up --kernel-of 3=stock", "there is no node [3]"),
        ("up --kernel-of stock", "is not NODE=VALUE"),
        ("up --pin 3=0", "there is no node [3]"),
        ("up --pin 1=first", "both numbers"),
        ("up --memory 1T", "--memory is a number with M or G"),
        ("up --disk 200", "--disk is a number with M or G"),
        ("up --disk array:200", "--disk is a number with M or G"),
        ("up --disk array", "--disk array needs --fs gfs2 and --nodes 3 or more"),
        ("up --disk array --nodes 3 --fs ocfs2", "--disk array needs --fs gfs2 and --nodes 3 or more"),
        ("up --scratch 200", "--scratch is a number with M or G"),
        ("up --nodes 3 --journals 2", "--journals is at least --nodes"),
        ("up --journal-size 4", "--journal-size is at least 8"),
        ("up --delay fast", "'fast' is no delay"),
        ("up --token 1", "--token is 1000 to 600000"),
        ("up --mtu 100", "--mtu is 1280 to 9000"),
        ("up --tools /no/such/folder", "/no/such/folder is not a folder"),
        ("up --name UPPER", "is no name for a lab"),
        ("up --name ../escape", "is no name for a lab"),
        ("up --timeout 0", "invalid seconds value"),
        ("run", "give either a script's file or -c TEXT"),
        ("run -c true script", "give either a script's file or -c TEXT"),
        ("run /no/such/script", "cannot read the script"),
        ("run --node one -c true", "--node is a number"),
        ("fault melt --node 1", "invalid choice: 'melt'"),
        ("fault crash", "--node"),
        ("fault leave --node 1 --kernel stock", "--kernel is for join"),
        ("build --kernel 5.10", "invalid choice: '5.10'"),
    ],
)
def test_bad_input_is_refused(words: str, told: str) -> None:
    result = _lab(*words.split())
    assert told in result.stderr
    assert result.returncode == 2


@pytest.mark.parametrize("words", ["run -c true", "fault crash --node 1", "fault netem --node all"])
def test_a_lab_that_is_down_says_how_to_start_it(words: str) -> None:
    command, *rest = words.split()
    result = _lab(command, "--name", "never-started", *rest)
    assert "start it with `labs/kernels/lab up --name never-started`" in result.stderr
    assert result.returncode == 3


def test_errors_are_json_on_request() -> None:
    result = _lab("up", "--json", "--nodes", "0")
    assert json.loads(result.stdout) == {"error": "--nodes is 1 to 16", "code": 2}


def test_down_without_a_lab_is_no_error() -> None:
    result = _lab("down", "--json", "--name", "never-started")
    assert (result.returncode, json.loads(result.stdout)) == (0, {"ended": []})
