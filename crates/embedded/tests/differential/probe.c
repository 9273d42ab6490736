/* Prints the facts about a container from inside it, one line per fact. It changes nothing outside itself. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static const char *error_name(int error) { return error == 0 ? "ok" : strerrorname_np(error) ?: "?"; }

static void print_file(const char *section, const char *path) {
  FILE *file = fopen(path, "r");
  char line[65536];
  if (!file) { printf("%s %s %s\n", section, path, error_name(errno)); return; }
  while (fgets(line, sizeof line, file)) printf("%s %s", section, line);
  fclose(file);
}

static int try_open(const char *path, int flags) {
  int fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) return errno;
  close(fd);
  return 0;
}

static const char *kind(mode_t mode) {
  if (S_ISREG(mode)) return "file";
  if (S_ISDIR(mode)) return "dir";
  if (S_ISLNK(mode)) return "link";
  if (S_ISCHR(mode)) return "char";
  if (S_ISBLK(mode)) return "block";
  if (S_ISFIFO(mode)) return "pipe";
  return S_ISSOCK(mode) ? "socket" : "?";
}

static void describe(const char *section, const char *path) {
  struct stat meta;
  char target[4096] = "";
  if (lstat(path, &meta) < 0) { printf("%s %s %s\n", section, path, error_name(errno)); return; }
  if (S_ISLNK(meta.st_mode)) {
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length >= 0) target[length] = 0;
  }
  printf("%s %s %s %o %d:%d", section, path, kind(meta.st_mode), meta.st_mode & 07777, meta.st_uid, meta.st_gid);
  if (S_ISCHR(meta.st_mode) || S_ISBLK(meta.st_mode)) {
    printf(" %u:%u read=%s", major(meta.st_rdev), minor(meta.st_rdev), error_name(try_open(path, O_RDONLY)));
    printf(" write=%s", error_name(try_open(path, O_WRONLY)));
  }
  printf("%s%s\n", *target ? " -> " : "", target);
}

static void devices(const char *dir, int depth) {
  DIR *entries = opendir(dir);
  struct dirent *entry;
  char path[4096];
  if (!entries) return;
  while ((entry = readdir(entries))) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
    describe("dev", path);
    if (entry->d_type == DT_DIR && depth > 0) devices(path, depth - 1);
  }
  closedir(entries);
}

/* Nodes that the container itself creates. */
static void made_devices(void) {
  static const struct { const char *name; mode_t type; unsigned major, minor; } nodes[] = {
      {"mem", S_IFCHR, 1, 1},   {"null", S_IFCHR, 1, 3},    {"kmsg", S_IFCHR, 1, 11}, {"tty1", S_IFCHR, 4, 1},
      {"fuse", S_IFCHR, 10, 229}, {"tun", S_IFCHR, 10, 200}, {"kvm", S_IFCHR, 10, 232}, {"vda", S_IFBLK, 254, 0},
      {"sda", S_IFBLK, 8, 0},   {"loop", S_IFBLK, 7, 0},    {"fifo", S_IFIFO, 0, 0}};
  static const char *places[] = {"/dev", "/tmp", "/dev/shm"};
  char path[256];
  for (unsigned place = 0; place < 3; place++)
    for (unsigned i = 0; i < sizeof nodes / sizeof *nodes; i++) {
      snprintf(path, sizeof path, "%s/probe-%s", places[place], nodes[i].name);
      int made = mknod(path, nodes[i].type | 0600, makedev(nodes[i].major, nodes[i].minor)) < 0 ? errno : 0;
      printf("mknod %s %s", path, error_name(made));
      if (!made) printf(" read=%s", error_name(try_open(path, O_RDONLY)));
      printf("\n");
      if (!made) unlink(path);
    }
}

static void descriptors(void) {
  char path[64], target[4096];
  for (int fd = 0; fd < 1024; fd++) {
    struct stat meta;
    if (fstat(fd, &meta) < 0) continue;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    if (S_ISFIFO(meta.st_mode)) strcpy(target, "pipe");
    printf("fd %d %s %s %o %d:%d flags=%o dev=%u:%u\n", fd, target, kind(meta.st_mode), meta.st_mode & 07777, meta.st_uid,
           meta.st_gid, fcntl(fd, F_GETFL) & ~(O_CLOEXEC | 0100000), major(meta.st_rdev), minor(meta.st_rdev));
  }
}

