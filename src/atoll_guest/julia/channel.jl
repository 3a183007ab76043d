# Messages to and from the host, as atoll_guest/messages.py describes them: out, numbered and kept; in, put together.
#
# Descriptors are written to by calls of the system's own, which nothing that a cell does to Julia's streams can reach.

using FileWatching: FDWatcher

const CHANNEL = 9
const VERSIONS = [1, 1]
const LENGTH_BYTES = 4
const MAX_FRAME_BYTES = 8 << 20
# What may wait for the host's word that it took note.
const MOST_KEPT_BYTES = 32 << 20
const READ_BYTES = 1 << 16
const STDOUT = 1
const POLL_OUT = Cshort(4)

struct ChannelClosed <: Exception end

mutable struct Channel
    descriptor::Int
    watcher::FDWatcher
    acks::Bool
    request::String
    seq::Int
    kept::Vector{Tuple{Int,Vector{UInt8}}}
    kept_bytes::Int
    pending::Vector{UInt8}
    arrived::Vector{Message}
    output::Int  # a descriptor of its own for standard output, wherever a cell leads that one
end

function Channel(descriptor::Int)
    watcher = FDWatcher(RawFD(descriptor), true, false)
    Channel(descriptor, watcher, false, "", 0, [], 0, UInt8[], Message[], own_descriptor(STDOUT))
end

const DUPLICATE = 1030  # F_DUPFD_CLOEXEC

own_descriptor(number::Int) = Int(ccall(:fcntl, Cint, (Cint, Cint, Cint), number, DUPLICATE, 100))

function say_hello(channel::Channel)
    hello = message_of("type" => "hello", "versions" => VERSIONS, "language" => "julia")
    write_all(channel.descriptor, frame_of(to_json(hello)))
end

# --- out --------------------------------------------------------------------------------------------------------

# Numbers a message, marks its place in the output, and sends it; false if there is no request that it could belong to.
function send_here(channel::Channel, message::Message)
    isempty(channel.request) && return false
    flush_output()
    # Nothing in here lets other tasks run, by which an interrupt would get in between.
    disable_sigint() do
        frame = number(channel, message)
        write_all(channel.output, codeunits("\x1e$(channel.request):$(channel.seq)\x1f"))
        write_all(channel.descriptor, frame)
        while channel.acks && channel.kept_bytes > MOST_KEPT_BYTES
            take_in(channel)
        end
    end
    true
end

# Sends the last messages of a request, all at once: the host is woken only for the last.
function send_last(channel::Channel, messages::Vector{Message})
    flush_output()
    frames = [number(channel, each) for each in messages]
    channel.request = ""
    write_all(channel.descriptor, length(frames) == 1 ? frames[1] : reduce(vcat, frames))
end

function send(channel::Channel, message::Message)
    disable_sigint(() -> write_all(channel.descriptor, number(channel, message)))
end

# Hands over what C code or Julia still holds of what was printed.
function flush_output()
    Libc.flush_cstdio()
    for stream in (stdout, stderr)
        try
            flush(stream)
        catch error
            # Else a cell has closed it, or put something in its place that cannot.
            error isa InterruptException && rethrow()
        end
    end
end

function number(channel::Channel, message::Message)
    channel.seq += 1
    frame = frame_of(encode_bounded(merge(message, message_of("id" => channel.request, "seq" => channel.seq))))
    push!(channel.kept, (channel.seq, frame))
    channel.kept_bytes += length(frame)
    while channel.kept_bytes > MOST_KEPT_BYTES && !channel.acks
        forget_oldest(channel)
    end
    frame
end

function forget_oldest(channel::Channel)
    (_, frame) = popfirst!(channel.kept)
    channel.kept_bytes -= length(frame)
end

function frame_of(payload::Vector{UInt8})
    length(payload) <= MAX_FRAME_BYTES || throw(NotJson("a message of $(length(payload)) bytes"))
    vcat(reinterpret(UInt8, [htol(UInt32(length(payload)))]), payload)
end

# Leaves out what cannot be sent, and says so.
function encode_bounded(message::Message)
    try
        payload = to_json(message)
        length(payload) <= MAX_FRAME_BYTES && return payload
        to_json(when_needed(without_forms, message, "too large to be shown; write it to a file"))
    catch error
        error isa InterruptException && rethrow()
        to_json(when_needed(without_forms, message, when_needed(first_line, error)))
    end
