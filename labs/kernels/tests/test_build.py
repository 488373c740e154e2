"""Building kernels, as far as it needs no compiler."""

import os
from pathlib import Path

import pytest

from lockify_lab import Kernel, LabError, Options, UsageError, build, host, kconfig


def test_kernels_have_names() -> None:
    assert Kernel.parse("6.1-stock", Kernel()) == Kernel("6.1", stock=True)
    assert Kernel.parse("debug", Kernel(stock=True)) == Kernel("6.12", stock=True, debug=True)
    assert str(Kernel("6.1", debug=True)) == "6.1-claim-debug"
    assert Kernel.parse(str(Kernel("6.1", debug=True)), Kernel()) == Kernel("6.1", debug=True)


def test_the_environment_names_the_kernel_of_all_labs(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(options: Options, node: int) -> Kernel:
        return options._named(options.kernel_of.get(node, options.kernel))

    monkeypatch.delenv(build.DEFAULT_VARIABLE, raising=False)
    assert Kernel.default() == Kernel("6.12")
    assert not Options().debugs(1)
    monkeypatch.setenv(build.DEFAULT_VARIABLE, "6.1-debug")
    assert of(Options(), 1) == Kernel("6.1", debug=True)
    mixed = Options(kernel_of={1: "stock", 2: "/boot/linux"})
    assert of(mixed, 1) == Kernel("6.1", stock=True, debug=True)
    assert [mixed.debugs(node) for node in (1, 2, 3)] == [True, False, True]
    assert of(Options(kernel="6.12", kernel_of={1: "stock"}), 1) == Kernel("6.12", stock=True, debug=True)


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(UsageError, match="5.10"):
        Kernel.parse("5.10-stock", Kernel())


def test_a_lost_symbol_is_told(tmp_path: Path) -> None:
    config = tmp_path / ".config"
    config.write_text("CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=m\n", encoding="utf-8")
    kconfig.check({"CONFIG_A": "y", "CONFIG_B": "n", "CONFIG_MISSING": "n"}, config)
    with pytest.raises(LabError) as error:
        kconfig.check({"CONFIG_A": "y", "CONFIG_B": "y", "CONFIG_C": "y", "CONFIG_D": "y"}, config)
    told = str(error.value)
    assert "CONFIG_A" not in told
    assert all(f"CONFIG_{name}: wanted y" in told for name in "BCD")


def test_fragments_are_read_as_written() -> None:
    symbols = kconfig.read(host.CONFIGS / "base.config")
    assert symbols["CONFIG_DLM"] == "y"
    assert symbols["CONFIG_MODULES"] == "n"


def test_a_copy_touches_only_what_differs(tmp_path: Path) -> None:
    wanted, actual = tmp_path / "wanted", tmp_path / "actual"
    for folder in (wanted, actual):
        (folder / "sub").mkdir(parents=True)
        for name in ("same.c", "changed.c", "sub/same.h"):
            (folder / name).write_text("original", encoding="utf-8")
            os.utime(folder / name, (1000, 1000))
    (wanted / "changed.c").write_text("ours", encoding="utf-8")
    (wanted / "added.c").write_text("ours", encoding="utf-8")
    (actual / "left_over.c").write_text("of an earlier build", encoding="utf-8")

    assert build._mirror(wanted, actual) == 3
    assert build._mirror(wanted, actual) == 0
    assert sorted(path.name for path in actual.iterdir()) == ["added.c", "changed.c", "same.c", "sub"]
    assert (actual / "changed.c").read_text(encoding="utf-8") == "ours"
    assert (actual / "changed.c").stat().st_mtime > 1000
    assert (actual / "same.c").stat().st_mtime == (actual / "sub/same.h").stat().st_mtime == 1000


def test_changes_that_would_be_lost_are_refused(tmp_path: Path) -> None:
    (tmp_path / "fs" / "dlm").mkdir(parents=True)
    (tmp_path / "fs" / "dlm" / "claim.c").touch()
    build._refuse_changes_elsewhere(tmp_path)
    (tmp_path / "fs" / "namei.c").touch()
    with pytest.raises(LabError, match="fs/namei.c"):
        build._refuse_changes_elsewhere(tmp_path)


def test_what_is_mended_in_which_kernel(tmp_path: Path) -> None:
    driver, irq = tmp_path / "arch/um/drivers/vector_kern.c", tmp_path / "arch/um/kernel/irq.c"
    locks = "\tspin_lock(&a);\n\tspin_unlock(&a);\n"
    original = f"static void vector_reset_stats(x)\n{{\n{locks * 2}}}\nint other(void)\n{{\n{locks}}}\n"
    handler = "void sigio_handler(x)\n{\n\t_sigio_handler(regs, irqs_suspended);\n}\n"
    registers = tmp_path / "arch/x86/um/os-Linux/registers.c"
    restore = (
        "int restore_fp_registers(x)\n{\n\t\tiov.iov_base = fp_regs;\n"
        "\t\tiov.iov_len = FP_SIZE * sizeof(unsigned long);\n}\n"
    )
    for path, text in ((driver, original), (irq, handler), (registers, restore)):
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    plain, debug = build.mended(tmp_path, Kernel()), build.mended(tmp_path, Kernel(debug=True))
    assert plain["arch/um/drivers/vector_kern.c"] == original
    text = debug["arch/um/drivers/vector_kern.c"]
    assert text.count("spin_lock_bh(") == text.count("spin_unlock_bh(") == 2
    assert text.endswith(f"int other(void)\n{{\n{locks}}}\n")
    assert "if (!busy) {" in plain["arch/um/kernel/irq.c"] == debug["arch/um/kernel/irq.c"]
    assert "iov.iov_len = sizeof(all);" in plain["arch/x86/um/os-Linux/registers.c"]
    # It gives all of them back by itself.
    assert build.mended(tmp_path, Kernel("7.2"))["arch/x86/um/os-Linux/registers.c"] == restore
    driver.write_text(original.replace("reset_stats", "forget"), encoding="utf-8")
    with pytest.raises(LabError, match="see MENDED"):
        build.mended(tmp_path, Kernel(debug=True))


def test_a_kernel_that_cannot_check_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKIFY_LAB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="no DEBUG_ATOMIC_SLEEP"):
        build.build(Kernel("6.1", debug=True), limit=1, jobs=1)


def test_a_missing_kernel_names_the_command_that_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKIFY_LAB_CACHE", str(tmp_path))
    with pytest.raises(LabError, match="labs/kernels/lab build --kernel 6.1 --stock --debug"):
        build.find(Kernel("6.1", stock=True, debug=True))


def test_what_a_killed_make_left_half_written_goes(tmp_path: Path) -> None:
    log = tmp_path / "lab.log"
    times = {"lab.log": 1000, "old.o": 800, "half.o": 999, ".half.o.cmd": 1001, "old.c": 1001}
    for name, when in times.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (when, when))
    build._forget_half_written(tmp_path, log)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lab.log", "old.c", "old.o"]


def test_a_lock_excludes_others_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with host.locked(path, 1, "it"):
        with pytest.raises(LabError, match="another command still uses it"):
            with host.locked(path, 0.1, "it"):
                pass
        path.unlink()
        with host.locked(path, 1, "it"):  # a removed file locks nothing
            pass
    assert not path.exists()
    with host.locked(path, 1, "it"):
        pass
