//! The table of Go types is the one that its generator prints.
//!
//! `UPDATE_EXPECT=1 cargo test --test it go_types::` writes the table again.

use expect_test::expect_file;

use crate::support::kubernetes;

/// The generated file.
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/manifest/go_types/table.rs");

#[test]
fn the_table_is_up_to_date() {
    let Some(table) = kubernetes::go_types() else { return };
    expect_file![TABLE].assert_eq(&table);
}
