# What can be asked besides to run cells: how a word may go on, and what is known of it.

const MOST_MATCHES = 1000
const MOST_HELP = 20_000
const REPL_PACKAGE = Base.PkgId(Base.UUID("3fa0cd96-eef1-5676-8a61-b3b8758bbffb"), "REPL")

# Returns the package that holds Julia's completions and its help; it is loaded when somebody asks.
repl() = Base.require(REPL_PACKAGE)

# Places are counted in characters by the host, and in bytes by Julia.
function complete(code::String, cursor::Int)
    completions = repl().REPLCompletions
    before = first(code, cursor)
    found, range, _ = when_needed(completions.completions, before, lastindex(before))
    texts = unique(String[when_needed(completions.completion_text, each) for each in found])
    start = isempty(texts) ? cursor : length(before, 1, prevind(before, first(range)))
    message_of("matches" => texts[1:min(end, MOST_MATCHES)], "start" => start, "end" => cursor)
end

function inspect(code::String, cursor::Int)
    word = word_at(code, cursor)
    place = isempty(word) ? nothing : find_name(word)
    place === nothing && return message_of("found" => false, "data" => Message())
    repl()
    help = when_needed(Base.Docs.doc, Base.Docs.Binding(place...))
    data = message_of(
        PLAIN => first(text_of(MIME(PLAIN), help), MOST_HELP),
        "text/markdown" => first(text_of(MIME("text/markdown"), help), MOST_HELP),
    )
    message_of("found" => true, "data" => data)
end

is_of_name(letter::Char) = Base.is_id_char(letter) || letter == '.' || letter == '@'

function word_at(code::String, cursor::Int)
    letters = collect(code)
    start = stop = min(cursor, length(letters))
    while start > 0 && is_of_name(letters[start])
        start -= 1
    end
    while stop < length(letters) && Base.is_id_char(letters[stop+1])
        stop += 1
    end
    strip(String(letters[start+1:stop]), '.')
end

# Returns the module and the name that a word stands for. Only names are looked up: asking must not run anything else.
function find_name(word::AbstractString)
    names = Symbol.(split(startswith(word, '@') || !occursin('@', word) ? word : replace(word, "@" => ""), '.'))
    occursin('@', word) && (names[end] = Symbol("@", lstrip(string(names[end]), '@')))
    place = Main
    for name in names[1:end-1]
        isdefined(place, name) || return nothing
        found = getfield(place, name)
        found isa Module || return nothing
        place = found
    end
    isdefined(place, names[end]) ? (place, names[end]) : nothing
end
