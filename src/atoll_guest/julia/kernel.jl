# Serves one channel: runs cells in `Main`, one after the other, and answers what is asked about them.
#
# What cells print goes to the process's own output; results, displays and errors go through the channel. All of the kernel
# runs with interrupts put off, and cells with interrupts let in. The event loop goes on between cells: tasks and timers do.
#
# Only what Julia 1.5 and all later versions 1 have is used.

# It runs seldom and briefly: to optimise it would take longer than it ever does.
isdefined(Base.Experimental, Symbol("@optlevel")) && Core.eval(@__MODULE__, :(Base.Experimental.@optlevel 0))

# Calls something that is not compiled before, and in whatever way cells have defined it by then.
const when_needed = Base.invokelatest

for name in ("json", "channel", "interrupts", "input", "forms", "tables", "errors", "parsing", "cells", "questions")
    Base.include(@__MODULE__, joinpath(@__DIR__, string(name, ".jl")))
end

function serve(kernel::Kernel)
    while true
        try
            handle(kernel, receive(kernel.channel))
        catch error
            # It got through just before it was ignored, and its cell has ended.
            error isa InterruptException || rethrow()
        end
    end
end

function handle(kernel::Kernel, message::Message)
    kind = message["type"]
    if kind == "welcome"
        when_needed(welcome, kernel, message)
    elseif kind == "execute"
        when_needed(execute, kernel, message)
    elseif kind == "complete"
        when_needed(answer, () -> complete(message["code"], message["cursor"]), kernel, message)
    elseif kind == "inspect"
        when_needed(answer, () -> inspect(message["code"], message["cursor"]), kernel, message)
    elseif kind == "ping"
        when_needed(answer, Message, kernel, message)
    end
    # An answer that comes too late is for nobody.
    nothing
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
    content = interruptible(kernel.interrupts, () -> message_of("error" => "interrupted")) do
        try
            when_needed(find)
        catch error
            error isa InterruptException && rethrow()
            message_of("error" => when_needed(first_line, error))
        end
    end
    send_last(channel, [message_of("type" => "reply", "content" => content)])
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
