//! Clients of the server's own: whether every line reaches everybody, in order.

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::server;

const CLIENTS: usize = 10;
const LINES: usize = 50;

/// Serves them and gives a sentence to print.
pub(crate) fn run(args: &Args) -> Result<String, Box<dyn Error>> {
    if args.max_connections < CLIENTS {
        return Err(format!("the self-test needs --max-connections {CLIENTS} or more").into());
    }
    let start = Instant::now();
    let server = server::start(args)?;
    let everybody = Barrier::new(CLIENTS);
    let outcomes: Vec<Result<Seen, String>> = thread::scope(|scope| {
        let (address, everybody) = (server.address, &everybody);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || client(number, address, everybody)))
            .collect();
        let failed = |_| Err("a client panicked".to_string());
        clients.into_iter().map(|client| client.join().unwrap_or_else(failed)).collect()
    });
    let mut times = 0;
    for outcome in outcomes {
        times += outcome?.times;
    }
    let counts = server.accepting.counts();
    server.pool.finish();
    if counts.accepted != CLIENTS as u64 || server.room.len() != 0 {
        return Err(format!("{counts:?}, and {} in the room at the end", server.room.len()).into());
    }
    Ok(format!(
        "self-test: {CLIENTS} clients said {LINES} lines each, every line reached everybody in order; \
         {times} times told; the silent were turned out; ok in {} ms",
        start.elapsed().as_millis()
    ))
}

struct Seen {
    /// How often it was told the time.
    times: usize,
}

fn client(number: usize, address: SocketAddr, everybody: &Barrier) -> Result<Seen, String> {
    let name = format!("client-{number}");
    let mut connection = Client::connect(address, &name);
    // The others wait here, so no way out leads past it.
    everybody.wait();
    let client = connection.as_mut().map_err(|error| format!("{name}: {error}"))?;
    let talked = client.talk(&name).and_then(|()| client.fall_silent());
    talked.map_err(|error| format!("{name}: {error}"))?;
    Ok(Seen { times: client.times })
}

struct Client {
    stream: TcpStream,
    lines: std::io::Lines<BufReader<TcpStream>>,
    /// The number of the last line of each, by name.
    heard: HashMap<String, usize>,
    times: usize,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

impl Client {
    fn connect(address: SocketAddr, name: &str) -> Outcome<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.set_nodelay(true)?;
        let lines = BufReader::new(stream.try_clone()?).lines();
        let mut client = Client { stream, lines, heard: HashMap::new(), times: 0 };
        client.say(name)?;
        // From then on it hears everything.
        while !client.next()?.ok_or("not welcome")?.starts_with("# welcome") {}
        Ok(client)
    }

    /// Says its lines, each after it has heard the last, and hears those of everybody.
    fn talk(&mut self, name: &str) -> Outcome<()> {
        for number in 1..=LINES {
            self.say(&format!("line {number}"))?;
            while self.heard.get(name) != Some(&number) {
                self.next()?.ok_or("turned out while talking")?;
            }
        }
        let everything = |heard: &HashMap<String, usize>| {
            heard.len() == CLIENTS && heard.values().all(|&number| number == LINES)
        };
        while !everything(&self.heard) {
            self.next()?.ok_or("turned out while listening")?;
        }
        Ok(())
    }

    /// Says nothing, hears that this was too long, and is turned out.
    fn fall_silent(&mut self) -> Outcome<()> {
        let mut warned = false;
        while let Some(line) = self.next()? {
            warned |= line.contains("silent for too long");
        }
        if warned { Ok(()) } else { Err("turned out without a word".into()) }
    }

    fn say(&mut self, line: &str) -> Outcome<()> {
        Ok(self.stream.write_all(format!("{line}\n").as_bytes())?)
    }

    /// The next line; checks that none of anybody's was left out.
    fn next(&mut self) -> Outcome<Option<String>> {
        let Some(line) = self.lines.next().transpose()? else { return Ok(None) };
        if let Some((who, number)) = line.split_once(": line ") {
            let number: usize = number.parse()?;
            let last = self.heard.insert(who.to_string(), number).unwrap_or(0);
            if number != last + 1 {
                return Err(format!("line {number} of {who} came after line {last}").into());
            }
        } else if line.contains(" UTC, ") {
            self.times += 1;
        }
        Ok(Some(line))
    }
}
