# Runs cells in `Main`.

mutable struct Kernel
    channel::Channel
    interrupts::Interrupts
    count::Int
end

Kernel() = Kernel(Channel(CHANNEL), Interrupts(), 1)

# What came of a cell: the messages that tell, and how it ended.
struct Outcome
    messages::Vector{Message}
    status::String
end

function execute(kernel::Kernel, message::Message)
    kernel.channel.request = message["id"]
    count = kernel.count
    is_silent = message["silent"]
    is_silent || (kernel.count += 1)
    begin_input()
    name = is_silent ? "cell" : "cell $count"
    outcome = interruptible(() -> run_cell(message["code"], name, is_silent), kernel.interrupts, interrupted)
    last = message_of("type" => "end", "status" => outcome.status, "count" => count)
    send_last(kernel.channel, push!(outcome.messages, last))
    forget_interrupts()
end

interrupted() = Outcome([when_needed(error_message)], "interrupted")

function run_cell(code::String, name::String, is_silent::Bool)
    try
        value = evaluate(parse_cell(code, name))
        is_silent || remember(value)
        is_shown = value !== nothing && !ends_in_semicolon(code)
        messages = is_shown ? [result_message(value)] : Message[]
        # What it has begun and needs no time belongs to it.
        yield()
        Outcome(messages, "ok")
    catch error
        error isa InterruptException && rethrow()
        Outcome([when_needed(error_message)], "error")
    end
end

function evaluate(parts::Vector{Expr})
    value = nothing
    for part in parts
        value = Core.eval(Main, part)
    end
    value
end

function result_message(value)
    forms = bounded(when_needed(forms_of, value))
    facts = haskey(forms, TABLE_FORM) ? when_needed(facts_of, value) : Message()
    message_of("type" => "result", "data" => forms, "metadata" => facts)
end

# Lets `ans` be the last value, unless a cell has made a constant of that name.
function remember(value)
    try
        Core.eval(Main, Expr(:(=), :ans, QuoteNode(value)))
    catch error
        error isa InterruptException && rethrow()
    end
end
