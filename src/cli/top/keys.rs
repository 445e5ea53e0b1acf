//! What each key does in `podmux top`.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::view::Action;

/// The lines of a page.
const PAGE: isize = 10;

/// The action of a key, if it has one.
pub fn action(key: KeyEvent, is_typing: bool) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if is_control => Action::Quit,
        KeyCode::Char('h') if is_control && is_typing => Action::Erase,
        KeyCode::Char(_) if is_control => return None,
        KeyCode::Esc => Action::Back,
        KeyCode::Enter if is_typing => Action::Enter,
        KeyCode::Backspace if is_typing => Action::Erase,
        KeyCode::PageUp => Action::Move(-PAGE),
        KeyCode::PageDown => Action::Move(PAGE),
        KeyCode::Char(character) if is_typing => Action::Type(character),
        KeyCode::Up | KeyCode::Char('k') => Action::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Action::Move(1),
        KeyCode::Enter => Action::Open,
        KeyCode::Home | KeyCode::Char('g') => Action::Move(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => Action::Move(isize::MAX),
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Char('/') => Action::Filter,
        KeyCode::Char('s' | '>') | KeyCode::Right => Action::Sort(true),
        KeyCode::Char('S' | '<') | KeyCode::Left => Action::Sort(false),
        KeyCode::Char('r') => Action::Reverse,
        _ => return None,
    })
}
