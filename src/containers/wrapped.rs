//! Command lines within others: `sudo docker exec …`, `env A=1 docker …`, `sh -c "docker exec …"`. Pure.

/// Programs that execute the rest of their command line, and their options that take a word more.
const WRAPPERS: [(&str, &[&str]); 9] = [
    ("sudo", &["-u", "-g", "-h", "-p", "-C", "-T", "-R", "-D", "-r", "-t", "-U"]),
    ("doas", &["-u", "-C"]),
    ("env", &["-u", "-C", "--unset", "--chdir"]),
    ("nice", &["-n"]),
    ("ionice", &["-c", "-n"]),
    ("nohup", &[]),
    ("setsid", &[]),
    ("time", &["-f", "-o"]),
    ("timeout", &["-k", "-s"]),
];

const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ash", "zsh"];

/// So many may be within one another.
const MOST: usize = 8;

/// The command lines that a command line comes to, the outermost first: one each, but for a shell's script,
/// which is taken apart at its separators and not understood any further.
pub fn unwrapped(words: &[String]) -> Vec<Vec<String>> {
    let mut all = vec![words.to_vec()];
    let mut at = 0;
    while let Some(line) = all.get(at).filter(|_| at < MOST).cloned() {
        at += 1;
        all.extend(within(&line));
    }
    all
}

fn within(words: &[String]) -> Vec<Vec<String>> {
    let Some(name) = words.first().and_then(|word| word.rsplit('/').next()) else { return Vec::new() };
    if SHELLS.contains(&name) {
        let script = words.iter().skip(1).skip_while(|word| !is_command_switch(word)).nth(1);
        return script.map(|script| commands_of(script)).unwrap_or_default();
    }
    let Some((_, with_value)) = WRAPPERS.iter().find(|(wrapper, _)| *wrapper == name) else {
        return Vec::new();
    };
    let mut rest = words.iter().skip(1).peekable();
    while let Some(word) = rest.next_if(|word| word.starts_with('-') || word.contains('=')) {
        if with_value.contains(&word.as_str()) {
            rest.next();
        }
        if word == "--" {
            break;
        }
    }
    if name == "timeout" {
        // How long.
        rest.next();
    }
    let rest: Vec<String> = rest.cloned().collect();
    if rest.is_empty() { Vec::new() } else { vec![rest] }
}

/// `-c`, `-ec` …
fn is_command_switch(word: &str) -> bool {
    word.starts_with('-') && !word.starts_with("--") && word.ends_with('c')
}

fn commands_of(script: &str) -> Vec<Vec<String>> {
    let each = |command: &str| {
        let words = command.split_whitespace().map(|word| word.trim_matches(['"', '\'']).to_owned());
        // Assignments before a command, and exec, which only replaces the shell.
        let words = words.skip_while(|word| word == "exec" || word.contains('=') && !word.starts_with('-'));
        words.collect::<Vec<String>>()
    };
    let commands = script.split([';', '&', '|', '\n', '(', ')', '{', '}']);
    commands.map(each).filter(|words| !words.is_empty()).collect()
}
