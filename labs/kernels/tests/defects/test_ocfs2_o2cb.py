"""D11: O2CB knows no claims. Requests of OCFS2 must not reach it as something it does not have.

The control is an unchanged kernel."""

from __future__ import annotations

import pytest
import scenario
from ocfs2 import check_stock_reports, expect_stock_reports, ocfs2

BUILT = ("kernels",)
FILES = 60


@pytest.mark.parametrize("kernel", ["claim", pytest.param("stock", marks=pytest.mark.long)])
def test_o2cb_works_as_before(kernel: str) -> None:
    with ocfs2(f"o2cb-{kernel}", 2, stack="o2cb", kernel=kernel) as lab:
        expect_stock_reports(lab)
        assert lab.sh("ls /sys/kernel/dlm 2>/dev/null || true") == "", "this is not o2cb"
        lab.sh("mkdir $MNT/d11", 1)
        lab.sh(scenario.create("d11", FILES), 1, timeout=120)
        lab.sh(scenario.verify("d11", FILES), 2, timeout=120)
        lab.sh(
            """cd $MNT/d11 && mkdir sub && ln 0 sub/hard && ln -s 1 soft && mv 2 sub/moved &&
               exec 9<3 && rm 3 && read -r line <&9 && [ "$line" = "d11 3 first" ]""",
            2,
        )
        lab.sh("cd $MNT/d11 && grep -q 'd11 0' sub/hard && grep -q 'd11 1' soft && grep -q 'd11 2' sub/moved", 1)
        lab.sh("rm -r $MNT/d11/*", 1, timeout=120)
        lab.sh(scenario.create("d11", FILES, "again"), 2, timeout=120)
        lab.sh(scenario.verify("d11", FILES, "again"), 1, timeout=120)
        assert lab.unexpected() == {}
        scenario.unmount_and_check(lab)
        check_stock_reports(lab)
