"""Many sandboxes at once: each gets its own answers, and the node hears of each attempt exactly once."""

from __future__ import annotations

import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random

from atoll.model.network import Network, NetworkLimits
from tests.campaigns import Campaign
from tests.egress.inside import Inside, Node, as_bytes, read_all, read_exactly, read_response
from tests.egress.outside import NameServer, WebServer, bare_server

SANDBOXES = 4
_UNHURRIED = NetworkLimits(connections=200, connections_per_second=100_000)


def test_answers_and_records_belong_to_whoever_asked(
    node: Node, names: NameServer, web: WebServer, campaign: Campaign
) -> None:
    with bare_server(lambda connection: connection.sendall(read_all(connection))) as port:
        rules = [
            f"http://web.example:{web.port}",
            f"tcp://other.example:{port}",
            "http://web.example:9",
        ]
        network = Network.parse(rules, limits=_UNHURRIED)
        insides = [node.add(network) for _ in range(SANDBOXES)]
        jobs = [
            (insides[number % SANDBOXES], number, Random(campaign.random.random()))
            for number in range(campaign.count(4000))
        ]
        with ThreadPoolExecutor(16) as threads:
            tried = list(
                threads.map(lambda job: attempt(job[0], job[1], job[2], web.port, port), jobs)
            )
        for inside in insides:
            expected = Counter(
                each
                for job, some in zip(jobs, tried, strict=True)
                if job[0] is inside
                for each in some
            )
            found = node.wait_for(expected.total(), inside)
            assert Counter(each.verdict for each in found) == expected


def attempt(
    inside: Inside, number: int, random: Random, web_port: int, echo_port: int
) -> list[str]:
    """Do one of several things, see that what comes back is one's own, and return the verdicts to expect."""
    mark = f"{inside.id}-{number}".encode()
    url = f"http://web.example:{web_port}/{number}"
    match random.randrange(6):
        case 0 | 1:
            head = as_bytes(
                f"POST {url} HTTP/1.1\nHost: web.example\nContent-Length: {len(mark)}\n\n"
            )
            with inside.connect() as connection:
                for _ in range(2):
                    connection.sendall(head + mark)
                    assert read_response(connection).body == mark
            return ["allowed", "allowed"]
        case 2:
            with inside.tunnel(f"other.example:{echo_port}") as connection:
                data = mark * random.randrange(1, 20_000)
                # More than fits on the way, so that it has to be read meanwhile.
                with ThreadPoolExecutor(1) as sending:
                    sending.submit(send_and_end, connection, data)
                    assert read_exactly(connection, len(data)) == data
            return ["allowed"]
        case 3:
            assert inside.get(f"http://evil.example/{number}").status == 403
            return ["refused"]
        case 4:
            assert inside.get("http://web.example:9/").status == 502
            return ["failed"]
        case _:
            assert inside.ask(b"GET " + mark + b" HTTP/1.1\r\nHost: x\r\n\r\n").status == 400
            return ["refused"]


def send_and_end(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
