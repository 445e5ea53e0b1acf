//! Warnings about files of a volume whose paths overlap.

use super::{
    super::{
        at::At,
        fields::{Object, given_text, object, objects, text},
    },
    bounds::MAX_PAIRS,
    text::quoted,
};

/// A file of a volume.
struct File<'v> {
    path: &'v str,
    source: Source<'v>,
}

/// The kind and the name of a file's source in a projected volume; empty in another volume.
type Source<'v> = (&'static str, Option<&'v str>);

impl<'v> File<'v> {
    fn new(path: &'v str, source: Source<'v>) -> Self {
        Self { path: path.trim_end_matches('/'), source }
    }

    fn shown(&self) -> String {
        match self.source {
            ("", _) => quoted(self.path),
            source => format!("{} ({})", quoted(self.path), shown(source)),
        }
    }
}

fn shown((kind, name): Source<'_>) -> String {
    name.map_or_else(|| kind.to_owned(), |name| format!("{kind} {}", quoted(name)))
}

/// Warns of a volume's files whose paths overlap. The API's words have no path of a field.
pub(super) fn warn(volume: &Object, at: &At<'_>) {
    let name = quoted(text(volume, "name"));
    let sources = [
        ("configMap", "ConfigMap", Some("name")),
        ("secret", "Secret", Some("secretName")),
        ("downwardAPI", "DownwardAPI", None),
    ];
    for (field, kind, name_field) in sources {
        let Some(source) = object(volume, field) else { continue };
        let of = (kind, name_field.map(|field| text(source, field)));
        overlaps(&items(source, ("", None)), at, &|both| {
            format!("volume {name} ({}): overlapping paths: {both}", shown(of))
        });
    }
    let Some(projected) = object(volume, "projected") else { return };
    let mut files = Vec::new();
    at.objects(projected, "sources", |_, source| {
        if source.is_empty() {
            at.warning(&|| format!("volume {name} (Projected) has no sources provided"));
        }
        files.extend(projected_files(source));
    });
    overlaps(&files, at, &|both| format!("volume {name} (Projected): overlapping paths: {both}"));
}

fn items<'v>(of: &'v Object, source: Source<'v>) -> Vec<File<'v>> {
    objects(of, "items").map(|item| File::new(text(item, "path"), source)).collect()
}

/// The files of one source of a projected volume.
fn projected_files(source: &Object) -> Vec<File<'_>> {
    if let Some(map) = object(source, "configMap") {
        items(map, ("ConfigMap", Some(text(map, "name"))))
    } else if let Some(secret) = object(source, "secret") {
        items(secret, ("Secret", Some(text(secret, "name"))))
    } else if let Some(fields) = object(source, "downwardAPI") {
        items(fields, ("DownwardAPI", None))
    } else if let Some(token) = object(source, "serviceAccountToken") {
        vec![File::new(text(token, "path"), ("ServiceAccountToken", None))]
    } else if let Some(bundle) = object(source, "clusterTrustBundle") {
        let name = given_text(bundle, "name").unwrap_or_else(|| text(bundle, "signerName"));
        vec![File::new(text(bundle, "path"), ("ClusterTrustBundle", Some(name)))]
    } else if let Some(certificate) = object(source, "podCertificate") {
        let parts = [
            ("certificateChainPath", "PodCertificate chain"),
            ("keyPath", "PodCertificate key"),
            ("credentialBundlePath", "PodCertificate credential bundle"),
        ];
        parts.map(|(field, what)| File::new(text(certificate, field), (what, None))).into()
    } else {
        Vec::new()
    }
}

/// Warns of each pair of files of which one has the path of the other or a path below it.
fn overlaps(files: &[File<'_>], at: &At<'_>, detail: &dyn Fn(&str) -> String) {
    if files.len() < 2 {
        return;
    }
    let tree = Tree::new(files);
    // The files so far at each path of the tree.
    let mut seen = vec![Vec::new(); tree.paths.len()];
    let mut left = MAX_PAIRS;
    for (index, file) in files.iter().enumerate() {
        let Some(own) = tree.path_of[index] else { continue };
        let related = tree.related(own).flat_map(|path: usize| &seen[path]);
        let mut found: Vec<usize> = related.copied().take(left).collect();
        found.sort_unstable();
        for other in &found {
            at.warning(&|| detail(&format!("{} with {}", file.shown(), files[*other].shown())));
        }
        left -= found.len();
        if left == 0 {
            return;
        }
        seen[own].push(index);
    }
}

/// The different paths of files in order, so that those below a path follow it.
struct Tree {
    paths: Vec<PathNode>,
    /// The path of each file; none if it is empty.
    path_of: Vec<Option<usize>>,
}

struct PathNode {
    /// The nearest path above.
    parent: Option<usize>,
    /// The end of the paths below.
    end: usize,
}

impl Tree {
    /// Takes linear time but for sorting.
    fn new(files: &[File<'_>]) -> Self {
        // With a slash at the end, the beginning of a text is a path above.
        let named = files.iter().enumerate().filter(|(_, file)| !file.path.is_empty());
        let mut sorted: Vec<(String, usize)> =
            named.map(|(index, file)| (format!("{}/", file.path), index)).collect();
        sorted.sort_unstable();
        let mut tree = Self { paths: Vec::new(), path_of: vec![None; files.len()] };
        let mut open: Vec<(&str, usize)> = Vec::new();
        for (path, file) in &sorted {
            let place = tree.paths.len();
            while let Some((_, closed)) = open.pop_if(|(above, _)| !path.starts_with(*above)) {
                tree.paths[closed].end = place;
            }
            let own = match open.last() {
                Some((above, same)) if above == path => *same,
                above => {
                    let parent = above.map(|(_, parent)| *parent);
                    tree.paths.push(PathNode { parent, end: place + 1 });
                    open.push((path, place));
                    place
                }
            };
            tree.path_of[*file] = Some(own);
        }
        for (_, place) in open {
            tree.paths[place].end = tree.paths.len();
        }
        tree
    }

    /// A path, those above it, and those below it. There are at most as many above as the path has bytes.
    fn related(&self, path: usize) -> impl Iterator<Item = usize> {
        let parent = |path: &usize| self.paths[*path].parent;
        std::iter::successors(parent(&path), parent).chain(path..self.paths[path].end)
    }
}
