# Runs cells. They share the global environment, and are taken apart into expressions as R's own top level does.

state <- new.env(parent = emptyenv())
state$count <- 1

execute <- function(message) {
    count <- state$count
    state$is_running <- TRUE
    begin_conditions()
    outcome <- tryCatch(
        withRestarts(
            allowInterrupts(withCallingHandlers(
                run_cell(message$code, count),
                error = note_error, warning = note_warning
            )),
            abort = function() left_cell
        ),
        error = identity, interrupt = identity
    )
    interrupt <- finish_pictures()
    if (!is.null(interrupt)) {
        outcome <- interrupt
    }
    tell_warnings()
    if (!isTRUE(message$silent)) {
        state$count <- count + 1
    }
    status <- "ok"
    if (inherits(outcome, "condition")) {
        status <- if (inherits(outcome, "interrupt")) "interrupted" else "error"
        .Call(native$end_copy)
        put_off(error_message(outcome, state$calls))
    }
    end_cell(status, count)
}

end_cell <- function(status, count) {
    state$is_running <- FALSE
    send_last(list(type = "end", status = status, count = count))
}

# What ends a cell that asks for R's top level.
left_cell <- structure(
    list(message = "the cell asked for R's top level, and ended there", call = NULL),
    class = c("toplevel", "error", "condition")
)

run_cell <- function(code, count) {
    expressions <- parse_cell(code, count)
    last <- length(expressions)
    for (index in seq_len(last)) {
        expression <- expressions[[index]]
        outcome <- evaluate(expression)
        .Call(native$set_in_base, ".Last.value", outcome[[1]])
        if (outcome[[2]]) {
            show_value(outcome[[1]], index == last)
        }
        tell_warnings()
    }
    NULL
}

evaluate <- function(expression) .Call(native$evaluate, expression)

# What is raised in none of the cell's own functions is raised in this call.
run_call <- quote(evaluate(expression))

parse_cell <- function(code, count) {
    if (is.na(code)) {
        stop(parse_error("a cell of R holds no NUL characters"))
    }
    # Named, so that errors and functions tell where they come from.
    source <- srcfilecopy(paste("cell", count), strsplit(code, "\n", fixed = TRUE)[[1]])
    tryCatch(
        parse(text = code, keep.source = TRUE, srcfile = source),
        error = function(condition) stop(parse_error(conditionMessage(condition)))
    )
}

parse_error <- function(message) {
    structure(list(message = message, call = NULL), class = c("parseError", "error", "condition"))
}

# Runs cells that nobody sees.
rehearse <- function(cells) {
    suspendInterrupts(for (code in cells) {
        .Call(native$rehearse, TRUE)
        execute(list(type = "execute", id = "rehearsal", code = code, silent = TRUE))
        complete("pri", 3)
        .Call(native$rehearse, FALSE)
    })
    state$count <- 1
}
