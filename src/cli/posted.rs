//! The posted pods of a running agent, which are those that can be deleted.

use super::{
    connection::{Connection, TABLE},
    failure::Failure,
    output::{items, text},
};
use crate::{client::escaped, pod::SourceName};

/// The pods of a namespace.
#[derive(Debug, Default)]
pub(super) struct Posted {
    /// The namespace, the name and the UID of each posted pod.
    pub(super) pods: Vec<[String; 3]>,
    /// The number of pods of other sources.
    pub(super) others: usize,
}

impl Posted {
    /// Lists the pods of a namespace, or of all, that a label selector matches.
    pub(super) async fn list(
        connection: &Connection,
        namespace: Option<&str>,
        selector: Option<&str>,
    ) -> Result<Self, Failure> {
        let path = match namespace {
            Some(namespace) => format!("/api/v1/namespaces/{}/pods", escaped(namespace)),
            None => "/api/v1/pods".to_owned(),
        };
        let mut posted = Self::default();
        // A table is much smaller than the pods are.
        let query: Vec<_> = selector.map(|selector| ("labelSelector", selector)).into_iter().collect();
        let (table, _) = connection.list(&path, &query, TABLE).await?;
        let source = items(&table["columnDefinitions"]).iter().position(|column| column["name"] == "Source");
        for row in items(&table["rows"]) {
            let metadata = &row["object"]["metadata"];
            if source.is_some_and(|source| row["cells"][source] == SourceName::Http.as_str()) {
                posted.pods.push(["namespace", "name", "uid"].map(|field| text(&metadata[field]).into()));
            } else {
                posted.others += 1;
            }
        }
        Ok(posted)
    }

    /// The namespaces and names of the posted pods of a namespace, or of all, that no list shows, because pods of other
    /// sources have their names or UIDs. Also returns whether the agent has named only some.
    pub(super) async fn hidden(
        connection: &Connection,
        namespace: Option<&str>,
    ) -> Result<(Vec<[String; 2]>, bool), Failure> {
        let source = connection.get("/sources/http").await?;
        let pods =
            items(&source["problems"]).iter().filter_map(|problem| text(&problem["pod"]).split_once('/'));
        let pods = pods.filter(|(own, _)| namespace.is_none_or(|wanted| wanted == *own));
        let pods = pods.map(|(namespace, name)| [namespace, name].map(str::to_owned)).collect();
        Ok((pods, source["moreProblems"].is_number()))
    }

    /// What is said of the pods that stay; nothing if there are none.
    pub(super) fn note(&self) -> Option<String> {
        let pods = match self.others {
            0 => return None,
            1 => "1 pod stays: it was".to_owned(),
            others => format!("{others} pods stay: they were"),
        };
        Some(format!(
            "podmux: {pods} not created over the API; change the source (podmux get pods -o wide names it)"
        ))
    }
}
