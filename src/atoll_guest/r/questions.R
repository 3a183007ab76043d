# What can be asked of a kernel besides to run cells: how a word may go on, and what is known of it.

complete <- function(code, cursor) {
    before <- substr(code, 1, cursor)
    line <- sub("^.*\n", "", before)
    utils <- asNamespace("utils")
    utils$.assignLinebuffer(line)
    utils$.assignEnd(nchar(line))
    token <- utils$.guessTokenFromLine()
    utils$.completeToken()
    found <- utils$.retrieveCompletions()
    list(matches = I(as.character(found)), start = cursor - nchar(token), end = cursor)
}

inspect <- function(code, cursor) {
    word <- word_at(code, cursor)
    value <- if (nzchar(word)) find_value(word)
    if (is.null(value)) {
        return(list(found = FALSE, data = named_list()))
    }
    text <- capture({
        if (is.function(value$value)) describe_function(word, value$value) else utils::str(value$value)
    })
    list(found = TRUE, data = list("text/plain" = sub("\n$", "", text)))
}

word_at <- function(code, cursor) {
    before <- sub("^(.|\n)*?([[:alnum:]._:$@]*)$", "\\2", substr(code, 1, cursor))
    after <- sub("^([[:alnum:]._]*)(.|\n)*$", "\\1", substr(code, cursor + 1, nchar(code)))
    paste0(before, after)
}

# Only names are looked up: asking must not run anything else.
find_value <- function(word) {
    expression <- tryCatch(parse(text = word, keep.source = FALSE)[[1]], error = function(condition) NULL)
    if (is.null(expression) || !is_path(expression)) {
        return(NULL)
    }
    tryCatch(list(value = eval(expression, .GlobalEnv)), error = function(condition) NULL)
}

is_path <- function(expression) {
    if (is.name(expression)) {
        return(TRUE)
    }
    is.call(expression) && length(expression) == 3 && is.name(expression[[1]]) &&
        as.character(expression[[1]]) %in% c("$", "@", "::", ":::") && is_path(expression[[2]])
}

describe_function <- function(word, value) {
    lines <- deparse(args(value))
    cat(word, trimws(sub("^function ", "", paste(lines[-length(lines)], collapse = "\n")), "right"), "\n", sep = "")
    help <- help_text(sub("^.*:", "", word))
    if (length(help)) {
        cat("\n", paste(help, collapse = "\n"), "\n", sep = "")
    }
}

help_text <- function(topic) {
    tryCatch(
        {
            pages <- utils::help((topic), help_type = "text", try.all.packages = FALSE)
            if (length(pages) == 0) {
                return(NULL)
            }
            page <- asNamespace("utils")$.getHelpFile(as.character(pages)[1])
            lines <- utils::capture.output(tools::Rd2txt(page, options = list(underline_titles = FALSE)))
            gsub("_\b", "", lines, fixed = TRUE)
        },
        error = function(condition) NULL
    )
}

# Returns what is printed meanwhile.
capture <- function(work) {
    .Call(native$begin_capture)
    on.exit(.Call(native$end_capture))
    force(work)
    .Call(native$end_capture)
}
