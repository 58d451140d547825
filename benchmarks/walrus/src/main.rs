//! Appends messages of 100 bytes, each synced before the next. For each number on standard input: so many of them,
//! and the nanoseconds that each took on one line. WALRUS_DATA_DIR says where its files are.
use std::io::{self, BufRead, Write};
use std::time::Instant;
use walrus_rust::{FsyncSchedule, ReadConsistency, Walrus};

fn main() -> io::Result<()> {
    let log = Walrus::with_consistency_and_schedule(
        ReadConsistency::StrictlyAtOnce,
        FsyncSchedule::SyncEach,
    )?;
    let payload = [7u8; 100];
    let mut out = io::stdout();
    for line in io::stdin().lock().lines() {
        let count: usize = line?.trim().parse().expect("a number");
        let mut taken = Vec::with_capacity(count);
        for _ in 0..count {
            let started = Instant::now();
            log.append_for_topic("topic", &payload)?;
            taken.push(started.elapsed().as_nanos().to_string());
        }
        writeln!(out, "RESULT {}", taken.join(" "))?;
        out.flush()?;
    }
    Ok(())
}
