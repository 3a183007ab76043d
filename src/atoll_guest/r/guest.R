# Loads the kernel: its files into one environment, out of sight of what cells define.

load_guest <- function(folder) {
    guest <- new.env(parent = .BaseNamespaceEnv)
    files <- c("channel", "conditions", "pictures", "tables", "widgets", "values", "cells", "questions", "session")
    for (file in files) {
        sys.source(file.path(folder, paste0(file, ".R")), guest, keep.source = FALSE)
    }
    # In a container it lies beside the guest, whose root is an image.
    places <- c("/.atoll", "/opt/atoll")
    guest$native <- find_native(Find(file.exists, file.path(places, "spawn.so")))
    guest
}

# R is told once where a function is, instead of looking for it by name at every call.
find_native <- function(library) {
    names <- c(
        "r_receive", "r_send", "r_end_request", "r_end_kernel", "r_end_copy", "r_say_hello", "r_rehearse",
        "r_take_channel", "r_take_console", "r_note_ready", "r_note_serving", "r_begin_capture",
        "r_end_capture", "r_serve_zygote", "r_set_in_base", "r_evaluate"
    )
    found <- getNativeSymbolInfo(names, dyn.load(library))
    names(found) <- sub("^r_", "", names)
    lapply(found, function(each) each$address)
}
