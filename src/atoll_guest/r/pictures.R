# Pictures that cells draw, as PNG and SVG, without their opening a device: the kernel opens one when it is needed.
#
# What is drawn on it is shown when the next page begins, or when the cell ends; then it is closed.

pictures <- new.env(parent = emptyenv())
pictures$device <- 0
most_drawing_bytes <- 2 * 1024^2
# More than that would take long to be drawn again, for a file that nobody can look at.
most_drawn_bytes <- 2 * 1024^2
# What is in a device's list although nothing can be seen of it yet.
unseen <- c("C_clip", "C_layout", "C_par", "C_plot_window", "C_strHeight", "C_strWidth", "palette", "palette2")

prepare_pictures <- function() {
    options(device = open_device)
    setHook("before.plot.new", function() if (has_device() && graphics::par("page")) take_page(), "append")
    setHook("before.grid.newpage", function() if (has_device()) take_page(), "append")
}

size_of <- function(name, standard) {
    size <- getOption(paste0("repr.plot.", name))
    if (is.numeric(size) && length(size) == 1 && is.finite(size) && size > 0) size else standard
}

open_device <- function(...) {
    if (is_open()) {
        grDevices::dev.set(pictures$device)
        take_last_page()
        unlink(pictures$folder, recursive = TRUE)
    }
    pictures$folder <- tempfile("pictures")
    dir.create(pictures$folder)
    pictures$taken <- 0
    open_png(file.path(pictures$folder, "%d.png"))
    grDevices::dev.control("enable")
    pictures$device <- grDevices::dev.cur()
}

open_png <- function(file) {
    scale <- size_of("res", 100)
    grDevices::png(
        file, size_of("width", 8) * scale, size_of("height", 6) * scale,
        res = scale, type = "cairo", bg = size_of("bg", "white")
    )
}

open_svg <- function(file) grDevices::svg(file, size_of("width", 8), size_of("height", 6), bg = "white")

is_open <- function() pictures$device != 0 && pictures$device %in% grDevices::dev.list()

# Whether the device that is drawn on is the kernel's own.
has_device <- function() {
    is_open() && grDevices::dev.cur() == pictures$device
}

# Shows what is drawn on a page before the next one begins.
take_page <- function() {
    drawn <- grDevices::recordPlot()
    if (is_seen(drawn[[1]])) {
        pictures$taken <- pictures$taken + 1
        show_picture(replayed(drawn, open_png, "png"), drawing_of(drawn))
    }
}

# Shows what is drawn on the last page, and closes the device, which then has written it.
take_last_page <- function() {
    drawn <- grDevices::recordPlot()
    is_drawn <- is_seen(drawn[[1]])
    drawing <- if (is_drawn) drawing_of(drawn)
    grDevices::dev.off(pictures$device)
    if (is_drawn) {
        show_picture(read_bytes(tail_of(written_pages())), drawing)
    }
}

drawing_of <- function(drawn) {
    if (utils::object.size(drawn[[1]]) <= most_drawn_bytes) replayed(drawn, open_svg, "svg")
}

show_picture <- function(picture, drawing = NULL) {
    forms <- list("image/png" = base64(picture))
    if (length(drawing) > 0 && length(drawing) <= most_drawing_bytes) {
        forms[["image/svg+xml"]] <- rawToChar(drawing)
    }
    send_here(list(type = "display", data = bounded(forms), metadata = named_list()))
}

is_seen <- function(calls) {
    for (call in calls) {
        name <- call[[2]][[1]]
        name <- if (is.list(name) || inherits(name, "NativeSymbolInfo")) name$name else as.character(name)[1]
        if (!(name %in% unseen)) {
            return(TRUE)
        }
    }
    FALSE
}

replayed <- function(drawn, open, ending) {
    file <- tempfile("picture", fileext = paste0(".", ending))
    on.exit(unlink(file))
    before <- grDevices::dev.cur()
    open(file)
    device <- grDevices::dev.cur()
    tryCatch(grDevices::replayPlot(drawn), finally = {
        grDevices::dev.off(device)
        grDevices::dev.set(before)
    })
    read_bytes(file)
}

read_bytes <- function(file) readBin(file, "raw", file.size(file))

# The files of all pages that are complete, in order.
written_pages <- function() {
    count <- length(list.files(pictures$folder))
    file.path(pictures$folder, paste0(seq_len(count), ".png"))
}

tail_of <- function(values) values[length(values)]

# At the end of a cell: shows what was not shown yet, also of a device that the cell closed. Returns the interrupt that
# ended that, if one did.
finish_pictures <- function() {
    if (pictures$device == 0) {
        return(NULL)
    }
    interrupt <- tryCatch(
        allowInterrupts(show_pages()),
        error = function(condition) {
            cat("the picture could not be shown: ", message_of(condition), "\n", sep = "", file = stderr())
        },
        interrupt = identity
    )
    if (is_open()) {
        grDevices::dev.off(pictures$device)
    }
    unlink(pictures$folder, recursive = TRUE)
    pictures$device <- 0
    interrupt
}

show_pages <- function() {
    if (is_open()) {
        grDevices::dev.set(pictures$device)
        take_last_page()
    } else {
        pages <- written_pages()
        for (page in pages[seq_along(pages) > pictures$taken]) {
            show_picture(read_bytes(page))
        }
    }
    NULL
}
