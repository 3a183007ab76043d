"""Messages arrive whole, with their descriptors, also from somebody who has left."""

from __future__ import annotations

import os

from atoll.engines.namespaces import channel
from atoll.engines.namespaces.wire import StepReply


def test_a_message_brings_its_descriptors() -> None:
    ours, theirs = channel.socket_pair()
    with ours, theirs:
        read_end, write_end = os.pipe()
        channel.send(theirs, StepReply(step=3, error=4), [write_end])
        os.close(write_end)
        reply, fds = channel.receive(ours, StepReply)
        assert reply is not None
        assert (reply.step, reply.error) == (3, 4)
        os.write(fds[0], b"passed")
        assert os.read(read_end, 6) == b"passed"
        channel.close_all([read_end, *fds])


def test_what_was_said_last_is_heard_although_something_was_left_unread() -> None:
    ours, theirs = channel.socket_pair()
    with ours:
        with theirs:
            channel.send(ours, StepReply(step=1))
            channel.send(theirs, StepReply(step=2))
        last = channel.receive_only(ours, StepReply)
        assert last is not None
        assert last.step == 2
        assert channel.receive_only(ours, StepReply) is None


def test_a_message_of_another_size_is_none_and_its_descriptors_are_closed() -> None:
    ours, theirs = channel.socket_pair()
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        channel.send(theirs, b"short", [0, 1])
        assert channel.receive(ours, StepReply) == (None, [])
        assert len(os.listdir("/proc/self/fd")) == before
