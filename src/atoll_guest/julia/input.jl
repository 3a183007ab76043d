# Standard input of cells: whoever runs them is asked for a line whenever one is read.

mutable struct HostInput <: IO
    kernel::Any  # a Kernel
    line::IOBuffer
    is_at_end::Bool
end

HostInput(kernel) = HostInput(kernel, IOBuffer(), false)

Base.isopen(input::HostInput) = true
Base.isreadable(input::HostInput) = true
Base.iswritable(input::HostInput) = false
Base.close(input::HostInput) = nothing
Base.bytesavailable(input::HostInput) = bytesavailable(input.line)
Base.displaysize(input::HostInput) = displaysize(stdout)

function Base.eof(input::HostInput)
    eof(input.line) && ask(input)
    eof(input.line)
end

function Base.read(input::HostInput, ::Type{UInt8})
    eof(input) && throw(EOFError())
    read(input.line, UInt8)
end

function Base.unsafe_read(input::HostInput, target::Ptr{UInt8}, count::UInt)
    for offset in 0:count-1
        unsafe_store!(target + offset, read(input, UInt8))
    end
end

Base.readavailable(input::HostInput) = eof(input) ? UInt8[] : read(input.line)

# Newer versions have options, which are about the prompt.
function Base.getpass(input::HostInput, output::IO, prompt::AbstractString; options...)
    text = ask_host(input.kernel, string(prompt, ": "), true)
    Base.SecretBuffer(text === nothing ? "" : text)
end

function ask(input::HostInput)
    input.is_at_end && return
    text = ask_host(input.kernel, "", false)
    input.is_at_end = text === nothing
    input.line = IOBuffer(text === nothing ? "" : text * "\n")
end

# With each cell somebody else may be there to answer.
function begin_input()
    input = stdin
    if input isa HostInput
        input.is_at_end = false
        input.line = IOBuffer()
    end
end

# Returns a line from whoever runs the cell, or nothing if nobody is there.
function ask_host(kernel, prompt::String, is_secret::Bool)
    channel = kernel.channel
    isempty(channel.request) && return nothing
    flush_output()
    send(channel, message_of("type" => "input_request", "prompt" => prompt, "password" => is_secret))
    answer = receive(channel, "input")
    get(answer, "eof", false) === true ? nothing : answer["text"]
end
