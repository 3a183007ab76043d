"""Programs that take all they can get, and say what became of it."""

from __future__ import annotations

from textwrap import dedent

# What the bombs are held to. Small, so that they go off quickly.
MIB = 1 << 20
MEMORY = 128 * MIB
PROCESSES = 48
OPEN_FILES = 200
INODES = 600
PLACES = {"/workspace": 24 * MIB, "/tmp": 16 * MIB, "/home/sandbox": 8 * MIB, "/dev/shm": 12 * MIB}

# Each grows past every limit unless it is stopped; none gives anything back.
MEMORY_BOMBS = {
    "anonymous": """
        kept = []
        while True: kept.append(b"x" * (4 << 20))""",
    "anonymous in children": """
        import os, sys, time
        for _ in range(8):
            if os.fork() == 0:
                kept = b"x" * (40 << 20)
                time.sleep(1000)
        while True:
            _, status = os.wait()
            if os.WIFSIGNALED(status): sys.exit(128 + os.WTERMSIG(status))""",
    "shared": """
        import mmap
        kept = []
        while True:
            kept.append(mmap.mmap(-1, 4 << 20)); kept[-1].write(b"x" * (4 << 20))""",
    "memfd": """
        import os
        fd = os.memfd_create("bomb")
        while True: os.write(fd, b"x" * (1 << 20))""",
    "many memfds": """
        import os
        while True: os.write(os.memfd_create("bomb"), b"x" * (4 << 20))""",
    "System V segments": """
        import ctypes
        libc = ctypes.CDLL(None); libc.shmat.restype = ctypes.c_void_p
        while True:
            at = libc.shmat(libc.shmget(0, 4 << 20, 0o1600), None, 0)
            ctypes.memset(at, 1, 4 << 20)""",
    "files and memory": """
        import os
        for place in ("/workspace", "/tmp"):
            with open(f"{place}/bomb", "wb", 0) as f:
                try:
                    while True: f.write(b"x" * (1 << 20))
                except OSError: pass
        kept = []
        while True: kept.append(b"x" * (1 << 20))""",
}

# The kernel's buffers: each process fills as many as it may have open.
BUFFER_BOMBS = {
    "pipes": """
        import fcntl, os, time
        for _ in range(5): os.fork()
        try:
            while True:
                read_end, write_end = os.pipe(); os.set_blocking(write_end, False)
                try: fcntl.fcntl(write_end, 1031, 1 << 20)
                except OSError: pass
                try:
                    while True: os.write(write_end, b"x" * 65536)
                except BlockingIOError: pass
        except OSError: pass
        time.sleep(1000)""",
    "sockets": """
        import os, socket, time
        kept = []
        for _ in range(5): os.fork()
        try:
            while True:
                a, b = socket.socketpair(); kept += [a, b]; a.setblocking(False)
                a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
                try:
                    while True: a.send(b"x" * 65536)
                except BlockingIOError: pass
        except OSError: pass
        time.sleep(1000)""",
}

FILL = """
    import errno, os, sys
    place, = sys.argv[1:]
    written = 0
    try:
        with open(f"{place}/filler", "wb", 0) as f:
            while True: written += f.write(b"x" * 65536)
    except OSError as error: print(errno.errorcode[error.errno], written)"""

FILL_WITH_FILES = """
    import errno, os, sys
    place, = sys.argv[1:]
    made = 0
    try:
        while True: os.close(os.open(f"{place}/{made}", os.O_CREAT)); made += 1
    except OSError as error: print(errno.errorcode[error.errno], made)"""

HOG_DESCRIPTORS = """
    import errno, os, time
    for _ in range(4): os.fork()
    count = 0
    try:
        while True: os.dup(0); count += 1
    except OSError as error: print(errno.errorcode[error.errno], count, flush=True)
    time.sleep(1000)"""

HOG_WATCHERS = """
    import ctypes, errno, time
    libc, made = ctypes.CDLL(None, use_errno=True), 0
    while libc.inotify_init1(0) >= 0: made += 1
    print(made, errno.errorcode[ctypes.get_errno()], flush=True)
    time.sleep(1000)"""

HOG_DESCRIPTORS_IN_FLIGHT = """
    import array, errno, socket, time
    kept, sent = [], 0
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 253))]
    try:
        while True:
            a, b = socket.socketpair(); kept += [a, b]; a.setblocking(False)
            try:
                while True: a.sendmsg([b"x"], rights); sent += 253
            except BlockingIOError: pass
    except OSError as error: print(errno.errorcode[error.errno], sent, flush=True)
    time.sleep(1000)"""

# Takes every place for a process that there is, and every one that comes free.
HOLD_ALL_PLACES = """
    import os, time
    told = False
    while True:
        try:
            if os.fork() == 0: time.sleep(1000)
        except OSError:
            if not told: print("full", flush=True)
            told = True
            time.sleep(0.001)"""

FORK_LOOP = """
    #include <errno.h>
    #include <stdio.h>
    #include <unistd.h>
    int main(void) {
        int made = 0;
        for (;; made++) {
            pid_t pid = fork();
            if (pid == 0) { pause(); _exit(0); }
            if (pid < 0) break;
        }
        printf("%d %d\\n", made, errno == EAGAIN);
        return 3;
    }"""

THREAD_LOOP = """
    #include <errno.h>
    #include <pthread.h>
    #include <stdio.h>
    #include <unistd.h>
    static void *wait_for_ever(void *unused) { pause(); return unused; }
    int main(void) {
        pthread_attr_t small;
        pthread_attr_init(&small); pthread_attr_setstacksize(&small, 65536);
        int made = 0, error;
        pthread_t thread;
        while (!(error = pthread_create(&thread, &small, wait_for_ever, 0))) made++;
        printf("%d %d\\n", made, error == EAGAIN);
        fflush(stdout);
        _exit(3);
    }"""

# Every process lives for as long as a fork takes: whoever looks for it finds only its parent.
CHASE = """
    #include <signal.h>
    #include <unistd.h>
    int main(void) {
        signal(SIGCHLD, SIG_IGN);
        for (int i = 0; i < 4; i++) fork();
        for (;;) { setsid(); if (fork() > 0) _exit(0); }
    }"""

# Leaves its parent, its session and its process group, as daemons do, and goes on.
DAEMON = """
    import os, sys, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: os.execvp("sleep", ["sleep", sys.argv[1]])
        os._exit(0)
    os.wait()
    if len(sys.argv) > 2: time.sleep(1000)"""


def python(source: str) -> tuple[str, ...]:
    """Return the command that runs a bomb of Python."""
    return ("python3", "-c", dedent(source))
