"""Work done once, outside the running engine: training the model in the package.

Everything here needs the extra ``train`` (``pip install '.[train]'``) and may import torch.
"""
