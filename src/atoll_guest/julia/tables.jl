# Tables as data: whatever the package Tables takes for one, if a cell has loaded that.

const TABLES_PACKAGE = Base.PkgId(Base.UUID("bd369af6-aec1-5ad0-b16a-f7cc5008161c"), "Tables")
const TABLE_FORM = "application/vnd.dataresource+json"
# As tables of Python's are bounded; see atoll_guest/tables.py.
const MOST_ROWS = 10_000
const MOST_VALUES = 20_000
const MOST_COLUMNS = 1000

may_be_table(value) = haskey(Base.loaded_modules, TABLES_PACKAGE) && !(value isa Union{AbstractString,Number})

# Returns the names and the columns of a table, and nothing for any other value.
function columns_of(value)
    tables = Base.loaded_modules[TABLES_PACKAGE]
    tables.istable(value) || return nothing
    columns = tables.columns(value)
    [(string(name), tables.getcolumn(columns, name)) for name in tables.columnnames(columns)]
end

function add_table!(forms::Message, value)
    try
        columns = columns_of(value)
        columns === nothing || (forms[TABLE_FORM] = table_data(columns))
    catch error
        error isa InterruptException && rethrow()
        tell_left_out(TABLE_FORM, error)
    end
end

# Tells how much of a table the data is.
function facts_of(value)
    columns = columns_of(value)
    rows, (shown_rows, shown_columns) = count_rows(columns), shown_size(columns)
    is_cut = shown_rows < rows || shown_columns < length(columns)
    message_of(TABLE_FORM => message_of("rows" => rows, "columns" => length(columns), "truncated" => is_cut))
end

count_rows(columns) = isempty(columns) ? 0 : length(columns[1][2])

function shown_size(columns)
    width = min(length(columns), MOST_COLUMNS)
    min(count_rows(columns), MOST_ROWS, MOST_VALUES ÷ max(width, 1)), width
end

function table_data(columns)
    height, width = shown_size(columns)
    shown = [(name, column[1:height]) for (name, column) in columns[1:width]]
    fields = [message_of("name" => name, "type" => type_of(column)) for (name, column) in shown]
    rows = [row_of(row, shown) for row in 1:height]
    pushfirst!(fields, message_of("name" => "index", "type" => "integer"))
    message_of("schema" => message_of("fields" => fields, "primaryKey" => ["index"]), "data" => rows)
end

function row_of(row::Int, shown)
    found = message_of("index" => row)
    for (name, column) in shown
        found[name] = plain_value(column[row])
    end
    found
end

function type_of(column)
    kind = nonmissingtype(eltype(column))
    has_gaps = any(ismissing, column)
    kind <: Bool && !has_gaps && return "boolean"
    kind <: Integer && !(kind <: Bool) && !has_gaps && return "integer"
    kind <: Real && !(kind <: Bool) ? "number" : "string"
end

plain_value(value::Union{Missing,Nothing}) = nothing
plain_value(value::Union{Bool,Int8,Int16,Int32,Int64,UInt8,UInt16,UInt32,UInt64,Float16,Float32,Float64}) = value
plain_value(value) = string(value)
