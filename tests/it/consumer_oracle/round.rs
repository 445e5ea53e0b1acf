//! One round of random work and faults, from the choices of a seed.

use std::{thread, time::Duration};

use rustix::process::Signal;

use super::{
    follower::Follower,
    model::{AT_API, AT_URL, FILES, NODE, OTHER_NODE, POSTS, SHARED, Settings},
    world::{World, clock_library},
};
use crate::support::{process::Process, random::Random, web::Reply};

/// The most steps of a round.
const STEPS: usize = 12;
/// The longest pause between two steps beside a runtime, in milliseconds.
const PAUSE: usize = 60;

const MODES: [&str; 4] = ["incremental", "incremental", "snapshot", "snapshot-and-updates"];

/// What a round may do.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Whether several sources use the same name.
    conflicts: bool,
    /// One step in so many is a fault.
    calm: usize,
}

/// Does a round, without the rest at its end.
pub fn play(world: &mut World, random: &mut Random) {
    let round = Round { conflicts: random.once_in(4), calm: [2, 4, 8][random.below(3)] };
    if world.runs.is_some() && random.once_in(2) && world.may("program") {
        fail_at_random(world);
    }
    for _ in 0..=random.below(STEPS) {
        if world.runs.is_some() {
            // A program needs some time to get somewhere.
            thread::sleep(Duration::from_millis(random.below(PAUSE) as u64));
        }
        if random.once_in(round.calm) {
            fault(world, random, round);
        } else {
            work(world, random, round);
        }
    }
}

fn name<'a>(random: &mut Random, own: &[&'a str], round: Round) -> &'a str {
    if round.conflicts && random.once_in(3) { SHARED } else { own[random.below(own.len())] }
}

/// Some work of a source. Posts need a running agent.
fn work(world: &mut World, random: &mut Random, round: Round) {
    if world.agent.is_some() && random.once_in(2) {
        return posts(world, random, round);
    }
    let wanted = !random.once_in(3);
    match random.below(3) {
        0 => {
            let name = name(random, &FILES, round);
            world.note(format!("file {name} {wanted}"));
            if wanted { world.write_file(name) } else { world.remove_file(name) }
        }
        1 => {
            let name = name(random, &AT_URL, round);
            world.note(format!("url {name} {wanted}"));
            world.change_url(name, wanted);
        }
        _ => {
            let name = name(random, &AT_API, round);
            world.note(format!("api {name} {wanted}"));
            world.change_api(name, wanted);
        }
    }
}

fn posts(world: &mut World, random: &mut Random, round: Round) {
    let (one, other) = (name(random, &POSTS, round), POSTS[random.below(POSTS.len())]);
    match random.below(6) {
        0 => {
            world.note(format!("delete {one} at once"));
            world.delete(one, 0);
        }
        1 => {
            world.note(format!("delete {one} with a grace"));
            world.delete(one, 1);
        }
        2 if one != other => {
            let code = world.post(&[one, other]);
            world.note(format!("post {one} and {other}: {code}"));
        }
        _ => {
            let code = world.post(&[one]);
            world.note(format!("post {one}: {code}"));
        }
    }
}

fn fault(world: &mut World, random: &mut Random, round: Round) {
    let faults = ["disk", "disk", "stdout", "rotation", "cut", "receiver", "source", "restart", "restart"];
    let at_a_runtime = ["program", "kill", "kill", "reboot", "restart", "restart", "restart", "restart"];
    let of_runtime = world.runs.is_some() && random.once_in(2);
    let fault = *random.pick(if of_runtime { &at_a_runtime[..] } else { &faults[..] });
    if !world.may(fault) {
        return work(world, random, round);
    }
    match fault {
        "disk" if random.once_in(2) => {
            world.note("the disk is full");
            world.fill_disk();
        }
        "disk" => {
            world.note("the disk is free");
            world.free_disk();
        }
        "stdout" => {
            world.note("stdout is not read");
            world.stdout.iter().for_each(|stdout| stdout.set_reading(false));
        }
        "rotation" => {
            world.note("the file is rotated");
            world.rotate();
        }
        "cut" => {
            world.note("the followers are cut");
            world.followers.iter().filter(|_| !random.once_in(3)).for_each(Follower::cut);
        }
        "receiver" => {
            world.note("the receiver fails");
            world.receiver.iter().for_each(|receiver| receiver.set_faulty(true));
        }
        "source" => source_fault(world, random),
        "program" => fail_at_random(world),
        "kill" => {
            let agent = world.agent.as_ref().map(Process::pid);
            let killed = world.runs.as_mut().map(|runs| runs.kill_one(agent, random));
            world.note(format!("killed: {killed:?}"));
        }
        "reboot" => {
            world.note("the machine starts again");
            world.reboot();
            restart(world, random, round, Signal::KILL);
        }
        _ => {
            let signal = if random.once_in(3) { Signal::TERM } else { Signal::KILL };
            restart(world, random, round, signal);
        }
    }
}

