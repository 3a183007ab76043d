# What cells find in place of what R has for people at a terminal, and the functions by which they show things.

prepare_session <- function() {
    .Call(native$take_console)
    options(
        pager = show_file, browser = show_address, viewer = NULL, menu.graphics = FALSE, help_type = "text",
        editor = "false", keep.source = TRUE, width = 80
    )
    use_user_library()
    prepare_pictures()
    for (name in c("quit", "q")) {
        replace_in_base(name, quit_cell)
    }
    attach(display_functions(), pos = length(search()), name = "atoll", warn.conflicts = FALSE)
}

replace_in_base <- function(name, value) {
    place <- baseenv()
    unlockBinding(name, place)
    assign(name, value, envir = place)
    lockBinding(name, place)
}

# Ends the cell: how long the kernel lives is for the host to say.
quit_cell <- function(save = "default", status = 0, runLast = TRUE) {
    text <- paste0("the cell asked R to quit with status ", status, "; it ended, and the kernel lives on")
    stop(structure(list(message = text, call = NULL), class = c("quit", "error", "condition")))
}

show_file <- function(files, header, title, delete.file) {
    for (file in files) {
        cat(gsub("_\b", "", readLines(file, warn = FALSE), fixed = TRUE), sep = "\n")
        if (isTRUE(delete.file)) unlink(file)
    }
}

show_address <- function(url, ...) cat("to be opened in a browser: ", url, "\n", sep = "")

# Packages that a cell installs go there. It is made in each kernel, so that it need not be there yet.
user_library <- function() path.expand(strsplit(Sys.getenv("R_LIBS_USER"), ":", fixed = TRUE)[[1]][1])

use_user_library <- function() {
    place <- environment(.libPaths)
    place$.lib.loc <- unique(c(user_library(), .libPaths()))
}

display_functions <- function() {
    text_form <- function(kind) function(text) publish(structure(list(paste(text, collapse = "\n")), names = kind))
    file_form <- function(kind) {
        function(data = NULL, file = NULL) {
            bytes <- if (is.null(file)) data else readBin(file, "raw", file.size(file))
            publish(structure(list(bytes), names = kind))
        }
    }
    list(
        display = function(value, metadata = NULL) {
            forms <- forms_of(value)
            if (length(forms)) publish(forms, metadata)
        },
        publish_mimebundle = publish,
        display_html = text_form("text/html"),
        display_markdown = text_form("text/markdown"),
        display_latex = text_form("text/latex"),
        display_javascript = text_form("application/javascript"),
        display_svg = function(data = NULL, file = NULL) {
            text <- if (is.null(file)) data else readLines(file, warn = FALSE)
            publish(list("image/svg+xml" = paste(text, collapse = "\n")))
        },
        display_png = file_form("image/png"),
        display_jpeg = file_form("image/jpeg"),
        display_pdf = file_form("application/pdf"),
        display_json = function(value) publish(list("application/json" = value)),
        clear_output = function(wait = TRUE) invisible(send_here(list(type = "clear", wait = isTRUE(wait))))
    )
}
