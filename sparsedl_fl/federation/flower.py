"""Flower: a mod that audits what leaves a client, and a strategy that audits what reaches the server.

Both pair what was sent out with what came back by themselves. Both APIs that Flower has are taken: messages, and
``aggregate_fit``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from sparsedl_fl.federation.policy import LeakPolicy, LeakWarning

try:
    from flwr.app import Error, Message
    from flwr.common import parameters_to_ndarrays
except ImportError as error:
    raise ImportError("sparsedl_fl.federation.flower needs Flower: pip install 'sparsedl[flower]'") from error

__all__ = ["LeakAuditMod", "LeakAuditStrategy"]

BLOCKED = 451
"""Code of the error that goes out in the place of an update that was blocked."""


class LeakAuditMod:
    """A client-side mod that audits an update before it leaves; put it first in the list, outermost.

    A mod sees what those behind it in the list have done: ``[LeakAuditMod(...), LocalDpMod(...)]`` audits what really
    leaves, the other order what leaves before noise, and the mod warns of that. Messages that are not for training
    pass.

    Parameters
    ----------
    policy : LeakPolicy
        What is audited and how, and what happens to an update that leaks. In the mode "block" an error goes out in its
        place.

    Examples
    --------
    ``ClientApp(mods=[LeakAuditMod(LeakPolicy(make_model, learning_rate=0.01, mode="block"))])``
    """

    def __init__(self, policy: LeakPolicy) -> None:
        self.policy = _checked_policy(policy)

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        """Let the client train, then audit its reply."""
        if message.metadata.message_type.split(".")[0] != "train":
            return call_next(message, context)
        sent = _arrays(self.policy, message)
        reply = call_next(message, context)
        # SecAgg+ talks of keys in messages of this kind; what comes back with arrays is audited, whatever was sent.
        if reply.has_error() or not (message.content.array_records or reply.content.array_records):
            return reply
        outside = _mods_outside()
        if outside:
            warnings.warn(
                f"LeakAuditMod is not the outermost mod: {', '.join(outside)} comes after the audit. Put it first in "
                "the list of mods",
                LeakWarning,
                stacklevel=2,
            )
        checked = self.policy.check(
            sent, _arrays(self.policy, reply), client=context.node_id, server_round=_round_of(message)
        )
        if not checked.is_blocked:
            return reply
        return Message(Error(BLOCKED, f"update blocked by the leak audit: {checked.reason}"), reply_to=message)


class LeakAuditStrategy:
    """A server's strategy around another, which audits each update before it is aggregated.

    Everything that is not said here is left to the strategy inside. In the mode "block" an update that leaks is not
    aggregated.

    Parameters
    ----------
    strategy : flwr.serverapp.strategy.Strategy or flwr.server.strategy.Strategy
        Any strategy of either API.
    policy : LeakPolicy
        What is audited and how.
    secure_sum : bool, default=False
        Whether the server sees the sum of all clients alone (SecAgg+): then that is audited as one batch, the
        aggregate as "all clients".
    """

    def __init__(self, strategy: Any, policy: LeakPolicy, secure_sum: bool = False) -> None:
        self.strategy = strategy
        self.policy = _checked_policy(policy)
        self.secure_sum = secure_sum
        self._sent: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "strategy":  # not there yet: copying and pickling ask before __init__
            raise AttributeError(name)
        return getattr(self.strategy, name)

    @property
    def table(self) -> Any:
        """What was found, by client and round."""
        return self.policy.table

    def start(self, *arguments: Any, **options: Any) -> Any:
        """Run the workflow of the strategy inside, with the audit in it."""
        return type(self.strategy).start(self, *arguments, **options)

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
        """Remember what is sent out."""
        self._sent = {server_round: _named(arrays)}
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> Any:
        """Audit each reply, then aggregate."""
        replies = list(replies)
        sent = self._sent.get(server_round)
        if self.secure_sum:
            found = self.strategy.aggregate_train(server_round, replies)
            if found[0] is not None:
                checked = self.policy.check(sent, _named(found[0]), client="all clients",
                                            server_round=server_round)  # fmt: skip
                if checked.is_blocked:
                    return None, found[1]
            return found
        arrived = [reply for reply in replies if not reply.has_error()]
        checked = self.policy.check_all(
            [(reply.metadata.src_node_id, sent, _arrays(self.policy, reply), {}) for reply in arrived],
            server_round=server_round,
        )
        blocked = {id(reply) for reply, one in zip(arrived, checked, strict=True) if one.is_blocked}
        return self.strategy.aggregate_train(server_round, [reply for reply in replies if id(reply) not in blocked])

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Remember what is sent out, in the API with parameters."""
        self._sent = {server_round: parameters_to_ndarrays(parameters)}
        return self.strategy.configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round: int, results: list, failures: list) -> Any:
        """Audit each result, then aggregate, in the API with parameters."""
        sent = self._sent.get(server_round)
        if self.secure_sum:
            found = self.strategy.aggregate_fit(server_round, results, failures)
            if found[0] is not None:
                after = parameters_to_ndarrays(found[0])
                checked = self.policy.check(sent, after, client="all clients", server_round=server_round)
                if checked.is_blocked:
                    return None, found[1]
            return found
        checked = self.policy.check_all(
            [(client.cid, sent, parameters_to_ndarrays(result.parameters), {}) for client, result in results],
            server_round=server_round,
        )
        kept = [result for result, one in zip(results, checked, strict=True) if not one.is_blocked]
        return self.strategy.aggregate_fit(server_round, kept, failures)


def _checked_policy(policy: Any) -> LeakPolicy:
    if not isinstance(policy, LeakPolicy):
        raise TypeError(f"policy must be a LeakPolicy, got {type(policy).__name__}")
    return policy


def _arrays(policy: LeakPolicy, message: Any) -> Any:
    """Return the arrays of a message that are the model's, by name or in order; other arrays may travel with them.

    Where none are, the first ones, and what is wrong with them is said when they are audited.
    """
    found: Any = {}
    for record in message.content.array_records.values():
        try:
            named = _named(record)
        except Exception:  # whatever travels there, it must not break a training
            continue
        if policy.fits(named):
            return named
        found = found or named
    return found


def _named(record: Any) -> Any:
    """Return a record's arrays as numpy has them: by name, or in order where the names are numbers."""
    arrays = {name: array.numpy() for name, array in record.items()}
    return list(arrays.values()) if all(name.isdigit() for name in arrays) else arrays


def _round_of(message: Any) -> int:
    """Return the round of a message, from its configuration or its group; 0 where neither says."""
    for record in message.content.config_records.values():
        for key in ("server-round", "server_round", "current_round", "round"):
            if key in record:
                return int(record[key])
    group = message.metadata.group_id
    return int(group) if str(group).isdigit() else 0


def _mods_outside() -> list[str]:
    """Return the names of the mods that are called around this one, by the frames of Flower's chain of mods."""
    frame, found = sys._getframe(2), []
    while frame is not None:
        if frame.f_code.co_name == "new_ffn" and frame.f_globals.get("__name__") == "flwr.client.mod.utils":
            mod = frame.f_locals.get("_mod")
            found.append(type(mod).__name__ if not hasattr(mod, "__name__") else mod.__name__)
        frame = frame.f_back
    return found[1:]  # the first is this one
