//! What the user wants to see in `podmux top`: the filter, the order, the selected pod and the open one. Pure.

use std::cmp::Ordering;

use super::model::{Key, Model, Pod, Update};

/// The longest filter, in characters.
const MAX_FILTER: usize = 253;

/// A column of the pods, by which they can be ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// The namespace, then the name.
    #[default]
    Name,
    /// How many containers are ready.
    Ready,
    /// The status.
    Status,
    /// The number of restarts.
    Restarts,
    /// The age; the youngest first.
    Age,
    /// The source.
    Source,
}

/// The columns in their order on the screen.
const COLUMNS: [Column; 6] =
    [Column::Name, Column::Ready, Column::Status, Column::Restarts, Column::Age, Column::Source];

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Moves the selection, or scrolls the open pod, by so many lines.
    Move(isize),
    /// Opens the selected pod.
    Open,
    /// Goes back: closes the pod, removes the filter, or ends the program.
    Back,
    /// Begins to enter a filter.
    Filter,
    /// Adds a character to the filter.
    Type(char),
    /// Removes the last character of the filter.
    Erase,
    /// Ends the entry of the filter.
    Enter,
    /// Orders by the next column, or by the one before.
    Sort(bool),
    /// Reverses the order.
    Reverse,
    /// Ends the program.
    Quit,
}

/// What the user wants to see.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Only pods and updates with this text are shown.
    pub filter: String,
    /// Whether the filter is being entered.
    pub is_typing: bool,
    /// The column that orders the pods.
    pub sort: Column,
    /// Whether the order is reversed.
    pub is_reversed: bool,
    /// The open pod.
    pub open: Option<Key>,
    /// How far the open pod is scrolled, in lines.
    pub scroll: usize,
    /// Whether colours are used.
    pub has_colours: bool,
    selected: Option<Key>,
    /// Where the selected pod was last, for when it is gone.
    place: usize,
}

impl View {
    /// The view at the beginning, with colours or without.
    pub fn new(has_colours: bool) -> Self {
        Self { has_colours, ..Self::default() }
    }

    /// Does what a key means. Returns whether the program goes on.
    #[must_use]
    pub fn act(&mut self, action: Action, model: &Model) -> bool {
        match action {
            Action::Back if self.open.is_some() => self.open = None,
            Action::Back if !self.filter.is_empty() || self.is_typing => {
                self.filter.clear();
                self.is_typing = false;
            }
            Action::Back | Action::Quit => return false,
            Action::Move(lines) if self.open.is_some() => {
                self.scroll = self.scroll.saturating_add_signed(lines);
            }
            Action::Move(lines) => {
                let pods = self.pods(model);
                let place = self.selected(&pods).saturating_add_signed(lines);
                self.place = place.min(pods.len().saturating_sub(1));
                self.selected = pods.get(self.place).map(|pod| pod.key.clone());
            }
            Action::Open => {
                let pods = self.pods(model);
                let place = self.selected(&pods);
                self.open = pods.get(place).map(|pod| pod.key.clone());
                (self.scroll, self.place) = (0, place);
                self.selected.clone_from(&self.open);
            }
            Action::Filter => self.is_typing = true,
            Action::Type(character) if self.filter.chars().count() < MAX_FILTER => {
                self.filter.push(character);
            }
            Action::Type(_) => {}
            Action::Erase => drop(self.filter.pop()),
            Action::Enter => self.is_typing = false,
            Action::Sort(is_next) => {
                let place = COLUMNS.iter().position(|column| *column == self.sort).unwrap_or_default();
                let step = if is_next { 1 } else { COLUMNS.len() - 1 };
                self.sort = COLUMNS[(place + step) % COLUMNS.len()];
            }
            Action::Reverse => self.is_reversed = !self.is_reversed,
        }
        true
    }

    /// The pods that are shown, in order.
    pub fn pods<'a>(&self, model: &'a Model) -> Vec<&'a Pod> {
        let mut pods: Vec<&Pod> = model.pods.values().filter(|pod| self.has_pod(pod)).collect();
        let order = |one: &&Pod, other: &&Pod| match self.sort {
            Column::Name => Ordering::Equal,
            Column::Ready => one.ready.cmp(&other.ready),
            Column::Status => one.status.cmp(&other.status),
            Column::Restarts => one.restarts.cmp(&other.restarts),
            Column::Age => other.created.cmp(&one.created),
            Column::Source => one.source.cmp(&other.source),
        };
        // The map has them by name, and the sort is stable.
        pods.sort_by(order);
        if self.is_reversed {
            pods.reverse();
        }
        pods
    }

    /// The updates that are shown, the newest first.
    pub fn updates<'a>(&self, model: &'a Model) -> impl Iterator<Item = &'a Update> {
        let has = |update: &&Update| {
            [&update.pods, &update.op, &update.source].into_iter().any(|text| self.has_text(text))
        };
        model.updates.iter().filter(has)
    }

    /// The place of the selected pod among those that are shown.
    pub fn selected(&self, pods: &[&Pod]) -> usize {
        let found = self.selected.as_ref().and_then(|key| pods.iter().position(|pod| pod.key == *key));
        found.unwrap_or(self.place).min(pods.len().saturating_sub(1))
    }

    /// Remembers the selected pod and its place among those that are shown.
    pub fn settle(&mut self, pods: &[&Pod]) {
        self.place = self.selected(pods);
        self.selected = pods.get(self.place).map(|pod| pod.key.clone());
    }

    fn has_pod(&self, pod: &Pod) -> bool {
        let (namespace, name) = &pod.key;
        self.filter.is_empty()
            || self.has_text(&format!("{namespace}/{name}"))
            || self.has_text(&pod.status)
            || self.has_text(&pod.source)
    }

    /// Whether a text has the filter in it, in upper or lower case.
    fn has_text(&self, text: &str) -> bool {
        self.filter.is_empty() || text.to_lowercase().contains(&self.filter.to_lowercase())
    }
}
