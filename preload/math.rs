//! The two functions of sampling, to some 1e-12: there is no library for them here.

/// Natural logarithm of a number in (0, 1].
pub fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(bits & 0x000f_ffff_ffff_ffff | 1023 << 52);
    if mantissa > core::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1))
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    let (mut sum, mut power, mut n) = (0.0, t, 1.0);
    while n < 24.0 {
        sum += power / n;
        power *= square;
        n += 2.0;
    }
    2.0 * sum + exponent as f64 * core::f64::consts::LN_2
}

/// 1 - e^-x of a number of at least 0.
pub fn one_less_exp(x: f64) -> f64 {
    if x > 40.0 {
        return 1.0;
    }
    // e^-x = (e^-(x / 2^k))^(2^k); of p = 1 - e^-y, 1 - e^-2y is p (2 - p).
    let (mut y, mut halvings) = (x, 0);
    while y > 0.25 {
        y *= 0.5;
        halvings += 1;
    }
    let (mut term, mut sum, mut n) = (y, y, 2.0);
    while n < 16.0 {
        term *= -y / n;
        sum += term;
        n += 1.0;
    }
    for _ in 0..halvings {
        sum *= 2.0 - sum;
    }
    sum
}
