//! An explanation as a short tree.

use jiff::Timestamp;

use super::style::{BAD, BUSY, COMMAND, GOOD};
use super::{Painted, Style, Text, ago};
use crate::explain::{Advice, Chain, Diagnosis, Explanation, Step, StepState, Verdict};

/// The answer in one line.
fn headline(explanation: &Explanation, style: Style) -> Painted {
    let worst = explanation.chains.iter().max_by_key(|chain| chain.diagnosis.verdict);
    let subject = explanation.subject.to_string();
    let Some(chain) = worst else {
        let is_own = |step: &&Step| step.object == explanation.subject;
        let own = explanation.steps.iter().filter(is_own);
        let said: Vec<&str> = own.map(|step| step.text.as_str()).collect();
        let text = format!("{subject}: {}", said.join("; "));
        let is_done = explanation.steps.iter().all(|step| step.state == StepState::Done);
        return style.paint(if is_done { GOOD } else { BUSY }, &text);
    };
    let (count, summary) = (explanation.chains.len(), &chain.diagnosis.summary);
    let text = match explanation.verdict {
        Verdict::Healthy if count > 1 => format!("{subject}: {count} volumes, nothing is wrong"),
        Verdict::Healthy => format!("{subject}: {summary}"),
        _ => format!("{subject}: {}: {summary}", chain.diagnosis.case.as_str()),
    };
    let colour = match explanation.verdict {
        Verdict::Healthy => GOOD,
        Verdict::InProgress | Verdict::Unknown => BUSY,
        Verdict::Blocked => BAD,
    };
    style.paint(colour, &text)
}

/// The whole answer. When nothing is wrong with a volume it is one line, unless all steps are asked for.
pub fn tree(explanation: &Explanation, now: Timestamp, style: Style, verbose: bool) -> Text {
    let mut text = Text::default();
    text.painted("", &headline(explanation, style), "");
    let quiet = explanation.verdict == Verdict::Healthy && !verbose && !explanation.chains.is_empty();
    if !quiet {
        for step in &explanation.steps {
            put_step(&mut text, "", step, style);
        }
        let worth = |chain: &&Chain| verbose || chain.diagnosis.verdict != Verdict::Healthy;
        let shown: Vec<&Chain> = explanation.chains.iter().filter(worth).collect();
        for (at, chain) in shown.iter().enumerate() {
            self::chain(&mut text, chain, at + 1 == shown.len(), now, style);
        }
    }
    for gap in &explanation.gaps {
        text.painted("", &style.paint(BUSY, &format!("not seen: {gap}")), "");
    }
    if quiet {
        let advice = explanation.chains.iter().flat_map(|chain| &chain.diagnosis.advice);
        for advice in advice {
            put_advice(&mut text, ("  ", "    "), advice, style);
        }
    }
    text
}

fn chain(text: &mut Text, chain: &Chain, last: bool, now: Timestamp, style: Style) {
    let (branch, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
    let volume = chain.volume.as_deref().unwrap_or("not known");
    let node = chain.node.as_ref().map(|node| format!(" at node {node}"));
    text.line(&format!("{branch}volume {volume}{}", node.unwrap_or_default()));
    let diagnosis = &chain.diagnosis;
    let last_of = |state| chain.steps.iter().rposition(|step| step.state == state);
    let blocks = last_of(StepState::Blocked).or_else(|| last_of(StepState::Waiting));
    let at = blocks.unwrap_or_else(|| chain.steps.len().saturating_sub(1));
    for (number, step) in chain.steps.iter().enumerate() {
        let end = number + 1 == chain.steps.len();
        let (branch, deeper) = if end { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        put_step(text, &format!("{below}{branch}"), step, style);
        if number == at {
            let (indent, is_told) = (format!("{below}{deeper}       "), step.text == diagnosis.summary);
            details(text, &indent, is_told, diagnosis, now, style);
        }
    }
    if let Some(id) = &chain.trace_id {
        text.line(&format!("{below}trace: {id}"));
    }
    if chain.steps.is_empty() {
        details(text, &format!("{below}   "), false, diagnosis, now, style);
    }
}

fn put_step(text: &mut Text, before: &str, step: &Step, style: Style) {
    text.painted(
        before,
        &style.mark(step.state),
        &format!(" {}: {}", step.object, step.text),
    );
}

fn details(text: &mut Text, indent: &str, summarised: bool, diagnosis: &Diagnosis, now: Timestamp, style: Style) {
    if !summarised {
        text.line(&format!("{indent}{}", diagnosis.summary));
    }
    if let Some(since) = diagnosis.since {
        text.line(&format!("{indent}since {since}, for {}", ago(since, now)));
    }
    if let Some(error) = &diagnosis.last_error {
        let at = error.at.map(|at| format!(" ({} ago)", ago(at, now)));
        let at = at.unwrap_or_default();
        text.line(&format!("{indent}last error{at}: {}", error.message));
        text.line(&format!("{indent}{}", attempt(diagnosis, now)));
    }
    if let Some(holder) = &diagnosis.holder {
        let pods = if holder.pods.is_empty() {
            "no pod".to_owned()
        } else {
            format!("pod {}", holder.pods.join(", "))
        };
        let (node, attachment) = (&holder.node, &holder.attachment);
        text.line(&format!(
            "{indent}held by: node {node}, {pods}, VolumeAttachment {attachment}"
        ));
    }
    if let Some(next) = &diagnosis.next {
        text.line(&format!("{indent}next: {next}"));
    }
    for advice in &diagnosis.advice {
        let indents = (&*format!("{indent}fix: "), &*format!("{indent}     "));
        put_advice(text, indents, advice, style);
    }
}

/// What a person can do, and the command on a line of its own.
fn put_advice(text: &mut Text, (before, below): (&str, &str), advice: &Advice, style: Style) {
    text.line(&format!("{before}{}", advice.text));
    if let Some(command) = &advice.command {
        text.painted(below, &style.paint(COMMAND, command), "");
    }
}

fn attempt(diagnosis: &Diagnosis, now: Timestamp) -> String {
    let Some(attempt) = &diagnosis.last_attempt else {
        return "attempt: unknown, next attempt: unknown (no Event tells of it)".to_owned();
    };
    let next = if attempt.next > now {
        format!("in {}", ago(now, attempt.next))
    } else {
        format!("was due {} ago", ago(attempt.next, now))
    };
    // An Event that is repeated is written at most every 30 seconds.
    format!(
        "attempt: {} ({} ago), next attempt {next}",
        attempt.number,
        ago(attempt.at, now)
    )
}
