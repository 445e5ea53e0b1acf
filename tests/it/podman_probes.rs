//! The probes that the agent makes with HTTP: what is sent, what counts, and that none waits for another one.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket},
    process::Command,
    sync::{Arc, Mutex},
};

use jiff::{SignedDuration, Timestamp};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    podman::end,
    support::{
        namespace::inside,
        podman::{Node, Podman, RUNS, condition, container, pod},
        process::wait_for,
        web::{Authority, Reply, Step, Web},
    },
};

/// A container with a readiness probe of a server on this machine.
fn probed(name: &str, url: &str, mut action: Value) -> Value {
    action["host"] = "127.0.0.1".into();
    action["port"] = url.rsplit_once(':').unwrap().1.parse::<u16>().unwrap().into();
    let mut container = container(name, RUNS);
    container["readinessProbe"] = json!({"httpGet": action, "periodSeconds": 1, "timeoutSeconds": 10_000});
    container
}

fn is_ready(status: &Value, index: usize) -> bool {
    status["containerStatuses"][index]["ready"] == true
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http_probe_sends_and_follows_what_the_kubelets_does() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let authority = Authority::new(&node.path(""), "authority");
    // Its certificate is not valid any more, of an unknown authority, and not of this address.
    let web = Web::start_tls(authority.outdated_server("elsewhere.example"), Reply::ok("")).await;
    let plain = Web::start(Reply::ok("")).await;
    let down = plain.at("/");
    // No more of a body than this is waited for.
    let endless = Reply::steps(None, vec![Step::Send(vec![b'x'; 10 << 10].into()), Step::Hang]);
    web.play(move |seen| match (&*seen.path, seen.header("host")) {
        ("/a%20b?c=%7Bd%7D", "app.example") => endless.clone(),
        ("/moved", _) => Reply::to(302, "/a%20b?c=%7Bd%7D"),
        ("/down", _) => Reply::to(302, &down),
        ("/round", _) => Reply::to(302, "/broken"),
        ("/away", _) => Reply::to(302, "https://elsewhere.example/"),
        _ => Reply::new(503, ""),
    });
    let agent = node.start();
    let headers = json!([{"name": "Host", "value": "app.example"}, {"name": "X-A", "value": "b"}]);
    let get = |path: &str| json!({"scheme": "HTTPS", "path": path});
    let [own, moved, down] = ["/a b?c={d}", "/moved", "/down"].map(|path| {
        let mut get = get(path);
        get["httpHeaders"] = headers.clone();
        get
    });
    let mut all = pod("all", RUNS);
    let mut sick = probed("sick", &web.url, get("/sick"));
    sick["livenessProbe"] = sick["readinessProbe"].clone();
    sick["livenessProbe"]["failureThreshold"] = 1.into();
    let mut bare = get("/bare");
    bare["httpHeaders"] = json!([{"name": "Accept", "value": ""}, {"name": "User-Agent", "value": ""}]);
    all["spec"]["containers"] = json!([
        probed("own", &web.url, own),
        probed("away", &web.url, get("/away")),
        probed("moved", &web.url, moved),
        probed("down", &web.url, down),
        probed("round", &web.url, get("/round")),
        sick,
        probed("without", &web.url, bare),
    ]);
    node.write("all.json", &all);
    node.until("all", "ready in part", |status| (0..4).all(|index| is_ready(status, index)));
    wait_for(|| web.seen().iter().any(|seen| seen.path == "/broken").then_some(()));
    let bare = wait_for(|| web.seen().into_iter().find(|seen| seen.path == "/bare"));
    assert!(!bare.headers.contains_key("accept") && !bare.headers.contains_key("user-agent"), "{bare:?}");
    assert!(!is_ready(&node.pod("all").unwrap()["status"], 4));
    assert_eq!(plain.seen()[0].header("x-a"), "b", "it is the same host");
    // It has never been ready.
    agent.logs("probe failed; container not ready");
    // It is in a crash loop.
    let status = node.until("all", "restarted in part", |status| {
        status["containerStatuses"][5]["restartCount"].as_u64() >= Some(1)
    });
    let (_, port) = web.url.rsplit_once(':').unwrap();
    let why = format!("Liveness probe failed: 127.0.0.1:{port} answered 503 Service Unavailable");
    let last = &status["containerStatuses"][5]["lastState"]["terminated"];
    assert_eq!(last["message"], format!("stopped: {why}"), "{status:#}");
    wait_for(|| {
        let (_, events) = node.ask("GET", "/api/v1/namespaces/default/events", &Value::Null)?;
        events["items"].as_array()?.iter().any(|one| one["message"] == *why).then_some(())
    });
    let seen = web.seen();
    let own = seen.iter().find(|seen| seen.path.starts_with("/a%20b")).unwrap();
    assert_eq!((own.header("x-a"), own.header("accept")), ("b", "*/*"));
    assert!(own.header("user-agent").starts_with("kube-probe/"), "{}", own.header("user-agent"));
    end(agent);
}

