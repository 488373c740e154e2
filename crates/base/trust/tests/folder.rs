//! The folder of a cluster's authority: what it writes, what it refuses, and its roll-over.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use lockify_trust::{
    Authority, CA, CA_KEY, CaFolder, Credentials, IDENTITY, Lifetime, NodeFiles, SharedKey, Source,
    generate_key_file,
};

const YEAR: Lifetime = Lifetime::Days(365);

fn folder(dir: &Path) -> CaFolder {
    CaFolder::init(&dir.join("ca"), "cluster one", YEAR).unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o777
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn read(files: &NodeFiles, node: u32) -> Result<Credentials, String> {
    let source = Source::Certificates { ca: files.ca.clone(), identity: files.identity.clone() };
    source.read("cluster one", node).map_err(|e| e.to_string())
}

#[test]
fn secrets_are_the_owners_alone_and_nothing_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let ca = folder(dir.path());
    let files = ca.add_node(1, YEAR).unwrap();
    let (root, node) = (dir.path().join("ca"), dir.path().join("ca/node-1"));
    let modes = [mode(&root), mode(&root.join(CA_KEY)), mode(&root.join(CA))];
    assert_eq!(modes, [0o700, 0o600, 0o644]);
    assert_eq!([mode(&node), mode(&files.identity), mode(&files.ca)], [0o700, 0o600, 0o644]);
    assert_eq!(files.identity, node.join(IDENTITY));

    let before = std::fs::read(&files.identity).unwrap();
    let again = ca.add_node(1, YEAR).unwrap_err().to_string();
    assert!(again.contains("node-1 exists"), "{again}");
    let again = CaFolder::init(&root, "cluster one", YEAR).unwrap_err().to_string();
    assert!(again.contains("exists"), "{again}");
    assert_eq!(std::fs::read(&files.identity).unwrap(), before);

    let key = dir.path().join("cluster.key");
    generate_key_file(&key).unwrap();
    assert_eq!(mode(&key), 0o600);
    let before = std::fs::read(&key).unwrap();
    let again = generate_key_file(&key).unwrap_err().to_string();
    assert!(again.contains("not overwritten"), "{again}");
    assert_eq!(std::fs::read(&key).unwrap(), before);
}

#[test]
fn secrets_that_others_can_read_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let files = folder(dir.path()).add_node(1, YEAR).unwrap();
    read(&files, 1).unwrap();
    for exposed in [0o644, 0o604, 0o660, 0o602] {
        allow(&files.identity, exposed);
        let e = read(&files, 1).unwrap_err();
        assert!(e.contains("node.pem") && e.contains("chmod 600"), "{e}");
    }
    // A daemon that does not run as root reads a file of root's by its group.
    allow(&files.identity, 0o640);
    read(&files, 1).unwrap();
    // A file that everybody may read is no secret.
    allow(&files.ca, 0o666);
    read(&files, 1).unwrap();
}

#[test]
fn what_does_not_fit_together_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let one = folder(dir.path());
    let files = one.add_node(1, YEAR).unwrap();
    let other = CaFolder::init(&dir.path().join("other"), "cluster one", YEAR).unwrap();
    let strange = other.add_node(1, YEAR).unwrap();

    let e = read(&files, 2).unwrap_err();
    assert!(e.contains("node 2") && e.contains("another node"), "{e}");
    let mixed = NodeFiles { ca: strange.ca.clone(), identity: files.identity.clone() };
    let e = read(&mixed, 1).unwrap_err();
    assert!(e.contains("authority"), "{e}");
    let swapped = NodeFiles { ca: files.ca.clone(), identity: files.ca.clone() };
    assert!(read(&swapped, 1).unwrap_err().contains("chmod"), "a public file as a secret");

    let own = std::fs::read_to_string(&files.identity).unwrap();
    let foreign = std::fs::read_to_string(&strange.identity).unwrap();
    let (certificate, key) = own.split_at(own.find("-----BEGIN PRIVATE").unwrap());
    let wrong_key = &foreign[foreign.find("-----BEGIN PRIVATE").unwrap()..];
    let trusted = std::fs::read_to_string(&files.ca).unwrap();
    let check = |identity: &str, trusted: &str| {
        Credentials::new("cluster one", 1, identity, trusted).map(drop)
    };
    check(&own, &trusted).unwrap();
    check(&format!("{key}{certificate}"), &trusted).unwrap();
    for (identity, trusted, what) in [
        (certificate.to_owned(), trusted.as_str(), "no private key"),
        (format!("{certificate}{wrong_key}"), &trusted, "cannot be used"),
        (key.to_owned(), &trusted, "no certificate"),
        (own[..own.len() / 4].to_owned(), &trusted, "certificate"),
        (own.clone(), "", "no authority"),
        (own.clone(), "nonsense", "no authority"),
        (own.clone(), &trusted[..trusted.len() - 40], "cannot be read"),
    ] {
        let e = check(&identity, trusted).unwrap_err();
        assert!(e.contains(what), "{what}: {e}");
    }
    let many = trusted.repeat(65);
    assert!(check(&own, &many).unwrap_err().contains("64 certificates"));
}

