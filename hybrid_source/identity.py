"""Whether the topics that recorded offsets refer to are the ones that are there."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.kernel.boundary import Boundary
from headrace.kernel.errors import IdentityError
from hybrid_source.source_values import TopicIdentity


def recorded_identities(boundary: Boundary) -> Mapping[str, TopicIdentity]:
    """The topics of a boundary, by name, as far as it says which they are."""
    return {name: TopicIdentity(name, topic.topic_id, boundary.cluster) for name, topic in boundary.topics.items()}


def check_identities(recorded: Mapping[str, TopicIdentity], now: Mapping[str, TopicIdentity]) -> None:
    """Compare the topics that recorded offsets refer to with those that are there; what is not known is not compared.

    Raises:
        IdentityError: The job does not read one of them any more, it was deleted and created again, or it is in
            another cluster.
    """
    for name, topic in recorded.items():
        if name not in now:
            raise IdentityError(
                f"recorded offsets are of topic {name!r}, the job reads {', '.join(map(repr, now))}",
                hint="restore the job's topic, or give the job another uid to read the others from their start",
                code="TOPIC_CHANGED",
                context={"topic": name, "wanted": name, "available": list(now)},
            )
        _check_identity(topic, now[name])


def _check_identity(recorded: TopicIdentity, now: TopicIdentity) -> None:
    for what, then, found in (
        ("cluster id", recorded.cluster_id, now.cluster_id),
        ("topic id", recorded.topic_id, now.topic_id),
    ):
        if then is not None and found is not None and then != found:
            raise IdentityError(
                f"topic {now.topic!r} is not the one that was recorded: its {what} has changed",
                detail=f"recorded {what} {then}, found {found}",
                hint="recorded offsets mean nothing in a recreated topic or another cluster; start the job under a new "
                "uid, and reset the table's boundary with `headrace boundary reset`",
                code="TOPIC_RECREATED",
                context={"topic": now.topic, "wanted": then, "available": found},
            )
