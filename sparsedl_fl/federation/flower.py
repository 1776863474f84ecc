"""Flower: a mod that audits what leaves a client, and a strategy that audits what reaches the server.

Both pair the weights sent out with the replies by themselves. Both APIs that Flower has are taken: messages, and
``aggregate_fit``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from sparsedl_fl.federation.policy import LeakPolicy, LeakWarning
from sparsedl_fl.wording import installs

with installs("sparsedl_fl.federation.flower needs Flower", "flower"):
    from flwr.app import Error, Message
    from flwr.common import parameters_to_ndarrays

__all__ = ["LeakAuditMod", "LeakAuditStrategy"]

BLOCKED = 451
"""Code of the error that is sent instead of a blocked update."""


class LeakAuditMod:
    """A client-side mod that audits what a client sends before it leaves; put it first in the list, outermost.

    A mod gets the reply after the mods that follow it in the list: ``[LeakAuditMod(...), LocalDpMod(...)]`` audits what
    leaves the client, the other order the update before noise, of which the mod warns.

    Every array record of every reply is audited, whether to a message for training, for evaluation or a query. One that
    does not fit the model (control variates, other arrays) cannot be audited, and is held where updates are blocked.
    Metrics and configuration are not audited; their names are kept in `Checked.not_looked_at`. A reply without arrays
    passes, unless arrays were sent for training: then the arrays of the reply must be elsewhere.

    Parameters
    ----------
    policy : LeakPolicy
        What is audited and how, and what happens to an update that leaks. In the mode "block" an error is sent instead
        of the whole reply as soon as one of its array records is held.

    Examples
    --------
    ``ClientApp(mods=[LeakAuditMod(LeakPolicy(make_model, learning_rate=0.01, mode="block"))])``
    """

    def __init__(self, policy: LeakPolicy) -> None:
        self.policy = _checked_policy(policy)

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        """Let the client work, then audit its reply."""
        sent, were_sent = _sent_in(self.policy, message), bool(message.content.array_records)
        server_round = _round_of(message)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        # SecAgg+ sends keys in messages of this kind; a reply with arrays is audited, whatever was sent.
        is_training = message.metadata.message_type.split(".")[0] == "train"
        if not (reply.content.array_records or (is_training and were_sent)):
            return reply
        outside = _mods_outside()
        if outside:
            warnings.warn(
                f"LeakAuditMod is not the outermost mod: {', '.join(outside)} comes after the audit. Put it first in "
                "the list of mods",
                LeakWarning,
                stacklevel=2,
            )
        updates = _updates_in(self.policy, reply, context.node_id, sent)
        held = [one.reason for one in self.policy.check_all(updates, server_round=server_round) if one.is_blocked]
        if not held:
            return reply
        return Message(Error(BLOCKED, f"update blocked by the leak audit: {'; '.join(held)}"), reply_to=message)


class LeakAuditStrategy:
    """A server's strategy around another, which audits each update before it is aggregated.

    Everything else is left to the strategy inside, and so are replies to evaluations, which are not audited. In the
    mode "block" an update that is held or cannot be read is not aggregated; in the other modes the strategy inside gets
    every update.

    Parameters
    ----------
    strategy : flwr.serverapp.strategy.Strategy or flwr.server.strategy.Strategy
        Any strategy of either API.
    policy : LeakPolicy
        What is audited and how.
    secure_sum : bool, default=False
        Whether the server gets only the sum of all clients (SecAgg+): then the sum is audited as one batch of "all
        clients", and held likewise.
    """

    def __init__(self, strategy: Any, policy: LeakPolicy, secure_sum: bool = False) -> None:
        self.strategy = strategy
        self.policy = _checked_policy(policy)
        self.secure_sum = secure_sum
        self._sent: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "strategy":  # not set yet: copying and pickling ask before __init__
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
        self._sent = {server_round: _read(_named, arrays)}
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> Any:
        """Audit every array record of each reply, then aggregate."""
        replies = list(replies)
        if self.secure_sum:
            return self._audited_sum(server_round, self.strategy.aggregate_train(server_round, replies), _named)
        sent = self._sent_in(server_round)
        updates = [
            (reply, update)
            for reply in replies
            if not reply.has_error()
            for update in _updates_in(self.policy, reply, reply.metadata.src_node_id, sent)
        ]
        checked = self.policy.check_all([update for _, update in updates], server_round=server_round)
        held = {id(reply) for (reply, _), one in zip(updates, checked, strict=True) if one.is_blocked}
        return self.strategy.aggregate_train(server_round, [reply for reply in replies if id(reply) not in held])

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Remember what is sent out, in the API with parameters."""
        self._sent = {server_round: _read(parameters_to_ndarrays, parameters)}
        return self.strategy.configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round: int, results: list, failures: list) -> Any:
        """Audit each result, then aggregate, in the API with parameters."""
        if self.secure_sum:
            found = self.strategy.aggregate_fit(server_round, results, failures)
            return self._audited_sum(server_round, found, parameters_to_ndarrays)
        sent = self._sent_in(server_round)
        updates = []
        for client, result in results:
            aside = ("metrics",) if getattr(result, "metrics", None) else ()
            updates.append((client.cid, sent, _read(_weights_of, result), {"not_looked_at": aside}))
        checked = self.policy.check_all(updates, server_round=server_round)
        kept = [result for result, one in zip(results, checked, strict=True) if not one.is_blocked]
        return self.strategy.aggregate_fit(server_round, kept, failures)

    def _audited_sum(self, server_round: int, found: Any, read: Callable[[Any], Any]) -> Any:
        """Return an aggregate and its metrics after an audit, without the arrays where these are held."""
        if found[0] is None:
            return found
        sent, after = self._sent_in(server_round), _read(read, found[0])
        checked = self.policy.check(sent, after, client="all clients", server_round=server_round)
        return (None, *found[1:]) if checked.is_blocked else found

    def _sent_in(self, server_round: int) -> Any:
        unknown = ValueError(f"nothing was sent out by this strategy in round {server_round}, so that the weights an "
                             "update starts from are not known")  # fmt: skip
        return self._sent.get(server_round, unknown)