#[test]
fn a_cluster_of_another_name_has_other_names_for_its_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let files = folder(dir.path()).add_node(1, YEAR).unwrap();
    let source = Source::Certificates { ca: files.ca, identity: files.identity };
    let e = source.read("cluster two", 1).unwrap_err().to_string();
    assert!(e.contains("another node or cluster"), "{e}");
}

#[test]
fn certificates_that_are_over_or_have_not_begun_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let ca = folder(dir.path());
    let now = std::time::SystemTime::now();
    let day = std::time::Duration::from_secs(24 * 3600);
    for (from, to, what) in
        [(now - 3 * day, now - day, "expired"), (now + day, now + 3 * day, "not valid yet")]
    {
        // `add_node` looks at what it has made.
        let e = ca.add_node(1, Lifetime::Between(from, to)).unwrap_err().to_string();
        assert!(e.contains(what), "{e}");
        assert!(!dir.path().join("ca/node-1").exists());
    }
    for days in [0, 40_000, u32::MAX] {
        let e = ca.add_node(1, Lifetime::Days(days)).unwrap_err().to_string();
        assert!(e.contains("1 to 36525 days"), "{e}");
    }
}

#[test]
fn an_authority_that_is_over_or_has_not_begun_is_trusted_no_more() {
    let now = std::time::SystemTime::now();
    let day = std::time::Duration::from_secs(24 * 3600);
    let own = Lifetime::Between(now - 2 * day, now + 9 * day);
    for (from, to, what) in
        [(now - 9 * day, now - day, "expired"), (now + day, now + 9 * day, "not valid yet")]
    {
        let dir = tempfile::tempdir().unwrap();
        let lifetime = Lifetime::Between(from, to);
        let ca = CaFolder::init(&dir.path().join("ca"), "cluster one", lifetime).unwrap();
        let e = ca.add_node(1, own).unwrap_err().to_string();
        assert!(e.contains("an authority that") && e.contains(what), "{e}");
        // Beside one that is valid, too: it would sign for whoever has its key.
        let outdated = Authority::new("cluster one", lifetime).unwrap();
        let valid = Authority::new("cluster one", YEAR).unwrap();
        let bundle = format!("{}{}", outdated.certificate(), valid.certificate());
        let check = |authority: &Authority, trusted: &str| {
            let identity = authority.issue("cluster one", 1, own).unwrap();
            Credentials::new("cluster one", 1, &identity, trusted)
        };
        let e = check(&outdated, &bundle).unwrap_err();
        assert!(e.contains("an authority that") && e.contains(what), "{e}");
        check(&valid, &bundle).unwrap();
    }
}

#[test]
fn a_certificate_ends_with_the_authority_that_has_signed_it() {
    let now = std::time::SystemTime::now();
    let day = std::time::Duration::from_secs(24 * 3600);
    let seconds = |at: std::time::SystemTime| {
        at.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64
    };
    let authority = |days| Authority::new("c", Lifetime::Between(now - day, now + days * day));
    let (brief, long) = (authority(7).unwrap(), authority(900).unwrap());
    let bundle = format!("{}{}", brief.certificate(), long.certificate());
    for (signs, ends) in [(&brief, now + 7 * day), (&long, now + 30 * day)] {
        let own = signs.issue("c", 1, Lifetime::Between(now - day, now + 30 * day)).unwrap();
        let credentials = Credentials::new("c", 1, &own, &bundle).unwrap();
        assert_eq!(credentials.expires(), seconds(ends));
    }
}

#[test]
fn an_authority_is_replaced_while_both_are_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let ca = folder(dir.path());
    let (one, two) = (ca.add_node(1, YEAR).unwrap(), ca.add_node(2, YEAR).unwrap());
    let bundle = ca.roll_over(YEAR).unwrap();
    let e = ca.roll_over(YEAR).unwrap_err().to_string();
    assert!(e.contains("two authorities already"), "{e}");

    // Nodes get the bundle first: old certificates are good with it, and new ones.
    std::fs::copy(&bundle, &one.ca).unwrap();
    read(&one, 1).unwrap();
    ca.renew(1, YEAR).unwrap();
    read(&one, 1).unwrap();
    // A node without it does not accept the new authority.
    let late = NodeFiles { ca: two.ca.clone(), identity: one.identity.clone() };
    assert!(read(&late, 1).is_err());

    std::fs::copy(ca.retire().unwrap(), &one.ca).unwrap();
    read(&one, 1).unwrap();
    let old = NodeFiles { ca: one.ca.clone(), identity: two.identity.clone() };
    assert!(read(&old, 2).is_err(), "the old authority is still trusted");
    ca.renew(2, YEAR).unwrap();
    read(&two, 2).unwrap();
}

