//! Mixed loads of many threads, with the parameters of Filebench's fileserver and webproxy.
//!
//! As there, every step of a round is an operation, opening and closing included.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::Ended;
use crate::barrier::settle;
use crate::failure::{Failure, OnFile as _};
use crate::fileset::Fileset;
use crate::latency::Sampler;
use crate::outcome::{Outcome, Phase};
use crate::start::{Clock, wait_until};
use crate::witness::Witness;

/// Create, append to, read, delete and stat whole files, with Filebench's fileserver parameters.
#[derive(clap::Args)]
pub struct FileserverArgs {
    /// The number of threads.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: u16,
    /// Entries of a directory.
    #[arg(long, default_value_t = 20)]
    width: usize,
    /// Mean size of a file, in bytes.
    #[arg(long, default_value_t = 128 * 1024)]
    mean_size: u64,
    #[command(flatten)]
    common: Common,
}

/// Delete, create, read and log, with Filebench's webproxy parameters.
#[derive(clap::Args)]
pub struct WebproxyArgs {
    /// The number of threads.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: u16,
    /// Entries of a directory.
    #[arg(long, default_value_t = 1_000_000)]
    width: usize,
    /// Mean size of a file, in bytes.
    #[arg(long, default_value_t = 16 * 1024)]
    mean_size: u64,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
struct Common {
    /// The set's directory; its parent must exist.
    #[arg(long)]
    at: PathBuf,
    /// Files, of which 80 % exist at the beginning.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    files: u32,
    /// Size of one read or write, in bytes.
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1..=1 << 26))]
    io: u64,
    /// Mean size of an append, in bytes.
    #[arg(long, default_value_t = 16 * 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 26))]
    append: u64,
    /// How long to go on.
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// The seed of the random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// When to begin, in seconds since 1970: several nodes begin together.
    #[arg(long, value_name = "SECONDS")]
    start_at: Option<f64>,
    /// Where `lockify-load witness` runs on another node.
    #[arg(long, value_name = "ADDRESS:PORT")]
    witness: Option<SocketAddr>,
}

/// The state of one thread.
struct Worker<'a> {
    set: &'a Fileset,
    log: &'a Mutex<File>,
    common: &'a Common,
    random: Xoshiro256PlusPlus,
    sampler: Sampler,
    buffer: Vec<u8>,
    bytes: u64,
}

/// Runs the fileserver mix.
pub fn fileserver(args: &FileserverArgs) -> Ended {
    let kind = ("fileserver", args.threads, args.width, args.mean_size);
    run(&args.common, kind, |worker| {
        worker.create_whole()?;
        worker.append_to_any()?;
        worker.read_any()?;
        worker.delete_any()?;
        worker.stat_any()
    })
}

/// Runs the webproxy mix.
pub fn webproxy(args: &WebproxyArgs) -> Ended {
    let kind = ("webproxy", args.threads, args.width, args.mean_size);
    run(&args.common, kind, |worker| {
        worker.delete_any()?;
        worker.create_and_append()?;
        for _ in 0..5 {
            worker.read_any()?;
        }
        worker.append_to_log()
    })
}

fn run(
    common: &Common,
    (workload, threads, width, mean_size): (&'static str, u16, usize, u64),
    round: impl Fn(&mut Worker) -> Result<(), Failure> + Sync,
) -> Ended {
    if !(common.seconds > 0.0 && common.seconds <= 3600.0) {
        return Err(Failure::Other("--seconds is more than 0 and at most 3600".to_owned()));
    }
    let mut random = Xoshiro256PlusPlus::seed_from_u64(common.seed);
    let set = Fileset::create(&common.at, common.files as usize, width, mean_size, &mut random)?;
    let path = common.at.join("log");
    let log = Mutex::new(File::create_new(&path).on("create", &path)?);
    let mut witness = common.witness.map(Witness::connect).transpose()?;
    wait_until(common.start_at)?;

    let limit = Duration::from_secs_f64(common.seconds);
    let clock = Clock::start();
    let sums = thread::scope(|scope| {
        let (clock, set, log, round) = (&clock, &set, &log, &round);
        let start = |number| {
            let seed = common.seed.wrapping_mul(1 << 20) + u64::from(number) + 1;
            scope.spawn(move || {
                let random = Xoshiro256PlusPlus::seed_from_u64(seed);
                let mut worker = Worker::new(set, log, common, random);
                while clock.elapsed() < limit {
                    round(&mut worker)?;
                }
                Ok((worker.sampler, worker.bytes))
            })
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        let joined = running.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(Failure::Other("a thread panicked".to_owned())))
        });
        joined.collect::<Result<Vec<_>, Failure>>()
    })?;
    let done = clock.elapsed();
    settle(&[set.root().to_owned()], witness.as_mut())?;
    let span = clock.stop(done);

    let mut sampler = Sampler::new();
    sums.iter().for_each(|(other, _)| sampler.add(other));
    let bytes = sums.iter().map(|(_, bytes)| bytes).sum();
    let phase = Phase { bytes: Some(bytes), ..Phase::new("mix", "files", &sampler, &span) };
    Outcome { workload, phases: vec![phase] }.print()
}

