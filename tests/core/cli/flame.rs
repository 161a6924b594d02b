//! `cli::flame`.

use vmaudit::cli::DiffFormat;
use vmaudit::cli::FlameArgs;
use vmaudit::cli::Format;
use vmaudit::render::Width;

#[test]
fn switches_that_mean_nothing_are_refused() {
    let none = FlameArgs::default();
    let width = FlameArgs { width: Some(Width::Virt), ..none };
    let reverse = FlameArgs { reverse: true, ..none };
    let inverted = FlameArgs { inverted: true, ..none };
    let accepted = |args: FlameArgs| {
        [Format::Text, Format::Json, Format::Folded, Format::Svg, Format::Pprof]
            .map(|format| args.check(format).is_ok())
    };
    assert_eq!(accepted(none), [true; 5]);
    assert_eq!(accepted(width), [false, false, true, true, true]);
    assert_eq!(accepted(reverse), [false, false, true, true, false]);
    assert_eq!(accepted(inverted), [false, false, false, true, false]);
    assert_eq!(
        inverted.check_diff(DiffFormat::Folded),
        Err("--inverted means nothing with -f folded: it is for -f svg".to_owned())
    );
}
