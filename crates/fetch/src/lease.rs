//! One fetcher per content, on file systems whose locks can't be relied on.
//!
//! A lease is a file `CACHE/.fetching/KEY.lease.N` with a random name of its holder and a counter. It is created with
//! `O_EXCL`, which has one winner on NFS, too. The holder rewrites the counter every few seconds. Another fetcher looks
//! at the newest lease. While its content changes it waits. If nothing changes for the limit, by the waiting fetcher's
//! own monotonic clock, it creates lease N+1. No clock of another machine and no time of a file is compared.
//!
//! The holder fetches into `CACHE/.fetching/KEY.work.N.NAME`. The next holder renames that folder to its own name and
//! resumes in it. A holder that finds its lease gone, changed, or followed by N+1 stops. It checks the lease at each
//! start of a range and before it publishes the entry.
//!
//! # Races
//!
//! - *Two fetchers find no lease, or the same silent one.* `O_EXCL` lets one of them create the next number. The other
//!   sees a new lease, and waits.
//! - *A holder was only paused (a node without memory, a stopped process) and goes on after the take-over.* It stops at
//!   its next look. What it has under way until then goes into files that it opened before, which the new holder now
//!   has. They are bytes of the same revision at the same offsets. The new holder's hash covers what it reads, and a
//!   difference is found there. A write after that hash is only possible in the time between a look and a write.
//!   `--verify` finds what it might damage.
//! - *The paused holder wants to publish.* It renames by the name of its own folder, which the take-over has changed,
//!   so that it fails. The name has the holder's random part: no later holder with the same number has that folder.
//! - *A fetcher takes over and dies before it renames the folder.* The next one takes the folder with the highest
//!   number, whatever it is, and removes others.
//! - *A holder publishes and dies before it removes its lease.* Entries are looked at before leases, so that the lease
//!   is never waited for while the entry is good.
//! - *A holder publishes while another fetcher takes over.* The other one looks for the entry again once it has the
//!   lease.
//! - *An NFS client has cached that N+1 does not exist.* So a take-over also overwrites the lease before it: that file
//!   is opened at each look, and opening revalidates. The window is that of the paused holder above.
//! - *A request to create a lease is repeated by NFS and answered EEXIST to its own creator.* It waits for itself,
//!   takes over after the limit, and loses only that time.

use crate::error::{FetchError, FetchErrorKind};
use crate::{Cache, blocking};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use parking_lot::Mutex;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Maximum length of a lease, in bytes.
const LONGEST: u64 = 256;

/// The times of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Interval between two counts of a holder. Default 5 s.
    pub beat: Duration,
    /// Time without a change after which a lease is taken over. It is the same for all fetchers of a cache, and many
    /// times `beat`. Default 60 s.
    pub silence: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self { beat: Duration::from_secs(5), silence: Duration::from_secs(60) }
    }
}

/// The right to fetch one content.
pub(crate) struct Lease {
    cache: Cache,
    key: String,
    number: u64,
    holder: String,
    looked: Mutex<Instant>,
    is_over: AtomicBool,
}

/// A name that no other process has.
pub(crate) fn unique() -> String {
    let part = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", part(), part())
}

type Result<T> = std::result::Result<T, FetchError>;

impl Cache {
    /// Waits until this fetcher may fetch `key`, or until there may be another entry than the one with the marker
    /// `known`: then `None`.
    pub async fn acquire(&self, key: &str, known: Option<&[u8]>) -> Result<Option<Lease>> {
        let mut seen: Option<(u64, Vec<u8>, Instant)> = None;
        loop {
            let (cache, key_too) = (self.clone(), key.to_owned());
            let newest = blocking(move || cache.newest_lease(&key_too)).await?;
            let number = match (&newest, &seen) {
                (None, Some(_)) => return Ok(None),
                (None, None) => Some(1),
                (Some((number, content)), Some((last, before, since))) if number == last && content == before => {
                    (since.elapsed() >= self.times.silence).then_some(number + 1)
                }
                (Some((number, content)), _) => {
                    seen = Some((*number, content.clone(), Instant::now()));
                    None
                }
            };
            if let Some(number) = number {
                let (cache, key) = (self.clone(), key.to_owned());
                if let Some(lease) = blocking(move || cache.create_lease(&key, number)).await? {
                    return Ok(Some(lease));
                }
                seen = None;
                continue;
            }
            let (cache, key_too) = (self.clone(), key.to_owned());
            let marker = blocking(move || cache.marker(&key_too)).await?;
            if marker.is_some() && marker.as_deref() != known {
                return Ok(None);
            }
            sleep(self.times.beat.min(self.times.silence / 8)).await;
        }
    }

