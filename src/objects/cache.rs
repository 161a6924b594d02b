//! The files opened so far, by device and inode.

use super::bytes::ObjectError;
use super::object::Object;
use super::open::{OpenRequest, Opener, SystemOpener};
use crate::model::{AddrRange, FileRef, ModuleInfo};
use crate::sys::file::may_be_kept;
use crate::sys::untrusted_open::Root;
use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Descriptors kept open at most; further files are closed once their unwind tables are read.
const MAX_HELD: usize = 700;

/// How often an unreadable file is tried again, through another process that has it mapped.
const MAX_TRIES: u8 = 3;

/// Device and inode. While a file is held open its inode number is not given to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileKey {
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
}

impl From<&Metadata> for FileKey {
    fn from(found: &Metadata) -> FileKey {
        let device = found.dev();
        FileKey { major: libc::major(device), minor: libc::minor(device), inode: found.ino() }
    }
}

impl From<&FileRef> for FileKey {
    fn from(file: &FileRef) -> FileKey {
        FileKey { major: file.major, minor: file.minor, inode: file.inode }
    }
}

impl From<&ModuleInfo> for FileKey {
    fn from(info: &ModuleInfo) -> FileKey {
        FileKey { major: info.major, minor: info.minor, inode: info.inode }
    }
}

enum Slot {
    Open(Arc<Object>),
    Failed { tries: u8, why: Arc<ObjectError> },
}

/// Opens each file once and keeps it.
pub struct FileCache {
    opener: Box<dyn Opener>,
    slots: HashMap<FileKey, Slot>,
    held: usize,
    most_held: usize,
    /// Files for which no descriptor was left.
    refused: HashMap<FileKey, String>,
}

impl Default for FileCache {
    fn default() -> FileCache {
        FileCache::new(Box::new(SystemOpener::default()))
    }
}

impl FileCache {
    pub fn new(opener: Box<dyn Opener>) -> FileCache {
        FileCache { opener, slots: HashMap::new(), held: 0, most_held: MAX_HELD, refused: HashMap::new() }
    }

    /// One more root in which files are searched for.
    pub fn add_root(&mut self, root: Root) {
        self.opener.add_root(root);
    }

    /// The file behind a mapping, opened now if it was not yet.
    ///
    /// # Errors
    /// Why no path led to it; remembered, so that a hopeless file is not searched each time.
    pub fn open(&mut self, request: &OpenRequest<'_>) -> Result<Arc<Object>, Arc<ObjectError>> {
        let key = FileKey::from(request.file);
        let tries = match self.slots.get(&key) {
            Some(Slot::Open(object)) => return Ok(Arc::clone(object)),
            Some(Slot::Failed { tries, why }) if *tries >= MAX_TRIES => return Err(Arc::clone(why)),
            Some(Slot::Failed { tries, .. }) => *tries,
            None => 0,
        };
        match self.open_with_room(request) {
            Ok(object) => {
                if let Some(fd) = object.raw_fd() {
                    if self.held < self.most_held && may_be_kept(fd) {
                        self.held += 1;
                    } else {
                        object.close_after_tables();
                    }
                }
                let object = Arc::new(object);
                self.slots.insert(key, Slot::Open(Arc::clone(&object)));
                Ok(object)
            }
            Err(error) => {
                // Not being an ELF file does not change; being out of reach may.
                let tries = if matches!(error, ObjectError::NotElf) { MAX_TRIES } else { tries + 1 };
                let why = Arc::new(error);
                self.slots.insert(key, Slot::Failed { tries, why: Arc::clone(&why) });
                Err(why)
            }
        }
    }

    /// Where no descriptor is left, those of the files that are held are given up, after their tables were read, and fewer
    /// are held from then on: unwinding needs each file's tables, and the file itself only for what they do not cover.
    fn open_with_room(&mut self, request: &OpenRequest<'_>) -> Result<Object, ObjectError> {
        let opened = self.open_or_make_room(request);
        if opened.as_ref().is_err_and(ObjectError::is_for_want_of_descriptors) {
            let path = String::from_utf8_lossy(&request.file.path);
            self.refused
                .insert(FileKey::from(request.file), path.rsplit('/').next().unwrap_or_default().to_owned());
        }
        opened
    }

    fn open_or_make_room(&mut self, request: &OpenRequest<'_>) -> Result<Object, ObjectError> {
        let opened = self.opener.open(request);
        if self.held == 0 || !opened.as_ref().is_err_and(ObjectError::is_for_want_of_descriptors) {
            return opened;
        }
        for slot in self.slots.values() {
            if let Slot::Open(object) = slot
                && object.raw_fd().is_some()
            {
                object.close_after_tables();
            }
        }
        (self.most_held, self.held) = (self.held / 2, 0);
        self.opener.open(request)
    }

    /// What is not known because no descriptor was left; None where there were enough.
    pub fn note(&self) -> Option<String> {
        /// More names say no more.
        const MOST: usize = 4;
        let mut names: Vec<&str> = self.refused.values().map(String::as_str).collect();
        names.sort_unstable();
        let more = if names.len() > MOST { ", …" } else { "" };
        let some = names.get(..MOST).unwrap_or(&names).join(", ");
        (!names.is_empty()).then(|| {
            format!(
                "{} of the files could not be opened ({some}{more}): the limit on open files is reached (RLIMIT_NOFILE, ulimit -n \
                 4096): stacks that lead through them end early, and their functions have no names",
                names.len()
            )
        })
    }

    /// The file of a module: the one that was held, or its path if that still leads to a file
    /// with the same build id (or, without build id, the same device and inode). So names can be
    /// given to a recording made earlier, and a replaced binary never lends wrong ones.
    ///
    /// # Errors
    /// As [`FileCache::open`].
    pub fn for_module(&mut self, info: &ModuleInfo) -> Result<Arc<Object>, Arc<ObjectError>> {
        let key = FileKey::from(info);
        if let Some(Slot::Open(object)) = self.slots.get(&key)
            && (object.build_id().is_none() || object.build_id() == info.build_id.as_deref())
            && (object.is_open() || info.path == super::VDSO_PATH)
        {
            return Ok(Arc::clone(object));
        }
        let file = FileRef {
            major: info.major,
            minor: info.minor,
            inode: info.inode,
            path: info.path.clone(),
            deleted: false,
        };
        let request = OpenRequest {
            file: &file,
            range: AddrRange::default(),
            pid: None,
            build_id: info.build_id.as_deref(),
        };
        let object = Arc::new(self.open_with_room(&request).map_err(Arc::new)?);
        self.slots.insert(key, Slot::Open(Arc::clone(&object)));
        Ok(object)
    }
}
