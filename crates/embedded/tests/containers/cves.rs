//! Tests that carry out attacks that succeeded against other container runtimes. docs/internals/security.md
//! has the list.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_runtime::{ContainerSpec, Mount, NetworkMode, Propagation, Runtime as _, UserNamespace};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use outrigger_testkit::embedded::{BOTH_USERS, Pod, log_text};

outrigger_testkit::trials![
    targets_in_a_volume_that_changes_stay_inside,
    targets_that_become_links_to_proc_are_refused,
    working_directories_lead_nowhere,
    working_directories_of_commands_lead_nowhere,
    a_volume_over_dev_changes_nothing_outside,
    no_capability_is_inherited,
    odd_names_make_nobody_root,
    shims_have_no_abstract_sockets,
    endless_tables_do_not_stop_a_container,
    endless_environments_do_not_stop_a_container,
    links_in_place_of_files_of_the_pod_stay_inside,
    who_looks_like_a_guard_is_not_believed,
];

/// A directory of the host with one file, `marker`, that no container can access.
struct Canary {
    dir: PathBuf,
    before: (i64, u32, u32),
}

impl Canary {
    fn new(pod: &Pod) -> Self {
        let dir = pod.scratch("canary");
        fs::write(dir.join("marker"), "untouched").unwrap();
        let before = Self::look(&dir);
        Canary { dir, before }
    }

    fn look(dir: &Path) -> (i64, u32, u32) {
        let file = fs::metadata(dir.join("marker")).unwrap();
        (file.ctime_nsec(), file.mode(), file.uid())
    }

    /// Checks that nothing was created, changed or mounted there.
    fn assert_untouched(&self) {
        let names: Vec<_> =
            fs::read_dir(&self.dir).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["marker"], "something was made on the host");
        assert_eq!(fs::read_to_string(self.dir.join("marker")).unwrap(), "untouched");
        assert_eq!(Self::look(&self.dir), self.before, "the host's file was changed");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.dir.to_str().unwrap()), "something was mounted on the host");
    }
}

fn mount(source: &Path, target: &str) -> Mount {
    Mount {
        source: source.to_owned(),
        target: target.into(),
        read_only: false,
        propagation: Propagation::Private,
    }
}

/// Swaps two names continuously, as a container that shares the volume could, only faster.
struct Exchange {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Exchange {
    fn of(one: PathBuf, other: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                count += 1;
            }
            count
        });
        Exchange { stop, thread: Some(thread) }
    }

    /// Ends it. Returns how often the names were swapped.
    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// CVE-2021-30465, CVE-2019-18837, CVE-2024-45310: the path to a mount point is replaced with a link between
/// the check and the use.
async fn targets_in_a_volume_that_changes_stay_inside() {
    for users in BOTH_USERS {
        targets_stay_inside(users).await;
    }
}

async fn targets_stay_inside(users: UserNamespace) {
    let pod = Pod::with(|spec| spec.user_namespace = users).await;
    let canary = Canary::new(&pod);
    let (data, file) = (pod.scratch("data"), pod.scratch("files").join("file"));
    fs::write(data.join("mine"), "").unwrap();
    fs::write(&file, "").unwrap();
    let up = "../../../../../../../../../../../..";
    for (name, link) in [
        ("absolute", canary.dir.clone()),
        ("relative", PathBuf::from(format!("{up}{}", canary.dir.display()))),
    ] {
        let shared = pod.scratch(name);
        fs::create_dir(shared.join("way")).unwrap();
        symlink(&link, shared.join("link")).unwrap();
        let exchange = Exchange::of(shared.join("way"), shared.join("link"));
        let (mut made, mut number) = (0, 0);
        // How often a start succeeds depends on how often it is interrupted. At least one must succeed.
        while number < 25 || (made == 0 && number < 500) {
            number += 1;
            let mut spec = pod.script("find / -name marker; awk '{ print $5 }' /proc/self/mountinfo");
            let (dir, single) = (format!("/shared/way/dir{number}"), format!("/shared/way/file{number}"));
            spec.mounts = vec![mount(&shared, "/shared"), mount(&data, &dir), mount(&file, &single)];
            let log = spec.log_path.clone();
            // The path may have disappeared in between. That is not an escape.
            let started = pod.start(spec).await;
            if let Err(error) = &started {
                // A refused start must not look like an internal error that users should report.
                let text = error.to_string();
                assert!(!text.contains("internal error") && !text.contains("report"), "{text}");
            }
            if let Ok(id) = started {
                made += 1;
                assert_eq!(pod.wait(&id).await.code, 0);
                let text = log_text(&log);
                assert!(!text.contains("marker"), "{text}");
                let inside = [dir, format!("{}/dir{number}", canary.dir.display())];
                let target = text.lines().find(|line| line.ends_with(&format!("/dir{number}")));
                assert!(
                    target
                        .is_some_and(|target| target.starts_with("/shared")
                            || inside.iter().any(|known| known == target)),
                    "{text}"
                );
            }
        }
        let exchanges = exchange.end();
        assert!(exchanges > 100 && made > 0, "{exchanges} exchanges, {made} of {number} started");
        canary.assert_untouched();
    }
    pod.finish().await;
}

