"""Spellings with which somebody inside may try to reach more than is allowed, each with a name.

`HOST_SPELLINGS` are requests: to be sent byte by byte (`Spelling.request`) to a proxy that holds a sandbox to `rules(port)`, where the
names of `ALLOWED_HOSTS` lead to one server and all others to a trap. Nothing may ever reach the trap, and the server is
reached exactly by those that say so. `ADDRESS_SPELLINGS` are hosts that must not be reached even where the network is open, and
`ANSWERS` what a resolver must not be believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

ALLOWED = "allowed.example"
PUNYCODE = "xn--bcher-kva.example"
BELOW = "*.wild.example"
# What the server of the tests answers to; whatever else a resolver is asked for leads to the trap.
ALLOWED_HOSTS = (
    ALLOWED,
    PUNYCODE,
    "a.wild.example",
    "b.a.wild.example",
    "xn--bcher-kva.wild.example",
)


def rules(port: int) -> list[str]:
    """Return the rules that the sandbox is held to. `port` is neither 80 nor 443, so both forms reach it."""
    return [f"{host}:{port}" for host in (ALLOWED, PUNYCODE, BELOW)]


@dataclass(frozen=True)
class Spelling:
    """One request. `{port}` stands for the server's port; characters up to U+00FF are single bytes."""

    name: str
    form: Literal["connect", "absolute"]
    target: str
    hosts: tuple[str, ...]  # its Host headers
    arrives: bool
    why: str

    def target_at(self, port: int) -> str:
        return self.target.replace("{port}", str(port))

    def hosts_at(self, port: int) -> tuple[str, ...]:
        return tuple(host.replace("{port}", str(port)) for host in self.hosts)

    def request(self, port: int) -> bytes:
        """Return the head of the request as it goes over the wire."""
        method = "CONNECT" if self.form == "connect" else "GET"
        lines = [f"{method} {self.target_at(port)} HTTP/1.1"]
        lines += [f"Host: {host}" for host in self.hosts_at(port)]
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")


@dataclass(frozen=True)
class HostText:
    """One way to write a host, before a port."""

    name: str
    text: str
    arrives: bool
    why: str


def utf8(text: str) -> str:
    """Return the bytes of a text as characters, one for each."""
    return text.encode().decode("latin-1")


def _allowed() -> Iterator[HostText]:
    for name, text in {
        "as-written": ALLOWED,
        "upper-case": "ALLOWED.EXAMPLE",
        "capitals": "Allowed.Example",
        "mixed-case": "aLlOwEd.eXaMpLe",
        "upper-case-last-label": "allowed.EXAMPLE",
        "punycode": PUNYCODE,
        "punycode-upper-case": "XN--BCHER-KVA.EXAMPLE",
        "punycode-mixed-case": "xN--BcHeR-kVa.example",
        "one-label-below": "a.wild.example",
        "two-labels-below": "b.a.wild.example",
        "one-label-below-upper-case": "A.WILD.EXAMPLE",
        "punycode-below": "xn--bcher-kva.wild.example",
    }.items():
        yield HostText(name, text, True, "it is allowed, and case does not matter")


def _other_names() -> Iterator[HostText]:
    for name, text in {
        "other-host": "evil.test",
        "other-host-same-top": "evil.example",
        "top-label-alone": "example",
        "first-label-alone": "allowed",
        "label-before": "sub.allowed.example",
        "label-before-www": "www.allowed.example",
        "label-after": "allowed.example.evil.test",
        "label-after-short": "allowed.example.t",
        "glued-before": "evilallowed.example",
        "glued-before-hyphen": "evil-allowed.example",
        "glued-after": "allowed.exampleevil",
        "glued-after-hyphen": "allowed.example-evil.test",
        "glued-after-underscore": "allowed.example_evil.test",
        "allowed-as-one-label": "allowed-example.test",
        "last-letter-missing": "allowed.exampl",
        "first-letter-missing": "llowed.example",
        "letter-doubled": "alllowed.example",
        "dot-missing": "allowedexample",
        "dot-moved": "allowe.dexample",
        "labels-swapped": "example.allowed",
        "digit-for-letter-l": "a11owed.example",
        "digit-for-letter-o": "all0wed.example",
        "letters-rn-for-m": "allowed.exarnple",
        "wildcard-itself": "wild.example",
        "wildcard-glued-before": "evilwild.example",
        "wildcard-glued-hyphen": "evil-wild.example",
        "wildcard-label-after": "a.wild.example.evil.test",
        "wildcard-dot-missing": "awild.example",
        "wildcard-top": "a.example",
        "punycode-without-its-prefix": "bcher-kva.example",
        "punycode-of-another": "xn--bcher-kwa.example",
        "punycode-label-before": "a.xn--bcher-kva.example",
        "localhost": "localhost",
        "localhost-below": "allowed.localhost",
        "underscored-name": "allowed_.example",
        "numbered": "allowed1.example",
        "ends-in-address-of-a-name-service": "127.0.0.1.nip.test",
        "address-before-allowed": "127.0.0.1.allowed.example",
    }.items():
        yield HostText(name, text, False, "another host, which nobody allowed")


