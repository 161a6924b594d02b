//! How a process ended, and which exit code vmaudit makes of it.

/// The end of the started program, from waitid(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// It exited with this status, 0 to 255.
    Code(i32),
    /// A signal killed it; `core` when a core file was dumped.
    Signal { signal: i32, core: bool },
}

impl ExitStatus {
    /// vmaudit's own exit code: the same status, or 128 + n after death by signal n, as shells
    /// and env(1) under a shell show it.
    pub fn exit_code(self) -> u8 {
        match self {
            ExitStatus::Code(code) => code as u8,
            ExitStatus::Signal { signal, .. } => 128u8.saturating_add(signal.clamp(0, 127) as u8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_pass_and_signals_add_128() {
        assert_eq!(ExitStatus::Code(0).exit_code(), 0);
        assert_eq!(ExitStatus::Code(255).exit_code(), 255);
        assert_eq!(ExitStatus::Signal { signal: 9, core: false }.exit_code(), 137);
        assert_eq!(ExitStatus::Signal { signal: 64, core: true }.exit_code(), 192);
    }
}
