//! tokio's `watch` channel on shuttle's, which lacks `mark_changed` and `Ref::has_changed`.

use std::ops::Deref;

use tokio::sync::watch as inner;
pub use tokio::sync::watch::error;

/// Makes a channel. Each value has a number; that of the first is 1.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = inner::channel((1, value));
    (Sender(sender), Receiver { inner: receiver, seen: 1 })
}

/// Sends values.
#[derive(Debug)]
pub struct Sender<T>(inner::Sender<(u64, T)>);

impl<T> Sender<T> {
    pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        self.0.send_if_modified(|(number, value)| {
            let is_modified = modify(value);
            *number += u64::from(is_modified);
            is_modified
        })
    }

    pub fn send_replace(&self, mut value: T) -> T {
        self.send_if_modified(|old| {
            std::mem::swap(old, &mut value);
            true
        });
        value
    }

    pub fn borrow(&self) -> Ref<'_, T> {
        Ref { inner: self.0.borrow(), has_changed: false }
    }
}

/// Receives the last value.
#[derive(Debug)]
pub struct Receiver<T> {
    inner: inner::Receiver<(u64, T)>,
    /// The number of the last value that was seen; 0 if the next one counts as changed in any case.
    seen: u64,
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), seen: self.seen }
    }
}

impl<T> Receiver<T> {
    pub fn borrow(&self) -> Ref<'_, T> {
        let inner = self.inner.borrow();
        Ref { has_changed: inner.0 != self.seen, inner }
    }

    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let inner = self.inner.borrow_and_update();
        let has_changed = inner.0 != std::mem::replace(&mut self.seen, inner.0);
        Ref { inner, has_changed }
    }

    pub fn mark_changed(&mut self) {
        self.seen = 0;
    }

    pub async fn changed(&mut self) -> Result<(), error::RecvError> {
        while !self.borrow_and_update().has_changed() {
            self.inner.changed().await?;
        }
        Ok(())
    }

    pub async fn wait_for(
        &mut self,
        mut is_such: impl FnMut(&T) -> bool,
    ) -> Result<Ref<'_, T>, error::RecvError> {
        let inner = self.inner.wait_for(|(_, value)| is_such(value)).await?;
        let has_changed = inner.0 != std::mem::replace(&mut self.seen, inner.0);
        Ok(Ref { inner, has_changed })
    }
}

/// A borrowed value.
#[derive(Debug)]
pub struct Ref<'a, T> {
    inner: inner::Ref<'a, (u64, T)>,
    has_changed: bool,
}

impl<T> Ref<'_, T> {
    pub fn has_changed(&self) -> bool {
        self.has_changed
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner.1
    }
}