def _dots() -> Iterator[HostText]:
    for name, text in {
        "trailing-dot": "allowed.example.",
        "trailing-dot-upper-case": "ALLOWED.EXAMPLE.",
        "two-trailing-dots": "allowed.example..",
        "leading-dot": ".allowed.example",
        "inner-double-dot": "allowed..example",
        "dot-alone": ".",
        "two-dots": "..",
        "empty": "",
        "trailing-dot-below": "a.wild.example.",
        "empty-label-below": ".wild.example",
        "empty-inner-label-below": "a..wild.example",
        "trailing-dot-of-another": "evil.test.",
        "trailing-dot-then-label": "allowed.example..evil.test",
        "encoded-trailing-dot": "allowed.example%2e",
        "encoded-trailing-dot-upper": "allowed.example%2E",
        "encoded-inner-dot": "allowed%2eexample",
        "punycode-trailing-dot": f"{PUNYCODE}.",
    }.items():
        yield HostText(
            name, text, False, "an empty or ending dot: names are compared with and without"
        )


def _stars() -> Iterator[HostText]:
    for name, text in {
        "star": "*",
        "star-below-allowed": "*.allowed.example",
        "star-below-wildcard": "*.wild.example",
        "star-within": "allow*.example",
        "star-last": "allowed.*",
        "question-mark-within": "allowe?.example",
        "character-class": "allowe[d].example",
        "regular-expression": "allowed.example|evil.test",
        "comma-list": "allowed.example,evil.test",
        "semicolon-list": "allowed.example;evil.test",
    }.items():
        yield HostText(name, text, False, "a pattern or list where a host belongs")


def _user_names() -> Iterator[HostText]:
    for name, text in {
        "user": "user@allowed.example",
        "user-and-password": "user:secret@allowed.example",
        "empty-user": "@allowed.example",
        "empty-user-and-password": ":@allowed.example",
        "allowed-as-user": "allowed.example@evil.test",
        "allowed-as-user-with-port": "allowed.example:{port}@evil.test",
        "allowed-as-password": "x:allowed.example@evil.test",
        "two-at-signs": "a@allowed.example@evil.test",
        "two-at-signs-turned": "a@evil.test@allowed.example",
        "encoded-at-sign": "allowed.example%40evil.test",
        "encoded-at-sign-turned": "evil.test%40allowed.example",
        "at-sign-after-hash": "allowed.example#@evil.test",
        "at-sign-after-question-mark": "allowed.example?@evil.test",
        "at-sign-after-slash": "allowed.example/@evil.test",
        "at-sign-after-backslash": "allowed.example\\@evil.test",
        "at-sign-after-semicolon": "allowed.example;@evil.test",
        "at-sign-after-bracket": "[allowed.example]@evil.test",
        "fullwidth-at-sign": utf8("allowed.example＠evil.test"),
    }.items():
        yield HostText(name, text, False, "user names: parsers disagree on where they end")


