//! Tests of the checks of new runs and of runs that were already accepted.

use outrigger_agent::options::PodOptions;
use outrigger_lifecycle::FeatureGates;

use super::*;

fn record(container: &str, reading: RunReadOptions) -> RunRecord {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - {{name: a, image: i}}\n  \
         - {{name: b, {container}}}\n"
    );
    RunRecord::new(
        vec!["p.yaml".to_owned()],
        &[SourceFile::new("p.yaml", text)],
        reading,
        PodOptions::new(NetworkMode::None),
    )
}

fn machine() -> Machine {
    Machine { runtime: None, state_dir: None, on_failure: OnFailure::StopIfPermanent }
}

#[test]
fn an_image_that_is_gone_refuses_a_new_run_and_stops_no_accepted_one() {
    let record = record("image: \"rootfs:/no/such/directory\", command: [a]", RunReadOptions::default());
    let refused = read(&record, Checks::New(&machine())).unwrap_err().to_string();
    assert!(refused.contains("/no/such/directory"), "{refused}");
    assert_eq!(read(&record, Checks::Accepted).unwrap().work.pods.len(), 1);
}

/// Older versions did not read Services.
#[test]
fn a_bad_service_refuses_a_new_run_and_stops_no_accepted_one() {
    for service in ["{selectr: {app: p}}", "{ports: [{port: 80}, {port: 80}]}", "{type: 1}"] {
        let mut record = record("image: i", RunReadOptions::default());
        let text = format!("apiVersion: v1\nkind: Service\nmetadata: {{name: s}}\nspec: {service}\n");
        record.sources.push(("s.yaml".to_owned(), text));
        let refused = read(&record, Checks::New(&machine())).unwrap_err().to_string();
        assert!(refused.contains("s.yaml:4"), "{refused}");
        assert_eq!(read(&record, Checks::Accepted).unwrap().work.pods.len(), 1, "{service}");
    }
}

#[test]
fn what_can_never_start_refuses_a_run_unless_it_is_tried_again() {
    let container = "image: \"rootfs:/\", command: [a], securityContext: {runAsNonRoot: true}";
    let record = record(container, RunReadOptions::default());
    let table = [(OnFailure::Stop, false), (OnFailure::StopIfPermanent, false), (OnFailure::Retry, true)];
    for (on_failure, accepted) in table {
        let machine = Machine { on_failure, ..machine() };
        match read(&record, Checks::New(&machine)) {
            Ok(read) => assert!(accepted && read.warnings.len() == 1, "{on_failure:?}: {:?}", read.warnings),
            Err(error) => assert!(!accepted && error.to_string().contains("runAsNonRoot"), "{error}"),
        }
    }
}

#[test]
fn a_restriction_applies_to_runs_that_were_accepted_without_it() {
    let reading = RunReadOptions { restricted: true, ..RunReadOptions::default() };
    let refused = read(&record("image: i", reading), Checks::Accepted).unwrap_err().to_string();
    assert!(refused.contains("allowPrivilegeEscalation"), "{refused}");
}

#[test]
fn options_are_saved_with_the_run() {
    let features = FeatureGates { sidecar_lifecycle_type: false, ..FeatureGates::default() };
    let reading = RunReadOptions { features, namespace: "shop".to_owned(), ..RunReadOptions::default() };
    let record = record("image: i, lifecycle: {type: Sidecar}", reading);
    let saved: RunRecord = serde_json::from_slice(&serde_json::to_vec(&record).unwrap()).unwrap();
    assert_eq!(saved.reading, record.reading);
    let Read { work, warnings } = read(&saved, Checks::Accepted).unwrap();
    assert!(work.pods[0].plan.dialects.is_empty(), "{:?}", work.pods[0].plan.dialects);
    assert_eq!(work.pods[0].manifest.namespace(), "shop");
    assert!(render(&warnings, &work.sources, false).contains("warning[kep-gate]"), "{warnings:?}");
}
