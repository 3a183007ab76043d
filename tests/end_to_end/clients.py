"""Programs that people and models go out with, and what each prints when it got there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import Literal

from tests.end_to_end.origin import GREETING, PACKAGE, PAGE

Way = Literal["plain", "tunnelled", "ended"]
READ = PAGE.decode().strip()


@dataclass(frozen=True)
class Client:
    """A program, what it is told to do with `$URL`, and what it prints then."""

    name: str
    script: str
    prints: str
    ways: Sequence[Way] = ("plain", "tunnelled", "ended")


def python(name: str, script: str, prints: str = READ, interpreter: str = "python3") -> Client:
    return Client(name, f"{interpreter} - <<'END'\n{dedent(script)}\nEND", prints)


def r(name: str, script: str, prints: str) -> Client:
    program = f"cat > program.R <<'END'\n{dedent(script)}\nEND\nRscript program.R"
    return Client(name, program, prints)


GIT = """
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git clone -q $URL/git/probe.git tree && cd tree && cat file
# More than git sends at once, so that it goes in chunks.
head -c 3000000 /dev/urandom > $BRANCH && git add . && git commit -qm second
git push -q origin HEAD:$BRANCH && cd ..
git clone -q -b $BRANCH $URL/git/probe.git again && cmp tree/$BRANCH again/$BRANCH && echo pushed
"""

APT = f"""
echo "deb [trusted=yes] $URL/apt ./" > sources.list
mkdir -p apt/lists/partial apt/archives/partial
say="-qq -o Dir::State=$PWD/apt -o Dir::State::status=/dev/null -o Dir::Cache=$PWD/apt"
say="$say -o Dir::Etc::sourcelist=$PWD/sources.list -o Dir::Etc::sourceparts=/dev/null"
apt-get $say update && apt-get $say download {PACKAGE} && dpkg-deb -x {PACKAGE}_*.deb out
cat out/usr/share/{PACKAGE}/greeting
"""

OPENSSL = r"""
at=${URL#https://}
printf 'GET /page.txt HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' $at |
openssl s_client -quiet -verify_return_error -verify_hostname ${at%:*} -servername ${at%:*} \
    -proxy ${HTTPS_PROXY#http://} -connect $at 2> log | tail -1
grep -c 'verify return:1' log > /dev/null || cat log
"""

# What node does without help from its version: it asks the proxy itself, and TLS is verified as ever.
NODE = """node - <<'END'
const http = require("http"), https = require("https");
const url = new URL(process.env.URL + "/page.txt"), proxy = new URL(process.env.HTTP_PROXY);
const show = answer => answer.on("data", data => process.stdout.write(data));
if (url.protocol === "http:") {
  http.get({ host: proxy.hostname, port: proxy.port, path: url.href, headers: { Host: url.host } }, show);
} else {
  const headers = { Host: url.host };
  http.request({ host: proxy.hostname, port: proxy.port, method: "CONNECT", path: url.host, headers })
    .on("connect", (_, socket) => {
      https.get({ socket, agent: false, servername: url.hostname, path: url.pathname, headers }, show);
    }).end();
}
END"""

CLIENTS = [
    Client("curl", "curl -sS $URL/page.txt; curl -sS -d sent $URL/echo", f"{READ}\nsent"),
    Client("curl_large", """
        head -c 5000000 /dev/urandom > f
        curl -sS -T f $URL/echo | cmp - f && echo same""", "same"),
    Client("wget", "wget -q -O - $URL/page.txt", READ),
    Client("git", GIT, "tracked\npushed"),
    Client("pip", f"""
        host=${{URL#*://}}
        pip install -q --no-deps --disable-pip-version-check --index-url $URL/simple \
            $([ ${{URL%%:*}} = https ] || echo --trusted-host ${{host%:*}}) {PACKAGE} &&
        python3 -c 'import {PACKAGE}; print({PACKAGE}.GREETING)'""", GREETING),
    Client("npm", f"""
        npm install --silent --no-audit --no-fund --registry $URL/npm/ {PACKAGE} &&
        node -p 'require("{PACKAGE}")'""", GREETING),
    Client("apt", APT, GREETING),
    Client("openssl", OPENSSL, READ, ("tunnelled", "ended")),
    Client("node", NODE, READ),
    python("python_urllib", """
        import os, urllib.request
        with urllib.request.urlopen(os.environ["URL"] + "/page.txt", timeout=60) as answer:
            print(answer.read().decode().strip())"""),
    python("python_http_client", """
        import http.client, os, urllib.parse
        url, proxy = (urllib.parse.urlsplit(os.environ[name]) for name in ("URL", "HTTP_PROXY"))
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(proxy.hostname, proxy.port, timeout=60)
        connection.set_tunnel(url.hostname, url.port)
        connection.request("GET", "/page.txt")
        print(connection.getresponse().read().decode().strip())"""),
    python("python_requests", """
        import os, requests
        with requests.Session() as session:
            print(session.get(os.environ["URL"] + "/page.txt", timeout=60).text.strip())
            print(session.post(os.environ["URL"] + "/echo", data="sent", timeout=60).text)""",
        f"{READ}\nsent", "/usr/bin/python3"),
    python("python_websocket", """
        import os, websocket
        url = os.environ["URL"].replace("http", "ws", 1) + "/socket"
        connection = websocket.create_connection(url, timeout=60)
        for word in ("one", "two"):
            connection.send(word)
            print(connection.recv())
        connection.close()""", "ONE\nTWO", "/usr/bin/python3"),
    r("r_download", """
        download.file(paste0(Sys.getenv("URL"), "/page.txt"), "page", quiet = TRUE)
        cat(readLines("page"), "\\n")
        cat(readLines(url(paste0(Sys.getenv("URL"), "/page.txt"))), "\\n")""", f"{READ} \n{READ}"),
    r("r_packages", f"""
        dir.create("lib")
        install.packages("{PACKAGE}", "lib", paste0(Sys.getenv("URL"), "/cran"), quiet = TRUE)
        library("{PACKAGE}", lib.loc = "lib")
        cat(greeting(), "\\n")""", GREETING),
]  # fmt: skip
