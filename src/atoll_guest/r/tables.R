# Data frames and matrices as pages and as data.

most_rows <- 60
most_columns <- 20
# As tables of Python's are bounded; see atoll_guest/tables.py.
most_data_rows <- 10000
most_data_values <- 20000
most_data_columns <- 1000
plain_types <- c("integer", "double", "logical", "character")
table_form <- "application/vnd.dataresource+json"

# Returns further forms of a value that is a table, and none for any other. One that cannot be made is left out.
table_forms <- function(value) {
    tryCatch(
        if (is.data.frame(value)) {
            structure(list(frame_page(value), frame_data(value)), names = c("text/html", table_form))
        } else if (is.matrix(value) && is.atomic(value) && !isS4(value)) {
            list("text/html" = matrix_page(value))
        },
        error = function(condition) NULL
    )
}

# Tells how much of a table the data is.
table_facts <- function(value) {
    if (!is.data.frame(value)) {
        return(named_list())
    }
    size <- data_size(value)
    facts <- list(rows = nrow(value), columns = ncol(value), truncated = size[1] < nrow(value) || size[2] < ncol(value))
    structure(list(facts), names = table_form)
}

frame_page <- function(frame) {
    shown <- seq_len(min(ncol(frame), most_columns))
    rows <- shown_rows(nrow(frame))
    part <- as.data.frame(frame)[rows, shown, drop = FALSE]
    cells <- vapply(part, function(column) escape(format_column(column)), character(length(rows)))
    dim(cells) <- c(length(rows), length(shown))
    page(names(frame)[shown], row_names(frame, rows), cells, dim(frame), vapply(part, type_words, ""))
}

matrix_page <- function(value) {
    shown <- seq_len(min(ncol(value), most_columns))
    rows <- shown_rows(nrow(value))
    part <- value[rows, shown, drop = FALSE]
    names <- if (is.null(colnames(value))) paste0("[,", shown, "]") else colnames(value)[shown]
    labels <- if (is.null(rownames(value))) paste0("[", rows, ",]") else rownames(value)[rows]
    cells <- escape(format_column(as.vector(part)))
    dim(cells) <- dim(part)
    page(names, labels, cells, dim(value), NULL)
}

# The first and the last ones, if there are many.
shown_rows <- function(count) {
    if (count <= most_rows) seq_len(count) else c(seq_len(most_rows / 2), count - rev(seq_len(most_rows / 2)) + 1)
}

row_names <- function(frame, rows) {
    kept <- attr(frame, "row.names")
    as.character(if (is.null(kept)) rows else kept[rows])
}

page <- function(names, labels, cells, size, types) {
    head <- paste0("<th>", escape(names), "</th>", collapse = "", recycle0 = TRUE)
    values <- vapply(seq_len(nrow(cells)), function(row) row_cells(cells[row, ]), "")
    lines <- paste0("<tr><th>", escape(labels), "</th>", values, "</tr>", recycle0 = TRUE)
    if (size[1] > nrow(cells)) {
        gap <- paste0("<tr>", strrep("<td>\u22ee</td>", length(names) + 1), "</tr>")
        lines <- append(lines, gap, most_rows / 2)
    }
    kinds <- if (!is.null(types)) {
        paste0("<tr><th></th>", paste0("<th>&lt;", types, "&gt;</th>", collapse = "", recycle0 = TRUE), "</tr>")
    }
    part <- if (size[2] > ncol(cells)) paste0(", the first ", ncol(cells), " columns shown")
    words <- paste0("<p>", size[1], " \u00d7 ", size[2], part, "</p>")
    paste0(
        "<table>\n<thead>\n<tr><th></th>", head, "</tr>\n", kinds, "</thead>\n<tbody>\n",
        paste0(lines, collapse = "\n"), "\n</tbody>\n</table>\n", words
    )
}

row_cells <- function(values) paste0("<td>", values, "</td>", collapse = "", recycle0 = TRUE)

format_column <- function(column) {
    if (is.data.frame(column) || is.matrix(column)) {
        text <- apply(as.matrix(column), 1, paste, collapse = ", ")
    } else if (is.list(column)) {
        text <- vapply(column, function(each) paste(format(each), collapse = ", "), "")
    } else if (is.character(column)) {
        text <- column
    } else if (is.numeric(column) && !is.object(column)) {
        text <- vapply(column, format, "", digits = getOption("digits"))
    } else {
        text <- trimws(format(column))
    }
    text <- as.character(text)
    text[is.na(text)] <- "NA"
    text
}

escape <- function(text) {
    text <- gsub("&", "&amp;", enc2utf8(as.character(text)), fixed = TRUE)
    gsub(">", "&gt;", gsub("<", "&lt;", text, fixed = TRUE), fixed = TRUE)
}

type_words <- function(column) {
    name <- class(column)[1]
    switch(name, integer = "int", numeric = "dbl", character = "chr", logical = "lgl", factor = "fct", name)
}

data_size <- function(frame) {
    columns <- min(ncol(frame), most_data_columns)
    c(min(nrow(frame), most_data_rows, max(1, most_data_values %/% max(1, columns))), columns)
}

# A table resource: fields with their types, and a row for each line.
frame_data <- function(frame) {
    size <- data_size(frame)
    labels <- attr(frame, "row.names")
    part <- as.data.frame(frame)[seq_len(size[1]), seq_len(size[2]), drop = FALSE]
    names(part) <- make.unique(as.character(names(part)))
    index <- if ("index" %in% names(part)) ".row" else "index"
    columns <- c(structure(list(labels[seq_len(size[1])]), names = index), as.list(part))
    list(
        schema = list(fields = unname(Map(data_field, names(columns), columns)), primaryKey = I(index)),
        data = structure(lapply(columns, data_column), class = "atoll_rows")
    )
}

data_field <- function(name, column) {
    if (inherits(column, "POSIXt")) {
        return(list(name = name, type = "datetime", tz = "UTC"))
    }
    list(name = name, type = data_type(column))
}

# Whole numbers and truth values are such only where none is missing.
data_type <- function(column) {
    if (inherits(column, "Date")) {
        return("datetime")
    }
    if (is.object(column) || !is.null(dim(column))) {
        return("string")
    }
    switch(typeof(column),
        integer = if (anyNA(column)) "number" else "integer",
        double = "number",
        logical = if (anyNA(column)) "any" else "boolean",
        "string"
    )
}

data_column <- function(column) {
    if (inherits(column, "POSIXt")) {
        return(format(column, "%Y-%m-%dT%H:%M:%OS3Z", tz = "UTC"))
    }
    if (is.factor(column) || inherits(column, "Date")) {
        return(as.character(column))
    }
    is_plain <- !is.object(column) && is.null(dim(column)) && typeof(column) %in% plain_types
    if (is_plain) as.vector(column) else format_column(column)
}
