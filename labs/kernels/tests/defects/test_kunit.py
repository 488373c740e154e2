"""The kernel's report of the claim's own tests, which run when a node boots (kernel/src/fs/dlm/claim_test.c)."""

from __future__ import annotations

import re

from scenario import CREATOR, claims

from lockify_lab.lab import Lab

# Of each: `ok 1 name`, in 6.1 `ok 1 - name`; `not ok` if it fails.
RESULT = re.compile(r"\b(not )?ok \d+ (?:- )?(\w+)")


def test_the_claims_own_tests_pass(three: Lab) -> None:
    said = three.sh("dmesg", CREATOR)
    begin = said.find("Subtest: dlm_claim")
    if begin < 0:
        assert not claims(three), "the kernel has no KUnit tests of claims"
        return
    results = {name: not failed for failed, name in RESULT.findall(said[begin:])}
    print("\n".join(f"{'ok' if good else 'FAILED'} {name}" for name, good in results.items()))
    assert "dlm_claim" in results and len(results) > 6, said[begin:][:2000]
    assert all(results.values()), said[begin:][:4000]
