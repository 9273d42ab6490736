//! Old and new manifests, and what happens to the running objects.

use outrigger_lifecycle::{FeatureGates, plan};

use super::*;
use crate::read::{Manifest, ReadOptions, read};
use crate::span::SourceFile;

fn manifest(text: &str) -> Manifest {
    read(&[SourceFile::new("m.yaml", text)], &ReadOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// Each object of either manifest, and what happens to it.
fn compared(old: &str, new: &str) -> Vec<String> {
    let (old, new) = (manifest(old), manifest(new));
    let plans = |manifest: &Manifest| -> Vec<Plan> {
        let planned = |pod: &PodManifest| plan(&pod.input, &FeatureGates::default()).unwrap().plan;
        manifest.pods.iter().map(planned).collect()
    };
    let (old_plans, new_plans) = (plans(&old), plans(&new));
    let objects = |manifest: &'static Manifest, plans: &'static [Plan]| Objects {
        pods: manifest.pods.iter().zip(plans).collect(),
        workloads: &manifest.workloads,
        companions: &manifest.companions,
    };
    // They are leaked on purpose, so that the objects live as long as the test.
    let (old, new): (&'static Manifest, &'static Manifest) = (Box::leak(old.into()), Box::leak(new.into()));
    let (old, new) = (objects(old, old_plans.leak()), objects(new, new_plans.leak()));
    let shown = |(key, change): (ObjectKey, ObjectChange)| {
        let plan = new.pods.iter().find(|(pod, _)| pod.name() == key.name).map(|(_, plan)| *plan);
        let detail = match &change {
            ObjectChange::Updated(all) => {
                let plan = plan.expect("a pod that is updated has a plan");
                all.iter().map(|c| describe(c, plan)).collect::<Vec<_>>().join("; ")
            }
            ObjectChange::Scaled { from, to } => format!("{from} to {to}"),
            ObjectChange::Replaced { why } => why.join(", "),
            _ => String::new(),
        };
        format!("{} {} {detail}", key.display(), change.name()).trim_end().to_owned()
    };
    compare(&old, &new).into_iter().map(shown).collect()
}

fn pod(name: &str, spec: &str) -> String {
    format!("---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

const WEB: &str = "{containers: [{name: app, image: 'app:1'}]}";

#[test]
fn pods_come_go_and_stay() {
    let old = pod("a", WEB) + &pod("b", WEB);
    let new = pod("b", WEB) + &pod("c", WEB);
    assert_eq!(compared(&old, &new), ["pod/b unchanged", "pod/c created", "pod/a removed"]);
}

#[test]
fn defaults_that_are_written_change_nothing() {
    let new = "{restartPolicy: Always, terminationGracePeriodSeconds: 30, \
               containers: [{name: app, image: 'app:1', imagePullPolicy: IfNotPresent}]}";
    assert_eq!(compared(&pod("a", WEB), &pod("a", new)), ["pod/a unchanged"]);
}

#[test]
fn what_can_change_in_place_does() {
    for (new, expected) in [
        (
            "{containers: [{name: app, image: 'app:2'}]}",
            "container app restarts with image app:2 (was app:1)",
        ),
        (
            "{containers: [{name: app, image: 'app:latest'}]}",
            "container app restarts with image app:latest (was app:1)",
        ),
        (
            "{terminationGracePeriodSeconds: 5, activeDeadlineSeconds: 60, containers: [{name: app, image: 'app:1'}]}",
            "grace period is 5 s (was 30 s); deadline is 60 s (was none)",
        ),
        (
            "{containers: [{name: app, image: 'app:1'}], ephemeralContainers: [{name: debug, image: 'd:1'}]}",
            "ephemeral container debug is added",
        ),
    ] {
        assert_eq!(compared(&pod("a", WEB), &pod("a", new)), [format!("pod/a updated {expected}")]);
    }
}

#[test]
fn everything_else_replaces_the_pod_and_says_why() {
    for (new, expected) in [
        (
            "{containers: [{name: app, image: 'app:2', env: [{name: A, value: b}]}]}",
            "spec.containers[app].env, spec.containers[app].image",
        ),
        (
            "{terminationGracePeriodSeconds: 5, hostNetwork: true, containers: [{name: app, image: 'app:2', command: [a], args: [b], tty: true, stdin: true}]}",
            "spec.containers[app].args, spec.containers[app].command, spec.containers[app].stdin, \
             spec.containers[app].tty, spec.hostNetwork, spec.containers[app].image, spec.terminationGracePeriodSeconds",
        ),
        ("{containers: [{name: app, image: 'app:1'}, {name: more, image: 'b:1'}]}", "spec.containers"),
        ("{containers: [{name: app, image: 'app:1'}], hostNetwork: true}", "spec.hostNetwork"),
        (
            "{containers: [{name: app, image: 'app:1', imagePullPolicy: Always}]}",
            "container `app` has more changes than its image",
        ),
        (
            "{containers: [{name: app, image: 'app:1', lifecycle: {type: Standard}}]}",
            "spec.containers[app].lifecycle, spec.containers[].lifecycle.type",
        ),
    ] {
        assert_eq!(compared(&pod("a", WEB), &pod("a", new)), [format!("pod/a replaced {expected}")]);
    }
    let labelled = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {x: z}}\nspec: {containers: [{name: app, image: 'app:1'}]}\n";
    assert_eq!(compared(&pod("a", WEB), labelled), ["pod/a replaced metadata.labels"]);
}

#[test]
fn an_ephemeral_container_that_goes_replaces_the_pod() {
    let with =
        "{containers: [{name: app, image: 'app:1'}], ephemeralContainers: [{name: debug, image: 'd:1'}]}";
    assert_eq!(compared(&pod("a", with), &pod("a", WEB)), ["pod/a replaced its containers are not the same"]);
}

#[test]
fn a_config_map_that_changes_replaces_the_pods_that_use_it() {
    let map = |value: &str| {
        format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{a: {value}}}\n")
    };
    for used in [
        "{containers: [{name: app, image: 'app:1', envFrom: [{configMapRef: {name: settings}}]}]}",
        "{containers: [{name: app, image: 'app:1', env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: a}}}]}]}",
        "{containers: [{name: app, image: 'app:1'}], volumes: [{name: v, configMap: {name: settings}}]}",
        "{containers: [{name: app, image: 'app:1'}], volumes: [{name: v, projected: {sources: [{configMap: {name: settings}}]}}]}",
    ] {
        let (old, new) =
            (pod("a", used) + &pod("b", WEB) + &map("one"), pod("a", used) + &pod("b", WEB) + &map("two"));
        assert_eq!(compared(&old, &new), ["pod/a replaced ConfigMap/settings", "pod/b unchanged"]);
        assert_eq!(compared(&old, &old), ["pod/a unchanged", "pod/b unchanged"]);
    }
    let secret = |value: &str| {
        format!("---\napiVersion: v1\nkind: Secret\nmetadata: {{name: key}}\nstringData: {{a: {value}}}\n")
    };
    let used = "{containers: [{name: app, image: 'app:1'}], volumes: [{name: v, secret: {secretName: key}}]}";
    let (old, new) = (pod("a", used) + &secret("one"), pod("a", used) + &secret("two"));
    assert_eq!(compared(&old, &new), ["pod/a replaced Secret/key"]);
}

#[test]
fn workloads_are_scaled_or_replaced() {
    let deployment = |replicas: u32, tag: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: {replicas}\n  \
             selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    \
             spec: {{containers: [{{name: app, image: 'app:{tag}'}}]}}\n"
        )
    };
    assert_eq!(compared(&deployment(2, "1"), &deployment(2, "1")), ["deployment/web unchanged"]);
    assert_eq!(compared(&deployment(2, "1"), &deployment(3, "1")), ["deployment/web scaled 2 to 3"]);
    let image = "spec.template.spec.containers[app].image";
    assert_eq!(
        compared(&deployment(2, "1"), &deployment(3, "2")),
        [format!("deployment/web replaced {image}, spec.replicas")]
    );
    let job = |tag: &str| {
        format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: web}}\nspec:\n  template:\n    \
             spec: {{restartPolicy: Never, containers: [{{name: app, image: 'app:{tag}'}}]}}\n"
        )
    };
    assert_eq!(compared(&deployment(1, "1"), &job("1")), ["job/web created", "deployment/web removed"]);
    assert_eq!(compared(&job("1"), &job("2")), [format!("job/web replaced {image}")]);
}
