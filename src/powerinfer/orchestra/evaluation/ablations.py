"""Ablations: a policy that may do less than the protocol allows."""

from dataclasses import dataclass

from powerinfer.orchestra.actions import Plan, Subtask, Verify
from powerinfer.orchestra.evaluation.truth import Arm
from powerinfer.orchestra.policy import Decision, ModelPolicy, Policy
from powerinfer.orchestra.primitives.primitive import Permissions
from powerinfer.orchestra.rules import Offers
from powerinfer.orchestra.state import State

__all__ = ["Ablated", "ablations"]


@dataclass(frozen=True, kw_only=True)
class Ablated:
    """Decides as another policy does, but for what is taken from it; see `Policy`.

    Attributes:
        may_split: else the first plan is the whole task.
        only: the pair that all routes go to, where it is offered; None: any.
        may_verify: else every result is accepted.
    """

    policy: Policy
    may_split: bool = True
    only: Arm | None = None
    may_verify: bool = True

    def told(self, permissions: Permissions) -> "Ablated":
        """Tell a model's policy of other permissions."""
        policy = self.policy
        told = policy.told(permissions) if isinstance(policy, ModelPolicy) else policy
        return Ablated(
            policy=told, may_split=self.may_split, only=self.only, may_verify=self.may_verify
        )

    async def decide(self, task: str, state: State, offers: Offers) -> Decision:
        """Choose the next action, among fewer."""
        due = state.next(offers)
        if not self.may_verify and due.must_verify:
            return Decision(action=Verify(due.round, (), "not checked"))
        only = self.only
        if only is not None and only.primitive in offers.get(only.worker, ()):
            offers = {only.worker: (only.primitive,)}
        if not self.may_split and not state.elements:
            decision = await self.policy.decide(task, state, offers)
            if isinstance(decision.action, Plan):
                whole = Plan(due.round, (Subtask(due.first_id, (), task),))
                return Decision(
                    action=whole,
                    prompt_tokens=decision.prompt_tokens,
                    tokens=decision.tokens,
                )
            return decision
        return await self.policy.decide(task, state, offers)


def ablations(policy: Policy, only: Arm) -> list[tuple[str, Policy]]:
    """Name the ablations of a policy; `only` is the pair of that without routing."""
    return [
        ("policy without splitting", Ablated(policy=policy, may_split=False)),
        (f"policy without routing ({only})", Ablated(policy=policy, only=only)),
        ("policy without verification", Ablated(policy=policy, may_verify=False)),
    ]
