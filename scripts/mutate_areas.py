"""What `scripts/mutate` puts faults into, and which tests should notice them."""

from dataclasses import dataclass

__all__ = ["AREAS", "Area"]


@dataclass(frozen=True)
class Area:
    """Modules, below src/powerinfer, and tests, below tests, that are about them.

    Attributes:
        modules: to mutate.
        tests: to run.
        chosen: which of the tests, as pytest's -k; all where empty.
    """

    modules: list[str]
    tests: list[str]
    chosen: str = ""


AREAS = {
    "sampler": Area(
        ["sampling/sampler.py", "sampling/sampling_params.py", "sampling/logit_processors.py"],
        [
            "unit/sampling/test_sampler.py",
            "unit/sampling/test_sampling_params.py",
            "unit/sampling/test_logit_processors.py",
            "properties/test_sampler_properties.py",
            "properties/test_logit_changes.py",
        ],
    ),
    "scoring": Area(
        ["sampling/logprobs.py", "scoring/scoring.py", "prompts/texts.py", "scoring/embedding.py"],
        [
            "unit/sampling/test_logprobs.py",
            "unit/scoring/test_scoring.py",
            "unit/scoring/test_embedding.py",
            "properties/test_scoring.py",
        ],
    ),
    "choosing": Area(
        ["predictors/choosing.py", "predictors/calibration.py"],
        ["unit/predictors/test_choosing.py", "unit/calibration/test_calibration_json.py"],
    ),
    "calibration": Area(
        [
            "calibration/curves.py",
            "calibration/scores.py",
            "calibration/ground_truth.py",
            "calibration/recall.py",
        ],
        [
            "unit/calibration/test_curves.py",
            "unit/calibration/test_recall.py",
            "unit/calibration/test_calibrate.py",
        ],
        chosen="not falcon and not llama-relu and not backends_agree and not a_point_says",
    ),
    "tasks": Area(
        ["evaluation/task_files.py", "evaluation/task.py", "evaluation/answers.py"],
        ["unit/evaluation/test_task_files.py", "unit/evaluation/test_answers.py"],
    ),
    "targets": Area(["calibration/targets.py"], ["unit/calibration/test_targets.py"]),
    "kv_cache": Area(
        ["kvcache/kv_cache.py", "kvcache/sequence_room.py", "kvcache/block_counts.py"],
        ["unit/kvcache/test_kv_cache.py"],
    ),
    "rope": Area(["models/rope.py"], ["unit/models/test_rope.py", "unit/models/test_config.py"]),
    "cost": Area(
        [
            "placement/problem.py",
            "placement/cost_model.py",
            "placement/step_time.py",
            "placement/plan.py",
            "placement/solvers/__init__.py",
        ],
        [
            "unit/placement/test_cost_model.py",
            "unit/placement/test_values.py",
            "unit/placement/test_solvers.py",
        ],
        chosen="not paper",
    ),
    "solvers": Area(
        [
            "placement/solvers/latency.py",
            "placement/solvers/_choices.py",
            "placement/solvers/greedy.py",
        ],
        [
            "unit/placement/test_solvers.py",
            "unit/placement/test_values.py",
            "properties/test_placement_solvers.py",
        ],
        chosen="not real_shapes and not 70b and not highs and not paper and not again",
    ),
    "paper": Area(
        ["placement/solvers/paper.py"],
        [
            "unit/placement/test_solvers.py",
            "unit/placement/test_values.py",
            "properties/test_placement_solvers.py",
        ],
        chosen="(paper or earn or highs) and not real_shapes and not 70b",
    ),
    "plan_json": Area(
        ["placement/plan.py"],
        ["properties/test_placement_plan_json.py", "unit/offload/test_plan_files.py"],
    ),
    "gpu_index": Area(["placement/gpu_index.py"], ["unit/placement/test_gpu_index.py"]),
    "queue": Area(
        ["engine/queue.py"],
        ["unit/engine/test_scheduling.py", "unit/engine/test_side_by_side.py"],
        chosen="not many_streams and not many_threads and not left_unfinished",
    ),
    "policy": Area(["engine/policy.py"], ["properties/test_scheduling_policy.py"]),
    "tokenizer": Area(
        ["tokenizer/*.py"],
        [
            "unit/tokenizer/test_rules.py",
            "unit/tokenizer/test_encoding.py",
            "unit/tokenizer/test_vocabulary.py",
            "unit/tokenizer/test_end_tokens.py",
            "unit/tokenizer/test_gemma.py",
            "unit/tokenizer/test_chat_templates.py",
            "properties/test_tokenizer_pre_tokenizers.py",
            "properties/test_tokenizer_properties.py",
        ],
        chosen="not backtracking and not long_texts and not bytes_come_back and not original",
    ),
}
