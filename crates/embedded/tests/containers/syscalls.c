// Makes system calls with senseless arguments and prints the result of each: "ARCH NUMBER ok|ERRNO|signal|exit|hang".
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NATIVE, I386, X32 };
static const char *const NAMES[] = {"64", "32", "x32"};
enum { UNKNOWN = -100000 };

#ifdef __x86_64__
static long native(long number, long a, long b, long c) {
    long result;
    register long r10 __asm__("r10") = -1, r8 __asm__("r8") = -1, r9 __asm__("r9") = -1;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
static long i386(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c), "S"(-1), "D"(-1)
                     : "r8", "r9", "r10", "r11", "memory");
    return (int)result;
}
#else
static long native(long number, long a, long b, long c) {
    long result = syscall(number, a, b, c, -1L, -1L, -1L);
    return result == -1 ? -errno : result;
}
static long i386(long number, long a, long b, long c) { (void)number, (void)a, (void)b, (void)c; return -ENOSYS; }
#endif

static void print(const char *prefix, long result) {
    if (result < 0 && result >= -4095) printf("%s %ld\n", prefix, -result);
    else printf("%s ok\n", prefix);
}

static void try_number(int kind, long number, volatile long *slot) {
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%s %ld", NAMES[kind], number);
    *slot = UNKNOWN;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (kind == I386) *slot = i386(number, -1, -1, -1);
        else *slot = native(kind == X32 ? 0x40000000 | number : number, -1, -1, -1);
        for (;;) native(SYS_exit_group, 7, 0, 0);
    }
    int status = 0, waited = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
        if (++waited == 300) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            break;
        }
    }
    if (*slot != UNKNOWN) print(prefix, *slot);
    else if (waited == 300) printf("%s hang\n", prefix);
    else printf("%s %s\n", prefix, WIFSIGNALED(status) ? "signal" : "exit");
}

static sigjmp_buf no_emulation;
static void illegal(int signal) { siglongjmp(no_emulation, signal); }

static int has_i386(void) {
#ifdef __x86_64__
    signal(SIGSEGV, illegal);
    int has = sigsetjmp(no_emulation, 1) == 0 && i386(20 /* getpid */, 0, 0, 0) == getpid();
    signal(SIGSEGV, SIG_DFL);
    return has;
#else
    return 0;
#endif
}

// Forks like clone(2). The child ends at once.
static long cloned(long result) {
    if (result == 0) _exit(0);
    return result;
}

static long pair(long family, int *ends) {
    long result = syscall(SYS_socketpair, family, SOCK_STREAM, 0, ends);
    return result < 0 ? -errno : result;
}

static void arguments(void) {
    long high = 1L << 32;
    print("socket-unix", native(SYS_socket, AF_UNIX, SOCK_STREAM, 0));
    print("socket-vsock", native(SYS_socket, 40, SOCK_STREAM, 0));
    print("socket-vsock-high", native(SYS_socket, high | 40, SOCK_STREAM, 0));
    print("socket-alg", native(SYS_socket, 38, SOCK_SEQPACKET, 0));
    print("socket-alg-high", native(SYS_socket, high | 38, SOCK_SEQPACKET, 0));
    int pair64[2];
    print("socketpair-unix", pair(AF_UNIX, pair64));
    print("socketpair-vsock", pair(40, pair64));
    print("socketpair-vsock-high", pair(high | 40, pair64));
    print("clone-newuser", cloned(native(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0)));
    print("clone-newuser-high", cloned(native(SYS_clone, high | CLONE_NEWUSER | SIGCHLD, 0, 0)));
    struct clone_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    print("clone3-newuser", cloned(native(SYS_clone3, (long)&args, sizeof args, 0)));
    print("personality-ask", native(SYS_personality, 0xffffffff, 0, 0));
    print("personality-read-implies-exec", native(SYS_personality, 0x0400000, 0, 0));
    if (!has_i386()) return;
    print("i386-socket-unix", i386(359, AF_UNIX, SOCK_STREAM, 0));
    print("i386-socket-vsock", i386(359, 40, SOCK_STREAM, 0));
    print("i386-socket-alg", i386(359, 38, SOCK_SEQPACKET, 0));
    int32_t *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | 0x40 /* below 2 GiB */, -1, 0);
    low[0] = 40, low[1] = SOCK_STREAM, low[2] = 0;
    print("i386-socketcall-vsock", i386(102, 1, (long)low, 0));
    low[0] = 38, low[1] = SOCK_SEQPACKET;
    print("i386-socketcall-alg", i386(102, 1, (long)low, 0));
    low[0] = 40, low[1] = SOCK_STREAM, low[2] = 0, low[3] = (int32_t)(long)(low + 16);
    print("i386-socketcall-vsock-pair", i386(102, 8, (long)low, 0));
    print("i386-clone-newuser", cloned(i386(120, CLONE_NEWUSER | SIGCHLD, 0, 0)));
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOFBF, 1 << 20);
    if (argc > 1 && strcmp(argv[1], "arguments") == 0) {
        arguments();
        return 0;
    }
    // One for each call, because a process that a call has forked may write its result late.
    volatile long *slot = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int kind = NATIVE; kind <= X32; kind++) {
        if (kind == I386 && !has_i386()) continue;
#ifndef __x86_64__
        if (kind == X32) continue;
#endif
        for (long number = 0; number < 600; number++) try_number(kind, number, slot + kind * 600 + number);
    }
    return 0;
}
