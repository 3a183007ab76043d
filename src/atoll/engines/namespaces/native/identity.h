/* Who everybody is inside. */
#pragma once

#define SANDBOX_ID 65532
