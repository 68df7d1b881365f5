"""Work done once, away from the running engine: training, profiling and sparsifying models.

Everything here needs the extra ``train`` (``pip install '.[train]'``) and may import torch.
"""
