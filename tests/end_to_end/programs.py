"""Ordinary programs and what they print: what people and models write and call every day."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True)
class Program:
    """A file, how it is run, what it prints (`~` starts a pattern) and what has to be installed."""

    name: str
    source: str
    prints: str
    runs: str = "bash program"
    needs: str = ""


def shell(name: str, source: str, prints: str, needs: str = "") -> Program:
    return Program(name, dedent(source), prints, needs=needs)


def python(name: str, source: str, prints: str = "ok", needs: str = "") -> Program:
    return Program(name, dedent(source), prints, "python3 program", f"python3 {needs}")


def node(name: str, source: str, prints: str = "ok") -> Program:
    return Program(name, dedent(source), prints, "node program", "node")


def c(name: str, source: str, prints: str = "ok") -> Program:
    runs = "gcc -Wall -Werror -D_GNU_SOURCE -pthread -o built -x c program && ./built"
    return Program(name, dedent(source), prints, runs, "gcc")


# --- tools ------------------------------------------------------------------------------------

REPOSITORY = """
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q -b main r && cd r && echo 1 > f && git add f && git commit -qm first
"""

GIT = [
    shell("git_commit_and_log", f"{REPOSITORY} git log --format=%s; git status --short",
          "first", "git"),
    shell("git_clone", f"{REPOSITORY} cd .. && git clone -q r copy && cat copy/f", "1", "git"),
    shell("git_diff", f"{REPOSITORY} echo 2 > f; git diff --shortstat",
          "1 file changed, 1 insertion(+), 1 deletion(-)", "git"),
    shell("git_merge_and_collect", f"""{REPOSITORY}
