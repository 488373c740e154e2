//! A client of network block devices that sends any bytes.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use lockify_trust::rustls::Connection;

/// A client, byte by byte.
pub struct Client<S = UnixStream>(pub S);

impl<S: Read + Write> Client<S> {
    /// Goes past the handshake, without structured replies or with them.
    pub fn greet(&mut self, structured: bool) {
        self.get(18);
        self.put(&3u32.to_be_bytes());
        if structured {
            self.option(8, &[]);
            assert_eq!(self.answer(), (8, 1, vec![]));
        }
        self.option(1, b"array");
        self.get(10);
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub fn get(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Returns true if the server has hung up.
    pub fn is_over(&mut self) -> bool {
        match self.0.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(e) => e.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    pub fn option(&mut self, option: u32, data: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.put(&bytes);
    }

    /// Option, kind and data of an answer to an option.
    pub fn answer(&mut self) -> (u32, u32, Vec<u8>) {
        let head = self.get(20);
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(head[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        (number(8), number(12), self.get(number(16) as usize))
    }

    pub fn request(&mut self, command: (u16, u16), cookie: u64, offset: u64, length: u32) {
        self.put(&head(command, cookie, offset, length));
    }

    /// Error and cookie of a simple reply.
    pub fn reply(&mut self) -> (u32, u64) {
        self.reply_unless_over().unwrap()
    }

    /// The same; an error if the server has hung up.
    pub fn reply_unless_over(&mut self) -> io::Result<(u32, u64)> {
        let mut bytes = [0; 16];
        self.0.read_exact(&mut bytes)?;
        assert_eq!(bytes[..4], 0x6744_6698u32.to_be_bytes());
        let errno = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
        Ok((errno, u64::from_be_bytes(bytes[8..].try_into().unwrap())))
    }

    /// Type, cookie and payload of a structured reply of one chunk.
    pub fn chunk(&mut self) -> (u16, u64, Vec<u8>) {
        let bytes = self.get(20);
        assert_eq!(bytes[..6], [0x66, 0x8e, 0x33, 0xef, 0, 1]);
        let kind = u16::from_be_bytes(bytes[6..8].try_into().unwrap());
        let cookie = u64::from_be_bytes(bytes[8..16].try_into().unwrap());
        let length = u32::from_be_bytes(bytes[16..].try_into().unwrap());
        (kind, cookie, self.get(length as usize))
    }
}

impl Client {
    /// Has the server begin TLS.
    pub fn begin_tls(&mut self) {
        self.get(18);
        self.put(&3u32.to_be_bytes());
        self.option(5, &[]);
        assert_eq!(self.answer(), (5, 1, vec![]));
    }

    /// Goes on with it.
    pub fn with_tls(self, session: Connection) -> Client<Tls> {
        Client(Tls { session, socket: self.0 })
    }
}

/// A client's end of TLS.
pub struct Tls {
    session: Connection,
    socket: UnixStream,
}

impl Read for Tls {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if self.session.complete_io(&mut self.socket)? == (0, 0) {
                return Ok(0);
            }
        }
    }
}

impl Write for Tls {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.session.writer().write(bytes)?;
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket)?;
        }
        Ok(taken)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A request's head; the command is flags and type.
pub fn head((flags, command): (u16, u16), cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}
