//! The final barrier's other side: a node that looks at another one's creations.
//!
//! Work that a lock manager puts off must be over when the clock stops. Looking at a directory from
//! another node takes the directory's lock away from its creator, which gives it up only when all
//! deferred work is done.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use crate::Ended;
use crate::failure::Failure;

/// Longer than any recovery, and than five nodes take for a tree that they make together on a busy machine: the
/// directory comes to the witness between their turns. A witness that does not answer must not hang a run.
const LIMIT: Duration = Duration::from_secs(300);

/// Look at directories when another node's load asks for it, until killed.
#[derive(clap::Args)]
pub struct Args {
    /// Address and port to listen on.
    #[arg(long)]
    listen: SocketAddr,
}

/// Serves one load after the other.
pub fn run(args: &Args) -> Ended {
    let network = |what: &'static str| {
        move |source| Failure::Network { what: format!("{what} {}", args.listen), source }
    };
    let listener = TcpListener::bind(args.listen).map_err(network("cannot listen on"))?;
    println!("listening on {}", args.listen);
    loop {
        let (connection, _) = listener.accept().map_err(network("cannot accept on"))?;
        if let Err(error) = serve(connection) {
            eprintln!("lockify-load: a load went away: {error}");
        }
    }
}

fn serve(connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut asked = BufReader::new(connection.try_clone()?);
    let mut told = connection;
    loop {
        let mut line = String::new();
        if asked.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = match look(Path::new(line.trim_end_matches('\n'))) {
            Ok(entries) => format!("{entries}\n"),
            Err(error) => format!("error: {error}\n"),
        };
        told.write_all(answer.as_bytes())?;
    }
}

/// Takes the directory's lock, shared, and reads one entry so that its content is needed, too.
fn look(path: &Path) -> io::Result<u64> {
    fs::metadata(path)?;
    Ok(fs::read_dir(path)?.take(1).count() as u64)
}

/// A load's connection to its witness.
pub struct Witness {
    address: SocketAddr,
    stream: BufReader<TcpStream>,
}

impl Witness {
    /// Connects, before the clock runs.
    pub fn connect(address: SocketAddr) -> Result<Witness, Failure> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.set_write_timeout(Some(LIMIT))?;
            Ok(stream)
        };
        let stream = connect().map_err(|source| Failure::Network {
            what: format!("no witness at {address}: start `lockify-load witness` there"),
            source,
        })?;
        Ok(Witness { address, stream: BufReader::new(stream) })
    }

    /// Returns when the witness has looked at the directory.
    pub fn sees(&mut self, path: &Path) -> Result<(), Failure> {
        let answer = self.ask(path).map_err(|source| Failure::Network {
            what: format!("the witness at {} did not answer", self.address),
            source,
        })?;
        match answer.trim_end().parse::<u64>() {
            Ok(_) => Ok(()),
            Err(_) => Err(Failure::Other(format!(
                "the witness at {} cannot see {}: {}",
                self.address,
                path.display(),
                answer.trim_end()
            ))),
        }
    }

    fn ask(&mut self, path: &Path) -> io::Result<String> {
        let line = format!("{}\n", path.display());
        self.stream.get_mut().write_all(line.as_bytes())?;
        let mut answer = String::new();
        if self.stream.read_line(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(answer)
    }
}