def _percents() -> Iterator[HostText]:
    for name, text in {
        "encoded-letter": "%61llowed.example",
        "encoded-letter-upper": "%41LLOWED.EXAMPLE",
        "encoded-all": "".join(f"%{ord(letter):02x}" for letter in ALLOWED),
        "encoded-twice": "%2561llowed.example",
        "encoded-nul": "allowed.example%00",
        "encoded-nul-then-other": "allowed.example%00.evil.test",
        "encoded-nul-before": "evil.test%00.allowed.example",
        "encoded-slash": "allowed.example%2f.evil.test",
        "encoded-slash-before": "evil.test%2fallowed.example",
        "encoded-hash": "evil.test%23.allowed.example",
        "encoded-question-mark": "evil.test%3f.allowed.example",
        "encoded-colon": "allowed.example%3a443",
        "encoded-backslash": "evil.test%5c.allowed.example",
        "encoded-space": "allowed.example%20",
        "encoded-line-feed": "allowed.example%0a",
        "encoded-return-line-feed": "allowed.example%0d%0aHost:evil.test",
        "encoded-fullwidth-dot": "allowed%ef%bc%8eexample",
        "encoded-overlong-dot": "allowed%c0%aeexample",
        "encoded-soft-hyphen": "allow%c2%aded.example",
        "percent-alone": "allowed.example%",
        "percent-not-hexadecimal": "allowed.example%zz",
        "percent-unicode": "allowed%u002eexample",
    }.items():
        yield HostText(name, text, False, "percent signs: some decode them in hosts, others do not")


def _separators() -> Iterator[HostText]:
    for name, text in {
        "slash-then-other": "allowed.example/.evil.test",
        "other-then-slash": "evil.test/.allowed.example",
        "other-then-slash-glued": "evil.test/allowed.example",
        "backslash-then-other": "allowed.example\\.evil.test",
        "other-then-backslash": "evil.test\\.allowed.example",
        "other-then-backslash-glued": "evil.test\\allowed.example",
        "question-mark-then-other": "allowed.example?.evil.test",
        "other-then-question-mark": "evil.test?.allowed.example",
        "hash-then-other": "allowed.example#.evil.test",
        "other-then-hash": "evil.test#.allowed.example",
        "other-then-hash-glued": "evil.test#allowed.example",
        "scheme-before": "http://allowed.example",
        "https-before": "https://allowed.example",
        "slashes-before": "//allowed.example",
        "slashes-other-before": "//evil.test//allowed.example",
        "backslashes-before": "\\\\allowed.example",
        "colon-list": "allowed.example:evil.test",
        "space-then-other": "allowed.example evil.test",
        "other-then-space": "evil.test allowed.example",
        "tab-then-other": "allowed.example\tevil.test",
        "nul-then-other": "allowed.example\0.evil.test",
        "other-then-nul": "evil.test\0.allowed.example",
        "return-then-other": "allowed.example\r.evil.test",
        "vertical-tab-then-other": "allowed.example\x0b.evil.test",
        "equals-sign-then-other": "allowed.example=evil.test",
        "ampersand-then-other": "allowed.example&evil.test",
    }.items():
        yield HostText(name, text, False, "separators: parsers disagree on where the host ends")


def _brackets() -> Iterator[HostText]:
    for name, text in {
        "bracketed-name": "[allowed.example]",
        "bracket-open": "[allowed.example",
        "bracket-close": "allowed.example]",
        "bracketed-then-other": "[allowed.example].evil.test",
        "bracketed-address-then-name": "[::1]allowed.example",
        "bracketed-address-then-dot": "[::1].allowed.example",
        "name-then-bracketed-address": "allowed.example[::1]",
        "empty-brackets": "[]",
        "doubled-brackets": "[[::1]]",
        "braces": "{allowed.example}",
        "parentheses": "(allowed.example)",
        "angle-brackets": "<allowed.example>",
        "quotes": '"allowed.example"',
        "future-address": "[v1.allowed.example]",
    }.items():
        yield HostText(name, text, False, "brackets are for IPv6 addresses only")


