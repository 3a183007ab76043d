# A kernel of Julia that is a program of its own; a shell has put its channel to the host at descriptor 9.
#
# It lives in a module that nothing in `Main` names: that one belongs to cells.

if VERSION < v"1.5"
    println(stderr, "a kernel needs Julia 1.5 or newer; this is ", VERSION)
    exit(1)
end

Base.include(Module(:AtollGuest), joinpath(@__DIR__, "kernel.jl"))
