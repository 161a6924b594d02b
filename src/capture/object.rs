//! The objects of bpf/, before they are loaded.

use super::{CaptureError, kernel_types, refusal};
use libbpf_rs::skel::SkelBuilder;
use std::mem::MaybeUninit;

/// Opens an object for the life of the process: libbpf's skeletons borrow from it.
pub(super) fn open<B: SkelBuilder<'static>>(mut builder: B) -> Result<B::Output, CaptureError> {
    refusal::listen();
    kernel_types::give(builder.object_builder_mut()).map_err(CaptureError::Load)?;
    builder.open(Box::leak(Box::new(MaybeUninit::uninit()))).map_err(CaptureError::Load)
}
