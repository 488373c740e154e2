"""The DLM's tables: reading them, and finding what must not be."""

from lockify_lab import Tables, check_copies, check_single_master
from lockify_lab.tables import parse

ACTIVE = """\
rsb ptr nodeid first_lkid flags !root_list_empty !recover_list_empty recover_locks_count len
rsb 000000007a1c 0 0 0 0 0 0 24 str        2              1a
lkb 1 0 0 80 0 0 0 2 5 -1 0 0 0 1 1 1
lkb 4 2 9 80 0 0 10000 1 -1 3 0 0 0 1 1 1
rsb 000000007a2c 2 0 0 0 0 0 4 hex 01 02 ff 00
lkb 2 2 7 80 0 0 0 2 3 -1 0 0 0 1 1 1
rsb 000000007a3c -1 0 0 0 0 0 3 str new
lkb 3 -1 0 80 0 0 0 0 -1 5 0 1 4 1 1 1
"""
INACTIVE = """\
rsb ptr nodeid master_nodeid dir_nodeid our_nodeid toss_time flags len str|hex name
rsb 000000007a4c 0 1 2 1 77 0 4 str kept
rsb 000000007a5c 2 2 1 1 77 0 5 str other
"""


def _tables(*texts: str) -> Tables:
    tables = Tables()
    for number, text in enumerate(texts, start=1):
        tables.resources += parse(number, text, "")
    return tables


def _held(nodeid: int, mode: int, name: str = "r") -> str:
    return (
        f"rsb 0 {nodeid} 0 0 0 0 0 {len(name)} str {name}\nlkb 1 {nodeid} 0 1 0 0 0 2 {mode} -1 0 0 0 1 1 1\n"
    )


def test_resources_have_names_masters_and_directories() -> None:
    found = {resource.name: resource for resource in parse(1, ACTIVE, INACTIVE)}
    assert found["       2              1a"].master == 1
    assert found["0x0102ff00"].master == 2
    assert found["new"].master is None
    assert (found["kept"].master, found["kept"].directory, found["kept"].active) == (1, 2, False)
    assert found["other"].master == 2


def test_locks_have_holders_modes_and_queues() -> None:
    inode, copy, new, *_ = parse(1, ACTIVE, INACTIVE)
    own, remote = inode.locks
    assert (own.holder, own.granted, own.queue) == (1, "EX", "granted")
    assert (remote.holder, remote.requested, remote.queue) == (2, "PR", "waiting")
    assert (copy.locks[0].holder, copy.locks[0].granted) == (1, "PR")
    assert (new.locks[0].queue, new.locks[0].wait) == ("lookup", 4)


def test_one_master_and_compatible_grants_are_fine() -> None:
    tables = _tables(_held(0, 3), _held(1, 3), _held(1, 0))
    assert check_single_master(tables) == []
    assert tables.masters("r") == [1]
    assert tables.granted("r") == [(1, "PR"), (2, "PR"), (3, "NL")]


def test_two_masters_are_found() -> None:
    wrong = check_single_master(_tables(_held(0, 3), _held(0, 3)))
    assert wrong == ["resource 'r' has 2 masters: nodes [1, 2]"]


def test_an_inactive_master_counts() -> None:
    tables = _tables(_held(2, 3))
    tables.resources += parse(2, "", "rsb 0 0 2 1 2 77 0 1 str r\n")
    assert check_single_master(tables) == []
    tables.resources += parse(3, "", "rsb 0 0 3 1 3 77 0 1 str r\n")
    assert check_single_master(tables) == ["resource 'r' has 2 masters: nodes [2, 3]"]


def test_incompatible_grants_are_found() -> None:
    wrong = check_single_master(_tables(_held(0, 5), _held(1, 3)))
    assert wrong == ["resource 'r': node 1 holds EX, node 2 holds PR"]


def test_a_grant_without_a_mode_is_found() -> None:
    assert check_single_master(_tables(_held(0, -1))) == ["resource 'r': node 1 holds a lock without a mode"]


def _copy(holder: int, remote: int, mode: int) -> str:
    return f"rsb 0 0 0 0 0 0 0 1 str r\nlkb 9 {holder} {remote:x} 1 0 0 10000 2 {mode} -1 0 0 0 1 1 1\n"


def test_masters_and_holders_agree() -> None:
    assert check_copies(_tables(_copy(2, 1, 3), _held(1, 3))) == []
    assert check_copies(_tables(_held(0, 5))) == []  # the master's own lock has no copy


def test_disagreement_is_found() -> None:
    told = "resource 'r': "
    assert check_copies(_tables(_copy(2, 1, 5), "")) == [
        told + "the master has EX for node 2, which has none"
    ]
    assert check_copies(_tables("", _held(1, 3))) == [told + "node 2 has PR, of which the master has no copy"]
    assert check_copies(_tables(_copy(2, 1, 5), _held(1, 3))) == [
        told + "node 2 has PR, the master has EX for it"
    ]
