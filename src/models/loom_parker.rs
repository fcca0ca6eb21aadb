//! Where followers wait, exhaustively: no token is lost, and a token carries what was written before it.

use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

use crate::followers::{Followers, Order};
use crate::parker::Parker;
use crate::sync::Mutex;
use crate::sync::model::FOREVER;
use crate::worker::Worker;

use super::{explore, thread};

const PREEMPTIONS: usize = 4;

const SHORT: Option<Duration> = Some(Duration::from_millis(1));

/// A parker and a cell that loom watches: it fails the model if two accesses are not ordered.
struct Post {
    parker: Parker,
    letter: UnsafeCell<u32>,
}

// The cell is reached by the one who unparks, before, and by the one who parks, after: the models
// prove that the parker orders the two.
#[allow(unsafe_code)]
// SAFETY: loom runs one thread at a time, and panics at an access that the order does not allow.
unsafe impl Sync for Post {}

impl Post {
    fn new() -> Arc<Post> {
        Arc::new(Post { parker: Parker::new(), letter: UnsafeCell::new(0) })
    }

    fn send(&self) {
        self.letter.with_mut(|_| ());
        self.parker.unpark();
    }

    fn read(&self) {
        self.letter.with_mut(|_| ());
    }
}

fn spawn_sender(post: &Arc<Post>) -> thread::JoinHandle<()> {
    let post = Arc::clone(post);
    thread::spawn(move || post.send())
}

#[test]
fn an_unpark_ends_the_park_whenever_it_comes() {
    explore(PREEMPTIONS, || {
        let post = Post::new();
        let sender = spawn_sender(&post);
        assert!(post.parker.park(Duration::ZERO, None));
        post.read();
        sender.join().unwrap();
    });
}

#[test]
fn an_unpark_ends_the_park_of_one_who_spins() {
    explore(PREEMPTIONS, || {
        let post = Post::new();
        let sender = spawn_sender(&post);
        assert!(post.parker.park(FOREVER, None));
        post.read();
        sender.join().unwrap();
    });
}

#[test]
fn an_unpark_ends_a_timed_park_before_its_time() {
    explore(PREEMPTIONS, || {
        let post = Post::new();
        let sender = spawn_sender(&post);
        assert!(post.parker.park(Duration::ZERO, Some(FOREVER)));
        post.read();
        sender.join().unwrap();
    });
}

#[test]
fn a_token_that_comes_too_late_for_a_timed_park_is_kept() {
    explore(PREEMPTIONS, || {
        let post = Post::new();
        let sender = spawn_sender(&post);
        if !post.parker.park(Duration::ZERO, SHORT) {
            assert!(post.parker.park(Duration::ZERO, None));
        }
        post.read();
        sender.join().unwrap();
        assert!(!post.parker.park(Duration::ZERO, SHORT), "one token was given, one taken");
    });
}

#[test]
fn a_park_without_time_takes_what_is_there() {
    explore(PREEMPTIONS, || {
        let post = Post::new();
        let sender = spawn_sender(&post);
        let mut taken = post.parker.park(Duration::ZERO, Some(Duration::ZERO));
        sender.join().unwrap();
        taken |= post.parker.park(Duration::ZERO, Some(Duration::ZERO));
        assert!(taken);
        post.read();
    });
}

#[test]
fn each_park_takes_a_token_of_its_own() {
    explore(PREEMPTIONS, || {
        let there = Arc::new((Parker::new(), Parker::new()));
        let here = Arc::clone(&there);
        let other = thread::spawn(move || {
            for _ in 0..2 {
                assert!(there.0.park(Duration::ZERO, None));
                there.1.unpark();
            }
        });
        for _ in 0..2 {
            here.0.unpark();
            assert!(here.1.park(Duration::ZERO, None));
        }
        other.join().unwrap();
    });
}

/// Two tokens may become one; what both givers wrote must be seen all the same.
#[test]
fn who_looks_after_each_token_misses_nothing() {
    explore(PREEMPTIONS, || {
        let parker = Arc::new(Parker::new());
        let letters = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let senders: Vec<_> = (0..2)
            .map(|sender| {
                let (parker, letters) = (Arc::clone(&parker), Arc::clone(&letters));
                thread::spawn(move || {
                    letters[sender].store(1, Ordering::Relaxed);
                    parker.unpark();
                })
            })
            .collect();
        // A letter that is not seen after its token has been taken is waited for in vain.
        while letters.iter().any(|letter| letter.load(Ordering::Relaxed) == 0) {
            assert!(parker.park(Duration::ZERO, None));
        }
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

/// Two followers in no order, who spin or do not, and two tokens: each follower is chosen in the end. One
/// that gets up because another has taken its token comes again.
fn check_unordered(awake: Duration) {
    explore(2, move || {
        let followers = Arc::new(Mutex::new(Followers::new(Order::Unordered)));
        let sleepers: Vec<_> = (0..2)
            .map(|index| {
                let worker = crate::sync::Arc::new(Worker::new(index, String::new(), 0));
                let mut bed = followers.lock().push(&worker);
                let followers = Arc::clone(&followers);
                thread::spawn(move || {
                    loop {
                        let token = bed.sleep(&worker, awake, None);
                        let mut followers = followers.lock();
                        if followers.got_up(&worker, token) {
                            break;
                        }
                        bed = followers.push(&worker);
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            let chosen = followers.lock().pop();
            match chosen {
                Some(chosen) => chosen.wake(),
                None => panic!("nobody gives up"),
            }
        }
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
        assert!(followers.lock().is_empty());
    });
}

#[test]
fn every_follower_in_no_order_gets_its_token() {
    check_unordered(Duration::ZERO);
}

#[test]
fn every_spinning_follower_in_no_order_gets_its_token() {
    check_unordered(FOREVER);
}
