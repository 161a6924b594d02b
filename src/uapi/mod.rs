//! Ioctls of the kernel's that more than one adapter needs: structures as in include/uapi/linux, and
//! a safe function for each. What an answer means is for the callers to know. Beside them, what more than one
//! adapter has to know before it asks: lockdown.

pub mod lockdown;
pub mod pagemap_scan;
pub mod procmap_query;
