//! As much of gRPC as etcd's locks need, over the `h2` crate.
//!
//! The published client of etcd needs `protoc` and 120 crates to be built, which is too much for a
//! benchmark; etcd's JSON gateway needs neither, but is one more hop inside etcd. The missing parts
//! make nothing faster than a full client would be: connections are of HTTP/2 and requests are as
//! on any other client.

use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::SendRequest;
use http::{Method, Request, Version};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use crate::error::{During as _, Error};
use crate::service::PATIENCE;

/// A connection, driven by its user's thread alone.
pub struct Connection {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
    authority: String,
}

/// The answers to a call that has several.
pub struct Answers {
    body: RecvStream,
    unread: BytesMut,
}

impl Connection {
    /// Connects to `IP:PORT`.
    ///
    /// # Errors
    /// Nobody answers there.
    pub fn open(authority: &str) -> Result<Connection, Error> {
        let what = "cannot connect";
        let runtime = Builder::new_current_thread().enable_all().build().during(what)?;
        let connect = async {
            let stream = TcpStream::connect(authority).await.during(what)?;
            stream.set_nodelay(true).during(what)?;
            let (sender, connection) = h2::client::handshake(stream).await.during(what)?;
            // Runs whenever a call does; its error is that of the call.
            tokio::spawn(async move {
                let _ = connection.await;
            });
            Ok(sender)
        };
        let sender = within(&runtime, PATIENCE, what, connect)?;
        Ok(Connection { runtime, sender, authority: authority.to_owned() })
    }

    /// Calls `method` and waits for its one answer.
    ///
    /// # Errors
    /// The server refuses, is gone, or takes longer than [`PATIENCE`].
    pub fn call(&mut self, method: &str, message: Message) -> Result<Bytes, Error> {
        let request = self.request(method)?;
        let sender = self.sender.clone();
        let call = async {
            let mut answers = send(sender, request, message, true).await?.1;
            let answer = answers.next().await?;
            answer.ok_or_else(|| Error::new("no answer: etcd has refused"))
        };
        within(&self.runtime, PATIENCE, method, call)
    }

    /// Calls `method`, whose answers come one by one, and waits until one of them satisfies `last`.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn call_until(
        &mut self,
        method: &str,
        message: Message,
        last: impl Fn(&Bytes) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let request = self.request(method)?;
        let sender = self.sender.clone();
        let call = async {
            // Kept: the server ends the call when its requests end.
            let (_requests, mut answers) = send(sender, request, message, false).await?;
            while let Some(answer) = answers.next().await? {
                if last(&answer)? {
                    return Ok(());
                }
            }
            Err(Error::new("the answers have ended"))
        };
        within(&self.runtime, PATIENCE, method, call)
    }

    fn request(&self, method: &str) -> Result<Request<()>, Error> {
        Request::builder()
            .method(Method::POST)
            .version(Version::HTTP_2)
            .uri(format!("http://{}/{method}", self.authority))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .during(method)
    }
}

fn within<T>(
    runtime: &Runtime,
    limit: Duration,
    what: &str,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let call = async { tokio::time::timeout(limit, call).await };
    runtime.block_on(call).during(what)?.during(what)
}

async fn send(
    sender: SendRequest<Bytes>,
    request: Request<()>,
    message: Message,
    only: bool,
) -> Result<(h2::SendStream<Bytes>, Answers), Error> {
    let what = "call";
    let mut ready = sender.ready().await.during(what)?;
    let (response, mut requests) = ready.send_request(request, false).during(what)?;
    requests.send_data(message.framed(), only).during(what)?;
    let response = response.await.during(what)?;
    // An error that comes without an answer is told in the headers.
    refused(response.headers())?;
    Ok((requests, Answers { body: response.into_body(), unread: BytesMut::new() }))
}

fn refused(headers: &http::HeaderMap) -> Result<(), Error> {
    let text = |name| headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned());
    match text("grpc-status").filter(|status| status != "0") {
        None => Ok(()),
        Some(status) => {
            let why = text("grpc-message").unwrap_or_default();
            Err(Error::new(format!("refused with status {status}: {why}")))
        }
    }
}

