"""Who may connect to an embedded cluster, and do what.

Owns the principal of a connection and the table of rights.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cyproducer.testing.broker.server import Call, Connection

ANONYMOUS: Final = "User:ANONYMOUS"


class Access:
    """Without authentication, everybody may do everything."""

    anonymous: str | None = ANONYMOUS

    def connected(self, connection: "Connection") -> None:
        """A connection was opened."""

    def admits(self, call: "Call") -> bool:
        """Whether a connection may send this request now; otherwise it is closed."""
        return True

    def allows(self, principal: str, operation: str, kind: str, name: str) -> bool:
        """Whether a principal may do this; see ``Call.allowed``."""
        return True

    def operations(self, principal: str, kind: str, name: str) -> int:
        """Returns the operations that a principal may do, as bits (KIP-430)."""
        return sum(1 << OPERATIONS[each] for each in OF[kind] if self.allows(principal, each, kind, name))


#: The numbers of operations (KIP-140).
OPERATIONS: Final = {
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
}
#: The operations that a kind of resource has.
OF: Final = {
    "topic": ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    "group": ("READ", "DELETE", "DESCRIBE"),
    "cluster": (
        "CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
    ),
    "transactional_id": ("WRITE", "DESCRIBE"),
}  # fmt: skip
