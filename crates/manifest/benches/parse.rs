//! Measures reading a manifest: a pod of typical size, a large one, and an edit.
use criterion::{Criterion, criterion_group, criterion_main};
use outrigger_lifecycle::FieldPath;
use outrigger_manifest::edit::Editor;
use outrigger_manifest::{ReadOptions, SourceFile, read};

const POD: &str = include_str!("../../../fuzz/seeds/pod.yaml");

fn pod_of(containers: usize) -> String {
    let container = |i| {
        format!(
            "  - name: c{i}\n    image: busybox:1\n    command: [sh, -c, 'sleep 1']\n    env:\n    - name: A\n      value: b\n    readinessProbe: {{httpGet: {{port: 80}}}}\n"
        )
    };
    let containers: String = (0..containers).map(container).collect();
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n{containers}")
}

fn parse(c: &mut Criterion) {
    let options = ReadOptions::default();
    let mut bench = |name: &str, text: &str| {
        let sources = [SourceFile::new("pod.yaml", text)];
        c.bench_function(name, |b| b.iter(|| read(&sources, &options).expect("a good manifest")));
    };
    bench("read/pod", POD);
    bench("read/10-containers", &pod_of(10));
    bench("read/100-containers", &pod_of(100));
    c.bench_function("edit/set", |b| {
        b.iter(|| {
            let mut editor = Editor::new(POD, 0).expect("a good manifest");
            editor.set(&FieldPath::spec("restartPolicy"), &"Never".into()).expect("a plain layout");
            editor.finish()
        })
    });
}

criterion_group!(benches, parse);
criterion_main!(benches);
