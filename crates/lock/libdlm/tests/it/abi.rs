//! The binary interface: exported symbols, sonames, layouts and constants are those of libdlm.
//!
//! The interface of Debian's libdlm3 4.2.0 is written down here. Where the packages libdlm3 and
//! libdlm-dev are installed, they are asked as well; LOCKIFY_TEST_LIBDLM=1 says that they have to
//! be.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Compiler, debian, library, said};

/// In both libraries.
const COMMON: [&str; 21] = [
    "dlm_close_lockspace",
    "dlm_create_lockspace",
    "dlm_dispatch",
    "dlm_get_fd",
    "dlm_kernel_version",
    "dlm_library_version",
    "dlm_lock",
    "dlm_lock_wait",
    "dlm_ls_deadlock_cancel",
    "dlm_ls_get_fd",
    "dlm_ls_lock",
    "dlm_ls_lock_wait",
    "dlm_ls_lockx",
    "dlm_ls_purge",
    "dlm_ls_unlock",
    "dlm_ls_unlock_wait",
    "dlm_new_lockspace",
    "dlm_open_lockspace",
    "dlm_release_lockspace",
    "dlm_unlock",
    "dlm_unlock_wait",
];

/// In `libdlm.so.3` only.
const THREADS: [&str; 5] = [
    "dlm_ls_pthread_init",
    "dlm_pthread_cleanup",
    "dlm_pthread_init",
    "lock_resource",
    "unlock_resource",
];

/// The symbols that a shared library defines for others.
fn symbols(library: &Path) -> BTreeSet<String> {
    let output = said(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let names = output.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let kind = words.next()?;
        "TDBRW".contains(kind).then(|| words.next().map(str::to_owned)).flatten()
    });
    names.collect()
}

fn soname(library: &Path) -> String {
    let output = said(Command::new("readelf").args(["-d", "-W"]).arg(library));
    let line = output.lines().find(|line| line.contains("(SONAME)")).expect("a soname");
    line.rsplit_once('[').unwrap().1.trim_end_matches(']').to_owned()
}

#[test]
fn symbols_and_sonames() {
    let both: BTreeSet<String> = COMMON.iter().map(|s| s.to_string()).collect();
    let all: BTreeSet<String> = both.iter().cloned().chain(THREADS.map(String::from)).collect();
    for (name, wanted) in [("libdlm", &all), ("libdlm_lt", &both)] {
        assert_eq!(symbols(&library(name)), *wanted, "{name}");
        assert_eq!(soname(&library(name)), format!("{name}.so.3"));
        if let Some(debian) = debian() {
            let theirs = debian.libraries.join(format!("{name}.so.3"));
            assert_eq!(symbols(&theirs), *wanted, "Debian's {name}");
            assert_eq!(soname(&theirs), format!("{name}.so.3"));
        }
    }
}

/// Layouts and constants as a program is compiled with them.
const CONSTANTS: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>
#include <libdlm.h>

#define SHOW(x) printf(#x " %#lx\n", (unsigned long)(x))

int main(void)
{
    uint32_t v[3];

    dlm_library_version(&v[0], &v[1], &v[2]);
    printf("library %u.%u.%u\n", v[0], v[1], v[2]);
    SHOW(sizeof(struct dlm_lksb)); SHOW(_Alignof(struct dlm_lksb));
    SHOW(offsetof(struct dlm_lksb, sb_status)); SHOW(offsetof(struct dlm_lksb, sb_lkid));
    SHOW(offsetof(struct dlm_lksb, sb_flags)); SHOW(offsetof(struct dlm_lksb, sb_lvbptr));
    SHOW(sizeof(dlm_lshandle_t));
    SHOW(DLM_LVB_LEN); SHOW(DLM_LOCKSPACE_LEN); SHOW(DLM_RESNAME_MAXLEN);
    SHOW(DLM_SBF_DEMOTED); SHOW(DLM_SBF_VALNOTVALID); SHOW(DLM_SBF_ALTMODE);
    SHOW(DLM_LSFL_TIMEWARN); SHOW(DLM_LSFL_FS); SHOW(DLM_LSFL_NEWEXCL);
    SHOW(LKM_NLMODE); SHOW(LKM_CRMODE); SHOW(LKM_CWMODE);
    SHOW(LKM_PRMODE); SHOW(LKM_PWMODE); SHOW(LKM_EXMODE);
    SHOW(LKF_NOQUEUE); SHOW(LKF_CANCEL); SHOW(LKF_CONVERT); SHOW(LKF_VALBLK);
    SHOW(LKF_QUECVT); SHOW(LKF_IVVALBLK); SHOW(LKF_CONVDEADLK); SHOW(LKF_PERSISTENT);
    SHOW(LKF_NODLCKWT); SHOW(LKF_NODLCKBLK); SHOW(LKF_EXPEDITE); SHOW(LKF_NOQUEUEBAST);
    SHOW(LKF_HEADQUE); SHOW(LKF_NOORDER); SHOW(LKF_ORPHAN); SHOW(LKF_ALTPR);
    SHOW(LKF_ALTCW); SHOW(LKF_FORCEUNLOCK); SHOW(LKF_TIMEOUT); SHOW(LKF_WAIT);
    SHOW(ECANCEL); SHOW(EUNLOCK); SHOW(EINPROG);
    return 0;
}
"#;

#[test]
fn layouts_and_constants() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("constants.c");
    std::fs::write(&source, CONSTANTS).unwrap();
    let run = |compiler: &Compiler, name: &str| {
        let program: PathBuf = compiler.compile(&source, name, "libdlm");
        said(&mut compiler.command(&program))
    };
    let ours = run(&Compiler::ours(dir.path()), "ours");
    assert!(ours.contains("sizeof(struct dlm_lksb) 0x18"), "{ours}");
    assert!(ours.contains("offsetof(struct dlm_lksb, sb_lvbptr) 0x10"), "{ours}");
    assert!(ours.contains("library 6.0.2"), "{ours}");
    if let Some(debian) = debian() {
        // Compiled with their header: once with our library, once with theirs.
        let theirs = Compiler::debian(dir.path());
        assert_eq!(run(&theirs, "theirs"), ours);
        let program = dir.path().join("theirs");
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", &debian.libraries);
        assert_eq!(said(&mut command), ours);
    }
}