static void process(void) {
  static const char *limits[] = {"cpu",    "fsize",   "data",  "stack",      "core",     "rss",  "nproc",  "nofile",
                                 "memlock", "as",     "locks", "sigpending", "msgqueue", "nice", "rtprio", "rttime"};
  char cwd[4096];
  struct utsname names;
  for (char **name = environ; *name; name++) printf("env %s\n", *name);
  printf("cwd %s\n", getcwd(cwd, sizeof cwd) ? cwd : error_name(errno));
  mode_t mask = umask(0);
  umask(mask);
  printf("umask %o\n", mask);
  for (int i = 0; i < 16; i++) {
    struct rlimit limit;
    getrlimit(i, &limit);
    printf("rlimit %s %llx %llx\n", limits[i], (long long)limit.rlim_cur, (long long)limit.rlim_max);
  }
  uname(&names);
  printf("uts %s %s\n", names.nodename, names.domainname);
  printf("session leader=%d group=%d parent=%s tty=%d\n", getsid(0) == getpid(), getpgid(0) == getpid(),
         getppid() == 0 ? "outside" : "inside", isatty(0));
  int death = -1, reaper = -1;
  prctl(PR_GET_PDEATHSIG, &death);
  prctl(PR_GET_CHILD_SUBREAPER, &reaper);
  printf("prctl pdeathsig=%d\nprctl subreaper=%d\n", death, reaper);
  printf("prctl dumpable=%d\nprctl keepcaps=%d\nprctl securebits=%x\nprctl timerslack=%d\n", prctl(PR_GET_DUMPABLE),
         prctl(PR_GET_KEEPCAPS), prctl(PR_GET_SECUREBITS), prctl(PR_GET_TIMERSLACK));
  printf("sched policy=%d nice=%d\n", sched_getscheduler(0), getpriority(PRIO_PROCESS, 0));
  print_file("oom", "/proc/self/oom_score_adj");
  print_file("coredump", "/proc/self/coredump_filter");
  print_file("attr", "/proc/self/attr/current");
  print_file("cgroup", "/proc/self/cgroup");
  print_file("uidmap", "/proc/self/uid_map");
  print_file("gidmap", "/proc/self/gid_map");
  print_file("setgroups", "/proc/self/setgroups");
  static const char *spaces[] = {"cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "user", "uts"};
  for (unsigned i = 0; i < 9; i++) {
    char path[64], target[128];
    snprintf(path, sizeof path, "/proc/self/ns/%s", spaces[i]);
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length < 0 ? 0 : length] = 0;
    printf("ns %s %s\n", spaces[i], target);
  }
}

/* Checks what can be written to, without writing. */
static void writable(const char *dir, int depth) {
  DIR *entries = opendir(dir);
  struct dirent *entry;
  char path[4096];
  if (!entries) { printf("closed %s %s\n", dir, error_name(errno)); return; }
  while ((entry = readdir(entries))) {
    const char *name = entry->d_name;
    if (!strcmp(name, ".") || !strcmp(name, "..") || entry->d_type == DT_LNK) continue;
    if (!strcmp(dir, "/proc") && name[0] >= '0' && name[0] <= '9') continue;
    if (!strcmp(dir, "/sys/kernel/slab") || !strcmp(dir, "/sys/fs/cgroup")) continue;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0) printf("writable %s\n", path);
    if (entry->d_type == DT_DIR && depth > 0) writable(path, depth - 1);
  }
  closedir(entries);
}

static void places(void) {
  static const char *paths[] = {
      "/", "/proc", "/sys", "/dev", "/dev/shm", "/dev/pts", "/dev/mqueue", "/sys/fs/cgroup", "/tmp", "/etc", "/root",
      "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
      "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
      "/sys/devices/virtual/powercap", "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/1/mem",
      "/sys/kernel/uevent_helper", "/proc/sys/kernel/modprobe", "/proc/config.gz", "/proc/kmsg", "/vol", "/vol/file", "/deep/a/b"};
  for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
    char byte;
    describe("place", paths[i]);
    int fd = open(paths[i], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, &byte, 1);
    printf("read %s %s\n", paths[i], got < 0 ? error_name(errno) : got == 0 ? "empty" : "content");
    if (fd >= 0) close(fd);
    struct stat meta;
    if (stat(paths[i], &meta) == 0 && !S_ISDIR(meta.st_mode))
      printf("openwrite %s %s\n", paths[i], error_name(try_open(paths[i], O_WRONLY)));
    else
      printf("access %s %s\n", paths[i], error_name(access(paths[i], W_OK) < 0 ? errno : 0));
  }
  static const char *settings[] = {"net/ipv4/ip_unprivileged_port_start", "net/core/somaxconn", "kernel/shmmax",
                                   "kernel/msgmax", "fs/mqueue/msg_max", "net/ipv4/ping_group_range"};
  for (unsigned i = 0; i < 6; i++) {
    char path[128];
    snprintf(path, sizeof path, "/proc/sys/%s", settings[i]);
    print_file(path, path);
  }
  static const char *tries[] = {"/probe-file", "/etc/probe-file", "/tmp/probe-file", "/vol/probe-file", "/vol/sub/probe-file",
                                "/dev/probe-file", "/dev/shm/probe-file", "/root/probe-file", "/proc/probe-file"};
  /* Pods that are inspected at the same time share volumes. A file of another pod must not be in the way. */
  unsigned long unique = 0;
  if (getrandom(&unique, sizeof unique, 0) != sizeof unique) printf("getrandom %s\n", error_name(errno));
  for (unsigned i = 0; i < 9; i++) {
    char path[128];
    snprintf(path, sizeof path, "%s-%lx", tries[i], unique);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    struct stat meta = {0};
    int error = errno;
    if (fd >= 0) { fstat(fd, &meta); close(fd); unlink(path); }
    printf("create %s %s %o %d:%d\n", tries[i], error_name(fd < 0 ? error : 0), meta.st_mode & 07777, meta.st_uid, meta.st_gid);
  }
}