/// CVE-2019-16884, CVE-2019-19921, CVE-2023-27561, CVE-2023-28642, CVE-2025-52881, CVE-2025-62596: a volume
/// over a file of /proc redirects writes to that file to another file.
async fn targets_that_become_links_to_proc_are_refused() {
    for users in BOTH_USERS {
        targets_in_proc_are_refused(users).await;
    }
}

async fn targets_in_proc_are_refused(users: UserNamespace) {
    let pod = Pod::with(|spec| spec.user_namespace = users).await;
    let data = pod.scratch("data");
    fs::write(data.join("exec"), "").unwrap();
    let image = pod.scratch("links");
    for (name, target) in
        [("attr", "/proc/self/attr"), ("thread", "proc/thread-self"), ("up", "/proc/self/root/proc")]
    {
        symlink(target, image.join(name)).unwrap();
    }
    for target in
        ["/attr", "/attr/apparmor", "/thread", "/thread/attr", "/proc/1/attr", "/up/self/attr", "/up"]
    {
        let mut spec = pod.script("echo ran");
        spec.image.layers.push(image.clone());
        spec.mounts = vec![mount(&data, target)];
        assert!(pod.start(spec).await.is_err(), "{target}");
    }
    let points = "awk '$5 ~ \"^/(proc|sys)\" { print $5 }' /proc/self/mountinfo | sort";
    let usual = pod.output(pod.script(points)).await;
    let shared = pod.scratch("shared");
    fs::create_dir_all(shared.join("way/self/attr")).unwrap();
    symlink("/proc", shared.join("link")).unwrap();
    let exchange = Exchange::of(shared.join("way"), shared.join("link"));
    let (mut made, mut refused) = (0, 0);
    for _ in 0..40 {
        let mut spec = pod.script(points);
        spec.mounts = vec![mount(&shared, "/shared"), mount(&data, "/shared/way/self/attr")];
        let log = spec.log_path.clone();
        match pod.start(spec).await {
            Ok(id) => {
                made += 1;
                assert_eq!(pod.wait(&id).await.code, 0);
                assert_eq!(log_text(&log), usual);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(exchange.end() > 100 && made > 0 && refused > 0, "{made} made, {refused} refused");
    pod.finish().await;
}

/// Prints `OUT` if the host's file can be reached from the current directory.
fn out_of(canary: &Canary) -> String {
    let marker = canary.dir.join("marker");
    let marker = marker.display();
    format!("for up in . .. ../.. ../../..; do [ -e $up{marker} ] && echo OUT $up; done; pwd")
}

const WAYS_OUT: [&str; 6] = [
    "/proc/self/cwd",
    "/proc/self/cwd/..",
    "/proc/self/root/..",
    "/proc/1/cwd",
    "/proc/1/root/..",
    "/proc/thread-self/root",
];

fn descriptors(process: &str) -> impl Iterator<Item = String> {
    (0..24).map(move |fd| format!("/proc/{process}/fd/{fd}"))
}

/// CVE-2024-21626: a working directory that is given as the number of one of the host's descriptors.
async fn working_directories_lead_nowhere() {
    for users in BOTH_USERS {
        working_directories_stay_inside(users).await;
    }
}

async fn working_directories_stay_inside(users: UserNamespace) {
    let pod = Pod::with(|spec| spec.user_namespace = users).await;
    let canary = Canary::new(&pod);
    let ways = descriptors("self").chain(descriptors("thread-self")).chain(WAYS_OUT.map(str::to_owned));
    let image = pod.scratch("links");
    for (number, way) in ways.enumerate() {
        let link = format!("way{number}");
        symlink(&way, image.join(&link)).unwrap();
        for place in [way.clone(), format!("/{link}"), format!("{way}/../../..")] {
            let mut spec = pod.script(&out_of(&canary));
            spec.image.layers.push(image.clone());
            spec.image.working_dir = Some(place.clone());
            if let Ok(id) = pod.runtime.create_container(&pod.id, spec.clone()).await
                && pod.runtime.start_container(&id).await.is_ok()
            {
                pod.wait(&id).await;
                let text = log_text(&spec.log_path);
                assert!(text.starts_with('/'), "{place}: {text}");
            }
        }
    }
    canary.assert_untouched();
    pod.finish().await;
}

/// The same attack with commands: the container changes its working directory after it was created. With the
/// host's pid namespace, the host's processes lead to the host's files, for a process that still has all
/// capabilities.
async fn working_directories_of_commands_lead_nowhere() {
    for host_pid in [false, true] {
        let pod = Pod::with(|spec| {
            spec.host_pid = host_pid;
            spec.user_namespace = if host_pid { UserNamespace::Host } else { UserNamespace::Auto };
        })
        .await;
        let canary = Canary::new(&pod);
        let mut spec = pod.script("sleep 100");
        spec.working_dir = Some("/work".to_owned());
        let id = pod.start(spec).await.unwrap();
        let own = std::process::id();
        let ways = descriptors("self")
            .chain(WAYS_OUT.map(str::to_owned))
            .chain([format!("/proc/{own}/cwd"), format!("/proc/{own}/root")]);
        for way in ways {
            let script = format!("rm -rf /work; ln -s {way} /work");
            let request = |command: Vec<String>| outrigger_runtime::ExecRequest {
                command,
                timeout: Some(outrigger_testkit::trial::DEADLINE),
                output_limit: 10_000,
            };
            // This prepares the next command, whatever the previous one left.
            let words = |script: String| vec!["/bin/sh".to_owned(), "-c".to_owned(), script];
            if pod.runtime.exec(&id, request(words(script.clone()))).await.is_err() {
                let root = format!("/proc/{}/root/work", pod.first_process(&id));
                fs::remove_file(&root).unwrap();
                symlink(&way, &root).unwrap();
            }
            if let Ok(output) = pod.runtime.exec(&id, request(words(out_of(&canary)))).await {
                let text = String::from_utf8(output.output).unwrap();
                assert!(text.starts_with('/'), "{way}: {text}");
            }
        }
        canary.assert_untouched();
        pod.runtime.kill(&id).await.unwrap();
        pod.wait(&id).await;
        pod.finish().await;
    }
}

/// CVE-2025-31133, CVE-2025-62161, CVE-2025-52565, CVE-2026-41579, CVE-2026-88264, CVE-2026-88265: the
/// container controls the contents of /dev while paths are masked, the console is mounted and standard input
/// is opened.
async fn a_volume_over_dev_changes_nothing_outside() {
    for users in BOTH_USERS {
        dev_is_covered(users).await;
    }
}

async fn dev_is_covered(users: UserNamespace) {
    let pod = Pod::with(|spec| spec.user_namespace = users).await;
    let canary = Canary::new(&pod);
    let marker = canary.dir.join("marker");
    let dev = pod.scratch("dev");
    for name in ["null", "console", "ptmx", "zero", "tty"] {
        symlink(&marker, dev.join(name)).unwrap();
    }
    for name in ["pts", "shm", "mqueue", "fd"] {
        symlink(&canary.dir, dev.join(name)).unwrap();
    }
    let facts = "exec 2>/tmp/errors; stat -c '%n %F %t:%T' /proc/kcore /proc/keys /proc/timer_list; \
                 stat -L -c %F /proc/self/fd/0; \
                 (: > /proc/sys/kernel/core_pattern) && echo WRITABLE; \
                 awk '$5 ~ \"^/(proc|sys)\" { print $5 }' /proc/self/mountinfo | sort; true";
    let usual = pod.output(pod.script(facts)).await;
    assert!(usual.contains("/proc/keys character special file 1:3"), "{usual}");
    for tty in [false, true] {
        for target in ["/dev", "/dev/pts", "/dev/console", "/dev/null"] {
            let mut spec = pod.script(facts);
            spec.tty = tty;
            spec.mounts = vec![mount(if target == "/dev" { &dev } else { &canary.dir }, target)];
            let log = spec.log_path.clone();
            // A directory cannot be mounted over a device, and a terminal needs its file system, so some
            // starts fail.
            let Ok(id) = pod.start(spec).await else { continue };
            pod.wait(&id).await;
            let text = log_text(&log).replace('\r', "");
            assert_eq!(text, usual, "{target}");
        }
    }
    // The same attack on the streams of commands while the container runs.
    let mut spec = pod
        .script("rm -f /dev/null /dev/console; ln -s /proc/sysrq-trigger /dev/null; echo ready; sleep 100");
    spec.mounts = vec![];
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    pod.saw(&log, "ready").await;
    let output = pod.exec(&id, "stat -L -c '%F %t:%T' /proc/self/fd/0").await;
    assert_eq!(String::from_utf8(output.output).unwrap(), "character special file 1:3\n");
    canary.assert_untouched();
    pod.runtime.kill(&id).await.unwrap();
    pod.wait(&id).await;
    pod.finish().await;
}

/// CVE-2022-24769, CVE-2022-27650, CVE-2022-29162, CVE-2025-27612: capabilities that programs with file
/// capabilities inherit, and commands with more capabilities than the container.
async fn no_capability_is_inherited() {
    let pod = Pod::new().await;
    let show = "grep -E '^Cap(Inh|Amb)' /proc/self/status | tr -d '\\n'; echo; grep -E '^Cap(Prm|Eff|Bnd)' /proc/self/status";
    type Change = fn(&mut ContainerSpec);
    let cases: [Change; 4] = [
        |_| {},
        |spec| spec.identity.run_as_user = Some(1000),
        |spec| {
            spec.identity.run_as_user = Some(1000);
            spec.identity.add_capabilities = vec!["NET_ADMIN".to_owned()];
        },
        |spec| spec.identity.drop_capabilities = vec!["ALL".to_owned()],
    ];
    for (number, change) in cases.into_iter().enumerate() {
        let mut spec = pod.script(&format!("{show}; echo ready; sleep 100"));
        change(&mut spec);
        let log = spec.log_path.clone();
        let id = pod.start(spec).await.unwrap();
        pod.saw(&log, "ready").await;
        let own = log_text(&log).replace("ready\n", "");
        assert!(own.starts_with("CapInh:\t0000000000000000CapAmb:\t0000000000000000\n"), "{number}: {own}");
        let of_command = String::from_utf8(pod.exec(&id, show).await.output).unwrap();
        assert_eq!(of_command, own, "{number}");
        pod.runtime.kill(&id).await.unwrap();
        pod.wait(&id).await;
    }
    pod.finish().await;
}

/// CVE-2016-3697, CVE-2024-40635, CVE-2026-30892, CVE-2026-46680: numbers that are taken for names, and
/// numbers that are too large.
async fn odd_names_make_nobody_root() {
    let pod = Pod::new().await;
    let image = pod.scratch("image");
    fs::create_dir(image.join("etc")).unwrap();
    let names = ["1", "1000", "4294967296", "4294967295", "-1", "99999999999999999999", "0x3e8", "root"];
    let passwd: String = names.iter().map(|name| format!("{name}:x:0:0::/:/bin/sh\n")).collect();
    let group: String = names.iter().map(|name| format!("{name}:x:0:1000\n")).collect();
    fs::write(image.join("etc/passwd"), passwd).unwrap();
    fs::write(image.join("etc/group"), group).unwrap();
    for user in [
        "1",
        "1000",
        "1:1",
        "1000:1000",
        "1000:4294967296",
        "4294967296",
        "4294967296:1",
        "4294967295",
        "-1",
        "99999999999999999999",
        "0x3e8",
        " 1000",
        "1000 ",
        "+0",
        "00",
    ] {
        let mut spec = pod.script("id -u; id -g");
        spec.image.layers.push(image.clone());
        spec.image.user = Some(user.to_owned());
        spec.identity.run_as_non_root = true;
        let log = spec.log_path.clone();
        if let Ok(id) = pod.start(spec).await {
            assert_eq!(pod.wait(&id).await.code, 0, "{user}");
            let number = user.split(':').next().unwrap();
            let group = user.split_once(':').map_or("0", |(_, group)| group);
            assert_eq!(log_text(&log), format!("{number}\n{group}\n"), "{user}");
        }
    }
    pod.finish().await;
}

/// CVE-2020-15257: abstract sockets, which every container on the host network can reach.
async fn shims_have_no_abstract_sockets() {
    let pod = Pod::with(|spec| {
        spec.network = NetworkMode::Host;
        spec.user_namespace = UserNamespace::Host;
    })
    .await;
    let id = pod.start(pod.script("sleep 100")).await.unwrap();
    let shim = pod.shim(&id);
    let open = fs::read_dir(format!("/proc/{shim}/fd")).unwrap().flatten();
    let inodes: Vec<String> = open
        .filter_map(|fd| {
            fs::read_link(fd.path())
                .ok()?
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')
                .map(str::to_owned)
        })
        .collect();
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let own: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.get(6).is_some_and(|inode| inodes.iter().any(|own| own == inode)))
        .collect();
    assert!(own.iter().any(|fields| fields.get(7).is_some_and(|path| path.ends_with("/sock"))), "{own:?}");
    assert!(!own.iter().any(|fields| fields.get(7).is_some_and(|path| path.starts_with('@'))), "{own:?}");
    pod.runtime.kill(&id).await.unwrap();
    pod.wait(&id).await;
    pod.finish().await;
}

/// Asks only the kernel, because programs would read the tables of the image.
const UID: &str = "awk '/^Uid/ { print $2 }' /proc/self/status";

/// CVE-2026-47262: endless tables of users and groups. They are refused, or read up to a limit, and other
/// containers are not affected.
async fn endless_tables_do_not_stop_a_container() {
    let pod = Pod::new().await;
    let image = pod.scratch("image");
    fs::create_dir(image.join("etc")).unwrap();
    fs::write(image.join("etc/passwd"), "web:x:33:34::/:\n").unwrap();
    let group: String = (0..400_000).map(|id| format!("g:x:{}:web\n", id % 60_000)).collect();
    fs::write(image.join("etc/group"), group).unwrap();
    let mut spec = pod.script("true");
    spec.image.layers.push(image.clone());
    spec.image.user = Some("web".to_owned());
    let error = pod.start(spec).await.unwrap_err().to_string();
    assert!(error.contains("more than 10000 groups"), "{error}");
    // One is a sparse file of a terabyte, and the other never ends.
    for table in ["passwd", "group"] {
        fs::write(image.join("etc/group"), "web:x:34:\n").unwrap();
        let path = image.join("etc").join(table);
        fs::remove_file(&path).unwrap();
        fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let mut spec = pod.script(UID);
        spec.image.layers.push(image.clone());
        spec.identity.run_as_user = Some(33);
        assert_eq!(pod.output(spec).await, "33\n");
        fs::remove_file(&path).unwrap();
        symlink("/dev/zero", &path).unwrap();
        let mut spec = pod.script(UID);
        spec.image.layers.push(image.clone());
        spec.identity.run_as_user = Some(33);
        assert_eq!(pod.output(spec).await, "33\n");
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        let mut spec = pod.script(UID);
        spec.image.layers.push(image.clone());
        spec.identity.run_as_user = Some(33);
        assert_eq!(pod.output(spec).await, "33\n");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
    }
    pod.finish().await;
}

/// The same attack with an image's environment and arguments: more than a program can have.
async fn endless_environments_do_not_stop_a_container() {
    let pod = Pod::new().await;
    let mut spec = pod.script("true");
    spec.image.env = (0..400_000).map(|number| format!("V{number}=x")).collect();
    let before = std::time::Instant::now();
    let error = pod.start(spec).await.unwrap_err().to_string();
    assert!(error.contains("argument list too long"), "{error}");
    assert!(before.elapsed() < outrigger_testkit::trial::DEADLINE, "{:?}", before.elapsed());
    pod.finish().await;
}

/// CVE-2025-24965: files that the runtime itself puts into the root file system.
async fn links_in_place_of_files_of_the_pod_stay_inside() {
    for users in BOTH_USERS {
        files_stay_inside(users).await;
    }
}

async fn files_stay_inside(users: UserNamespace) {
    let pod = Pod::with(|spec| spec.user_namespace = users).await;
    let canary = Canary::new(&pod);
    let marker = canary.dir.join("marker");
    let file = pod.scratch("files").join("hosts");
    fs::write(&file, "mine\n").unwrap();
    let image = pod.scratch("links");
    fs::create_dir(image.join("etc")).unwrap();
    // The links lead to something in the image as well.
    let inside = image.join(marker.strip_prefix("/").unwrap());
    fs::create_dir_all(inside.parent().unwrap()).unwrap();
    fs::write(inside, "").unwrap();
    let up = PathBuf::from(format!("../../../../../../../..{}", marker.display()));
    for (name, target) in
        [("hosts", &marker), ("hostname", &up), ("resolv.conf", &PathBuf::from("/proc/self/environ"))]
    {
        symlink(target, image.join("etc").join(name)).unwrap();
    }
    for name in ["hosts", "hostname", "resolv.conf"] {
        let target = format!("/etc/{name}");
        let mut spec = pod.script(&format!("cat {target}; echo more > {target}"));
        spec.image.layers.push(image.clone());
        spec.mounts = vec![mount(&file, &target)];
        fs::write(&file, "mine\n").unwrap();
        match pod.start(spec).await {
            Ok(id) => {
                pod.wait(&id).await;
                assert_eq!(fs::read_to_string(&file).unwrap(), "more\n", "{name}");
            }
            Err(error) => {
                assert!(error.to_string().contains("inside /proc") && name == "resolv.conf", "{error}")
            }
        }
    }
    canary.assert_untouched();
    pod.finish().await;
}

/// A search for guards also sees processes of containers, which choose their own arguments.
async fn who_looks_like_a_guard_is_not_believed() {
    let pod = Pod::new().await;
    let image = pod.scratch("image");
    for (name, make) in [("pipe", true), ("state", false)] {
        let dir = image.join("evil").join(name).join("pods/x");
        fs::create_dir_all(&dir).unwrap();
        match make {
            true => rustix::fs::mknodat(
                CWD,
                dir.join("sandbox.json"),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR,
                0,
            )
            .unwrap(),
            false => {
                let own = fs::read_to_string(pod.dir.join("sandbox.json")).unwrap();
                let mut state: serde_json::Value = serde_json::from_str(&own).unwrap();
                state["owner"] = serde_json::json!({"pid": 4_000_000, "start_ticks": 7});
                state["pod"] = serde_json::json!("made/up");
                fs::write(dir.join("sandbox.json"), state.to_string()).unwrap();
            }
        }
    }
    let upper = image.join("evil");
    let spec = pod.script(&format!(
        "for d in pipe state; do sh -c 'echo ready; sleep 100; :' shim guard 4000000 7 {}/$d & done; wait",
        upper.display()
    ));
    let log = spec.log_path.clone();
    let id = pod.start(spec).await.unwrap();
    outrigger_testkit::trial::eventually("both run", || log_text(&log).lines().count() == 2).await;
    let runs = tokio::task::spawn_blocking(outrigger_embedded::killed_runs);
    let runs =
        tokio::time::timeout(outrigger_testkit::trial::DEADLINE, runs).await.expect("in time").unwrap();
    assert!(!runs.iter().any(|run| run.pid == 4_000_000), "{runs:?}");
    pod.runtime.kill(&id).await.unwrap();
    pod.wait(&id).await;
    pod.finish().await;
}
