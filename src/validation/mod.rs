//! The API's pod validation, pure.
