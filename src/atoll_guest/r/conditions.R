# Errors with their call and how they came about, and warnings as R words them.

conditions <- new.env(parent = emptyenv())
most_calls <- 40
most_warnings <- 50
long_line <- 75

begin_conditions <- function() {
    state$calls <- NULL
    conditions$warnings <- list()
    conditions$count <- 0
}

# Called where an error is raised, while what led to it is still there.
note_error <- function(condition) {
    state$calls <- sys.calls()
}

# As R does between two expressions of its top level; other levels of the option `warn` are R's own business.
note_warning <- function(condition) {
    level <- getOption("warn")
    call <- conditionCall(condition)
    if (identical(as.numeric(level), 1) && is_ours(call)) {
        cat("Warning: ", message_of(condition), "\n", sep = "", file = stderr())
        invokeRestart("muffleWarning")
    }
    if (!is.numeric(level) || length(level) != 1 || is.na(level) || level != 0) {
        return()
    }
    conditions$count <- conditions$count + 1
    if (conditions$count <= most_warnings) {
        kept <- list(if (is_ours(call)) NULL else call)
        names(kept) <- message_of(condition)
        conditions$warnings <- c(conditions$warnings, kept)
    }
    invokeRestart("muffleWarning")
}

tell_warnings <- function() {
    if (conditions$count > 0) {
        suspendInterrupts(write_warnings())
    }
}

write_warnings <- function() {
    count <- conditions$count
    kept <- structure(conditions$warnings, class = "warnings")
    conditions$count <- 0
    conditions$warnings <- list()
    .Call(native$set_in_base, "last.warning", unclass(kept))
    if (count > most_warnings) {
        text <- paste0(
            "There were ", most_warnings, " or more warnings (use warnings() to see the first ", most_warnings, ")\n"
        )
    } else if (count > 10) {
        text <- paste0("There were ", count, " warnings (use warnings() to see them)\n")
    } else {
        text <- printed(kept)
    }
    cat(text, file = stderr())
}

message_of <- function(condition) {
    text <- tryCatch(conditionMessage(condition), error = function(second) NULL)
    if (is.character(text)) paste(text, collapse = "\n") else "(an error without words)"
}

error_message <- function(condition, calls) {
    if (inherits(condition, "interrupt")) {
        return(list(type = "error", name = "interrupt", value = "interrupted", traceback = I("interrupted")))
    }
    text <- message_of(condition)
    # How a cell came to ask for its end is plain.
    is_asked_for <- inherits(condition, c("quit", "toplevel"))
    lines <- c(headline(condition, text), if (!is_asked_for) traceback_lines(calls))
    list(type = "error", name = class(condition)[1], value = cut_text(text), traceback = I(cut_text(lines)))
}

headline <- function(condition, text) {
    call <- conditionCall(condition)
    if (is.null(call) || is_ours(call)) {
        return(paste0("Error: ", text))
    }
    words <- deparse(call, nlines = 1)[1]
    first <- strsplit(text, "\n", fixed = TRUE)[[1]][1]
    width <- 14 + nchar(words, "w", allowNA = TRUE) + nchar(first, "w", allowNA = TRUE)
    gap <- if (is.na(width) || width > long_line) " : \n  " else " : "
    paste0("Error in ", words, gap, text)
}

is_ours <- function(call) identical(call, run_call)

# What was called, outermost first; the kernel's own calls around it are left out.
traceback_lines <- function(calls) {
    first <- Position(is_ours, calls)
    if (is.null(calls) || is.na(first)) {
        return(character())
    }
    calls <- calls[-seq_len(first)]
    handler <- Position(is_handler, calls)
    if (!is.na(handler)) {
        calls <- calls[seq_len(handler - 1)]
    }
    count <- length(calls)
    if (count == 0) {
        return(character())
    }
    lines <- character()
    half <- most_calls %/% 2
    for (index in seq_len(count)) {
        if (count <= most_calls || index <= half || index > count - half) {
            lines <- c(lines, call_line(index, calls[[index]]))
        } else if (index == half + 1) {
            lines <- c(lines, paste0("   (", count - most_calls, " more calls)"))
        }
    }
    c("Traceback:", lines)
}

# What R, or the kernel, calls between raising an error and noting it.
is_handler <- function(call) {
    name <- call[[1]]
    identical(name, quote(.handleSimpleError)) || identical(name, quote(h)) || is.function(name) ||
        identical(name, quote(signalCondition))
}

call_line <- function(index, call) {
    words <- deparse(call, nlines = 2)
    text <- if (length(words) > 1) paste(words[1], "...") else words
    source <- attr(call, "srcref")
    if (!is.null(source)) {
        file <- attr(source, "srcfile")$filename
        text <- paste0(text, " at ", if (is.null(file)) "" else file, "#", source[1])
    }
    paste0(index, ". ", text)
}
