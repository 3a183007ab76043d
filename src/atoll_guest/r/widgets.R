# Pages of HTML that are complete by themselves: what a widget loads from elsewhere is put into it.

# Returns the forms of a value that is a page, or NULL.
page_of <- function(value) {
    if (inherits(value, "htmlwidget")) {
        return(list("text/plain" = paste0("<", class(value)[1], ">"), "text/html" = widget_page(value)))
    }
    if (inherits(value, c("shiny.tag", "shiny.tag.list", "html")) && requireNamespace("htmltools", quietly = TRUE)) {
        text <- as.character(value)
        return(list("text/plain" = text, "text/html" = tags_page(value)))
    }
    NULL
}

widget_page <- function(widget) tags_page(htmltools::as.tags(widget, standalone = TRUE))

tags_page <- function(tags) {
    rendered <- htmltools::renderTags(tags)
    needed <- htmltools::resolveDependencies(rendered$dependencies)
    head <- vapply(needed, function(each) paste(inlined(each), collapse = "\n"), "")
    paste0(c(
        "<!DOCTYPE html>\n<html>\n<head>\n<meta charset=\"utf-8\"/>\n", head, rendered$head,
        "\n</head>\n<body>\n", rendered$html, "\n</body>\n</html>\n"
    ), collapse = "")
}

# Returns the elements that hold what a dependency would have loaded.
inlined <- function(dependency) {
    folder <- folder_of(dependency)
    if (is.null(folder)) {
        return(dependency$head)
    }
    styles <- lapply(paths_of(dependency$stylesheet), function(path) {
        file <- file.path(folder, path)
        paste0("<style>\n", with_data(read_text(file), dirname(file)), "\n</style>")
    })
    scripts <- lapply(paths_of(dependency$script), function(path) {
        # The end of an element inside one would be the end of this one.
        code <- gsub("</script", "<\\\\/script", read_text(file.path(folder, path)), ignore.case = TRUE)
        paste0("<script>\n", code, "\n</script>")
    })
    c(unlist(styles), unlist(scripts), dependency$head)
}

folder_of <- function(dependency) {
    folder <- dependency$src$file
    if (is.null(folder)) {
        return(NULL)
    }
    if (is.null(dependency$package)) folder else system.file(folder, package = dependency$package)
}

paths_of <- function(entries) {
    if (is.list(entries)) {
        named <- entries$src
        entries <- if (is.null(named)) lapply(entries, path_of) else named
    }
    unlist(entries)
}

path_of <- function(entry) if (is.list(entry)) entry$src else entry

read_text <- function(file) {
    text <- readChar(file, file.size(file), useBytes = TRUE)
    Encoding(text) <- "UTF-8"
    text
}

# Puts files that a style sheet names into it.
with_data <- function(style, folder) {
    found <- gregexpr("url\\(\\s*['\"]?([^)'\"]+)['\"]?\\s*\\)", style, perl = TRUE)
    regmatches(style, found) <- lapply(regmatches(style, found), function(uses) {
        vapply(uses, function(use) {
            path <- sub("[?#].*$", "", gsub("^url\\(\\s*['\"]?|['\"]?\\s*\\)$", "", use))
            file <- file.path(folder, path)
            if (grepl("^(data|https?):", path) || !file.exists(file)) use else paste0("url(", data_address(file), ")")
        }, "")
    })
    style
}

data_address <- function(file) {
    kinds <- c(
        png = "image/png", gif = "image/gif", svg = "image/svg+xml", jpg = "image/jpeg", woff = "font/woff",
        woff2 = "font/woff2", ttf = "font/ttf", eot = "application/vnd.ms-fontobject"
    )
    kind <- kinds[tolower(sub(".*\\.", "", file))]
    if (is.na(kind)) kind <- "application/octet-stream"
    paste0("data:", kind, ";base64,", base64(readBin(file, "raw", file.size(file))))
}