static long call32(long number, long a, long b, long c) {
  long result;
#if defined __x86_64__
  __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c), "S"(-1L), "D"(-1L) : "memory", "r8", "r9", "r10", "r11");
#else
  result = -ENOSYS;
#endif
  return (int)result;
}

/* The result of a call in a separate process. All successful results count as the same. */
static void attempt(const char *section, long number, int narrow, long a, long b, long c, const char *extra) {
  int status;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    struct itimerval soon = {.it_value = {.tv_sec = 10}};
    setitimer(ITIMER_REAL, &soon, NULL);
    long result;
    if (narrow) {
      result = call32(number, a, b, c);
      _exit(result < 0 && result > -4096 ? (int)-result & 255 : 0);
    }
    result = syscall(number, a, b, c, -1L, -1L, -1L);
    _exit(result == -1 ? errno & 255 : 0);
  }
  if (child < 0 || waitpid(child, &status, 0) < 0) { printf("%s %ld%s fork %s\n", section, number, extra, error_name(errno)); return; }
  if (WIFSIGNALED(status)) printf("%s %ld%s signal %d\n", section, number, extra, WTERMSIG(status));
  else printf("%s %ld%s %s\n", section, number, extra, error_name(WEXITSTATUS(status)));
}

static void calls(void) {
  char extra[64];
  for (long number = 0; number <= 475; number++) {
    /* These have effects, or do not end: sync, vhangup, pause. */
    if (number == SYS_sync || number == SYS_vhangup || number == SYS_pause) continue;
    attempt("call", number, 0, -1, -1, -1, "");
  }
  for (long number = 0; number <= 475; number++) {
    /* The same calls, and sigsuspend. */
    if (number == 29 || number == 36 || number == 72 || number == 111) continue;
    attempt("call32", number, 1, -1, -1, -1, "");
  }
  for (long family = 0; family < 48; family++) {
    snprintf(extra, sizeof extra, " socket(%ld)", family);
    attempt("socket", SYS_socket, 0, family, 2, 0, extra);
    snprintf(extra, sizeof extra, " socket(%ld + high bit)", family);
    attempt("socket", SYS_socket, 0, family | 1L << 32, 2, 0, extra);
    snprintf(extra, sizeof extra, " socket32(%ld)", family);
    attempt("socket", 359, 1, family, 2, 0, extra);
  }
  for (int bit = 0; bit < 32; bit++) {
    snprintf(extra, sizeof extra, " personality(1 << %d)", bit);
    attempt("personality", SYS_personality, 0, 1L << bit, 0, 0, extra);
  }
  static const struct { const char *name; long flag; } flags[] = {
      {"newns", 0x20000}, {"newcgroup", 0x2000000}, {"newuts", 0x4000000}, {"newipc", 0x8000000},
      {"newuser", 0x10000000}, {"newpid", 0x20000000}, {"newnet", 0x40000000}, {"newtime", 0x80}};
  for (unsigned i = 0; i < 8; i++) {
    snprintf(extra, sizeof extra, " clone(%s)", flags[i].name);
    attempt("clone", SYS_clone, 0, flags[i].flag | SIGCHLD, 0, 0, extra);
    snprintf(extra, sizeof extra, " unshare(%s)", flags[i].name);
    attempt("clone", SYS_unshare, 0, flags[i].flag, 0, 0, extra);
  }
  attempt("call", SYS_chroot, 0, (long)"/", 0, 0, " chroot");
  attempt("call", SYS_sethostname, 0, (long)"x", 100000, 0, " sethostname");
  attempt("call", SYS_ptrace, 0, 0, 0, 0, " traceme");
  attempt("call", SYS_keyctl, 0, 0, -3, 0, " session keyring");
  attempt("call", SYS_setuid, 0, 12345, 0, 0, " setuid");
  attempt("call", SYS_setgid, 0, 12345, 0, 0, " setgid");
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOFBF, 1 << 20);
  descriptors();
  process();
  print_file("status", "/proc/self/status");
  print_file("mount", "/proc/self/mountinfo");
  devices("/dev", 3);
  made_devices();
  places();
  writable("/proc", 8);
  writable("/sys", 5);
  if (argc > 1 && !strcmp(argv[1], "calls")) calls();
  printf("end\n");
  return 0;
}