impl<'a> Worker<'a> {
    fn new(
        set: &'a Fileset,
        log: &'a Mutex<File>,
        common: &'a Common,
        random: Xoshiro256PlusPlus,
    ) -> Worker<'a> {
        let buffer = vec![b'l'; common.io.max(2 * common.append) as usize];
        Worker { set, log, common, random, sampler: Sampler::new(), buffer, bytes: 0 }
    }

    /// Creates a file and writes it, in pieces of the I/O size. Without a free number, nothing.
    fn create_whole(&mut self) -> Result<(), Failure> {
        let size = self.set.size(&mut self.random);
        self.create(size)
    }

    /// Creates a file and appends once.
    fn create_and_append(&mut self) -> Result<(), Failure> {
        let size = self.append_size();
        self.create(size)
    }

    fn create(&mut self, size: usize) -> Result<(), Failure> {
        let Some(number) = self.set.take_absent(&mut self.random) else { return Ok(()) };
        let path = self.set.path(number);
        let mut file = self.sampler.time(|| File::create_new(&path)).on("create", &path)?;
        let io = self.common.io as usize;
        let buffer = &self.buffer;
        self.sampler
            .time(|| {
                let pieces = (0..size).step_by(io).map(|begin| io.min(size - begin));
                pieces.into_iter().try_for_each(|piece| file.write_all(&buffer[..piece]))
            })
            .on("write", &path)?;
        self.close(file)?;
        self.bytes += size as u64;
        self.set.put_present(number);
        Ok(())
    }

    fn append_to_any(&mut self) -> Result<(), Failure> {
        let Some(number) = self.set.take_present(&mut self.random) else { return Ok(()) };
        let path = self.set.path(number);
        let size = self.append_size();
        let open = || OpenOptions::new().append(true).open(&path);
        let mut file = self.sampler.time(open).on("open", &path)?;
        let buffer = &self.buffer[..size];
        self.sampler.time(|| file.write_all(buffer)).on("append to", &path)?;
        self.close(file)?;
        self.bytes += size as u64;
        self.set.put_present(number);
        Ok(())
    }

    fn read_any(&mut self) -> Result<(), Failure> {
        let Some(number) = self.set.take_present(&mut self.random) else { return Ok(()) };
        let path = self.set.path(number);
        let mut file = self.sampler.time(|| File::open(&path)).on("open", &path)?;
        let io = self.common.io as usize;
        let buffer = &mut self.buffer[..io];
        let mut read = 0;
        self.sampler
            .time(|| {
                loop {
                    match file.read(buffer)? {
                        0 => return Ok::<(), std::io::Error>(()),
                        bytes => read += bytes,
                    }
                }
            })
            .on("read", &path)?;
        self.close(file)?;
        self.bytes += read as u64;
        self.set.put_present(number);
        Ok(())
    }

    fn delete_any(&mut self) -> Result<(), Failure> {
        let Some(number) = self.set.take_present(&mut self.random) else { return Ok(()) };
        let path = self.set.path(number);
        self.sampler.time(|| fs::remove_file(&path)).on("delete", &path)?;
        self.set.put_absent(number);
        Ok(())
    }

    fn stat_any(&mut self) -> Result<(), Failure> {
        let Some(number) = self.set.take_present(&mut self.random) else { return Ok(()) };
        let path = self.set.path(number);
        self.sampler.time(|| fs::metadata(&path)).on("stat", &path)?;
        self.set.put_present(number);
        Ok(())
    }

    fn append_to_log(&mut self) -> Result<(), Failure> {
        let size = self.append_size();
        let buffer = &self.buffer[..size];
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        self.sampler.time(|| log.write_all(buffer)).on("append to", Path::new("log"))?;
        self.bytes += size as u64;
        Ok(())
    }

    fn close(&mut self, file: File) -> Result<(), Failure> {
        self.sampler.time(|| {
            drop(file);
            Ok(())
        })
    }

    /// Uniform between nothing and twice the mean, as Filebench's random appends.
    fn append_size(&mut self) -> usize {
        self.random.random_range(1..=2 * self.common.append) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(at: PathBuf, seconds: f64) -> Common {
        let (io, append, seed) = (4096, 100, 1);
        Common { at, files: 50, io, append, seconds, seed, start_at: None, witness: None }
    }

    #[test]
    fn both_mixes_run_and_leave_files() -> Result<(), Failure> {
        let folder = tempfile::tempdir().on("make", Path::new("a temporary folder"))?;
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        let (threads, width, mean_size) = (3, 5, 5000);
        fileserver(&FileserverArgs { threads, width, mean_size, common: common(a.clone(), 0.1) })?;
        webproxy(&WebproxyArgs { threads, width, mean_size, common: common(b.clone(), 0.1) })?;
        assert!(a.join("log").is_file() && b.join("log").is_file());
        let log = fs::metadata(b.join("log")).on("stat", &b)?;
        assert!(log.len() > 0, "webproxy writes a log");
        let again = FileserverArgs { threads, width, mean_size, common: common(a, 0.1) };
        assert!(fileserver(&again).is_err(), "the set is there");
        let endless = FileserverArgs { threads, width, mean_size, common: common(b, -1.0) };
        assert!(fileserver(&endless).is_err());
        Ok(())
    }
}
