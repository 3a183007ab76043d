/* Memory for the small objects of an interpreter that is going to be copied: all of it side by side. */
#pragma once

#include <stddef.h>

#include "interpreter.h"

/* What an interpreter's allocator asks for its arenas, in place of mappings that lie where there is room. */
EXPORTED void *take_arena(void *unused, size_t size);
EXPORTED void return_arena(void *unused, void *arena, size_t size);
