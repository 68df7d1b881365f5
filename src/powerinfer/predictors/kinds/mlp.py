"""PowerInfer's predictor: scores = fc2 @ relu(fc1 @ x), active at or above the file's threshold.

Trained with the model and stored in its file (arXiv 2312.12456, section 5.1). No bias, no sigmoid;
x is not normalised. The variants re-encode both matrices, which halves or quarters their bytes.

Each expert has its own `fc2`, in `fc2_exps`. All experts share one `fc1`, or each has its own, in
`fc1_exps`; the input x is the same. Only the chosen experts' matrices are read.
"""

from powerinfer.errors import GGUFError, NumericsError, UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.backend import Backend, Matrix
from powerinfer.ops.protocol import MatrixUse
from powerinfer.predictors.kind import PredictorKind
from powerinfer.predictors.predictor import LayerSource, ScorePart, Scorer

__all__ = ["KIND"]

_AS_STORED = ""


def _scorer(ops: Backend, source: LayerSource, variant: str) -> Scorer:
    if source.mlp_problem is not None:
        raise GGUFError(source.mlp_problem)
    if source.mlp is None:
        end = "" if source.ffn.router is None else "_exps"
        raise UnsupportedError(
            f"sparsity 'mlp' needs the predictor tensors blk.{source.number}.fc1.weight and "
            f"fc2{end}.weight, which this file lacks; use exact, calibrate another kind, or train "
            "predictors"
        )
    num_layers = source.ffn.num_experts if len(source.mlp[0].shape) == 3 else 1
    fc1, fc2 = (_matrix(ops, tensor, variant) for tensor in source.mlp)
    parts = (ScorePart(fc2),)
    return Scorer(source.mlp_input, parts, fc1=fc1, num_experts=num_layers)


def _matrix(ops: Backend, tensor: Tensor, variant: str) -> Matrix:
    if len(tensor.shape) == 3:
        matrix = ops.expert_matrix([tensor], MatrixUse.DENSE)
    else:
        matrix = ops.matrix(tensor, MatrixUse.DENSE)
    if variant == _AS_STORED or variant == tensor.format:
        return matrix
    try:
        return ops.recode(matrix, variant)
    except NumericsError as error:
        raise NumericsError(f"tensor {tensor.name}: {error}") from None


KIND = PredictorKind(
    name="mlp",
    summary="the two-layer predictor stored in a PowerInfer file",
    variants=(_AS_STORED, "q8_0", "q4_0"),
    scorer=_scorer,
    default_threshold=lambda source: source.mlp_threshold,
)
