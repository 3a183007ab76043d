# Values in the forms in which they can be shown.

most_characters <- 1000000
most_bytes <- 6 * 1024^2

# Shows a value as R prints it, and in what other forms it has: the last one is the cell's result.
show_value <- function(value, is_last) {
    forms <- forms_of(value)
    if (length(forms) == 0) {
        return()
    }
    message <- list(type = if (is_last) "result" else "display", data = forms, metadata = table_facts(value))
    send <- if (is_last) put_off else send_here
    if (!send(message)) {
        message$data <- list("text/plain" = cut_text(forms[["text/plain"]]))
        send(message)
    }
}

forms_of <- function(value) {
    page <- page_of(value)
    if (!is.null(page)) {
        return(page)
    }
    text <- printed(value)
    forms <- if (nzchar(text)) list("text/plain" = sub("\n$", "", text)) else named_list()
    bounded(c(forms, table_forms(value)))
}

# Leaves out what is too long for a message; text is cut.
bounded <- function(forms) {
    sizes <- vapply(forms, function(form) if (is.character(form)) sum(nchar(form, "bytes")) else 0, 0)
    if (sum(sizes) <= most_bytes) {
        return(forms)
    }
    text <- forms[["text/plain"]]
    if (is.null(text)) {
        return(list("text/plain" = paste0("(left out: ", names(forms)[1], " of ", sum(sizes), " bytes)")))
    }
    list("text/plain" = cut_text(text))
}

cut_text <- function(text) {
    if (length(text) == 0) {
        return("(too long to be shown)")
    }
    if (all(nchar(text, "bytes") <= most_characters)) {
        return(text)
    }
    size <- nchar(text, "bytes")
    head <- substr(text, 1, most_characters %/% 8)
    ifelse(size <= most_characters, text, paste0(head, "\n(cut: ", size, " bytes in all)"))
}

# Returns what R prints for a value at its top level. A method may be the cell's own, so it is called from there.
printed <- function(value) {
    place <- new.env(parent = .GlobalEnv)
    place$x <- value
    .Call(native$begin_capture)
    is_done <- FALSE
    on.exit(if (!is_done) cat(.Call(native$end_capture)))
    # What is said of a value is no part of it, though tidyverse's packages say it on standard output.
    withCallingHandlers(eval(if (isS4(value)) show_call else print_call, place), message = say_apart)
    is_done <- TRUE
    .Call(native$end_capture)
}

say_apart <- function(condition) {
    cat(sub("\n*$", "\n", message_of(condition)), file = stderr())
    tryInvokeRestart("muffleMessage")
}

print_call <- as.call(list(print, quote(x)))
show_call <- as.call(list(methods::show, quote(x)))

# Shows a value in forms that a cell names, at this place in its output.
publish <- function(forms, metadata = NULL) {
    forms <- lapply(forms, function(form) if (is.raw(form)) base64(form) else form)
    facts <- if (length(metadata)) metadata else named_list()
    send_here(list(type = "display", data = bounded(forms), metadata = facts))
    invisible()
}

base64 <- function(bytes) {
    letters <- c(LETTERS, base::letters, 0:9, "+", "/")
    missing <- -length(bytes) %% 3
    whole <- matrix(as.integer(c(bytes, raw(missing))), 3)
    first <- whole[1, ]
    second <- whole[2, ]
    third <- whole[3, ]
    codes <- rbind(first %/% 4, first %% 4 * 16 + second %/% 16, second %% 16 * 4 + third %/% 64, third %% 64)
    text <- letters[codes + 1]
    if (missing > 0) {
        text[length(text) - seq_len(missing) + 1] <- "="
    }
    paste(text, collapse = "")
}
