# Values in the forms in which they can be shown, by MIME type, and the display by which cells show them.

using Base64: base64encode

const PLAIN = "text/plain"
const RICH = (
    "text/html", "text/markdown", "text/latex", "image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp",
    "application/pdf", "application/javascript", "application/json", "application/geo+json",
    "application/vnd.vega.v5+json", "application/vnd.vegalite.v4+json", "application/vnd.vegalite.v5+json",
    "application/vnd.plotly.v1+json", "application/vnd.dataresource+json",
)
const MOST_CHARACTERS = 1_000_000
# Room for text and the message around it.
const MOST_FORM_BYTES = 6 << 20

struct HostDisplay <: AbstractDisplay
    kernel::Any  # a Kernel
end

Base.display(screen::HostDisplay, value) = publish(screen.kernel, forms_of(value))
Base.displayable(screen::HostDisplay, ::MIME) = true

function Base.display(screen::HostDisplay, kind::MIME, value)
    name = string(kind)
    forms = message_of(name => form_of(kind, value))
    # For whoever can show nothing else.
    haskey(forms, PLAIN) || (forms[PLAIN] = is_textual(name) && value isa AbstractString ? value : summary(value))
    publish(screen.kernel, forms)
end

# Shows something at this place in the output; what comes after its cell has ended is printed.
function publish(kernel, forms::Message)
    message = message_of("type" => "display", "data" => bounded(forms), "metadata" => Message())
    send_here(kernel.channel, message) || println(stdout, forms[PLAIN])
    nothing
end

# Returns a value in all forms that it has. Methods may be a cell's own, and newer than this function.
function forms_of(value)
    forms = message_of(PLAIN => plain(value))
    for name in RICH
        kind = MIME(name)
        # The first is found out without compiling anything, and the second may be a cell's own.
        if hasmethod(show, Tuple{IO,typeof(kind),typeof(value)}) && when_needed(showable, kind, value)
            when_needed(add_form!, forms, kind, value)
        end
    end
    may_be_table(value) && when_needed(add_table!, forms, value)
    forms
end

# A form that cannot be made is left out; the text is there.
function add_form!(forms::Message, kind::MIME, value)
    try
        forms[string(kind)] = form_of(kind, value)
    catch error
        error isa InterruptException && rethrow()
        tell_left_out(kind, error)
    end
end

tell_left_out(kind, error) = println(stderr, "(left out: ", kind, ": ", first_line(error), ")")

plain(value) = cut_text(text_of(MIME(PLAIN), value))

# Returns one form as the host takes it: bytes in base64, else text, and JSON as it is.
function form_of(kind::MIME, value)
    name = string(kind)
    is_json(name) && value isa Union{AbstractDict,AbstractVector} && return value
    is_textual(name) || return base64encode(bytes_of(kind, value))
    text = text_of(kind, value)
    is_json(name) ? from_json(Vector{UInt8}(text)) : text
end

is_json(name::String) = endswith(name, "/json") || endswith(name, "+json")
is_textual(name::String) = is_json(name) || endswith(name, "+xml") || istextmime(name)

text_of(kind::MIME, value) = String(bytes_of(kind, value))

function bytes_of(kind::MIME, value)
    # As `display` of Julia's own takes what is in that form already.
    value isa Vector{UInt8} && !is_textual(string(kind)) && return value
    value isa AbstractString && !(kind isa MIME"text/plain") && return Vector{UInt8}(value)
    io = IOBuffer()
    shown = IOContext(io, :limit => true, :color => false, :module => Main, :displaysize => displaysize(stdout))
    when_needed(show, shown, kind, value)
    take!(io)
end

function cut_text(text::AbstractString)
    sizeof(text) <= MOST_CHARACTERS && return text
    string(first_part(text), "\n(cut: ", length(text), " characters in all)")
end

first_part(text::AbstractString) = SubString(text, 1, thisind(text, MOST_CHARACTERS))

# Leaves out the largest forms if all of them are too much for a message.
function bounded(forms::Message)
    kept = copy(forms)
    left_out = String[]
    while sum(size_of, values(kept)) > MOST_FORM_BYTES && length(kept) > 1
        kind = argmax_size(kept)
        delete!(kept, kind)
        push!(left_out, kind)
    end
    if !isempty(left_out)
        note = "(left out: $(join(left_out, ", ")): too large to be shown; write it to a file)"
        kept[PLAIN] = string(get(kept, PLAIN, ""), "\n", note)
    end
    kept
end

size_of(form) = form isa AbstractString ? sizeof(form) : Base.summarysize(form)

function argmax_size(forms::Message)
    kinds = [kind for kind in keys(forms) if kind != PLAIN]
    kinds[findmax([size_of(forms[kind]) for kind in kinds])[2]]
end