#[test]
fn a_roll_over_that_was_cut_short_can_be_undone() {
    let dir = tempfile::tempdir().unwrap();
    let ca = folder(dir.path());
    let secret = dir.path().join("ca").join(CA_KEY);
    let before = std::fs::read(&secret).unwrap();
    ca.roll_over(YEAR).unwrap();
    // As if the power had failed before the key was replaced.
    std::fs::write(&secret, before).unwrap();
    read(&ca.add_node(1, YEAR).unwrap(), 1).unwrap();
    ca.retire().unwrap();
    ca.roll_over(YEAR).unwrap();
    read(&ca.renew(1, YEAR).unwrap(), 1).unwrap();
}

#[test]
fn a_folder_that_is_not_whole_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let e = CaFolder::open(&dir.path().join("nowhere")).unwrap_err().to_string();
    assert!(e.contains("nowhere"), "{e}");
    folder(dir.path());
    let path = dir.path().join("ca");
    let ca = CaFolder::open(&path).unwrap();
    assert_eq!(ca.cluster(), "cluster one");
    assert!(ca.renew(7, YEAR).unwrap_err().to_string().contains("node-7"));
    std::fs::write(path.join(CA_KEY), "nonsense").unwrap();
    let e = ca.add_node(1, YEAR).unwrap_err().to_string();
    assert!(e.contains("ca.key") && e.contains("copy it back"), "{e}");
    std::fs::remove_file(path.join(CA_KEY)).unwrap();
    assert!(ca.add_node(1, YEAR).unwrap_err().to_string().contains("ca.key"));
    assert!(CaFolder::init(&dir.path().join("x"), "", YEAR).is_err());
    assert!(CaFolder::init(&dir.path().join("x"), "two\nlines", YEAR).is_err());
    assert!(!dir.path().join("x").exists());
}

#[test]
fn a_file_has_one_key_or_those_between_which_a_cluster_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster.key");
    generate_key_file(&path).unwrap();
    let read = || {
        let source = Source::SharedKey(path.clone());
        source.read("c", 1).map(drop).map_err(|e| e.to_string())
    };
    read().unwrap();
    let old = std::fs::read_to_string(&path).unwrap();
    let new = SharedKey::generate().unwrap().to_text();
    for keys in [format!("{old}{new}"), format!("{new}{old}"), new.trim().to_owned()] {
        std::fs::write(&path, keys).unwrap();
        read().unwrap();
    }
    let half = &new[..new.len() / 2];
    for wrong in ["", "\n", "lockify-key-1:short", &format!("{old}{half}"), &old.repeat(9)] {
        std::fs::write(&path, wrong).unwrap();
        let e = read().unwrap_err();
        assert!(e.contains("cluster.key") && e.contains("lockify cluster key"), "{e}");
    }
    std::fs::write(&path, &old).unwrap();
    allow(&path, 0o644);
    assert!(read().unwrap_err().contains("chmod 600"));
    assert!(SharedKey::read(&dir.path().join("none")).is_err());
}

/// Whatever is in the files, reading them ends, and not with a panic.
#[test]
fn damaged_files_are_refused_and_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let files = folder(dir.path()).add_node(1, YEAR).unwrap();
    let own = std::fs::read(&files.identity).unwrap();
    let trusted = std::fs::read(&files.ca).unwrap();
    let authority = std::fs::read(dir.path().join("ca").join(CA_KEY)).unwrap();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % n as u64) as usize
    };
    let mut accepted = 0;
    for _ in 0..3000 {
        let mut damaged = [own.clone(), trusted.clone(), authority.clone()];
        for text in &mut damaged {
            for _ in 0..below(3) {
                let at = below(text.len());
                match below(4) {
                    0 => text[at] = below(128) as u8,
                    1 => text.truncate(at + 1),
                    2 => text.insert(at, b"\n-= A"[below(5)]),
                    _ => text.extend_from_within(at..),
                }
            }
        }
        let [own, trusted, authority] = damaged.map(|t| String::from_utf8(t).unwrap());
        accepted += u32::from(Credentials::new("cluster one", 1, &own, &trusted).is_ok());
        if let Ok(authority) = lockify_trust::Authority::load(&authority) {
            let _ = authority.issue("cluster one", 1, YEAR);
        }
        let _ = SharedKey::parse(&own);
    }
    // Changes in whitespace and behind the end are none.
    assert!((1..3000).contains(&accepted), "{accepted}");
}
