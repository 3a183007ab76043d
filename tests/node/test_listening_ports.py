"""The kernel's table of sockets, read."""

from __future__ import annotations

from atoll.node.listening_ports import ListeningPort, parse_table

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1
   1: 00000000:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 2 1
   2: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000  1000        0 3 1
  sl  local_address                         remote_address                        st tx_queue
   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0
   1: 00000000000000000000000000000000:01BB 00000000000000000000000000000000:0000 0A 0:0
   2: nonsense:xyz 0 0A
   3: 01:50 0 0A
"""


def test_those_who_listen_are_found_and_nonsense_is_passed_over() -> None:
    found = list(parse_table(TABLE))
    assert found == [
        ListeningPort(8080, "127.0.0.1"),
        ListeningPort(3000, "0.0.0.0"),
        ListeningPort(80, "::1"),
        ListeningPort(443, "::"),
    ]
    assert [each.is_loopback for each in found] == [True, False, True, False]
