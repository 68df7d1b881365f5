"""Work done once, outside the running engine, on a model's weights and activations.

`profile` counts how often neurons fire, `predictors` trains predictors, `sparsify` makes a SwiGLU
model sparse. All but the counting needs the extra ``train`` (``pip install '.[train]'``) and may
import torch.
"""
