//! `attribution::rules`.

use vmaudit::attribution::category::UNKNOWN;
use vmaudit::attribution::category::{Category, CategoryInfo};
use vmaudit::attribution::rules::RULES;
use vmaudit::attribution::rules::category_color;
use vmaudit::attribution::rules::category_name;

/// In linear light.
fn channels(color: u32) -> [f64; 3] {
    let linear = |byte: u8| match f64::from(byte) / 255.0 {
        c if c <= 0.04045 => c / 12.92,
        c => ((c + 0.055) / 1.055).powf(2.4),
    };
    let [_, r, g, b] = color.to_be_bytes();
    [r, g, b].map(linear)
}

fn weighed([r, g, b]: [f64; 3], by: [f64; 3]) -> f64 {
    r * by[0] + g * by[1] + b * by[2]
}

fn luminance(color: u32) -> f64 {
    weighed(channels(color), [0.2126, 0.7152, 0.0722])
}

/// CIELAB, D65.
fn lab(color: u32) -> [f64; 3] {
    let f = |t: f64| if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
    let x = f(weighed(channels(color), [0.4124, 0.3576, 0.1805]) / 0.9505);
    let y = f(luminance(color));
    let z = f(weighed(channels(color), [0.0193, 0.1192, 0.9505]) / 1.089);
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

#[test]
fn categories_are_distinguished_by_their_colours() {
    let all: Vec<&Category> = RULES.iter().flat_map(|rule| rule.categories()).chain([&UNKNOWN]).collect();
    for (at, category) in all.iter().enumerate() {
        let CategoryInfo { id, color, .. } = *category.0;
        assert_eq!(category_color(id), color);
        for ground in [0xffffff, 0x181c24].map(luminance) {
            let [dark, light] = [luminance(color).min(ground), luminance(color).max(ground)];
            assert!((light + 0.05) / (dark + 0.05) >= 3.0, "{id}: {color:#x}");
        }
        for other in &all[..at] {
            let apart = lab(color).into_iter().zip(lab(other.color)).map(|(a, b)| (a - b).powi(2));
            assert!(apart.sum::<f64>().sqrt() >= 10.0, "{id} and {} are hard to distinguish", other.id);
        }
    }
}

#[test]
fn every_category_has_one_id_and_one_name() {
    let all: Vec<&Category> = RULES.iter().flat_map(|rule| rule.categories()).collect();
    for category in &all {
        assert_eq!(all.iter().filter(|other| other.id == category.id).count(), 1, "{}", category.id);
        assert_eq!(category_name(category.id), Some(category.name));
    }
    assert!(all.len() >= 20 && category_name("no-such").is_none());
}