def _unicode() -> Iterator[HostText]:
    for name, text in {
        "cyrillic-a": "аllowed.example",
        "cyrillic-e": "allowеd.example",
        "cyrillic-o": "allоwed.example",
        "greek-omicron": "allοwed.example",
        "latin-small-capital": "aʟlowed.example",
        "dotless-i": "allowed.examplı",
        "kelvin-sign": "\u212a.wild.example",
        "long-s": "allowed.exampleſ",
        "sharp-s": "allowed.exaßmple",
        "final-sigma": "allowed.exampleς",
        "ligature": "allowed.exampﬂe",
        "circled-letters": "ⓐⓛⓛⓞⓦⓔⓓ.example",
        "fullwidth-letters": "ａｌｌｏｗｅｄ.example",
        "fullwidth-dot": "allowed．example",
        "ideographic-dot": "allowed。example",
        "halfwidth-ideographic-dot": "allowed｡example",
        "one-dot-leader": "allowed․example",
        "trailing-fullwidth-dot": "allowed.example．",
        "fullwidth-slash": "evil.test／.allowed.example",
        "division-slash": "evil.test∕.allowed.example",
        "fraction-slash": "evil.test⁄.allowed.example",
        "fullwidth-hash": "evil.test＃.allowed.example",
        "fullwidth-question-mark": "evil.test？.allowed.example",
        "account-of": "evil.test℀.allowed.example",
        "care-of": "evil.test℅.allowed.example",
        "soft-hyphen": "allow\u00aded.example",
        "zero-width-space": "allowed\u200b.example",
        "zero-width-joiner": "allowed\u200d.example",
        "zero-width-non-joiner": "allowed\u200c.example",
        "word-joiner": "allowed\u2060.example",
        "byte-order-mark": "\ufeffallowed.example",
        "no-break-space": "allowed.example\u00a0",
        "ideographic-space": "allowed.example\u3000",
        "line-separator": "allowed.example\u2028",
        "right-to-left-override": "\u202eelpmaxe.dewolla",
        "combining-mark": "allowed\u0301.example",
        "composed-letter": "bücher.example",
        "decomposed-letter": "bu\u0308cher.example",
        "mathematical-letters": "𝐚llowed.example",
        "emoji": "allowed.example😀",
    }.items():
        yield HostText(
            f"unicode-{name}", utf8(text), False, "not ASCII: each library maps it in its own way"
        )


def _bytes() -> Iterator[HostText]:
    why = "no character of a name"
    for code in (*range(0x21), 0x7F, 0x80, 0x85, 0xA0, 0xAD, 0xFE, 0xFF):
        yield HostText(f"byte-{code:02x}-within", f"allow{chr(code)}ed.example", False, why)
    for code in (0x00, 0x09, 0x0B, 0x0C, 0x0D, 0x20, 0x7F, 0xFF):
        yield HostText(f"byte-{code:02x}-last", f"allowed.example{chr(code)}", False, why)
        yield HostText(f"byte-{code:02x}-first", f"{chr(code)}allowed.example", False, why)
    for character in "!\"#$&'()+,/;<=>?@\\^`{|}~":
        text = f"allow{character}ed.example"
        yield HostText(f"sign-{ord(character):02x}-within", text, False, why)
    for name, text in {
        "overlong-dot": "allowed\xc0\xaeexample",
        "overlong-letter": "\xc1\xa1llowed.example",
        "lone-surrogate": "allowed\xed\xa0\x80.example",
        "latin-1-letter": "b\xfccher.example",
        "utf-7": "+AGE-llowed.example",
        "utf-16-mark": "\xff\xfeallowed.example",
    }.items():
        yield HostText(f"bytes-{name}", text, False, why)


def _labels() -> Iterator[HostText]:
    long = "a" * 63
    for name, text in {
        "hyphen-first": "-allowed.example",
        "hyphen-last": "allowed-.example",
        "underscore-first": "_allowed.example",
        "hyphen-alone": "-.wild.example",
        "underscore-alone": "_.wild.example",
        "label-of-64": f"{long}a.wild.example",
        "name-of-254": f"{long}.{long}.{long}.{'a' * 49}.wild.example",
        "name-of-1000": f"{'a.' * 500}wild.example",
        "name-of-20000": f"{'a.' * 10000}wild.example",
        "number-last": "allowed.example.1",
        "hexadecimal-last": "allowed.example.0x7f",
        "hexadecimal-mark-last": "allowed.example.0x",
        "number-below-wildcard-turned": "wild.example.127",
    }.items():
        yield HostText(name, text, False, "against the grammar of names")
    for name, text in {
        "empty": "xn--.wild.example",
        "broken": "xn--0.wild.example",
        "of-ascii": "xn--allowed-.example",
        "of-ascii-below": "xn--a-.wild.example",
        "of-fullwidth": "xn--mi7c.wild.example",
        "of-fullwidth-dot": "xn--5g7c.wild.example",
        "of-ligature": "xn--km6c.wild.example",
        "of-capital": "xn--wca.wild.example",
        "of-combining-mark": "xn--lsa.wild.example",
        "of-decomposed-letter": "xn--u-ccb.wild.example",
        "of-zero-width-space": "xn--zug.wild.example",
        "of-surrogate": "xn--ib9b.wild.example",
        "not-minimal": "xn--bcher-kva-.wild.example",
        "hyphen-too-many": "xn---tda.wild.example",
        "underscored": "xn--bcher_kva.wild.example",
        "beyond-unicode": "xn--99999999999.wild.example",
    }.items():
        yield HostText(
            f"punycode-{name}", text, False, "begins with xn-- but is no punycode of a name"
        )


