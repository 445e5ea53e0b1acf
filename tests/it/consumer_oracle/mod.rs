//! A consumer that replays a stream holds what the agent wants, whatever happened in between: the agent in
//! random rounds of work and faults, and every kind of consumer beside it.
//!
//! | variable | meaning |
//! |---|---|
//! | `PODMUX_CONSUMER_ROUNDS` | the rounds, ten a case (20) |
//! | `PODMUX_CONSUMER_SEED` | repeats one case: a failure names its seed |
//! | `PODMUX_CONSUMERS` | the consumers, of `stdout file newcomer lines run events webhook` |
//! | `PODMUX_CONSUMER_FAULTS` | the faults, of [`world::FAULTS`] |
//! | `PODMUX_FAKETIME` | the path of `libfaketime.so.1`, with which the agent's clock goes back, too |

mod follower;
mod model;
mod output;
mod receiver;
mod replay;
mod round;
mod world;

use std::env;

use rustix::process::Signal;
use world::{CONSUMERS, FAULTS, Plan, World};

use self::{follower::Follower, model::Settings};
use crate::support::{namespace::inside, random::Random, web::Reply};

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
    let faults = env::var("PODMUX_CONSUMER_FAULTS").unwrap_or_else(|_| FAULTS.to_owned());
    for seed in seeds {
        // It is shown if the test fails.
        println!("PODMUX_CONSUMER_SEED={seed}");
        let mut random = Random::new(seed);
        let mut world = World::new(Plan { faults: faults.clone(), ..Plan::new(seed, &consumers) });
        for round in 0..CASE {
            world.begin_round(round);
            round::play(&mut world, &mut random);
            world.rest();
        }
    }
}

/// The agent with these consumers and no source but the posted pods, if a change adds none, at rest.
fn started(consumers: &str, change: impl FnOnce(&mut Settings)) -> World {
    let mut plan = Plan::new(0, consumers);
    (plan.settings.file, plan.settings.url, plan.settings.api) = (false, false, false);
    change(&mut plan.settings);
    let mut world = World::new(plan);
    world.rest();
    world
}

#[test]
fn a_pod_deleted_while_the_file_could_not_be_written_does_not_stay_in_it() {
    let test = "consumer_oracle::a_pod_deleted_while_the_file_could_not_be_written_does_not_stay_in_it";
    if !inside("-Urm", test) {
        return;
    }
    let mut world = started("file", |_| ());
    world.post(&["h0", "h1"]);
    world.rest();
    world.fill_disk();
    world.delete("h0", 0);
    world.end(Signal::KILL);
    world.rest();
}

#[test]
fn a_rotated_file_alone_has_what_is_wanted() {
    if !inside("-Urm", "consumer_oracle::a_rotated_file_alone_has_what_is_wanted") {
        return;
    }
    let mut world = started("newcomer", |_| ());
    world.post(&["h0"]);
    world.rest();
    world.rotate();
    world.rest();
}

/// Starts the agent, and lets it give out more numbers than each follower has seen before they connect.
fn start_and_pass(world: &mut World) {
    world.followers.iter().for_each(|follower| follower.set_connecting(false));
    world.start();
    let last = world.followers.iter().filter_map(|follower| follower.reader().last).max().unwrap();
    while world.number() <= last {
        world.post(&["h4"]);
    }
    world.followers.iter().for_each(|follower| follower.set_connecting(true));
}

#[test]
fn a_number_of_a_run_without_state_is_not_continued_on_the_stream_of_the_next() {
    let test = "consumer_oracle::a_number_of_a_run_without_state_is_not_continued_on_the_stream_of_the_next";
    if !inside("-Urm", test) {
        return;
    }
    for consumer in ["lines", "run", "events"] {
        let mut world = started(consumer, |settings| settings.has_state = false);
        world.post(&["h0", "h1"]);
        world.rest();
        world.end(Signal::TERM);
        start_and_pass(&mut world);
        world.rest();
    }
}

#[test]
fn a_number_of_a_run_whose_state_was_replaced_by_a_copy_is_not_continued_on_another_stream() {
    let test = "consumer_oracle::\
        a_number_of_a_run_whose_state_was_replaced_by_a_copy_is_not_continued_on_another_stream";
    if !inside("-Urm", test) {
        return;
    }
    for consumer in ["lines", "run", "events"] {
        let mut world = started(consumer, |_| ());
        world.end(Signal::TERM);
        world.copy_state();
        world.start();
        world.post(&["h0", "h1"]);
        world.rest();
        world.end(Signal::TERM);
        assert!(world.put_back());
        start_and_pass(&mut world);
        world.rest();
    }
}

#[test]
fn a_reader_is_not_told_that_an_unknown_source_has_no_pods() {
    if !inside("-Urm", "consumer_oracle::a_reader_is_not_told_that_an_unknown_source_has_no_pods") {
        return;
    }
    for consumer in ["lines", "run", "events"] {
        let mut world = started(consumer, |settings| settings.url = true);
        world.change_url("u0", true);
        world.rest();
        world.end(Signal::KILL);
        world.lose_state();
        world.web.say(Reply::new(500, "broken by the test"));
        world.start();
        world.post(&["h0"]);
        world.wait_for("the posted pod, at each reader", |world| {
            let has = |follower: &Follower| follower.reader().image("default/h0").is_some();
            world.followers.iter().all(has).then_some(())
        });
        world.rest();
    }
}

#[test]
fn an_event_source_that_reconnects_to_another_run_is_not_given_up() {
    if !inside("-Urm", "consumer_oracle::an_event_source_that_reconnects_to_another_run_is_not_given_up") {
        return;
    }
    let mut world = started("events", |_| ());
    world.post(&["h0", "h1"]);
    world.rest();
    world.end(Signal::KILL);
    world.lose_state();
    world.rest();
}
