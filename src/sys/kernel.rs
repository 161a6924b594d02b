//! Which kernel this is.

use std::sync::OnceLock;

/// "7.2.13+deb14-cloud-amd64" is (7, 2); (0, 0) for what is no version.
pub fn version() -> (u32, u32) {
    static VERSION: OnceLock<(u32, u32)> = OnceLock::new();
    *VERSION.get_or_init(|| {
        nix::sys::utsname::uname().map_or((0, 0), |uts| parse_version(&uts.release().to_string_lossy()))
    })
}

fn parse_version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_kernels() {
        assert_eq!(parse_version("7.2.13+deb14-cloud-amd64"), (7, 2));
        assert_eq!(parse_version("6.1.0-50-cloud-amd64"), (6, 1));
        assert_eq!(parse_version("6.18.44-fc-v595"), (6, 18));
        assert_eq!(parse_version("10.0"), (10, 0));
        assert_eq!(parse_version("unknown"), (0, 0));
    }
}