git switch -qc other && echo 2 > g && git add g && git commit -qm second && git switch -q main
git merge -q --no-ff -m merged other && git gc -q && git fsck 2>&1 && git log --oneline | wc -l""",
          "3", "git"),
]  # fmt: skip

BUILDING = [
    shell("gcc", """
        printf '#include <stdio.h>\\nint main(void) { puts("hello"); }' > a.c
        gcc -O2 -o a a.c && ./a""", "hello", "gcc"),
    shell("g++", """
        cat > a.cc <<END
        #include <iostream>
        #include <thread>
        int main() { std::thread t([] { std::cout << "hello" << std::endl; }); t.join(); }
        END
        g++ -pthread -o a a.cc && ./a""", "hello", "g++"),
    shell("shared_library", """
        echo 'int seven(void) { return 7; }' > l.c && gcc -shared -fPIC -o libl.so l.c
        python3 -c 'import ctypes; print(ctypes.CDLL("./libl.so").seven())'""", "7", "gcc"),
    shell("make_parallel", """
        printf 'all: a b\\na b:\\n\\t@sleep 0.05; echo made > $@\\n' > Makefile
        make -s -j4 && cat a b""", "made\nmade", "make"),
    shell("cmake", """
        echo 'cmake_minimum_required(VERSION 3.10)
        project(p C)
        add_executable(p p.c)' > CMakeLists.txt
        echo 'int main(void) { return 0; }' > p.c
        cmake -B build . > log && cmake --build build >> log && build/p && echo built""",
        "built", "cmake make"),
    shell("java_version", "java -version 2>&1 | grep -c version", "1", "java"),
    shell("java_program", """
        cat > Hello.java <<'END'
        import java.net.*;
        import java.nio.channels.*;
        import java.util.concurrent.*;
        public class Hello {
            public static void main(String[] arguments) throws Exception {
                Selector selector = Selector.open();
                ServerSocketChannel server = ServerSocketChannel.open();
                server.bind(new InetSocketAddress("127.0.0.1", 0));
                server.configureBlocking(false);
                server.register(selector, SelectionKey.OP_ACCEPT);
                int port = ((InetSocketAddress) server.getLocalAddress()).getPort();
                ExecutorService pool = Executors.newFixedThreadPool(4);
                pool.submit(() -> new Socket("127.0.0.1", port));
                System.out.println("hello " + selector.select(20000));
                System.exit(0);
            }
        }
        END
        javac Hello.java && java -Xmx128m Hello""", "hello 1", "javac"),
    shell("gdb_version", "gdb --version | head -1 | cut -c1-7", "GNU gdb", "gdb"),
    # Debuggers start, but cannot trace: that reaches into rarely tested kernel code.
    python("tracing_is_refused", """
        import ctypes, errno
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.ptrace(0, 0, 0, 0), errno.errorcode[ctypes.get_errno()])""", "-1 EPERM"),
]  # fmt: skip

TOOLS = [
    shell("npm_version", "npm --version", r"~\d+\.\d+\.\d+", "npm"),
    shell("npm_run", """
        echo '{"name": "p", "version": "1.0.0", "scripts": {"hi": "echo hi"}}' > package.json
        npm run --silent hi""", "hi", "npm"),
    shell("sqlite3", """
        sqlite3 t.db 'create table t(a); insert into t values (1), (2); select sum(a) from t;'
        sqlite3 t.db 'pragma journal_mode = wal; select count(*) from t;'""",
        "3\nwal\n2", "sqlite3"),
    *(shell(f"tar_{kind}", f"""
        mkdir d e && echo packed > d/f && tar caf d.tar{ending} d && tar xf d.tar{ending} -C e
        cat e/d/f""", "packed", kind)
      for kind, ending in (("tar", ""), ("gzip", ".gz"), ("xz", ".xz"), ("bzip2", ".bz2"))),
    shell("zip_and_unzip", "echo 1 > f && zip -q a.zip f && rm f && unzip -q a.zip && cat f",
          "1", "zip unzip"),
    shell("grep_sed_awk", """
        seq 1 20 > n; grep -c 1 n; sed -n 's/^7$/seven/p' n; awk '{ s += $1 } END { print s }' n""",
        "11\nseven\n210"),
    shell("sort_cut_uniq_tr", "seq 1 20 | sort -rn | cut -c1 | uniq | tr 1 x | head -3", "2\nx\n9"),
    shell("bc_and_paste", "seq 1 20 | paste -sd+ | bc", "210", "bc"),
    shell("find_and_xargs", """
        mkdir -p a/b && touch a/1.txt a/b/2.txt
        find a -name '*.txt' -print0 | sort -z | xargs -0 -n1 ls""", "a/1.txt\na/b/2.txt"),
    shell("sort_larger_than_its_memory", """
        seq 1 200000 | sort -R --random-source=/dev/zero -S 1M | sort -n -S 1M | tail -1""",
        "200000"),
    shell("perl", """
        perl -MPOSIX -e 'print strftime("%Y", gmtime(0)), " ", join(",", sort(3, 1, 2)), "\\n"'""",
        "1970 1,2,3", "perl"),
    shell("openssl_random_and_digest", """
        openssl rand -hex 8 | wc -c; printf abc | openssl dgst -sha256 -r | cut -c1-8""",
        "17\nba7816bf", "openssl"),
    shell("openssl_certificate", """
        openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout key -out cert 2> log
        openssl x509 -noout -subject -in cert | tr -d ' '""", "subject=CN=x", "openssl"),
    shell("curl_version", "curl --version | head -1 | cut -d' ' -f1", "curl", "curl"),
    shell("curl_from_a_server", """
        echo page > index.html; python3 -m http.server 8000 --bind 127.0.0.1 > log 2>&1 &
        for i in $(seq 1000); do curl -sf http://localhost:8000/ && break; sleep 0.05; done
        kill %1""", "page", "curl python3"),
    shell("curl_without_network", "curl -s --max-time 5 http://192.0.2.1/; echo $?", "7", "curl"),
    shell("jq", """echo '{"a": [1, 2]}' | jq -c .a""", "[1,2]", "jq"),
    shell("ps", "ps -o user=,comm= -p $$", "~sandbox +bash", "ps"),
    shell("top", "top -b -n1 | grep -c Tasks", "1", "top"),
    shell("free", "free -m | grep -c Mem", "1", "free"),
    shell("uptime_and_nproc", "uptime | grep -c load; nproc", r"~1\n\d+", "uptime"),
    shell("pgrep_and_pkill", """
        sleep 1000 & until pgrep -x sleep > /dev/null; do :; done
        pkill -x sleep; wait $!; echo $?""", "143", "pgrep"),
    shell("vim_batch", "vim -es -u NONE -c 'normal ihello' -c 'wq out' < /dev/null; cat out",
          "hello", "vim"),
    shell("tmux_detached", """
        tmux -f /dev/null new-session -d 'echo from tmux > out'
        for i in $(seq 1000); do test -s out && break; sleep 0.05; done; cat out""",
        "from tmux", "tmux"),
]  # fmt: skip

# --- the shell and what it reaches ------------------------------------------------------------

SHELL = [
    shell("process_substitution", "diff <(seq 1 3) <(seq 1 3) && echo same", "same"),
    shell("here_document", "cat <<END\n$((6 * 7))\nEND\ncat <<< here", "42\nhere"),
    shell("pipelines", "set -o pipefail; false | true; echo $?; seq 5 | tail -1", "1\n5"),
    shell("trap_and_signals", """
        trap 'echo got usr1' USR1; trap 'echo bye' EXIT; kill -USR1 $$; echo on""",
        "got usr1\non\nbye"),
    shell("job_control", """
        set -m; sleep 1000 & kill -STOP %1; until jobs | grep -o Stopped; do sleep 0.01; done
        kill -CONT %1; kill %1; wait %1 2> /dev/null; echo $?""", "Stopped\n143"),
    shell("sleeping_loop", "for i in 1 2 3; do sleep 0.05; echo tick $i; done",
          "tick 1\ntick 2\ntick 3"),
    shell("timeout_command", "timeout 0.2 sleep 1000; echo $?", "124"),
    shell("nice", "nice -n 5 nice", "5"),
    shell("ulimit", "(ulimit -n 64; ulimit -n); ulimit -c", "64\n0"),
    shell("nohup_and_setsid", "nohup sh -c 'echo a' 2> log; setsid -w sh -c 'echo b'", "a\nb"),
    shell("exit_codes", "(exit 3); echo $?; no-such-program 2> log; echo $?", "3\n127"),
    shell("recursion", "f() { [ $1 = 0 ] && echo bottom || f $(($1 - 1)); }; f 1000", "bottom"),
    shell("large_argument", """
        x=$(head -c 100000 /dev/zero | tr '\\0' a); /bin/echo $x | wc -c""", "100001"),
    shell("many_arguments", "/bin/echo $(seq 1 100000) | wc -w", "100000"),
    shell("large_environment", """
        export BIG=$(head -c 100000 /dev/zero | tr '\\0' b); env | grep ^BIG= | wc -c""", "100005"),
    shell("identity", "id -un; id -u; id -gn; whoami", "sandbox\n65532\nsandbox\nsandbox"),
    shell("host_name_and_home", "hostname; uname -n; cd && pwd; echo $USER",
          "atoll\natoll\n/home/sandbox\nsandbox", "hostname"),
    shell("name_services", """
        getent hosts localhost | awk '{ print $2 }'; getent passwd sandbox | cut -d: -f6""",
        "localhost\n/home/sandbox", "getent"),
    shell("service_names", "getent services http | awk '{ print $2 }'", "80/tcp",
          "getent /etc/services"),
    shell("locale", "locale charmap; printf 'ä€𝄞' | wc -m; echo $LANG",
          "UTF-8\n3\nC.UTF-8", "locale"),
    shell("time_zones", """
        TZ=Asia/Tokyo date -d @0 +%H:%M; TZ=America/New_York date -d @0 +%H:%M""", "09:00\n19:00",
          "/usr/share/zoneinfo/Asia/Tokyo"),
    shell("script_makes_a_terminal", """
        script -qec 'tty | cut -c1-8; stty size' /dev/null < /dev/null | tr -d '\\r'""",
        "/dev/pts\n0 0", "script"),
]  # fmt: skip

FILES = [
    shell("dev_stdout_and_stdin", """
        echo out > /dev/stdout; echo in | cat /dev/stdin; cat /dev/stdin""", "out\nin"),
    Program("dev_stderr", "echo err > /dev/stderr", "err", "bash program 2>&1 > /dev/null"),
    Program("tee_to_standard_error", "echo both | tee /dev/stderr", "both\nboth",
            "bash program 2>&1"),
    shell("dev_fd", "exec 7> f; echo a > /dev/fd/7; echo b > /proc/self/fd/7; tail -1 f", "b"),
    shell("dev_null_and_zero", """
        cat /dev/null; echo x > /dev/null; head -c 3 /dev/zero | od -An -tx1""", "00 00 00"),
    shell("dev_full", "echo x 2>&1 > /dev/full | grep -o 'No space left'", "No space left"),
    shell("dev_random", "for d in random urandom; do head -c 4 /dev/$d | wc -c; done", "4\n4"),
    shell("no_terminal", "tty; (echo > /dev/tty) 2>&1 | grep -o 'No such device'",
          "not a tty\nNo such device"),
    shell("links", """
        echo 1 > f; ln f hard; ln -s f soft; stat -c %h f; readlink soft; cat hard soft""",
        "2\nf\n1\n1"),
    shell("modes", "echo 1 > f; chmod 640 f; install -m 700 f g; stat -c %a f g; umask",
          "640\n700\n0022"),
    shell("copies_with_all_they_carry", """
        touch -d @1000000000 f; cp -a f g; cp --preserve=all f h; stat -c %Y g h""",
        "1000000000\n1000000000"),
    shell("fifo", "mkfifo p; echo through > p & cat p; wait", "through"),
    shell("flock", "(flock 9; flock -n lock true || echo held) 9> lock; flock -n lock echo free",
          "held\nfree", "flock"),
    shell("programs_from_everywhere", """
        for d in /workspace /tmp /home/sandbox; do cp /bin/echo $d/e && $d/e ran; done
        printf '#!/bin/sh\\necho script\\n' > s && chmod +x s && ./s""", "ran\nran\nran\nscript"),
    shell("sparse_file", "truncate -s 1G f; stat -c '%s %b' f", "1073741824 0"),
    shell("fallocate", "fallocate -l 1M f; stat -c %s f", "1048576", "fallocate"),
    shell("dd", "dd if=/dev/zero of=f bs=1M count=2 conv=fsync status=none; stat -c %s f",
          "2097152"),
    shell("df_and_du", "df --output=size,target . | tail -1; echo 12345 > f; du -b f | cut -f1",
          r"~524288 /workspace\n6"),
    shell("mktemp", 'd=$(mktemp -d) && f=$(mktemp -p "$d") && test -f "$f" && dirname "$d"',
          "/tmp"),
    shell("proc_of_the_machine", """
        grep -c '^processor' /proc/cpuinfo; grep -c MemTotal /proc/meminfo
        wc -w < /proc/loadavg""", r"~\d+\n1\n5"),
    shell("proc_of_processes", """
        grep '^Name' /proc/self/status | cut -f2; cat /proc/1/comm; ls /proc/self/fd | wc -l""",
        "grep\ninit\n4"),
]  # fmt: skip

# --- Python -----------------------------------------------------------------------------------

PYTHON = [
    python("python_venv", """
        import subprocess, sys
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "env"], check=True)
        subprocess.run(["env/bin/python", "-c", "import sys; print(sys.prefix)"], check=True)""",
        "/workspace/env"),
    shell("python_venv_with_pip", """
        python3 -c 'import ensurepip' 2> log || { echo no ensurepip; exit; }
        python3 -m venv env && env/bin/python -m pip --version | cut -d' ' -f1""",
        "~pip|no ensurepip", "python3"),
    python("python_unittest", """
        import io, unittest
        class Case(unittest.TestCase):
            def test_true(self): self.assertTrue(True)
            def test_false(self): self.assertTrue(False)
        cases = unittest.defaultTestLoader.loadTestsFromTestCase(Case)
        result = unittest.TextTestRunner(io.StringIO()).run(cases)
        print(result.testsRun, len(result.failures))""", "2 1"),
    python("python_recursion", """
        import sys, threading
        sys.setrecursionlimit(200_000)
        def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
        print(depth(5_000))
        threading.stack_size(256 << 20)
        thread = threading.Thread(target=lambda: print(depth(50_000)))
        thread.start(); thread.join()""", "5000\n50000"),
    python("python_big_data", """
        import array
        print(sum(array.array("l", range(5_000_000))))""", "12499997500000"),
    python("python_accounts", """
        import getpass, grp, os, pathlib, pwd
        print(pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name)
        print(getpass.getuser(), pathlib.Path.home())""", "sandbox sandbox\nsandbox /home/sandbox"),
    python("python_zoneinfo", """
        import datetime, zoneinfo
        moment = datetime.datetime.fromtimestamp(0, zoneinfo.ZoneInfo("Europe/Berlin"))
        print(moment.hour, len(zoneinfo.available_timezones()) > 400)""", "1 True",
        "/usr/share/zoneinfo/Europe/Berlin"),
    python("python_chance_and_time", """
        import os, secrets, time, uuid
        time.sleep(0.01); time.clock_gettime(time.CLOCK_BOOTTIME)
        print(len(os.urandom(8)), len(secrets.token_hex(4)), uuid.uuid1().version)""", "8 8 1"),
    python("python_sqlite3", """
        import sqlite3
        a, b = sqlite3.connect("t.db"), sqlite3.connect("t.db")
        a.execute("pragma journal_mode = wal"); a.execute("create table t (x)")
        with a: a.executemany("insert into t values (?)", [(n,) for n in range(1000)])
        print(b.execute("select sum(x) from t").fetchone()[0]); a.close(); b.close()""", "499500"),
    python("python_archives", """
        import bz2, gzip, lzma, tarfile, zipfile
        data = b"x" * 10000
        print([each.decompress(each.compress(data)) == data for each in (gzip, lzma, bz2)])
        with zipfile.ZipFile("z", "w") as z: z.writestr("a", data)
        with tarfile.open("t", "w:xz") as t: t.add("z")
        with tarfile.open("t") as t: print(t.getnames())
        with zipfile.ZipFile("z") as z: print(z.namelist())""",
        "[True, True, True]\n['z']\n['a']"),
]  # fmt: skip

PYTHON_PROCESSES = [
    python("python_threads", """
        import queue, threading
        done = queue.Queue()
        threads = [threading.Thread(target=done.put, args=(n,)) for n in range(50)]
        for each in threads: each.start()
        for each in threads: each.join()
        print(done.qsize())""", "50"),
    python("python_futures", """
        from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
        if __name__ == "__main__":
            with ProcessPoolExecutor(2) as processes: print(sum(processes.map(abs, range(-5, 5))))
            with ThreadPoolExecutor(4) as threads: print(sum(threads.map(abs, range(-5, 5))))""",
        "25\n25"),
    *(python(f"python_multiprocessing_{method}", f"""
        import multiprocessing
        def double(x): return 2 * x
        if __name__ == "__main__":
            multiprocessing.set_start_method({method!r})
            with multiprocessing.Pool(2) as pool: print(pool.map(double, [1, 2, 3]))""",
        "[2, 4, 6]")
      for method in ("fork", "spawn", "forkserver")),
    python("python_multiprocessing_primitives", """
        import multiprocessing as m
        def work(lock, count, done, queue, pipe):
            with lock: count.value += 1
            done.release(); queue.put("q"); pipe.send("p")
        if __name__ == "__main__":
            m.set_start_method("fork")
            lock, count, done, queue = m.Lock(), m.Value("i", 0), m.Semaphore(0), m.Queue()
            ours, theirs = m.Pipe()
            child = m.Process(target=work, args=(lock, count, done, queue, theirs)); child.start()
            done.acquire(); print(queue.get(), ours.recv()); child.join(); print(count.value)""",
        "q p\n1"),
    python("python_multiprocessing_manager", """
        import multiprocessing
        if __name__ == "__main__":
            with multiprocessing.Manager() as manager: print(manager.dict(a=1)["a"])""", "1"),
    python("python_shared_memory", """
        from multiprocessing import shared_memory
        ours = shared_memory.SharedMemory(create=True, size=1000); ours.buf[0] = 7
        theirs = shared_memory.SharedMemory(ours.name); print(theirs.buf[0])
        theirs.close(); ours.close(); ours.unlink()""", "7"),
    python("python_asyncio_subprocess", """
        import asyncio
        async def main():
            process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
            print((await process.communicate(b"through cat"))[0].decode())
        asyncio.run(main())""", "through cat"),
    python("python_posix_spawn", """
        import os, subprocess
        pid = os.posix_spawn("/bin/echo", ["echo", "spawned"], os.environ, resetids=True)
        os.waitpid(pid, 0)
        print(subprocess.run(["sh", "-c", "exit 4"], start_new_session=True).returncode)""",
        "spawned\n4"),
    python("python_makes_sure_of_its_ids", """
        import os
        os.setuid(os.getuid()); os.setgid(os.getgid()); os.seteuid(os.getuid())
        os.setresgid(-1, os.getgid(), -1); os.setregid(os.getgid(), os.getgid()); print("ok")"""),
    python("python_process_descriptors", """
        import os, signal
        child = os.fork()
        if child == 0: os.setsid(); signal.pause()
        while os.getsid(child) != child: pass
        fd = os.pidfd_open(child); signal.pidfd_send_signal(fd, signal.SIGTERM)
        print(os.waitid(os.P_PIDFD, fd, os.WEXITED).si_status); os.close(fd)""", "15"),
    python("python_signals", """
        import signal
        signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
        signal.setitimer(signal.ITIMER_REAL, 0.05); signal.pause()
        print(signal.sigtimedwait([signal.SIGUSR1], 0.01))""", "alarm\nNone"),
    python("python_scheduling", """
        import os, resource
        os.sched_setaffinity(0, os.sched_getaffinity(0)); os.sched_yield(); os.nice(1)
        print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))
        print(resource.getrlimit(resource.RLIMIT_CORE), os.cpu_count() > 0)""",
        "1 0\n(0, 0) True"),
    python("python_pty_spawn", """
        import os, pty
        seen = []
        def read(fd):
            seen.append(os.read(fd, 1024)); return seen[-1]
        pty.spawn(["sh", "-c", "test -t 1 && tty | cut -c1-8"], read)""", "/dev/pts"),
    python("python_terminal_modes", """
        import fcntl, os, pty, struct, termios, tty
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
        tty.setraw(theirs)
        print(tuple(os.get_terminal_size(ours)), os.ttyname(theirs).startswith("/dev/pts/"))""",
        "(90, 30) True"),
]  # fmt: skip

PYTHON_NETWORK = [
    python("python_http_server", """
        import http.server, threading, urllib.request
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200); self.end_headers(); self.wfile.write(self.path.encode())
            def log_message(self, *args): pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://localhost:{server.server_port}/x") as page:
            print(page.read().decode())
        server.shutdown(); server.server_close()""", "/x"),
    python("python_asyncio_streams", """
        import asyncio
        async def serve(reader, writer):
            writer.write(await reader.readline()); await writer.drain(); writer.close()
        async def main():
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"echo\\n"); print((await reader.readline()).decode(), end="")
            writer.close(); server.close()
        asyncio.run(main())""", "echo"),
    *(python(f"python_ip_{version}", f"""
        import socket
        server = socket.create_server(({bound!r}, 0), family=socket.AF_INET6, dualstack_ipv6={dual})
        with socket.create_connection(({address!r}, server.getsockname()[1])) as client:
            peer, _ = server.accept(); client.sendall(b"sent"); print(peer.recv(4)); peer.close()
        server.close()""", "b'sent'")
      for version, bound, address, dual in
      (("6", "::1", "::1", False), ("4_and_6", "", "127.0.0.1", True))),
    *(python(f"python_unix_socket_{kind}", f"""
        import os, socket
        server = socket.socket(socket.AF_UNIX); server.bind({address}); server.listen()
        client = socket.socket(socket.AF_UNIX); client.connect({address})
        peer, _ = server.accept(); socket.send_fds(client, [b"x"], [0])
        data, fds, _, _ = socket.recv_fds(peer, 1, 1); print(data, len(fds)); os.close(fds[0])
        for each in (server, client, peer): each.close()""", "b'x' 1")
      for kind, address in (("by_path", "'socket'"), ("abstract", "'\\\\0name'"))),
    python("python_udp", """
        import socket
        a, b = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
        a.bind(("127.0.0.1", 0)); b.sendto(b"datagram", a.getsockname()); print(a.recv(100))
        a.close(); b.close()""", "b'datagram'"),
    python("python_interfaces", """
        import socket
        print(socket.if_nameindex(), socket.gethostbyname("localhost"), socket.gethostname())""",
        "[(1, 'lo')] 127.0.0.1 atoll"),
    python("python_no_name_service", """
        import socket
        try: socket.getaddrinfo("example.org", 80)
        except socket.gaierror: print("no address")""", "no address"),
    python("python_tls", """
        import os, ssl
        context = ssl.create_default_context()
        paths = ssl.get_default_verify_paths()
        print(len(context.get_ca_certs()) > 50 or len(os.listdir(paths.capath)) > 50)""",
        "True", "/etc/ssl/certs/ca-certificates.crt"),
]  # fmt: skip

PYTHON_FILES = [
    python("python_tempfile", """
        import tempfile
        with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile(dir=d) as f:
            f.write(b"x"); print(d.startswith("/tmp/"))
        with tempfile.TemporaryFile() as f: print(f.write(b"xy"))""", "True\n2"),
    python("python_epoll_and_eventfd", """
        import os, select
        with select.epoll() as e:
            event = os.eventfd(0); e.register(event, select.EPOLLIN); os.eventfd_write(event, 3)
            print(len(e.poll(5)), os.eventfd_read(event)); os.close(event)""", "1 3"),
    python("python_mmap", """
        import mmap, os
        shared = mmap.mmap(-1, 4096)
        if os.fork() == 0: shared[:5] = b"child"; os._exit(0)
        os.wait(); print(shared[:5])
        with open("f", "w+b") as f:
            f.truncate(4096)
            with mmap.mmap(f.fileno(), 0) as m: m[:4] = b"disk"; m.flush()
            print(f.read(4))""", "b'child'\nb'disk'"),
    python("python_memfd", """
        import os, pathlib
        fd = os.memfd_create("m"); os.write(fd, pathlib.Path("/bin/echo").read_bytes())
        os.execve(fd, ["echo", "ran from memory"], os.environ)""", "ran from memory"),
    python("python_file_locks", """
        import fcntl, os
        with open("f", "w") as f:
            fcntl.lockf(f, fcntl.LOCK_EX)
            if os.fork() == 0:
                try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError: print("held", flush=True)
                os._exit(0)
            os.wait()""", "held"),
    python("python_vectors_and_advice", """
        import os
        f = os.open("f", os.O_RDWR | os.O_CREAT); os.posix_fallocate(f, 0, 8192)
        print(os.pwritev(f, [b"a", b"b"], 10), os.preadv(f, [bytearray(2)], 10))
        os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED); os.fdatasync(f); os.sync()
        g = os.open("g", os.O_RDWR | os.O_CREAT)
        print(os.sendfile(g, f, 0, 8192), os.copy_file_range(f, g, 100, 0))
        os.close(f); os.close(g)""", "2 2\n8192 100"),
    python("python_shutil", """
        import os, shutil
        os.makedirs("d/e"); open("d/e/f", "w").close(); os.utime("d/e/f", (1, 1))
        os.link("d/e/f", "d/g"); shutil.copytree("d", "/tmp/copy")
        shutil.copy2("/bin/ls", "ls"); shutil.move("d", "/tmp/moved")
        print(os.stat("/tmp/moved/e/f").st_mtime, sorted(os.listdir("/tmp/copy")))
        print(shutil.disk_usage(".").total); shutil.rmtree("/tmp/copy")""",
        "1.0 ['e', 'g']\n536870912"),
    # No file can be given attributes; the answer is one that copying programs pass over.
    python("python_attributes_of_files", """
        import errno, os
        open("f", "w").close()
        try: os.setxattr("f", "user.a", b"1")
        except OSError as error: print(errno.errorcode[error.errno], os.listxattr("f"))""",
        "ENOTSUP []"),
]  # fmt: skip

# --- JavaScript -------------------------------------------------------------------------------

NODE = [
    node("node_script", "console.log(process.platform, [1, 2].map(x => x * 2).join())",
         "linux 2,4"),
    node("node_files", """
        const fs = require("fs"); fs.writeFileSync("f", "text"); fs.cpSync("f", "g");
        fs.promises.readFile("g", "utf8").then(text =>
          console.log(text, fs.readdirSync(".").length));""", "text 3"),
    node("node_worker_threads", """
        const { Worker, isMainThread, parentPort } = require("worker_threads");
        if (isMainThread) new Worker(__filename).on("message", m => console.log(m));
        else parentPort.postMessage("from a worker");""", "from a worker"),
    node("node_http", """
        const http = require("http");
        const server = http.createServer((q, r) => r.end("page " + q.url));
        server.listen(0, "127.0.0.1", () =>
          http.get({ port: server.address().port, path: "/x", host: "127.0.0.1" }, r => {
            r.on("data", d => console.log(d.toString()));
            r.on("end", () => server.close());
          }));""", "page /x"),
    node("node_child_process", """
        const { execSync, spawn } = require("child_process");
        console.log(execSync("echo child").toString().trim());
        spawn("sh", ["-c", "exit 3"]).on("exit", code => console.log(code));""", "child\n3"),
    node("node_watch", """
        const fs = require("fs"); fs.mkdirSync("d");
        const watcher = fs.watch("d", (event, name) => {
          console.log(event, name); watcher.close();
        });
        fs.writeFileSync("d/f", "x");""", "rename f"),
    node("node_webassembly", """
        const module = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127, 3, 2, 1, 0,
          7, 5, 1, 1, 102, 0, 0, 10, 6, 1, 4, 0, 65, 42, 11];
        WebAssembly.instantiate(new Uint8Array(module)).then(m =>
          console.log(m.instance.exports.f()));""", "42"),
]  # fmt: skip

# --- C ----------------------------------------------------------------------------------------

C = [
    c("c_calls_of_old", """
        #include <fcntl.h>
        #include <signal.h>
        #include <stdio.h>
        #include <sys/epoll.h>
        #include <sys/inotify.h>
        #include <sys/resource.h>
        #include <sys/syscall.h>
        #include <sys/time.h>
        #include <unistd.h>
        #include <utime.h>
        int main(void) {
            struct rlimit files;
            if (creat("f", 0600) < 0) perror("creat");
            if (epoll_create(10) < 0) perror("epoll_create");
            if (inotify_init() < 0) perror("inotify_init");
            if (utime("f", 0) || utimes("f", 0)) perror("utime");
            if (getrlimit(RLIMIT_NOFILE, &files) || setrlimit(RLIMIT_NOFILE, &files))
                perror("rlimit");
            if (syscall(SYS_tkill, gettid(), 0)) perror("tkill");
            puts("ok");
        }"""),
    c("c_inotify", """
        #include <fcntl.h>
        #include <stdio.h>
        #include <sys/inotify.h>
        #include <unistd.h>
        int main(void) {
            char buffer[4096] __attribute__((aligned(8)));
            int fd = inotify_init1(IN_CLOEXEC);
            inotify_add_watch(fd, ".", IN_CREATE);
            close(open("made", O_CREAT | O_WRONLY, 0600));
            if (read(fd, buffer, sizeof buffer) > 0) puts(((struct inotify_event *)buffer)->name);
        }""", "made"),
    c("c_signalfd_and_timerfd", """
        #include <signal.h>
        #include <stdint.h>
        #include <stdio.h>
        #include <sys/signalfd.h>
        #include <sys/timerfd.h>
        #include <unistd.h>
        int main(void) {
            sigset_t set;
            sigemptyset(&set); sigaddset(&set, SIGUSR1); sigprocmask(SIG_BLOCK, &set, 0);
            int signals = signalfd(-1, &set, 0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
            raise(SIGUSR1);
            struct signalfd_siginfo info; uint64_t count = 0;
            struct itimerspec soon = {.it_value.tv_nsec = 1000000};
            timerfd_settime(timer, 0, &soon, 0);
            if (read(signals, &info, sizeof info) < 0 || read(timer, &count, sizeof count) < 0)
                perror("read");
            printf("%d %d\\n", info.ssi_signo == SIGUSR1, (int)count);
        }""", "1 1"),
    c("c_timers", """
        #include <signal.h>
        #include <stdio.h>
        #include <time.h>
        static volatile int rang;
        static void ring(int number) { rang = number; }
        int main(void) {
            signal(SIGRTMIN, ring);
            struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
            struct itimerspec soon = {.it_value.tv_nsec = 1000000};
            timer_t timer;
            if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &soon, 0))
                perror("timer");
            while (!rang) nanosleep(&soon.it_value, 0);
            if (timer_delete(timer)) perror("timer_delete");
            puts("ok");
        }"""),
    c("c_threads_and_semaphores", """
        #include <fcntl.h>
        #include <pthread.h>
        #include <semaphore.h>
        #include <stdio.h>
        static int count;
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        static void *work(void *done) {
            for (int i = 0; i < 1000; i++) {
                pthread_mutex_lock(&lock); count++; pthread_mutex_unlock(&lock);
            }
            sem_post(done);
            return 0;
        }
        int main(void) {
            sem_t *done = sem_open("/name", O_CREAT, 0600, 0);
            pthread_t threads[20];
            for (int i = 0; i < 20; i++) pthread_create(&threads[i], 0, work, done);
            for (int i = 0; i < 20; i++) { sem_wait(done); pthread_join(threads[i], 0); }
            sem_unlink("/name"); printf("%d\\n", count);
        }""", "20000"),
    c("c_system_v_memory_and_semaphores", """
        #include <stdio.h>
        #include <string.h>
        #include <sys/ipc.h>
        #include <sys/sem.h>
        #include <sys/shm.h>
        int main(void) {
            int memory = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
            int semaphore = semget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
            char *at = shmat(memory, 0, 0);
            struct sembuf up = {0, 1, 0};
            if (memory < 0 || semaphore < 0 || at == (void *)-1 || semop(semaphore, &up, 1))
                perror("ipc");
            strcpy(at, "shared"); printf("%s %d\\n", at, semctl(semaphore, 0, GETVAL));
            shmdt(at); shmctl(memory, IPC_RMID, 0); semctl(semaphore, 0, IPC_RMID);
        }""", "shared 1"),
    c("c_locked_and_protected_memory", """
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/mman.h>
        int main(void) {
            void *page = aligned_alloc(4096, 16384);
            if (mlock(page, 16384) || munlock(page, 16384)) perror("mlock");
            if (mprotect(page, 4096, PROT_READ) || madvise(page, 4096, MADV_DONTNEED))
                perror("mprotect");
            puts("ok");
        }"""),
    c("c_deep_stack", """
        #include <stdio.h>
        #include <string.h>
        static int deep(int n) {
            char room[1000];
            memset(room, n, sizeof room);
            return n ? deep(n - 1) + (room[0] == (char)n) : 0;
        }
        int main(void) { printf("%d\\n", deep(6000)); }""", "6000"),
    c("c_fork_exec_wait", """
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void) {
            for (int i = 0; i < 50; i++) if (!fork()) _exit(i);
            int sum = 0, status;
            while (wait(&status) > 0) sum += WEXITSTATUS(status);
            if (!vfork()) { execlp("true", "true", (char *)0); _exit(1); }
            wait(&status);
            printf("%d %d %d\\n", sum, status, system("exit 3") >> 8);
        }""", "1225 0 3"),
    c("c_crash", """
        #include <signal.h>
        #include <stdio.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void) {
            if (!fork()) raise(SIGSEGV);
            int status;
            wait(&status);
            printf("%d %d\\n", WTERMSIG(status), WCOREDUMP(status) ? 1 : 0);
        }""", "11 0"),
    c("c_paths_and_terminals", """
        #include <ftw.h>
        #include <glob.h>
        #include <stdio.h>
        #include <stdlib.h>
        static int seen(const char *p, const struct stat *s, int f, struct FTW *w) { return 0; }
        int main(void) {
            glob_t found;
            glob("/usr/bin/*", 0, 0, &found);
            int master = posix_openpt(2);
            if (master < 0 || grantpt(master) || unlockpt(master)) perror("terminal");
            printf("%d %d %s\\n", found.gl_pathc > 10, nftw(".", seen, 8, FTW_PHYS),
                   realpath(".", 0));
        }""", "1 0 /workspace"),
]  # fmt: skip

PROGRAMS = [
    *(GIT + BUILDING + TOOLS + SHELL + FILES),
    *(PYTHON + PYTHON_PROCESSES + PYTHON_NETWORK + PYTHON_FILES + NODE + C),
]
