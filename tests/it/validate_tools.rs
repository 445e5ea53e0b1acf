//! `podmux validate` in other tools: pre-commit, GitHub Actions, and beside a JSON schema.

use std::{
    collections::BTreeSet,
    env, fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use flate2::read::GzDecoder;
use podmux::manifest::yaml;
use serde_json::Value;

use crate::{
    support::{corpus, process::podmux, python::python},
    validate::{DOUBTFUL, VALID, directory},
};

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The variable `PATH` with podmux and this directory before the others.
fn path_with(directory: &Path) -> String {
    let podmux = Path::new(env!("CARGO_BIN_EXE_podmux")).parent().unwrap();
    format!("{}:{}:{}", podmux.display(), directory.display(), env::var("PATH").unwrap())
}

/// A repository of git with these files, all of them committed.
fn git(directory: &Path) {
    let identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
    for args in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &["commit", "-q", "-m", "all"]] {
        let output = Command::new("git").args(identity).args(args).current_dir(directory).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn the_hook_of_pre_commit_checks_the_manifests_of_a_repository() {
    let Some(python) = python("validate") else { return };
    let hooks = tempfile::tempdir().unwrap();
    fs::copy(repository(".pre-commit-hooks.yaml"), hooks.path().join(".pre-commit-hooks.yaml")).unwrap();
    git(hooks.path());
    let project = directory(&[("other.yaml", "not: a pod\n")]);
    let home = tempfile::tempdir().unwrap();
    let manifests = project.path().join("deploy/manifests");
    fs::create_dir_all(&manifests).unwrap();
    fs::write(manifests.join("web.yaml"), VALID).unwrap();
    let head = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(&hooks).output().unwrap();
    let config = format!(
        "repos:\n- repo: {}\n  rev: {}  hooks:\n  - id: podmux-validate-installed\n    args: [--strict]\n",
        hooks.path().display(),
        String::from_utf8(head.stdout).unwrap(),
    );
    fs::write(project.path().join(".pre-commit-config.yaml"), config).unwrap();
    git(project.path());
    let run = || {
        let mut command = Command::new(python.with_file_name("pre-commit"));
        command.args(["run", "--all-files", "--color", "never", "--verbose"]).current_dir(&project);
        command.env("PATH", path_with(python.parent().unwrap())).env("PRE_COMMIT_HOME", home.path());
        command.output().unwrap()
    };
    let output = run();
    assert!(output.status.success(), "{}", shown(&output));
    assert!(shown(&output).contains("Passed"), "{}", shown(&output));
    fs::write(manifests.join("web.yaml"), DOUBTFUL).unwrap();
    let output = run();
    let line = "deploy/manifests/web.yaml:10:5: spec.containers[0].imagePullpolicy: unknown field";
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
    assert!(shown(&output).contains(line), "{}", shown(&output));
}

#[test]
fn both_hooks_run_the_same() {
    let text = fs::read_to_string(repository(".pre-commit-hooks.yaml")).unwrap();
    let hooks = yaml::to_json(&text).unwrap();
    let hooks = hooks.as_array().unwrap();
    assert_eq!(hooks.len(), 2);
    for field in ["entry", "files"] {
        assert!(hooks[0][field].is_string() && hooks[0][field] == hooks[1][field]);
    }
}

/// The workflow of GitHub Actions in the documentation.
fn workflow() -> Value {
    let page = fs::read_to_string(repository("docs/validate.md")).unwrap();
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let found: Vec<Value> = blocks
        .map(|block| yaml::to_json(block).unwrap())
        .filter(|block| block.get("jobs").is_some())
        .collect();
    assert_eq!(found.len(), 1);
    found.into_iter().next().unwrap()
}

#[test]
fn the_steps_of_the_workflow_work() {
    let workflow = workflow();
    let steps = workflow["jobs"]["validate"]["steps"].as_array().unwrap();
    assert_eq!(workflow["permissions"]["security-events"], "write");
    let uploaded = steps.last().unwrap()["with"]["sarif_file"].as_str().unwrap();
    for (text, code) in [(VALID, 0), ("kind: [\n", 1)] {
        let project = directory(&[]);
        fs::create_dir(project.path().join("manifests")).unwrap();
        fs::write(project.path().join("manifests/web.yaml"), text).unwrap();
        let mut codes = Vec::new();
        for step in steps.iter().filter(|step| step["name"] != "Install podmux") {
            let Some(script) = step["run"].as_str() else { continue };
            let mut shell = Command::new("bash");
            shell.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script]).current_dir(&project);
            let output = shell.env("PATH", path_with(project.path())).output().unwrap();
            codes.push(output.status.code().unwrap());
            if code == 1 && codes.len() == 1 {
                let annotation = "::error file=manifests/web.yaml,line=1,col=7,title=decode::";
                assert!(shown(&output).starts_with(annotation), "{}", shown(&output));
            }
        }
        assert_eq!(codes, [code, 0]);
        let log = fs::read_to_string(project.path().join(uploaded)).unwrap();
        let log: Value = serde_json::from_str(&log).unwrap();
        let results = log["runs"][0]["results"].as_array().unwrap().len();
        assert_eq!(results, usize::try_from(code).unwrap());
    }
}

/// The cases of the corpus that podmux rejects, and those that it accepts, by file.
fn verdicts(directory: &Path) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut rejected, mut accepted) = (BTreeSet::new(), BTreeSet::new());
    for source in ["file", "http"] {
        let mut command = podmux(&["validate", "--node-name", "node", "--source", source, "-o", "json"]);
        command.current_dir(directory);
        for (index, case) in corpus("pods.jsonl.gz").iter().enumerate() {
            if case["source"] == source {
                let name = format!("{index:05}");
                fs::write(directory.join(&name), case["data"].as_str().unwrap()).unwrap();
                command.arg(name);
            }
        }
        for line in String::from_utf8(command.output().unwrap().stdout).unwrap().lines() {
            let object: Value = serde_json::from_str(line).unwrap();
            let set = if object["ok"] == true { &mut accepted } else { &mut rejected };
            set.insert(object["path"].as_str().unwrap().to_owned());
        }
    }
    (rejected, accepted)
}

#[test]
fn the_faults_of_the_corpus_that_a_schema_does_not_find_are_as_many_as_documented() {
    let Some(python) = python("validate") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (rejected, accepted) = verdicts(dir.path());
    let mut schema = Vec::new();
    let compressed = fs::File::open(repository("src/server/api/openapi/core.json.gz")).unwrap();
    GzDecoder::new(compressed).read_to_end(&mut schema).unwrap();
    fs::write(dir.path().join("openapi.json"), schema).unwrap();
    let names: Vec<&str> = rejected.union(&accepted).map(String::as_str).collect();
    fs::write(dir.path().join("list"), names.join("\n")).unwrap();
    let output = Command::new(python)
        .arg(repository("tests/validate/check.py"))
        .args(["manifests", "openapi.json", "list"])
        .current_dir(&dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    let fit: BTreeSet<String> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    let missed = rejected.intersection(&fit).count();
    let alarms = accepted.difference(&fit).count();
    let page = fs::read_to_string(repository("docs/validate.md")).unwrap();
    let documented = format!("{} | {} | {} | {}", names.len(), rejected.len(), missed, alarms);
    assert!(page.contains(&documented), "docs/validate.md does not say: {documented}");
}