def host_texts() -> list[HostText]:
    """Return all ways to write a host."""
    families: tuple[Iterable[HostText], ...] = (
        *(_allowed(), _other_names(), _dots(), _stars(), _user_names(), _percents()),
        *(_separators(), _brackets(), _unicode(), _bytes(), _labels()),
    )
    return [text for family in families for text in family]


def _both_forms(host: HostText) -> Iterator[Spelling]:
    authority = f"{host.text}:{{port}}"
    for form, target in (("connect", authority), ("absolute", f"http://{authority}/")):
        yield Spelling(
            f"{form}-{host.name}",
            "connect" if form == "connect" else "absolute",
            target,
            (authority,),
            host.arrives,
            host.why,
        )


def _ports() -> Iterator[Spelling]:
    for name, port in {
        "missing": "",
        "empty": ":",
        "zero": ":0",
        "leading-zero": ":0{port}",
        "plus": ":+{port}",
        "minus": ":-{port}",
        "space-before": ": {port}",
        "tab-before": ":\t{port}",
        "underscore": ":{port}_0",
        "hexadecimal": ":0x50",
        "fraction": ":{port}.0",
        "exponent": ":1e3",
        "too-large": ":65536",
        "wraps-around": ":4294967376",
        "very-long": f":{'0' * 5000}80",
        "twice": ":{port}:{port}",
        "then-other": ":{port}.evil.test",
        "then-at-sign": ":{port}@evil.test",
        "then-hash": ":{port}#@evil.test",
        "then-nul": ":{port}\0",
        "arabic-digits": utf8(":٨٠٨٠"),
        "fullwidth-digits": utf8(":８０８０"),
        "named": ":http",
        "another": ":1",
        "star": ":*",
        "range": ":1-65535",
    }.items():
        yield from _both_forms_of(f"port-{name}", f"{ALLOWED}{port}", "no port that is allowed")


def _both_forms_of(name: str, authority: str, why: str) -> Iterator[Spelling]:
    hosts = (f"{ALLOWED}:{{port}}",)
    yield Spelling(f"connect-{name}", "connect", authority, hosts, False, why)
    yield Spelling(f"absolute-{name}", "absolute", f"http://{authority}/", hosts, False, why)


def _targets() -> Iterator[Spelling]:
    """Targets of other forms than those that a proxy takes."""
    allowed = f"{ALLOWED}:{{port}}"
    for name, (target, arrives) in {
        "scheme-upper-case": (f"HTTP://{allowed}/", True),
        "without-path": (f"http://{allowed}", True),
        "query-without-path": (f"http://{allowed}?at=@evil.test", True),
        "other-in-path": (f"http://{allowed}/http://evil.test/", True),
        "other-in-query": (f"http://{allowed}/?to=http://evil.test/", True),
        "https": (f"https://{allowed}/", False),
        "ftp": (f"ftp://{allowed}/", False),
        "file": (f"file://{allowed}/etc/passwd", False),
        "gopher": (f"gopher://{allowed}/_", False),
        "websocket": (f"ws://{allowed}/", False),
        "without-scheme": (f"//{allowed}/", False),
        "authority": (allowed, False),
        "origin": ("/", False),
        "origin-two-slashes": ("//evil.test/", False),
        "asterisk": ("*", False),
        "one-slash": (f"http:/{allowed}/", False),
        "no-slash": (f"http:{allowed}/", False),
        "three-slashes": (f"http:///{allowed}/", False),
        "backslashes": (f"http:\\\\{allowed}/", False),
        "slash-backslash": (f"http:/\\{allowed}/", False),
        "backslash-after-host": (f"http://{allowed}\\@evil.test/", False),
        "hash-after-host": (f"http://{allowed}#@evil.test/", False),
        "hash-after-path": (f"http://{allowed}/#@evil.test/", False),
        "scheme-twice": (f"http://http://{allowed}/", False),
        "scheme-encoded": (f"http%3a//{allowed}/", False),
        "space-before-scheme": (f" http://{allowed}/", False),
        "nul-in-path": (f"http://{allowed}/\0", False),
        "raw-unicode-in-path": (f"http://{allowed}/{utf8('ü')}", False),
        "other-scheme-glued": (f"xhttp://{allowed}/", False),
    }.items():
        why = (
            "an absolute form for the allowed host" if arrives else "not the form http://host/path"
        )
        yield Spelling(f"target-{name}", "absolute", target, (allowed,), arrives, why)
    for name, target in {
        "absolute": f"http://{allowed}",
        "absolute-with-path": f"http://{allowed}/",
        "path-after": f"{allowed}/",
        "query-after": f"{allowed}?",
        "hash-after": f"{allowed}#",
        "origin": "/",
        "asterisk": "*",
    }.items():
        yield Spelling(
            f"connect-form-{name}", "connect", target, (allowed,), False, "not host:port"
        )


