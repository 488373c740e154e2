//! Missing devices: the message depends on the machine, but always gives the remedy.

use lockify_fabric::verbs::{Settings, Verbs, VerbsError};
use lockify_onesided::Peer;

#[test]
fn a_device_that_is_not_there_is_said_so() {
    let settings = Settings { device: Some("no-such-device".into()), ..Settings::default() };
    let refused = Verbs::open(&settings, Peer(1)).err().unwrap();
    let said = refused.to_string();
    match refused {
        VerbsError::Library { .. } => {
            assert!(said.contains("install libibverbs1 and ibverbs-providers"), "{said}");
        }
        VerbsError::NoDevice => assert!(said.contains("rdma link add rxe0"), "{said}"),
        VerbsError::NoSuchDevice { wanted, there } => {
            assert!(wanted == "no-such-device" && there.iter().all(|name| said.contains(name)));
        }
        other => panic!("{other}"),
    }
}