/// As with the kubelet.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_whose_body_cannot_be_read_says_nothing() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let (gate, opened) = watch::channel(false);
    let late = Reply::steps(None, vec![Step::Send("a".into()), Step::Until(opened), Step::Send("b".into())]);
    let late = Web::start(late).await;
    let cut = Web::start(Reply::steps(Some(10), vec![Step::Send("a".into()), Step::Break])).await;
    let agent = node.start();
    let mut web = pod("web", RUNS);
    web["spec"]["containers"] = ["cut", "late"]
        .into_iter()
        .zip([&cut, &late])
        .map(|(name, server)| {
            let mut container = probed(name, &server.url, json!({}));
            container["readinessProbe"]["timeoutSeconds"] = 5.into();
            container["livenessProbe"] = container["readinessProbe"].clone();
            container["livenessProbe"]["failureThreshold"] = 1.into();
            container
        })
        .collect();
    node.write("web.json", &web);
    cut.asked(6).await;
    late.asked(6).await;
    let status = node.pod("web").unwrap()["status"].clone();
    assert!((0..2).all(|index| !is_ready(&status, index)), "{status:#}");
    gate.send_replace(true);
    let status = node.until("web", "ready in part", |status| is_ready(status, 1));
    let restarts = [0, 1].map(|index| status["containerStatuses"][index]["restartCount"].as_u64());
    assert_eq!((restarts, is_ready(&status, 0)), ([Some(0); 2], false), "{status:#}");
    end(agent);
}

/// The address that other machines reach this one at, which the agent finds in the same way.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let found = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    found.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_goes_to_the_nodes_address_if_its_pod_has_no_other_and_to_one_of_ipv6() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    // It does not listen on the loopback interface.
    let open = TcpListener::bind((own_address(), 0)).unwrap();
    let web = Web::start_at("[::1]:0", Reply::ok("")).await;
    let agent = node.start();
    let mut own = container("own", RUNS);
    let port = open.local_addr().unwrap().port();
    own["readinessProbe"] = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
    let mut six = probed("six", &web.url, json!({}));
    six["readinessProbe"]["httpGet"]["host"] = "::1".into();
    let mut both = pod("both", RUNS);
    both["spec"]["hostNetwork"] = true.into();
    both["spec"]["containers"] = json!([own, six]);
    node.write("both.json", &both);
    node.ready("both");
    end(agent);
}

