# A warmed R that forks kernels.
#
# It runs jailed and without privileges, and holds nothing of any user's. Once it serves it never runs R again: the
# spawn library does, and returns only in the copies, each inside a sandbox of its own. What would be the same in each
# of them is seen to here and in native/r_zygote.c.

local({
    # What takes long to load and is often wanted, where it is installed.
    welcome <- c("jsonlite", "ggplot2")
    # Run before the fork, so that what every kernel needs is loaded, compiled and warm.
    warm_up <- c(
        "1 + 1", "x <- c(a = 1)\nx", "f <- function(n) {\n  s <- 0\n  for (i in 1:n) s <- s + i\n  s\n}\nf(10)",
        "stop('no')", "warning('so')", "message('so')", "data.frame(a = 1:2, b = c('x', 'y'))", "cat('x\\n')",
        "matrix(1:4, 2)", "list(a = 1, b = 'x')", "summary(c(1, 2))", "x y", "invisible(1)", "function(x) x"
    )
    rounds <- 5

    folder <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)[1]))
    source(file.path(folder, "guest.R"), local = TRUE)
    guest <- load_guest(folder)
    # R would do so after some calls: in each copy, and with each writing to its own memory.
    for (name in Filter(function(name) is.function(guest[[name]]), ls(guest))) {
        guest[[name]] <- compiler::cmpfun(guest[[name]])
    }
    # Not used, only loaded: whoever draws with it starts threads.
    dyn.load(file.path(R.home("library"), "grDevices", "libs", "cairo.so"))
    for (name in c("compiler", "graphics", "grid", "tools", welcome)) {
        suppressWarnings(requireNamespace(name, quietly = TRUE))
    }
    guest$prepare_session()
    # It keeps time for its progress bars in a thread, which each copy starts anew.
    cli <- if (isNamespaceLoaded("cli")) asNamespace("cli")
    if (!is.null(cli)) .Call(cli$clic_stop_thread)
    for (round in seq_len(rounds)) {
        guest$rehearse(warm_up)
    }
    threads <- length(list.files("/proc/self/task"))
    if (threads != 1) {
        # A copy would lack them, and their locks could be held for ever.
        stop("a zygote has to have one thread, not ", threads)
    }
    rm(list = ls(globalenv(), all.names = TRUE), envir = globalenv())
    guest$say_hello()
    # What is old by now is not looked at again for long, and so not written to in the copies.
    for (round in 1:3) gc(full = TRUE)
    guest$be_ready(function() {
        guest$serve_zygote()
        # From here on this is a kernel, in a sandbox.
        if (!is.null(cli)) .Call(cli$clic_start_thread, cli, cli$clienv$tick_time, cli$clienv$speed_time)
    })
})
