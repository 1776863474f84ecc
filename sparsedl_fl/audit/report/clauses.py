"""Clauses of public texts on which a report has something to say: what it gives towards each, and what it does not.

The words that are quoted were read in November 2026. No clause is fulfilled by a report: who signs decides what it is
worth. `docs/handbook/clauses.md` says the same with more words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparsedl_fl.audit.facts import AuditFacts

__all__ = ["CLAUSES", "Clause", "clauses_of"]


@dataclass(frozen=True)
class Clause:
    """One clause.

    Attributes
    ----------
    source : str
        Title of the text, with its number and year.
    place : str
        Where in it.
    address : str
        Public address.
    quote : str
        Its own words, or a part of them.
    gives : callable
        Evidence of an audit, in a sentence.
    lacks : str
        What an audit does not say.
    """

    source: str
    place: str
    address: str
    quote: str
    gives: Callable[[AuditFacts], str]
    lacks: str


def _recovered(result: AuditFacts) -> str:
    return f"what these attacks recovered from this update: {result.verdict}"


def _privacy(result: AuditFacts) -> str:
    dp = result.context.get("dp")
    if not dp:
        return "nothing: no differential privacy was stated for this update"
    return (
        f"what was stated (noise multiplier {dp['noise_multiplier']:.3g}, clipping {dp['clipping']:.3g}, unit: "
        f"{dp['unit']}), and what these attacks recovered at it: {result.verdict}"
    )


def _members(result: AuditFacts) -> str:
    if result.membership is None:
        return "nothing: no records were given (--records)"
    return f"a test with a p-value for each record that was given: {result.membership}"


def _policy(result: AuditFacts) -> str:
    return f"a measurement that such a policy can ask for, of one model update: {result.verdict}"


def _attack_named(result: AuditFacts) -> str:
    n = sum(bool(layer.source) for layer in result.layers)
    return (
        f"data reconstruction: goal, capability and knowledge of the attacker, and the {n} layers attacked or reached"
    )


CLAUSES = (
    Clause(
        "EDPB, Opinion 28/2024 on certain data protection aspects related to the processing of personal data in the "
        "context of AI models",
        "executive summary, first question",
        "https://www.edpb.europa.eu/our-work-tools/our-documents/opinion-board-art-64/"
        "opinion-282024-certain-data-protection-aspects_en",
        "the likelihood of direct (including probabilistic) extraction of personal data",
        _recovered,
        "It looks at one update and not at the trained model, whose anonymity the Opinion is about; nor at all means "
        "reasonably likely to be used.",
    ),
    Clause(
        "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees (2025)",
        "abstract (read in the public draft of 2023)",
        "https://csrc.nist.gov/pubs/sp/800/226/final",
        "several privacy hazards",
        _privacy,
        "It proves no guarantee and bounds no epsilon: that attacks found nothing says nothing of the guarantee.",
    ),
    Clause(
        "NIST AI 100-2e2025, Adversarial Machine Learning: A Taxonomy and Terminology of Attacks and Mitigations",
        "abstract",
        "https://csrc.nist.gov/pubs/ai/100/2/e2025/final",
        "attacker goals, objectives, capabilities, and knowledge",
        _attack_named,
        "It covers one class of attacks, on one update, by a passive server without a prior.",
    ),
    Clause(
        "ICO, Privacy-enhancing technologies (PETs)",
        "What PETs are there? Federated learning",
        "https://ico.org.uk/for-organisations/uk-gdpr-guidance-and-resources/data-sharing/"
        "privacy-enhancing-technologies/what-pets-are-there/federated-learning/",
        "providing an appropriate level of security (in combination with other PETs)",
        _recovered,
        "It does not say which level of security is appropriate, nor what other technologies around the update do.",
    ),
    Clause(
        "SATRE, Standard Architecture for Trusted Research Environments, specification v2.0.1",
        "3.3.07, Output Management (mandatory)",
        "https://github.com/sa-tre/satre-specification/blob/v2.0.1/docs/source/spec/specification.yaml",
        "You must have a documented policy for handling disclosure risks associated with any outputs that cannot be "
        "manually checked.",
        _policy,
        "It is no policy, and looks at what an update tells, not at what a finished model has memorised.",
    ),
    Clause(
        "OWASP AISVS 1.0, AI Security Verification Standard",
        "C11.2.4 (level 2)",
        "https://github.com/OWASP/AISVS/blob/main/1.0/en/0x10-C11-Adversarial-Robustness.md",
        "training on sensitive datasets employs differentially-private optimization",
        _privacy,
        "It does not verify that the optimiser is differentially private; the numbers are those that were declared.",
    ),
    Clause(
        "OWASP AISVS 1.0, AI Security Verification Standard",
        "C11.2.5 (level 3)",
        "https://github.com/OWASP/AISVS/blob/main/1.0/en/0x10-C11-Adversarial-Robustness.md",
        "membership-inference attack simulations demonstrate that attack accuracy does not exceed random guessing",
        _members,
        "It tests the row space of the update, not the model's outputs, and gives no accuracy against guessing.",
    ),
    Clause(
        "EDPS, TechDispatch 1/2025, Federated Learning",
        "1. Executive summary",
        "https://www.edps.europa.eu/data-protection/our-work/publications/techdispatch/"
        "2025-06-10-techdispatch-12025-federated-learning_en",
        "the potential for data leakage through model updates",
        _recovered,
        "It measures this one concern for one update, and none of the others that the text names.",
    ),
)


def clauses_of(result: AuditFacts) -> list[dict[str, str]]:
    """Return each clause with what an audit gives towards it and what it does not."""
    return [
        {
            "source": one.source,
            "place": one.place,
            "address": one.address,
            "quote": one.quote,
            "gives": one.gives(result),
            "lacks": one.lacks,
        }
        for one in CLAUSES
    ]