def _checked_policy(policy: Any) -> LeakPolicy:
    if not isinstance(policy, LeakPolicy):
        raise TypeError(f"policy must be a LeakPolicy, got {type(policy).__name__}")
    return policy


def _read(function: Callable[[Any], Any], given: Any) -> Any:
    """Return what a function reads, or the exception that it raises, which the audit then reports."""
    try:
        return function(given)
    except Exception as problem:  # whatever travels there, it must not break a training
        return problem


def _named(record: Any) -> Any:
    """Return a record's arrays as numpy has them: by name, or in order where the names are numbers."""
    arrays = {name: array.numpy() for name, array in record.items()}
    return [arrays[name] for name in sorted(arrays, key=int)] if all(map(str.isdecimal, arrays)) else arrays


def _weights_of(result: Any) -> list:
    return parameters_to_ndarrays(result.parameters)


def _records(message: Any) -> dict[str, Any]:
    """Return the arrays of each record that has any, by its name, or what was raised when they were read."""
    read = {name: _read(_named, record) for name, record in message.content.array_records.items()}
    return {name: arrays for name, arrays in read.items() if isinstance(arrays, Exception) or len(arrays)}


def _sent_in(policy: LeakPolicy, message: Any) -> Any:
    """Return the weights in a message: the first arrays that fit the model, else the first of all."""
    records = list(_records(message).values())
    return next((arrays for arrays in records if policy.fits(arrays)), records[0] if records else {})


def _updates_in(policy: LeakPolicy, reply: Any, client: Any, sent: Any) -> list[tuple[Any, Any, Any, dict[str, Any]]]:
    """Return the arguments of `LeakPolicy.check_all` for each array record of a reply, those of the model first.

    A reply whose records are empty counts as one without arrays, which is an error of the audit.
    """
    records = sorted(_records(reply).items(), key=lambda item: not policy.fits(item[1]))
    aside = tuple(
        f"{kind} {name!r}"
        for kind, others in (("metrics", reply.content.metric_records), ("config", reply.content.config_records))
        for name in others
    )
    return [
        (client, sent, arrays, {"record": name if len(records) > 1 else "", "not_looked_at": aside})
        for name, arrays in records or [("", {})]
    ]


def _round_of(message: Any) -> int:
    """Return the round of a message, from its configuration or its group; 0 where neither says."""
    keys = ("server-round", "server_round", "current_round", "round")
    rounds = [record[key] for record in message.content.config_records.values() for key in keys if key in record]
    return next((int(number) for number in [*rounds, message.metadata.group_id] if str(number).isdigit()), 0)


def _mods_outside() -> list[str]:
    """Return the names of the mods that are called around this one, by the frames of Flower's nested calls."""
    frame, found = sys._getframe(2), []
    while frame is not None:
        if frame.f_code.co_name == "new_ffn" and frame.f_globals.get("__name__") == "flwr.client.mod.utils":
            mod = frame.f_locals.get("_mod")
            found.append(type(mod).__name__ if not hasattr(mod, "__name__") else mod.__name__)
        frame = frame.f_back
    return found[1:]  # the first is this one
