"""Metadata keys of llama.cpp and our own, under our names for the sizes.

Keys of an architecture are prefixed with its name: `of_architecture("llama", NUM_LAYERS)` is
``llama.block_count``.
"""

from typing import Final

# About the file
ARCHITECTURE: Final = "general.architecture"
ALIGNMENT: Final = "general.alignment"
NAME: Final = "general.name"
FILE_TYPE: Final = "general.file_type"
QUANTIZATION_VERSION: Final = "general.quantization_version"

# Split files: index of this part (from 0), number of parts, tensors in all parts together
SPLIT_NO: Final = "split.no"
SPLIT_COUNT: Final = "split.count"
SPLIT_TENSORS_COUNT: Final = "split.tensors.count"

# Keys of an architecture: `of_architecture(architecture, KEY)`
VOCAB_SIZE: Final = "vocab_size"
CONTEXT_LENGTH: Final = "context_length"
HIDDEN_SIZE: Final = "embedding_length"
NUM_LAYERS: Final = "block_count"
# One number, or one per layer
INTERMEDIATE_SIZE: Final = "feed_forward_length"
NUM_EXPERTS: Final = "expert_count"
NUM_USED_EXPERTS: Final = "expert_used_count"
EXPERT_SIZE: Final = "expert_feed_forward_length"
SHARED_EXPERT_SIZE: Final = "expert_shared_feed_forward_length"
EXPERT_GATING: Final = "expert_gating_func"
EXPERT_WEIGHTS_NORMALIZED: Final = "expert_weights_norm"
EXPERT_WEIGHTS_SCALE: Final = "expert_weights_scale"
EXPERT_LATENT_SIZE: Final = "moe_latent_size"
NUM_DENSE_LAYERS: Final = "leading_dense_block_count"
NUM_HEADS: Final = "attention.head_count"
# One number, or one per layer: 0 in layers without attention
NUM_KV_HEADS: Final = "attention.head_count_kv"
SHORT_CONV_TAPS: Final = "shortconv.l_cache"
HEAD_DIM: Final = "attention.key_length"
VALUE_DIM: Final = "attention.value_length"
# Of layers with a sliding window, if they have heads of their own width
HEAD_DIM_SWA: Final = "attention.key_length_swa"
VALUE_DIM_SWA: Final = "attention.value_length_swa"
# Layers at the end that read keys and values of earlier ones
NUM_SHARED_KV_LAYERS: Final = "attention.shared_kv_layers"
# Columns of each layer in the second embedding; 0 without one
PER_LAYER_SIZE: Final = "embedding_length_per_layer_input"
RMS_NORM_EPSILON: Final = "attention.layer_norm_rms_epsilon"
LAYER_NORM_EPSILON: Final = "attention.layer_norm_epsilon"
SLIDING_WINDOW: Final = "attention.sliding_window"
# A period, or one flag per layer
SLIDING_WINDOW_PATTERN: Final = "attention.sliding_window_pattern"
ATTENTION_SCALE: Final = "attention.scale"
ATTENTION_SOFT_CAP: Final = "attn_logit_softcapping"
EMBEDDING_SCALE: Final = "embedding_scale"
RESIDUAL_SCALE: Final = "residual_scale"
LOGIT_SCALE: Final = "logit_scale"
LOGIT_SOFT_CAP: Final = "final_logit_softcapping"
ROPE_DIMENSION_COUNT: Final = "rope.dimension_count"
ROPE_DIMENSION_COUNT_SWA: Final = "rope.dimension_count_swa"
# Dimensions that rotate by the time, row and column of a token; alike in text
ROPE_DIMENSION_SECTIONS: Final = "rope.dimension_sections"
ROPE_FREQUENCY_BASE: Final = "rope.freq_base"
ROPE_FREQUENCY_BASE_SWA: Final = "rope.freq_base_swa"
ROPE_SCALING_TYPE: Final = "rope.scaling.type"
ROPE_SCALING_FACTOR: Final = "rope.scaling.factor"
ROPE_SCALING_ORIGINAL_CONTEXT: Final = "rope.scaling.original_context_length"
# bool: false in files of Granite whose attention does not rotate
ROPE_FINETUNED: Final = "rope.scaling.finetuned"
ROPE_SCALING_ATTENTION_FACTOR: Final = "rope.scaling.attn_factor"
ROPE_YARN_EXTRAPOLATION: Final = "rope.scaling.yarn_ext_factor"
ROPE_YARN_BETA_FAST: Final = "rope.scaling.yarn_beta_fast"
ROPE_YARN_BETA_SLOW: Final = "rope.scaling.yarn_beta_slow"
ROPE_SCALE_LINEAR: Final = "rope.scale_linear"
# Blocks at the end, included in `block_count`, that predict further tokens
NUM_NEXTN_LAYERS: Final = "nextn_predict_layers"
# Layers with recurrent mixers: all but each `full_attention_interval`-th, or one flag per layer
FULL_ATTENTION_INTERVAL: Final = "full_attention_interval"
RECURRENT_LAYERS: Final = "attention.recurrent_layers"
# Mixers with state: taps of the convolution, then of delta rules the width of a head, key heads,
# value heads and all the width; of selective scans the width of a state, groups, heads, all
SSM_CONV_KERNEL: Final = "ssm.conv_kernel"
SSM_STATE_SIZE: Final = "ssm.state_size"
SSM_GROUP_COUNT: Final = "ssm.group_count"
SSM_TIME_STEP_RANK: Final = "ssm.time_step_rank"
SSM_INNER_SIZE: Final = "ssm.inner_size"

