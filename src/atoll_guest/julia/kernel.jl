# Serves one channel: runs cells in `Main`, one after the other, and answers what is asked about them.
#
# What cells print goes to the process's own output; results, displays and errors go through the channel. All of the kernel
# runs with interrupts put off, and cells with interrupts let in. The event loop goes on between cells: tasks and timers do.
#
# Only what Julia 1.5 and all later versions 1 have is used.

isdefined(Base.Experimental, Symbol("@optlevel")) && Core.eval(@__MODULE__, :(Base.Experimental.@optlevel 0))

# It runs seldom and briefly: to optimise it would take longer than it ever does.
Base.Experimental.@optlevel 0

for name in ("json", "channel", "interrupts", "input", "forms", "tables", "errors", "parsing", "cells", "questions")
    Base.include(@__MODULE__, joinpath(@__DIR__, string(name, ".jl")))
end

function serve(kernel::Kernel)
    while true
        try
            message = receive(kernel.channel)
            # An answer that comes too late is for nobody.
            take = get(TAKEN_BY, message["type"], nothing)
            take === nothing || take(kernel, message)
        catch error
            # It got through just before it was ignored, and its cell has ended.
            error isa InterruptException || rethrow()
        end
    end
end

function welcome(kernel::Kernel, message::Message)
    kernel.channel.acks = get(message, "acks", false) === true
    for (name, value) in get(message, "env", Message())
        ENV[name] = value
    end
    folder = get(message, "cwd", nothing)
    folder === nothing || cd(folder)
end

function answer(find, kernel::Kernel, message::Message)
    channel = kernel.channel
    channel.request = message["id"]
    content = interruptible(kernel.interrupts, () -> Message("error" => "interrupted")) do
        try
            Base.invokelatest(find)
        catch error
            error isa InterruptException && rethrow()
            Message("error" => first_line(error))
        end
    end
    send_last(channel, [Message("type" => "reply", "content" => content)])
end

# What cells find in place of what Julia has for a script.
function prepare_session(kernel::Kernel)
    Base.exit_on_sigint(false)
    empty!(ARGS)
    # Else files would be looked for beside the kernel's own.
    delete!(task_local_storage(), :SOURCE_PATH)
    replace_in_base(:is_interactive, true)
    replace_in_base(:stdin, HostInput(kernel))
    Core.eval(Base, :(exit(code) = $end_cell(code)))
    pushdisplay(HostDisplay(kernel))
    take_stray_ones(kernel.interrupts)
end

replace_in_base(name::Symbol, value) = Core.eval(Base, Expr(:(=), name, QuoteNode(value)))

# Ends the cell: how long the kernel lives is for the host to say.
end_cell(code) = throw(ProcessExit(string(code)))

# Found by name while it runs, so that each is compiled when it is first needed.
const TAKEN_BY = Dict{String,Any}(
    "welcome" => welcome,
    "execute" => execute,
    "complete" => (kernel, message) -> answer(() -> complete(message["code"], message["cursor"]), kernel, message),
    "inspect" => (kernel, message) -> answer(() -> inspect(message["code"], message["cursor"]), kernel, message),
    "ping" => (kernel, message) -> answer(Message, kernel, message),
)

const FAILED = 70

# Without what cells have registered to be done at the end, which might wait for ever.
end_process(code) = ccall(:_exit, Cvoid, (Cint,), code)

disable_sigint() do
    try
        kernel = Kernel()
        prepare_session(kernel)
        say_hello(kernel.channel)
        serve(kernel)
    catch error
        error isa ChannelClosed || Base.display_error(stderr, error, catch_backtrace())
        end_process(error isa ChannelClosed ? 0 : FAILED)
    end
end
