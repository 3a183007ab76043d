# What cells are made of: expressions, and whether the last one is to be shown.

# Returns the expressions of a cell, each with its place; raises `ParseError` before any of them is run.
function parse_cell(code::String, name::String)
    place = LineNumberNode(1, Symbol(name))
    found = Expr[]
    for part in parts_of(code, name)
        if part isa LineNumberNode
            place = part
        elseif is_mistake(part)
            throw(ParseError(mistake_of(part, place)))
        else
            push!(found, Expr(:toplevel, place, with_soft_scope(part)))
        end
    end
    found
end

function parts_of(code::AbstractString, name::String)
    parsed = Base.parse_input_line(String(code); filename = name)
    parsed isa Expr && parsed.head === :toplevel ? parsed.args : Any[parsed]
end

is_mistake(part) = part isa Expr && part.head in (:error, :incomplete)

# Newer parsers tell the place themselves, in an error of their own.
function mistake_of(part::Expr, place::LineNumberNode)
    what = isempty(part.args) ? "this is no code" : part.args[1]
    what isa AbstractString ? "$(place.file):$(place.line): $what" : words_of(what)
end

# How many are looked at: each takes as long as the cell takes to be parsed.
const MOST_SEMICOLONS = 20
const WHOLE_BY_THEMSELVES = (:meta, :import, :using, :export, :public, :module, :thunk)

# Lets loops assign to what exists outside, as in a notebook of Julia's: there, that needs no `global`.
function with_soft_scope(part)
    part isa Expr || return part
    part.head === :toplevel && return Expr(:toplevel, map(with_soft_scope, part.args)...)
    declares_only = part.head === :global && all(each -> each isa Symbol, part.args)
    part.head in WHOLE_BY_THEMSELVES || declares_only ? part : Expr(:block, Expr(:softscope, true), part)
end

# Whether a cell ends in a semicolon, behind which there may be remarks.
function ends_in_semicolon(code::String)
    at = findlast(';', code)
    for _ in 1:MOST_SEMICOLONS
        at === nothing && break
        is_between_expressions(code, at) && return !is_code(SubString(code, at + 1))
        at = findprev(';', code, prevind(code, at))
    end
    false
end

# A bracket that closes nothing is a mistake anywhere but in a remark; in a text or in brackets what comes before has no end.
function is_between_expressions(code::String, at::Int)
    before = SubString(code, 1, prevind(code, at))
    !has_mistake(before) && has_mistake(string(before, ')'))
end

is_code(text::AbstractString) = any(part -> !(part isa LineNumberNode || part === nothing), parts_of(text, "cell"))

has_mistake(text::AbstractString) = any(is_mistake, parts_of(text, "cell"))