def _host_headers() -> Iterator[Spelling]:
    """Targets and Host headers that name different hosts, or not one."""
    allowed = f"{ALLOWED}:{{port}}"
    for name, (host_of_target, hosts, arrives) in {
        "same": (allowed, (allowed,), True),
        "upper-case": (allowed, ("ALLOWED.EXAMPLE:{port}",), True),
        "other": (allowed, ("evil.test:{port}",), False),
        "other-target": ("evil.test:{port}", (allowed,), False),
        "other-allowed": (allowed, (f"{PUNYCODE}:{{port}}",), False),
        "below-wildcard": (allowed, ("a.wild.example:{port}",), False),
        "other-port": (allowed, (f"{ALLOWED}:1",), False),
        # The proxy writes the header anew, from the target, and clients are known to leave out the port.
        "port-missing": (allowed, (ALLOWED,), True),
        "missing": (allowed, (), False),
        "empty": (allowed, ("",), False),
        "twice-the-same": (allowed, (allowed, allowed), False),
        "twice-other-last": (allowed, (allowed, "evil.test:{port}"), False),
        "twice-other-first": (allowed, ("evil.test:{port}", allowed), False),
        "comma-list": (allowed, (f"{allowed}, evil.test:{{port}}",), False),
        "comma-list-turned": (allowed, (f"evil.test:{{port}}, {allowed}",), False),
        "user-name": (allowed, (f"user@{allowed}",), False),
        "allowed-as-user": (allowed, (f"{ALLOWED}@evil.test:{{port}}",), False),
        "scheme": (allowed, (f"http://{allowed}",), False),
        "path": (allowed, (f"{allowed}/",), False),
        "trailing-dot": (allowed, ("allowed.example.:{port}",), False),
        "space-within": (allowed, (f"{ALLOWED} evil.test:{{port}}",), False),
        "tab-within": (allowed, (f"{ALLOWED}\tevil.test:{{port}}",), False),
        "nul-within": (allowed, (f"{ALLOWED}\0evil.test:{{port}}",), False),
        "folded-line": (allowed, (f"{ALLOWED}\r\n evil.test:{{port}}",), False),
        "bare-line-feed": (allowed, (f"{allowed}\nHost: evil.test:{{port}}",), False),
        "bare-return": (allowed, (f"{allowed}\rHost: evil.test:{{port}}",), False),
        "second-in-another-case": (allowed, (f"{allowed}\r\nhOST: evil.test:{{port}}",), False),
        "space-before-colon": (allowed, (f"{allowed}\r\nHost : evil.test:{{port}}",), False),
        "address": (allowed, ("127.0.0.1:{port}",), False),
        "unicode": (allowed, (utf8("аllowed.example:{port}"),), False),
        "encoded": (allowed, ("%61llowed.example:{port}",), False),
    }.items():
        why = (
            "both name the allowed host"
            if arrives
            else "target and Host header do not name one host"
        )
        target = f"http://{host_of_target}/"
        yield Spelling(f"host-header-{name}", "absolute", target, hosts, arrives, why)


def _all() -> Iterator[Spelling]:
    for host in host_texts():
        yield from _both_forms(host)
    yield from _ports()
    yield from _targets()
    yield from _host_headers()


