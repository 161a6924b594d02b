//! Stacks of the same program by two backends, held against each other frame by frame.

use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A frame: module, offset, guessed.
pub type Frame = (String, String, bool);

/// Each thread's calls in the order in which the threads appear, with their stacks.
pub type Calls = BTreeMap<usize, Vec<(String, Vec<Frame>)>>;

/// From `vmaudit events -f json`, as far as `requested`. Frames inlined into others have no place of their
/// own; those of an interpreter only the BPF backend has.
pub fn calls_of(events: &str, expected: impl Fn(&Value) -> bool) -> Calls {
    let (mut order, mut threads) = (HashMap::new(), Calls::new());
    for line in events.lines() {
        let event: Value = serde_json::from_str(line).expect("JSON");
        let Some(frames) = event["stack"]["frames"].as_array().filter(|_| expected(&event)) else { continue };
        let is_own = |frame: &&Value| frame["inlined"] == false && frame["managed"] != true;
        let own = frames.iter().filter(is_own).map(|frame| {
            let text = |key: &str| frame[key].as_str().unwrap_or_default().to_owned();
            (text("module"), text("offset"), frame["guess"] == true)
        });
        let next = order.len();
        let thread = *order.entry(event["tid"].to_string()).or_insert(next);
        let call = without_addresses(event["call"].as_str().unwrap_or_default());
        threads.entry(thread).or_default().push((call, own.collect()));
    }
    threads
}

/// Where things lie differs from run to run.
fn without_addresses(call: &str) -> String {
    let mut words = call.split("0x");
    let mut text = words.next().unwrap_or_default().to_owned();
    for word in words {
        let digits = word.bytes().take_while(u8::is_ascii_hexdigit).count();
        text += if digits > 6 { &word[digits..] } else { word };
    }
    text
}

/// How many stacks are the same, or the same as far as they are sure; and those that are neither.
#[derive(Default)]
pub struct Comparison {
    pub equal: usize,
    pub marked: usize,
    pub wrong: Vec<String>,
}

impl Comparison {
    /// `theirs` is the measure.
    pub fn add(&mut self, theirs: &Calls, ours: &Calls) {
        let roots: HashSet<_> = theirs.values().flatten().map(|(_, stack)| root(stack)).collect();
        for (thread, own) in ours {
            for (index, (call, stack)) in own.iter().enumerate() {
                // Only what is the same call. Which of several threads is first differs from run to
                // run: there, any of the others' stacks of the same call will do.
                let candidates: Vec<&Vec<Frame>> = if *thread == 0 {
                    let same = theirs.get(thread).map_or(&[][..], Vec::as_slice);
                    let at = same.get(index).filter(|(other, _)| other == call);
                    // What an allocator does may depend on where things lie: then the runs are out of step.
                    let all = || same.iter().filter(|(other, _)| other == call).collect();
                    at.map_or_else(all, |at| vec![at]).into_iter().map(|(_, stack)| stack).collect()
                } else {
                    // Racing threads get each other's addresses: only one that began in the same
                    // place is the same call, where ours began in a place that there is.
                    let known = roots.contains(&root(stack));
                    let all = theirs.values().flatten().filter(|(other, _)| other == call);
                    all.map(|(_, other)| other).filter(|other| !known || root(other) == root(stack)).collect()
                };
                // How much of a mapping lies before an arena's alignment and how much behind it differs with the
                // address: the two munmaps of one run can have each other's sizes in the other.
                let elsewhere = || {
                    let mut all = theirs.values().flatten().filter(|(other, _)| name(other) == name(call));
                    *thread != 0 && all.any(|(_, other)| other == stack)
                };
                self.judge(call, stack, &candidates, elsewhere);
            }
        }
    }

    /// `elsewhere`: whether another call of the same name has this very stack.
    fn judge(
        &mut self,
        call: &str,
        ours: &[Frame],
        candidates: &[&Vec<Frame>],
        elsewhere: impl FnOnce() -> bool,
    ) {
        let common = |theirs: &&&Vec<Frame>| {
            let same = |(a, b): &(&Frame, &Frame)| (&a.0, &a.1) == (&b.0, &b.1);
            theirs.iter().zip(ours).take_while(same).count()
        };
        let Some(theirs) = candidates.iter().max_by_key(common) else { return };
        let guessed = ours.iter().any(|frame| frame.2);
        match ours.get(common(&theirs)) {
            None if ours.len() == theirs.len() && !guessed => self.equal += 1,
            None => self.marked += 1,
            Some(frame) if frame.2 => self.marked += 1,
            Some(_) if elsewhere() => self.equal += 1,
            Some(_) => self.wrong.push(format!("{call}\n  theirs {theirs:?}\n  ours   {ours:?}")),
        }
    }
}

/// The system call's.
fn name(call: &str) -> &str {
    call.split('(').next().unwrap_or(call)
}

/// Where a thread begins: below its start_thread and clone3.
fn root(stack: &[Frame]) -> Option<(String, String)> {
    let at = stack.len().checked_sub(3)?;
    stack.get(at).map(|frame| (frame.0.clone(), frame.1.clone()))
}
