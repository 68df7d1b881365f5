"""A scheduler without a model: the real policy on a clock that moves by what steps would cost."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from powerinfer.engine.costs import SMALLEST_CHUNK, StepCosts
from powerinfer.engine.policy import (
    Begun,
    Limits,
    Policy,
    PolicyState,
    Running,
    StepPlan,
    Waiting,
)

BLOCK = 16


@dataclass(frozen=True)
class Machine:
    """Seconds of steps: a fixed part, a part per row and one per key read."""

    decode: tuple[float, float, float] = (0.02, 0.003, 1e-7)
    prompt: tuple[float, float, float] = (0.02, 0.005, 1e-7)
    noise: float = 0.0
    slow_every: int = 0

    def decode_seconds(self, positions: Sequence[int]) -> float:
        fixed, per_row, per_key = self.decode
        return fixed + per_row * len(positions) + per_key * (sum(positions) + len(positions))

    def prompt_seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        fixed, per_row, per_key = self.prompt
        tokens = sum(count for _, count in chunks)
        keys = sum(count * start + count * (count + 1) // 2 for start, count in chunks)
        return fixed + per_row * tokens + per_key * keys

    def disturbed(self, seconds: float, number: int, randomness: random.Random) -> float:
        """What is measured; each `slow_every`-th time something else used the machine."""
        slow = self.slow_every and number % self.slow_every == 0
        return seconds * (6.0 if slow else 1.0) * (1 + self.noise * (2 * randomness.random() - 1))


@dataclass
class Job:
    """A request and what became of it."""

    arrives: float
    num_prompt: int
    num_generated: int
    admitted: float | None = None
    first_token: float | None = None
    ended: float | None = None
    position: int = 0
    generated: int = 0

    @property
    def num_blocks(self) -> int:
        return -(-(self.num_prompt + self.num_generated) // BLOCK)

    @property
    def is_decoding(self) -> bool:
        return self.position >= self.num_prompt


@dataclass(frozen=True)
class Step:
    """What a step did, and how long it takes on an undisturbed machine."""

    decoded: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...]
    plan: StepPlan
    decode_seconds: float
    seconds: float

    @property
    def num_prompt_tokens(self) -> int:
        return sum(count for _, count in self.chunks)

    @property
    def limit_share(self) -> float:
        return self.seconds / max(4 * self.decode_seconds, 0.25)

    @property
    def is_within_limit(self) -> bool:
        return self.limit_share <= 1

    @property
    def is_smallest(self) -> bool:
        return self.num_prompt_tokens <= SMALLEST_CHUNK


@dataclass
class Simulation:
    """Runs jobs (in order of arrival) to their end."""

    jobs: Sequence[Job]
    machine: Machine = field(default_factory=Machine)
    limits: Limits = field(default_factory=lambda: Limits(parallel=8, batch_size=512))
    num_blocks: int = 1 << 20
    costs: StepCosts = field(default_factory=StepCosts)
    seed: int = 0
    now: float = 0.0
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._num_measured = 0
        self._chunks: tuple[tuple[int, int], ...] = ()
        self._num_left = 0
        self._measured_slices = 0.0

    def _measured(self, seconds: float) -> float:
        self._num_measured += 1
        return self.machine.disturbed(seconds, self._num_measured, self._random)

    def run(self, max_steps: int = 20_000) -> None:
        while any(job.ended is None for job in self.jobs):
            assert len(self.steps) < max_steps, "the queue does not drain"
            if not self._waiting() and not self.running():
                self.now = min(job.arrives for job in self.jobs if job.admitted is None)
            self.step()

    def running(self) -> list[int]:
        return [
            id_ for id_, job in enumerate(self.jobs) if job.admitted is not None and not job.ended
        ]

    def _waiting(self) -> list[int]:
        jobs = enumerate(self.jobs)
        return [id_ for id_, job in jobs if job.admitted is None and job.arrives <= self.now]

    def state(self) -> PolicyState:
        running = self.running()
        return PolicyState(
            waiting=[
                Waiting(id=id_, needs_blocks=job.num_blocks, num_pending=job.num_prompt)
                for id_ in self._waiting()
                for job in [self.jobs[id_]]
            ],
            running=[
                Running(
                    id=id_,
                    is_decoding=job.is_decoding,
                    num_pending=max(job.num_prompt - job.position, 0),
                    position=job.position,
                )
                for id_ in running
                for job in [self.jobs[id_]]
            ],
            free_blocks=self.num_blocks - sum(self.jobs[id_].num_blocks for id_ in running),
            costs=self.costs,
            limits=self.limits,
            begun=Begun(self._sizes(), self._num_left) if self._num_left else None,
        )

    def _sizes(self) -> tuple[tuple[int, int], ...]:
        return tuple((self.jobs[id_].position, count) for id_, count in self._chunks)

    def step(self) -> None:
        decoding = [id_ for id_ in self.running() if self.jobs[id_].is_decoding]
        plan = Policy().plan(self.state())
        for id_ in plan.admit:
            self.jobs[id_].admitted = self.now
        decode_seconds = self._decode(decoding)
        if self._num_left:
            assert not plan.chunks, "what was begun goes on first"
        elif plan.chunks:
            self._chunks, self._num_left = plan.chunks, self.limits.num_slices
        chunks = self._chunks
        prompt_seconds = self._prefill(plan.num_slices) if chunks else 0.0
        seconds = decode_seconds + prompt_seconds
        self.steps.append(Step(tuple(decoding), chunks, plan, decode_seconds, seconds))

    def _prefill(self, num_slices: int) -> float:
        """Slices of the chunks, all of them for 0: how long they take undisturbed."""
        sizes, count = self._sizes(), num_slices or self._num_left
        assert 0 < count <= self._num_left
        seconds = self.machine.prompt_seconds(sizes) * count / self.limits.num_slices
        measured = self._measured(seconds)
        self._measured_slices += measured
        self.now += measured
        self._num_left -= count
        if not self._num_left:
            self.costs.record_prompt(sizes, self._measured_slices)
            for id_, num_tokens in self._chunks:
                self._compute(self.jobs[id_], num_tokens)
            self._chunks, self._measured_slices = (), 0.0
        return seconds

    def _decode(self, decoding: Sequence[int]) -> float:
        if not decoding:
            return 0.0
        positions = [self.jobs[id_].position for id_ in decoding]
        seconds = self.machine.decode_seconds(positions)
        measured = self._measured(seconds)
        self.costs.record_decode(positions, measured)
        self.now += measured
        for id_ in decoding:
            self._compute(self.jobs[id_], 1)
        return seconds

    def _compute(self, job: Job, count: int) -> None:
        job.position += count
        if job.position < job.num_prompt:
            return
        job.generated += 1
        if job.first_token is None:
            job.first_token = self.now
        if job.generated == job.num_generated:
            job.ended = self.now
