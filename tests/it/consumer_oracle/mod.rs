//! A consumer that replays a stream holds what the agent wants, whatever happened in between: the agent in
//! random rounds of work and faults, and every kind of consumer beside it.
//!
//! `PODMUX_CONSUMER_ROUNDS=20000` does so many rounds, ten a case. A failure names the seed of its case;
//! `PODMUX_CONSUMER_SEED` repeats that case alone. `PODMUX_CONSUMERS` names the consumers, and
//! `PODMUX_CONSUMER_TRACE=1` prints each step when it is done. With `PODMUX_FAKETIME` (the path of
//! `libfaketime.so.1`) the clock goes back, too.

mod follower;
mod model;
mod output;
mod receiver;
mod replay;
mod round;
mod world;

use std::env;

use world::{CONSUMERS, Plan, World};

use crate::support::{namespace::inside, random::Random};

/// The rounds of one case.
const CASE: u64 = 10;
const FIRST_SEED: u64 = 1;

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|number| number.parse().unwrap())
}

#[test]
fn a_replay_holds_what_is_wanted_after_every_round() {
    if !inside("-Urm", "consumer_oracle::a_replay_holds_what_is_wanted_after_every_round") {
        return;
    }
    let consumers = env::var("PODMUX_CONSUMERS").unwrap_or_else(|_| CONSUMERS.to_owned());
    let rounds = number("PODMUX_CONSUMER_ROUNDS").unwrap_or(20);
    let seeds = match number("PODMUX_CONSUMER_SEED") {
        Some(seed) => seed..seed + 1,
        None => FIRST_SEED..FIRST_SEED + rounds.div_ceil(CASE),
    };
    for seed in seeds {
        let mut random = Random::new(seed);
        let mut world = World::new(Plan::new(seed, &consumers));
        for round in 0..CASE {
            world.begin_round(round);
            round::play(&mut world, &mut random);
            world.rest();
        }
    }
}
