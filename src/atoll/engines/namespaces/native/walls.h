/* The walls that the copier raises around itself before it hears anything from inside a sandbox. */
#pragma once

enum copier_role { COPIER_SENDS, COPIER_RECEIVES };

/* What a testing build can leave out, by ATOLL_WITHOUT. */
enum wall {
    WALL_DESCRIPTORS = 1,
    WALL_RLIMITS = 2,
    WALL_ROOT = 4,
    WALL_LANDLOCK = 8,
    WALL_CAPABILITIES = 16,
    WALL_FILTER = 32,
};

/* Gives up all that a copy below `folder` does not need, for good; of descriptors, `kept` stay, from 0 on.
 * Answers -errno on failure. */
long raise_walls(enum copier_role role, int folder, unsigned kept);
