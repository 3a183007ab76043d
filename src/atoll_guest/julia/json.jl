# JSON, of which Julia's standard library has none: texts to values and back. What is no JSON raises `NotJson`.

const Message = Dict{String,Any}

# Compiled once, whatever the values are.
function message_of(@nospecialize(fields...))
    message = Message()
    for (name, value) in fields
        message[name] = value
    end
    message
end

struct NotJson <: Exception
    text::String
end

Base.showerror(io::IO, error::NotJson) = print(io, "not JSON: ", error.text)

# What the host takes, with room for the message around it.
const MOST_DEPTH = 60
const HEX = "0123456789abcdef"
const REPLACEMENT = "\ufffd"

# --- writing ----------------------------------------------------------------------------------------------------

function to_json(value)
    io = IOBuffer()
    write_json(io, value, 0)
    take!(io)
end

write_json(io::IO, ::Union{Nothing,Missing}, depth::Int) = print(io, "null")
write_json(io::IO, value::Bool, depth::Int) = print(io, value ? "true" : "false")
write_json(io::IO, value::Integer, depth::Int) = print(io, value)
write_json(io::IO, value::Symbol, depth::Int) = write_text(io, string(value))
write_json(io::IO, value::AbstractString, depth::Int) = write_text(io, String(value))

function write_json(io::IO, value::Real, depth::Int)
    number = Float64(value)
    isfinite(number) ? print(io, number) : print(io, "null")
end

function write_json(io::IO, value::Union{AbstractVector,Tuple}, depth::Int)
    check_depth(depth)
    print(io, '[')
    for (index, each) in enumerate(value)
        index == 1 || print(io, ',')
        write_json(io, each, depth + 1)
    end
    print(io, ']')
end

function write_json(io::IO, value::AbstractDict, depth::Int)
    check_depth(depth)
    print(io, '{')
    is_first = true
    for (name, each) in value
        is_first || print(io, ',')
        is_first = false
        write_text(io, string(name))
        print(io, ':')
        write_json(io, each, depth + 1)
    end
    print(io, '}')
end

write_json(io::IO, value, depth::Int) = throw(NotJson("a value of type $(typeof(value))"))

check_depth(depth::Int) = depth < MOST_DEPTH || throw(NotJson("nested more than $MOST_DEPTH deep"))

function write_text(io::IO, text::String)
    whole = isvalid(text) ? text : valid_text(text)
    bytes = codeunits(whole)
    write(io, '"')
    start = 1
    for (index, byte) in enumerate(bytes)
        if byte < 0x20 || byte == UInt8('"') || byte == UInt8('\\')
            write(io, view(bytes, start:index-1))
            write_escaped(io, byte)
            start = index + 1
        end
    end
    write(io, view(bytes, start:length(bytes)))
    write(io, '"')
end

function write_escaped(io::IO, byte::UInt8)
    if byte < 0x20
        print(io, "\\u00", HEX[(byte >> 4)+1], HEX[(byte & 0x0f)+1])
    else
        print(io, '\\', Char(byte))
    end
end

# Returns a text with everything replaced that no UTF-8 has.
function valid_text(text::String)
    io = IOBuffer()
    for each in text
        isvalid(each) ? print(io, each) : print(io, REPLACEMENT)
    end
    String(take!(io))
end

# --- reading ----------------------------------------------------------------------------------------------------

mutable struct Reader
    bytes::Vector{UInt8}
    at::Int
end

function from_json(bytes::Vector{UInt8})
    reader = Reader(bytes, 1)
    value = read_value(reader, 0)
    next_byte(reader) === nothing || throw(NotJson("more than one value"))
    value
end

# Returns the next byte that is no blank, and stays before it.
function next_byte(reader::Reader)
    while reader.at <= length(reader.bytes)
        byte = reader.bytes[reader.at]
        byte in (0x20, 0x09, 0x0a, 0x0d) || return byte
        reader.at += 1
    end
    nothing
end

function expect(reader::Reader, wanted::Char)
    next_byte(reader) === UInt8(wanted) || throw(NotJson("no $(repr(wanted)) at $(reader.at)"))
    reader.at += 1
end

function read_value(reader::Reader, depth::Int)
    check_depth(depth)
    byte = next_byte(reader)
    byte === UInt8('{') && return read_object(reader, depth)
    byte === UInt8('[') && return read_list(reader, depth)
    byte === UInt8('"') && return read_text(reader)
    read_word(reader)
end

function read_object(reader::Reader, depth::Int)
    found = Message()
    each_part(reader, '{', '}') do
        next_byte(reader)
        name = read_text(reader)
        expect(reader, ':')
        found[name] = read_value(reader, depth + 1)
    end
    found
end

function read_list(reader::Reader, depth::Int)
    found = Any[]
    each_part(() -> push!(found, read_value(reader, depth + 1)), reader, '[', ']')
    found
end

function each_part(take, reader::Reader, first::Char, last::Char)
    expect(reader, first)
    if next_byte(reader) === UInt8(last)
        reader.at += 1
        return
    end
    while true
        take()
        next_byte(reader) === UInt8(',') || return expect(reader, last)
        reader.at += 1
    end
end

function read_word(reader::Reader)
    start = reader.at
    while reader.at <= length(reader.bytes) && is_of_word(reader.bytes[reader.at])
        reader.at += 1
    end
    word = String(reader.bytes[start:reader.at-1])
    word == "null" && return nothing
    word in ("true", "false") && return word == "true"
    whole = tryparse(Int, word)
    number = whole === nothing ? tryparse(Float64, word) : whole
    number === nothing && throw(NotJson("no value at $start"))
    number
end

is_of_word(byte::UInt8) = byte in UInt8('0'):UInt8('9') || byte in UInt8('a'):UInt8('z') || byte in b"+-.E"

function read_text(reader::Reader)
    expect(reader, '"')
    io = IOBuffer()
    while true
        stop = findnext(byte -> byte == UInt8('"') || byte == UInt8('\\'), reader.bytes, reader.at)
        stop === nothing && throw(NotJson("a text without an end"))
        write(io, view(reader.bytes, reader.at:stop-1))
        reader.at = stop + 1
        reader.bytes[stop] == UInt8('"') && return String(take!(io))
        read_escaped(io, reader)
    end
end

# What stands behind a backslash, and at the same place what it means.
const LETTERS, MEANINGS = "ntrbf\"\\/", "\n\t\r\b\f\"\\/"

function read_escaped(io::IO, reader::Reader)
    reader.at <= length(reader.bytes) || throw(NotJson("a text without an end"))
    letter = Char(reader.bytes[reader.at])
    reader.at += 1
    if letter == 'u'
        print(io, read_code(reader))
    else
        place = findfirst(isequal(letter), LETTERS)
        place === nothing && throw(NotJson("an unknown escape at $(reader.at)"))
        print(io, MEANINGS[place])
    end
end

# Returns a character that is written as one or two halves.
function read_code(reader::Reader)
    code = read_hex(reader)
    if code in 0xd800:0xdbff && reader.bytes[reader.at:min(end, reader.at + 1)] == b"\\u"
        reader.at += 2
        low = read_hex(reader)
        return Char(0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00))
    end
    code in 0xd800:0xdfff ? REPLACEMENT[1] : Char(code)
end

function read_hex(reader::Reader)
    digits = String(reader.bytes[reader.at:min(end, reader.at + 3)])
    reader.at += 4
    code = tryparse(UInt32, digits; base = 16)
    code === nothing || length(digits) < 4 ? throw(NotJson("a broken escape")) : code
end
