"""Users: those who own sandboxes. The first one is the user of the node itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from atoll.errors import Conflict, Forbidden, LimitExceeded, NotFound
from atoll.model.access import ADMIN_ID, ADMIN_NAME, Role, User, check_user_name
from atoll.model.ids import UserId, new_user_id
from atoll.node.records import Records

_MOST = 10_000


class Users:
    """All users, in the database, and in memory as they are there."""

    def __init__(self, records: Records, clock: Callable[[], float]) -> None:
        self._records = records
        self._clock = clock
        self._users: dict[UserId, User] = {}

    async def open(self) -> None:
        """Read who there is, and make the first user where there is none; raises `Unavailable`."""
        self._users = {user.id: user for user in await self._records.list_users()}
        if ADMIN_ID not in self._users:
            self._keep(User(ADMIN_ID, ADMIN_NAME, Role.ADMIN, self._clock()))

    def get(self, user_id: UserId) -> User | None:
        """Return a user by id."""
        return self._users.get(user_id)

    def list(self) -> Sequence[User]:
        """Return all users, the oldest first."""
        return sorted(self._users.values(), key=lambda user: (user.created_at, user.id))

    def find(self, key: str) -> User:
        """Return a user by id or name; raises `NotFound`."""
        user = self._users.get(UserId(key)) or self._by_name(key)
        if user is None:
            raise NotFound(f"there is no user {key[:80]!r}; 'atoll user ls' lists them")
        return user

    def of_github(self, account: str) -> User | None:
        """Return the user of an account at GitHub."""
        return next((each for each in self._users.values() if each.github == account), None)

    def create(self, name: str, role: Role = Role.MEMBER, *, github: str | None = None) -> User:
        """Make a user; it is safe on return.

        Raises:
            Conflict: another user has this name.
            LimitExceeded: there are as many as there may be.
            Unavailable: it cannot be kept at present.
        """
        check_user_name(name)
        if not self.is_free(name):
            raise Conflict(f"there is a user {name!r} already; choose another name", name=name)
        if len(self._users) >= _MOST:
            raise LimitExceeded(f"there are {_MOST} users, which is the most", limit=_MOST)
        user = User(new_user_id(), name, role, self._clock(), github=github)
        self._keep(user)
        return user

    def is_free(self, name: str) -> bool:
        """Whether a new user can have this name."""
        # Nor may a name be taken for somebody's id.
        return self._by_name(name) is None and UserId(name) not in self._users

    def disable(self, key: str) -> User:
        """Let a user in no more; raises `NotFound`, and `Forbidden` for the first one."""
        user = self.find(key)
        if user.id == ADMIN_ID:
            raise Forbidden(
                f"{user.name} is the user of the node itself and cannot be disabled;"
                " revoke its tokens instead"
            )
        if not user.is_disabled:
            user = replace(user, disabled_at=self._clock())
            self._keep(user)
        return user

    def enable(self, key: str) -> User:
        """Let a user in again; raises `NotFound`."""
        user = replace(self.find(key), disabled_at=None)
        self._keep(user)
        return user

    def _by_name(self, name: str) -> User | None:
        return next((each for each in self._users.values() if each.name == name), None)

    def _keep(self, user: User) -> None:
        self._records.remember(user, sync=True)
        self._users[user.id] = user
