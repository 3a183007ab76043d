# Errors as people want to read them: in Julia's words, and without the kernel's part.

const MOST_LINES = 100
const INTERRUPTED = "interrupted"

# The end of a cell that asked for the end of its process.
struct ProcessExit <: Exception
    code::String
end

function Base.showerror(io::IO, error::ProcessExit)
    print(io, "exit(", error.code, ") ended this cell; its kernel lives on")
end

# What is no code of Julia's, which tells it by no type that all its versions have.
struct ParseError <: Exception
    text::String
end

Base.showerror(io::IO, error::ParseError) = print(io, error.text)

# Returns the message that tells what is being caught, and what led there.
function error_message()
    caught = [(unwrapped(each[1]), each[2]) for each in all_caught()]
    error = caught[end][1]
    value = value_of(error)
    lines = String[]
    for (index, (each, trace)) in enumerate(reverse(caught))
        append!(lines, lines_of(each, trace, index == 1 ? "ERROR: " : "caused by: "))
    end
    message_of(
        "type" => "error",
        "name" => string(nameof(typeof(error))),
        "value" => cut_text(value),
        "traceback" => cut_text.(shortened(lines)),
    )
end

# Older ones name it otherwise.
all_caught() = collect(isdefined(Base, :current_exceptions) ? Base.current_exceptions() : Base.catch_stack())

# What went wrong in a file that is loaded is told as what it is; where, the frames tell.
unwrapped(error) = error isa LoadError ? unwrapped(error.error) : error

value_of(error) = error isa InterruptException ? INTERRUPTED : words_of(error)

# An error's own text may fail to be made.
function words_of(error)
    try
        sprint(io -> when_needed(showerror, IOContext(io, :limit => true), error))
    catch second
        second isa InterruptException && rethrow()
        "(its text cannot be made: $(nameof(typeof(second))))"
    end
end

first_line(error) = String(first(split(words_of(error), '\n')))

function lines_of(error, trace, title::String)
    lines = String.(split(string(title, value_of(error)), '\n'))
    # How a cell came to ask for its end is plain, and no code has run that cannot be read.
    error isa Union{ProcessExit,ParseError} ? lines : append!(lines, frame_lines(stacktrace(trace)))
end

function frame_lines(frames)
    own = findfirst(is_own_frame, frames)
    shown = own === nothing ? frames : frames[1:own-1]
    # What calls a cell's code, between that and the kernel.
    while !isempty(shown) && endswith(string(shown[end].file), "boot.jl")
        shown = shown[1:end-1]
    end
    isempty(shown) && return String[]
    text = sprint(io -> when_needed(Base.show_backtrace, IOContext(io, :limit => true), shown))
    String.(split(text, '\n'; keepempty = false))
end

is_own_frame(frame) = startswith(string(frame.file), @__DIR__)

function shortened(lines::Vector{String})
    length(lines) <= MOST_LINES && return lines
    half = MOST_LINES ÷ 2
    [lines[1:half]; "   ($(length(lines) - 2half) more lines)"; lines[end-half+1:end]]
end
