//! Files of TOML that users write: what is wrong with one, and in which line. Compiled into build.rs, too.

use serde::de::DeserializeOwned;
use std::ops::Range;

/// What is wrong with a file, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct FileError {
    /// [`Source::file`].
    pub file: String,
    /// From 1.
    pub line: usize,
    /// What, and what is allowed.
    pub what: String,
}

#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub text: &'a str,
    /// What errors call it.
    pub file: &'a str,
}

impl Source<'_> {
    /// # Errors
    /// Where the text is not TOML, or not such a file.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, FileError> {
        toml::from_str(self.text).map_err(|error| {
            let what = error.message().replace('\n', " ");
            self.error(error.span(), &what)
        })
    }

    pub fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|&b| b == b'\n').count() + 1
    }

    pub fn error(&self, span: Option<Range<usize>>, what: &str) -> FileError {
        let line = self.line(span.map_or(0, |span| span.start));
        FileError { file: self.file.to_owned(), line, what: what.to_owned() }
    }
}
