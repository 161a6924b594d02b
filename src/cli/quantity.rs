//! Sizes, spans of time and positive numbers as arguments: one spelling of each for all commands.

use parse_size::{Config, Error};
use std::time::Duration;

const YEAR: f64 = 31_536_000.0;

/// `4096`, `0x1000`, `64k`, `4KiB`, `1.5M`: bytes, by powers of 1024.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: write bytes, or a number with K, M, G or T");
    let text = text.trim();
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(digits, 16).map_err(|_| wrong());
    }
    Config::new().with_binary().parse_size(text).map_err(|error| match error {
        Error::PosOverflow => format!("{text:?} is more than an address space"),
        _ => wrong(),
    })
}

/// A limit with which a program can start.
pub(super) fn stack(text: &str) -> Result<u64, String> {
    match size(text)? {
        0..65_536 => Err("no program starts with less than 64 KiB of stack".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A size of which samples can be taken.
pub(super) fn sampled(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 | 1 => Err("one sample a byte is every allocation: leave --sample out".to_owned()),
        mean if mean > 1 << 40 => Err("more than 1 TiB: hardly anything would be seen".to_owned()),
        mean => Ok(mean),
    }
}

/// `500ms`, `10s`, `2m`, `1h 30m`, `1.5s`; a bare number is seconds.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    let age = match text.trim().parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|e| e.to_string()),
    };
    match age.map_err(|why| format!("not an age: a number with ms, s, m or h, as 500ms, 10s, 2m ({why})"))? {
        age if age.is_zero() || age.as_secs_f64() > YEAR => {
            Err("an age has to be more than 0 and at most a year".to_owned())
        }
        age => Ok(age),
    }
}

/// A number of seconds greater than 0, at most a year.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= YEAR => Ok(value),
        Ok(_) => Err("has to be more than 0 and at most 31536000 seconds".to_owned()),
        Err(_) => Err("not a number of seconds".to_owned()),
    }
}

/// 0 or more seconds, at most a year.
pub(super) fn seconds_from_start(text: &str) -> Result<f64, String> {
    if text.parse::<f64>().is_ok_and(|value| value == 0.0) { Ok(0.0) } else { seconds(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(
            ["512", "4k", "12kb", "64M", "1MiB", "1.5M", "0", "2 GiB", "7B", "1T", "0x1b"].map(size),
            [512, 4096, 12 << 10, 64 << 20, 1 << 20, 3 << 19, 0, 2 << 30, 7, 1 << 40, 0x1b].map(Ok)
        );
        for wrong in ["", "M", "-1", "4q", "0x", "99999999999T", "inf", "18446744073709551616"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert!(sampled("1").is_err() && sampled("2T").is_err());
        assert_eq!(sampled("512k"), Ok(512 << 10));
        assert_eq!((stack("1M"), stack("1048576"), stack("63k").is_err()), (Ok(1 << 20), Ok(1 << 20), true));
    }

    #[test]
    fn ages_have_units() {
        let ms = |text| age(text).map(|age| age.as_millis());
        assert_eq!(
            ["500ms", "10s", "2m", "1h", "1.5s", "3", "0.25", "1h 30m", "1d"].map(ms),
            [500, 10_000, 120_000, 3_600_000, 1500, 3000, 250, 5_400_000, 86_400_000].map(Ok)
        );
        for bad in ["", "s", "-1s", "0s", "-1", "nan", "1 x", "1.2.3s", "99999999999h", "ms"] {
            assert!(age(bad).is_err(), "{bad}");
        }
    }
}
