# What is said with the host: the same messages as in atoll_guest/messages.py, by way of native/r_channel.c.

versions <- c(1, 1)

say_hello <- function() {
    .Call(native$say_hello, list(type = "hello", versions = versions, language = "r"))
}

take_channel <- function() .Call(native$take_channel)

serve_zygote <- function() .Call(native$serve_zygote, user_library())

# Sends a message with the next one, which follows soon.
put_off <- function(message) .Call(native$send, message, FALSE, TRUE)

# Sends the last message of a request.
send_last <- function(message) {
    .Call(native$end_copy)
    .Call(native$send, message, FALSE, FALSE)
    .Call(native$end_request)
}

# Shows something at this place in the output.
send_here <- function(message) .Call(native$send, message, TRUE, FALSE)

# Lets R's top level serve from now on, with something to be done first. It is called there and not here, so that cells
# have as little around them as they would have at the top level themselves.
be_ready <- function(first) {
    begin <- function() {
        assign(".atoll_serve", serve, envir = .AutoloadEnv)
        first()
        serve()
    }
    assign(".atoll_serve", begin, envir = .AutoloadEnv)
    invisible(.Call(native$note_ready))
}

# Serves for ever. R comes back here from its top level, if a cell went there; then that is what ended the cell.
serve <- function() {
    .Call(native$note_serving, TRUE)
    on.exit(.Call(native$note_serving, FALSE))
    suspendInterrupts({
        if (isTRUE(state$is_running)) {
            end_left_cell()
        }
        repeat handle(.Call(native$receive))
    })
}

handle <- function(message) {
    tryCatch(
        switch(message$type,
            welcome = welcome(message),
            execute = execute(message),
            complete = answer(complete(message$code, message$cursor)),
            inspect = answer(inspect(message$code, message$cursor)),
            ping = answer(named_list())
        ),
        error = function(condition) give_up(message$type, condition)
    )
}

# The host waits for a last word, whatever happens.
give_up <- function(type, condition) {
    if (type == "execute") {
        put_off(error_message(condition, NULL))
        end_cell("error", state$count)
    } else if (type == "welcome") {
        .Call(native$end_kernel, message_of(condition))
    } else {
        answer(list(error = message_of(condition)))
    }
}

end_left_cell <- function() {
    put_off(error_message(left_cell, NULL))
    end_cell("error", state$count)
}

welcome <- function(message) {
    if (length(message$env)) {
        do.call(Sys.setenv, message$env)
    }
    if (is.character(message$cwd)) {
        setwd(message$cwd)
    }
}

answer <- function(content) send_last(list(type = "reply", content = content))

named_list <- function() structure(list(), names = character())
