//! The smallest HTTP client: one GET per connection, as a new user's browser would arrive.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Fetches `/` over a new connection.
pub fn get(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if !answer.starts_with("HTTP/1.1 200") {
        return Err(std::io::Error::other(format!("not 200: {answer:.40}")));
    }
    Ok(answer)
}

/// A client that opens a new connection every 10 ms until told to stop.
pub struct Steady {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Report>,
}

/// What a [`Steady`] client saw.
pub struct Report {
    /// Requests answered with 200.
    pub answered: u64,
    /// Every failure, with the time since the start.
    pub errors: Vec<String>,
}

impl Steady {
    /// Starts asking. Call from the node's thread: the new thread shares its namespace.
    pub fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let started = Instant::now();
            let mut report = Report {
                answered: 0,
                errors: Vec::new(),
            };
            while !stopped.load(Ordering::Relaxed) {
                match get(address) {
                    Ok(_) => report.answered += 1,
                    Err(error) => report
                        .errors
                        .push(format!("{:?}: {error}", started.elapsed())),
                }
                std::thread::park_timeout(Duration::from_millis(10));
            }
            report
        });
        Self { stop, thread }
    }

    /// Stops and gives the report.
    pub fn stop(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the client thread ended")
    }
}