HOST_SPELLINGS: tuple[Spelling, ...] = tuple(_all())


@dataclass(frozen=True)
class AddressSpelling:
    """One way to write an address as a host. `read` tells whether it is taken for an address at all."""

    name: str
    text: str
    read: bool
    why: str

    def request(self, form: Literal["connect", "absolute"], port: int) -> bytes:
        """Return the head of a request to it as it goes over the wire."""
        authority = f"{self.text}:{port}"
        target = authority if form == "connect" else f"http://{authority}/"
        return Spelling(self.name, form, target, (authority,), False, self.why).request(port)


def _numbers() -> Iterator[AddressSpelling]:
    """Numbers that the C library reads as IPv4 addresses, and others do not."""
    for name, text in {
        "decimal": "2130706433",
        "decimal-zero": "0",
        "decimal-metadata": "2852039166",
        "decimal-too-large": "4294967297",
        "octal": "017700000001",
        "octal-parts": "0177.0.0.1",
        "octal-all-parts": "0177.0000.0000.0001",
        "octal-metadata": "0251.0376.0251.0376",
        "hexadecimal": "0x7f000001",
        "hexadecimal-upper-case": "0X7F000001",
        "hexadecimal-parts": "0x7f.0x0.0x0.0x1",
        "hexadecimal-metadata": "0xa9fea9fe",
        "hexadecimal-empty": "0x",
        "mixed-bases": "0x7f.0.0.01",
        "hexadecimal-last-part": "127.0.0.0x1",
        "one-dot": "127.1",
        "two-dots": "127.0.1",
        "short-metadata": "169.254.43518",
        "leading-zeros": "127.000.000.001",
        "leading-zero-last": "127.0.0.01",
        "part-too-large": "127.0.0.257",
        "five-parts": "127.0.0.1.1",
        "trailing-dot": "127.0.0.1.",
        "leading-dot": ".127.0.0.1",
        "empty-part": "127..0.1",
        "negative": "-2130706433",
        "plus": "+127.0.0.1",
        "with-mask": "127.0.0.1/8",
        "space-after": "127.0.0.1 ",
        "nul-after": "127.0.0.1\0.allowed.example",
        "encoded-dot": "127%2e0%2e0%2e1",
        "fullwidth-digits": utf8("１２７.0.0.1"),
        "circled-digits": utf8("①②⑦.⓪.⓪.①"),
        "arabic-digits": utf8("١٢٧.0.0.1"),
        "ideographic-dots": utf8("127。0。0。1"),
        "user-name": "allowed.example@127.0.0.1",
        "star": "127.0.0.*",
    }.items():
        yield AddressSpelling(f"ipv4-{name}", text, False, "a number that parsers read differently")


def _brackets_around() -> Iterator[AddressSpelling]:
    for name, text in {
        "ipv4": "[127.0.0.1]",
        "missing": "::1",
        "open-only": "[::1",
        "close-only": "::1]",
        "doubled": "[[::1]]",
        "text-after": "[::1].allowed.example",
        "text-before": "allowed.example[::1]",
        "port-within": "[::1:]",
        "empty": "[]",
        "zone": "[fe80::1%lo]",
        "zone-encoded": "[fe80::1%25lo]",
        "zone-number": "[fe80::1%1]",
        "zone-on-loopback": "[::1%lo]",
        "zone-empty": "[::1%]",
        "space-within": "[ ::1]",
        "nul-within": "[::1\0]",
        "mask": "[::1/128]",
        "two-gaps": "[::1::]",
        "nine-parts": "[0:0:0:0:0:0:0:0:1]",
        "five-digits": "[::00001]",
        "octal-within": "[::ffff:0177.0.0.1]",
        "short-within": "[::ffff:127.1]",
        "decimal-within": "[::ffff:2130706433]",
        "future": "[v1.::1]",
        "encoded": "%5b::1%5d",
    }.items():
        yield AddressSpelling(f"brackets-{name}", text, False, "no IPv6 address in brackets")


def _addresses() -> Iterator[AddressSpelling]:
    for answer in ANSWERS:
        text = f"[{answer.address}]" if ":" in answer.address else answer.address
        yield AddressSpelling(f"literal-{answer.name}", text, True, answer.reason)


@dataclass(frozen=True)
class Answer:
    """An address that a name may resolve to, and why it is refused."""

    name: str
    address: str
    reason: str