    fn lease_name(key: &str, number: u64) -> String {
        format!("{key}.lease.{number}")
    }

    fn failed(&self, name: &str, error: &io::Error) -> FetchError {
        FetchError::local(&self.path.join(".fetching").join(name), error)
    }

    /// The numbers of the leases of `key`.
    fn leases(&self, key: &str) -> Result<Vec<u64>> {
        let names = self.fetching.names().map_err(|error| self.failed("", &error))?;
        let number = |name: String| name.strip_prefix(key)?.strip_prefix(".lease.")?.parse().ok();
        Ok(names.into_iter().filter_map(number).collect())
    }

    fn newest_lease(&self, key: &str) -> Result<Option<(u64, Vec<u8>)>> {
        let Some(number) = self.leases(key)?.into_iter().max() else { return Ok(None) };
        let name = Self::lease_name(key, number);
        match self.read_small(&name) {
            // Removed since: the next look finds another, or none.
            Ok(content) => Ok(Some((number, content.unwrap_or_default()))),
            Err(error) => Err(self.failed(&name, &error)),
        }
    }

    /// What a small file in `.fetching` holds. `None` if it is not there.
    fn read_small(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let mut content = Vec::new();
        match self.fetching.file(name).and_then(|file| file.take(LONGEST).read_to_end(&mut content)) {
            Ok(_) => Ok(Some(content)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The lease of that number, unless another fetcher has it.
    fn create_lease(&self, key: &str, number: u64) -> Result<Option<Lease>> {
        let name = Self::lease_name(key, number);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = match openat(&*self.fetching, name.as_str(), flags, Mode::from_bits_truncate(0o666)) {
            Ok(file) => File::from(file),
            Err(Errno::EEXIST) => return Ok(None),
            Err(error) => return Err(self.failed(&name, &error.into())),
        };
        let holder = unique();
        let written = file.write_all_at(content(&holder, 0).as_bytes(), 0).and_then(|()| file.sync_all());
        if let Err(error) = written {
            // On a full disk, fetchers would wait for a lease without a holder.
            let _ = self.fetching.remove(&name);
            return Err(self.failed(&name, &error));
        }
        let lease = Lease {
            cache: self.clone(),
            key: key.to_owned(),
            number,
            holder,
            looked: Mutex::new(Instant::now()),
            is_over: AtomicBool::new(false),
        };
        for older in self.leases(key)?.into_iter().filter(|older| *older < number) {
            lease.overwrite(older, "superseded").map_err(|error| self.failed(&Self::lease_name(key, older), &error))?;
        }
        lease.adopt()?;
        Ok(Some(lease))
    }
}

/// Of the same length for each count, so that it is replaced in place.
fn content(holder: &str, count: u64) -> String {
    format!("{holder} {count:020}\n")
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ESTALE)
}

impl Lease {
    /// The name of the folder in `.fetching` that this holder fetches into.
    pub fn work_name(&self) -> String {
        format!("{}.work.{}.{}", self.key, self.number, self.holder)
    }

    fn name(&self) -> String {
        Cache::lease_name(&self.key, self.number)
    }

    fn superseded(&self) -> FetchError {
        let place = self.cache.path.join(".fetching").join(self.name());
        FetchError::new(
            FetchErrorKind::Superseded,
            format!("{}: another fetcher took over; fetch it again to wait for that one", place.display()),
        )
    }

    /// Takes over what an earlier holder fetched, and removes anything else of the key.
    fn adopt(&self) -> Result<()> {
        let fetching = &self.cache.fetching;
        let failed = |error: io::Error| self.cache.failed(&self.work_name(), &error);
        let number = |name: &str| -> Option<u64> {
            let rest = name.strip_prefix(self.key.as_str())?.strip_prefix(".work.")?;
            rest.split('.').next()?.parse().ok()
        };
        let mut found: Vec<(u64, String)> =
            fetching.names().map_err(failed)?.into_iter().filter_map(|name| Some((number(&name)?, name))).collect();
        found.sort();
        while let Some((_, name)) = found.pop() {
            match fetching.rename(&name, fetching, &self.work_name()) {
                Ok(()) => break,
                // Its own holder has renamed it: that one has published it, or has been taken over itself.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        found.iter().try_for_each(|(_, name)| fetching.remove(name)).map_err(failed)
    }

    /// Replaces what the lease of a number holds, if it is still there.
    fn overwrite(&self, number: u64, text: &str) -> io::Result<()> {
        let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let name = Cache::lease_name(&self.key, number);
        match openat(&*self.cache.fetching, name.as_str(), flags, Mode::empty()) {
            Ok(file) => {
                let file = File::from(file);
                file.write_all_at(text.as_bytes(), 0)?;
                file.sync_all()
            }
            Err(Errno::ENOENT | Errno::ESTALE) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it is still the newest lease, and this holder's.
    ///
    /// # Errors
    /// [`FetchErrorKind::Superseded`] if it is not.
    pub fn check(&self) -> Result<()> {
        let read = |name: &str| self.cache.read_small(name).map_err(|error| self.cache.failed(name, &error));
        let is_own = read(&self.name())?.is_some_and(|content| content.starts_with(self.holder.as_bytes()));
        let is_followed = self.cache.leases(&self.key)?.into_iter().any(|number| number > self.number);
        if !is_own || is_followed {
            return Err(self.superseded());
        }
        *self.looked.lock() = Instant::now();
        Ok(())
    }

    /// [`Lease::check`], unless the last one was less than half a beat ago.
    pub fn check_now_and_then(&self) -> Result<()> {
        let is_fresh = self.looked.lock().elapsed() < self.cache.times.beat / 2;
        if is_fresh { Ok(()) } else { self.check() }
    }

    fn beat(&self, count: u64) -> Result<()> {
        self.check()?;
        self.overwrite(self.number, &content(&self.holder, count))
            .map_err(|error| self.cache.failed(&self.name(), &error))
    }

    /// Counts as long as it is polled. Returns the reason why the fetch must stop.
    pub async fn keep(self: &std::sync::Arc<Self>) -> FetchError {
        let mut last = Instant::now();
        for count in 1.. {
            sleep(self.cache.times.beat).await;
            let lease = std::sync::Arc::clone(self);
            match blocking(move || lease.beat(count)).await {
                Ok(()) => last = Instant::now(),
                // A file server that fails for a moment; others see nothing of this holder meanwhile.
                Err(error) if error.kind == FetchErrorKind::Local && last.elapsed() < self.cache.times.silence / 2 => {}
                Err(error) => return error,
            }
        }
        self.superseded()
    }

    /// Ends the lease. The fetched data stays for the next holder, unless `forget`.
    pub fn release(&self, forget: bool) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        self.check()?;
        let fetching = &self.cache.fetching;
        if forget {
            fetching.remove(&self.work_name()).map_err(|error| self.cache.failed(&self.work_name(), &error))?;
        }
        for number in self.cache.leases(&self.key)?.into_iter().filter(|number| *number <= self.number) {
            let name = Cache::lease_name(&self.key, number);
            fetching.remove(&name).map_err(|error| self.cache.failed(&name, &error))?;
        }
        Ok(())
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn holder(&self) -> &str {
        &self.holder
    }
}

/// A fetch that was dropped gives its lease back once nothing writes under it any more. What it fetched stays.
impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_over.load(Ordering::Relaxed) {
            // The disk may fail. The next fetcher then waits until the lease has been silent for long enough.
            let _ = self.release(false);
        }
    }
}