#[test]
fn on_a_node_without_ipv4_a_pod_of_the_hosts_network_has_the_address_of_ipv6() {
    if !inside(
        "-n",
        "podman_probes::on_a_node_without_ipv4_a_pod_of_the_hosts_network_has_the_address_of_ipv6",
    ) {
        return;
    }
    let Some(podman) = Podman::start() else { return };
    for command in [
        "link set lo up",
        "link add v0 type veth peer name v1",
        "addr add 2001:db8::5/64 dev v0 nodad",
        "link set v0 up",
        "link set v1 up",
        "-6 route add default dev v0",
    ] {
        assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success(), "{command}");
    }
    let node = Node::new(&podman);
    // It does not listen on the loopback interface.
    let open = TcpListener::bind("[2001:db8::5]:0").unwrap();
    let agent = node.start();
    let mut web = pod("web", RUNS);
    web["spec"]["hostNetwork"] = true.into();
    let port = open.local_addr().unwrap().port();
    web["spec"]["containers"][0]["readinessProbe"] = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
    node.write("web.json", &web);
    let status = node.ready("web");
    assert_eq!((&status["hostIP"], &status["podIP"]), (&json!("2001:db8::5"), &json!("2001:db8::5")));
    end(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_probe_waits_for_another_one() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let web = Web::start(Reply::mute()).await;
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let agent = node.start();
    let mut two = pod("two", RUNS);
    let mut other = container("other", RUNS);
    let port = open.local_addr().unwrap().port();
    other["readinessProbe"] = json!({"tcpSocket": {"host": "127.0.0.1", "port": port}, "periodSeconds": 1, "initialDelaySeconds": 1});
    two["spec"]["containers"] = json!([probed("mute", &web.url, json!({})), other]);
    node.write("two.json", &two);
    web.asked(1).await;
    let status = node.until("two", "ready in part", |status| is_ready(status, 1));
    assert_eq!(condition(&status, "Ready")["status"], "False");
    assert_eq!(web.seen().len(), 1, "the other one still waits");
    end(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_takes_its_whole_time_does_not_put_off_the_next_one() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let (mute, quick) = (Web::start(Reply::mute()).await, Web::start(Reply::ok("")).await);
    let agent = node.start();
    let mut both = probed("both", &mute.url, json!({}));
    (both["readinessProbe"]["timeoutSeconds"], both["readinessProbe"]["periodSeconds"]) =
        (2.into(), 2.into());
    both["livenessProbe"] = probed("both", &quick.url, json!({}))["readinessProbe"].take();
    both["livenessProbe"]["periodSeconds"] = 2.into();
    let mut web = pod("web", RUNS);
    web["spec"]["containers"] = json!([both]);
    node.write("web.json", &web);
    quick.asked(8).await;
    assert!(mute.seen().len() >= 6, "{} requests", mute.seen().len());
    end(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_initial_delay_of_a_probe_counts_from_the_start_of_its_container_and_not_of_the_agent() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let (late, quick) = (Web::start(Reply::ok("")).await, Web::start(Reply::ok("")).await);
    let agent = node.start();
    let mut both = probed("both", &quick.url, json!({}));
    both["livenessProbe"] = probed("both", &late.url, json!({}))["readinessProbe"].take();
    both["livenessProbe"]["initialDelaySeconds"] = 20.into();
    let mut web = pod("web", RUNS);
    web["spec"]["containers"] = json!([both]);
    node.write("web.json", &web);
    node.ready("web");
    late.asked(1).await;
    end(agent);
    let before = [&late, &quick].map(|server| server.seen().len());

    let agent = node.start();
    late.asked(before[0] + 1).await;
    // The other one runs each second; after the whole delay it would have run twenty times.
    let meanwhile = quick.seen().len() - before[1];
    assert!(meanwhile <= 10, "{meanwhile} requests");
    end(agent);
}

/// podman lists the start in whole seconds. A probe that comes too early may stop a container that is not up yet.
#[tokio::test(flavor = "multi_thread")]
async fn no_probe_comes_before_its_initial_delay() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let server = Web::start(Reply::ok("")).await;
    let firsts = Arc::<Mutex<BTreeMap<String, Timestamp>>>::default();
    let seen_first = firsts.clone();
    server.play(move |seen| {
        seen_first.lock().unwrap().entry(seen.path.clone()).or_insert_with(Timestamp::now);
        Reply::ok("")
    });
    let agent = node.start();
    let names = ["a", "b", "c", "d"];
    let delayed = |name: &&str| {
        let mut container = probed(name, &server.url, json!({"path": format!("/{name}")}));
        container["readinessProbe"]["initialDelaySeconds"] = 2.into();
        container
    };
    let mut web = pod("web", RUNS);
    web["spec"]["containers"] = names.iter().map(delayed).collect();
    node.write("web.json", &web);
    node.ready("web");
    let firsts = firsts.lock().unwrap().clone();
    for name in names {
        let inspected = podman.json(&["inspect", &format!("podmux_default_web-node1_{name}_0")]);
        let started: Timestamp = inspected[0]["State"]["StartedAt"].as_str().unwrap().parse().unwrap();
        let due = started + SignedDuration::from_secs(2);
        assert!(firsts[&format!("/{name}")] >= due, "{name}: {firsts:?}, {due}");
    }
    end(agent);
}

#[test]
fn a_command_that_always_takes_too_long_fails_each_time() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", RUNS);
    // It ends before the second run has failed.
    web["spec"]["containers"][0]["livenessProbe"] =
        json!({"exec": {"command": ["sleep", "3"]}, "periodSeconds": 1, "failureThreshold": 2});
    node.write("web.json", &web);
    let status = node.until("web", "restarted", |status| status["containerStatuses"][0]["restartCount"] == 1);
    let last = &status["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["message"], "stopped: Liveness probe failed: no result within 1s", "{status:#}");
    end(agent);
}

#[test]
fn a_probe_of_a_port_that_no_container_has_never_fails() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", RUNS);
    let mut other = container("other", RUNS);
    for (container, port, threshold) in
        [(&mut web["spec"]["containers"][0], json!("none"), 1), (&mut other, json!(1), 3)]
    {
        container["livenessProbe"] =
            json!({"httpGet": {"port": port}, "periodSeconds": 1, "failureThreshold": threshold});
    }
    web["spec"]["containers"].as_array_mut().unwrap().push(other);
    node.write("web.json", &web);
    let status =
        node.until("web", "restarted in part", |status| status["containerStatuses"][1]["restartCount"] == 1);
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0, "{status:#}");
    let unsupported = condition(&status, "podmux.dev/Unsupported");
    let message = "podman cannot do these fields: spec.containers[0].livenessProbe.httpGet.port";
    assert_eq!(unsupported["message"], message);
    end(agent);
}

