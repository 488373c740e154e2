//! Connections to the daemon's socket.

use std::cell::RefCell;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;

use lockify_session::socket_address;

type Dial = Rc<dyn Fn(&Path) -> io::Result<UnixStream>>;

thread_local! {
    static DIAL: RefCell<Option<Dial>> = const { RefCell::new(None) };
}

/// Makes `call`, whose connections to a daemon's socket `dial` makes.
///
/// The daemon names a client by the process that has called connect(2). A process that locks on
/// behalf of another one has that one connect, and `dial` brings the connection here.
pub fn dialing<T>(
    dial: impl Fn(&Path) -> io::Result<UnixStream> + 'static,
    call: impl FnOnce() -> T,
) -> T {
    let _outer = Outer(DIAL.replace(Some(Rc::new(dial))));
    call()
}

/// Connects to the socket at `path`.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    match DIAL.with_borrow(Clone::clone) {
        Some(dial) => dial(path),
        None => UnixStream::connect_addr(&socket_address(path)?),
    }
}

/// How to dial when the call has ended.
struct Outer(Option<Dial>);

impl Drop for Outer {
    fn drop(&mut self) {
        DIAL.set(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_dials_its_own_way_and_only_that_call() {
        let nowhere = Path::new("/no/such/socket");
        let refused = dialing(
            |_| Err(io::Error::other("not today")),
            || connect(nowhere).unwrap_err().to_string(),
        );
        assert_eq!(refused, "not today");
        assert_eq!(connect(nowhere).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