impl Answers {
    /// The next answer; none when they have ended well.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(answer) = self.complete()? {
                return Ok(Some(answer));
            }
            match self.body.data().await {
                Some(piece) => {
                    let piece = piece.during("answer")?;
                    // Text that was read may be sent again.
                    let _ = self.body.flow_control().release_capacity(piece.len());
                    self.unread.extend_from_slice(&piece);
                }
                None => {
                    let trailers = self.body.trailers().await.during("answer")?;
                    return trailers.as_ref().map_or(Ok(()), refused).map(|()| None);
                }
            }
        }
    }

    /// A message is a byte that says that it is not compressed, its length, and itself.
    fn complete(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(head) = self.unread.first_chunk::<5>() else { return Ok(None) };
        if head[0] != 0 {
            return Err(Error::new("a compressed answer, which was not asked for"));
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if self.unread.len() < 5 + length {
            return Ok(None);
        }
        self.unread.advance(5);
        Ok(Some(self.unread.split_to(length).freeze()))
    }
}

/// A message of protocol buffers that is written: fields are a number, a type and a value.
#[derive(Default)]
pub struct Message(Vec<u8>);

const VARINT: u64 = 0;
const BYTES: u64 = 2;

impl Message {
    /// The message, with a number.
    pub fn number(mut self, field: u64, value: i64) -> Message {
        self.varint(field << 3 | VARINT);
        self.varint(value as u64);
        self
    }

    /// The message, with bytes, a text, or a message of its own.
    pub fn bytes(mut self, field: u64, value: &[u8]) -> Message {
        self.varint(field << 3 | BYTES);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// The message, with a message in it.
    pub fn message(self, field: u64, value: &Message) -> Message {
        self.bytes(field, &value.0)
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn framed(&self) -> Bytes {
        let mut framed = BytesMut::with_capacity(5 + self.0.len());
        framed.extend_from_slice(&[0]);
        framed.extend_from_slice(&(self.0.len() as u32).to_be_bytes());
        framed.extend_from_slice(&self.0);
        framed.freeze()
    }
}

/// A field of a message that is read.
pub enum Field<'a> {
    /// Numbers and truth values.
    Number(i64),
    /// Bytes, texts and messages.
    Bytes(&'a [u8]),
}

/// The fields of a message that have this number.
///
/// # Errors
/// It is no message.
pub fn fields(mut message: &[u8], wanted: u64) -> Result<Vec<Field<'_>>, Error> {
    let broken = || Error::new("etcd's answer cannot be understood");
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message).ok_or_else(broken)?;
        let field = match key & 7 {
            VARINT => Field::Number(varint(&mut message).ok_or_else(broken)? as i64),
            BYTES => {
                let length = varint(&mut message).ok_or_else(broken)?;
                let length = usize::try_from(length).map_err(|_| broken())?;
                let (value, rest) = message.split_at_checked(length).ok_or_else(broken)?;
                message = rest;
                Field::Bytes(value)
            }
            _ => return Err(broken()),
        };
        if key >> 3 == wanted {
            found.push(field);
        }
    }
    Ok(found)
}

/// The number in a field; 0, which is not written, if it is not there.
///
/// # Errors
/// As [`fields`].
pub fn number(message: &[u8], field: u64) -> Result<i64, Error> {
    let last = fields(message, field)?.pop();
    Ok(match last {
        Some(Field::Number(number)) => number,
        _ => 0,
    })
}

/// The bytes in a field; none if it is not there.
///
/// # Errors
/// As [`fields`].
pub fn bytes(message: &[u8], field: u64) -> Result<&[u8], Error> {
    let last = fields(message, field)?.pop();
    Ok(match last {
        Some(Field::Bytes(bytes)) => bytes,
        _ => &[],
    })
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Message, bytes, fields, number};

    #[test]
    fn what_is_written_can_be_read() {
        let inner = Message::default().number(3, 300);
        let message = Message::default().number(1, -1).message(2, &inner).bytes(7, b"x");
        assert_eq!(number(&message.0, 1).unwrap(), -1);
        assert_eq!(number(bytes(&message.0, 2).unwrap(), 3).unwrap(), 300);
        assert_eq!(bytes(&message.0, 7).unwrap(), b"x");
        assert_eq!(number(&message.0, 9).unwrap(), 0);
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let message = Message::default().bytes(1, b"abc").0;
        for end in 1..message.len() {
            assert!(fields(&message[..end], 1).is_err(), "{end}");
        }
    }
}