#[test]
fn a_restarted_agent_knows_what_the_probes_have_found() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let host = node.path("host");
    fs::create_dir(&host).unwrap();
    let agent = node.start();
    let mut web = pod("web", RUNS);
    web["spec"]["volumes"] = json!([{"name": "host", "hostPath": {"path": host}}]);
    let own = &mut web["spec"]["containers"][0];
    own["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    let is_early = json!({"command": ["test", "!", "-e", "/host/late"]});
    let probe =
        |exec: Value, period: u64| json!({"exec": exec, "periodSeconds": period, "timeoutSeconds": 60});
    own["startupProbe"] = probe(is_early.clone(), 1);
    own["startupProbe"]["failureThreshold"] = 1.into();
    own["readinessProbe"] = probe(is_early, 10_000);
    // Its run shows that the other probes of the next agent have begun.
    own["livenessProbe"] = probe(json!({"command": ["touch", "/host/alive"]}), 1);
    node.write("web.json", &web);
    let mut busy = web.clone();
    busy["metadata"]["name"] = "busy".into();
    let own = &mut busy["spec"]["containers"][0];
    own["readinessProbe"]["exec"]["command"] = json!(["false"]);
    own["livenessProbe"]["exec"]["command"] = json!(["touch", "/host/busy"]);
    node.write("busy.json", &busy);
    let before = node.ready("web");
    let alive = ["alive", "busy"].map(|file| host.join(file));
    let are_alive = || alive.iter().all(|file| file.exists()).then_some(());
    wait_for(are_alive);
    agent.signal(Signal::KILL);
    agent.ends();
    fs::write(host.join("late"), "").unwrap();
    for file in &alive {
        fs::remove_file(file).unwrap();
    }

    let agent = node.start();
    wait_for(are_alive);
    let status = node.ready("web");
    assert_eq!(status["containerStatuses"], before["containerStatuses"]);
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    // Another start has to pass its own.
    podman.run(&["restart", "--time", "0", "podmux_default_web-node1_c_0"]);
    node.until("web", "not started", |status| {
        status["containerStatuses"][0]["started"] == false && condition(status, "Ready")["status"] == "False"
    });
    // It had started, and was not ready.
    let status = node.until("busy", "started", |status| status["containerStatuses"][0]["started"] == true);
    let found = (is_ready(&status, 0), &status["containerStatuses"][0]["restartCount"]);
    assert_eq!(found, (false, &json!(0)), "{status:#}");
    end(agent);
    podman.end_exec_sessions();
}

#[test]
fn a_pod_that_an_operator_restarts_is_probed_at_its_new_address() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let mut web = pod("web", &format!("httpd -p 80 -h /tmp; {RUNS}"));
    web["spec"]["containers"][0]["readinessProbe"] = json!({"tcpSocket": {"port": 80}, "periodSeconds": 1});
    node.write("web.json", &web);
    let before = node.ready("web")["podIP"].clone();
    let name = "podmux_default_web-node1";
    // An agent that meets the stopped container replaces it while podman restarts the rest.
    agent.signal(Signal::STOP);
    podman.run(&["pod", "restart", name]);
    agent.signal(Signal::CONT);
    let id = podman.json(&["pod", "inspect", name])["InfraContainerID"].as_str().unwrap().to_owned();
    let networks = podman.json(&["inspect", &id])[0]["NetworkSettings"]["Networks"].clone();
    let address = networks.as_object().unwrap().values().next().unwrap()["IPAddress"].clone();
    assert_ne!(address, before);
    node.until("web", "at its new address and ready", |status| {
        status["podIP"] == address && condition(status, "Ready")["status"] == "True"
    });
    end(agent);
}

/// The command of a probe ends with its container, and that is no failed probe.
#[test]
fn a_container_that_ends_by_itself_while_it_is_probed_is_not_started_again() {
    let Some(podman) = Podman::start() else { return };
    let node = Node::new(&podman);
    let agent = node.start();
    let names = ["a", "b", "c", "d"];
    for name in names {
        let mut job = pod(name, "until [ -e /tmp/probed ]; do sleep 0.1; done; exit 0");
        job["spec"]["restartPolicy"] = "OnFailure".into();
        job["spec"]["containers"][0]["livenessProbe"] = json!({
            "exec": {"command": ["sh", "-c", "touch /tmp/probed; sleep 1000"]},
            "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 1,
        });
        node.write(&format!("{name}.json"), &job);
    }
    for name in names {
        let status = node.until(name, "completed", |status| status["phase"] == "Succeeded");
        assert_eq!(status["containerStatuses"][0]["restartCount"], 0, "{status:#}");
    }
    end(agent);
}