end

function without_forms(message::Message, reason::String)
    if haskey(message, "data")
        text = cut_text(get(message["data"], "text/plain", ""))
        kinds = join(sort([kind for kind in keys(message["data"]) if kind != "text/plain"]), ", ")
        note = isempty(kinds) ? "(left out: $reason)" : "(left out: $kinds: $reason)"
        data = message_of("text/plain" => strip(string(text, "\n", note)))
        return merge(message, message_of("data" => data, "metadata" => Message()))
    end
    haskey(message, "content") && return merge(message, message_of("content" => message_of("error" => reason)))
    merge(message, message_of("value" => cut_text(message["value"]), "traceback" => [reason]))
end

function write_all(descriptor::Int, bytes)
    at = 1
    while at <= length(bytes)
        written = write_some(descriptor, bytes, at)
        if written >= 0
            at += written
        elseif Libc.errno() == Libc.EAGAIN
            await_room(descriptor)
        elseif Libc.errno() != Libc.EINTR
            throw(ChannelClosed())
        end
    end
end

function write_some(descriptor::Int, bytes, at::Int)
    left = length(bytes) - at + 1
    GC.@preserve bytes ccall(:write, Cssize_t, (Cint, Ptr{UInt8}, Csize_t), descriptor, pointer(bytes, at), left)
end

struct PollEntry
    descriptor::Cint
    wanted::Cshort
    found::Cshort
end

function await_room(descriptor::Int)
    ccall(:poll, Cint, (Ptr{PollEntry}, Culong, Cint), Ref(PollEntry(descriptor, POLL_OUT, 0)), 1, -1)
end

# --- in ---------------------------------------------------------------------------------------------------------

# Returns the next message; other tasks go on until it is there.
function receive(channel::Channel)
    while isempty(channel.arrived)
        wait(channel.watcher)
        take_in(channel)
    end
    popfirst!(channel.arrived)
end

# Waits, in the midst of a cell, for a message of a kind in answer to its request, and leaves others for later.
function receive(channel::Channel, kind::String)
    while true
        index = findfirst(each -> each["type"] == kind && each["id"] == channel.request, channel.arrived)
        index === nothing || return take_out(channel.arrived, index)
        wait(channel.watcher)
        disable_sigint(() -> take_in(channel))
    end
end

function take_out(list::Vector, index::Int)
    found = list[index]
    deleteat!(list, index)
    found
end

# Reads once, which waits until the host says something.
function take_in(channel::Channel)
    buffer = Vector{UInt8}(undef, READ_BYTES)
    size = ccall(:read, Cssize_t, (Cint, Ptr{UInt8}, Csize_t), channel.descriptor, buffer, READ_BYTES)
    if size < 0 && Libc.errno() in (Libc.EAGAIN, Libc.EINTR)
        return
    end
    size > 0 || throw(ChannelClosed())
    append!(channel.pending, view(buffer, 1:size))
    for message in whole_messages(channel.pending)
        take_note(channel, message)
        message["type"] in ("ack", "resume") || push!(channel.arrived, message)
    end
end

function whole_messages(pending::Vector{UInt8})
    found = Message[]
    start = 0
    while length(pending) - start >= LENGTH_BYTES
        size = Int(ltoh(reinterpret(UInt32, pending[start+1:start+LENGTH_BYTES])[1]))
        0 < size <= MAX_FRAME_BYTES || throw(NotJson("a frame of $size bytes"))
        stop = start + LENGTH_BYTES + size
        length(pending) < stop && break
        push!(found, from_json(pending[start+LENGTH_BYTES+1:stop]))
        start = stop
    end
    deleteat!(pending, 1:start)
    found
end

# Forgets what the host has; any message may tell.
function take_note(channel::Channel, message::Message)
    seen = get(message, "seq", get(message, "ack", nothing))
    if seen isa Int
        while !isempty(channel.kept) && channel.kept[1][1] <= seen
            forget_oldest(channel)
        end
    end
    if message["type"] == "resume"
        foreach(((_, frame),) -> write_all(channel.descriptor, frame), channel.kept)
    end
end
