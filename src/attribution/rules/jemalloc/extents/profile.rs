//! jemalloc's own heap profile: the program alone can have it written.

/// Names end so, whatever prefix it is built with.
const SETTING: &str = "MALLOC_CONF";
/// `opt.prof_prefix` (PROF_PREFIX_DEFAULT).
const PREFIX: &str = "jeprof";

/// Where the environment turns it on: what becomes of it.
pub fn requested(variables: &[String]) -> Option<String> {
    let settings = variables.iter().filter_map(|variable| variable.split_once('='));
    let settings = settings.filter(|(name, _)| name.ends_with(SETTING));
    let options = settings.flat_map(|(_, options)| options.split(','));
    let (mut is_on, mut prefix) = (false, PREFIX);
    for (name, value) in options.filter_map(|option| option.split_once(':')) {
        match name {
            "prof" => is_on = value == "true",
            "prof_prefix" => prefix = value,
            _ => {}
        }
    }
    is_on.then(|| {
        format!(
            "{SETTING} turns its own heap profile on (prof:true). It is not read: only code in the program can dump it \
             (mallctl \"prof.dump\", lg_prof_interval, prof_gdump, prof_final), to {prefix}.PID.N.*.heap, if it is \
             built with --enable-prof; jeprof reads these files"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::requested;

    #[test]
    fn the_last_setting_counts() {
        let of = |variables: &[&str]| {
            let variables: Vec<String> = variables.iter().map(|text| (*text).to_owned()).collect();
            requested(&variables)
        };
        assert!(of(&["MALLOC_CONF=prof:true"]).is_some_and(|text| text.contains("to jeprof.PID.")));
        let own = of(&["_RJEM_MALLOC_CONF=narenas:2,prof:true,prof_prefix:/tmp/app"]);
        assert!(own.is_some_and(|text| text.contains("to /tmp/app.PID.")));
        assert_eq!(of(&["MALLOC_CONF=prof:true,prof:false"]), None);
        assert_eq!(of(&["MALLOC_CONF=prof_final:true", "OTHER=prof:true"]), None);
        assert_eq!(of(&[]), None);
    }
}