fn fail_at_random(world: &mut World) {
    world.note("the runtime fails at random");
    world.runs.iter_mut().for_each(|runs| runs.set_faulty(true));
}

fn source_fault(world: &mut World, random: &mut Random) {
    match random.below(4) {
        0 => {
            world.note("the URL fails");
            world.web.say(Reply::new(500, "broken by the test"));
        }
        1 => {
            world.note("the API server is down");
            world.set_api_up(false);
        }
        2 => {
            world.note("the API server's watches break");
            world.api.break_watches();
        }
        _ => {
            world.note("the API server forgets, and its watches end");
            world.api.compact();
            world.api.end_watches();
        }
    }
}

/// The agent ends, much happens, and it starts again.
fn restart(world: &mut World, random: &mut Random, round: Round, signal: Signal) {
    world.note(format!("restart after {signal:?}"));
    world.end(signal);
    if world.runs.is_some() && world.may("kill") && random.once_in(3) {
        world.runs.iter_mut().for_each(|runs| runs.kill_all());
        world.note("what acts for the agent is killed, too");
    }
    match random.below(8) {
        _ if !world.may("state") => {}
        0 => {
            world.note("the state is lost");
            world.lose_state();
        }
        1 | 2 => {
            world.note("the state is copied");
            world.copy_state();
        }
        3 if world.put_back() => world.note("the state is put back"),
        // The ledger of the runtime is in it.
        4 | 5 if world.runs.is_some() && world.put_back() => world.note("the state is put back"),
        _ => {}
    }
    let mut settings = configured(&world.settings, random);
    // The runtime needs a state.
    settings.has_state |= world.runs.is_some();
    if settings != world.settings && world.may("configuration") {
        world.note(format!("{settings:?}"));
        world.configure(settings);
    }
    if random.once_in(8) && world.may("node") {
        let node = if world.settings.node == NODE { OTHER_NODE } else { NODE };
        world.note(format!("the node is now {node}"));
        world.rename_node(node);
    }
    if random.once_in(8) && world.may("rotation") {
        world.note("the file is rotated meanwhile");
        world.rotate();
    }
    if random.once_in(4) && world.may("clock") && clock_library(world.plan.seed).is_some() {
        world.behind += 1 + random.below(10_000) as u64;
        world.note(format!("the clock is {} s behind", world.behind));
    }
    for _ in 0..random.below(4) {
        work(world, random, round);
    }
    if world.may("source") {
        down_at_the_start(world, random);
    }
    world.start();
}

/// Another configuration, mostly the same.
fn configured(settings: &Settings, random: &mut Random) -> Settings {
    let mut settings = settings.clone();
    settings.file ^= random.once_in(10);
    settings.url ^= random.once_in(10);
    settings.api ^= random.once_in(10);
    settings.has_state ^= random.once_in(12);
    if random.once_in(6) {
        settings.notify = MODES[random.below(MODES.len())];
    }
    settings
}

/// Some sources cannot be reached, or all can again.
fn down_at_the_start(world: &mut World, random: &mut Random) {
    if random.once_in(3) {
        world.note("the URL fails at the start");
        world.web.say(Reply::new(500, "broken by the test"));
    } else {
        world.serve_url();
    }
    let up = !random.once_in(3);
    world.note(format!("the API server is up at the start: {up}"));
    world.set_api_up(up);
    if random.once_in(6) {
        world.note("the manifests are missing at the start");
        world.hide_manifests();
    }
}
