# A kernel of R that is a program of its own: its standard input is the channel to the host.

local({
    folder <- dirname(sub("^--file=", "", grep("^--file=", commandArgs(), value = TRUE)[1]))
    source(file.path(folder, "guest.R"), local = TRUE)
    guest <- load_guest(folder)
    dir.create(guest$user_library(), showWarnings = FALSE, recursive = TRUE)
    guest$prepare_session()
    guest$be_ready(function() {
        guest$take_channel()
        guest$say_hello()
    })
})
