//! An export by TLS only.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use lockify_trust::{Authority, Credentials, Keyring, Lifetime, node_name};

use super::clients::{run, wanted};
use crate::door::testing::export;
use crate::nbd::testing::{Client, Running, Tls};

const SIZE: u64 = 16 << 20;
const CLUSTER: &str = "testing";
const READ: (u16, u16) = (0, 0);
const WRITE: (u16, u16) = (0, 1);

fn credentials(authority: &Authority, cluster: &str, node: u32) -> Credentials {
    let identity = authority.issue(cluster, node, Lifetime::Days(1)).unwrap();
    Credentials::new(cluster, node, &identity, authority.certificate()).unwrap()
}

fn authority() -> Authority {
    Authority::new(CLUSTER, Lifetime::Days(1)).unwrap()
}

/// An export of node 1.
fn served(authority: &Authority) -> Running {
    let keys = Arc::new(Keyring::new(credentials(authority, CLUSTER, 1)));
    Running::with(export(SIZE), Some(keys))
}

/// The server may refuse with the first bytes that it sends.
fn with_tls(running: &Running, own: &Credentials) -> Client<Tls> {
    let mut client = running.stranger();
    client.begin_tls();
    client.with_tls(own.dial(1).unwrap())
}

#[test]
fn nothing_is_told_before_tls() {
    let running = served(&authority());
    let mut client = running.stranger();
    client.get(18);
    client.put(&3u32.to_be_bytes());
    for (option, data) in
        [(3, &b""[..]), (6, b"\0\0\0\x05array\0\0"), (7, b"\0\0\0\0\0\0"), (8, b"")]
    {
        client.option(option, data);
        let (of, kind, text) = client.answer();
        assert_eq!((of, kind), (option, 0x8000_0005));
        assert!(!String::from_utf8_lossy(&text).contains("array"));
    }
    client.option(5, b"superfluous");
    assert_eq!(client.answer().1, 0x8000_0003);
    client.option(1, b"array");
    assert!(client.is_over());
}

#[test]
fn a_node_of_the_cluster_reads_and_writes_by_tls() {
    let authority = authority();
    let running = served(&authority);
    assert!(running.uri.starts_with("nbds+unix:///"), "{}", running.uri);
    let mut client = with_tls(&running, &credentials(&authority, CLUSTER, 2));
    // What was agreed on before, if anything, counts no more. TLS begins only once.
    client.option(5, &[]);
    assert_eq!(client.answer().1, 0x8000_0003);
    client.option(1, b"array");
    client.get(10);
    // More at a time than TLS takes at once, in both directions.
    let bytes: Vec<u8> =
        (0..4 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for cookie in 0..4 {
        client.request(WRITE, cookie, cookie * (4 << 20), 4 << 20);
        client.put(&bytes);
    }
    let mut done: Vec<u64> = (0..4)
        .map(|_| client.reply())
        .map(|(errno, cookie)| {
            assert_eq!(errno, 0);
            cookie
        })
        .collect();
    done.sort_unstable();
    assert_eq!(done, [0, 1, 2, 3]);
    assert!(running.memory.bytes(12 << 20, 4 << 20) == bytes);
    for cookie in 0..4 {
        client.request(READ, cookie, cookie * (4 << 20), 4 << 20);
    }
    for _ in 0..4 {
        assert_eq!(client.reply().0, 0);
        assert!(client.get(4 << 20) == bytes);
    }
}

#[test]
fn who_proves_nothing_is_hung_up_on() {
    let authority = authority();
    let running = served(&authority);
    let other = Authority::new(CLUSTER, Lifetime::Days(1)).unwrap();
    // Signed by another authority; and by this one for another cluster, whose client believes it.
    let foreign = credentials(&other, CLUSTER, 2);
    assert!(refuses(&mut with_tls(&running, &foreign)));
    let identity = authority.issue("elsewhere", 2, Lifetime::Days(1)).unwrap();
    let astray = Credentials::new("elsewhere", 2, &identity, authority.certificate()).unwrap();
    let here = credentials(&authority, CLUSTER, 2);
    let mut client = with_tls(&running, &here);
    client.option(3, &[]);
    assert_eq!(client.answer().1, 2);
    assert!(refuses(&mut with_tls(&running, &astray)));
    // No TLS at all.
    let mut client = running.stranger();
    client.begin_tls();
    client.option(3, &[]);
    let mut rest = Vec::new();
    let _ = client.0.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("array"));
}

/// Returns true if the server answers no option.
fn refuses(client: &mut Client<Tls>) -> bool {
    let option =
        [b"IHAVEOPT".to_vec(), 3u32.to_be_bytes().to_vec(), 0u32.to_be_bytes().to_vec()].concat();
    let asked = client.0.write_all(&option);
    asked.is_err() || !matches!(client.0.read(&mut [0; 20]), Ok(1..))
}

#[test]
fn existing_clients_use_the_clusters_certificates() {
    if !wanted() {
        return;
    }
    let authority = authority();
    let running = served(&authority);
    let dir = tempfile::tempdir().unwrap();
    let identity = authority.issue(CLUSTER, 2, Lifetime::Days(1)).unwrap();
    // One file has both.
    for (name, content) in [
        ("ca-cert.pem", authority.certificate()),
        ("client-cert.pem", &identity),
        ("client-key.pem", &identity),
    ] {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    let folder = dir.path().to_str().unwrap();
    let uri = format!("{}&tls-certificates={folder}", running.uri);
    assert_eq!(run("libnbd-bin", "nbdinfo", &["--size", &uri]).trim(), SIZE.to_string());
    let object = format!("tls-creds-x509,id=keys,dir={folder},endpoint=client,verify-peer=on");
    let name = node_name(CLUSTER, 1).unwrap();
    let socket = running.socket.to_str().unwrap();
    let image = format!(
        "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={socket},file.export=array,\
         file.tls-creds=keys,file.tls-hostname={name}"
    );
    let commands = ["-c", "write -P 7 64k 2M", "-c", "read -P 7 64k 2M", "-c", "flush"];
    let text = run(
        "qemu-utils",
        "qemu-io",
        &[&["--object", &object, "--image-opts"][..], &commands, &[&image]].concat(),
    );
    assert!(!text.contains("failed") && !text.contains("error"), "{text}");
    assert_eq!(running.memory.bytes(64 << 10, 2 << 20), vec![7; 2 << 20]);
}
