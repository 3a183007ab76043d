# Lets Ctrl-C end a cell, whichever task it reaches.
#
# Julia raises it in the task that ran last. While a cell waits that may be any of them, or one that has ended. So a guard wakes now
# and then for as long as a cell runs: it is the task that ran last, and passes on to the cell what it gets.

const GUARD_SECONDS = 0.05

mutable struct Interrupts
    task::Task  # that runs cells
    is_running::Bool
end

Interrupts() = Interrupts(current_task(), false)

# When Ctrl-C reaches a task that has ended, Julia gives it to this one; else it would end the process.
function take_stray_ones(interrupts::Interrupts)
    replace_in_base(:active_repl_backend, (backend_task = interrupts.task, in_eval = true, ast_transforms = []))
end

# Does work that may be interrupted; `otherwise` makes what is returned then.
function interruptible(work, interrupts::Interrupts, otherwise)
    forget_interrupts()
    interrupts.is_running = true
    timer = Timer(GUARD_SECONDS; interval = GUARD_SECONDS)
    @async guard(interrupts, timer)
    try
        reenable_sigint(work)
    catch error
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

# One that came when no cell ran is for nobody.
function forget_interrupts()
    try
        reenable_sigint(() -> nothing)
    catch error
        error isa InterruptException || rethrow()
    end
end