def _answers() -> Iterator[Answer]:
    for reason, addresses in {
        "unspecified": {
            "zero": "0.0.0.0",
            "zero-network": "0.1.2.3",
            "ipv6-unspecified": "::",
            "mapped-zero": "::ffff:0.0.0.0",
        },
        "loopback": {
            "loopback": "127.0.0.1",
            "loopback-last": "127.255.255.255",
            "loopback-proxy": "127.0.0.53",
            "ipv6-loopback": "::1",
            "ipv6-loopback-long": "0:0:0:0:0:0:0:1",
            "mapped-loopback": "::ffff:127.0.0.1",
            "mapped-loopback-hexadecimal": "::ffff:7f00:1",
            "compatible-loopback": "::127.0.0.1",
            "translated-loopback": "::ffff:0:127.0.0.1",
            "nat64-loopback": "64:ff9b::127.0.0.1",
            "6to4-loopback": "2002:7f00:1::1",
            "teredo-client-loopback": "2001:0:808:808:0:0:80ff:fffe",
            "teredo-server-loopback": "2001:0:7f00:1::f7f7:f7f7",
            "isatap-loopback": "2606:4700::5efe:7f00:1",
        },
        "private": {
            "private-10": "10.0.0.1",
            "private-172": "172.16.0.1",
            "private-172-last": "172.31.255.255",
            "private-192": "192.168.1.1",
            "mapped-private": "::ffff:10.0.0.1",
            "nat64-private": "64:ff9b::c0a8:101",
            "6to4-private": "2002:a00:1::",
            "isatap-private-unique": "2606:4700::200:5efe:10.0.0.1",
        },
        "shared by a provider's customers": {
            "shared": "100.64.0.1",
            "shared-last": "100.127.255.255",
        },
        "link-local": {
            "link-local": "169.254.1.1",
            "ipv6-link-local": "fe80::1",
            "ipv6-link-local-last": "febf:ffff::1",
            "mapped-link-local": "::ffff:169.254.1.1",
        },
        "unique-local": {"unique-local": "fd12:3456::1", "unique-local-first": "fc00::1"},
        "a metadata service": {
            "metadata": "169.254.169.254",
            "metadata-tasks": "169.254.170.2",
            "metadata-shared": "100.100.100.200",
            "metadata-reserved": "192.0.0.192",
            "metadata-public": "168.63.129.16",
            "metadata-ipv6": "fd00:ec2::254",
            "metadata-mapped": "::ffff:169.254.169.254",
            "metadata-compatible": "::a9fe:a9fe",
            "metadata-nat64": "64:ff9b::a9fe:a9fe",
            "metadata-6to4": "2002:a9fe:a9fe::1",
        },
        "multicast": {"multicast": "224.0.0.1", "ipv6-multicast": "ff02::1"},
        "broadcast": {"broadcast": "255.255.255.255", "mapped-broadcast": "::ffff:255.255.255.255"},
        "documentation": {
            "documentation-1": "192.0.2.1",
            "documentation-2": "198.51.100.1",
            "documentation-3": "203.0.113.1",
            "documentation-ipv6": "2001:db8::1",
            "documentation-ipv6-new": "3fff::1",
        },
        "benchmark": {"benchmark": "198.18.0.1", "benchmark-ipv6": "2001:2::1"},
        "reserved": {
            "reserved": "240.0.0.1",
            "reserved-protocols": "192.0.0.1",
            "reserved-relay": "192.88.99.1",
            "reserved-ipv6-protocols": "2001:100::1",
            "reserved-ipv6-orchid": "2001:20::1",
            "reserved-ipv6-discard": "100::1",
            "reserved-ipv6-site-local": "fec0::1",
            "reserved-ipv6-segments": "5f00::1",
            "reserved-ipv6-unassigned": "4000::1",
        },
        "translated to an IPv4 address that cannot be told": {
            "nat64-local": "64:ff9b:1::1",
            "nat64-local-public": "64:ff9b:1::808:808",
        },
    }.items():
        for name, address in addresses.items():
            yield Answer(name, address, reason)


ANSWERS: tuple[Answer, ...] = tuple(_answers())
ADDRESS_SPELLINGS: tuple[AddressSpelling, ...] = (
    *_numbers(),
    *_brackets_around(),
    *_addresses(),
)
