# Lets Ctrl-C end a cell, whichever task it reaches, and nothing else.
#
# Julia raises it in the task that ran last. While a cell waits that may be any of them, or one that has ended. So a guard wakes now
# and then for as long as a cell runs: it is the task that ran last, and passes on to the cell what it gets.
#
# The host insists where a cell does not end at once, and Julia then raises it in the midst of anything. So it is ignored by the
# whole process as soon as the kernel has the word again.

const GUARD_SECONDS = 0.05
const SIGINT = 2
# More than any C library's `struct sigaction`, which begins with the handler; 1 is the one that ignores.
const ACTION_BYTES = 256
const IGNORING = zeros(UInt8, ACTION_BYTES)
IGNORING[1] = 1

mutable struct Interrupts
    task::Task  # that runs cells
    is_running::Bool
    hearing::Vector{UInt8}  # what Julia does about SIGINT
end

function Interrupts()
    interrupts = Interrupts(current_task(), false, zeros(UInt8, ACTION_BYTES))
    ccall(:sigaction, Cint, (Cint, Ptr{UInt8}, Ptr{UInt8}), SIGINT, IGNORING, interrupts.hearing)
    interrupts
end

set_action(action::Vector{UInt8}) = ccall(:sigaction, Cint, (Cint, Ptr{UInt8}, Ptr{UInt8}), SIGINT, action, C_NULL)

# When Ctrl-C reaches a task that has ended, Julia gives it to this one; else it would end the process.
function take_stray_ones(interrupts::Interrupts)
    replace_in_base(:active_repl_backend, (backend_task = interrupts.task, in_eval = true, ast_transforms = []))
end

# Does work that may be interrupted; `otherwise` makes what is returned then.
function interruptible(work, interrupts::Interrupts, otherwise)
    forget_interrupts()
    timer = Timer(GUARD_SECONDS; interval = GUARD_SECONDS)
    @async guard(interrupts, timer)
    try
        interrupts.is_running = true
        set_action(interrupts.hearing)
        result = reenable_sigint(work)
        set_action(IGNORING)
        result
    catch error
        set_action(IGNORING)
        error isa InterruptException || rethrow()
        otherwise()
    finally
        interrupts.is_running = false
        close(timer)
    end
end

function guard(interrupts::Interrupts, timer::Timer)
    while isopen(timer)
        try
            wait(timer)
        catch error
            error isa InterruptException && pass_on(interrupts, error)
        end
    end
end

function pass_on(interrupts::Interrupts, error::InterruptException)
    interrupts.is_running && schedule(interrupts.task, error; error = true)
end

# One that came too late for its cell is for nobody.
function forget_interrupts()
    try
        reenable_sigint(() -> nothing)
    catch error
        error isa InterruptException || rethrow()
    end
end
