//! The integration tests of podmux: one file for each behaviour.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::missing_panics_doc,
    clippy::disallowed_methods,
    clippy::needless_raw_string_hashes,
    reason = "a test fails by panicking, prints what it runs, has no users as a library, and its expectations are written by a tool"
)]

mod agent;
mod api_bounds;
mod api_connect;
mod api_connect_bad;
mod api_connect_exec;
mod api_connect_proxy;
mod api_faults;
mod api_json_splitter;
mod api_offline;
mod api_protobuf;
mod api_protobuf_splitter;
mod api_real;
mod api_real_faults;
mod api_real_who;
mod api_reflector;
mod api_soak;
mod api_trust;
mod bad_starts;
mod callers;
mod cli;
mod cli_agent;
mod cli_apply;
mod cli_delete;
mod cli_get;
mod cli_table;
mod cli_yaml;
mod client;
mod complexity;
mod config;
mod conformance;
mod conformance_patch;
mod consumer_oracle;
#[path = "../../examples/custom_runtime.rs"]
mod custom_runtime;
mod db;
mod db_damage;
mod db_directory;
mod db_faults;
mod decode;
mod decode_corpus;
mod delivery;
mod dependency_rules;
mod docs;
mod durability;
mod events;
mod exec;
mod exec_crashes;
mod exec_example;
mod exec_instance;
mod exec_programs;
mod file;
mod file_faults;
mod file_places;
mod file_saves;
mod go_types;
mod histories;
mod history;
mod hostile_sink;
mod informers;
mod jsonl;
mod kubectl;
mod kubectl_events;
mod kubectl_schema;
mod kubectl_write;
mod last_good;
mod last_good_whole;
mod manifests;
mod memory_limits;
mod merge;
mod mux;
mod observability;
mod observed;
mod openapi;
mod oracle;
mod packaged;
mod patch;
mod patch_oracle;
mod pod_columns;
mod pod_security;
mod pod_server;
mod pod_workers;
mod podman;
mod podman_adopted;
mod podman_faults;
mod podman_logs;
mod podman_pull;
mod podman_spec;
mod posted;
mod protobuf;
mod protobuf_clients;
mod protobuf_server;
mod python_client;
mod reload;
#[path = "../../examples/replay.rs"]
mod replay;
mod rotation;
mod run_check;
mod run_command;
mod runtime_agent;
mod runtime_storm;
mod secrets;
mod server_collection;
mod server_errors;
mod server_finish;
mod server_lists;
mod server_objects;
mod server_overlay;
mod server_pods;
mod server_runtime;
mod server_state;
mod server_transport;
mod server_transport_auth;
mod server_transport_generated;
mod server_transport_listen;
mod server_transport_tls;
mod server_transport_users;
mod server_updates;
mod server_watch;
mod settings;
mod shutdown;
mod state_memory;
mod supervise;
mod support;
mod systemd_notify;
mod systemd_sockets;
mod url;
mod url_agent;
mod url_faults;
mod url_restart;
mod validate;
mod validate_formats;
mod validate_many;
mod validate_screen;
mod validate_templates;
mod validate_tools;
mod validation;
mod validation_corpus;
mod versions;
mod webhook;
mod webhook_agent;
mod work_queue;
mod yaml;
