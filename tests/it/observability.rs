//! `systemd/alerts.yaml` and `systemd/grafana.json`: every metric in them is served by a running agent, and a real
//! Prometheus can evaluate all expressions.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use podmux::manifest::yaml;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    kubernetes::not_tested,
    observed::{Observed, Series, ask, values},
    process::{PATIENCE, Process, wait_for},
    promql::{Expression, Selector},
};

/// Prometheus' own metric of each target, and the labels that it adds to each series.
const UP: &str = "up";
const TARGET: [&str; 2] = ["job", "instance"];

/// Metrics that are not on the dashboard, with the reason.
const NOT_SHOWN: [(&str, &str); 1] =
    [("process_start_time_seconds", "the same as podmux_start_time_seconds, for other dashboards")];

/// Metrics on the dashboard that a healthy agent does not have.
const EMPTY_WHEN_HEALTHY: [&str; 2] =
    ["podmux_http_refusals_total", "podmux_source_restored_timestamp_seconds"];

fn text_of(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The rules of `systemd/alerts.yaml`.
fn alerts() -> Vec<Value> {
    let file = yaml::to_json(&text_of("systemd/alerts.yaml")).unwrap();
    let groups = file["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&text_of("systemd/grafana.json")).unwrap()
}

/// The dashboard's panels without the titles of rows.
fn panels(dashboard: &Value) -> Vec<Value> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row").cloned().collect()
}

fn word<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// All expressions: the name of the alert or panel, the expression, and the labels that its
/// text shows.
fn expressions() -> Vec<(String, String, Vec<String>)> {
    let mut all = Vec::new();
    for alert in alerts() {
        let shown = alert["annotations"].as_object().unwrap().values();
        let labels = shown.flat_map(|text| templates(text.as_str().unwrap(), "$labels."));
        all.push((word(&alert, "alert").to_owned(), word(&alert, "expr").to_owned(), labels.collect()));
    }
    let dashboard = dashboard();
    for panel in panels(&dashboard) {
        for target in panel["targets"].as_array().unwrap() {
            let labels = templates(word(target, "legendFormat"), "").collect();
            all.push((word(&panel, "title").to_owned(), word(target, "expr").to_owned(), labels));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["definition"].as_str() {
            let (selector, label) = query.rsplit_once(", ").unwrap();
            let selector = selector.strip_prefix("label_values(").unwrap().to_owned();
            all.push((
                word(variable, "name").to_owned(),
                selector,
                vec![label.trim_end_matches(')').to_owned()],
            ));
        }
    }
    for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
        if let Some(expression) = annotation["expr"].as_str() {
            let labels = templates(word(annotation, "textFormat"), "").collect();
            all.push((word(annotation, "name").to_owned(), expression.to_owned(), labels));
        }
    }
    all
}

/// The labels in `{{ … }}`.
fn templates(text: &str, prefix: &str) -> impl Iterator<Item = String> {
    let braces = text.split("{{").skip(1).map(|rest| rest.split_once("}}").unwrap().0.trim().to_owned());
    let prefix = prefix.to_owned();
    braces.filter_map(move |inside| inside.strip_prefix(&prefix).map(str::to_owned))
}

/// The metrics and labels of an expression that are not served.
fn faults(served: &Series, expression: &str, shown: &[String]) -> Vec<String> {
    let parsed = Expression::read(expression);
    assert!(!parsed.selectors.is_empty(), "{expression} has no metric");
    let mut faults = Vec::new();
    let labels_of = |selector: &Selector| -> BTreeSet<String> {
        let series = served.get(&selector.metric).into_iter().flatten();
        series.flat_map(BTreeMap::keys).cloned().chain(TARGET.map(str::to_owned)).collect()
    };
    let unlabelled = Vec::new();
    for selector in &parsed.selectors {
        let Some(series) = served.get(&selector.metric).or((selector.metric == UP).then_some(&unlabelled))
        else {
            faults.push(format!("there is no metric {}", selector.metric));
            continue;
        };
        for (label, _, value) in &selector.matchers {
            if TARGET.contains(&&**label) {
                continue;
            }
            let known = values(series, label);
            if known.is_empty() {
                faults.push(format!("{} has no label {label}", selector.metric));
            }
            // Only enumerations: a dot is a pattern, a dollar a variable of Grafana.
            let named = value.split('|').filter(|value| !value.contains(['.', '$']));
            faults.extend(
                named
                    .filter(|value| !known.contains(*value))
                    .map(|value| format!("{} has no {label}={value:?}", selector.metric)),
            );
        }
    }
    let all: BTreeSet<String> = parsed.selectors.iter().flat_map(labels_of).collect();
    let left = match &parsed.grouped_by {
        Some(labels) => labels.iter().cloned().collect(),
        None => labels_of(&parsed.selectors[0]),
    };
    faults.extend(
        parsed.labels.iter().filter(|label| !all.contains(*label)).map(|label| format!("no label {label}")),
    );
    faults.extend(
        shown.iter().filter(|label| !left.contains(*label)).map(|label| format!("shows no label {label}")),
    );
    faults
}

/// The metrics of a healthy agent and of one with a restored source.
async fn served() -> Series {
    let agent = Observed::start().await;
    agent.wait_for_metric("podmux_ready 1");
    agent.wait_for_metric("podmux_source_state{source=\"api\",state=\"synced\"} 1");
    for path in ["/livez", "/readyz", "/healthz", "/nowhere"] {
        agent.ask("GET", path, "");
    }
    // This number is still to come.
    assert_eq!(agent.ask("GET", "/updates?from=4000000000", "").code, 410);
    let mut served = agent.scrape();
    // The api source is restored and cannot connect.
    agent.api.down();
    let agent = agent.restart();
    agent.wait_for_metric("podmux_source_restored_timestamp_seconds{source=\"api\"}");
    agent.wait_for_metric("podmux_reflector_errors_total{kind=\"connect\"}");
    for (metric, series) in agent.scrape() {
        served.entry(metric).or_default().extend(series);
    }
    served
}

#[tokio::test(flavor = "multi_thread")]
async fn all_metrics_of_alerts_and_dashboard_are_served_and_shown() {
    let served = served().await;
    let mut wrong = Vec::new();
    let mut shown = BTreeSet::new();
    for (place, expression, labels) in expressions() {
        let faults = faults(&served, &expression, &labels).into_iter();
        wrong.extend(faults.map(|fault| format!("{place}: {fault}: {expression}")));
        shown.extend(Expression::read(&expression).selectors.into_iter().map(|selector| selector.metric));
    }
    // And every metric is on the dashboard.
    let of_a_histogram = |metric: &str| {
        let base =
            metric.strip_suffix("_bucket").or(metric.strip_suffix("_sum")).or(metric.strip_suffix("_count"));
        base.is_some_and(|base| shown.iter().any(|shown| shown.starts_with(base)))
    };
    for metric in served.keys() {
        let is_left_out = NOT_SHOWN.iter().any(|(name, _)| name == metric);
        if is_left_out == (shown.contains(metric) || of_a_histogram(metric)) {
            wrong.push(format!("{metric} is on no panel, or is in NOT_SHOWN by mistake"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn metrics_and_labels_that_are_not_served_are_found() {
    let labels = |labels: &[(&str, &str)]| {
        labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect()
    };
    let served = Series::from([
        ("a_total".to_owned(), vec![labels(&[("reason", "room")])]),
        ("b".to_owned(), vec![labels(&[])]),
    ]);
    let check = |expression: &str, shown: &[&str]| {
        let shown: Vec<String> = shown.iter().map(|label| (*label).to_owned()).collect();
        faults(&served, expression, &shown).join(", ")
    };
    let valid = "sum by (reason) (rate(a_total{reason=~\"room\", job=~\"$job\"}[5m])) / 2e3 > bool 0";
    assert_eq!(check(valid, &["reason"]), "");
    assert_eq!(check("time() - b > 1 and on (instance) a_total == 0 or vector(0)", &["instance"]), "");
    assert_eq!(check("increase(c_total[1h])", &[]), "there is no metric c_total");
    assert_eq!(check("a_total{why=\"room\"}", &[]), "a_total has no label why, a_total has no why=\"room\"");
    assert_eq!(check("a_total{reason=~\"room|rooms\"}", &[]), "a_total has no reason=\"rooms\"");
    assert_eq!(check("sum by (why) (a_total)", &["reason"]), "no label why, shows no label reason");
    assert_eq!(check("b", &["reason"]), "shows no label reason");
}

#[test]
fn each_alert_has_a_reason_texts_and_a_test() {
    let (text, tests) = (text_of("systemd/alerts.yaml"), text_of("tests/observability/alerts_test.yaml"));
    let lines: Vec<&str> = text.lines().collect();
    let mut names = BTreeSet::new();
    for alert in alerts() {
        let name = word(&alert, "alert");
        assert!(names.insert(name.to_owned()), "{name} is defined twice");
        let line = lines.iter().position(|line| line.trim() == format!("- alert: {name}")).unwrap();
        assert!(lines[line - 1].trim().starts_with('#'), "{name} has no comment with its reason");
        assert!(matches!(word(&alert["labels"], "severity"), "warning" | "critical"), "{name}");
        let annotations = &alert["annotations"];
        assert!(word(annotations, "summary").contains("podmux"), "{name}");
        let description = word(annotations, "description");
        assert!(description.matches('`').count() >= 2, "{name} names no command");
        assert!(description.ends_with('.'), "{name}: {description}");
        assert!(
            tests.contains(&format!("alertname=\"{name}\",alertstate=\"firing\"")),
            "{name} is not tested"
        );
    }
    assert!(names.len() >= 10, "{names:?}");
    // The alerts that the dashboard mentions exist.
    let dashboard = text_of("systemd/grafana.json");
    let mentioned: Vec<&str> = dashboard
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .filter(|word| word.starts_with("Podmux"))
        .collect();
    assert!(!mentioned.is_empty());
    for word in mentioned {
        assert!(names.contains(word), "the dashboard mentions {word}");
    }
}

#[test]
fn the_dashboard_has_what_grafana_requires() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 38, "Grafana 10");
    assert_eq!((&dashboard["id"], word(&dashboard, "uid")), (&Value::Null, "podmux"));
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variables: Vec<&str> = variables.iter().map(|variable| word(variable, "name")).collect();
    assert_eq!(variables, ["datasource", "job", "node", "instance"]);
    let (mut ids, mut used) = (BTreeSet::new(), BTreeSet::new());
    let all = dashboard["panels"].as_array().unwrap();
    for panel in all {
        let title = word(panel, "title");
        assert!(!title.is_empty() && ids.insert(panel["id"].as_u64().unwrap()), "{panel:#}");
        let grid = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        assert!(grid("w") >= 1 && grid("h") >= 1 && grid("x") + grid("w") <= 24, "{title}");
        for (x, y) in (grid("x")..grid("x") + grid("w"))
            .flat_map(|x| (grid("y")..grid("y") + grid("h")).map(move |y| (x, y)))
        {
            assert!(used.insert((x, y)), "{title} lies on another panel");
        }
    }
    for panel in panels(&dashboard) {
        let title = word(&panel, "title");
        assert!(
            matches!(word(&panel, "type"), "timeseries" | "stat" | "table" | "state-timeline"),
            "{title}"
        );
        assert!(!word(&panel["fieldConfig"]["defaults"], "unit").is_empty(), "{title} has no unit");
        assert!(panel["fieldConfig"]["overrides"].is_array() && panel["options"].is_object(), "{title}");
        assert!(word(&panel, "description").ends_with('.'), "{title} has no description");
        assert_eq!(word(&panel["datasource"], "uid"), "${datasource}", "{title}");
        let targets = panel["targets"].as_array().unwrap();
        let names: BTreeSet<&str> = targets.iter().map(|target| word(target, "refId")).collect();
        assert!(!targets.is_empty() && names.len() == targets.len(), "{title}");
        for target in targets {
            assert_eq!(word(&target["datasource"], "uid"), "${datasource}", "{title}");
            let expression = word(target, "expr");
            let all_are_known = expression.split('$').skip(1).all(|rest| {
                let name = rest.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').next();
                name.is_some_and(|name| name == "__rate_interval" || variables.contains(&name))
            });
            assert!(all_are_known && expression.contains("instance=~\"$instance\""), "{title}: {expression}");
        }
    }
    let rows = all.iter().filter(|panel| panel["type"] == "row").count();
    assert!(rows >= 7 && all.len() > 3 * rows, "{rows} rows of {} panels", all.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_reload_shows_until_one_succeeds() {
    let agent = Observed::start().await;
    agent.wait_for_metric("podmux_config_last_reload_successful 1");
    agent.reload("never");
    agent.wait_for_metric("podmux_config_last_reload_successful 0");
    agent.reload("9s");
    agent.wait_for_metric("podmux_config_last_reload_successful 1");
}

/// A real Prometheus, which ends with the test.
struct Prometheus {
    address: String,
    process: Process,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    /// Scrapes an agent each second and evaluates the rules. `None` without the program, which is
    /// reported.
    fn start(agent: &Observed) -> Option<Self> {
        let Some(programs) = env::var_os("PODMUX_PROMETHEUS").map(PathBuf::from) else {
            not_tested(
                "there is no prometheus. Use tests/run, or PODMUX_PROMETHEUS=$(tests/unpacked prometheus prometheus promtool) cargo test",
            );
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/alerts.yaml");
        let config = serde_json::json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules],
            "scrape_configs": [{
                "job_name": "podmux",
                "scheme": "https",
                "authorization": {"credentials_file": agent.auth("read-token")},
                "tls_config": {"ca_file": agent.auth("ca.crt")},
                "static_configs": [{"targets": [agent.address]}],
            }],
        });
        let file = directory.path().join("prometheus.yml");
        fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new(programs.join("prometheus"));
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let process = Process::start(&mut command);
        let line = process.logs("msg=\"Listening on\"");
        let address = line.rsplit("address=").next().unwrap().trim().to_owned();
        process.logs("Server is ready to receive web requests");
        Some(Self { address, process, _directory: directory })
    }

    fn get(&self, path: &str) -> Value {
        let answer = ask(&self.address, "GET", path, "");
        let json = answer.json();
        assert_eq!((answer.code, word(&json, "status")), (200, "success"), "{path}: {json}");
        json["data"].clone()
    }

    /// Evaluates an expression.
    fn query(&self, expression: &str) -> Vec<Value> {
        let escaped: Vec<String> = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let escaped = escaped.concat();
        self.get(&format!("/api/v1/query?query={escaped}"))["result"].as_array().unwrap().clone()
    }

    /// The expressions of the dashboard that have no data and need some.
    fn panels_without_data(&self) -> Vec<String> {
        let mut empty = Vec::new();
        for panel in panels(&dashboard()) {
            for target in panel["targets"].as_array().unwrap() {
                let expression = word(target, "expr");
                let concrete = expression.replace("$job", ".*").replace("$instance", ".*");
                let concrete = concrete.replace("$__rate_interval", "1m");
                let may_be_empty = EMPTY_WHEN_HEALTHY.iter().any(|metric| expression.contains(metric));
                if !may_be_empty && self.query(&concrete).is_empty() {
                    empty.push(format!("{}: {expression}", word(&panel, "title")));
                }
            }
        }
        empty
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_has_data_for_every_expression() {
    let agent = Observed::start().await;
    agent.wait_for_metric("podmux_source_state{source=\"api\",state=\"synced\"} 1");
    // An ended watch, an error and a 404, so that they are counted.
    agent.api.end_watches();
    agent.api.down();
    agent.wait_for_metric("podmux_reflector_errors_total{kind=\"connect\"}");
    agent.ask("GET", "/nowhere", "");
    let Some(prometheus) = Prometheus::start(&agent) else { return };
    // A rate needs two samples, and on a loaded machine a scrape may take longer than its second.
    let begun = Instant::now();
    wait_for(|| {
        let target = prometheus.get("/api/v1/targets")["activeTargets"][0].clone();
        let is_up = (word(&target, "health"), word(&target, "lastError")) == ("up", "");
        let empty = prometheus.panels_without_data();
        if is_up && empty.is_empty() {
            return Some(());
        }
        assert!(begun.elapsed() < PATIENCE / 2, "{target:#}\nwithout data:\n{}", empty.join("\n"));
        None
    });
    let rules = wait_for(|| {
        let rules = prometheus.get("/api/v1/rules")["groups"][0]["rules"].as_array().unwrap().clone();
        rules.iter().all(|rule| rule["health"] != "unknown").then_some(rules)
    });
    assert_eq!(rules.len(), alerts().len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    prometheus.process.signal(Signal::TERM);
    assert_eq!(prometheus.process.ends().0, 0);
}