# Ours (contracts: metadata keys), legal under either magic
FFN_ACTIVATION: Final = "powerinfer.ffn_activation"
FATRELU_THRESHOLD: Final = "powerinfer.fatrelu_threshold"
SPARSE_THRESHOLD: Final = "powerinfer.sparse_threshold"
LAYOUT: Final = "powerinfer.layout"
# str: the JSON of `powerinfer calibrate --write`; not part of the model's identity
CALIBRATION: Final = "powerinfer.calibration"
# bool, in `opt` files: norms follow attention and FFN instead of preceding them (OPT-350m)
POST_NORM: Final = "powerinfer.post_norm"
# str: the name of the file that `powerinfer quantize` read; marks files it may replace
QUANTIZED_FROM: Final = "powerinfer.quantized_from"

# Tokenizer
TOKENIZER_MODEL: Final = "tokenizer.ggml.model"
TOKENIZER_PRE: Final = "tokenizer.ggml.pre"
TOKENS: Final = "tokenizer.ggml.tokens"
TOKEN_SCORES: Final = "tokenizer.ggml.scores"
TOKEN_TYPES: Final = "tokenizer.ggml.token_type"
MERGES: Final = "tokenizer.ggml.merges"
BOS_TOKEN_ID: Final = "tokenizer.ggml.bos_token_id"
EOS_TOKEN_ID: Final = "tokenizer.ggml.eos_token_id"
EOT_TOKEN_ID: Final = "tokenizer.ggml.eot_token_id"
EOM_TOKEN_ID: Final = "tokenizer.ggml.eom_token_id"
UNKNOWN_TOKEN_ID: Final = "tokenizer.ggml.unknown_token_id"
PADDING_TOKEN_ID: Final = "tokenizer.ggml.padding_token_id"
# Misspelt in the format itself.
SEPARATOR_TOKEN_ID: Final = "tokenizer.ggml.seperator_token_id"
ADD_BOS_TOKEN: Final = "tokenizer.ggml.add_bos_token"
ADD_EOS_TOKEN: Final = "tokenizer.ggml.add_eos_token"
ADD_SPACE_PREFIX: Final = "tokenizer.ggml.add_space_prefix"
CHAT_TEMPLATE: Final = "tokenizer.chat_template"


def of_architecture(architecture: str, key: str) -> str:
    """Return the full name of a key that belongs to one architecture."""
    return f"{architecture}.{key}"
